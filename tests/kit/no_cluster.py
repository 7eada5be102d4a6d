"""The null version of what core asks of the cluster: there is no other broker, and none will
come."""

from __future__ import annotations

from itertools import count
from typing import Any

from mqttree.broker.core.message import Message
from mqttree.broker.core.ports import LoneNumbers, MessageForwarder
from tests.kit.core import needs_python


def says(answer: Any) -> Any:
    """A method that returns `answer`."""
    return lambda *given, **named: answer


class NoPart:
    """A part of the cluster that has these members; all others are methods that do nothing."""

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)

    def __getattr__(self, name: str) -> Any:
        return says(None)


class NoForwarder(MessageForwarder):
    """Numbers messages, and passes none on."""

    def __init__(self) -> None:
        self.lone = LoneNumbers(b"alone")

    def forward(self, message: Message, source: object) -> None:
        if message.qos:
            self.lone.name(message)


class NoCluster:
    """What a federation of one broker is to it, and what a driver asks of it by way of `Node`."""

    memory = 0

    def __init__(self) -> None:
        needs_python("no class of a test is a compiled forwarder")
        self.forwarder = NoForwarder()
        stamps = count(1)
        self.barrier = NoPart(
            known=True, closed=False, stale_until=0.0, admits=says(True), expect=says(False)
        )
        self.replay_log = NoPart(size=0)
        self.remote_flow_control = NoPart(room=says(False))
        self.strategy = NoPart(brokers_wanting=says(()))
        groups = NoPart(matching=says(()))
        self.sharing = NoPart(has_remote_members=False, groups=groups, stays=says(True))
        self.custody = NoPart(holds_unacknowledged=False)
        self.id_conflict = NoPart(refuses_clients=False)
        self.takeover = NoPart(begin=lambda claimant, connect, now: next(stamps))
        self.tombstones = NoPart(floor=says(0))
        self.recently_elsewhere = NoPart(elsewhere=says(False))
        redirector = NoPart(connecting=says(False))
        self.placement = NoPart(redirector=redirector, request=says(0x83))
        self.retained_sync = self.subscription_starts = self.link_registry = NoPart()
        self.posted_sessions = self.agenda = NoPart()

    def tick(self, now: float) -> None: ...
