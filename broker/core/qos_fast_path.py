"""QoS 1 and 2 as most clients use them: runs of PUBLISH and of acknowledgements without reasons.

Little is made for each message: what is in flight is the packet itself and the message's name
(`Session.inflight`). A run ends before whatever is not as it should be, and that takes the path for
everything else (`Client._packet`), which behaves the same.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mqttree.broker.core.connection_states import State
from mqttree.broker.core.delivery_queue import RELEASED, Flight, Outgoing
from mqttree.broker.core.message import Message, Name
from mqttree.broker.core.publish import first_route
from mqttree.broker.core.publish_run import LARGEST, MAX_RUN_PACKETS, PublishRun
from mqttree.broker.core.session import Session, SharedOutgoing
from mqttree.broker.wire.properties import (
    EXPIRY,
    NOT_AS_IS,
    inspect_alone,
    inspect_cached,
    inspect_first,
    split_expiry,
)
from mqttree.broker.wire.publish_header import (
    HIGH,
    LOW,
    PACKET_IDS,
    PUBACK,
    PUBACK_HEAD,
    PUBCOMP,
    PUBCOMP_HEAD,
    PUBLISH,
    PUBREC,
    PUBREC_HEAD,
    PUBREL,
    PUBREL_HEAD,
    QOS_1,
    QOS_2,
    topic_end,
    topic_of,
)
from mqttree.broker.wire.varint import read_length

if TYPE_CHECKING:
    from mqttree.broker.core.client import Client
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.ports import OutgoingBatch
    from mqttree.broker.core.receipts import Receipts
    from mqttree.broker.core.route import Route

ACKNOWLEDGED: Final = frozenset((PUBLISH | QOS_1, PUBLISH | QOS_2))
"""First bytes of the PUBLISH packets that `publish_run` takes: QoS 1 and 2, no RETAIN, no DUP."""

ANSWERS: Final = frozenset((PUBACK, PUBREC, PUBREL, PUBCOMP))
"""First bytes of PUBACK, PUBREC, PUBREL and PUBCOMP."""

SETTLING: Final = frozenset(((PUBACK, 1), (PUBREC, 2)))
"""PUBACK at QoS 1 and PUBREC at QoS 2: the client has the message."""

UNNUMBERED: Final = {
    head[0]: head + b"\0\0" for head in (PUBACK_HEAD, PUBREC_HEAD, PUBREL_HEAD, PUBCOMP_HEAD)
}
"""Acknowledgements without a packet identifier, by their first bytes."""

READING: Final = State.READING

NO_IDENTIFIERS: Final = range(0)
"""A run of no acknowledgements."""

FEWEST: Final = 4
"""packets that are worth treating as one piece."""

LOOKAHEAD: Final = 512
"""acknowledgements that are looked at in one piece: each that is not as it should be has the others
looked at again."""

STRETCH: Final = 1024
STRETCH_BYTES: Final = 65_536
"""Packets, and the bytes of those of different sizes, that are taken in one piece, at most: they
fit into one batch."""


def acknowledgements(client: Client, first: int, data: bytes, position: int, size: int) -> int:
    """Take a run of PUBACK, PUBREC, PUBREL or PUBCOMP of a `client`; returns where it ends.

    `first`: the first byte of its packets; `data`: `size` bytes that came; `position`: where in
    them the run begins.
    """
    if size - position >= 4 * FEWEST:
        numbers = _consecutive(first, data, position, size)
        end = position + 4 * len(numbers)
        if numbers and _settle(client, first, numbers, data[position:end]):
            return end
    session = client.session
    answers: list[bytes] = []
    begin = position
    if first == PUBREL:
        position = _release(session, data, position, size, answers)
    else:
        position = _settle_singly(client, first, data, position, size, answers)
    counters = client.conn.counters
    counters.packets_acknowledging += (position - begin) // 4
    if session.recorder is not None and position > begin:
        session.recorder.acknowledged(data[begin:position])
    if answers:
        counters.answers_run += len(answers)
        head = PUBCOMP_HEAD if first == PUBREL else PUBREL_HEAD
        client.conn.send(head + head.join(answers))
    if session.queue:
        session.fill_window()
    return position


def _release(session: Session, data: bytes, position: int, size: int, answers: list[bytes]) -> int:
    """Take PUBREL packets one by one, until one is not as it should be; parameters and what is
    returned are those of `acknowledgements`. `session`: the client's; `answers`: gets the
    identifiers."""
    incoming = session.incoming
    while position + 4 <= size and data[position] == PUBREL and data[position + 1] == 2:
        packet_id = data[position + 2] << 8 | data[position + 3]
        if packet_id not in incoming:
            break
        incoming.discard(packet_id)
        answers.append(PACKET_IDS[packet_id])
        position += 4
    return position


def _settle_singly(
    client: Client, first: int, data: bytes, position: int, size: int, answers: list[bytes]
) -> int:
    """Take PUBACK, PUBREC or PUBCOMP packets one by one, until one is not as it should be;
    parameters and what is returned are those of `acknowledgements`. `answers`: gets the identifiers
    that PUBREL is sent for."""
    inflight = client.session.inflight
    while position + 4 <= size and data[position] == first and data[position + 1] == 2:
        packet_id = data[position + 2] << 8 | data[position + 3]
        sent = inflight.get(packet_id)
        if sent is None:
            break
        if isinstance(sent, tuple):
            packet: bytes = sent[0]
            qos = packet[0] >> 1 & 3
        else:
            qos = sent.qos
            if type(sent) is SharedOutgoing and (first, qos) in SETTLING:
                cluster = client.node.cluster
                if cluster.custody.holds_unacknowledged:
                    cluster.custody.settled(sent)
        if first == PUBACK:
            if qos != 1:
                break
            del inflight[packet_id]
        elif first == PUBREC:
            if qos != 2 or sent is RELEASED:
                break
            inflight[packet_id] = RELEASED
            answers.append(PACKET_IDS[packet_id])
        elif first == PUBCOMP and sent is RELEASED:
            del inflight[packet_id]
        else:
            break
        position += 4
    return position


def _consecutive(first: int, data: bytes, position: int, size: int) -> range:
    """Return the identifiers of a run of acknowledgements when they count upwards, as they mostly
    do; else nothing."""
    count = min((size - position) // 4, LOOKAHEAD)
    if count < FEWEST or first not in ANSWERS:
        return NO_IDENTIFIERS
    for at, byte in ((position, first), (position + 1, 2)):
        found = data[at : position + 4 * count : 4]
        if found.count(byte) < count:
            count -= len(found.lstrip(bytes((byte,))))
    number = data[position + 2] << 8 | data[position + 3]
    numbers = range(number, number + count)
    end = position + 4 * count
    if count < FEWEST or data[position + 2 : end : 4] != HIGH[number : number + count]:
        return NO_IDENTIFIERS
    return (
        numbers if data[position + 3 : end : 4] == LOW[number : number + count] else NO_IDENTIFIERS
    )


def _settle(client: Client, first: int, numbers: range, packets: bytes) -> bool:
    """Take a whole run of acknowledgements; False, and nothing is done, when one of them is not as
    it should be."""
    session = client.session
    inflight = session.inflight
    count = len(numbers)
    answer = b""
    if first == PUBREL:
        if not session.incoming.issuperset(numbers):
            return False
        session.incoming.difference_update(numbers)
        answer = UNNUMBERED[PUBCOMP]
    else:
        sent = list(map(inflight.get, numbers))
        if first == PUBCOMP:
            if sent.count(RELEASED) < count:
                return False
        elif not _all_begin(sent, PUBLISH | (QOS_1 if first == PUBACK else QOS_2)):
            return False
        if first == PUBREC:
            inflight.update(dict.fromkeys(numbers, RELEASED))
            answer = UNNUMBERED[PUBREL]
        else:
            deque(map(inflight.pop, numbers), maxlen=0)
    counters = client.conn.counters
    counters.packets_acknowledging += count
    if session.recorder is not None:
        session.recorder.acknowledged(packets)
    if answer:
        counters.answers_run += count
        answers = bytearray(answer * count)
        answers[2::4] = packets[2::4]
        answers[3::4] = packets[3::4]
        client.conn.send(bytes(answers))
    if session.queue:
        session.fill_window()
    return True


def _all_begin(sent: list[Outgoing | Flight | None], first: int) -> bool:
    """Whether all of these are packets in flight that begin with the byte `first`."""
    for flight in sent:
        if not isinstance(flight, tuple):
            return False
        packet: bytes = flight[0]
        if packet[0] != first:
            return False
    return True


def publish_run(
    client: Client, data: bytes, position: int, body: int, end: int, batch: OutgoingBatch
) -> int:
    """Take PUBLISH packets that follow each other and have the same first byte; returns where they
    end, or `position` if it took none. If the publisher's connection is held afterwards, a
    subscriber is behind, and no more packets of this publisher may be taken now.

    `client`: the publisher; `data`: the bytes that came; `position`: where in them the first packet
    begins; `body`: where its variable header begins; `end`: where it ends; `batch`: numbers
    them, and takes what goes to other brokers.
    """
    if (
        data[position] >> 1 & 3 > client.fast_qos
        or len(client.session.incoming) >= client.most_incoming
    ):
        return position
    after = _publish_mixed(client, data, position, body, end, batch)
    if after == position:
        after = _publish_equal(client, data, position, body, end, batch)
    return after


def _publish_mixed(
    client: Client, data: bytes, position: int, body: int, end: int, batch: OutgoingBatch
) -> int:
    """Take PUBLISH packets of any topics whose receivers get them as they are; parameters and what
    is returned are those of `publish_run`. It ends before a run of equal packets, which costs less
    in `_publish_equal`."""
    first, begun, five = data[position], position, client.version == 5
    qos, incoming = first >> 1 & 3, client.session.incoming
    conn, routes, most = client.conn, client.routes, client.most_incoming
    receipts = client.node.journal.receipts if client.node.journal.recording else None
    # So much fits into one batch. A chunk in which packets may be too large goes one by one.
    limit = min(len(data), position + STRETCH_BYTES) if len(data) <= conn.max_packet_size else 0
    answers: list[bytes] = []
    origin, number = batch.origin, batch.next_number()
    # Packets that follow each other and have one route: where they begin, how many are before them.
    along: Route | None = None
    begin, before, taken = 0, 0, b""  # the last one is the topic of the last packet
    while True:
        start = body + 2 + (data[body] << 8 | data[body + 1])
        payload = start + 3 if five else start + 2
        route = routes.get(topic := data[body + 2 : start]) or first_route(client, topic)
        if route is None or payload > end or route.granted < qos:
            break
        targets = route.raw5 if five else route.raw4
        section = data[payload - 1] if five else 0  # bytes of properties
        # Long properties, an expiry, or a promise of text.
        special = section > 0 and (
            section > 127 or inspect_cached(data[payload : payload + section]) & NOT_AS_IS != 0
        )
        section, payload = (
            inspect_alone(data, payload - 1, end) if special else (section, payload + section)
        )
        prefix, packet_id = data[position:start], data[start] << 8 | data[start + 1]
        repeated = qos == 2 and (packet_id in incoming or len(incoming) >= most)
        equal = not special and data.startswith(prefix, 3 * end - 2 * position)
        if targets is None or payload > end or not packet_id or repeated or equal:
            break
        if route is not along:
            if along is not None:
                batch.add(along, begin, position, len(answers) - before, qos)
            along, begin, before = route, position, len(answers)
        if qos == 2:
            incoming.add(packet_id)
        tail = data[start + 2 : end]
        if targets and (special or receipts is not None):
            expiring = special and data.startswith(EXPIRY, payload - section)
            _send(client, targets, prefix, tail, expiring, receipts, origin, number)
        else:
            for receiver in targets:
                if not send_on(receiver, prefix, tail, origin, number):
                    _queue(client, receiver, prefix, tail, (origin, number))
        answers.append(PACKET_IDS[packet_id])
        position, taken, number = end, topic, number + 1
        # The next packet; whatever is not as it should be is left to the caller.
        held = conn.state is not READING and conn.state.held
        if held or position + 7 > limit or data[position] != first:
            break
        length, body = data[position + 1], position + 2
        if length >= 128:
            length += (data[body] << 7) - 128
            body += 1
        end = body + length
        if end > limit or length <= 4 or data[body - 1] >= 128 or len(answers) == STRETCH:
            break
    if along is not None:
        batch.add(along, begin, position, len(answers) - before, qos)
    if client.tally is not None and answers:
        client.tally.add_packets(data, begun, position, len(answers), taken)
    _acknowledge(client, answers, number - len(answers), data, begun, position)
    return position


def _send(
    client: Client,
    receivers: tuple[Session, ...],
    head: bytes,
    tail: bytes,
    expiring: bool,
    receipts: Receipts | None,
    origin: bytes,
    sequence: int,
) -> None:
    """Send a packet to receivers that get it as it is, also if it has to be recorded.

    `client`: the publisher; `receivers`: who gets it; `head`, `tail`: as of `send_on`; `expiring`:
    whether its properties begin with its expiry; `receipts`: of the journal, if there is one;
    `origin`, `sequence`: the message's name.
    """
    if expiring:
        message = _message(client, head, tail).named(origin, sequence)
        send_expiring(receivers, head, tail, message, client.conn)
    elif receipts is not None:
        gate = client.node.journal.lsn + 1 if head[0] & QOS_2 else 0
        left = send_recorded(receipts, receivers, head, tail, origin, sequence, gate)
        if left is not None:
            message = _message(client, head, tail).named(origin, sequence)
            for receiver in left:
                receiver.deliver(message, message.qos, False, b"", client.conn)
    else:
        for receiver in receivers:
            if not send_on(receiver, head, tail, origin, sequence):
                _queue(client, receiver, head, tail, (origin, sequence))


def _queue(client: Client, receiver: Session, head: bytes, tail: bytes, name: Name) -> None:
    """Deliver a packet to a receiver that does not take it as it is; parameters are those of
    `_send`."""
    message = _message(client, head, tail).named(name[0], name[1])
    receiver.deliver(message, message.qos, False, b"", client.conn)


def _publish_equal(
    client: Client, data: bytes, position: int, body: int, end: int, batch: OutgoingBatch
) -> int:
    """Take a run of PUBLISH packets of one topic and size, whoever gets them; parameters and what
    is returned are those of `publish_run`."""
    start = topic_end(data, body)
    five = client.version == 5
    payload = start + (3 if five else 2)
    if payload > end:
        return position
    properties = b""
    size = 0  # of the property section
    alone = False  # nothing is known of the packets behind this one
    if five and data[payload - 1]:
        size, payload, alone = inspect_first(data, payload - 1, end)
        if payload > end:
            return position
        properties = data[payload - size : payload]
    route = client.routes.get(topic := data[body + 2 : start]) or first_route(client, topic)
    if route is None:
        return position
    packet = end - position
    if alone:
        return _publish_singly(
            client, route, data, position, start, payload, end, size, batch, alone=True
        )
    if (
        position + 4 * packet <= len(data)
        and packet <= LARGEST
        and properties[:1] != EXPIRY
        and data.startswith(data[position:start], position + 3 * packet)
    ):
        run = _batch(client, route, data, position, start, payload, packet, properties)
        if run is not None:
            run.origin, run.sequence = batch.origin, batch.next_number()
            if client.tally is not None:
                client.tally.add(topic, run.count)
            after = position + len(run.data)
            client.node.dispatcher.batch(route, run, client.conn)
            batch.add(route, position, after, run.count, run.qos)
            journal = client.node.journal
            if journal.recording and not client.node.federated:
                journal.published(run.sequence, run.count, run.data, client.version, client.conn)
            return after
    return _publish_singly(client, route, data, position, start, payload, end, size, batch)


def _publish_singly(
    client: Client,
    route: Route,
    data: bytes,
    position: int,
    start: int,
    payload: int,
    end: int,
    size: int,
    batch: OutgoingBatch,
    *,
    alone: bool = False,
) -> int:
    """Take a run of PUBLISH packets one by one, until a subscriber is behind; returns where the
    last one ends that was taken.

    `client`: the publisher; `route`: of their topic; `data`: the bytes that came; `position`,
    `start`, `payload`, `end`: where in them the first packet begins, where its packet identifier
    is, where its payload begins, where it ends; `size`: bytes of its properties, which receivers
    get as they are, or an expiry first; `batch`: takes what goes to other brokers; `alone`: nothing
    is known of the packets behind the first one.
    """
    begin, qos = position, data[position] >> 1 & 3
    behind = payload - size
    sound, section = data[behind:payload], data[start + 2 : behind]  # the properties, their length
    node, conn, incoming = client.node, client.conn, client.session.incoming
    most = client.most_incoming
    prefix, packet = data[position:start], end - position
    targets = (route.raw5 if section else route.raw4) if route.granted >= qos else None
    expiring = sound[:1] == EXPIRY
    origin, number = batch.origin, batch.next_number()
    receipts = node.journal.receipts if node.journal.recording else None
    answers: list[bytes] = []
    while end <= len(data) and data.startswith(prefix, position) and not conn.state.held:
        packet_id = data[start] << 8 | data[start + 1]
        properties = data[behind:payload]
        if not packet_id or (qos == 2 and (packet_id in incoming or len(incoming) >= most)):
            break
        if not data.startswith(section, start + 2) or (
            properties != sound and (expiring or inspect_cached(properties) & NOT_AS_IS)
        ):
            break
        if qos == 2:
            incoming.add(packet_id)
        tail = data[start + 2 : end]
        place = number + len(answers)
        if targets is None:
            _deliver(client, route, _message(client, prefix, tail).named(origin, place), batch)
        else:
            _send(client, targets, prefix, tail, expiring, receipts, origin, place)
        answers.append(PACKET_IDS[packet_id])
        position, behind = end, behind + packet
        start, payload, end = start + packet, payload + packet, end + packet
        if alone or len(answers) == STRETCH:
            break
    if answers:
        if not route.elsewhere:
            batch.add(route, begin, position, len(answers), qos)
        if client.tally is not None:
            client.tally.add(topic_of(prefix), len(answers))
    _acknowledge(client, answers, number, data, begin, position)
    return position


def send_recorded(
    receipts: Receipts,
    receivers: tuple[Session, ...],
    head: bytes,
    tail: bytes,
    origin: bytes,
    sequence: int,
    gate: int,
) -> list[Session] | None:
    """Send a packet to sessions, and note that for those in the journal. Returns those that have to
    get it in another way, None: there are none.

    `receipts`: takes that; `receivers`: who gets the packet; `head`, `tail`, `origin`, `sequence`:
    as of `send_on`; `gate`: the frame that will have what is noted, which QoS 2 waits for; 0: none.
    """
    place = -1
    left: list[Session] | None = None
    for session in receivers:
        if not send_on(session, head, tail, origin, sequence):
            if left is None:
                left = [session]
            else:
                left.append(session)
        elif (recorder := session.recorder) is not None:
            if place < 0:
                place = receipts.place(origin, sequence)
            receipts.items.append(place | recorder.number << 16 | session.next_packet_id)
            if gate and session.conn is not None:
                session.conn.gate = gate
    return left


def send_expiring(
    receivers: tuple[Session, ...],
    head: bytes,
    tail: bytes,
    message: Message,
    source: Connection,
) -> None:
    """Send a `message` that expires to sessions that get it as it came: nothing of its time has
    passed yet. What is in flight is the message, as it is repeated with the time that is left.

    `receivers`: who gets it; `head`, `tail`: as of `send_on`; `source`: the publisher's connection.
    """
    qos, name = message.qos, (message.origin, message.sequence)
    for session in receivers:
        if session.recorder is None and send_on(session, head, tail, name[0], name[1]):
            session.inflight[session.next_packet_id] = Outgoing(message, qos, False, b"")
        else:
            session.deliver(message, qos, False, b"", source)


def _acknowledge(
    client: Client, packet_ids: list[bytes], number: int, data: bytes, begin: int, end: int
) -> None:
    """Answer PUBLISH packets that were taken with PUBACK or PUBREC, and have them recorded if no
    other broker gets them.

    `client`: the publisher; `packet_ids`: two bytes each, perhaps none; `number`: of the first
    message; `begin`, `end`: where the packets are in `data`.
    """
    if not packet_ids:
        return
    conn, node, qos = client.conn, client.node, data[begin] >> 1 & 3
    journal = node.journal
    if journal.recording and journal.receipts.number and not node.federated:
        packets = data[begin:end]
        journal.published(number, len(packet_ids), packets, client.version, conn)
    if qos == 2 and (recorder := client.session.recorder) is not None:
        recorder.received(b"".join(packet_ids))
    conn.counters.published_acknowledged += len(packet_ids)
    head = PUBACK_HEAD if qos == 1 else PUBREC_HEAD
    if not conn.outbox:
        conn.dirty.append(conn)
    conn.outbox.append(head + head.join(packet_ids))


def _batch(
    client: Client,
    route: Route,
    data: bytes,
    position: int,
    start: int,
    payload: int,
    packet: int,
    properties: bytes,
) -> PublishRun | None:
    """Take and acknowledge the run that begins at `position` (see `publish_run`) if all its
    receivers can get it as one piece."""
    if route.special or route.shared or route.elsewhere:
        return None
    qos = data[position] >> 1 & 3
    most = MAX_RUN_PACKETS
    for delivery in route.deliveries:
        session = delivery.session
        if delivery.qos:
            most = min(most, session.window_room)
        elif session.conn is None or session.checked:
            return None
    if most < FEWEST:
        return None
    if qos == 2 and (data[start] << 8 | data[start + 1]) in client.session.incoming:
        return None  # a repetition, and most likely more of them
    prefix = data[position:start]
    tail = data[start + 2 : payload]
    last = min(len(data), position + most * packet) - packet
    after = position + packet
    startswith = data.startswith
    if tail:
        behind = start + 2 - position
        while after <= last and startswith(prefix, after) and startswith(tail, after + behind):
            after += packet
    else:
        while after <= last and startswith(prefix, after):
            after += packet
    count = (after - position) // packet
    high = data[start:after:packet]
    low = data[start + 1 : after : packet]
    if count < FEWEST:
        return None
    if qos == 2:
        if not _take_identifiers(client, high, low):
            return None
    elif 0 in high and 0 in low and any(not (h or i) for h, i in zip(high, low, strict=True)):
        return None
    answers = bytearray(UNNUMBERED[PUBACK if qos == 1 else PUBREC] * count)
    answers[2::4] = high
    answers[3::4] = low
    node = client.node
    conn = client.conn
    conn.counters.published_acknowledged += count
    if not conn.outbox:
        node.dirty.append(conn)
    conn.outbox.append(bytes(answers))
    start, payload = start - position, payload - position
    chunk = data[position:after]
    return PublishRun(
        topic_of(chunk),
        qos,
        properties,
        client.version,
        chunk,
        start,
        payload,
        packet,
        client.session,
    )


def _take_identifiers(client: Client, high: bytes, low: bytes) -> bool:
    """Note the packet identifiers of a QoS 2 run as received, by their `high` and `low` bytes;
    False, and nothing is done, when one of them is 0, comes twice or is one of an earlier
    packet."""
    session = client.session
    numbers = {h << 8 | i for h, i in zip(high, low, strict=True)}
    if len(numbers) < len(high) or 0 in numbers or not numbers.isdisjoint(session.incoming):
        client.node.turns.work += len(high)  # it may be so for each of them
        return False
    session.incoming |= numbers
    if session.recorder is not None:
        session.recorder.received(b"".join([PACKET_IDS[number] for number in numbers]))
    return True


def send_on(session: Session, head: bytes, tail: bytes, origin: bytes, sequence: int) -> bool:
    """Put a packet in flight and send it, with the next free identifier. Returns False, and nothing
    is done, when `session` does not take it now, or not as it is.

    `head`, `tail`: its bytes ahead of its identifier and behind it; `origin`, `sequence`: the name
    of the message.
    """
    inflight = session.inflight
    if (
        session.conn is None
        or session.queue
        or session.checked
        or len(inflight) >= session.receive_maximum
    ):
        return False
    packet_id = session.next_packet_id % 65535 + 1
    while packet_id in inflight:
        packet_id = packet_id % 65535 + 1
    session.next_packet_id = packet_id
    data = b"%b%b%b" % (head, PACKET_IDS[packet_id], tail)
    inflight[packet_id] = (data, origin, sequence)
    outbox = session.outbox
    if not outbox:
        session.dirty.append(session)
    outbox.append(data)
    session.counters.delivered += 1
    return True


def _message(client: Client, head: bytes, tail: bytes) -> Message:
    """Return the message of a packet at QoS 1 or 2; `head`, `tail`: as of `send_on`."""
    properties, payload = b"", tail
    if client.version == 5:
        size, at = read_length(tail, 0)
        properties, payload = tail[at : at + size], tail[at + size :]
    expires_at, rest = split_expiry(properties, client.node.now)
    qos = head[0] >> 1 & 3
    message = Message(topic_of(head), payload, qos, False, rest, expires_at, client.session)
    # A receiver of the same version gets the very bytes but for the packet identifier.
    if expires_at is None:
        message.cache = {client.version << 3 | qos << 1: (head, tail)}
    return message


def _deliver(client: Client, route: Route, message: Message, batch: OutgoingBatch) -> None:
    """Deliver one message to receivers that need more than its bytes."""
    node = client.node
    if route.elsewhere:  # some of them at other brokers
        batch.flush()
        node.cluster.sharing.publish(route, message, client.conn)
    else:
        node.dispatcher.deliver(route, message, client.conn)
