"""A leg between two nodes on one virtual clock: one of them plays the foreign broker."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from node_harness import FakeClient, World

from broker.leg.effects import (
    AskInterest,
    Close,
    DialForeign,
    Enter,
    LegEffect,
    Log,
    ToForeign,
    ToHere,
)
from broker.leg.leg import Leg, LegSettings, LocalSession
from broker.leg.leg_states import State
from broker.leg.rules import Rules, parse_rule


def settings(*lines: str, **more: Any) -> LegSettings:
    """Of a leg with these rules."""
    rules = Rules([parse_rule(line) for line in lines or ("# both 2",)])
    return LegSettings("n", "foreign:1883", rules, **more)


class Joined:
    """Both nodes, and the leg, which acts as its driver lets it."""

    def __init__(
        self,
        *lines: str,
        foreign: World | None = None,
        here: World | None = None,
        edit: Callable[[LegEffect], LegEffect | None] = lambda effect: effect,
        **more: Any,
    ) -> None:
        """`lines`: rules; `foreign`: the foreign broker; `here`: this one; `edit`: see there;
        `more`: of the leg's settings."""
        self.here, self.there = here or World(), foreign or World()
        self.settings = settings(*lines, **more)
        self.leg = Leg(self.settings, random.Random(1), self.here.now)
        self.ends: dict[str, FakeClient] = {}
        self.log: list[str] = []
        self.reachable = True
        self.questions = 0
        """How often it has asked what foreign clients want; tests answer."""
        self.edit = edit
        """Sees each effect; None: it is lost."""
        self.run()

    @property
    def up(self) -> bool:
        """Whether messages cross."""
        return self.leg.state is State.UP

    def session(self) -> LocalSession | None:
        """What the driver hands in when it has dialled."""
        found = self.here.node.sessions.get(self.settings.session)
        if found is None:
            return None
        return LocalSession(
            {f: each.qos for f, each in found.subscriptions.items()}, tuple(found.incoming)
        )

    def run(self) -> None:
        """Do what is due, until nothing moves."""
        now = self.here.now
        moved = True
        while moved:
            moved = False
            due = self.leg.next_deadline()
            if due is not None and due <= now:
                self.leg.tick(now)
            for effect in self.leg.take_effects():
                moved = True
                if (seen := self.edit(effect)) is not None:
                    self._do(seen)
            for side, end in list(self.ends.items()):
                data = bytes(end.transport.written)
                if data:
                    moved = True
                    end.transport.written.clear()
                    receive = self.leg.foreign_received
                    (receive if side == "there" else self.leg.here_received)(data, now)
                elif end.conn.closed and side in self.ends:
                    moved = True
                    del self.ends[side]
                    self.leg.lost("closed", now)

    def _do(self, effect: LegEffect) -> None:
        now = self.here.now
        match effect:
            case DialForeign():
                if self.reachable:
                    self.ends["there"] = self.there.open(self.leg.version)
                    self.leg.dialled(self.session(), now)
                else:
                    self.leg.lost("no route", now)
            case ToForeign(data):
                self.ends["there"].chunks([data])
            case Enter():
                self.ends["here"] = self.here.open(self.leg.version)
            case ToHere(data):
                self.ends["here"].chunks([data])
            case AskInterest():
                self.questions += 1
            case Close():
                for end in self.ends.values():
                    end.vanish()
                self.ends.clear()
            case Log(_, text):
                self.log.append(text)

    def cut(self) -> None:
        """Lose the connection to the foreign broker, with all that is on its way."""
        end = self.ends.pop("there")
        end.vanish()
        self.leg.lost("reset", self.here.now)
        self.run()

    def advance(self, seconds: float) -> None:
        """Let the time pass at both nodes, in steps of a second at most."""
        end = self.here.now + seconds
        while self.here.now < end:
            step = min(1.0, end - self.here.now)
            self.here.advance(step)
            self.there.advance(step)
            self.run()

    def send(self, client: FakeClient, *packets: Any) -> None:
        """Have a client send packets, and let them cross."""
        client.send(*packets)
        self.run()
