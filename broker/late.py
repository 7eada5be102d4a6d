"""With flooding nobody asks an origin for what is missing: who published it offers a broker that was away, once it is back,
what has left the log for its tail (docs/decisions/0031).

    origin                                  broker that is back
    OFFER  numbers that the tail has  --->
                                      <---  LACK   those of them that it lacks, after its neighbours have replayed their logs
    PIECE  a frame of these           --->  taken like messages from a link: delivered here, passed on, each once
                                      <---  LACK   when subscribers here have room: what is still missing, until nothing is

The origin offers again each second until it hears something. It comes behind what is newer.

    body of OFFER, LACK   u32 boot, (u48 first, u48 last)...
    body of PIECE         u32 boot, u32 number of it, u32 index, u8 last, a part of (u32 size of ages, ages, PUBLISH packets)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import limits
from broker.answers import CHUNK, PART, current, parts_of
from broker.listings import BEHIND
from broker.log import Entry, read_link_packets
from broker.origin import LAST, Ranges, encode_for_links, intersect, merge, origin_key, roughly, split_key
from broker.positions import encode_ages
from broker.release import crowded
from broker.sequence_set import decode_pairs, encode_pairs
from broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from broker.federation import Federation
    from broker.link import Link
    from broker.node import Node

OFFER, LACK, PIECE = 17, 18, BEHIND | 19
"""Kinds of messages to one broker."""

AGAIN = 1.0
"""s without an answer after which is offered again; and after a broker is back until it is for the first time."""

PAUSE = 0.005
"""s between two looks at subscribers that have to catch up."""

LONGEST = 4 * CHUNK
"""bytes of all pieces that are coming, beyond the largest message; of more, some are offered again."""


class Late:
    """Both ends of it."""

    __slots__ = ("_asked", "_coming", "_federation", "_node", "_number", "_parts", "_reading")

    def __init__(self, node: Node, federation: Federation) -> None:
        self._node = node
        self._federation = federation
        self._number = 0
        self._reading: set[tuple[bytes, bytes]] = set()  # brokers and origins for which the tail is being read
        self._parts: dict[bytes, tuple[int, list[bytes]]] = {}  # origin -> number of the piece that comes, what has come of it
        self._coming = 0  # bytes of these
        self._asked: dict[bytes, Ranges] = {}  # origin -> what it offers
        federation.listings.receive(OFFER, self._offer_received)
        federation.listings.receive(LACK, self._lack_received)
        federation.listings.receive(PIECE, self._piece_received, pieces=4)

    # ---------------------------------------------------------------- the origin

    def tick(self, now: float) -> None:
        """Once a second: offer what is in the tail for brokers that are back."""
        absents = self._federation.absents
        if not absents.absent or self._federation.streams.active:
            return
        for broker_id, absent in absents.absent.items():
            if absent.back is None or now < absent.back + AGAIN or now < absent.asked_at + AGAIN:
                continue
            left = absents.tail.left(broker_id)
            for key in self._federation.relay.ours & {*left, *absent.dropped}:
                numbers = [(part.first, part.last) for part in left.get(key, ())]
                numbers += [(first, last) for first, last, _ in absent.dropped.get(key, ())]
                if numbers and absent.lacking.get(key) != []:
                    self._federation.listings.send(broker_id, OFFER, encode_ranges(key, merge(numbers)))

    def _lack_received(self, sender: bytes, body: bytes, now: float) -> None:
        boot, lacks = decode_ranges(body)
        key = origin_key(self._federation.own.id, boot)
        absents = self._federation.absents
        if key not in self._federation.relay.ours:
            return
        absents.lacks(sender, key, lacks)
        frame = absents.tail.first(sender, key, lacks)
        if frame is None:
            absents.sent(sender, key)
        elif (sender, key) not in self._reading:
            self._reading.add((sender, key))
            absents.tail.read(frame, lambda entries: self._send(sender, key, lacks, entries))

    def _send(self, receiver: bytes, key: bytes, lacks: Ranges, entries: list[Entry] | None) -> None:
        self._reading.discard((receiver, key))
        now = self._node.now
        found = parts_of(entries or (), key, lacks)
        ages = encode_ages(found, now) if found else b""
        data = b"".join((len(ages).to_bytes(4, "big"), ages, *(current(entry, now) for entry in found)))
        self._node.counters.tail_replayed += sum(entry.count for entry in found)
        self._number = self._number + 1 & 0xFFFFFFFF
        head = split_key(key)[1].to_bytes(4, "big") + self._number.to_bytes(4, "big")
        count = max(1, -(-len(data) // PART))
        for index in range(count):
            told = head + index.to_bytes(4, "big") + bytes((index == count - 1,))
            self._federation.listings.send(receiver, PIECE, told + data[index * PART : (index + 1) * PART])

    # ---------------------------------------------------------------- the broker that is back

    def _offer_received(self, sender: bytes, body: bytes, now: float) -> None:
        boot, offered = decode_ranges(body)
        key = origin_key(sender, boot)
        if key not in self._federation.relay.vector or self._federation.streams.active:
            return  # it is about to be known, or asked
        self._asked[key] = offered
        self._ask(key, sender, now)

    def _ask(self, key: bytes, sender: bytes, now: float) -> None:
        """Tell an origin what is missing here of what it offers."""
        window = self._federation.relay.vector.get(key)
        offered = self._asked.get(key)
        if window is None or offered is None:
            return
        lacks = roughly(intersect(offered, window.lacks))
        if not lacks:
            del self._asked[key]
            self._forget(key)
        self._federation.listings.send(sender, LACK, encode_ranges(key, lacks))
        self._federation.hurry(now)

    def _piece_received(self, sender: bytes, body: bytes, now: float) -> None:
        if len(body) < 13:
            raise MalformedPacket("old messages are truncated")
        key = origin_key(sender, int.from_bytes(body[:4], "big"))
        number, index = int.from_bytes(body[4:8], "big"), int.from_bytes(body[8:12], "big")
        link = self._federation.listings.arriving
        if key not in self._asked or link is None:
            return
        if self._parts.get(key, (number, []))[0] != number:
            self._forget(key)
        parts = self._parts.setdefault(key, (number, []))[1]
        if index != len(parts) or self._coming > self._node.config.max_packet_size + LONGEST:
            self._forget(key)  # it is offered again
            return
        parts.append(body[13:])
        self._coming += len(body) - 13
        if body[12]:
            self._forget(key)
            topics = self._take(link, key, b"".join(parts), now)
            self._when_room(key, sender, topics, now)

    def _forget(self, key: bytes) -> None:
        self._coming -= sum(map(len, self._parts.pop(key, (0, []))[1]))

    def _take(self, link: Link, key: bytes, data: bytes, now: float) -> set[bytes]:
        """Take messages as if they had come over a link; returns their topics."""
        end = 4 + int.from_bytes(data[:4], "big")
        relay = self._federation.relay
        self._federation.positions.aged(data[4:end], now, holes=True)
        topics = set()
        for origin, sequence, message, choice, alone in read_link_packets(data[end:], now):
            if origin != key or not 0 < sequence < LAST or alone or not message.qos:
                continue
            if not relay.accept(key, sequence, 1, now):
                self._node.counters.duplicates += 1
                continue
            topics.add(message.topic)
            told = b"" if choice is None else choice.encode()
            relay.received(link, message, key, sequence, encode_for_links(message, key, sequence, now, told), now, choice)
        return topics

    def _when_room(self, key: bytes, sender: bytes, topics: set[bytes], now: float) -> None:
        """Ask for more when the sessions that got this have room."""
        node = self._node
        journal = node.durability
        full = node.fanout.waiting >= limits.HOLD_QUEUED
        full |= journal is not None and journal.pending > limits.JOURNAL_BACKLOG_BYTES // 2
        if full or any(crowded(delivery.session) for topic in topics for delivery in node.fanout.route(topic).deliveries):
            node.schedule(now + PAUSE, lambda at: self._when_room(key, sender, topics, at))
        else:
            self._ask(key, sender, now)


def encode_ranges(key: bytes, ranges: Ranges) -> bytes:
    """Return an OFFER or a LACK."""
    return split_key(key)[1].to_bytes(4, "big") + encode_pairs(roughly(ranges, limits.MAX_GAPS))


def decode_ranges(body: bytes) -> tuple[int, Ranges]:
    """Return the boot number and the numbers of an OFFER or a LACK. Raises MalformedPacket."""
    if not 4 <= len(body) <= 4 + 12 * limits.MAX_GAPS:
        raise MalformedPacket("offer of old messages is truncated")
    return int.from_bytes(body[:4], "big"), decode_pairs(body[4:], "offer of old messages")
