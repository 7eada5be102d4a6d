"""What is set of a leg: where and how it connects, and what crosses. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mqttree.broker.leg.retained_rules import Retain
from mqttree.broker.leg.rules import Rules
from mqttree.broker.leg.session_pair import SESSION
from mqttree.broker.wire.constants import MAX_PACKET_SIZE


class Start(Enum):
    """When a leg is connected, as `start_type` of Mosquitto's bridges."""

    AUTOMATIC = "automatic"
    """Always."""
    LAZY = "lazy"
    """While messages cross."""
    ONCE = "once"
    """Until it is lost."""


@dataclass(frozen=True, slots=True)
class LegSettings:
    """How a leg connects."""

    name: str
    """Sessions on both sides are known by it."""
    address: str
    """HOST:PORT of the foreign broker, for log lines."""
    rules: Rules
    """Which topics cross."""
    username: str | None = None
    """The user at the foreign broker."""
    as_user: str | None = None
    """The user here, whose rules count; None: it may do everything."""
    version: int = 0
    """Of MQTT: 5, 4 (3.1.1), or 0: 5 if the foreign broker knows it."""
    plain: bool = False
    """Whether MQTT 3.1.1 comes without the bit of a bridge from the first CONNECT on."""
    keep_alive: int = 10
    """s."""
    probes: bool = False
    """Whether it looks for rings."""
    state_topic: str = ""
    """Where both brokers have a retained "1" while it is up, and "0" else; "": nowhere."""
    marks: bool = True
    """Whether messages carry the mark of this federation (MQTT 5)."""
    expiry: int = 86_400
    """s that the foreign session is kept while the leg is away."""
    receive_maximum: int = 1000
    """Messages at QoS 1 and 2 that the foreign broker may have in flight to here."""
    topic_alias_maximum: int = 0
    """Topic aliases that this broker takes."""
    maximum_packet_size: int = MAX_PACKET_SIZE
    """bytes that this broker takes."""
    more_addresses: tuple[str, ...] = ()
    """Further ones, HOST:PORT each."""
    round_robin: bool = False
    """Whether all addresses are equal; else the first one is dialled first."""
    start: Start = Start.AUTOMATIC
    idle_timeout: float = 60.0
    """s without messages after which a lazy leg disconnects."""
    threshold: int = 1
    """Messages that have to wait here for a lazy leg to connect."""
    max_qos: int = 2
    """The highest QoS of messages that cross."""
    max_rate: int = 0
    """Messages that go out in a second, 0: as many as there are; so many are in flight at most."""
    retain: Retain = Retain.BOTH
    """Which way RETAIN crosses."""
    foreign_client_id: str = ""
    """The client id at the foreign broker; "": one made of the name."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses."""
        return (self.address, *self.more_addresses)

    @property
    def client_id(self) -> str:
        """The client id at the foreign broker."""
        return self.foreign_client_id or f"mqttree-{self.name}"

    @property
    def session(self) -> str:
        """The client id of the session here."""
        return f"{SESSION}{self.name}"
