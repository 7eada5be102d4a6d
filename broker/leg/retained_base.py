"""What a leg and its foreign broker had in common last: of each retained topic a digest of the
value that was exchanged. Pure.

By it a merge knows which side has changed a topic, and that one without a value was deleted
(docs/decisions/0047). It is in the journal, in the same frame as the message that came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from hashlib import blake2b
from typing import Protocol

from mqttree.broker.leg.retained_digest import digest_of, key_of, read_section
from mqttree.broker.wire.errors import WireError


class Standing(IntEnum):
    """What is known of a topic at the foreign broker. Its rules may forbid to read or to write a
    topic without a word; a topic that cannot be read there must not be taken for deleted."""

    NEW = 0
    """Nothing."""
    READ = 1
    """A value came from there, so that it can be read."""
    PROVEN = 2
    """A value that was sent there was found there: it can be read and written."""
    MUTE = 3
    """A value that was sent there was not found there: it cannot be read, or not be written."""
    READ_ONLY = 4
    """A value came from there, and one that was sent there was not found."""


HEARD = {Standing.NEW: Standing.READ, Standing.MUTE: Standing.READ_ONLY}
"""What a standing becomes when a value comes from there, if it does not stay."""
BITS = 3
"""Bits of a standing, below the digest in an entry."""


LEG, STATE, ACTIVE = b"mqttree/leg/", b"/state", b"/active"
"""Topics of a leg, with its name in the middle: whether it is up, and which gateway of its name was
active last. The second one stays in this federation."""


def topic_of(name: str, kind: bytes) -> str:
    """Return a topic of the leg `name`; `kind`: STATE or ACTIVE. A name may make it invalid."""
    return f"{LEG.decode()}{name}{kind.decode()}"


def own(topic: bytes) -> bool:
    """Return whether a `topic` is never compared: it is a broker's or the legs' own."""
    return topic[:1] == b"$" or (
        topic.startswith(b"mqttree/")
        and (
            topic.startswith(b"mqttree/probe/")
            or (topic.startswith(LEG) and topic.endswith((STATE, ACTIVE)))
        )
    )


def stays(topic: bytes) -> bool:
    """Return whether a `topic` does not leave this federation."""
    return topic.startswith(LEG) and topic.endswith(ACTIVE)


def mapping_of(names: list[tuple[str, str]]) -> int:
    """Return 64 bits that stand for how topics are renamed, 0 if they are not. `names`: the filters
    here and at the foreign broker that differ."""
    if not names:
        return 0
    text = "\n".join(f"{local}\0{remote}" for local, remote in sorted(names))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") or 1


class RetainedBase:
    """The base of one leg."""

    __slots__ = (
        "_changed",
        "_most",
        "arrived",
        "changes",
        "doubted",
        "entries",
        "mapping",
        "over",
        "session",
    )

    def __init__(
        self, session: str, most: int, changed: Callable[[RetainedBase, int], None] | None = None
    ) -> None:
        """`session`: the client id of the leg's session here; `most`: topics; `changed`: called
        with this and the key of a topic whose entry has changed, or 0: another attribute has."""
        self.session = session
        self.mapping = 0
        """How topics are renamed (`mapping_of`)."""
        self.doubted = False
        """The foreign broker has forgotten the session since the last merge: what it lacks it may
        have lost, too."""
        self.entries: dict[int, int] = {}
        """Key of a topic -> digest and standing."""
        self.over = 0
        """Topics for which there was no room: they count as never exchanged."""
        self.changes = 0
        """How often something has changed that is to be recorded."""
        self.arrived: Callable[[int], None] | None = None
        """Called with the key of a topic of which something retained came in."""
        self._most = most
        self._changed = changed

    def digest(self, key: int) -> int | None:
        """Return the digest that was exchanged for a topic (`key`), None: none."""
        entry = self.entries.get(key)
        return None if entry is None else entry >> BITS

    def standing(self, key: int) -> Standing:
        """Return what is known of a topic (`key`)."""
        return Standing(self.entries.get(key, 0) & (1 << BITS) - 1)

    def exchanged(self, key: int, digest: int, standing: Standing | None = None) -> None:
        """Note that both sides have a value, or none. `key`: of the topic; `digest`: of the value,
        0: it is deleted; `standing`: what is known of the topic now, None: what was known."""
        if not digest:
            self.forget(key)
            return
        entry = digest << BITS | (self.standing(key) if standing is None else standing)
        known = self.entries.get(key)
        if known == entry:
            return
        if known is None and len(self.entries) >= self._most:
            self.over += 1
            return
        self.entries[key] = entry
        self._tell(key)

    def note(self, key: int, standing: Standing) -> None:
        """Note what is known of a topic (`key`) that is in the base."""
        known = self.digest(key)
        if known is not None:
            self.exchanged(key, known, standing)

    def heard(self, key: int, digest: int) -> None:
        """Note that a value came from the foreign broker, and both sides have it. `key`: of the
        topic; `digest`: of the value, 0: it is deleted."""
        standing = self.standing(key)
        self.exchanged(key, digest, HEARD.get(standing, standing))

    def forget(self, key: int) -> None:
        """Note that a topic (`key`) counts as never exchanged."""
        if self.entries.pop(key, None) is not None:
            self._tell(key)

    def doubt(self, doubted: bool) -> None:
        """Note whether the foreign broker may have lost what it lacks."""
        if self.doubted is not doubted:
            self.doubted = doubted
            self._tell(0)

    def clear(self, mapping: int) -> None:
        """Forget all topics, as they have other names from now on (`mapping`)."""
        self.entries.clear()
        self.mapping = mapping

    def _tell(self, key: int) -> None:
        self.changes += 1
        if self._changed is not None:
            self._changed(self, key)


class BaseRecorder(Protocol):
    """Records the bases of legs, so that they survive a restart."""

    def leg_base_changed(self, base: RetainedBase, key: int, /) -> None:
        """The entry of a topic (`key`) has changed, or (0) another attribute of a base."""

    def leg_base_cleared(self, base: RetainedBase, /) -> None:
        """A base was emptied."""

    def leg_base_ended(self, session: str, /) -> None:
        """The base of a leg is forgotten. `session`: the client id of its session here."""


class RetainedBases:
    """The bases of all legs of one broker."""

    __slots__ = ("_by_session", "_limit", "recorder")

    def __init__(self, limit: int) -> None:
        """`limit`: topics of one leg."""
        self._by_session: dict[str, RetainedBase] = {}
        self._limit = limit
        self.recorder: BaseRecorder | None = None
        """Records changes, so that they last."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._by_session)

    def __iter__(self) -> Iterator[RetainedBase]:
        """Return all of them."""
        return iter(self._by_session.values())

    def has(self, base: RetainedBase) -> bool:
        """Return whether a base is one of them still."""
        return self._by_session.get(base.session) is base

    def of(self, session: str, mapping: int) -> RetainedBase:
        """Return the base of a leg. `session`: the client id of its session here; `mapping`: how it
        renames topics: a base of other names is emptied."""
        base = self._by_session.get(session)
        if base is None:
            base = self._by_session[session] = RetainedBase(session, self._limit, self._changed)
            base.mapping = mapping
        elif base.mapping != mapping:
            self._clear(base, mapping)
        return base

    def clear(self, session: str) -> None:
        """Have all topics of a leg count as never exchanged, as another gateway has had its turn.
        `session`: as of `of`."""
        base = self._by_session.get(session)
        if base is not None and base.entries:
            self._clear(base, base.mapping)

    def _clear(self, base: RetainedBase, mapping: int) -> None:
        base.clear(mapping)
        if self.recorder is not None:
            self.recorder.leg_base_cleared(base)

    def restore(self, session: str, mapping: int, doubted: bool, entries: dict[int, int]) -> None:
        """Take the base of a leg from before a restart. `session`: as of `of`; `mapping`,
        `doubted`, `entries`: as of `RetainedBase`."""
        base = self.of(session, mapping)
        base.doubted, base.entries = doubted, entries

    def forget(self, session: str) -> None:
        """Forget the base of a leg that is not wanted any more. `session`: as of `of`."""
        if self._by_session.pop(session, None) is not None and self.recorder is not None:
            self.recorder.leg_base_ended(session)

    def came_in(
        self, session: str, topic: bytes, payload: bytes, properties: bytes, *, kept: bool
    ) -> None:
        """Note that a client has published a retained message here, which may be a leg.

        `session`: the client's id; `topic`, `payload`: of the message; `properties`: encoded,
        without their length; `kept`: whether it has become the retained message of its topic.
        """
        base = self._by_session.get(session)
        if base is None or own(topic):
            return
        key = key_of(topic)
        digest = None
        if kept:
            try:
                digest = digest_of(payload, read_section(properties))
            except WireError:
                digest = None
        if digest is None:
            base.forget(key)
        else:
            base.heard(key, digest)
        if base.arrived is not None:
            base.arrived(key)

    def _changed(self, base: RetainedBase, key: int) -> None:
        if self.recorder is not None:
            self.recorder.leg_base_changed(base, key)
