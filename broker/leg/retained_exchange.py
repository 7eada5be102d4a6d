"""Retained messages of a leg: merges are begun and led, and it is noted until when both sides had
the same. Pure.

A merge is due when the leg comes up, when both sides have written a topic at one time, when
messages for the foreign broker were dropped, and every hour. It waits until no messages wait for
the foreign broker, as these are older than what is retained here.
"""

from __future__ import annotations

import random
import re
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from mqttree.broker.base.hybrid_clock import LOGICAL
from mqttree.broker.leg.crossing import Crossing
from mqttree.broker.leg.effects import LegEffect, Log, RetainHere, ToForeign
from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.leg.own_topics import COMMON, own, topic_of
from mqttree.broker.leg.retained_history import MAX_GATEWAYS, RetainedHistory
from mqttree.broker.leg.retained_merge import Deed, LocalStore, MergeCounters, RetainedMerge
from mqttree.broker.leg.retained_packets import retained, without_retain, without_stored
from mqttree.broker.leg.retained_rules import Retain, RetainedRules
from mqttree.broker.leg.retained_watch import RetainedWatch
from mqttree.broker.leg.sync_session import SyncSession
from mqttree.broker.leg.sync_states import SyncState
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.strings import shorten
from mqttree.routing.topic_filter import valid_topic_name

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
STILL = 1.0
"""s without a retained message of the foreign broker until a merge begins: more may be queued."""
MANY = 500
"""Messages that a merge publishes here after which another one follows."""
STEP_PAUSE = 0.002
"""s between two steps of a merge, so that clients are served meanwhile."""
ON_ITS_WAY = 1_000 << LOGICAL
"""Of the hybrid clock: what was published less than a second ago may still be on its way to the
leg's session."""
MAX_REFUSED = 1000
"""Topics of which it is known that the foreign broker closes for their message: each costs some
connections."""
TAKEN_AT_ONCE = 200
"""Packets of the sync session that are looked at in one turn."""
COMMON_FORMAT = re.compile(rb"([0-9]{1,19}) ([0-9]{1,19})((?: [0-9a-f]{16}){1,%d})" % MAX_GATEWAYS)
"""Of the topic that says until when both sides had the same: that, when the leg went down behind
it, 0 while it is up, and ids of gateways that were active behind it."""


class Here(LocalStore, Protocol):
    """What the exchange asks of this broker."""

    @property
    def waiting(self) -> bool:
        """Whether messages wait in the leg's session for the foreign broker, or what other brokers
        of the federation have retained still comes."""

    @property
    def dropped(self) -> int:
        """A number that rises when messages for the foreign broker were dropped, or may have
        been."""

    @property
    def full(self) -> bool:
        """Whether so many bytes are on their way to the foreign broker that no more should be
        sent."""

    @property
    def broker_id(self) -> bytes:
        """The id of this broker."""

    def clock(self) -> int:
        """Return the time (hybrid clock)."""


class RetainedExchange:
    """The retained messages of one leg."""

    def __init__(self, settings: LegSettings, here: Here, rng: random.Random) -> None:
        """`settings`: of the leg; `here`: this broker; `rng`: draws pauses."""
        self.settings = settings
        self.history = RetainedHistory(here.broker_id, here.clock())
        self.counters = MergeCounters()
        self.too_large = 0
        """Retained messages that the foreign broker does not take, as they are too large."""
        self.ended = 0.0
        """When the last merge was complete (s), 0: there was none."""
        self.sync = SyncSession(
            f"{settings.client_id}-sync", settings.username, settings.keep_alive
        )
        self.sync.maximum_packet_size = settings.maximum_packet_size
        self._rules = RetainedRules(settings.rules, settings.retain)
        self._here, self._rng = here, rng
        self._watch = RetainedWatch()
        self._effects: list[LegEffect] = []
        self._crossing: Crossing | None = None
        self._version = 5
        self._maximum = MAX_PACKET_SIZE
        self._active = False  # the leg is up, and both brokers retain
        self._available = True  # the foreign broker retains
        self._merge: RetainedMerge | None = None
        self._fresh = True
        # Events after which both sides may differ, and those that the merge under way and the last
        # complete one have seen.
        self._doubts = 1
        self._merging = self._settled = 0
        self._pings = self._pongs = 0
        self._candidate: tuple[int, int] | None = None  # a PINGREQ, and what its answer proves
        topic = topic_of(settings.name, COMMON)
        self._topic = topic if valid_topic_name(topic) else ""
        self._crossed = True  # something retained has crossed since it was saved
        self._came_at = 0.0
        self._wanted_at = 0.0
        self._begun = -PERIOD
        self._wait_until = 0.0
        self._look_at = 0.0
        self._step_at: float | None = None
        self._failed = ""  # why the last merge was broken off
        self._dropped = 0
        self._careful = False  # what is published there goes one by one
        self._deeds: deque[Publish] = deque()  # queued until then
        self._behind = 0  # the PINGREQ whose answer shows that the last one is there
        self._unanswered = False  # that PINGREQ is to be sent
        self._refused: OrderedDict[str, int] = (
            OrderedDict()
        )  # topic there -> hash of what it closes for
        self.published = b""
        """The only PUBLISH that is not known to be there, b"": there is none, or several."""

    # ---------------------------------------------------------------- outputs

    def take_effects(self) -> list[LegEffect]:
        """Drain what the driver is to do."""
        effects, self._effects = self._effects + self.sync.take_effects(), []
        return effects

    def take_unanswered(self) -> bool:
        """Return whether PINGREQ is to be sent behind the effects that were taken last, as its
        answer is waited for."""
        unanswered, self._unanswered = self._unanswered, False
        if unanswered:
            self._behind = self._pings + 1
        return unanswered

    @property
    def due(self) -> float | None:
        """When `tick` is due (s); None: never."""
        if not self._active:
            return None
        merging = self._merge is not None
        next_step = self._step_at if merging else max(self._wanted_at, self._look_at)
        dues = (self.sync.due, next_step)
        return min((due for due in dues if due is not None), default=None)

    @property
    def reads(self) -> bool:
        """Whether more of the foreign broker is to be read on the sync session's connection."""
        return self.sync.reads

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
            "retained_published_here": counters.published_here,
            "retained_published_there": counters.published_there,
            "retained_deleted_here": counters.deleted_here,
            "retained_deleted_there": counters.deleted_there,
            "retained_incomplete": counters.incomplete,
            "retained_too_large": self.too_large,
            "retained_merging": self._merge is not None,
            "retained_merge_age": round(now - self.ended, 1) if self.ended else None,
        }

    # ---------------------------------------------------------------- the leg

    def on_connack(
        self, crossing: Crossing, version: int, properties: Mapping[int, Any], *, careful: bool
    ) -> None:
        """Note that the foreign broker has accepted. `crossing`: of the leg; `version`: of MQTT (4
        or 5); `properties`: of its CONNACK; `careful`: as of `PoisonMessages`."""
        self._careful = careful
        self._crossing, self._version = crossing, version
        self._pings = self._pongs = 0
        self._maximum = properties.get(Property.MAXIMUM_PACKET_SIZE, MAX_PACKET_SIZE)
        available = properties.get(Property.RETAIN_AVAILABLE, 1) == 1
        if not available and self._available:
            self._log("warning", "the foreign broker retains nothing: RETAIN does not cross")
        self._available = available

    def on_leg_up(self, now: float, *, present: bool) -> None:
        """Note that the leg is up at `now` (s). `present`: the foreign broker knew its session."""
        self._active = self._available and self.settings.retain is not Retain.OFF
        if not self._active:
            return
        self._fresh = True
        if not present:
            self.history.forget_seen()
        self._read_common(now)
        self._save_common()
        self._doubts += 1
        self._dropped = self._here.dropped
        self._wanted_at = now + PERIOD
        self._want(now, AGAIN)

    def on_leg_down(self, now: float) -> None:
        """Note that the leg is not up any more, at `now` (s); harmless when repeated."""
        if self._active:
            self._save_common(down_at=self._here.clock())
        self._active = False
        self._merge = self._candidate = None
        self._watch.clear()
        self._deeds.clear()
        self.published = b""
        self.sync.end(now)

    def on_dropped(self, now: float) -> None:
        """Note that retained messages did not get there, at `now` (s)."""
        self._doubt(now)

    def refuse(self, topic: bytes, payload: bytes) -> None:
        """Publish a payload no more to a topic of the foreign broker, which closes for it."""
        if len(self._refused) >= MAX_REFUSED:
            self._refused.popitem(last=False)
        self._refused[topic.decode()] = hash(payload)

    def incoming(self, packets: bytes, now: float, *, stored: bool) -> bytes:
        """Return packets with RETAIN of the foreign broker as they may come in. `packets`: whole
        ones of types that cross; `now`: s; `stored`: those with RETAIN are not published now."""
        if stored:
            return without_stored(packets)
        self._came_at = now
        return packets if self.retains(inwards=True) else without_retain(packets)

    def outgoing(self, packets: bytes, crossed: bytes, now: float) -> bytes:
        """Note what is on its way, and return it as it may go out. `packets`: whole ones of this
        broker, with RETAIN among them; `crossed`: the same under the names at the foreign broker;
        `now`: s."""
        if not self.retains(inwards=False):
            return without_retain(crossed)
        for message in retained(packets):
            if message.topic and not own(message.topic):
                self._crossed = True
                topic, number = message.topic.decode(), message.packet_id
                if self._watch.sent(topic, number, message.qos, repeated=message.dup):
                    self._doubt(now)
        if self._deeds:
            self._withdraw({message.topic.decode() for message in retained(crossed)})
        return crossed

    def on_published_here(self, topic: bytes, now: float) -> None:
        """Note that something retained came in for a `topic`, and was published here at `now`
        (s)."""
        if own(topic):
            return
        name = topic.decode()
        self._crossed = True
        self.history.came_in(name, self._here.last_write(name).stamp)
        if self._deeds:
            self._withdraw({self._rules.remote_of(name)})
        if self._merge is not None:
            self._merge.live.add(name)
        if self._watch.waits(name):
            # Both have crossed: which of them each side has is not known.
            self._doubt(now)

    @property
    def listens(self) -> bool:
        """Whether acknowledgements of the foreign broker are waited for."""
        return bool(self._watch)

    def on_acknowledged(self, packets: bytes) -> None:
        """Take acknowledgements among whole `packets` of the foreign broker."""
        self._watch.on_acknowledged(packets)

    # ---------------------------------------------------------------- the sync session

    def sync_received(self, data: bytes, now: float) -> None:
        """Take bytes of the foreign broker on the sync session's connection, cut anywhere, at `now`
        (s)."""
        self.sync.received(data, now)
        self.resume(now)

    def sync_lost(self, why: str, now: float) -> None:
        """Note that that connection could not be opened or has ended; harmless when repeated.
        `why`: for the log; `now`: s."""
        self.sync.on_lost(why, now)
        self.resume(now)

    # ---------------------------------------------------------------- until when both had the same

    def on_ping_sent(self) -> None:
        """Note that the leg has sent PINGREQ to the foreign broker."""
        self._pings += 1
        equal = (
            self._active
            and self._merge is None
            and self._settled == self._doubts
            and self._here.dropped == self._dropped
            and not (self._watch or self._here.waiting)
        )
        if equal and self._candidate is None:
            self._candidate = self._pings, self._here.clock() - ON_ITS_WAY

    def on_ping_answered(self) -> None:
        """Note that PINGRESP of the foreign broker has come to the leg: it has what was sent
        ahead of its PINGREQ."""
        self._pongs += 1
        if self._pongs >= self._behind and not self._unanswered:
            self.published = b""
        if self._candidate is None or self._pongs < self._candidate[0]:
            return
        common, self._candidate = self._candidate[1], None
        if self._settled == self._doubts:
            self.history.advance(common)
            if self._crossed:
                self._crossed = False
                self._save_common()

    def _doubt(self, now: float) -> None:
        """Note that both sides may differ, and have a merge find out."""
        self._doubts += 1
        self._want(now)

    def _read_common(self, now: float) -> None:
        """Take what this gateway has written down before its restart, or another one of its
        name."""
        found = self._here.get(self._topic, now) if self._topic else None
        match = None if found is None else COMMON_FORMAT.fullmatch(found.payload)
        clock = self._here.clock()
        if match is None or int(match[1]) > clock:
            return
        self.history.advance(int(match[1]))
        gateways = [bytes.fromhex(gateway.decode()) for gateway in match[3].split()]
        self.history.take_over(gateways, int(match[2]) or clock)

    def _save_common(self, down_at: int = 0) -> None:
        """Write down until when both sides had the same. `down_at`: when the leg has gone down
        (hybrid clock), 0: it is up."""
        if self._topic and (common := self.history.common):
            gateways = sorted(gateway.hex() for gateway in self.history.gateways)
            payload = " ".join((str(common), str(down_at), *gateways)).encode()
            self._effects.append(RetainHere(Publish(self._topic, payload, 0, True)))

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
        self.sync.tick(now)
        if self._merge is not None:
            self.resume(now)
            return
        dropped = self._here.dropped
        if dropped != self._dropped:
            self._dropped = dropped
            self._doubt(now)
        if now >= self._wanted_at and now >= self._look_at:
            waits = self._here.waiting or self._watch.repeating or now < self._came_at + STILL
            if waits and now < self._wait_until:
                self._look_at = now + WAIT_LOOK
            else:
                self._begin(now)

    def _begin(self, now: float) -> None:
        self._begun, self._merging = now, self._doubts
        self._wanted_at = now + self._rng.uniform(0.9, 1.1) * PERIOD
        self._wait_until = self._wanted_at + WAIT_LONGEST
        self._merge = RetainedMerge(
            self._rules,
            self._here,
            self.history,
            self._watch,
            self.counters,
            version=self._version,
            room=self._maximum,
            fresh=self._fresh,
            refused=self._refused,
        )
        self._step_at = None
        self.sync.want(self._version, now)

    def resume(self, now: float) -> None:
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
        elif self._deeds:
            self._publish_there(now)
            self._step_at = now + 10 * STEP_PAUSE
        elif sync.waits:
            self._step_at = now
        elif sync.state is SyncState.READY:
            merge.on_answer(sync.refused, now)
            if self._here.full:
                self._step_at = now + 10 * STEP_PAUSE
            elif (question := merge.question()) is not None:
                if question:
                    sync.ask(question, now)
                else:
                    merge.on_answer((), now)
                    self._step_at = now
            elif merge.step(now):
                self._step_at = now + STEP_PAUSE
            else:
                self._carry_out(merge.take_deeds(), now)
                if self._deeds:
                    self._step_at = now + 10 * STEP_PAUSE
                else:
                    self._complete(merge, now)
            self._carry_out(merge.take_deeds(), now)

    def _broken_off(self, now: float) -> None:
        self._merge = None
        self._deeds.clear()
        why = f"cannot compare retained messages: {self.sync.failure}"
        self.counters.failures += 1
        if not self._failed:
            self._wanted_at = now + self._rng.uniform(RETRY_FIRST, RETRY_LAST)
            self._wait_until = self._wanted_at + WAIT_LONGEST
        # The same again and again is one line.
        self._log("debug" if why == self._failed else "warning", why)
        self._failed = why

    def _complete(self, merge: RetainedMerge, now: float) -> None:
        self._merge = None
        self.sync.end(now)
        self._failed = ""
        self.counters.merges += 1
        self.ended = now
        self._fresh = False
        self._crossed = True
        self._settled = self._merging
        if merge.left or merge.published_here >= MANY:
            # A broker leaves messages out of a long answer, and there may be more of them.
            self._doubt(now)

    def _carry_out(self, deeds: list[Deed], now: float) -> None:
        for deed in deeds:
            message = deed.message
            if deed.here:
                self._mapped(message, self.settings.rules.response_to_local)
                self._effects.append(RetainHere(message))
            else:
                self._deeds.append(message)
        self._publish_there(now)

    def _withdraw(self, names: Collection[str | None]) -> None:
        """Leave out queued messages for topics there (`names`) that a newer one has crossed for."""
        self._deeds = deque(message for message in self._deeds if message.topic not in names)

    def _publish_there(self, now: float) -> None:
        """Publish queued messages at the foreign broker, as far as they may go at `now` (s)."""
        crossing = self._crossing
        while self._deeds and not self.published:
            assert crossing is not None
            message = self._deeds.popleft()
            self._mapped(message, self.settings.rules.response_to_remote)
            data = crossing.publish(message, now)
            if len(data) > self._maximum:
                self.too_large += 1
                continue
            self._effects.append(ToForeign(data))
            if self._careful:
                self.published, self._unanswered = data, True

    def _mapped(self, message: Publish, name: Any) -> None:
        properties = message.properties
        if properties and Property.RESPONSE_TOPIC in properties:
            other = name(properties[Property.RESPONSE_TOPIC])
            message.properties = properties | {Property.RESPONSE_TOPIC: other}

    def _log(self, level: str, text: str) -> None:
        leg = f"leg {shorten(self.settings.name)} to {self.settings.address}"
        self._effects.append(Log(level, f"{leg}: {text}"))
