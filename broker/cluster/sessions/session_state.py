"""A client's session without its connection: as it goes from one broker to another
(docs/decisions/0016), and is recorded as a whole. `session_records` makes records of it, and
`recorded_session` reads them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqttree.broker.base import costs
from mqttree.broker.base.sequence_set import LAST, Ranges
from mqttree.broker.cluster.delivery.subscription_start import oldest
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector
from mqttree.broker.cluster.sessions.message_vectors import numbered, ranges_of, union, without
from mqttree.broker.core.delivery_queue import RELEASED, Outgoing, Repeat
from mqttree.broker.core.dispatcher import Dispatcher
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Absorbed, Session, SharedGroup, SharedOutgoing, Subscription
from mqttree.broker.core.start_point import UNKNOWN
from mqttree.routing.topic_filter import SHARE_PREFIX, split_shared

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts

IN_FLIGHT, IS_RELEASED, WAITING = range(3)
"""Places of a message: sent, on this connection or an earlier one; sent, and PUBREC came; not sent
(at QoS 0: missed)."""

EVERYTHING = 1 << 62
"""subscriptions or messages of a step; more than any session has: there is one step."""

MAX_LACKING = 10_000
"""ranges of numbers of one origin that a copy of a session may lack: as many as its queue may have
messages. A session with more moves as a whole."""

PUT_WORK = 3
"""steps of work for each message that is put into a session."""

Start = tuple[Vector, float, set[bytes]]
"""Where subscriptions begin: `before`, `began` and `open` of `SessionState`."""

EncodedSubscription = tuple[str, int, bool, bool, int]
"""A subscription: filter, QoS, No Local, Retain As Published, identifier."""


@dataclass(slots=True, eq=False, repr=False)
class Item:
    """One message of a session. `shared`: filter of its subscription, if that is a shared one."""

    place: int
    packet_id: int
    qos: int
    retain: bool
    ids: bytes
    message: Message
    shared: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class SessionState:
    """A session without its connection. `seen`: which messages it was offered, whether they matched
    or not."""

    username: str | None = None
    expiry: float = 0.0
    next_packet_id: int = 0
    seen: Vector = field(default_factory=dict)
    incoming: set[int] = field(default_factory=set)
    subscriptions: list[EncodedSubscription] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    owner: str | None = None
    stamp: int = 0
    created: int = 0
    floor: int = 0
    before: Vector = field(default_factory=dict)
    """Messages of each origin up to `top` were not for it: see `subscription_start`."""
    began: float = UNKNOWN
    """When it began (s), by the clock of the broker that encodes it."""
    open: set[bytes] = field(default_factory=set)
    """Origins in `before` that may have published more before it subscribed."""
    absorbed: tuple[Absorbed, ...] = ()
    """Older sessions at other brokers that were merged into it."""
    given: dict[bytes, Ranges] = field(default_factory=dict)
    """Numbers that it got from logs and older sessions, if a broker with an older one may come
    back: see `merge`."""
    lacking: dict[bytes, Ranges] = field(default_factory=dict)
    """Numbers of `seen` that are in the queue of an older copy of it."""
    entries: list[LogEntry] = field(default_factory=list)
    """Its messages as they came from another broker, but for those without a name."""


def behind_start(state: SessionState) -> dict[bytes, Ranges]:
    """Return what was evaluated for a session of what was published since it subscribed."""
    return without(ranges_of(state.seen), ranges_of(state.before))


def start_of(session: Session) -> Start:
    """Return where the subscriptions of a session begin: `before`, `began` and `open` of its
    state."""
    start = oldest(session)
    if start is None:
        return {}, UNKNOWN, set()
    tops = {key: OriginWindow(min(top, LAST), 0.0) for key, top in start.tops.items()}
    return tops, start.began, start.open & tops.keys()


def state_of(session: Session, seen: Vector) -> SessionState:
    """Return the state of a `session`, without its subscriptions (`subscriptions_of`). `seen`:
    which messages it was offered."""
    state = SessionState(
        session.username, session.expiry, session.next_packet_id, seen, set(session.incoming)
    )
    state.owner, state.created, state.floor = session.owner, session.created, session.floor
    state.stamp = session.stamp
    state.absorbed = session.absorbed
    state.before, state.began, state.open = start_of(session)
    items = state.items
    for packet_id, sent in session.inflight.items():
        known = session.unpacked(sent) if isinstance(sent, tuple) else sent
        items.append(_item(IS_RELEASED if known is RELEASED else IN_FLIGHT, packet_id, known))
    for waiting in session.queue:
        if isinstance(waiting, Repeat):
            items.append(_item(IN_FLIGHT, waiting.packet_id, waiting.original))
        else:
            items.append(_item(WAITING, 0, waiting))
    items += [_item(WAITING, 0, missed) for missed in session.missed or ()]
    return state


def put_off_queue(state: SessionState) -> None:
    """Leave the queue out of a `state`: its messages are lacking. Those that have no name, and
    those of groups, stay."""
    kept, names = [], []
    for item in state.items:
        name = item.message.name
        if item.place == WAITING and item.qos and name is not None and item.shared is None:
            names.append(name)
        else:
            kept.append(item)
    lacking = union(state.lacking, numbered(names))
    if names and max(map(len, lacking.values())) <= MAX_LACKING:
        state.items, state.lacking = kept, lacking
        state.given = without(state.given, lacking)


def _item(place: int, packet_id: int, o: Outgoing) -> Item:
    return Item(place, packet_id, o.qos, o.retain, o.ids, o.message, shared_filter(o))


def shared_filter(outgoing: Outgoing) -> str | None:
    """Return the filter of the shared subscription that a message is for, None: of no such one."""
    if not isinstance(outgoing, SharedOutgoing):
        return None
    return SHARE_PREFIX + outgoing.group.key.replace(b"\0", b"/").decode()


def subscriptions_of(session: Session) -> Iterator[EncodedSubscription]:
    """Return the subscriptions that a session has now, one after the other, even if it changes
    meanwhile."""
    return map(encoded, list(session.subscriptions.values()))


def encoded(s: Subscription) -> EncodedSubscription:
    """Return a subscription as it is recorded."""
    return s.filter, s.qos, s.no_local, s.retain_as_published, s.identifier


# ---------------------------------------------------------------- back into a session


def restoring(
    state: SessionState,
    session: Session,
    dispatcher: Dispatcher,
    starts: SubscriptionStarts,
    at_once: int = EVERYTHING,
) -> Generator[int, None, None]:
    """Make a new `session` what it was (`state`), some of it at a time. Yields the steps of work
    that it took (`Turns.go`). What is beyond the limits here is dropped and counted.

    `dispatcher`: where it subscribes; `starts`: notes where its subscriptions begin; `at_once`:
    subscriptions or messages of a step.

    No message is delivered to the session before it has all of its subscriptions: it counts as
    `ended` until the last step. The shared subscriptions are made in that step, at once, as their
    groups may have a message for it in that moment; with them the queue from the first message of
    theirs on.
    """
    node = session.node
    most = node.config.max_qos
    session.username = state.username
    session.owner, session.created, session.floor = state.owner, state.created, state.floor
    session.absorbed = state.absorbed
    session.expiry = state.expiry
    session.next_packet_id = state.next_packet_id
    session.incoming = set(state.incoming)
    session.ended = True
    tops = {key: window.top for key, window in state.before.items()}
    start = starts.adopt(tops, state.began, state.open)
    shared: list[Subscription] = []
    for number, (topic_filter, qos, no_local, as_published, identifier) in enumerate(
        state.subscriptions, 1
    ):
        subscription = Subscription(
            session, topic_filter, min(qos, most), no_local, as_published, identifier
        )
        subscription.start = start
        if topic_filter.startswith(SHARE_PREFIX):
            shared.append(subscription)
        else:
            dispatcher.subscribe(subscription, None, topic_filter)
        if not number % at_once:
            yield at_once * costs.PACKET_WORK
    items = state.items
    ahead = next((n for n, item in enumerate(items) if item.shared is not None), len(items))
    for number, item in enumerate(items[:ahead], 1):
        _put(session, item, None)
        if not number % at_once:
            yield at_once * PUT_WORK
    session.ended = False
    groups: dict[str, SharedGroup] = {}
    for subscription in shared:
        group, inner = split_shared(subscription.filter)
        dispatcher.subscribe(subscription, group, inner)
        if group is not None and (found := dispatcher.group(group, inner)) is not None:
            groups[subscription.filter] = found
    for item in items[ahead:]:
        _put(session, item, None if item.shared is None else groups.get(item.shared))


def _put(session: Session, item: Item, group: SharedGroup | None) -> None:
    """Put a message into a session."""
    if item.place == IS_RELEASED:
        session.inflight[item.packet_id] = RELEASED
        return
    outgoing = Outgoing(item.message, item.qos, item.retain, item.ids)
    if group is not None:
        outgoing = SharedOutgoing(item.message, item.qos, item.retain, item.ids, group, None)
    if item.place == IN_FLIGHT:
        session.inflight[item.packet_id] = outgoing
    else:
        session.queue_offline(outgoing, None, tell=False)
