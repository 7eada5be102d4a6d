"""A leg between two nodes on one virtual clock: one of them plays the foreign broker."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from mqttree.broker.core.session_owner import LEG_LISTENER
from mqttree.broker.io.leg_retained import RetainedHere
from mqttree.broker.leg.backoff import CLOSED
from mqttree.broker.leg.effects import (
    Close,
    DialForeign,
    Enter,
    LegEffect,
    Log,
    Prepare,
    RetainHere,
    ToForeign,
    ToHere,
    TryAddress,
)
from mqttree.broker.leg.leg import Leg
from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.leg.leg_states import State
from mqttree.broker.leg.retained_exchange import RetainedExchange
from mqttree.broker.leg.rules import Rules, parse_rule
from mqttree.broker.leg.session_pair import LocalSession
from mqttree.broker.limits import DEFAULTS, Limits
from tests.kit.node_harness import FakeClient, World


def settings(*lines: str, **more: Any) -> LegSettings:
    """Of a leg with these rules."""
    rules = Rules([parse_rule(line) for line in lines or ("# both 2",)])
    return LegSettings("n", "foreign:1883", rules, **more)


def new_leg(given: LegSettings, *, standby: bool = False) -> Leg:
    """A leg at second 0 whose broker has nothing retained. `standby`: it waits for its turn."""
    here = RetainedHere(World().node, given.session)
    exchange = RetainedExchange(given, here, random.Random(1))
    return Leg(given, exchange, random.Random(1), 0.0, standby=standby)


class Joined:
    """Both nodes, and the leg, which acts as its driver lets it."""

    def __init__(
        self,
        *lines: str,
        foreign: World | None = None,
        others: tuple[World, ...] = (),
        here: World | None = None,
        standby: bool = False,
        limits: Limits = DEFAULTS,
        edit: Callable[[LegEffect], LegEffect | None] = lambda effect: effect,
        hears: Callable[[bytes], bytes] = lambda data: data,
        **more: Any,
    ) -> None:
        """`lines`: rules; `foreign`: the foreign broker; `others`: at its other addresses; `here`:
        this broker; `standby`: it waits for its turn; `limits`: of this broker; `edit`, `hears`:
        see there; `more`: of the leg's settings."""
        self.here = here or World(limits=limits)
        self.places = (foreign or World(), *others)
        self.place = 0
        self.settings = settings(*lines, **more)
        self.retained = RetainedHere(self.here.node, self.settings.session)
        self.begin(standby=standby)
        self.ends: dict[str, FakeClient] = {}
        self.log: list[str] = []
        self.reachable = True
        self.syncs = True
        """Whether the second connection can be opened."""
        self.deaf = False
        """Whether all that the foreign broker sends is lost."""
        self.down: set[int] = set()
        """Addresses that do not answer."""
        self.edit = edit
        """Sees each effect; None: it is lost."""
        self.hears = hears
        """Sees what the foreign broker sends; returns what it says instead."""
        self.run()

    def begin(self, *, standby: bool = False) -> None:
        """Have a new leg, as after a restart of this broker. `standby`: it waits for its turn."""
        self.exchange = RetainedExchange(self.settings, self.retained, random.Random(1))
        self.here.node.retained_watchers[self.settings.session] = self.exchange.on_published_here
        rng, now = random.Random(1), self.here.now
        self.leg = Leg(self.settings, self.exchange, rng, now, standby=standby)

    @property
    def there(self) -> World:
        """The foreign broker that was dialled last."""
        return self.places[self.place]

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
            {f: each.qos for f, each in found.subscriptions.items()},
            tuple(found.incoming),
            tuple(number for number in found.inflight if found.qos_in_flight(number) == 2),
        )

    def run(self) -> None:
        """Do what is due, until nothing moves."""
        now = self.here.now
        found = self.here.node.sessions.get(self.settings.session)
        self.leg.waiting = 0 if found is None else len(found.queue) + len(found.inflight)
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
                    if self.leg.state is State.ENTERING:
                        self.leg.entered = self.session()
                    self._received(side, data)
                elif end.conn.closed and side in self.ends:
                    moved = True
                    del self.ends[side]
                    lost = self.exchange.sync_lost if side == "sync" else self.leg.on_lost
                    lost(CLOSED, now)

    def _received(self, side: str, data: bytes) -> None:
        if self.deaf and side != "here":
            return
        match side:
            case "there":
                self.leg.foreign_received(self.hears(data), self.here.now)
            case "here":
                self.leg.here_received(data, self.here.now)
            case _:
                self.exchange.sync_received(data, self.here.now)

    def _do(self, effect: LegEffect) -> None:
        now = self.here.now
        match effect:
            case DialForeign(sync=True):
                if self.syncs:
                    self.ends["sync"] = self.there.open(self.leg.version)
                    self.exchange.sync.on_dialled(now)
                else:
                    self.exchange.sync_lost("no route", now)
            case DialForeign(place):
                self.place = place
                if self.reachable and place not in self.down:
                    self.ends["there"] = self.there.open(self.leg.version)
                    self.leg.on_dialled(self.session(), now)
                else:
                    self.leg.on_lost("no route", now)
            case TryAddress(place):
                if self.reachable and place not in self.down:
                    self.leg.on_answer(place, now)
            case ToForeign(data, sync=sync):
                if (side := "sync" if sync else "there") in self.ends:
                    self.ends[side].chunks([data])
            case Prepare(filters, data):
                found = self.here.node.sessions.get(self.settings.session)
                if found is None or any(f not in found.subscriptions for f in filters):
                    self.here.open(5, LEG_LISTENER).chunks([data])
            case Enter():
                self.ends["here"] = self.here.open(self.leg.version, LEG_LISTENER)
            case ToHere(data):
                if "here" in self.ends:
                    self.ends["here"].chunks([data])
            case Close(sync=sync):
                for side in ("sync",) if sync else ("there", "here"):
                    self._vanish(side)
            case Log(_, text):
                self.log.append(text)
            case RetainHere(message):
                self.retained.publish(message, now)
                self.here.settle()

    def _vanish(self, side: str) -> None:
        end = self.ends.pop(side, None)
        if end is not None:
            end.vanish()

    def cut(self) -> None:
        """Lose the connection to the foreign broker, with all that is on its way."""
        end = self.ends.pop("there")
        end.vanish()
        self.leg.on_lost("reset", self.here.now)
        self.run()

    def advance(self, seconds: float) -> None:
        """Let the time pass at both nodes, in steps of a second at most."""
        end = self.here.now + seconds
        while self.here.now < end:
            step = min(1.0, end - self.here.now)
            due = self.leg.next_deadline()
            if due is not None:
                step = max(0.001, min(step, due - self.here.now))
            self.here.advance(step)
            for world in self.places:
                world.advance(step)
            self.run()

    def send(self, client: FakeClient, *packets: Any) -> None:
        """Have a client send packets, and let them cross."""
        client.send(*packets)
        self.run()
