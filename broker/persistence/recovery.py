"""A new broker is given the state that the records of its journal add up to (`image`,
docs/decisions/0021). Pure."""

from __future__ import annotations

import struct
from itertools import chain
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import LAST, Ranges, intersect, merge, subtract
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.replay_log import LogEntry, restored_batch
from mqttree.broker.cluster.link.message_batch import age_batch
from mqttree.broker.cluster.link.origin_keys import origin_key, split_key
from mqttree.broker.cluster.link.version_vector import decode_evaluated
from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sessions.message_vectors import numbered, ranges_of, union, without
from mqttree.broker.cluster.sessions.recorded_messages import RecordedMessages
from mqttree.broker.cluster.sessions.recorded_session import RecordedSession, reading_session
from mqttree.broker.cluster.sessions.records import (
    CLEAN,
    EntryRecord,
    Kind,
    RetainedRecord,
    SessionRecord,
    StartTime,
    decode_owed,
)
from mqttree.broker.cluster.sessions.session_state import EVERYTHING, restoring
from mqttree.broker.core.memory_limit import will_memory
from mqttree.broker.core.message import Message
from mqttree.broker.core.retained_index import RetainedVersion, place_of
from mqttree.broker.core.session import NEVER, Session
from mqttree.broker.persistence import shared_records
from mqttree.broker.persistence.will_record import decode_will
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.steps import finish

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.link.version_vector import Vector
    from mqttree.broker.cluster.sessions.session_state import SessionState
    from mqttree.broker.persistence.absent_members import AbsentMembers
    from mqttree.broker.persistence.ports import JournalBroker

BEAT_INTERVAL_S = 20.0
"""s between two frames at most while a broker keeps sessions, though it is idle: as well is it
known how long its clients were connected when it is killed. Sessions live, and delayed wills
wait, this much longer at most."""

SAME_CLOCK_S = 5.0
"""s by which the offset between the time of day and the monotonic clock may differ from the
recorded one, as the time of day may have been set. If it differs by more, the machine has started
again or slept, and recorded monotonic times mean nothing."""


class Recovery:
    """Gives a new broker, which has no connections yet, the state that an image has."""

    def __init__(
        self,
        node: JournalBroker,
        cluster: Cluster,
        absent_members: AbsentMembers,
        image: Image,
        now: float,
    ) -> None:
        """`node`, `cluster`: the new broker. `absent_members`: which brokers were away. `image`:
        what the journal says. `now`: s."""
        self.node = node
        self.cluster = cluster
        self.absent_members = absent_members
        self.clock = cluster.clock
        self.gap_recovery = cluster.gap_recovery
        self.evaluated = cluster.evaluated
        self.image = image
        self.now = now
        self.wall = self.clock.physical(now)
        self.died = min(self.wall, image.alive + int(BEAT_INTERVAL_S * 1000))
        """when the broker did at the latest (ms): connections that it had ended then"""
        self.messages = RecordedMessages(image, now, self.wall)
        finish(self.messages.reading())
        self.wills: list[SessionRecord] = []
        """Of sessions that were recorded for their wills alone."""
        # Origin -> what sessions alone are owed.
        self.owed: dict[bytes, dict[Session, Ranges]] = {}

    def run(self) -> list[tuple[int, Session]]:
        """Restore everything; returns the sessions with their numbers. Wills and ends of sessions
        that are due follow with the first tick."""
        node = self.node
        self._retain()
        found = []
        for number, recorded in self.image.sessions.items():
            if not recorded.head.expiry:
                self.wills.append(recorded.head)
                continue
            session = self._session(recorded)
            if session is not None:
                found.append((number, session))
        node.wills.restored_until = self.clock.last
        if self.image.members is not None:
            self.cluster.expect_others()
            down = max(0, self.wall - self.image.alive) / 1000
            self.absent_members.expect(self.image.members, self.now - down)
        self._log()
        self._see()
        self.image.skipped += shared_records.restore(
            self.cluster.sharing, self.clock, self.image.shared, node.now
        )
        return [
            (number, session)
            for number, session in found
            if node.sessions.get(session.client_id) is session
        ]

    def _log(self) -> None:
        """Put messages that were published here, and that other brokers may lack, back into the
        replay log. They keep their origin and numbers."""
        node, forwarder, origins = self.node, self.cluster.forwarder, self.cluster.origins
        log = self.cluster.replay_log
        origins.down = max(0, self.wall - self.image.alive) / 1000
        horizon = self.image.alive - node.limits.log_age_s * 1000
        away = self.absent_members.earliest()
        # Messages that had left the log may not have been written to its tail yet.
        if away is not None:
            horizon = min(
                horizon, self.wall - (self.now - away) * 1000 - node.limits.log_age_s * 1000
            )
        latest = self.now - node.limits.log_age_s
        for key, _, last, record in self.messages.logged():
            if record.at < horizon or key == forwarder.key:
                continue
            # Entries age while the broker runs. The clock may have been set in between.
            at = self.now + (record.at - self.image.alive) / 1000
            at = max(latest, min(self.now, at))
            try:
                entry = self._entry(record, at)
            except WireError:
                self.image.skipped += 1
                continue
            latest = at
            origins.remember(key, last, self.now)
            log.restore(entry)
        for standby in self.image.standbys:  # it may have what the disk has nothing of
            origins.remember(origin_key(origins.own_id, standby.boot), 0, self.now)
        if len(forwarder.ours) > 1:
            self.gap_recovery.tell_earlier()
        node.federated = node.federated or any(record.logged for record in self.image.entries)

    def _entry(self, record: EntryRecord, at: float) -> LogEntry:
        """Return a recorded entry of the log that came at `at` (s). Raises WireError: it cannot be
        read."""
        data = record.data
        came = self._expires(record.at) or self.now
        if came < at:  # `at` leaves out when this broker was down
            data = age_batch(data, round((at - came) * 1000))
        return restored_batch(data, at, whole=True)

    def _see(self) -> None:
        """Restore which messages of other brokers have come: what is behind them is missing."""
        node, origins = self.node, self.cluster.origins
        try:
            seen = decode_evaluated(b"".join(self.image.seen.values()), self.now)
        except WireError:
            self.image.skipped += 1
            return
        for key, known in seen.items():
            broker_id, boot = split_key(key)
            if broker_id == node.config.id:
                origins.since = min(origins.since, boot)
                if known.top < LAST:  # else no session was to get anything of it
                    origins.recorded(key, known.top, self.now)
            elif key not in origins.vector:
                window = LocalWindow(known.top, known.heard, node.counters, node.limits.max_gaps)
                owed = self.owed.get(key, {})
                window.gaps = merge([*known.gaps, *chain.from_iterable(owed.values())])
                origins.vector[key] = window
                self.gap_recovery.met(key, window)
                if window.feed is None:
                    window.begin = window.top
                # These messages are in no replay log here any more: others that lack them have to
                # ask elsewhere.
                if window.top:
                    window.history = subtract([(1, window.top)], window.gaps)
                for session, ranges in owed.items():
                    if before := intersect(ranges, [(1, known.top)]):
                        self.evaluated.owe(session, key, before)

    def _expires(self, at: int) -> float | None:
        return None if not at else self.now + (at - self.wall) / 1000

    def _retain(self) -> None:
        node = self.node
        if not node.config.retain_available:
            return
        store = node.retained
        now, wall = self.now, self.wall
        newest = 0
        bodies = self.image.retained
        for name in list(bodies):
            # The memory of each body is freed at once.
            record = RetainedRecord.decode(bodies.pop(name))
            newest = max(newest, record.time)
            topic = record.topic
            message = Message(
                topic,
                record.payload,
                record.qos,
                True,
                record.properties,
                self._expires(record.expires),
                None,
            )
            version = RetainedVersion(
                topic,
                place_of(topic),
                record.time,
                record.key,
                record.sequence,
                record.expires_at_ms,
                record.qos,
            )
            store.bring_back(message, version, now, wall)
        self.clock.merge(newest, now)
        node.counters.retained_loaded += len(store)

    def _session(self, recorded: RecordedSession) -> Session | None:
        node, head = self.node, recorded.head
        try:
            client_id, will = head.client_id.decode(), decode_will(head.will)
            state = finish(reading_session(recorded, self.messages.get, self.now, EVERYTHING))
            delivered = decode_evaluated(recorded.part(Kind.DELIVERED), self.now)
            owed = decode_owed(recorded.part(Kind.OWED))
            time = recorded.parts.get(Kind.START_TIME)
            start = None if time is None else StartTime.decode(time)
        except (WireError, UnicodeDecodeError, IndexError, struct.error):
            self.image.skipped += 1
            return None
        ahead = self.wall / 1000 - self.now
        if start is not None and abs(start.offset - ahead) < SAME_CLOCK_S:
            state.began, state.open = start.at, set(start.origins)
        if (old := node.sessions.get(client_id)) is not None:
            old.will = None
            node.end_session(old, None)
        session = node.sessions[client_id] = node.session_registry.new(client_id)
        session.listener = None if head.listener is None else head.listener.decode(errors="replace")
        # Permissions are looked up when the client connects.
        if session.listener is None:
            session.permissions = None
        else:
            session.permissions = node.access_control.permissions(
                state.username, client_id, session.listener
            )
        session.version = head.version
        session.clean = head.flags & CLEAN != 0
        finish(restoring(state, session, node.dispatcher, self.cluster.subscription_starts))
        self.evaluated.add(session, ranges_of(delivered))
        self.evaluated.lack(session, state.lacking)
        if recorded.held:
            owed = union(owed, self._not_compared(recorded, state, delivered))
        for key, ranges in owed.items():
            self.owed.setdefault(key, {})[session] = ranges
        session.stamp = head.stamp
        session.will = will
        session.will_memory = will_memory(will)
        self.clock.merge(head.stamp, self.now)
        self._arm(session, head.disconnected_at or self.died)
        node.counters.sessions_loaded += 1
        return session

    def _not_compared(
        self, recorded: RecordedSession, state: SessionState, delivered: Vector
    ) -> dict[bytes, Ranges]:
        """Return what has been here, and was not compared with a session that had just come."""
        try:
            seen = ranges_of(self.image.vector(self.now))
        except WireError:  # see `_see`
            return {}
        queued = numbered(name for name in recorded.names() if name[0])
        return without(seen, ranges_of(delivered), ranges_of(state.before), queued)

    def since(self, wall: int) -> float:
        """Return when the time of day was `wall` (ms), in s, not later than now."""
        return self.now - max(0, self.wall - wall) / 1000

    def _arm(self, session: Session, disconnected_at: int) -> None:
        """Schedule the end of the session and its will. `disconnected_at`: when its connection
        ended (ms since the epoch)."""
        node, since = self.node, self.since(disconnected_at)
        if session.expiry != NEVER:
            session.expiry_timer = node.timers.schedule(
                since + session.expiry, lambda now: node.session_registry.expire(session)
            )
        # It may have ended so much earlier: what others wrote meanwhile wins over its will.
        session.heard = since - BEAT_INTERVAL_S
        if session.will is not None:
            node.wills.wait(session, since)
