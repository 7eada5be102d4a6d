"""Messages of the last seconds for a client whose broker died, at the broker where it goes on
(docs/decisions/0052).

The dead broker had the session. What was published for it shortly before and after the death waits
at the brokers where it was published, for the dead broker. The client has a new session here, and
its subscriptions begin when they are made. It asks for what is missing, once its subscriptions are
granted:

    client   PUBLISH $mqttree/replay {"seconds": s, "had": ...}  ->  this broker
    this broker   RECENT, filters of the session     ->  each broker that can be reached
                  <- RECENT_PART, the messages of its replay log that were published there
    client   <- those that are older than its subscriptions, then {"replayed": n, "complete": ...}

Each replayed message has a User Property `mqttree-replayed` with its origin and number. Only the
client knows what it has had. It may say so, by a digest of each message: these are left out, and
the answer says which digests that were. What comes all the same it drops itself.

Invariants: each origin answers for what was published there, and nothing else. A message that a
subscription gets by itself (`Subscription.gets`) is not replayed, and one that was replayed counts
as delivered when an older session is merged (`SessionHistory.lacks`). The question is asked when
all brokers know the filters: so each message is older than the subscriptions, or for them.
"""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.base.rate_limit import RateLimits
from mqttree.broker.cluster.delivery.replay_log import wanted_parts
from mqttree.broker.cluster.delivery.subscription_start import starts_of
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.cluster.link.message_batch import read_messages
from mqttree.broker.cluster.sessions.replay_messages import (
    CUT,
    LAST,
    MAX_FILTERS,
    MAX_MS,
    RECENT,
    RECENT_PART,
    encode_parts,
    encode_recent,
    read_part,
    read_recent,
)
from mqttree.broker.core.message import Message
from mqttree.broker.core.responses import Response, respond
from mqttree.broker.core.route import Delivery
from mqttree.broker.core.wildcard_forms import WildcardForms
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.strings import is_own
from mqttree.routing.topic_filter import SHARE_PREFIX

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.base.turns import Turns
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.replay_log import ReplayLog
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.ports import MemberBroker, Reporting
    from mqttree.broker.cluster.sessions.session_history import SessionHistory
    from mqttree.broker.core.retained_store import RetainedStore
    from mqttree.broker.core.session import Session
    from mqttree.broker.core.start_point import SubscriptionStart
    from mqttree.routing.link_state import LinkStateDatabase

WAIT_S: Final = 0.7
"""s for the answers of all brokers: the client is to be served again within a second."""

MAX_OPEN: Final = 1000
"""questions of clients whose answers are waited for."""

MAX_BYTES: Final = 4 * 1024 * 1024
"""bytes of messages in one answer: of more, the older ones are left out."""

MAX_COLLECTED: Final = 64 * 1024 * 1024
"""bytes of all answers that are waited for; answers beyond count as not come."""

PER_CLIENT: Final = 2.0
"""questions a second of one client: one for each connection that goes on elsewhere."""

MAX_HAD: Final = 10_000
"""messages that a client says it has had."""

DIGEST: Final = 8
"""bytes of the digest of a message."""

MARK: Final = b"\x26\x00\x10mqttree-replayed"
"""How the User Property of a replayed message begins."""


class _Question:
    """A client that waits for the messages of the last seconds."""

    __slots__ = ("complete", "had", "messages", "parts", "response", "session", "timer", "waiting")

    def __init__(
        self, session: Session, response: Response, had: Counter[bytes] | None, timer: Timer
    ) -> None:
        self.session = session
        self.had = had
        """Digests of messages that the client has had, None: it does not say."""
        self.response = response
        self.timer = timer
        self.waiting: set[bytes] = set()
        """Brokers that have not answered."""
        self.parts: dict[bytes, list[bytes]] = {}
        """Pieces of their answers, in order."""
        self.messages: dict[tuple[bytes, int], Message] = {}
        """By origin and number."""
        self.complete = True


class SessionReplay:
    """Asks other brokers for messages of the last seconds, and answers their questions."""

    def __init__(
        self,
        node: MemberBroker,
        *,
        turns: Turns,
        retained: RetainedStore,
        database: LinkStateDatabase,
        bus: UnicastBus,
        origins: Origins,
        log: ReplayLog,
        history: SessionHistory,
        report: Reporting,
    ) -> None:
        """`node`: this broker; `turns`: what it does in pieces; `retained`: its retained messages;
        `database`: which brokers can be reached; `bus`: carries questions; `origins`: this
        broker's own key; `log`: the messages of the last minutes; `history`: notes what sessions
        get from logs; `report`: counts."""
        self._node = node
        self._turns = turns
        self._retained = retained
        self._database = database
        self._bus = bus
        self._origins = origins
        self._log = log
        self._history = history
        self._report = report
        self._number = 0
        self._open: dict[int, _Question] = {}
        self._collected = 0  # bytes of parts
        self._limits: RateLimits = RateLimits(PER_CLIENT)
        bus.receive(RECENT, self._recent_received)
        bus.receive(RECENT_PART, self._part_received, pieces=0)

    @property
    def arriving(self) -> int:
        """Bytes of answers that have arrived in part."""
        return self._collected

    # ---------------------------------------------------------------- the client's broker

    def request(self, session: Session, message: Message, properties: dict[int, Any]) -> int:
        """Take a question that a client has published (`message`), and return the Reason Code of
        its acknowledgement. All goes to `session` alone. `properties`: of the PUBLISH."""
        response = Response.of(session, properties)
        if response is None:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        self._report.count("session_replays")
        filters = [
            name
            for name, subscription in session.subscriptions.items()
            if subscription.qos and not name.startswith(SHARE_PREFIX)
        ]
        try:
            ms, had = _read_question(message.payload)
        except ValueError as error:
            respond(response, 400, {"error": str(error)})
            return ReasonCode.SUCCESS
        too_many = len(filters) > MAX_FILTERS or len(self._open) >= MAX_OPEN
        if too_many or not self._limits.take(session.client_id, self._node.now):
            respond(response, 429, {"error": "too many questions, or filters"})
            return ReasonCode.QUOTA_EXCEEDED
        self._number = number = self._number % 0xFFFFFFFF + 1
        timer = self._node.timers.schedule(self._node.now + WAIT_S, lambda now: self._late(number))
        question = self._open[number] = _Question(session, response, had, timer)
        self._ask(number, question, ms, filters)
        return ReasonCode.SUCCESS

    def _ask(self, number: int, question: _Question, ms: int, filters: list[str]) -> None:
        """Ask all brokers, and look into the log here."""
        body = encode_recent(number, ms, filters)
        question.waiting = {
            listing.id
            for listing in self._database.reachable()
            if self._bus.send(listing.id, RECENT, body)
        }
        own = self._database.own.id
        question.waiting.add(own)
        self._turns.go(self._answering(number, own, ms, filters), lambda: False)

    def _late(self, number: int) -> None:
        question = self._open.get(number)
        if question is not None:
            question.complete = False
            self._finish(number, question)

    def _on_answer(self, number: int, broker_id: bytes, *, complete: bool = True) -> None:
        """Note that a broker has answered, or will not."""
        question = self._open.get(number)
        if question is None or broker_id not in question.waiting:
            return
        question.waiting.discard(broker_id)
        self._collected -= sum(map(len, question.parts.pop(broker_id, ())))
        question.complete &= complete
        if not question.waiting:
            self._finish(number, question)

    def _finish(self, number: int, question: _Question) -> None:
        """Deliver what has come, in the order of each origin, and tell the client."""
        del self._open[number]
        self._node.timers.cancel(question.timer)
        for parts in question.parts.values():
            self._collected -= sum(map(len, parts))
        count, left_out = 0, list[bytes]()
        keys = {key for key, _ in question.messages}
        if any(
            start is not None and _is_open(start, keys) for start in starts_of(question.session)
        ):
            # It is not known yet which of them the subscriptions get by themselves.
            question.complete = False
        if self._node.sessions.get(question.session.client_id) is question.session:
            for (key, sequence), message in sorted(question.messages.items(), key=lambda e: e[0]):
                replayed = self._replayed(question.session, key, sequence, message)
                if replayed is None:
                    continue
                digest = _digest(message) if question.had else b""
                if question.had and question.had[digest] > 0:
                    question.had[digest] -= 1
                    left_out.append(digest)
                else:
                    self._deliver(question.session, *replayed)
                    count += 1
        if not question.complete:
            self._report.count("session_replays_incomplete")
        body: dict[str, Any] = {"replayed": count, "complete": question.complete}
        if question.had is not None:
            body["left_out"] = b2a_base64(b"".join(left_out), newline=False).decode()
        respond(question.response, 200, body)

    def _replayed(
        self, session: Session, key: bytes, sequence: int, message: Message
    ) -> tuple[Message, Delivery] | None:
        """Return how a message goes to a session, None if it does not: it is none of its
        subscriptions', or they get it by themselves. It counts as delivered from now on."""
        topic = message.topic.decode()
        if is_own(topic) or not session.may_receive(topic):
            return None
        wanted = [subscription for subscription in session.wanting(topic) if subscription.qos]
        if not wanted or any(subscription.gets(key, sequence) for subscription in wanted):
            return None
        if message.retain and self._is_kept(message):
            return None  # it came as what is retained
        if not self._history.lacks(session, key, sequence, message.topic):
            return None
        told = key + b":" + str(sequence).encode()
        properties = message.properties + MARK + len(told).to_bytes(2, "big") + told
        replayed = Message(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            properties,
            message.expires_at,
            None,
        )
        return replayed, Delivery(session, wanted)

    def _deliver(self, session: Session, message: Message, delivery: Delivery) -> None:
        retain = message.retain and delivery.retain_as_published
        session.deliver(message, min(message.qos, delivery.qos), retain, delivery.ids, None)
        self._report.count("session_replayed")

    def _is_kept(self, message: Message) -> bool:
        known = self._retained.get(message.topic.decode())
        return known is not None and known.payload == message.payload

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker cannot be reached any more: it will not answer."""
        if event.via is None:
            for number in list(self._open):
                self._on_answer(number, event.broker_id, complete=False)

    def _part_received(self, sender: bytes, data: bytes, now: float) -> None:
        """Take a piece of an answer."""
        number, piece, flags, body = read_part(data)
        question = self._open.get(number)
        if question is None or sender not in question.waiting:
            return
        parts = question.parts.setdefault(sender, [])
        if piece != len(parts) or self._collected + len(body) > MAX_COLLECTED:
            self._on_answer(number, sender, complete=False)
            return
        parts.append(body)
        self._collected += len(body)
        if flags & LAST:
            whole = b"".join(parts)
            self._turns.work += len(whole) // 100
            for batch, sequence, message in read_messages(whole, now):
                # The number of a piece, its origin and its sender are no proof of each other.
                if not (batch.passed or message.expired(now)):
                    question.messages[batch.key, sequence] = message
            self._on_answer(number, sender, complete=not flags & CUT)

    # ---------------------------------------------------------------- each other broker

    def _recent_received(self, sender: bytes, data: bytes, now: float) -> None:
        number, ms, filters = read_recent(data)
        self._turns.go(self._answering(number, sender, ms, filters), lambda: False)

    def _answering(self, number: int, asker: bytes, ms: int, filters: list[str]) -> Iterator[int]:
        """Look through the log in steps, and answer."""
        node, own = self._node, self._origins.key
        names, forms = frozenset(filters), WildcardForms(filters)
        found: list[bytes] = []
        size, cut = 0, False

        def wants(topic: bytes) -> bool:
            return not names.isdisjoint(forms.matching(topic.decode()))

        for piece in self._log.pieces(node.now - ms / 1000):
            for entry in piece:
                if entry.key != own or not entry.qos or entry.choice is not None:
                    continue
                for part in wanted_parts(entry, wants):
                    found.append(part.data(node.now))
                    size += len(found[-1])
            while size > MAX_BYTES:
                size -= len(found.pop(0))
                cut = True
            yield len(piece)
        whole = b"".join(found)
        if asker == self._database.own.id:
            if (question := self._open.get(number)) is not None:
                for batch, sequence, message in read_messages(whole, node.now):
                    if not message.expired(node.now):
                        question.messages[batch.key, sequence] = message
            self._on_answer(number, asker, complete=not cut)
            return
        for body in encode_parts(number, whole, cut=cut):
            self._bus.send(asker, RECENT_PART, body)


def _is_open(start: SubscriptionStart, keys: Iterable[bytes]) -> bool:
    """Whether it is not known for some of these origins where subscriptions begin."""
    return any(key in start.open or (key not in start.tops and not start.adopted) for key in keys)


def _digest(message: Message) -> bytes:
    """Return what a client says of a message that it has had."""
    return blake2b(message.topic + b"\0" + message.payload, digest_size=DIGEST).digest()


def _read_question(payload: bytes) -> tuple[int, Counter[bytes] | None]:
    """Return how far a question looks back (ms), and digests of what the client has had, None if it
    does not say. Raises ValueError with one line."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        raise ValueError("a question is a JSON object") from None
    seconds = value.get("seconds") if isinstance(value, dict) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError("seconds: not a number")
    if not 0 < seconds <= MAX_MS / 1000:
        raise ValueError(f"seconds: not above 0 and up to {MAX_MS // 1000}")
    return max(1, round(seconds * 1000)), _read_had(value["had"]) if "had" in value else None


def _read_had(text: Any) -> Counter[bytes]:
    """Return the digests that a client has named, and how often. Raises ValueError with one
    line."""
    try:
        digests = a2b_base64(text, strict_mode=True) if isinstance(text, str) else b"?"
    except ValueError:
        digests = b"?"
    if len(digests) % DIGEST:
        raise ValueError(f"had: not Base64 of {DIGEST} bytes for each message")
    if len(digests) > MAX_HAD * DIGEST:
        raise ValueError(f"had: more than {MAX_HAD:,} messages")
    return Counter(digests[at : at + DIGEST] for at in range(0, len(digests), DIGEST))
