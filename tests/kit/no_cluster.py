"""The null version of what core asks of the cluster: there is no other broker, and none will
come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING

from mqttree.broker.core.message import Message
from mqttree.broker.core.ports import MessageForwarder
from mqttree.broker.core.route import Route

if TYPE_CHECKING:
    from mqttree.broker.core.ports import Cluster


class NoBarrier:
    """No other broker has to know of a subscription."""

    known = True

    def admits(self, now: float, then: object, /) -> bool:
        return True

    def expect(self, filters: Iterable[str], then: object, *, again: bool = False) -> bool:
        return False

    def settle_for(self, filters: Iterable[str], /) -> None: ...


class NoMessages:
    """No message is kept, wanted or sent elsewhere, and no publisher is."""

    size = 0

    def filter_changed(self, topic_filter: str, /, *, wanted: bool) -> None: ...

    def brokers_wanting(self, topic: str, /) -> tuple[bytes, ...]:
        return ()

    def give_room(self, size: int, /) -> None: ...

    def note(self, reason: object, arrival: object, /) -> None: ...

    def released(self, reason: object, /) -> None: ...

    def room(self, session: object, size: int, /) -> bool:
        return False

    def written(self, message: Message, source: object, /) -> None: ...

    def watch(self, session: object, /) -> None: ...


class NoStarts:
    """All that comes is for a new subscription."""

    def begin(self) -> None: ...


class NoMembers:
    """All members of shared subscriptions are here."""

    has_remote_members = holds_unacknowledged = False
    groups: NoMembers

    def tell(self, group: object, /) -> None: ...

    def session_changed(self, session: object, /) -> None: ...

    def matching(self, topic: str, groups: object, /) -> tuple[()]:
        return ()

    def publish(self, route: Route, message: Message, source: object, /) -> None: ...

    def publish_run(self, *run: object) -> None: ...

    def stays(self, group: object, message: object, allowed: object, source: object, /) -> bool:
        return True

    def pass_on(
        self, group_id: bytes, message: Message, source: object, *, denied: bool = False
    ) -> None: ...

    def delivered(self, session: object, outgoing: object, *, kept: bool) -> None: ...

    def settled(self, outgoing: object, /) -> None: ...


class NoLinks:
    """No broker has a link to this one, or its id."""

    refuses_clients = False

    def accept(self, conn: object, connect: object, body: bytes, now: float, /) -> None:
        raise AssertionError("a broker speaks to one that is alone")

    def dialled(self, conn: object, dial: object, now: float, /) -> None:
        raise AssertionError("a broker speaks to one that is alone")


class NoSessions:
    """No session is, or was, elsewhere."""

    redirector: NoSessions

    def __init__(self) -> None:
        self._stamps = count(1)

    def begin(self, claimant: object, connect: object, now: float, /) -> int:
        return next(self._stamps)

    def session_connected(self, session: object, resumed: bool, /) -> None: ...

    def session_ended(self, session: object, /) -> None: ...

    def floor(self, client_id: str, owner: str | None, /) -> int:
        return 0

    def elsewhere(self, client_id: str, /) -> bool:
        return False

    def subscribing(self, session: object, hurry: Callable[[float], None], /) -> None: ...

    def subscribed(self, session: object, hurry: Callable[[float], None], /) -> None: ...

    def connecting(self, newcomer: object, connect: object, assigned: bool, now: float, /) -> bool:
        return False

    def request(self, session: object, message: object, properties: object, /) -> int:
        return 0x83


class NoCluster:
    """What a federation of one broker is to it; its parts have the methods of the ports, and what a
    driver asks of it by way of `Node`."""

    barrier = NoBarrier()
    memory = 0
    forwarder = MessageForwarder()
    subscription_starts = NoStarts()

    def __init__(self) -> None:
        self.replay_log = self.remote_flow_control = self.retained_sync = NoMessages()
        self.strategy = self.trimmed_numbers = self.retained_sync
        self.sharing = self.custody = NoMembers()
        self.sharing.groups = self.sharing
        self.link_registry = self.id_conflict = NoLinks()
        self.takeover = self.posted_sessions = self.tombstones = NoSessions()
        self.whereabouts = self.placement = self.session_replay = self.takeover
        self.placement.redirector = self.placement

    # ---------------------------------------------------------------- by way of Node

    def tick(self, now: float) -> None: ...

    @property
    def agenda(self) -> NoCluster:
        return self

    def awake(self, now: float) -> None: ...

    def next_deadline(self) -> None: ...


def is_the_port(cluster: NoCluster) -> Cluster:
    return cluster
