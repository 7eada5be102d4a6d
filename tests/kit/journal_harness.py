"""A node with a journal whose files are bytes in memory, that can be killed and started again."""

from __future__ import annotations

import io
import random
from typing import Any

from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.delivery_queue import RELEASED, Repeat
from mqttree.broker.core.effects import (
    AppendFrame,
    BeginSegment,
    DiscardSegments,
    Effect,
    TailDrop,
    TailRead,
    TailSync,
    TailWrite,
)
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Session
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.node import Node
from mqttree.broker.persistence.frames import (
    HEADER_SIZE,
    Cut,
    decode_header,
    encode_header,
    is_full_snapshot,
    read_frames,
)
from mqttree.broker.persistence.journal import Journal
from mqttree.broker.persistence.journal_states import Input, State
from mqttree.broker.persistence.log_tail import TailLoaded
from mqttree.broker.persistence.tail_segment import read_frames as read_segment
from tests.kit.node_harness import World

ID = b"brokerid"
DiskEffect = (
    AppendFrame | BeginSegment | DiscardSegments | TailWrite | TailRead | TailSync | TailDrop
)
"""What a disk does."""


class Files:
    """The disk. `lazy`: says nothing until `tell`; `broken`: writes nothing; `crowded`: begins
    nothing."""

    def __init__(self) -> None:
        self.segments: dict[int, bytearray] = {}
        self.boot = 0
        self.lazy = False
        self.broken = ""
        self.crowded = ""
        self.failed = ""
        self.tail_segments: dict[int, bytearray] = {}
        self.untold: list[tuple[Effect, bytes | str | None]] = []

    def carry_out(self, effect: DiskEffect) -> None:
        if not isinstance(effect, AppendFrame | BeginSegment | DiscardSegments):
            self._carry_out_tail(effect)
            return
        if isinstance(effect, DiscardSegments):
            for segment in [
                g
                for g in self.segments
                if (g == effect.segment if effect.incomplete else g < effect.segment)
            ]:
                del self.segments[segment]
            return
        if isinstance(effect, BeginSegment):
            error = self.broken or self.crowded or ("" if effect.full_snapshot else self.failed)
            if not error:
                assert effect.segment not in self.segments
                self.segments[effect.segment] = bytearray(
                    encode_header(ID, effect.segment, full_snapshot=effect.full_snapshot)
                )
                self.failed = ""
            self.untold.append((effect, error or None))
            return
        else:
            self.failed = self.failed or self.broken
            if not self.failed:
                self.segments[max(self.segments)] += effect.data
        self.untold.append((effect, self.failed or None))

    def _carry_out_tail(self, effect: TailWrite | TailRead | TailSync | TailDrop) -> None:
        answer: bytes | str | None = self.broken or None
        if isinstance(effect, TailDrop):
            self.tail_segments.pop(effect.segment, None)
            return
        found = None if isinstance(effect, TailSync) else self.tail_segments.get(effect.segment)
        if isinstance(effect, TailRead):
            answer = None
            if found is not None:
                answer = bytes(found[effect.offset : effect.offset + effect.size])
        elif isinstance(effect, TailWrite) and effect.offset and found is None:
            answer = f"{effect.segment} is gone"
        elif isinstance(effect, TailWrite) and answer is None:
            data = self.tail_segments.setdefault(effect.segment, bytearray())
            assert len(data) == effect.offset
            data += effect.data
        self.untold.append((effect, answer))

    def tail(self, broker_id: bytes = ID) -> TailLoaded:
        """What is there of the log's tail."""
        loaded = TailLoaded()
        for number, data in sorted(self.tail_segments.items()):
            frames = []
            for found in read_segment(io.BytesIO(data), len(data), broker_id, number):
                if isinstance(found, Cut):
                    loaded.cuts.append(f"{number}: {found}")
                else:
                    frames.append(found)
            loaded.segments.append((number, len(data), frames))
        return loaded

    def image(self, cut: int | None = None) -> Image:
        """What is there; of the last file `cut` bytes."""
        image = Image()
        for segment, data in sorted(self.segments.items()):
            stream = io.BytesIO(data[:cut] if segment == max(self.segments) else data)
            head = stream.read(HEADER_SIZE)
            sound = decode_header(head, ID, segment)
            image.begin(full_snapshot=sound and is_full_snapshot(head))
            if sound:
                for frame in read_frames(stream, HEADER_SIZE):
                    if not isinstance(frame, Cut):
                        image.take(*frame)
        assert not image.skipped
        names = image.names()
        for _, batch in image.batches():
            last = batch.sequence + batch.count
            names -= {(batch.key, number) for number in range(batch.sequence, last)}
        assert not names, "of messages that no entry has"
        return image


class Durable(World):
    """A world whose node has a journal. `linger`: acknowledgements wait for a frame that is needed,
    as they do in a broker; else each step ends with everything written."""

    def __init__(
        self,
        *,
        sync: bool = False,
        files: Files | None = None,
        at: float = 1000.0,
        limits: Limits = DEFAULTS,
        linger: bool = False,
        **config: Any,
    ) -> None:
        super().__init__(id=ID, **config)
        if not linger:
            limits = limits.replace(journal_linger_s=0.0)
        self.config, self.sync, self.limits, self.linger = config, sync, limits, linger
        self.files = files or Files()
        self.now = at
        lone: dict[str, Any] = {"discovery": "off", "routing": "flood"}
        self.files.boot = max(int(at), self.files.boot + 1)
        own = NodeConfig(id=ID, boot=self.files.boot, **(lone | config))
        self.node = Node(
            own, at, 1.7e9 + at - 1000.0, random.Random(1), limits=limits, log=self._log
        )
        self.node.cluster.barrier._begins_until = self.node.cluster.barrier._admits_until = 0.0
        self.journal = Journal(self.node, self.node.cluster, self.node.absent_members, sync=sync)
        self.node.attach_journal(self.journal)
        files = self.files
        self.node.absent_members.begin(files.tail())
        segment = max(files.segments, default=0) + 1
        size = sum(map(len, files.segments.values()))
        self.journal.begin(files.image(), segment, len(files.segments), size, at)
        self.settle()

    @property
    def rebuilding(self) -> bool:
        """Whether the journal records everything again after a failure."""
        return self.journal.frames.state in (State.REBUILDING, State.REBUILD_ENDING)

    def begin_snapshot(self) -> None:
        """Have a snapshot begin now, however small the journal is."""
        self.journal.frames._on(Input.SNAPSHOT_DUE)

    def settle(self, source: Connection | None = None) -> None:
        super().settle(source)
        while True:
            mine = [e for e in self.effects if isinstance(e, DiskEffect)]
            self.effects = [e for e in self.effects if not isinstance(e, DiskEffect)]
            for effect in mine:
                self.files.carry_out(effect)
            if self.files.lazy or not (self.files.untold or mine):
                return
            self.tell()

    def tell(self) -> None:
        """Let the disk say what it has done."""
        untold, self.files.untold = self.files.untold, []
        for effect, error in untold:
            self.node.answer(effect, error, self.now)
        super().settle()

    def again(self, after: float = 0.0, files: Files | None = None) -> Durable:
        """The same broker, killed now and started `after` s."""
        return Durable(
            sync=self.sync,
            files=files or self.files,
            at=self.now + after,
            limits=self.limits,
            linger=self.linger,
            **self.config,
        )


def picture(world: World) -> dict[str, Any]:
    """All that has to be the same after a restart."""
    sessions = {s.client_id: _session(s) for s in world.node.sessions.values() if s.expiry}
    digests = world.node.retained.digests
    retained = {}
    for part in range(256):
        for version in digests.versions(bytes((part,))):
            message = world.node.retained.message_of(version, world.now)
            retained[version.topic] = (
                version.time,
                version.key,
                version.expires_at_ms,
                version.tombstone,
                None if message is None else _message(message),
            )
    return {"sessions": sessions, "retained": retained, "digest": digests.whole}


def _session(session: Session) -> dict[str, Any]:
    inflight = {}
    for packet_id, sent in session.inflight.items():
        outgoing = session.unpacked(sent) if isinstance(sent, tuple) else sent
        # what was sent to a client of MQTT 3 has no properties any more, as long as it is connected
        inflight[packet_id] = (
            "released"
            if outgoing is RELEASED
            else (*_outgoing(outgoing)[:2], *_outgoing(outgoing)[3:])
        )
    queue = []
    for outgoing in session.queue:
        if isinstance(outgoing, Repeat):
            inflight[outgoing.packet_id] = (*_outgoing(outgoing)[:2], *_outgoing(outgoing)[3:])
        elif not outgoing.message.expired(session.node.now):
            queue.append(_outgoing(outgoing))
    subscriptions = {
        (s.filter, s.qos, s.no_local, s.retain_as_published, s.identifier)
        for s in session.subscriptions.values()
    }
    whose = (session.username, session.owner, session.created, session.floor)
    fixed = (whose, session.expiry, session.stamp, session.clean, frozenset(session.incoming))
    return {
        "inflight": inflight,
        "queue": queue,
        "subscriptions": subscriptions,
        "fixed": fixed,
        "will": session.will,
    }


def _message(m: Message) -> tuple[Any, ...]:
    return (
        m.topic,
        m.payload,
        m.properties,
        None if m.expires_at is None else round(m.expires_at, 1),
    )


def _outgoing(o: Any) -> tuple[Any, ...]:
    return (*_message(o.message), o.qos, o.retain, o.ids)
