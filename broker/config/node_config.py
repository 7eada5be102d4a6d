"""Settings of a node, in the units that the code uses."""

from __future__ import annotations

from mqttree.broker.base.address import Address, is_wildcard
from mqttree.broker.base.broker_id import Identity
from mqttree.broker.config.limits import ConfigLimits
from mqttree.broker.config.model import BrokerModel
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.discovery.effects import MembershipConfig
from mqttree.stp.config import TreeConfig

MAX_INFLIGHT = 16_384
"""QoS 1 and 2 messages unacknowledged by an MQTT 5 client, whatever larger Receive Maximum it
announces: with most packet identifiers in use the search for a free one would take long."""


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
    max_packet_size: int = MAX_PACKET_SIZE
    max_inflight_messages: int = MAX_INFLIGHT
    max_keep_alive: int = 0
    """Longest keep-alive (s) granted to MQTT 5 clients, 0: any (MQTT-3.2.2-21)."""
    session_expiry_max: int | None = None
    receive_maximum: int = 1_024
    """QoS 1 and 2 messages that a client may have in flight to this broker (MQTT 5, 3.2.2.3.3)."""
    topic_alias_maximum: int = 64
    """Topic aliases that a client may use (MQTT-3.1.2-26), each an entry of a dict; 0: none."""
    topic_aliases_out: int = 64
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
    """The server to which every client is sent, "": none (MQTT 5, 4.11)."""
    client_address: str = ""
    """Where clients connect ("host:port"): clients of a broker that drains are sent there. "":
    where brokers connect, if clients may."""
    topic_rates: bool = False
    """Whether it is counted how often topics are published to."""
    redirect_permanent: bool = False
    """With `server_reference`: permanently (0x9D) or temporarily (0x9C)."""
    max_queued_bytes: int = 0
    """Bytes of all messages queued for clients, 0: half of `memory_limit`."""
    max_retained_bytes: int = 0
    """Bytes of all retained messages, 0: `max_retained_bytes` of the limits, and a quarter of
    `memory_limit` at most."""
    connection_rate: float = 0.0
    """Clients that may connect a second, 0: no limit."""
    connect_timeout: float = 10.0
    """From accept to CONNECT. A half-open connection costs a socket: slow or silent ones are closed
    [connect_timeout]."""
    identity_listeners: frozenset[str] = frozenset()
    """Listeners at which the name in a client's certificate is its user name."""
    link_listener: str | None = None
    """The only listener that accepts brokers; None: all do."""

    def retained_limit(self, limits: ConfigLimits) -> int:
        """Return the limit of the bytes of all retained messages."""
        most = self.memory_limit // 4 or limits.max_retained_bytes
        return self.max_retained_bytes or min(limits.max_retained_bytes, most)

    def log_limit(self, limits: ConfigLimits) -> int:
        """Return the limit of the bytes of the replay log."""
        return min(limits.log_bytes, self.memory_limit // 4 or limits.log_bytes)

    def log_room(self, limits: ConfigLimits) -> int:
        """Return how many more bytes of large messages the replay log keeps for some seconds."""
        log = self.log_limit(limits)
        most = (limits.away_logs - 1) * log
        return min(most, self.memory_limit // 2 - log) if self.memory_limit else most

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

    def membership(self, limits: ConfigLimits) -> MembershipConfig:
        """Return the settings of discovery."""
        return MembershipConfig(
            cluster=self.cluster,
            secret=self.secret,
            announce=self.discovery == "multicast",
            seeds=tuple(Address(host, port) for host, port in self.seeds),
            discovery_time=self.discovery_time,
            full_mesh=limits.full_mesh,
        )

    def announced(self) -> Identity:
        """Return the identity in announcements."""
        host = self.host if self.announce_host is None else self.announce_host
        return Identity(self.id, self.boot, Address(host, self.port), self.name)
