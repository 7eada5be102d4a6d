"""The effects of a Membership, and its configuration, without behaviour."""

from __future__ import annotations

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import Identity
from mqttree.broker.base.record import Record
from mqttree.discovery.announcement import MAX_CLUSTER, MAX_NAME, check_text
from mqttree.discovery.seeds import MAX_SEEDS
from mqttree.discovery.states import State


class Announce(Record):
    """Send this datagram to the multicast group, from each interface as `announcement.bind` makes
    it."""

    data: bytes


class Dial(Record):
    """Open a link to this address. To be answered: dial_failed, link_up, address_is_peer or
    address_is_self."""

    address: Address


class Log(Record):
    """One line for the log; `level` is "debug", "info" or "warning"."""

    level: str
    text: str


class NewMember(Record):
    """A new broker, or a new incarnation of a known one."""

    id: bytes


class Left(Record):
    """A broker that has left, or was silent for so long that it is forgotten."""

    id: bytes


class StateChanged(Record):
    """The state has changed to this one."""

    state: State


class Surplus(Record):
    """The link to this broker, which this one dialled, has not been needed for a while: close it if
    the tree can do without it."""

    id: bytes


class SameId(Record):
    """A broker that announces this address claims this broker's id, without any proof."""

    address: Address


Effect = Announce | Dial | Log | NewMember | Left | StateChanged | Surplus | SameId


DEFAULT_CLUSTER = "mqttree"
DISCOVERY_TIME = 0.3
"""s for which announcements are awaited before a first tree is formed (Overlays 3: Td)."""


class MembershipConfig(Record):
    """Settings of discovery; times in seconds. Raises ValueError with one line for a setting that
    is impossible."""

    cluster: str = DEFAULT_CLUSTER
    secret: bytes | None = None
    announce: bool = True
    """False without multicast: nothing is announced, and members are found by seeds and gossip."""
    seeds: tuple[Address, ...] = ()
    discovery_time: float = DISCOVERY_TIME
    beacon: float = 5.0
    dial_patience: float = 0.1
    """for which the broker with the higher id leaves it to the other one to dial."""
    dial_timeout: float = 5.0
    forget_after: float = 300.0
    clock_window: float = 60.0
    full_mesh: int | None = None
    """Number of other brokers up to which there is a link to each (`neighbour_selection`); None: no
    limit."""

    def __post_init__(self) -> None:
        if not self.cluster:
            raise ValueError("cluster name is empty")
        check_text("cluster name", self.cluster, MAX_CLUSTER)
        if self.secret is not None and not self.secret:
            raise ValueError("cluster secret is empty")
        if len(self.seeds) > MAX_SEEDS:
            raise ValueError(f"{len(self.seeds)} seeds are more than {MAX_SEEDS}")
        for setting in (
            "discovery_time",
            "beacon",
            "dial_patience",
            "dial_timeout",
            "forget_after",
            "clock_window",
        ):
            if not 0.0 < getattr(self, setting) < 1e9:
                raise ValueError(f"{setting} is not a positive number of seconds")


def check_identity(own: Identity) -> None:
    """Raise ValueError with one line if a broker could not announce itself as `own`."""
    if not 0 < own.address.port < 1 << 16:
        raise ValueError(f"advertised port {own.address.port} is not a number from 1 to 65535")
    check_text("broker name", own.name, MAX_NAME)
