"""Settings of a node, in the units that the code uses."""

from __future__ import annotations

from dataclasses import dataclass

from broker.base import limits
from broker.base.address import Address, is_wildcard
from broker.base.broker_id import Identity
from broker.config.model import BrokerModel
from discovery.effects import MembershipConfig
from stp.tree import TreeConfig


@dataclass(slots=True)
class NodeConfig(BrokerModel):
    """All settings of a `Node`. Times in s, sizes in bytes."""

    instance: int = 0
    """A number that no other process has, in case two brokers have one id and one boot number; 0:
    none."""
    handshake_timeout: float = 3.0
    allow_anonymous: bool = True
    max_qos: int = 2
    keep_missed: bool = False
    """Keep QoS 0 messages for clients that are not connected where amqtt does (`Session.miss`);
    MQTT leaves that open (3.1.1, 3.1.2.4)."""
    max_packet_size: int = limits.MAX_PACKET_SIZE
    max_inflight_messages: int = limits.MAX_INFLIGHT_5
    max_keep_alive: int = 0
    """Longest keep-alive (s) granted to MQTT 5 clients, 0: any (MQTT-3.2.2-21)."""
    session_expiry_max: int | None = None
    receive_maximum: int = 65_535
    """QoS 1 and 2 messages that a client may have in flight to this broker (MQTT 5, 3.2.2.3.3)."""
    topic_alias_maximum: int = limits.TOPIC_ALIAS_MAXIMUM
    """Topic aliases that a client may use; 0: none."""
    topic_aliases_out: int = limits.TOPIC_ALIASES_OUT
    """Topic aliases that this broker uses towards a client that allows them; 0: none."""
    retain_available: bool = True
    wildcard_subscriptions: bool = True
    shared_subscriptions: bool = True
    subscription_identifiers: bool = True
    check_payload_format: bool = True
    """Refuse a payload that is not the UTF-8 text that its Payload Format Indicator claims
    (0x99)."""
    response_information: str = ""
    """Response information for clients that ask for it; `%c` is their client id (MQTT 5,
    3.2.2.3.15)."""
    server_reference: str = ""
    """The server to which every client is sent, "": none (MQTT 5, 4.13)."""
    client_address: str = ""
    """Where clients connect ("host:port"): clients of a broker that drains are sent there. "":
    where brokers connect, if clients may."""
    redirect_permanent: bool = False
    """With `server_reference`: permanently (0x9D) or temporarily (0x9C)."""
    max_queued_bytes: int = 0
    """Bytes of all messages queued for clients, 0: half of `memory_limit`."""
    max_retained_bytes: int = 0
    """Bytes of all retained messages, 0: `limits.MAX_RETAINED_BYTES`, and a quarter of
    `memory_limit` at most."""
    connection_rate: float = 0.0
    """Clients that may connect a second, 0: no limit."""
    connect_timeout: float = limits.CONNECT_TIMEOUT
    identity_listeners: frozenset[str] = frozenset()
    """Listeners at which the name in a client's certificate is its user name."""
    link_listener: str | None = None
    """The only listener that accepts brokers; None: all do."""

    def retained_limit(self) -> int:
        """Return the limit of the bytes of all retained messages."""
        most = self.memory_limit // 4 or limits.MAX_RETAINED_BYTES
        return self.max_retained_bytes or min(limits.MAX_RETAINED_BYTES, most)

    def log_limit(self) -> int:
        """Return the limit of the bytes of the replay log."""
        return min(limits.LOG_BYTES, self.memory_limit // 4 or limits.LOG_BYTES)

    def log_room(self) -> int:
        """Return how many more bytes of large messages the replay log keeps for some seconds."""
        most = (limits.AWAY_LOGS - 1) * self.log_limit()
        return min(most, self.memory_limit // 2 - self.log_limit()) if self.memory_limit else most

    def clients_at(self) -> str:
        """Return where clients of other brokers may be sent to this one, "" if they may not."""
        if self.client_address or self.server_reference:
            return "" if self.server_reference else self.client_address
        return (
            ""
            if self.link_listener is not None or is_wildcard(self.host)
            else str(Address(self.host, self.port))
        )

    def tree(self) -> TreeConfig:
        """Return the settings of the spanning tree."""
        return TreeConfig(hello_s=self.hello, max_age_s=max(self.link_timeout, 4 * self.hello))

    def membership(self) -> MembershipConfig:
        """Return the settings of discovery."""
        return MembershipConfig(
            cluster=self.cluster,
            secret=self.secret,
            announce=self.discovery == "multicast",
            seeds=tuple(Address(host, port) for host, port in self.seeds),
            discovery_time=self.discovery_time,
            full_mesh=limits.FULL_MESH,
        )

    def announced(self) -> Identity:
        """Return the identity in announcements."""
        host = self.host if self.announce_host is None else self.announce_host
        return Identity(self.id, self.boot, Address(host, self.port), self.name)
