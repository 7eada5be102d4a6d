"""A three-way merge of the retained messages of a leg's two brokers: of each topic ours, theirs,
and the value that both had last, the base (docs/decisions/0047). Pure.

What the foreign broker has retained comes as a stream, and is settled topic by topic. Then the
topics here are looked through for those that it lacks. One that was there, and did not change here,
is asked for by its name, as a broker may leave messages out of a long answer; if it does not come
it was deleted there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from mqttree.broker.base.state_table import TableEnum
from mqttree.broker.leg.retained_base import RetainedBase, Standing
from mqttree.broker.leg.retained_digest import digest_of, key_of, without_marks
from mqttree.broker.leg.retained_rules import Conflict, RetainedRules, Way
from mqttree.broker.leg.retained_watch import RetainedWatch
from mqttree.broker.leg.rules import Direction
from mqttree.broker.wire.packets import Publish
from mqttree.routing.topic_filter import matches

STEPS_AT_ONCE = 200
"""Topics here that are looked through in one turn: each costs some 20 us."""
ENTRIES_AT_ONCE = 2_000
"""Entries of the base that are looked through in one turn, which costs less."""
NAMES_AT_ONCE = 200
"""Topics that are asked for at once: Mosquitto drops what is over 1,000 messages for one client."""
QUESTIONS = 10_000
"""Topics that one merge asks for by name; those beyond wait for the next one."""


class Relation(TableEnum):
    """How ours, theirs and the base of one topic are related."""

    EQUAL = "both have one value"
    THEIRS_CHANGED = "ours is the base, theirs is another one"
    OURS_CHANGED = "theirs is the base, ours is another one"
    BOTH_CHANGED = "neither is the base, or there is none"
    OURS_ALONE = "only ours is there, and is the base"
    OURS_NEW = "only ours is there, and is not the base"
    THEIRS_ALONE = "only theirs is there, and is the base"
    THEIRS_NEW = "only theirs is there, and is not the base"
    GONE = "neither is there"


class Step(TableEnum):
    """What a merge does about one topic."""

    NOTHING = "nothing"
    KEEP = "the value becomes the base"
    HERE = "theirs is published here"
    THERE = "ours is published there"
    CONFLICT = "ours is published there, or theirs here, as the option says"
    DELETE_HERE = "ours is deleted"
    DELETE_THERE = "theirs is deleted"
    FORGET = "there is no base any more"


_IN, _OUT, _BOTH = Direction.IN, Direction.OUT, Direction.BOTH

STEPS: Final[dict[tuple[Relation, Direction], Step]] = {
    **{(Relation.EQUAL, direction): Step.KEEP for direction in Direction},
    **{(Relation.GONE, direction): Step.FORGET for direction in Direction},
    (Relation.THEIRS_CHANGED, _IN): Step.HERE,
    (Relation.THEIRS_CHANGED, _BOTH): Step.HERE,
    (Relation.THEIRS_CHANGED, _OUT): Step.NOTHING,
    (Relation.OURS_CHANGED, _IN): Step.NOTHING,
    (Relation.OURS_CHANGED, _BOTH): Step.THERE,
    (Relation.OURS_CHANGED, _OUT): Step.THERE,
    # With one direction there is one side whose value may cross.
    (Relation.BOTH_CHANGED, _IN): Step.HERE,
    (Relation.BOTH_CHANGED, _BOTH): Step.CONFLICT,
    (Relation.BOTH_CHANGED, _OUT): Step.THERE,
    (Relation.OURS_ALONE, _IN): Step.DELETE_HERE,
    (Relation.OURS_ALONE, _BOTH): Step.DELETE_HERE,
    (Relation.OURS_ALONE, _OUT): Step.NOTHING,
    (Relation.OURS_NEW, _IN): Step.NOTHING,
    (Relation.OURS_NEW, _BOTH): Step.THERE,
    (Relation.OURS_NEW, _OUT): Step.THERE,
    (Relation.THEIRS_ALONE, _IN): Step.NOTHING,
    (Relation.THEIRS_ALONE, _BOTH): Step.DELETE_THERE,
    (Relation.THEIRS_ALONE, _OUT): Step.DELETE_THERE,
    (Relation.THEIRS_NEW, _IN): Step.HERE,
    (Relation.THEIRS_NEW, _BOTH): Step.HERE,
    (Relation.THEIRS_NEW, _OUT): Step.NOTHING,
}
"""(relation, which way the topic may cross) -> step."""


def relate(ours: int | None, theirs: int | None, base: int | None) -> Relation:
    """Return how the digests of one topic are related, None where there is no message. `ours`: of
    this broker's; `theirs`: of the foreign broker's; `base`: of what both had last."""
    if ours is None and theirs is None:
        return Relation.GONE
    if ours is None:
        return Relation.THEIRS_ALONE if theirs == base else Relation.THEIRS_NEW
    if theirs is None:
        return Relation.OURS_ALONE if ours == base else Relation.OURS_NEW
    if ours == theirs:
        return Relation.EQUAL
    if ours == base:
        return Relation.THEIRS_CHANGED
    return Relation.OURS_CHANGED if theirs == base else Relation.BOTH_CHANGED


class LocalStore(Protocol):
    """What this broker has retained, and what the leg may do with it."""

    def get(self, topic: str, now: float) -> Publish | None:
        """Return the retained message of a `topic` at `now` (s), with its properties; None: there
        is none."""

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
    conflicts: int = 0
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
    local: bytes
    """The name of the topic here."""
    digest: int
    """Of the value, 0: it is deleted."""
    message: Publish


class Phase(Enum):
    """How far a merge is."""

    SNAPSHOT = "what the foreign broker has retained comes"
    LOCAL = "topics here that it lacks are looked for"
    ASKING = "some of them are asked for by name"
    CLEANING = "entries of the base without a topic are forgotten"
    DONE = "it is over"


@dataclass(frozen=True, slots=True)
class Question:
    """A topic that is asked for by name."""

    local: str
    remote: str
    key: int


class RetainedMerge:
    """One merge. With `names` it only looks whether what was sent there is there."""

    def __init__(
        self,
        base: RetainedBase,
        rules: RetainedRules,
        here: LocalStore,
        watch: RetainedWatch,
        counters: MergeCounters,
        *,
        conflict: Conflict,
        version: int,
        names: Iterable[bytes] | None = None,
    ) -> None:
        """`base`, `rules`, `watch`: of the leg; `here`: what this broker has; `counters`: of the
        leg; `conflict`: whose value stays if both have changed; `version`: of MQTT (4 or 5);
        `names`: topics here that are looked for there, None: all are merged."""
        self.live: set[int] = set()
        """Keys of topics of which something retained crosses meanwhile: they are left out."""
        self.left = False
        """Some topics were left to the next merge."""
        self.published_here = 0
        """How many messages it has published here."""
        self._base, self._rules, self._here, self._watch = base, rules, here, watch
        self._counters, self._conflict = counters, conflict
        self._properties = version == 5
        self._doubted = base.doubted
        self._proves = names is not None
        self._deeds: list[Deed] = []
        self._visited: set[int] = set()
        self._refused: list[str] = []
        self._granted: list[str] = rules.remote
        self._questions: list[Question] = []
        self._asked: dict[int, Question] = {}
        self._waits = False
        self._found: Iterator[str | None] = iter(())
        self._filters: list[str] = rules.local
        self._entries: Iterator[int] = iter(())
        self._whole = True
        self.phase = Phase.SNAPSHOT
        if names is not None:
            self.phase = Phase.ASKING
            for topic in names:
                remote = rules.remote_of(topic.decode())
                if remote is not None:
                    self._questions.append(Question(topic.decode(), remote, key_of(topic)))

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
        batch = self._questions[:NAMES_AT_ONCE]
        del self._questions[:NAMES_AT_ONCE]
        self._asked = {each.key: each for each in batch}
        self._waits = True
        return [each.remote for each in batch]

    def arrived(self, message: Publish, now: float) -> None:
        """Take a retained `message` of the foreign broker at `now` (s)."""
        local = self._rules.local_of(message.topic)
        if local is None:
            return
        key = key_of(local.encode())
        asked = self._asked.pop(key, None)
        if asked is None and (key in self._visited or self._proves):
            return
        self._visited.add(key)
        if asked is not None and not self._proves:
            self._counters.incomplete += 1
            self._whole = False
        if self._busy(key):
            return
        kept = without_marks(message.properties) if self._properties else None
        theirs = digest_of(message.payload, kept) or None
        if self._proves:
            self._prove(local, key, theirs, now)
        else:
            self._settle(local, message.topic, key, theirs, message, now, asked=asked is not None)

    def answered(self, refused: Collection[str], now: float) -> None:
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
        for key, each in missing.items():
            if each.remote in refused or self._busy(key):
                continue
            if self._proves:
                self._prove(each.local, key, None, now)
            else:
                self._settle(each.local, each.remote, key, None, None, now, asked=True)

    # ---------------------------------------------------------------- what is here

    def step(self, now: float) -> bool:
        """Go on for a little while, if no answer is waited for; returns whether there is more to
        do. `now`: s."""
        if self.phase is Phase.LOCAL and self._look(now):
            self.phase = Phase.ASKING
        elif self.phase is Phase.ASKING and not self._questions:
            self._entries = iter(list(self._base.entries))
            self.phase = Phase.CLEANING
            if self._proves or self._refused or not self._whole:
                self.phase = Phase.DONE
        elif self.phase is Phase.CLEANING and self._clean():
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
            key = key_of(topic.encode())
            if key in self._visited:
                continue
            self._visited.add(key)
            if self._refused and not any(matches(each, remote) for each in self._granted):
                continue
            if not self._busy(key):
                self._settle(topic, remote, key, None, None, now)
        return False

    def _clean(self) -> bool:
        """Forget entries of topics that neither side has; returns whether all were looked at."""
        for _ in range(ENTRIES_AT_ONCE):
            key = next(self._entries, None)
            if key is None:
                return True
            if key not in self._visited and not self._busy(key):
                self._base.forget(key)
        return False

    def _busy(self, key: int) -> bool:
        """Whether something of a topic crosses."""
        return key in self.live or self._watch.waits(key)

    # ---------------------------------------------------------------- one topic

    def _way(self, local: str, remote: str) -> tuple[Way, Direction | None]:
        way = self._rules.way(local, remote)
        inwards = way.inwards and self._here.may_publish(local)
        outwards = way.outwards and self._here.may_receive(local)
        if inwards and outwards:
            return way, Direction.BOTH
        if inwards or outwards:
            return way, Direction.IN if inwards else Direction.OUT
        return way, None

    def _settle(
        self,
        local: str,
        remote: str,
        key: int,
        theirs: int | None,
        message: Publish | None,
        now: float,
        *,
        asked: bool = False,
    ) -> None:
        """Do what is to be done about one topic. `local`, `remote`, `key`: its names; `theirs`,
        `message`: what the foreign broker has; `now`: s; `asked`: it was asked for by its name."""
        way, direction = self._way(local, remote)
        if direction is None:
            return
        mine = self._here.get(local, now)
        ours = self._digest(mine)
        if (theirs or 0) in self._watch.maybe.get(key, ()):
            # The answer to it was lost.
            self._base.exchanged(key, theirs or 0, Standing.PROVEN)
        relation = relate(ours, theirs, self._base.digest(key))
        step = STEPS[relation, direction]
        standing = self._base.standing(key)
        if relation is Relation.OURS_ALONE:
            about = self._about_missing(direction, standing, asked=asked)
            if about is None:
                self._ask(Question(local, remote, key))
                return
            step = about
            if step is Step.THERE:
                # Until that is confirmed it counts as never exchanged: it must not be deleted here.
                self._base.forget(key)
        elif standing is Standing.READ_ONLY and step in (Step.THERE, Step.DELETE_THERE):
            return
        if step is Step.CONFLICT:
            self._counters.conflicts += 1
            foreign = self._conflict is Conflict.FOREIGN or standing is Standing.READ_ONLY
            step = Step.HERE if foreign else Step.THERE
        match step:
            case Step.KEEP if ours is not None:
                self._keep(key, ours)
            case Step.HERE if message is not None and theirs is not None:
                self._publish_here(local, message, theirs, way)
            case Step.THERE if mine is not None and ours is not None:
                self._counters.published_there += 1
                self._publish_there(local, remote, mine, ours)
            case Step.DELETE_HERE:
                self._counters.deleted_here += 1
                empty = Publish(local, b"", min(1, way.qos), True)
                self._deeds.append(Deed(True, local.encode(), 0, empty))
            case Step.DELETE_THERE:
                self._counters.deleted_there += 1
                self._publish_there(local, remote, Publish(local, b""), 0)
            case Step.FORGET:
                self._base.forget(key)

    def _about_missing(
        self, direction: Direction, standing: Standing, *, asked: bool
    ) -> Step | None:
        """Return what to do about a topic that the foreign broker had and lacks; None: it is asked
        for by name first."""
        outwards = direction is not Direction.IN
        if self._doubted:
            # It may have lost all.
            return Step.THERE if outwards else Step.NOTHING
        if standing is Standing.MUTE or direction is Direction.OUT:
            return Step.NOTHING
        if not asked:
            return None
        if standing is Standing.NEW:
            # It was not seen there by now: it may be hidden from this user.
            return Step.THERE if outwards else Step.NOTHING
        return Step.DELETE_HERE

    def _ask(self, question: Question) -> None:
        if len(self._questions) < QUESTIONS:
            self._questions.append(question)
        else:
            self.left = True

    def _keep(self, key: int, ours: int) -> None:
        """Note that both sides have a value. If it is the base already, and did not come from
        there, it was sent there and is there."""
        standing = self._base.standing(key)
        sent = self._base.digest(key) == ours and standing in (Standing.NEW, Standing.MUTE)
        if sent:
            standing = Standing.PROVEN
        elif standing in (Standing.NEW, Standing.MUTE):
            standing = Standing.READ
        self._base.exchanged(key, ours, standing)

    def _prove(self, local: str, key: int, theirs: int | None, now: float) -> None:
        """Note whether what was sent there is there. `local`, `key`: of the topic; `theirs`: what
        is there; `now`: s."""
        ours = self._digest(self._here.get(local, now))
        standing = self._base.standing(key)
        if ours is None:
            if theirs is None:
                self._base.forget(key)
        elif theirs == ours or (
            theirs is not None
            and theirs == self._base.digest(key)
            and standing is not Standing.READ_ONLY
        ):
            self._base.exchanged(key, theirs, Standing.PROVEN)
        elif theirs is not None:
            # Nothing of the topic has come: this user may not write it.
            self._base.exchanged(key, theirs, Standing.READ_ONLY)
        elif ours == self._base.digest(key):
            self._base.note(key, Standing.MUTE if standing is Standing.NEW else Standing.READ_ONLY)

    def _digest(self, message: Publish | None) -> int | None:
        if message is None:
            return None
        return digest_of(message.payload, message.properties if self._properties else None) or None

    def _publish_here(self, local: str, message: Publish, digest: int, way: Way) -> None:
        self._counters.published_here += 1
        self.published_here += 1
        properties = without_marks(message.properties)
        copy = Publish(local, message.payload, min(1, way.qos), True, properties=properties or None)
        self._deeds.append(Deed(True, local.encode(), digest, copy))

    def _publish_there(self, local: str, remote: str, message: Publish, digest: int) -> None:
        copy = Publish(remote, message.payload, 0, True, properties=message.properties)
        self._deeds.append(Deed(False, local.encode(), digest, copy))
