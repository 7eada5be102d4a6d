"""Batches of messages that links bring: each packet is looked at once, delivered by its route, and
passed on as it came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.link.message_batch import (
    SINGLE,
    MessageBatch,
    check_properties,
    encode_batch,
    read_single,
)
from mqttree.broker.cluster.link.stream_packets import TOPIC as STREAM_TOPIC
from mqttree.broker.core.message import Message
from mqttree.broker.core.output import deliver_run
from mqttree.broker.core.qos_fast_path import send_expiring, send_on, send_recorded
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.properties import (
    EXPIRY,
    NOT_AS_IS,
    inspect_alone,
    inspect_cached,
    split_expiry,
)
from mqttree.broker.wire.publish_header import PUBLISH, run_end, topic_end, topic_of
from mqttree.broker.wire.strings import is_own_name
from mqttree.broker.wire.varint import read_length

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.forwarder import Forwarder
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
    from mqttree.broker.cluster.delivery.ports import Above, DeliveringBroker
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.strategy.routing_strategy import MessageHops
    from mqttree.broker.core.route import Route
    from mqttree.broker.core.session import Session

Piece = tuple["Route", int, int, int, int, int]
"""Packets of one topic and size that follow each other in a batch: their route, where the first one
begins, where its topic ends, where its payload begins, where it ends, and how many there are."""


class IncomingBatches:
    """Takes the batches of all links."""

    __slots__ = (
        "_above",
        "_counters",
        "_dirty",
        "_dispatcher",
        "_forwarder",
        "_gap_recovery",
        "_hooks",
        "_node",
        "_onward",
        "_passes_on",
        "_turns",
    )

    def __init__(
        self,
        node: DeliveringBroker,
        forwarder: Forwarder,
        strategy: MessageHops,
        gap_recovery: GapRecovery,
        above: Above,
    ) -> None:
        """`node`: this broker; `forwarder`: numbers, logs and sends; `strategy`: which links a
        message takes; `gap_recovery`: what must wait for messages before it; `above`: the floors
        above delivery."""
        self._node = node
        self._above = above
        # What each message needs.
        self._counters, self._dirty, self._turns = node.counters, node.dirty, node.turns
        self._dispatcher, self._hooks = node.dispatcher, node.hooks
        self._forwarder = forwarder
        self._gap_recovery = gap_recovery
        self._onward = strategy.links_onward
        self._passes_on = strategy.passes_on

    def received(self, link: Link, data: bytes, body: int, now: float) -> None:
        """Deliver and pass on a batch (`data`) that came over `link` at `now` (s). `body`: where it
        begins behind its length.

        Raises:
            MalformedPacket, ProtocolViolation: no broker sends such a batch.
        """
        # The low byte of how many messages there are is ahead of them.
        if (
            data[0] == PUBLISH
            and data[body + SINGLE - 1 : body + SINGLE] == b"\x01"
            and self._take_single(link, data, body)
        ):
            return
        if data[body + 2 : body + 9] == STREAM_TOPIC:
            self._above.images.received(link, data, body)
            return
        batch = MessageBatch.read_body(data, body)
        stamp = batch.stamp
        restored = stamp is not None and stamp.restored
        if not 0 < (batch.sequence or restored) <= LAST - batch.count:
            raise MalformedPacket("PUBLISH on a link with a sequence number out of range")
        pieces = [] if stamp is not None or batch.choice is not None else self._pieces(batch)
        # Of very small messages, one read may bring more than a turn should take.
        self._turns.work += len(pieces)
        if not pieces:
            self._take_message(link, batch, data, now)
        elif batch.qos:
            self._take(link, batch, data, pieces, now)
        else:
            self._take_unlogged(link, batch, data, pieces, now)

    def _pieces(self, batch: MessageBatch) -> list[Piece]:
        """Find the packets of a batch, and their routes; none of a single one whose receivers may
        not get its properties as they came.

        Raises:
            MalformedPacket, ProtocolViolation: a packet that no broker puts into a batch.
        """
        routes = self._dispatcher.routes
        data, qos, left = batch.packets, batch.qos, batch.count
        expected = PUBLISH | qos << 1
        five = batch.version == 5
        behind = (2 if qos else 0) + five
        position, size = 0, len(data)
        previous = b""  # topic
        pieces: list[Piece] = []
        while position + 4 < size:  # so there are a length and that of a topic
            length = data[position + 1]
            body = position + 2
            if length >= 128:
                if (more := data[body]) < 128:
                    length += (more << 7) - 128
                    body += 1
                else:
                    length, body = _long(data, position + 1)
            end = body + length
            if data[position] != expected or end > size:
                raise MalformedPacket("batch on a link with a packet that it may not have")
            start = body + 2 + (data[body] << 8 | data[body + 1])
            payload = start + behind
            if payload > end:
                raise MalformedPacket("batch on a link whose messages are truncated")
            topic = data[body + 2 : start]
            route = routes.get(topic) or self._route(topic)
            if five and (section := data[payload - 1]):
                payload += section
                if (
                    section > 127
                    or payload > end
                    or inspect_cached(data[payload - section : payload]) & NOT_AS_IS
                ):
                    payload = inspect_alone(data, payload - section - 1, end)[1]
                    if payload > end and batch.count == 1:
                        return []
                    if payload > end:
                        raise MalformedPacket(
                            "batch on a link with properties that it may not have"
                        )
            after, count = end, 1
            if not qos and topic == previous:
                after = run_end(data, position, payload, end)
                count = (after - position) // (end - position)
            pieces.append((route, position, start, payload, end, count))
            previous = topic
            left -= count
            position = after
        if left or position < size:
            raise MalformedPacket("batch on a link with more or fewer messages than it says")
        return pieces

    def _route(self, topic: bytes, *, keep: bool = True) -> Route:
        if is_own_name(topic):
            raise MalformedPacket("batch on a link with a topic that stays at its broker")
        return self._dispatcher.route(topic, keep=keep)

    def _take_message(self, link: Link, batch: MessageBatch, data: bytes, now: float) -> None:
        """Take a batch (`data`) of one message that receivers may not get as it came: a retained
        one, one for members of shared subscriptions that were chosen, or one with rare properties.
        A retained message that a comparison brought does not follow its origin's order.

        Raises:
            MalformedPacket, ProtocolViolation: no broker sends such a message.
        """
        forwarder, stamp, key, sequence = self._forwarder, batch.stamp, batch.key, batch.sequence
        [(_, message)] = batch.messages(now)
        check_properties(message.properties)
        restored = stamp is not None and stamp.restored
        if message.topic not in self._dispatcher.routes:
            self._route(message.topic, keep=not restored)
        if restored:
            self._above.retained_sync.restored(link, message, key, sequence, data, now)
        elif forwarder.accept(key, sequence, 1, now, bool(batch.qos or message.retain)):
            entry = LogEntry(key, sequence, 1, data, now)
            forwarder.received(link, entry, message, batch.choice, now)
        else:
            self._counters.duplicates += 1

    def _pass_on(self, link: Link, batch: MessageBatch, data: bytes, pieces: list[Piece]) -> None:
        """Send the packets over other links: as they came, if all take the same ones."""
        key = batch.key
        if not self._passes_on(key, link):
            return
        onward = self._onward
        route = pieces[0][0]
        links = onward(route, key, link)
        begin = number = count = 0
        for piece in pieces:
            if piece[0] is not route:
                route = piece[0]
                others = onward(route, key, link)
                if others is not links and others != links:
                    position = piece[1]
                    self._pass_part_on(link, batch, links, begin, position, number, count)
                    links, begin, number, count = others, position, number + count, 0
            count += piece[5]
        if begin:
            self._pass_part_on(link, batch, links, begin, len(batch.packets), number, count)
        else:
            self._forwarder.send(data, batch.count, links, link)

    def _pass_part_on(
        self,
        link: Link,
        batch: MessageBatch,
        links: list[Link],
        begin: int,
        end: int,
        number: int,
        count: int,
    ) -> None:
        """Send the `count` packets from `begin` to `end` of a batch over `links`, but not back over
        `link`. `number`: how many packets are ahead of them."""
        if any(other is not link for other in links):
            part = encode_batch(
                batch.key,
                batch.sequence + number,
                batch.packets[begin:end],
                count,
                batch.version,
                batch.qos,
            )
            self._forwarder.send(part, count, links, link)

    # ---------------------------------------------------------------- at QoS 0

    def _take_single(self, link: Link, data: bytes, body: int) -> bool:
        """Take a batch (`data`) of one message that came over `link`, as a publisher that sends now
        and then causes it: the same as for any other batch, with fewer steps. `body`: as of
        `received`. Returns False, and nothing is done, if it takes the other steps.

        Raises:
            MalformedPacket, ProtocolViolation: no broker sends such a batch.
        """
        single = read_single(data, body)
        if single is None:
            return False
        key, sequence, version = single
        begin, size = body + SINGLE, len(data)
        if (
            begin + 5 > size
            or data[begin] != PUBLISH
            or not 0 < sequence < LAST
            or (length := data[begin + 1]) & data[begin + 2] >= 128
        ):
            return False
        at = begin + 2
        if length >= 128:
            length += (data[at] << 7) - 128
            at += 1
        start = topic_end(data, at)
        payload = start + (version == 5)
        if at + length != size or payload > size:
            return False
        if version == 5 and (section := data[start]):
            payload += section
            if (
                section > 127
                or payload > size
                or inspect_cached(data[payload - section : payload]) & NOT_AS_IS
            ):
                return False
        topic = data[at + 2 : start]
        route = self._dispatcher.routes.get(topic) or self._route(topic)
        targets = route.raw5 if version == 5 else route.raw4
        if targets is None or self._hooks.topics:
            return False
        counters = self._counters
        self._turns.work += 1
        if not self._forwarder.accept_unlogged(key, sequence, 1):
            counters.duplicates += 1
            return True
        link.conn.traffic.received += 1
        if self._passes_on(key, link):
            self._forwarder.send(data, 1, self._onward(route, key, link), link)
        counters.delivered += deliver_run(self._dirty, targets, data[begin:], 1)
        return True

    def _take_unlogged(
        self, link: Link, batch: MessageBatch, data: bytes, pieces: list[Piece], now: float
    ) -> None:
        forwarder, counters = self._forwarder, self._counters
        last = batch.sequence + batch.count - 1
        top = forwarder.runs.get(batch.key, 0)
        if batch.sequence <= top < last:
            counters.duplicates += top - batch.sequence + 1
            batch = batch.parts([(top + 1, last)])[0]
            data, pieces = batch.encode(), self._pieces(batch)
        if not forwarder.accept(batch.key, batch.sequence, batch.count, now, False):
            counters.duplicates += batch.count
            return
        link.conn.traffic.received += batch.count
        self._pass_on(link, batch, data, pieces)
        self._deliver_unlogged(link, batch, pieces, now)

    def _deliver_unlogged(
        self, link: Link, batch: MessageBatch, pieces: list[Piece], now: float
    ) -> None:
        """Deliver QoS 0 packets here: those that follow each other and that the same sessions get
        as they are, as one piece."""
        data, five = batch.packets, batch.version == 5
        shown = self._hooks.topics or batch.age
        targets: tuple[Session, ...] | None = None
        begin = messages = delivered = 0
        for piece in pieces:
            route, position, count = piece[0], piece[1], piece[5]
            raw = None if shown else route.raw5 if five else route.raw4
            if raw is not targets:
                if targets:
                    chunk = data[begin:position]
                    delivered += deliver_run(self._dirty, targets, chunk, messages)
                targets, begin, messages = raw, position, 0
            if raw is None:
                self._deliver_single(link, batch, piece, now)
            messages += count
        if targets:
            chunk = data[begin:] if begin else data
            delivered += deliver_run(self._dirty, targets, chunk, messages)
        self._counters.delivered += delivered

    def _deliver_single(
        self, link: Link, batch: MessageBatch, piece: Piece, now: float, number: int = 0
    ) -> None:
        """Deliver packets to receivers that need more than their bytes. `number`: of the packet, at
        QoS 1 or 2."""
        route, position, start, payload, end, count = piece
        node, data, packet = self._node, batch.packets, end - position
        plain = payload == start + (2 if batch.qos else 0) + (batch.version == 5)
        if not batch.qos and plain and not node.hooks.topics:
            chunk = data[position : position + count * packet]
            node.dispatcher.run(
                route, chunk, payload - position, packet, batch.version, None, groups=False
            )
            return
        for at in range(0, count * packet, packet):
            one = (route, position + at, start + at, payload + at, end + at, 1)
            message = _message(batch, one, now)
            if number:
                message.named(batch.key, number)
            if batch.age and message.expired(now):
                node.counters.expired += 1
                continue
            link.arrival = (batch.key, message.topic, now)
            if node.hooks.topics:
                node.dispatcher.publish(message, link.conn, ())
            else:
                node.dispatcher.deliver(route, message, link.conn, None, ())

    # ---------------------------------------------------------------- at QoS 1 and 2

    def _take(
        self, link: Link, batch: MessageBatch, data: bytes, pieces: list[Piece], now: float
    ) -> None:
        forwarder, counters = self._forwarder, self._counters
        key, sequence, count = batch.key, batch.sequence, batch.count
        new = forwarder.accept(key, sequence, count, now)
        if not new:
            counters.duplicates += count
            return
        if new < 0 or forwarder.singly(key, sequence):
            parts = batch.parts([(number, number) for number in range(sequence, sequence + count)])
            for part, (number, message) in zip(parts, batch.messages(now), strict=True):
                if new > 0 or forwarder.accept(key, number, 1, now):
                    entry = LogEntry(key, number, 1, part.encode(), now)
                    forwarder.received(link, entry, message, None, now)
                else:
                    counters.duplicates += 1
            return
        link.conn.traffic.received += count
        link.arrival = (key, topic_of(batch.packets), now)
        entry = LogEntry(key, sequence, count, data, now)
        forwarder.log.append(entry, link.conn)
        feed = forwarder.admit(key, link)
        self._pass_on(link, batch, data, pieces)
        # So many were published before this broker met their origin, or are held back for now.
        old = (
            forwarder.vector[key].begin + 1 - sequence
            if feed is None
            else count - feed.take(link, sequence, count)
        )
        if old < count:
            journal = self._node.journal
            if journal.recording:
                journal.arriving(entry)
            self._deliver_logged(link, batch, pieces, max(0, old), now)
            if journal.recording:
                journal.arrived(entry, link.conn)
        elif feed is not None and sequence + count - 1 > feed.done:
            self._gap_recovery.hold(feed, entry)

    def _deliver_logged(
        self, link: Link, batch: MessageBatch, pieces: list[Piece], old: int, now: float
    ) -> None:
        """Deliver QoS 1 or 2 packets here, but for the first `old` ones."""
        node, data, qos, five = self._node, batch.packets, batch.qos, batch.version == 5
        receipts = node.journal.receipts if node.journal.recording else None
        shown, key, gate = node.hooks.topics, batch.key, node.journal.lsn + 1 if qos == 2 else 0
        for number, piece in enumerate(pieces[old:] if old else pieces, batch.sequence + old):
            route, position, start, payload, end, _ = piece
            targets = (route.raw5 if five else route.raw4) if route.granted >= qos else None
            special = five and payload > start + 3 and _expires(data, start)
            if targets is None or shown or (special and batch.age):
                self._deliver_single(link, batch, piece, now, number)
                continue
            head, tail = data[position:start], data[start + 2 : end]
            if special:
                message = _message(batch, piece, now).named(key, number)
                link.arrival = (batch.key, message.topic, now)
                send_expiring(targets, head, tail, message, link.conn)
                continue
            if receipts is not None:
                left = send_recorded(receipts, targets, head, tail, key, number, gate)
            else:
                left = [each for each in targets if not send_on(each, head, tail, key, number)]
            if left:
                message = _message(batch, piece, now).named(key, number)
                link.arrival = (batch.key, message.topic, now)
                for session in left:
                    session.deliver(message, qos, False, b"", link.conn)


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return the length of three or four bytes that begins `at` there, and where it ends.

    Raises:
        MalformedPacket: it is truncated, or too long, or nothing is behind it.
    """
    length, body = read_length(data, at)
    if body < 0 or body + 2 > len(data):
        raise MalformedPacket("batch on a link whose messages are truncated")
    return length, body


def _expires(data: bytes, start: int) -> bool:
    """Whether the properties of a packet at QoS 1 or 2 begin with an expiry; `start`: where in
    `data` its identifier is. There are some."""
    return data.startswith(EXPIRY, start + 3 if data[start + 2] < 128 else start + 4)


def _message(batch: MessageBatch, piece: Piece, now: float) -> Message:
    """Return the message of a packet that came at `now` (s)."""
    _, position, start, payload, end, _ = piece
    data, behind = batch.packets, 2 if batch.qos else 0
    prefix = data[position:start]
    topic = prefix[read_length(prefix, 1)[1] + 2 :]
    section = start + behind
    if batch.version == 5:
        section += 1 if data[section] < 128 else 2
    expires_at, properties = split_expiry(data[section:payload], now - batch.age / 1000)
    message = Message(topic, data[payload:end], batch.qos, False, properties, expires_at, None)
    if expires_at is None:
        # A receiver of the same version gets the very bytes but for the packet identifier.
        message.cache = {batch.version << 3 | batch.qos << 1: (prefix, data[start + behind : end])}
    return message
