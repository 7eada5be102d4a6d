"""What one broker asks of the floors above it: the cluster that it is in, and the journal that
keeps its state (docs/decisions/0032-floors.md).

Neither is needed by a lone broker that keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mqttree.broker.core.delivery_queue import QueueRoom
from mqttree.broker.core.receipts import Receipts
from mqttree.broker.core.session import SettledShares

if TYPE_CHECKING:
    from mqttree.broker.base.sequence_set import Ranges
    from mqttree.broker.core.connection import Arrival, Connection
    from mqttree.broker.core.effects import Dial
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.retained_index import RetainedVersion
    from mqttree.broker.core.route import Route
    from mqttree.broker.core.session import Session, SharedGroup, SharedOutgoing
    from mqttree.broker.core.start_point import SubscriptionStart
    from mqttree.broker.wire.constants import ReasonCode
    from mqttree.broker.wire.packets import Connect
    from mqttree.broker.wire.properties import Properties
    from mqttree.routing.group_selection import Pool

Then = Callable[[float], None]
"""Called with now (s)."""


class Journal(Protocol):
    """Records what is to survive a restart. An acknowledgement goes out no earlier than its records
    are durable."""

    @property
    def recording(self) -> bool:
        """Whether it keeps anything. One that does not may be called all the same; callers with
        very many messages ask first, and spare the call."""

    @property
    def durable(self) -> bool:
        """Whether what it keeps survives a restart."""

    @property
    def lsn(self) -> int:
        """The number of the frame that is being written."""

    @property
    def durable_lsn(self) -> int:
        """The number of the newest frame that is durable."""

    @property
    def pending(self) -> int:
        """Bytes that are being written and are not durable."""

    def due_lsn(self) -> int:
        """Return the number of the frame that will have what is recorded now; 0: there is none."""

    def has(self, lsn: int) -> bool:
        """Return whether the frame `lsn` is durable, or cannot become so."""

    def require(self, source: Connection | None, /) -> None:
        """Hold what `source` is sent from now on, until what is recorded now is durable."""

    def origin_seen(self, key: bytes) -> None:
        """A message of an origin (`key`: its id and incarnation) that is not logged was here."""

    def origin_added(self, key: bytes) -> None:
        """The first message of an origin's incarnation was here."""

    def members_changed(self, broker_ids: Iterable[bytes]) -> None:
        """Messages are kept for these other brokers, whether they can be reached or not."""

    def session_connected(self, session: Session, *, present: bool) -> None:
        """A client is connected; `present`: its session was there before."""

    def make_durable(self, session: Session) -> None:
        """Keep a session that outlives its connection."""

    def keep_until_continued(self, session: Session) -> None:
        """A session is about to end, as another one of its client, which is not durable yet, goes
        on with all that it has: it is recorded until that one is, or has ended."""

    def session_ended(self, session: Session, source: Connection | None) -> None:
        """A session is over; `source` hears of it once that is durable."""

    def retained_changed(self, version: RetainedVersion, /) -> None:
        """A retained topic was written, or its message has its number."""

    def shared_closed(self, refs: list[tuple[bytes, int, bytes]], /) -> None:
        """Messages for members of shared subscriptions elsewhere are acknowledged, or another
        one's; each is named by origin, number and group."""

    def shared_taken(self, refs: list[tuple[bytes, int, bytes]], /) -> None:
        """Messages of other brokers were granted to members here."""

    def shared_covered(
        self, group_id: bytes, key: bytes, ranges: Ranges, since: float | None, /
    ) -> None:
        """Record which messages of an origin (`key`, one of this broker's) the group `group_id`
        got: those with the numbers `ranges`. `since`: when (s) the group became known, None: not
        known."""

    @property
    def receipts(self) -> Receipts:
        """Takes who gets messages, if it is `recording`."""

    def published(
        self, first: int, count: int, packets: bytes, version: int, source: Connection, /
    ) -> None:
        """Record `packets` that no other broker gets, if a durable session got one of them: `count`
        at one QoS, of MQTT `version`, which came on the connection `source`. `first`: the number of
        the first one (`LoneNumbers`)."""

    def gate_output(self, conn: Connection, outbox: list[bytes], source: Connection | None) -> None:
        """Hold output of `conn` back until the records that it depends on are durable; empties
        `outbox`. `source`: as of `Connection.flush`."""

    def gates_output(self, conn: Connection) -> bool:
        """Whether output for a connection is held back."""

    def gated_output(self, conn: Connection) -> list[bytes]:
        """Return the output that is held back for a connection."""

    def connection_closed(self, conn: Connection) -> None:
        """A connection is closed: what was held back for it is dropped."""

    def seal(self) -> None:
        """End the frame: it is written with all that was recorded in this turn, unless that may
        wait for the next one."""


class NullJournal:
    """The journal of a broker whose state ends with it: it keeps nothing, and no output waits."""

    __slots__ = ()

    recording = False
    durable = False
    healthy = True
    lsn = 0
    durable_lsn = 0
    pending = 0
    receipts = Receipts(lambda origin, first, items: None)

    def due_lsn(self) -> int:
        """Return 0: there are no frames."""
        return 0

    def has(self, lsn: int) -> bool:
        """Return True: there is nothing to wait for."""
        return True

    def require(self, source: object, /) -> None:
        """Let what `source` is sent go out at once: nothing is recorded."""

    def origin_seen(self, key: bytes) -> None:
        """Drop that a message of an origin was here."""

    def origin_added(self, key: bytes) -> None:
        """Drop that an incarnation of an origin is new."""

    def members_changed(self, broker_ids: object) -> None:
        """Drop which other brokers messages are kept for."""

    def session_connected(self, session: object, *, present: bool) -> None:
        """Drop that a client is connected."""

    def make_durable(self, session: object) -> None:
        """The session ends with the broker."""

    def keep_until_continued(self, session: object) -> None:
        """Keep nothing: the session was not recorded."""

    def session_ended(self, session: object, source: object) -> None:
        """Drop that a session is over: it was not recorded."""

    def retained_changed(self, version: object, /) -> None:
        """Drop what was written to a retained topic."""

    def logged(self, entry: object, source: object) -> None:
        """Drop an entry of the replay log."""

    def subscription_start_changed(self, start: object) -> None:
        """Drop that subscriptions begin elsewhere."""

    def shared_closed(self, refs: object, /) -> None:
        """Drop that messages given to other brokers are acknowledged."""

    def shared_taken(self, refs: object, /) -> None:
        """Drop that messages of other brokers were granted here."""

    def shared_covered(self, *covered: object) -> None:
        """Drop which messages a group got."""

    def published(self, *published: object) -> None:
        """Drop what was published here."""

    def copied(self, entry: object) -> None:
        """Drop messages that came with a session."""

    def arriving(self, entry: object) -> None:
        """Drop that a batch is to be delivered."""

    def arrived(self, entry: object, source: object) -> None:
        """Drop that a batch was delivered."""

    def gate_output(self, conn: Connection, outbox: list[bytes], source: Connection | None) -> None:
        """Send the `outbox` of `conn` at once; empties it. `source`: as of `Connection.flush`."""
        conn.gate = 0
        conn.flush(outbox, source)

    def gates_output(self, conn: object) -> bool:
        """Return False: no output is held back."""
        return False

    def gated_output(self, conn: object) -> list[bytes]:
        """Return nothing: no output is held back."""
        return []

    def connection_closed(self, conn: object) -> None:
        """Do nothing: no output was held back for a connection."""

    def seal(self) -> None:
        """Do nothing: no frame was begun."""

    def clock_set(self, step: int) -> None:
        """Drop that the time of day was set."""


class Draining(Protocol):
    """Sends the clients of a broker that is about to stop to others."""

    def reference(self) -> str:
        """Return where the next client is to go ("HOST:PORT"), "" when no other broker is there."""

    def as_dict(self) -> dict[str, Any]:
        """Return its state for the admin port: how far it is, and what is left."""


class Barrier(Protocol):
    """A subscription gets no messages that others published before they knew of it: so SUBACK is
    sent once all brokers know."""

    @property
    def known(self) -> bool:
        """Whether all brokers know of all that is wanted here."""

    @property
    def closed(self) -> bool:
        """Whether no client is let in, as sessions here may be other brokers' by now."""

    @property
    def stale_until(self) -> float:
        """s; CONNECT packets that are read before may be as old as a stop of this broker, and their
        clients have connected elsewhere since."""

    def admits(self, now: float, then: Then, /) -> bool:
        """Whether a client may be let in now; if not, `then` is called later."""

    def expect(self, filters: Iterable[str], then: Then, *, again: bool = False) -> bool:
        """Have all brokers know of `filters` that are about to be subscribed to. Returns False if
        they do, or need not; True: `then` is called when they do. `again`: also of those that are
        known."""

    def settle_for(self, filters: Iterable[str], /) -> None:
        """The filters are subscribed to now, or never."""


class OutgoingBatch:
    """Collects PUBLISH packets of one chunk that go to other brokers.

    A class, not a Protocol, as is `MessageForwarder`: compiled code finds the methods of a Protocol
    by their names, at each call.
    """

    __slots__ = ("origin",)

    origin: bytes
    """The origin that numbers them: this broker."""

    def next_number(self) -> int:
        """Return the number that the next packet at QoS 1 or 2 gets.

        Raises NotImplementedError: this class sends nothing.
        """
        raise NotImplementedError

    def add(self, route: Route, begin: int, end: int, count: int, qos: int) -> None:
        """Add `count` packets, which are of this `qos` and take this `route`, from `begin` to `end`
        in the chunk. They are of one size, or fit into one batch.

        Raises NotImplementedError: this class sends nothing.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Send what has been added: what is published next gets the numbers behind it.

        Raises NotImplementedError: this class sends nothing.
        """
        raise NotImplementedError


class LoneNumbers(OutgoingBatch):
    """Numbers what is published while no other broker is known, and sends nothing. It numbers as an
    incarnation that does not exist (`lone_key`): none of that is in a log or a version vector, so
    no broker asks for it, and the numbers that others follow have no gaps."""

    __slots__ = ("_top",)

    def __init__(self, origin: bytes) -> None:
        """`origin`: the key under which it numbers."""
        self.origin = origin
        self._top = 0

    def next_number(self) -> int:
        """Return the number that the next packet at QoS 1 or 2 gets."""
        return self._top + 1

    def add(self, route: Route, begin: int, end: int, count: int, qos: int) -> None:
        """Number `count` packets; the parameters are those of the port."""
        if qos:
            self._top += count

    def flush(self) -> None:
        """Do nothing: nothing is collected."""

    def name(self, message: Message) -> None:
        """Give a `message` at QoS 1 or 2 its name."""
        self._top += 1
        message.named(self.origin, self._top)


class MessageForwarder:
    """Numbers the messages that clients publish here, logs them at QoS 1 and 2, and sends them to
    other brokers."""

    __slots__ = ("lone",)

    lone: LoneNumbers
    """Numbers them instead while there is no other broker."""

    def forward(self, message: Message, source: Connection | None) -> None:
        """Number one message, and pass it on if there are other brokers. `source`: its publisher,
        which may have to wait; None for a will and for the broker's own.

        Raises NotImplementedError: this class sends nothing.
        """
        raise NotImplementedError

    def outgoing(self, data: bytes, version: int, source: Connection) -> OutgoingBatch:
        """Return what takes the packets of a chunk (`data`, of MQTT `version`) that came on the
        connection `source`.

        Raises NotImplementedError: this class sends nothing.
        """
        raise NotImplementedError

    def forward_packet(self, route: Route, packet: bytes, version: int, source: Connection) -> None:
        """Take a QoS 0 PUBLISH that came alone: the same as `outgoing`, with fewer steps.

        `route`: the packet's, without members of groups elsewhere; `packet`: the whole of it, of
        MQTT `version`; `source`: the connection on which it came.

        Raises NotImplementedError: this class sends nothing.
        """
        raise NotImplementedError


class RetainedWrites(Protocol):
    """Retained messages, which all brokers keep."""

    def written(self, message: Message, source: Connection | None, /) -> None:
        """A message with RETAIN was published here: it becomes its topic's one, here and at other
        brokers, in the order of all that were written anywhere. `source`: as of
        `MessageForwarder.forward`."""


class Interest(Protocol):
    """What clients want, here and at other brokers."""

    def filter_changed(self, topic_filter: str, /, *, wanted: bool) -> None:
        """The first subscription to a filter has come, or the last one is gone."""

    def brokers_wanting(self, topic: str, /) -> tuple[bytes, ...]:
        """Return the other brokers that want a `topic`, if messages go to these alone."""


class SubscriptionStarts(Protocol):
    """Where subscriptions begin in the messages of each broker."""

    def begin(self) -> SubscriptionStart | None:
        """Return where a subscription that begins now begins; None: all that comes is for it."""


class SharedGroups(Protocol):
    """Which brokers have members of shared subscriptions."""

    def tell(self, group: SharedGroup, /) -> None:
        """Members of a group here came, went, connected or disconnected."""

    def session_changed(self, session: Session, /) -> None:
        """A session that may be a member of groups has connected or disconnected."""

    def matching(
        self, topic: str, groups: Sequence[SharedGroup], /
    ) -> Sequence[tuple[Pool, SharedGroup | None]]:
        """Return the groups for a topic of which other brokers have members; `groups`: those that
        have members here."""


class Custody(SettledShares, Protocol):
    """Messages that other brokers gave to members here."""

    @property
    def holds_unacknowledged(self) -> bool:
        """Whether any of them waits for its end."""

    def delivered(self, session: Session, outgoing: SharedOutgoing, *, kept: bool) -> None:
        """One (`outgoing`) was given to a member here (`session`). `kept`: it is queued or in
        flight; else it is settled."""


class Sharing(Protocol):
    """Shared subscriptions, whose members may be at several brokers."""

    @property
    def has_remote_members(self) -> bool:
        """Whether any other broker has members of a group."""

    @property
    def groups(self) -> SharedGroups:
        """Which brokers have members."""

    def publish(self, route: Route, message: Message, source: Connection | None, /) -> None:
        """Deliver `message` along `route` and pass it on: other brokers have members of groups that
        get it. `source`: as of `MessageForwarder.forward`."""

    def publish_run(
        self,
        route: Route,
        chunk: bytes,
        prefix: int,
        size: int,
        version: int,
        properties: bytes,
        sender: Session,
        /,
    ) -> None:
        """Deliver a run of QoS 0 packets along `route` and pass it on, as `publish` does with one
        message. `chunk`: the packets, `size` bytes each, of MQTT `version`; `prefix`: where in a
        packet its payload begins; `properties`: of each, encoded; `sender`: the session that
        published them."""

    def stays(
        self,
        group: SharedGroup,
        message: Message,
        allowed: set[Session] | None,
        source: Connection | None,
        /,
    ) -> bool:
        """Whether `message`, which was given to `group` here, stays here; False: another broker has
        it now. `allowed`: members that may receive it, None: all; `source`: as of `publish`."""

    def pass_on(
        self, group_id: bytes, message: Message, source: Connection | None, *, denied: bool = False
    ) -> None:
        """Give `message` to a group's members at another broker: here is none, or (`denied`) none
        that may have it. `group_id`: hash of the group and its filter; `source`: as of
        `publish`."""


class Links(Protocol):
    """The links to other brokers."""

    def accept(self, conn: Connection, connect: Connect, body: bytes, now: float, /) -> None:
        """Another broker calls on `conn`. `connect`: its CONNECT packet; `body`: that packet's
        bytes behind its length; `now`: s."""

    def dialled(self, conn: Connection, dial: Dial, now: float, /) -> None:
        """Begin a link on `conn`. `dial`: what was asked for; `now`: s."""


class OurId(Protocol):
    """Another broker with the id of this one."""

    @property
    def refuses_clients(self) -> bool:
        """Whether there is one, and it is the one that serves."""


class SessionClaims(Protocol):
    """Sessions that are fetched from other brokers."""

    def begin(self, newcomer: Newcomer, connect: Connect, now: float, /) -> int:
        """Take over the session of a client (`newcomer`), wherever it is. `connect`: its CONNECT
        packet; `now`: s. Returns when its connection began (hybrid clock); 0: it has to wait, and
        `Newcomer.on_takeover` or another method is called later."""


class PostedSessions(Protocol):
    """What other brokers know of the sessions here."""

    def session_connected(self, session: Session, resumed: bool, /) -> None:
        """A client is connected; `resumed`: with a session that was there before."""

    def session_ended(self, session: Session, /) -> None:
        """A session is over, everywhere."""


class Tombstones(Protocol):
    """Sessions that have ended."""

    def floor(self, client_id: str, owner: str | None, /) -> int:
        """Return when the last session of a client ended (hybrid clock), 0: not known."""


class RecentlyElsewhere(Protocol):
    """Which clients are, or were lately, at other brokers."""

    def elsewhere(self, client_id: str, /) -> bool:
        """Whether a client has a session at another broker, or had one until a moment ago."""

    def subscribing(self, session: Session, hurry: Callable[[float], None], /) -> None:
        """A client waits for the answer to a SUBSCRIBE: `hurry` is called when its session is about
        to go to another broker."""

    def subscribed(self, session: Session, hurry: Callable[[float], None], /) -> None:
        """It does not wait any more."""


class RemoteFlowControl(QueueRoom, Protocol):
    """Holds publishers at other brokers."""

    def note(self, reason: object, arrival: Arrival | None, /) -> None:
        """Have the publisher of the message that a link has just brought (`arrival`) held where it
        is, until `released`. `reason`: what is behind."""

    def released(self, reason: object, /) -> None:
        """Release the publishers that are held for `reason`; harmless when there are none."""


class ReplayLog(Protocol):
    """The log of messages for other brokers."""

    @property
    def memory(self) -> int:
        """Bytes of memory that it takes, about."""

    def give_room(self, size: int, /) -> None:
        """Let it have `size` bytes more than the least that it may have."""


class Redirecting(Protocol):
    """Sends clients to the brokers where they cost least."""

    def connecting(
        self, newcomer: Newcomer, connect: Connect, assigned: bool, now: float, /
    ) -> bool:
        """Return whether a client (`newcomer`) waits for the answer where it should connect:
        `Newcomer.on_placement` follows. `connect`: its CONNECT; `assigned`: its client identifier
        was made up here; `now`: s."""


class Placing(Protocol):
    """Where clients should connect."""

    @property
    def redirector(self) -> Redirecting:
        """Sends clients there."""

    def request(self, session: Session, message: Message, properties: Properties, /) -> int:
        """A client (`session`) asks by a `message`; `properties`: of its PUBLISH. Returns the
        Reason Code of its acknowledgement; the answer goes to the session."""


class Cluster(Protocol):
    """What one broker asks of the federation."""

    @property
    def forwarder(self) -> MessageForwarder:
        """Passes on what clients publish here."""

    @property
    def replay_log(self) -> ReplayLog:
        """Keeps it for other brokers."""

    @property
    def remote_flow_control(self) -> RemoteFlowControl:
        """Holds publishers at other brokers."""

    @property
    def retained_sync(self) -> RetainedWrites:
        """Takes retained messages."""

    @property
    def strategy(self) -> Interest:
        """Knows what clients want, here and elsewhere."""

    @property
    def barrier(self) -> Barrier:
        """A client that subscribes waits for the other brokers there."""

    @property
    def subscription_starts(self) -> SubscriptionStarts:
        """Knows where subscriptions begin."""

    @property
    def sharing(self) -> Sharing:
        """Chooses receivers for shared subscriptions."""

    @property
    def custody(self) -> Custody:
        """Keeps account of what other brokers gave to members here."""

    @property
    def link_registry(self) -> Links:
        """The links to other brokers."""

    @property
    def id_conflict(self) -> OurId:
        """Notices another broker with the id of this one."""

    @property
    def takeover(self) -> SessionClaims:
        """Fetches sessions from other brokers."""

    @property
    def posted_sessions(self) -> PostedSessions:
        """Tells other brokers of sessions."""

    @property
    def tombstones(self) -> Tombstones:
        """Remembers sessions that have ended."""

    @property
    def recently_elsewhere(self) -> RecentlyElsewhere:
        """Knows which clients are elsewhere."""

    @property
    def placement(self) -> Placing:
        """Answers clients that ask where they should connect (`$mqttree/placement`)."""

    @property
    def memory(self) -> int:
        """Bytes that are kept for clients of other brokers, and by what these say, about."""


class Newcomer(Protocol):
    """A client that connects, and may have to wait: for its older connection to be read, for the
    answer where it should connect, for its session from another broker."""

    @property
    def conn(self) -> Connection:
        """The connection on which the client waits."""

    @property
    def owner(self) -> str | None:
        """The user that it is, checked; None: its name has not been checked."""

    @property
    def connect(self) -> Connect | None:
        """The CONNECT packet that the client sent, None before it has been read."""

    def turn_away(self, reason: ReasonCode, why: str) -> None:
        """Refuse the client with a `reason` code; `why` is for the log."""

    def turn_away_other_user(self) -> None:
        """Refuse it: the session is another user's."""

    def on_predecessor_read(self, now: float) -> None:
        """Go on at `now` (s): what the client sent on its older connection is handled."""

    def on_placement(self, where: str, now: float) -> None:
        """Go on at `now` (s): the client is to connect to the broker `where` ("HOST:PORT"), or is
        let in ("")."""

    def on_takeover(self, stamp: int, now: float) -> None:
        """Go on: the session is here, or no broker has it. `stamp`: as of
        `SessionClaims.begin`."""
