"""Messages that are pulled from other brokers than their origin, which is gone or no longer has
them (docs/decisions/0013, 0031).

    neighbours       messages of an origin that is gone, or that left its log: for subscribers here,
                     and for brokers behind a link that joins
    a log's tail     messages for which no broker asks are offered to a broker that was away, once
                     it is back: by the broker that published them; and messages that were under way
                     on a link that was lost, by the broker that sent them

    broker that has them                    broker that lacks them
    OFFER  numbers in its tail        --->
                                      <---  PULL  those of them that it lacks, after its neighbours
                                                  have replayed their logs
    ENTRIES_PIECE  some of these      --->  taken like messages from a link: delivered here, passed
                                            on, each once
                                      <---  PULL  when subscribers here have room: what is still
                                                  missing, until the answer says that it is all

The offer is repeated each second until the other broker answers. A broker answers the offer of the
origin itself with a question of the feed (`origin_questions`): what it takes for complete it would
not ask for, and the origin would count all of it as lost. What arrives so is behind newer messages.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import (
    MAX_GAPS,
    Ranges,
    decode_pairs,
    encode_pairs,
    intersect,
    merge,
    roughly,
    subtract,
)
from mqttree.broker.cluster.delivery.ordered_feed import Question
from mqttree.broker.cluster.delivery.paced_release import crowded
from mqttree.broker.cluster.delivery.pull_messages import NO_TIMES, PULL, EntriesPart, Pull
from mqttree.broker.cluster.directory.unicast_bus import BEHIND
from mqttree.broker.cluster.link.message_batch import MessageBatch
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.varint import read_length

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.ports import Above
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.routing.link_state import LinkStateDatabase

OFFER = BEHIND | 17
"""Kind of a message to one broker: origin, (u48 first, u48 last)..."""

OFFER_INTERVAL, MAX_PAUSE_S = 1.0, 10.0
"""s without an answer until an offer or a question is repeated, a question twice as late each time;
and from a broker's return to the first offer."""

ROOM_CHECK_INTERVAL_S = 0.005
"""s between two checks of subscribers that have to catch up."""

ORIGIN_SIZE = 12
"""bytes of an origin."""

MAX_OPEN = 4096
"""questions to other brokers than the origin; of more origins nothing is asked."""

Receiver = Callable[["Link", bytes, int, float], None]
"""Takes a batch as if it came over a link: link, the batch, where it begins behind its length, now
(s)."""


Place = tuple[bytes, bytes, bool]
"""As of `OpenPull.place`."""


class OpenPull(Question):
    """What the broker `broker_id` is asked for of the origin `key`: `ranges`; over the `link` to
    it, if it is asked as a neighbour, for brokers behind this one, too."""

    __slots__ = ("again", "broker_id", "key", "link", "number", "pause", "ranges")

    def __init__(self, broker_id: bytes, key: bytes, ranges: Ranges, link: Link | None) -> None:
        super().__init__([], 0.0)
        self.broker_id, self.key, self.link, self.ranges = broker_id, key, link, ranges
        self.number = 0  # of the last question; 0: it has been answered
        self.again, self.pause = inf, OFFER_INTERVAL  # s

    @property
    def place(self) -> Place:
        """Return the broker, the origin, and whether it is asked as a neighbour."""
        return self.broker_id, self.key, self.link is not None


class Pulls:
    """Offers messages of the log tail to other brokers, and pulls messages from those that have
    them."""

    def __init__(
        self,
        node: MemberBroker,
        *,
        origins: Origins,
        links: Mapping[bytes, Link],
        database: LinkStateDatabase,
        bus: UnicastBus,
        starts: SubscriptionStarts,
        above: Above,
        received: Receiver,
    ) -> None:
        """`node`: this broker; `links`: those that are up, by the neighbour's id; `above`: the
        floors above delivery; `received`: takes the messages; `origins`, `database`, `bus`,
        `starts`: the modules that it uses."""
        self._node = node
        self._dispatcher = node.dispatcher
        self._origins = origins
        self._links = links
        self._database = database
        self._bus = bus
        self._starts = starts
        self._above = above
        self._received = received
        self._number = 0
        self.open: dict[Place, OpenPull] = {}
        bus.receive(OFFER, self._offer_received)

    # ---------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Offer brokers that are back what the tail has for them, and ask again those that do not
        answer. To be called once a second."""
        for broker_id, key, numbers in self._above.absent_members.to_offer(OFFER_INTERVAL, now):
            self._bus.send(broker_id, OFFER, encode_offer(key, numbers))
        for pull in list(self.open.values()):
            if now >= pull.again:
                pull.pause = min(2 * pull.pause, MAX_PAUSE_S)
                # Longer, no log has them. An answer that could not be read has no number any more.
                late = now >= pull.at + self._node.limits.log_age_s
                if late or not pull.number or not (pull.link is None or pull.link.up):
                    del self.open[pull.place]
                else:
                    self._send(pull, now)

    # ---------------------------------------------------------------- what is asked for

    def _offer_received(self, sender: bytes, body: bytes, now: float) -> None:
        key, offered = decode_offer(body)
        window = self._origins.vector.get(key)
        if window is None or key in self._origins.ours:
            return  # the origin is about to be made known
        if window.feed is not None and split_key(key)[0] == sender:
            # The origin itself is asked, which tells it what is missing here. A feed that has no
            # doubt would not ask.
            if window.feed.fed:
                window.feed.owner.lose(window.feed)
        elif (sender, key, False) not in self.open and len(self.open) < MAX_OPEN:
            pull = OpenPull(sender, key, offered, None)
            self.open[pull.place] = pull
            self._ask(pull, now, always=True)

    def want(self, key: bytes, ranges: Ranges, now: float, source: Link | None = None) -> None:
        """Ask all neighbours but `source` for those numbers `ranges` of the origin `key` that have
        not been here; they ask theirs. `now`: s."""
        for broker_id, link in list(self._links.items()):
            if ranges and link is not source and link.up and len(self.open) < MAX_OPEN:
                asked = OpenPull(broker_id, key, [], link)
                pull = self.open.setdefault(asked.place, asked)
                pull.ranges = merge([*pull.ranges, *ranges])
                if not pull.number or pull.link is not link:
                    pull.link = link
                    self._ask(pull, now)

    def wants(self, keys: Mapping[bytes, Ranges]) -> bool:
        """Whether a neighbour has not sent yet what it was asked for of one of these origins."""
        return any(behind and key in keys for _, key, behind in self.open)

    def _ask(self, pull: OpenPull, now: float, *, always: bool = False) -> None:
        """Ask for what is still missing, if anything is; a broker that has a tail hears (`always`)
        that nothing is."""
        window = self._origins.vector.get(pull.key)
        missing = [] if window is None else merge([*window.history, *window.lacks])
        # A feed takes messages that were lost on their way for unwanted ones.
        if window is not None and window.feed is not None:
            missing = subtract(missing, window.feed.kept)
        pull.asked = roughly(intersect(pull.ranges, missing))
        if pull.asked or always:
            pull.number, pull.at, pull.pause = self.next_number(), now, OFFER_INTERVAL
            self._send(pull, now)
        else:
            del self.open[pull.place]

    def _send(self, pull: OpenPull, now: float) -> None:
        pull.again = now + pull.pause
        self.send(pull.broker_id, pull.key, pull.number, NO_TIMES, pull.asked, pull.link)

    # ---------------------------------------------------------------- questions

    def next_number(self) -> int:
        """Return a number for a question, which is not 0."""
        self._number = self._number % 0xFFFFFFFF + 1
        return self._number

    def send(
        self,
        broker_id: bytes,
        key: bytes,
        number: int,
        times: bytes,
        lacks: Ranges,
        link: Link | None = None,
    ) -> None:
        """Ask the broker `broker_id` for the numbers `lacks` of the origin `key`: for brokers
        behind this one, too, if it is a neighbour, at the end of `link`. `number`: of the question;
        `times`: when subscriptions began."""
        state = self._database.own_stamp()[8:]
        body = Pull(state, number, key, link is not None, times, lacks).encode()
        self._bus.send(broker_id, PULL, body, at_once=True, link=link)

    # ---------------------------------------------------------------- answers

    def find(self, sender: bytes, number: int) -> OpenPull | None:
        """Return what the question with this `number` to the broker `sender` asks for; None: there
        is none."""
        asked = self.open.values()
        return next((p for p in asked if p.number == number and p.broker_id == sender), None)

    def part_received(self, pull: OpenPull, part: EntriesPart, now: float, link: Link) -> None:
        """Go on with `pull` as a `part` of the answer has come over `link` at `now` (s)."""
        pull.again = now + pull.pause
        if part.last:
            data = pull.take_data()
            # What the answer leaves out up to there, the other broker does not have, or nobody
            # wanted it. It must not be asked for again.
            settled = intersect(pull.asked, [(1, part.top)]) if part.more else pull.asked
            pull.ranges = subtract(pull.ranges, settled)
            pull.number = 0
            topics = self._take(link, pull.key, data, now)
            self._when_room(pull, topics, now, more=part.more)

    def _take(self, link: Link, key: bytes, data: bytes, now: float) -> dict[bytes, None]:
        """Take messages as if they had come over a link. Returns their topics."""
        at = 4 + int.from_bytes(data[:4], "big")
        if at > 4:
            self._starts.ages_received(link, b"\0" + data[4:at], now, holes=True)
        topics: dict[bytes, None] = {}
        while at < len(data):
            length, body = read_length(data, at + 1)
            if body < 0 or body + length > len(data):
                raise MalformedPacket("messages of another broker are truncated")
            batch = MessageBatch.read(data[at : body + length])
            if batch.key == key and (batch.qos or batch.stamp is not None):
                topics.update(dict.fromkeys(batch.topics()))
                self._received(link, data[at : body + length], body - at, now)
            at = body + length
        return topics

    def _when_room(
        self, pull: OpenPull, topics: dict[bytes, None], now: float, *, more: bool
    ) -> None:
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
            pull.again = inf
            node.timers.schedule(
                now + ROOM_CHECK_INTERVAL_S,
                lambda at: self._when_room(pull, topics, at, more=more),
            )
        elif self.open.get(pull.place) is pull and not pull.number:
            self._ask(pull, now, always=more)


def encode_offer(key: bytes, ranges: Ranges) -> bytes:
    """Encode the body of an OFFER."""
    return a2b_base64(key) + encode_pairs(roughly(ranges, MAX_GAPS))


def decode_offer(body: bytes) -> tuple[bytes, Ranges]:
    """Return the origin and the numbers of an OFFER.

    Raises:
        MalformedPacket: it is truncated.
    """
    if not ORIGIN_SIZE <= len(body) <= ORIGIN_SIZE + 12 * MAX_GAPS:
        raise MalformedPacket("OFFER is truncated")
    return b2a_base64(body[:ORIGIN_SIZE], newline=False), decode_pairs(body[ORIGIN_SIZE:], "OFFER")
