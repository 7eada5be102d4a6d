"""Retained messages of a leg: what crosses is noted in the base, and merges are begun and led.
Pure.

A merge is due when the leg comes up, when both sides have written a topic at one time, when
messages for the foreign broker were dropped, and every hour. It waits until no messages wait for
the foreign broker, as these are older than what is retained here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mqttree.broker.leg.crossing import Crossing
from mqttree.broker.leg.effects import LegEffect, Log, RetainHere, ToForeign
from mqttree.broker.leg.retained_base import RetainedBase, own
from mqttree.broker.leg.retained_digest import digest_of, key_of, read_section
from mqttree.broker.leg.retained_merge import Deed, LocalStore, MergeCounters, RetainedMerge
from mqttree.broker.leg.retained_packets import publishes, without_retain, without_stored
from mqttree.broker.leg.retained_rules import Conflict, Retain, RetainedRules
from mqttree.broker.leg.retained_watch import RetainedWatch
from mqttree.broker.leg.rules import Rules
from mqttree.broker.leg.sync_session import SyncSession
from mqttree.broker.leg.sync_states import SyncState
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Pingreq, Publish
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.strings import shorten

PERIOD = 3600.0
"""s between two merges when nothing has happened, about."""
SOON, AGAIN = 60.0, 10.0
"""s between the beginnings of two merges at least, and if the leg was lost in between."""
RETRY_FIRST, RETRY_LAST = 1.0, 30.0
"""s until a merge that was broken off begins once more, drawn from between the two."""
WAIT_LONGEST = 60.0
"""s for which a merge waits until no messages wait for the foreign broker."""
WAIT_LOOK = 0.5
"""s between two looks whether any wait."""
PROVE_AFTER, PROVE_PAUSE = 2.0, 10.0
"""s until topics that are new to the foreign broker are looked for there, and between two times."""
MANY = 500
"""Messages that a merge publishes here after which another one follows."""
NAMES = 200
"""Topics that are looked for at a time."""
STEP_PAUSE = 0.002
"""s between two steps of a merge, so that clients are served meanwhile."""
TAKEN_AT_ONCE = 200
"""Packets of the sync session that are looked at in one turn."""
PING_AFTER = 0.2
"""s until a PINGREQ follows retained messages at QoS 0, so that they are confirmed."""


class Here(LocalStore, Protocol):
    """What the exchange asks of this broker."""

    @property
    def waiting(self) -> int:
        """Messages that wait in the leg's session for the foreign broker."""

    @property
    def dropped(self) -> int:
        """A number that rises when messages for the foreign broker were dropped, or may have
        been."""

    @property
    def full(self) -> bool:
        """Whether so many bytes are on their way to the foreign broker that no more should be
        sent."""


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """How retained messages of one leg cross."""

    name: str
    """Of the leg."""
    address: str
    """HOST:PORT of the foreign broker, for log lines."""
    client_id: str
    """Of the sync session."""
    username: str | None
    keep_alive: int
    """s."""
    rules: Rules
    retain: Retain = Retain.BOTH
    conflict: Conflict = Conflict.FEDERATION
    maximum_packet_size: int = MAX_PACKET_SIZE
    """bytes that this broker takes."""


class RetainedExchange:
    """The retained messages of one leg."""

    def __init__(
        self, settings: ExchangeSettings, base: RetainedBase, here: Here, rng: random.Random
    ) -> None:
        """`settings`: how they cross; `base`: what both sides had last; `here`: this broker; `rng`:
        draws pauses."""
        self.settings = settings
        self.base = base
        self.counters = MergeCounters()
        self.too_large = 0
        """Retained messages that the foreign broker does not take, as they are too large."""
        self.ended = 0.0
        """When the last merge was complete (s), 0: there was none."""
        self.sync = SyncSession(settings.client_id, settings.username, settings.keep_alive)
        self.sync.maximum_packet_size = settings.maximum_packet_size
        self._rules = RetainedRules(settings.rules, settings.retain)
        self._here, self._rng = here, rng
        self._watch = RetainedWatch(base)
        self._effects: list[LegEffect] = []
        self._crossing: Crossing | None = None
        self._version = 5
        self._maximum = MAX_PACKET_SIZE
        self._active = False  # the leg is up, and both brokers retain
        self._available = True  # the foreign broker retains
        self._merge: RetainedMerge | None = None
        self._full_merge = False
        self._wanted_at = 0.0
        self._begun = -PERIOD
        self._wait_until = 0.0
        self._look_at = 0.0
        self._step_at: float | None = None
        self._prove_at: float | None = None
        self._ping_at: float | None = None
        self._failed = ""  # why the last merge was broken off
        self._dropped = 0
        base.arrived = self._arrived

    # ---------------------------------------------------------------- outputs

    def take_effects(self) -> list[LegEffect]:
        """Drain what the driver is to do."""
        effects, self._effects = self._effects + self.sync.take_effects(), []
        return effects

    @property
    def due(self) -> float | None:
        """When `tick` is due (s); None: never."""
        if not self._active:
            return None
        merging = self._merge is not None
        dues = (
            self._ping_at,
            self.sync.due,
            self._step_at if merging else max(self._wanted_at, self._look_at),
            None if merging else self._prove_at,
        )
        return min((due for due in dues if due is not None), default=None)

    @property
    def reads(self) -> bool:
        """Whether more of the foreign broker is to be read on the sync session's connection."""
        return self.sync.reads

    @property
    def changes(self) -> int:
        """How often something has changed that the journal is to record at the end of the turn."""
        return self.base.changes

    def use_password(self, password: bytes | None) -> None:
        """Have the next sync session log in with a `password`."""
        self.sync.password = password

    def retains(self, *, inwards: bool) -> bool:
        """Return whether RETAIN crosses in a direction: to here, or (`inwards` False) from here."""
        retain = self.settings.retain
        return self._available and (retain.inwards if inwards else retain.outwards)

    def report(self, now: float) -> dict[str, Any]:
        """Return the state at `now` (s), for people and programs."""
        counters = self.counters
        return {
            "retained_merges": counters.merges,
            "retained_failures": counters.failures,
            "retained_conflicts": counters.conflicts,
            "retained_published_here": counters.published_here,
            "retained_published_there": counters.published_there,
            "retained_deleted_here": counters.deleted_here,
            "retained_deleted_there": counters.deleted_there,
            "retained_incomplete": counters.incomplete,
            "retained_too_large": self.too_large,
            "retained_base": len(self.base.entries),
            "retained_unremembered": self.base.over,
            "retained_merging": self._full_merge and self._merge is not None,
            "retained_merge_age": round(now - self.ended, 1) if self.ended else None,
        }

    # ---------------------------------------------------------------- the leg

    def connecting(self, crossing: Crossing, version: int, properties: Mapping[int, Any]) -> None:
        """Note that the foreign broker has accepted. `crossing`: of the leg; `version`: of MQTT (4
        or 5); `properties`: of its CONNACK."""
        self._crossing, self._version = crossing, version
        self._maximum = properties.get(Property.MAXIMUM_PACKET_SIZE, MAX_PACKET_SIZE)
        available = properties.get(Property.RETAIN_AVAILABLE, 1) == 1
        if not available and self._available:
            self._log("warning", "the foreign broker retains nothing: RETAIN does not cross")
        self._available = available

    def up(self, now: float, *, present: bool) -> None:
        """Note that the leg is up at `now` (s). `present`: the foreign broker knew its session."""
        self._active = self._available and self.settings.retain is not Retain.OFF
        if not self._active:
            return
        if not present:
            self.base.doubt(True)
        self._dropped = self._here.dropped
        self._wanted_at = now + PERIOD
        self._want(now, AGAIN)

    def down(self, now: float) -> None:
        """Note that the leg is not up any more, at `now` (s); harmless when repeated."""
        self._active = False
        self._merge = None
        self._watch.clear()
        self._ping_at = self._prove_at = None
        self.sync.end(now)

    def incoming(self, packets: bytes, *, stored: bool) -> bytes:
        """Return packets with RETAIN of the foreign broker as they may come in. `packets`: whole
        ones of types that cross; `stored`: those with RETAIN are not published now."""
        if stored:
            return without_stored(packets)
        return packets if self.retains(inwards=True) else without_retain(packets)

    def outgoing(self, packets: bytes, crossed: bytes, now: float) -> bytes:
        """Note what is on its way, and return it as it may go out. `packets`: whole ones of this
        broker, with RETAIN among them; `crossed`: the same under the names at the foreign broker;
        `now`: s."""
        if not self.retains(inwards=False):
            return without_retain(crossed)
        for ours, theirs in zip(
            publishes(packets, self._version), publishes(crossed, self._version), strict=True
        ):
            if theirs.retain and ours.topic and not own(ours.topic):
                digest = digest_of(ours.payload, read_section(ours.properties))
                message = ours.topic, digest, now, ours.packet_id, ours.qos
                self._sent(*message, repeated=ours.dup)
        return crossed

    @property
    def listens(self) -> bool:
        """Whether acknowledgements of the foreign broker are waited for."""
        return self._watch.numbered

    def acknowledged(self, packets: bytes, now: float) -> None:
        """Take acknowledgements among whole `packets` of the foreign broker, at `now` (s)."""
        self._watch.acknowledged(packets)
        self._confirmed(now)

    def ping_sent(self) -> None:
        """Note that the leg has sent PINGREQ to the foreign broker."""
        self._watch.ping_sent()
        self._ping_at = None

    def ping_answered(self, now: float) -> None:
        """Note that PINGRESP of the foreign broker has come to the leg, at `now` (s)."""
        self._watch.ping_answered()
        self._confirmed(now)

    def _sent(
        self,
        topic: bytes,
        digest: int,
        now: float,
        packet_id: int = 0,
        qos: int = 0,
        *,
        repeated: bool = False,
    ) -> None:
        self._watch.sent(topic, digest, packet_id, qos, repeated=repeated)
        if not packet_id and self._ping_at is None:
            self._ping_at = now + PING_AFTER
        if self._merge is not None:
            self._merge.live.add(key_of(topic))

    def _confirmed(self, now: float) -> None:
        if self._watch.disordered:
            self._watch.disordered = False
            self._want(now)
        if self._watch.uncertain:
            self._watch.uncertain = False
            if self._merge is not None:
                # It was left out of this one.
                self._merge.left = True
        if self._watch.unproven and self._prove_at is None:
            self._prove_at = now + PROVE_AFTER

    def _arrived(self, key: int) -> None:
        """Note that something retained came in for a topic."""
        if self._merge is not None:
            self._merge.live.add(key)
        self._watch.crossed(key)

    # ---------------------------------------------------------------- merges

    def _want(self, now: float, pause: float = SOON) -> None:
        """Have a merge begin at `now` (s), but no earlier than `pause` (s) behind the beginning of
        the last one."""
        self._wanted_at = min(self._wanted_at, max(now, self._begun + pause))
        self._wait_until = self._wanted_at + WAIT_LONGEST

    def tick(self, now: float) -> None:
        """Do what is due at `now` (s)."""
        if not self._active:
            return
        if self._ping_at is not None and now >= self._ping_at:
            self._effects.append(ToForeign(encode_packet(Pingreq(), self._version)))
            self.ping_sent()
        self.sync.tick(now)
        if self._merge is not None:
            self.go_on(now)
            return
        dropped = self._here.dropped
        if dropped != self._dropped:
            self._dropped = dropped
            self._want(now)
        if now >= self._wanted_at and now >= self._look_at:
            if (self._here.waiting or self._watch.repeating) and now < self._wait_until:
                self._look_at = now + WAIT_LOOK
            else:
                self._begin(None, now)
        elif self._prove_at is not None and now >= self._prove_at:
            self._begin_to_prove(now)

    def _begin_to_prove(self, now: float) -> None:
        self._prove_at = None
        unproven = self._watch.unproven
        names = [topic for topic in unproven if not self._watch.waits(key_of(topic))][:NAMES]
        for topic in names:
            del unproven[topic]
        if names:
            self._begin(names, now)
        elif unproven:
            self._prove_at = now + PROVE_PAUSE

    def _begin(self, names: list[bytes] | None, now: float) -> None:
        self._full_merge = names is None
        if names is None:
            self._begun = now
            self._wanted_at = now + self._rng.uniform(0.9, 1.1) * PERIOD
            self._wait_until = self._wanted_at + WAIT_LONGEST
        self._merge = RetainedMerge(
            self.base,
            self._rules,
            self._here,
            self._watch,
            self.counters,
            conflict=self.settings.conflict,
            version=self._version,
            names=names,
        )
        # The answer may have been given before these took effect there.
        self._merge.live.update(self._watch.unconfirmed())
        self._step_at = None
        self.sync.want(self._version, now)

    def go_on(self, now: float) -> None:
        """Lead the merge that is under way a little further, at `now` (s): after each input of the
        sync session."""
        merge, sync = self._merge, self.sync
        if merge is None:
            return
        self._step_at = None
        for message in sync.take(TAKEN_AT_ONCE, now):
            merge.arrived(message, now)
        self._carry_out(merge.take_deeds(), now)
        if sync.state is SyncState.IDLE:
            self._broken_off(now)
        elif sync.waits:
            self._step_at = now
        elif sync.state is SyncState.READY:
            merge.answered(sync.refused, now)
            if self._here.full:
                self._step_at = now + 10 * STEP_PAUSE
            elif (question := merge.question()) is not None:
                if question:
                    sync.ask(question, now)
                else:
                    merge.answered((), now)
                    self._step_at = now
            elif merge.step(now):
                self._step_at = now + STEP_PAUSE
            else:
                self._complete(merge, now)
            self._carry_out(merge.take_deeds(), now)

    def _broken_off(self, now: float) -> None:
        self._merge = None
        why = f"cannot compare retained messages: {self.sync.failure}"
        again = self._rng.uniform(RETRY_FIRST, RETRY_LAST)
        if self._full_merge:
            self.counters.failures += 1
            if not self._failed:
                self._wanted_at = now + again
                self._wait_until = self._wanted_at + WAIT_LONGEST
        # The same again and again is one line.
        self._log("debug" if why == self._failed else "warning", why)
        self._failed = why
        if self._watch.unproven:
            self._prove_at = now + max(again, PROVE_PAUSE)

    def _complete(self, merge: RetainedMerge, now: float) -> None:
        self._merge = None
        self.sync.end(now)
        self._failed = ""
        if self._full_merge:
            self.counters.merges += 1
            self.ended = now
            self.base.doubt(False)
            self._watch.maybe.clear()
            if merge.left or merge.published_here >= MANY:
                # A broker leaves messages out of a long answer, and there may be more of them.
                self._want(now)
        if self._watch.unproven:
            self._prove_at = now + PROVE_PAUSE

    def _carry_out(self, deeds: list[Deed], now: float) -> None:
        for deed in deeds:
            if deed.here:
                self._mapped(deed.message, self.settings.rules.response_to_local)
                self._effects.append(RetainHere(deed.message))
                continue
            message, crossing = deed.message, self._crossing
            assert crossing is not None
            self._mapped(message, self.settings.rules.response_to_remote)
            data = crossing.publish(message, now)
            if len(data) > self._maximum:
                self.too_large += 1
                continue
            self._sent(deed.local, deed.digest, now)
            self._effects.append(ToForeign(data))

    def _mapped(self, message: Publish, name: Any) -> None:
        properties = message.properties
        if properties and Property.RESPONSE_TOPIC in properties:
            other = name(properties[Property.RESPONSE_TOPIC])
            message.properties = properties | {Property.RESPONSE_TOPIC: other}

    def _log(self, level: str, text: str) -> None:
        leg = f"leg {shorten(self.settings.name)} to {self.settings.address}"
        self._effects.append(Log(level, f"{leg}: {text}"))
