"""Messages over the tree: flooding, each at most once per broker, and replay after a repair (design sections 3 and 4).

Every broker numbers what is published on it; (origin, boot, sequence) travels with the message. A broker takes a message once,
from whichever link it comes, delivers it and passes it on over its other tree links. QoS 1, QoS 2 and retained messages stay in a
log for a while. A link that begins to forward first tells the neighbour what has been here (SEEN); the neighbour replays
from its log what is missing, in order, and only then adds the link to the live stream.

Who meets an origin delivers what is published from then on. So that nobody takes an origin's first messages, lost on the way,
for old ones, a new origin is made known (ORIGINS) over all links ahead of its messages. What is older is history: it is
fetched (WANT, DONE) when a neighbour that was cut off lacks it and can get it only through here.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from typing import TYPE_CHECKING

from broker import limits
from broker.fanout import convert_run, topic_of
from broker.link import ASK_SEEN, DONE, ORIGINS, SEEN, WANT, Link
from broker.log import Entry, MessageLog
from broker.message import Message
from broker.origin import (
    LAST,
    Vector,
    Window,
    decode_vector,
    encode_for_links,
    encode_link_publish,
    encode_vector,
    intersect,
    origin_key,
    split_key,
    subtract,
)
from broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from broker.federation import Federation
    from broker.node import Node

FORGET_ORIGIN = 3600.0
"""s; an origin unheard for so long is forgotten: its messages are long out of every log."""

QUIET = FORGET_ORIGIN / 2
"""s; an origin unheard for so long counts as quiet, and so does at once one that a neighbour only told of."""

ALONE = 10.0
"""s without having heard of any other broker, after which nothing is kept for one: long enough to find those that are there."""

FETCH_TIME = 0.5
"""s; longest wait for history: a neighbour that hangs must not keep another one from the live stream."""

RECENT = 1000
"""messages of an origin that a broker which meets it takes over at once, some hundredths of a second's work."""

ILLEGAL = frozenset((0x36, 0x37, 0x3E, 0x3F, 0x38, 0x39))
"""First bytes of a PUBLISH that MQTT forbids."""

INTRODUCTIONS = 8
"""Round trips at most until a neighbour knows all origins that are known here; it needs more only if its table is full."""


class Relay:
    """The message side of a federation."""

    def __init__(self, node: Node, federation: Federation, now: float) -> None:
        self.node = node
        self.federation = federation
        self.key = origin_key(federation.own.id, federation.own.boot)
        self.own = Window(0, now)
        self.vector: Vector = {self.key: self.own}
        self.log = MessageLog(node.counters)
        self._fetches: dict[int, tuple[set[Link], list[Callable[[float], None]]]] = {}  # -> who has to answer, who waits
        self._fetch_number = 0
        self._next_sweep = now + 1.0
        self._alone_since = now

    # ---------------------------------------------------------------- published here

    def forward(self, message: Message) -> None:
        """Pass on a message that was published here."""
        if message.topic[:1] == b"$":
            return
        node = self.node
        keep = message.qos or message.retain
        if not (keep or node.forwarding):
            return
        self.own.top = sequence = self.own.top + 1
        data = encode_for_links(message, self.key, sequence, node.now) if node.forwarding else b""
        if keep:
            self.log.append(Entry(self.key, sequence, data, message, node.now))
        if data:
            self._send(data, 1, None)

    def forward_run(self, chunk: bytes, prefix: int, size: int, version: int) -> None:
        """Pass on a run of QoS 0 packets that was published here: only its first packet says where it comes from."""
        if not self.node.forwarding:
            return
        sequence = self.own.top + 1
        self.own.top += len(chunk) // size
        rest = chunk[size:]
        if rest and version != 5:
            rest = convert_run(rest, prefix, size, 5)
        first = encode_link_publish(topic_of(chunk), chunk[prefix:size], 0, False, b"", None, self.key, sequence)
        self._send(first + rest, len(chunk) // size, None)

    def _send(self, data: bytes, count: int, source: Link | None) -> None:
        node = self.node
        for link in node.forwarding:
            if link is not source:
                conn = link.conn
                outbox = conn.outbox
                if not outbox:
                    node.dirty.append(conn)
                outbox.append(data)
                node.counters.forwarded += count
                node.counters.link_bytes_data += len(data)

    # ---------------------------------------------------------------- received

    def check(self, topic: bytes, first: int, sequence: int, count: int) -> None:
        """Refuse a PUBLISH before it is passed on: others would take it for our fault.

        Raises:
            MalformedPacket, ProtocolViolation: QoS 3, no topic name, or numbers that no broker reaches.
        """
        if first in ILLEGAL:
            raise MalformedPacket("PUBLISH with QoS 3, or DUP at QoS 0 [MQTT-3.3.1-2, MQTT-3.3.1-4]")
        if sequence < 1 or sequence + count > LAST:
            raise MalformedPacket("PUBLISH on a link with a sequence number out of range")
        if topic not in self.node.fanout.routes:
            self.node.fanout.route(topic)

    def accept(self, key: bytes, first: int, count: int, now: float, *, late: bool = True) -> int:
        """Take sequence numbers of an origin; returns `count` when all are new, 0 when none is, -1 for some.

        Not `late`: QoS 0, which is not worth more than its order; what newer messages have overtaken is dropped.
        """
        window = self.vector.get(key)
        if window is None:
            window = self._meet(key, Window(first - 1, now), now)
            self._make_known({key: window}, None)
        elif window is self.own:
            return 0
        window.heard = now
        if not late and first <= window.top:
            return 0
        return window.accept(first, count)

    def _meet(self, key: bytes, known: Window, now: float) -> Window:
        """Begin with an origin where a neighbour is. The last that was before is missed at once: after a repair somebody
        else is likely to lack it, too, and then it is here in time."""
        broker_id, boot = split_key(key)
        if len(self.vector) >= limits.MAX_ORIGINS:
            others = (k for k in self.vector if k != self.key)
            for oldest in nsmallest(limits.MAX_ORIGINS // 16, others, key=lambda k: self.vector[k].heard):
                del self.vector[oldest]  # some at a time: to find them takes a walk through all
        if boot > self.federation.own.boot and broker_id != self.federation.own.id:
            # It began after us (boot numbers are seconds where they can be): what we have not heard of it, we missed.
            window = self.vector[key] = Window(0, now)
            return window
        window = self.vector[key] = Window(known.top, now)
        window.begin = known.top
        if known.top:
            old = [(1, known.top - RECENT)] if known.top > RECENT else []
            window.history = subtract(old, known.gaps)
            window.gaps = [*intersect(known.gaps, old), (max(1, known.top - RECENT + 1), known.top)][-limits.MAX_GAPS :]
        if broker_id == self.federation.own.id:
            window.begin = LAST  # an earlier start of this very broker: its subscribers went with it
        return window

    def _make_known(self, origins: Vector, source: Link | None) -> None:
        """Tell all neighbours of origins that are new here, ahead of their messages."""
        if not origins:
            return
        body = encode_vector(origins)
        for link in self.federation.links.values():
            if link is not source and link.state == "up":
                link.add_record(ORIGINS, body)

    def origins_received(self, link: Link, body: bytes, now: float) -> None:
        """Take a neighbour's word for where origins begin that are new here."""
        self._learn(decode_vector(body, now), link, now)

    def _learn(self, seen: Vector, link: Link, now: float) -> None:
        # What nobody published goes first when the table is full, and takes nobody's place then: it would circulate for ever.
        quiet = sum(window.heard <= now - QUIET for window in self.vector.values())
        room = min(limits.MAX_ORIGINS - len(self.vector), limits.MAX_QUIET_ORIGINS - quiet)
        new = {key: window for key, window in seen.items() if key not in self.vector}
        for key in list(new)[: max(0, room)]:
            new[key] = self._meet(key, new[key], now)
            new[key].heard = now - QUIET
        self._make_known({key: new[key] for key in new if key in self.vector}, link)

    def received(self, link: Link, message: Message, key: bytes, sequence: int, data: bytes, now: float) -> None:
        """Deliver a message from a link here and pass it on, byte for byte."""
        self.node.counters.received_link += 1
        if message.qos or message.retain:
            self.log.append(Entry(key, sequence, data, message, now))
        self._send(data, 1, link)
        if sequence > self.vector[key].begin and message.topic[:1] != b"$":
            self.node.fanout.publish(message)

    def run_received(
        self, link: Link, chunk: bytes, prefix: int, size: int, key: bytes, sequence: int, now: float
    ) -> None:
        """Deliver and pass on a run of QoS 0 packets that continues what came before it on this link."""
        count = len(chunk) // size
        window = self.vector.get(key)
        if window is not None and sequence <= window.top < sequence + count - 1:
            known = window.top - sequence + 1
            self.node.counters.duplicates += known
            chunk = chunk[known * size :]
            sequence += known
            count -= known
        if not self.accept(key, sequence, count, now, late=False):
            self.node.counters.duplicates += count
            return
        node = self.node
        node.counters.received_link += count
        if len(node.forwarding) > (1 if link.live else 0):
            # Explicit again: what preceded it here need not be what preceded it on the next link.
            topic = topic_of(chunk)
            first = encode_link_publish(topic, chunk[prefix:size], 0, False, b"", None, key, sequence)
            self._send(first + chunk[size:], count, link)
        topic = topic_of(chunk)
        if topic[:1] == b"$":
            return
        route = node.fanout.route(topic)
        if node.hooks.topics:
            for start in range(0, len(chunk), size):
                payload = chunk[start + prefix : start + size]
                node.fanout.publish(Message(topic, payload, 0, False, b"", None, None))
        else:
            node.fanout.run(route, chunk, prefix, size, 5, None)

    # ---------------------------------------------------------------- repair

    def link_up(self, link: Link) -> None:
        """From now on somebody may miss something: keep a log."""
        self.node.federated = True

    def forwarding_changed(self, link: Link, forwarding: bool, now: float) -> None:
        """Take the tree's word that a link forwards, or that it does not."""
        link.forwarding = forwarding
        if forwarding:
            self.send_seen(link)
            if link.seen is not None:
                self._prepare(link, now)
            else:
                link.add_record(ASK_SEEN, b"")  # the other end may have forwarded all the time
        else:
            self._leave(link)
            link.seen = None

    def send_seen(self, link: Link) -> None:
        """Tell a neighbour what has been here."""
        link.told = True
        now = self.node.now
        if link.tell_at <= now:
            link.tell_at = now + limits.SEEN_PAUSE
            link.add_record(SEEN, encode_vector(self.vector))
        elif not link.telling:
            link.telling = True
            self.node.schedule(link.tell_at, lambda at: self._send_seen_late(link, at))

    def _send_seen_late(self, link: Link, now: float) -> None:
        link.telling = False
        if link.state == "up":
            self.send_seen(link)
            link.send_ping(now)

    def seen_received(self, link: Link, body: bytes, now: float) -> None:
        """Take what has been at a neighbour. Its word for origins that are new here is where we begin with them."""
        seen = decode_vector(body, now)
        self._learn(seen, link, now)
        link.asked = False
        if link.live:
            return  # asked for twice; the stream to it has been whole since it joined
        link.seen = seen
        if link.forwarding and not link.behind:
            if not link.told:
                self.send_seen(link)
            self._prepare(link, now)

    def _prepare(self, link: Link, now: float) -> None:
        """Join, but first make known the origins that the neighbour has not met, so that it says where it begins; and fetch
        what it lacks and was history here: that has to come before what is newer."""
        assert link.seen is not None
        strange = {key: window for key, window in self.vector.items() if key not in link.seen}
        if strange and link.introductions < INTRODUCTIONS:
            link.introductions += 1
            link.seen = None
            link.add_record(ORIGINS, encode_vector(strange))
            link.add_record(ASK_SEEN, b"")
            return
        link.introductions = 0
        link.fetching += 1 + len(self._fetches)  # what is being fetched for others is missing for this one, too
        for _, waiting in self._fetches.values():
            waiting.append(lambda at: self._fetched(link, at))
        self._fetch(link.seen, link, lambda at: self._fetched(link, at), now)

    def _fetched(self, link: Link, now: float) -> None:
        link.fetching -= 1
        if not link.fetching and link.seen is not None and link.forwarding and not link.behind:
            self._join(link, now)

    def _fetch(self, seen: Vector, source: Link, then: Callable[[float], None], now: float) -> None:
        """Ask the other neighbours for the history that `source` lacks; `then` when all have answered, or took too long."""
        wanted: Vector = {}
        for key, theirs in seen.items():
            window = self.vector.get(key)
            if window is not None and (ranges := window.want(theirs)):
                wanted[key] = Window(LAST, 0.0)
                wanted[key].gaps = ranges
        asked = [link for link in self.federation.links.values() if link.state == "up" and link is not source]
        if not wanted or not asked:
            then(now)
            return
        number = self._fetch_number = self._fetch_number + 1 & 0xFFFFFFFF
        self._fetches[number] = (set(asked), [then])
        self.node.schedule(now + FETCH_TIME, lambda at: self._answered(number, None, at))
        body = number.to_bytes(4, "big") + encode_vector(wanted)
        for link in asked:
            link.add_record(WANT, body)

    def _answered(self, number: int, link: Link | None, now: float) -> None:
        """Note that one who was asked has answered; None: that time is up."""
        fetch = self._fetches.get(number)
        if fetch is not None:
            asked, waiting = fetch
            if link is not None:
                asked.discard(link)
            if link is None or not asked:
                del self._fetches[number]
                for then in waiting:
                    then(now)

    def want_received(self, link: Link, body: bytes, now: float) -> None:
        """Replay what a neighbour needs for somebody behind it, and say when that is done."""
        number = body[:4]
        wanted = decode_vector(body[4:], now)

        def answer(at: float) -> None:
            if link.state == "up":
                self._replay(link, wanted, at)
                link.send_behind(DONE, number)

        self._fetch(wanted, link, answer, now)

    def done_received(self, link: Link, body: bytes, now: float) -> None:
        """Take the answer to a WANT: what it brings has come before it."""
        self._answered(int.from_bytes(body[:4], "big"), link, now)

    def _join(self, link: Link, now: float) -> None:
        """Replay what the neighbour lacks, then let it into the live stream."""
        assert link.seen is not None
        self._replay(link, link.seen, now)
        link.seen = None
        if not link.live:
            link.live = True
            self._refresh()

    def _replay(self, link: Link, seen: Vector, now: float) -> None:
        for entry in self.log.missed(seen, now):
            data = entry.data(now)
            link.replayed += len(data)
            if link.replayed > limits.MAX_REPLAY:
                self.node.schedule(now, link.asked_too_much)  # not from here: we may be in the middle of another link's packet
                return
            link.conn.send(data)
            self.node.counters.replayed += 1
            self.node.counters.link_bytes_data += len(data)

    def _leave(self, link: Link) -> None:
        if link.live:
            link.live = False
            self._refresh()

    def _refresh(self) -> None:
        self.node.forwarding = [link for link in self.federation.links.values() if link.live]

    def link_down(self, link: Link) -> None:
        """A link is gone."""
        link.forwarding = False
        self._leave(link)
        for number in [n for n, (asked, _) in self._fetches.items() if link in asked]:
            self._answered(number, link, self.node.now)

    def link_behind(self, link: Link) -> None:
        """A link's queue overflowed: out of the live stream."""
        self._leave(link)

    def link_caught_up(self, link: Link) -> None:
        """It drained: ask where the neighbour is, to go on from there."""
        if link.forwarding and not link.asked:
            link.asked = True
            link.add_record(ASK_SEEN, b"")

    def tick(self, now: float) -> None:
        """Forget what is too old, once a second."""
        if now < self._next_sweep:
            return
        self._next_sweep = now + 1.0
        if self.federation.links or self.federation.handshakes or self.federation.membership.members(now):
            self._alone_since = now
            self.node.federated = True
        elif self._alone_since + ALONE < now:
            self.node.federated = False
        self.log.forget_old(now)
        for link in self.federation.links.values():
            link.replayed = max(0, link.replayed - limits.LOG_BYTES)
        for key in [k for k, w in self.vector.items() if w.heard + FORGET_ORIGIN < now and k != self.key]:
            del self.vector[key]
