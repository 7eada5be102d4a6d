"""Messages in the log's tail for which no broker asks are offered to a broker that was away, once
it is back (docs/decisions/0031): by the broker that published them; and messages that were under
way on a link that was lost, by the broker that sent them.

    broker that has it                      broker that is back
    TAIL_OFFER  numbers that it has   --->
                                      <---  TAIL_LACK   those of them that it lacks, after its
                                                        neighbours have replayed their logs
    TAIL_PIECE  a frame of these      --->  taken like messages from a link: delivered here,
                                            passed on, each once
                                      <---  TAIL_LACK   when subscribers here have room: what is
                                                        still missing, until nothing is

The offer is repeated each second until the other broker answers. Messages of the tail arrive behind
newer ones. A broker answers the offer of the origin itself with its own question (FEED_ASK,
`origin_questions`): what it takes for complete it would not ask for, and the origin would count all
of it as lost.

    body of TAIL_OFFER, TAIL_LACK   origin, (u48 first, u48 last)...
    body of TAIL_PIECE              origin, u32 the piece's number, u32 this part's index, u8 1 if
                                    the part is the last one, u48 the sequence number up to which
                                    the piece has all that was offered, then the part. Joined, the
                                    parts are u32 size of the ages, ages, PUBLISH packets
    origin                          id, u32 boot
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import (
    LAST,
    MAX_GAPS,
    Ranges,
    decode_pairs,
    encode_pairs,
    intersect,
    merge,
    roughly,
    subtract,
)
from mqttree.broker.cluster.delivery.answers import CHUNK, PART, parts_of
from mqttree.broker.cluster.delivery.link_acks import MAX_ABSENT_BROKERS
from mqttree.broker.cluster.delivery.paced_release import crowded
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.delivery.subscription_start import encode_ages
from mqttree.broker.cluster.directory.unicast_bus import BEHIND
from mqttree.broker.cluster.link.message_batch import encode_message, read_messages
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.forwarder import Forwarder
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.ports import Above
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.ports import MemberBroker

TAIL_OFFER, TAIL_LACK, TAIL_PIECE = BEHIND | 17, 18, BEHIND | 19
"""Kinds of messages to one broker."""

OFFER_INTERVAL = 1.0
"""s without an answer until the offer is repeated; and from a broker's return to the first
offer."""

PAUSE = 0.005
"""s between two checks of subscribers that have to catch up."""

ORIGIN_SIZE = 12
"""bytes of an origin."""

HEAD = ORIGIN_SIZE + 15
"""bytes ahead of the content in one part of a TAIL_PIECE."""

MAX_PIECES_BYTES = 4 * CHUNK
"""bytes of all pieces of which parts are here, beyond the largest message; if there are more, some
pieces are dropped, and offered again."""


class TailOffers:
    """Offers messages of the log tail to other brokers, and takes messages that they offer."""

    def __init__(
        self,
        node: MemberBroker,
        *,
        origins: Origins,
        forwarder: Forwarder,
        bus: UnicastBus,
        starts: SubscriptionStarts,
        above: Above,
    ) -> None:
        """`node`: this broker; `above`: the floors above delivery; `origins`, `forwarder`, `bus`,
        `starts`: the modules that it uses."""
        self._node = node
        self._counters = node.counters
        self._dispatcher = node.dispatcher
        self._origins = origins
        self._forwarder = forwarder
        self._bus = bus
        self._starts = starts
        self._above = above
        self._number = 0
        # Brokers and origins for which the tail is being read.
        self._reading: set[tuple[bytes, bytes]] = set()
        # By offering broker and origin: the number of the piece that is arriving, and its parts.
        self._parts: dict[tuple[bytes, bytes], tuple[int, list[bytes]]] = {}
        self._coming = 0  # bytes of these
        self._asked: dict[tuple[bytes, bytes], Ranges] = {}  # what is offered, by the same
        bus.receive(TAIL_OFFER, self._offer_received)
        bus.receive(TAIL_LACK, self._lack_received)
        bus.receive_over(TAIL_PIECE, self._piece_received, pieces=ORIGIN_SIZE)

    # ---------------------------------------------------------------- the broker that has them

    def tick(self, now: float) -> None:
        """Offer brokers that are back what the tail has for them. To be called once a second."""
        for broker_id, key, numbers in self._above.absent_members.to_offer(OFFER_INTERVAL, now):
            self._bus.send(broker_id, TAIL_OFFER, encode_ranges(key, numbers))

    def _lack_received(self, sender: bytes, body: bytes, now: float) -> None:
        key, lacks = decode_ranges(body)
        absent = self._above.absent_members
        if not absent.holds(sender, key):
            return
        absent.lacks(sender, key, lacks)
        piece = absent.oldest_piece(sender, key, lacks)
        if piece is None:
            absent.sent(sender, key)
        elif (sender, key) not in self._reading:
            self._reading.add((sender, key))
            top = piece.last
            piece.read(lambda entries: self._send(sender, key, lacks, entries, top))

    def _send(
        self, receiver: bytes, key: bytes, lacks: Ranges, entries: list[LogEntry] | None, top: int
    ) -> None:
        self._reading.discard((receiver, key))
        now = self._node.now
        found = parts_of(entries or (), key, lacks)
        ages = encode_ages(found, now) if found else b""
        data = b"".join((len(ages).to_bytes(4, "big"), ages, *(entry.data(now) for entry in found)))
        self._counters.log_tail_replayed += sum(entry.count for entry in found)
        self._number = self._number + 1 & 0xFFFFFFFF
        head = a2b_base64(key) + self._number.to_bytes(4, "big")
        count = max(1, -(-len(data) // PART))
        for index in range(count):
            position = index.to_bytes(4, "big") + bytes((index == count - 1,))
            part = data[index * PART : (index + 1) * PART]
            self._bus.send(receiver, TAIL_PIECE, head + position + top.to_bytes(6, "big") + part)

    # ---------------------------------------------------------------- the broker that is back

    def _offer_received(self, sender: bytes, body: bytes, now: float) -> None:
        key, offered = decode_ranges(body)
        window = self._origins.vector.get(key)
        if window is None or key in self._origins.ours:
            return  # the origin is about to be made known
        if window.feed is not None and split_key(key)[0] == sender:
            # The origin itself is asked, which tells it what is missing here. A feed that has no
            # doubt would not ask.
            if window.feed.fed:
                window.feed.owner.lose(window.feed)
            return
        if len(self._asked) < MAX_ABSENT_BROKERS or (sender, key) in self._asked:
            self._asked[sender, key] = offered
            self._ask(key, sender)

    def _ask(self, key: bytes, sender: bytes) -> None:
        """Tell the offering broker which of its messages are missing here (TAIL_LACK)."""
        window = self._origins.vector.get(key)
        offered = self._asked.get((sender, key))
        if window is None or offered is None:
            return
        missing = window.lacks
        # A feed takes messages that were lost on their way for unwanted ones.
        if window.feed is not None:
            missing = subtract(merge([*window.history, *missing]), window.feed.kept)
        lacks = roughly(intersect(offered, missing))
        if not lacks:
            del self._asked[sender, key]
            self._forget(sender, key)
        self._bus.send(sender, TAIL_LACK, encode_ranges(key, lacks), at_once=True)

    def _piece_received(self, sender: bytes, body: bytes, now: float, link: Link) -> None:
        if len(body) < HEAD:
            raise MalformedPacket("TAIL_PIECE is truncated")
        key = b2a_base64(body[:ORIGIN_SIZE], newline=False)
        number, index = (
            int.from_bytes(body[ORIGIN_SIZE:16], "big"),
            int.from_bytes(body[16:20], "big"),
        )
        if (sender, key) not in self._asked:
            return
        if self._parts.get((sender, key), (number, []))[0] != number:
            self._forget(sender, key)
        parts = self._parts.setdefault((sender, key), (number, []))[1]
        if (
            index != len(parts)
            or self._coming > self._node.config.max_packet_size + MAX_PIECES_BYTES
        ):
            self._forget(sender, key)  # it is offered again
            return
        parts.append(body[HEAD:])
        self._coming += len(body) - HEAD
        if body[20]:
            self._forget(sender, key)
            topics = self._take(link, key, b"".join(parts), now)
            # The offering broker does not have the numbers that are still missing up to there: no
            # local subscriber wanted them. They must not be asked for again.
            top = int.from_bytes(body[21:HEAD], "big")
            self._asked[sender, key] = (
                intersect(self._asked[sender, key], [(top + 1, LAST)]) if top < LAST else []
            )
            self._when_room(key, sender, topics, now)

    def _forget(self, sender: bytes, key: bytes) -> None:
        self._coming -= sum(map(len, self._parts.pop((sender, key), (0, []))[1]))

    def _take(self, link: Link, key: bytes, data: bytes, now: float) -> dict[bytes, None]:
        """Take messages as if they had come over a link. Returns their topics."""
        end = 4 + int.from_bytes(data[:4], "big")
        forwarder = self._forwarder
        self._starts.aged(data[4:end], now, holes=True)
        topics: dict[bytes, None] = {}
        for batch, sequence, message in read_messages(data[end:], now):
            choice = batch.choice
            if batch.key != key or not 0 < sequence < LAST or batch.passed or not batch.qos:
                continue
            if not forwarder.accept(key, sequence, 1, now):
                self._counters.duplicates += 1
                continue
            topics[message.topic] = None
            single = encode_message(message, key, sequence, now, choice)
            forwarder.received(link, LogEntry(key, sequence, 1, single, now), message, choice, now)
        return topics

    def _when_room(self, key: bytes, sender: bytes, topics: dict[bytes, None], now: float) -> None:
        """Ask for more when the sessions that get these topics have room."""
        node = self._node
        journal = node.journal
        full = self._dispatcher.waiting >= node.limits.hold_queued
        full |= journal.pending > node.limits.journal_backlog_bytes // 2
        if full or any(
            crowded(delivery.session, node.limits)
            for topic in topics
            for delivery in self._dispatcher.route(topic).deliveries
        ):
            node.timers.schedule(now + PAUSE, lambda at: self._when_room(key, sender, topics, at))
        else:
            self._ask(key, sender)


def encode_ranges(key: bytes, ranges: Ranges) -> bytes:
    """Encode the body of a TAIL_OFFER or a TAIL_LACK."""
    return a2b_base64(key) + encode_pairs(roughly(ranges, MAX_GAPS))


def decode_ranges(body: bytes) -> tuple[bytes, Ranges]:
    """Return the origin and the numbers of a TAIL_OFFER or a TAIL_LACK.

    Raises:
        MalformedPacket: it is truncated.
    """
    if not ORIGIN_SIZE <= len(body) <= ORIGIN_SIZE + 12 * MAX_GAPS:
        raise MalformedPacket("offer of old messages is truncated")
    return b2a_base64(body[:ORIGIN_SIZE], newline=False), decode_pairs(
        body[ORIGIN_SIZE:], "offer of old messages"
    )
