"""The null version of what core asks of the cluster: there is no other broker, and none will
come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING

from mqttree.broker.core.message import Message
from mqttree.broker.core.ports import PacketForwarder
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


class NoCluster:
    """What a federation of one broker is to it; its methods are those of the port, and what a
    driver asks of it by way of `Node`."""

    barrier = NoBarrier()
    shares = guards = yields = False
    memory = log_size = 0
    packet_forwarder = PacketForwarder()

    def __init__(self) -> None:
        self._stamps = count(1)

    def forward(self, message: Message, source: object, /) -> None: ...

    def forward_batch(self, batch: object, source: object, /) -> None: ...

    def retained_written(self, message: Message, source: object, /) -> None: ...

    def filter_changed(self, topic_filter: str, /, *, wanted: bool) -> None: ...

    def subscription_start(self) -> None: ...

    def group_changed(self, group: object, /) -> None: ...

    def session_changed(self, session: object, /) -> None: ...

    def brokers_wanting(self, topic: str, /) -> tuple[bytes, ...]:
        return ()

    def remote_members(self, topic: str, groups: object, /) -> tuple[()]:
        return ()

    def share(self, route: Route, message: Message, source: object, /) -> None: ...

    def share_run(self, *run: object) -> None: ...

    def stays(self, group: object, message: object, allowed: object, source: object, /) -> bool:
        return True

    def pass_on(
        self, group_id: bytes, message: Message, source: object, *, denied: bool = False
    ) -> None: ...

    def shared_delivered(self, session: object, outgoing: object, *, kept: bool) -> None: ...

    def shared_settled(self, outgoing: object, /) -> None: ...

    def accept(self, conn: object, connect: object, body: bytes, now: float, /) -> None:
        raise AssertionError("a broker speaks to one that is alone")

    def claim_session(self, claimant: object, connect: object, now: float, /) -> int:
        return next(self._stamps)

    def session_came(self, session: object, resumed: bool, /) -> None: ...

    def session_ended(self, session: object, /) -> None: ...

    def session_floor(self, client_id: str, owner: str | None, /) -> int:
        return 0

    def session_away(self, session: object, /) -> None: ...

    def session_elsewhere(self, client_id: str, /) -> bool:
        return False

    def subscribing(self, session: object, hurry: Callable[[float], None], /) -> None: ...

    def subscribed(self, session: object, hurry: Callable[[float], None], /) -> None: ...

    def hold_remote(self, reason: object, arrival: object, /) -> None: ...

    def release_remote(self, reason: object, /) -> None: ...

    def room(self, session: object, size: int, /) -> bool:
        return False

    def limit_log(self, size: int, /) -> None: ...

    def redirects(self, newcomer: object, connect: object, assigned: bool, now: float, /) -> bool:
        return False

    def placement_request(self, session: object, message: object, properties: object, /) -> int:
        return 0x83

    def replay_request(self, session: object, message: object, properties: object, /) -> int:
        return 0x83

    # ---------------------------------------------------------------- by way of Node

    def awake(self, now: float) -> None: ...

    def tick(self, now: float) -> None: ...

    def next_deadline(self) -> None: ...


def is_the_port(cluster: NoCluster) -> Cluster:
    return cluster
