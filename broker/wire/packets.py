"""One plain class for each MQTT Control Packet, the same for every protocol version.

``properties`` is None when there are none (always so before MQTT 5), else a dict as
``mqttree.broker.wire.properties`` says. Whatever a version does not have keeps its default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from mqttree.broker.wire.properties import Properties, Property

SECRET = frozenset({"password"})
"""Fields that are not printed."""


class _Fields:
    """How packets are compared and printed: by all of their fields. Methods for each class would be
    compiled at each start (0.1 ms)."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)

    def __hash__(self) -> int:
        raise TypeError(f"{type(self).__name__} may change, so it has no hash")

    def __repr__(self) -> str:
        names = [name for name in self.__match_args__ if name not in SECRET]
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({values})"


@dataclass(slots=True, eq=False, repr=False)
class Will(_Fields):
    """The Will Message of a CONNECT (MQTT 5, 3.1.3.2 to 3.1.3.4)."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Connect(_Fields):
    """CONNECT. ``version`` is 3, 4 or 5 without the top bit, which is ``bridge``; ``keep_alive`` in
    s, 0 for none."""

    protocol_name: str
    version: int
    clean_start: bool
    keep_alive: int
    client_id: str
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties | None = None
    bridge: bool = False

    def forget(self) -> None:
        """Leave out what is of no use once the client is connected: User Properties may take
        megabytes."""
        if self.properties:
            self.properties = {
                key: value
                for key, value in self.properties.items()
                if key != Property.USER_PROPERTY
            }


@dataclass(slots=True, eq=False, repr=False)
class Connack(_Fields):
    """CONNACK. ``code`` is a Reason Code in MQTT 5, a return code (0 to 5) before."""

    session_present: bool
    code: int
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Publish(_Fields):
    """PUBLISH. ``packet_id`` is None at QoS 0; ``topic`` may be empty in MQTT 5 beside a Topic
    Alias."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int | None = None
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Puback(_Fields):
    """PUBACK, the answer to a QoS 1 PUBLISH."""

    packet_id: int
    reason: int = 0
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Pubrec(_Fields):
    """PUBREC, QoS 2 delivery part 1."""

    packet_id: int
    reason: int = 0
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Pubrel(_Fields):
    """PUBREL, QoS 2 delivery part 2."""

    packet_id: int
    reason: int = 0
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Pubcomp(_Fields):
    """PUBCOMP, QoS 2 delivery part 3."""

    packet_id: int
    reason: int = 0
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class SubscriptionRequest(_Fields):
    """One Topic Filter of a SUBSCRIBE with its Subscription Options (MQTT 5, 3.8.3.1)."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Subscribe(_Fields):
    """SUBSCRIBE; `filters` are requests, each a topic filter with its options."""

    packet_id: int
    filters: list[SubscriptionRequest]
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Suback(_Fields):
    """SUBACK; one code for each filter in order: the granted QoS, or from 0x80 up a failure."""

    packet_id: int
    codes: list[int]
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Unsubscribe(_Fields):
    """UNSUBSCRIBE; `filters` are the topic filters that are no longer wanted."""

    packet_id: int
    filters: list[str]
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Unsuback(_Fields):
    """UNSUBACK; ``codes`` is empty before MQTT 5."""

    packet_id: int
    codes: list[int] = field(default_factory=list)
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Pingreq(_Fields):
    """PINGREQ; a payload (BPDUs) only on links between brokers (MQTT-ST)."""

    payload: bytes = b""


@dataclass(slots=True, eq=False, repr=False)
class Pingresp(_Fields):
    """PINGRESP; a payload only on links between brokers."""

    payload: bytes = b""


@dataclass(slots=True, eq=False, repr=False)
class Disconnect(_Fields):
    """DISCONNECT; `reason` is 0 before MQTT 5, which has neither it nor `properties`."""

    reason: int = 0
    properties: Properties | None = None


@dataclass(slots=True, eq=False, repr=False)
class Auth(_Fields):
    """AUTH, a step of an enhanced authentication (MQTT 5 only); `reason` says which step."""

    reason: int = 0
    properties: Properties | None = None


Ack: TypeAlias = Puback | Pubrec | Pubrel | Pubcomp

Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
