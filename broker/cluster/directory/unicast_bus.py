"""Messages to one broker, wherever it is: they go along the tree, hop by hop, in order, and are
dropped where the path ends.

    record ROUTED  id of the receiver, of the sender, u8 hops, u8 kind, body
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.link.control_records import ROUTED
from mqttree.broker.cluster.link.link import Handler, Link
from mqttree.broker.cluster.ports import MemberBroker
from mqttree.broker.wire.errors import MalformedPacket, WireError

BEHIND = 0x80
"""Kinds of messages with this bit do not overtake the messages that clients published before
them."""

LIVE = 0x40
"""Kinds with this bit take only live links."""

KNOWN = 0x20
"""Kinds with this bit begin with the state of the receiver's listing (12 bytes) that each broker on
the path has to know."""

SHORT = 1024
"""bytes; longer messages are not added to the queue of a slow link."""

FIRST = bytes(4)
"""Number of a first piece."""

MAX_WHOLES = 10_000
"""messages in pieces that are remembered while they pass through here; if there are more, the rest
of some may have to be asked for again."""

OWN_WORK = 500
"""Steps of a turn that a message of this broker to itself costs, and one for each byte: most are
about a session."""

MAX_HOPS = 64
"""brokers on a path; more are a loop."""

Receiver = Callable[[bytes, bytes, float], None]
"""Takes a message of another broker to this one: id of the sender, body, now (s). Raises
MalformedPacket."""

LinkReceiver = Callable[[bytes, bytes, float, Link], None]
"""The same, and the link over which it came."""


class UnicastPaths(Protocol):
    """What the bus asks of the routing strategy."""

    @property
    def source_rooted(self) -> bool:
        """Whether messages take source-rooted trees now, and not the spanning tree."""

    def live_hop(self, message: bytes) -> Link | None:
        """Return the link for a message to one broker that has to take the same path as the
        messages that its sender publishes; None: it is dropped."""


class UnicastBus:
    """Sends messages to one broker each, passes on those of others, and hands out those to this
    broker."""

    strategy: UnicastPaths
    """Set before any message is sent."""

    on_answer: Callable[[bytes], None]
    """Is told the sender of each KNOWN message that is sent or passed on; set by gap recovery."""

    def __init__(self, node: MemberBroker, directory: LinkStateDirectory) -> None:
        """`node`: this broker; `directory`: knows the path to each broker."""
        self._node = node
        self._limits = node.limits
        self._directory = directory
        self._turns = node.turns
        self._receivers: dict[int, LinkReceiver] = {}
        # Those that take messages of this broker to itself, too.
        self._own: dict[int, Receiver] = {}
        # By kind: where the number of the whole is, ahead of that of the piece.
        self._piece_at: dict[int, int] = {}
        # Receiver, sender, kind -> number of the last, was it passed on.
        self._passed: dict[bytes, tuple[bytes, bool]] = {}
        self.records: dict[int, Handler] = {ROUTED: self._routed_received}

    def receive(self, kind: int, receiver: Receiver) -> None:
        """Give messages to this broker of this `kind` (0 to 255) to `receiver`."""
        self._own[kind] = receiver
        self.receive_over(kind, lambda sender, body, now, link: receiver(sender, body, now))

    def receive_over(self, kind: int, receiver: LinkReceiver, *, pieces: int | None = None) -> None:
        """Give messages of this `kind` to `receiver`, which also gets the link over which they
        came. `pieces`: they come in pieces, and at this position the body says in 4 bytes each to
        which message a piece belongs, and which one it is."""
        self._receivers[kind] = receiver
        if pieces is not None:
            self._piece_at[kind] = 18 + pieces

    def send(
        self,
        broker_id: bytes,
        kind: int,
        body: bytes,
        *,
        at_once: bool = False,
        link: Link | None = None,
    ) -> bool:
        """Send `body` as a message of this `kind` to the broker `broker_id`: `at_once`, or with the
        next PINGREQ; over the `link` to a neighbour, None: over the tree. To this broker itself it
        comes in a later turn. Returns False if no path to it is known."""
        if broker_id == self._directory.own_id:
            self._turns.later(lambda now: self._take_own(kind, body, now))
            return True
        message = broker_id + self._directory.own_id + bytes((0, kind)) + body
        return self._route(message, at_once=at_once, link=link)

    def _take_own(self, kind: int, body: bytes, now: float) -> None:
        self._turns.work += OWN_WORK + len(body)
        self._own[kind](self._directory.own_id, body, now)

    def send_over(self, link: Link, broker_id: bytes, kind: int, body: bytes) -> None:
        """Send `body` as a message of this `kind` to the broker `broker_id`, over a `link` that is
        about to be live, behind its messages."""
        link.send_behind(ROUTED, broker_id + self._directory.own_id + bytes((0, kind)) + body)

    def _routed_received(self, link: Link, body: bytes, now: float) -> None:
        if len(body) < 18:
            raise MalformedPacket("message to one broker is truncated")
        if body[:8] != self._directory.own_id:
            if body[16] < MAX_HOPS:
                self._route(body[:16] + bytes((body[16] + 1,)) + body[17:])
            return
        receiver = self._receivers.get(body[17])
        if receiver is not None:
            try:
                receiver(body[8:16], body[18:], now, link)
            except WireError as error:  # the neighbour that passed it on is not at fault
                self._node.counters.routed_dropped += 1
                sender = body[8:16].hex()
                text = f"broker {sender}: {error.message}; dropped"
                self._node.log_limit.line("warning", "garbage from a broker", link.conn.peer, text)

    def _route(self, message: bytes, *, at_once: bool = False, link: Link | None = None) -> bool:
        kind = message[17]
        hops = self.strategy
        if link is None:
            link = hops.live_hop(message) if kind & LIVE else self._directory.link_to(message[:8])
        if link is None or not link.up:
            self._node.counters.routed_dropped += 1
            return False
        if kind & LIVE and not (link.live or hops.source_rooted):
            return False
        if kind & BEHIND and not self._has_room(link, message):
            self._node.counters.routed_dropped += 1
            return False
        if kind & KNOWN:
            receiver, database = message[:8], self._directory.database
            # Filters of a broker that the spanning tree has lost are not used yet.
            if database.via(receiver) is None or database.state(receiver) < message[18:30]:
                return False
            self.on_answer(message[8:16])
        if kind & BEHIND:
            link.send_behind(ROUTED, message)
        else:
            link.add_record(ROUTED, message)
            self._directory.settle_again(at_once=at_once)
        return True

    def _has_room(self, link: Link, message: bytes) -> bool:
        """Whether a message is added to the queue of a link. For a message in pieces the first
        piece decides: a large one fills the queue of a slow link itself, and if its last pieces
        were dropped, it would be asked for, and sent, again and again."""
        waiting = link.conn.backlog_bytes
        if waiting > max(self._limits.link_kept_bytes, self._limits.pieces_backlog):
            return False
        room = waiting <= self._limits.pieces_backlog
        at = self._piece_at.get(message[17])
        if at is None:
            return room or len(message) <= SHORT
        whose, number = message[:16] + message[17:18], message[at : at + 4]
        known = self._passed.get(whose)
        if message[at + 4 : at + 8] == FIRST or known is None or known[0] != number:
            if len(self._passed) >= MAX_WHOLES:
                self._passed.clear()
            self._passed[whose] = (number, room)
            return room
        return known[1]
