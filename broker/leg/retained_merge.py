"""A merge of the retained messages of a leg's two brokers (docs/decisions/0047). Pure.

What the foreign broker has retained comes as a stream, and is settled topic by topic. Then the
topics here are looked through for those that it lacks. One that counts as deleted there is asked
for by its name first, as a broker may leave messages out of a long answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from mqttree.broker.leg.retained_history import RetainedHistory, Write
from mqttree.broker.leg.retained_rules import RetainedRules
from mqttree.broker.leg.retained_values import equal, without_marks
from mqttree.broker.leg.retained_watch import RetainedWatch
from mqttree.broker.wire.packets import Publish
from mqttree.routing.topic_filter import matches

STEPS_AT_ONCE = 200
"""Topics here that are looked through in one turn: each costs some 20 us."""
NAMES_AT_ONCE = 200
"""Topics that are asked for at once: Mosquitto drops what is over 1,000 messages for one client."""
QUESTIONS = 10_000
"""Topics that one merge asks for by name; those beyond wait for the next one."""


class Step(Enum):
    """What a merge does about one topic."""

    NOTHING = "nothing"
    HERE = "theirs is published here"
    THERE = "ours is published there"
    DELETE_HERE = "ours is deleted"
    DELETE_THERE = "theirs is deleted"


class Found(NamedTuple):
    """What is known of a topic of which both sides do not have the same."""

    ours: bool
    """It is here."""
    theirs: bool
    """It is there."""
    newer: bool
    """It was written or deleted here after both sides had the same."""
    seen: bool
    """It has been there, and the foreign broker has not lost everything since."""
    fresh: bool
    """No merge has been complete since the leg connected."""
    inwards: bool
    outwards: bool
    """Whether it may cross to here, and from here."""


def step_of(topic: Found) -> Step:
    """Return what a merge does about a `topic`: the newer stamp wins, else the foreign side."""
    if topic.ours and topic.theirs:
        if topic.outwards and (topic.newer or not topic.inwards):
            return Step.THERE
        return Step.HERE
    if topic.theirs:
        if topic.outwards and topic.newer:
            return Step.DELETE_THERE
        return Step.HERE if topic.inwards else Step.NOTHING
    if topic.inwards and topic.seen and not topic.newer:
        return Step.DELETE_HERE
    # Once is enough: it may be hidden there, or not be taken.
    return Step.THERE if topic.outwards and (topic.newer or topic.fresh) else Step.NOTHING


class LocalStore(Protocol):
    """What this broker has retained, and what the leg may do with it."""

    def get(self, topic: str, now: float) -> Publish | None:
        """Return the retained message of a `topic` at `now` (s), with its properties; None: there
        is none."""

    def last_write(self, topic: str) -> Write:
        """Return when and where a `topic` was written or deleted last."""

    def topics(self, topic_filter: str, now: float) -> Iterator[str | None]:
        """Yield the topics that a filter matches and that have a message at `now` (s), and None for
        each step that found none. Topics may come and go meanwhile."""

    def may_publish(self, topic: str) -> bool:
        """Return whether the leg may publish to a `topic` here."""

    def may_receive(self, topic: str) -> bool:
        """Return whether the leg may have messages of a `topic`."""


@dataclass(slots=True)
class MergeCounters:
    """What merges of one leg have done."""

    merges: int = 0
    failures: int = 0
    """Merges that were broken off, as the sync session was lost."""
    published_here: int = 0
    published_there: int = 0
    deleted_here: int = 0
    deleted_there: int = 0
    incomplete: int = 0
    """Topics that a long answer of the foreign broker did not have, though it had retained them."""


@dataclass(frozen=True, slots=True)
class Deed:
    """A message that a merge has published. `message` has the name of the topic on its side, and no
    payload if it deletes."""

    here: bool
    message: Publish


class Phase(Enum):
    """How far a merge is."""

    SNAPSHOT = "what the foreign broker has retained comes"
    LOCAL = "topics here that it lacks are looked for"
    ASKING = "some of them are asked for by name"
    DONE = "it is over"


class RetainedMerge:
    """One merge."""

    def __init__(
        self,
        rules: RetainedRules,
        here: LocalStore,
        history: RetainedHistory,
        watch: RetainedWatch,
        counters: MergeCounters,
        *,
        version: int,
        room: int,
        fresh: bool,
        refused: Mapping[str, int],
    ) -> None:
        """`rules`, `history`, `watch`, `counters`: of the leg; `here`: what this broker has;
        `version`: of MQTT (4 or 5); `room`: bytes that a packet may have at the foreign broker;
        `fresh`: as of `Found`; `refused`: topic there -> hash of a payload that it does not
        take."""
        self.live: set[str] = set()
        """Topics here that something retained comes in for meanwhile: they are left out."""
        self.left = False
        """Some topics were left to the next merge."""
        self.published_here = 0
        """How many messages it has published here."""
        self._rules, self._here, self._history, self._watch = rules, here, history, watch
        self._counters, self._version, self._room = counters, version, room
        self._fresh = fresh
        self._deeds: list[Deed] = []
        self._untaken = refused
        self._visited: set[str] = set()
        self._refused: list[str] = []
        self._granted: list[str] = rules.remote
        self._questions: list[tuple[str, str]] = []  # names here and there
        self._asked: dict[str, str] = {}  # those that are not answered
        self._waits = False
        self._found: Iterator[str | None] = iter(())
        self._filters: list[str] = rules.local
        self.phase = Phase.SNAPSHOT

    def take_deeds(self) -> list[Deed]:
        """Drain what is to be published."""
        deeds, self._deeds = self._deeds, []
        return deeds

    # ---------------------------------------------------------------- the foreign broker's answers

    def question(self) -> Sequence[str] | None:
        """Return the filters that are to be asked for now; None: there is no question."""
        if self.phase is Phase.SNAPSHOT:
            self._waits = True
            return self._granted
        if self.phase is not Phase.ASKING or not self._questions:
            return None
        self._asked = dict(self._questions[:NAMES_AT_ONCE])
        del self._questions[:NAMES_AT_ONCE]
        self._waits = True
        return list(self._asked.values())

    def arrived(self, message: Publish, now: float) -> None:
        """Take a retained `message` of the foreign broker at `now` (s)."""
        local = self._rules.local_of(message.topic)
        if local is None:
            return
        asked = self._asked.pop(local, None)
        if asked is None and local in self._visited:
            return
        self._visited.add(local)
        if asked is not None:
            self._counters.incomplete += 1
        self._history.saw(local)
        if not self._busy(local):
            self._settle(local, message.topic, message, now)

    def on_answer(self, refused: Collection[str], now: float) -> None:
        """Note that all has come that answers the last question. `refused`: filters that the
        foreign broker does not grant; `now`: s."""
        if not self._waits:
            return
        self._waits = False
        if self.phase is Phase.SNAPSHOT:
            self._refused = list(refused)
            self._granted = [each for each in self._granted if each not in refused]
            self.phase = Phase.LOCAL
            return
        missing, self._asked = self._asked, {}
        for local, remote in missing.items():
            if remote not in refused and not self._busy(local):
                self._settle(local, remote, None, now, asked=True)

    # ---------------------------------------------------------------- what is here

    def step(self, now: float) -> bool:
        """Go on for a little while, if no answer is waited for; returns whether there is more to
        do. `now`: s."""
        if self.phase is Phase.LOCAL and self._look(now):
            self.phase = Phase.ASKING
        elif self.phase is Phase.ASKING and not self._questions:
            self.phase = Phase.DONE
        return self.phase is not Phase.DONE

    def _look(self, now: float) -> bool:
        """Settle some topics here that the foreign broker lacks; returns whether these are all."""
        for _ in range(STEPS_AT_ONCE):
            try:
                topic = next(self._found)
            except StopIteration:
                if not self._filters:
                    return True
                self._found = self._here.topics(self._filters.pop(), now)
                continue
            if topic is None or (remote := self._rules.remote_of(topic)) is None:
                continue
            if topic in self._visited:
                continue
            self._visited.add(topic)
            if self._refused and not any(matches(each, remote) for each in self._granted):
                continue
            if not self._busy(topic):
                self._settle(topic, remote, None, now)
        return False

    def _busy(self, topic: str) -> bool:
        """Whether something of a topic crosses: an answer may be older than that."""
        if self._watch.waits(topic):
            self.left = True
            return True
        return topic in self.live

    # ---------------------------------------------------------------- one topic

    def _settle(
        self, local: str, remote: str, theirs: Publish | None, now: float, *, asked: bool = False
    ) -> None:
        """Do what is to be done about one topic. `local`, `remote`: its names; `theirs`: what the
        foreign broker has; `now`: s; `asked`: it was asked for by its name."""
        ours = self._here.get(local, now)
        if ours is not None and theirs is not None and equal(ours, theirs, self._version):
            return
        if ours is not None and (
            len(ours.payload) + len(remote) >= self._room
            or self._untaken.get(remote) == hash(ours.payload)
        ):
            # It cannot be there, so what is there says nothing.
            return
        way, history = self._rules.way(local, remote), self._history
        step = step_of(
            Found(
                ours is not None,
                theirs is not None,
                history.newer_here(local, self._here.last_write(local)),
                history.has_seen(local),
                self._fresh,
                way.inwards and self._here.may_publish(local),
                way.outwards and self._here.may_receive(local),
            )
        )
        counters = self._counters
        match step:
            case Step.HERE if theirs is not None:
                counters.published_here += 1
                self.published_here += 1
                self._publish_here(local, theirs, way.qos)
            case Step.THERE if ours is not None:
                counters.published_there += 1
                self._publish_there(remote, ours)
            case Step.DELETE_HERE if not asked:
                self._ask(local, remote)
            case Step.DELETE_HERE:
                counters.deleted_here += 1
                self._publish_here(local, Publish(remote, b""), way.qos)
            case Step.DELETE_THERE:
                counters.deleted_there += 1
                self._publish_there(remote, Publish(local, b""))

    def _ask(self, local: str, remote: str) -> None:
        if len(self._questions) < QUESTIONS:
            self._questions.append((local, remote))
        else:
            self.left = True

    def _publish_here(self, local: str, message: Publish, qos: int) -> None:
        properties = without_marks(message.properties)
        copy = Publish(local, message.payload, min(1, qos), True, properties=properties or None)
        self._deeds.append(Deed(True, copy))

    def _publish_there(self, remote: str, message: Publish) -> None:
        copy = Publish(remote, message.payload, 0, True, properties=message.properties)
        self._deeds.append(Deed(False, copy))
