"""Simulated MQTT clients: they connect, subscribe, publish numbered messages and acknowledge as the
specification says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from mqttree.broker.cluster.directory.link_state_directory import CLIENT
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from mqttree.broker.wire.properties import Properties, Property
from mqttree.broker.wire.reader import PacketReader
from tests.sim.world import End, Host, World


@cache
def matches(topic_filter: str, topic: str) -> bool:
    """Whether a topic name matches a filter (MQTT-4.7); written without a look at the broker's
    own."""
    if topic[:1] == "$" and topic_filter[:1] in "+#":
        return False
    levels, names = topic_filter.split("/"), topic.split("/")
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index >= len(names) or level not in ("+", names[index]):
            return False
    return len(levels) == len(names)


UNCOUNTED = 5.0
"""s; what no broker counts of the time that a message is under way, and what rounding adds."""
LASTING = 1000
"""s; what expires later lasts for all of a schedule."""


@dataclass(slots=True, eq=False)
class Sent:
    """A message that a client published, or will have published with its will."""

    number: int
    client: SimClient
    epoch: int
    """The publisher's connection: order is promised within one."""
    topic: str
    qos: int
    retain: bool
    life: tuple[int, int]
    """(index, boot) of the broker it was published on."""
    at: float
    acked: float | None = None
    repeated: bool = False
    doubted: bool = False
    """Sent again within a session that may have been an older one, which did not know it."""
    copies: int = 1
    """PUBLISH packets: what is sent again at QoS 1 is a message of its own to a broker
    (MQTT-4.3.2)."""
    will: bool = False
    packet: Publish | None = None
    expiry: int | None = None
    """Its Message Expiry Interval (s), None: it does not expire."""


@dataclass(slots=True)
class Got:
    """A message that a client received."""

    number: int
    topic: str
    qos: int
    retain: bool
    epoch: int
    session: int
    at: float


@dataclass(slots=True)
class Interest:
    """A subscription that was acknowledged."""

    filter: str
    qos: int
    since: float
    life: tuple[int, int]
    epoch: int
    no_local: bool = False
    session: int = 0


@dataclass(slots=True)
class Ledger:
    """Everything that was published in one world."""

    sent: list[Sent] = field(default_factory=list)


class SimClient:
    """One client. It stays with a host until it is moved, and comes back when its broker
    does."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        name: str,
        host: Host,
        *,
        version: int = 4,
        clean: bool = True,
        filters: list[tuple[str, int]] | None = None,
        receive_maximum: int = 0,
        will: tuple[str, int, bool] | None = None,
        retry: float = 0.3,
        no_local: bool = False,
    ) -> None:
        """`will`: (topic, QoS, retain), with a new number for every connection."""
        self.world = world
        self.ledger = ledger
        self.name = name
        self.host = host
        self.version = version
        self.clean = clean
        self.filters = list(filters or ())
        self.receive_maximum = receive_maximum
        self.will = will
        self.will_sent: Sent | None = None
        self.retry = retry
        self.no_local = no_local and version == 5
        self.state = "down"
        self.epoch = 0  # connections
        self.began = 0.0  # s; the last of them
        self.stamp = 0  # that its broker gave it
        self.session = 0  # sessions: grows when the brokers did not keep ours
        # Session -> when it had its subscriptions; as long as it has none, when it began.
        self.begun: dict[int, float] = {}
        self._unsubscribed = False
        self.holders: set[tuple[int, int]] = set()  # brokers that this session was at
        # It moves faster than brokers' clocks distinguish times: they may take the last for older.
        self.hasty = False
        self.forked = False  # there are cuts, after which it may have several sessions for a moment
        # By such clocks an older connection of ours counted as the newer one: we subscribe again.
        self.misdated = False
        self.doubt = False  # the brokers cannot know where our session is, or cannot get it
        self.life: tuple[int, int] = (-1, -1)
        self.interests: list[Interest] = []
        # The brokers that any session of ours may have been at.
        self.places: set[tuple[int, int]] = set()
        # Connection -> broker, s of CONNECT and CONNACK, whether the broker had heard of the last.
        self.visits: dict[int, tuple[tuple[int, int], float, float, bool]] = {}
        self._heard = True
        self.ever: list[Interest] = []  # of all sessions
        self.got: list[Got] = []
        self.deleted: list[str] = []  # topics of empty messages
        self.ack_delay = 0.0
        self.expiries: tuple[int, ...] = ()  # s; of MQTT 5 messages without RETAIN, in turn
        self.uncounted = UNCOUNTED
        self.on_up: Callable[[SimClient], None] | None = None
        self.errors: list[str] = []
        self._end: End | None = None
        self._reader = PacketReader()
        self._packet_id = 0
        self._corked: list[bytes] | None = None  # packets that go out as one piece
        self._out: dict[int, Sent] = {}  # packet id -> unacknowledged PUBLISH
        self._released: dict[int, Sent] = {}  # packet id -> PUBREL out
        self._in: set[int] = set()  # QoS 2 packet ids received and not released
        # The same of earlier connections, where CONNACK has no Session Present flag (MQTT 3.1).
        self._before: set[int] = set()
        self._subscribing: dict[int, list[SubscriptionRequest]] = {}
        self._stay_down = False
        self._told, self._untold = 0, False  # stamp of the last CONNACK read; one was not since

    # ---- connection

    def connect(self) -> None:
        if self.state != "down" or self._stay_down:
            return
        end = self.world.connect(self.host, _Wire(self, self.epoch + 1))
        if end is None:
            self.world.after(self.retry, self.connect)
            return
        self._end = end
        self.state = "connecting"
        self.doubt = self._doubtful()
        self._heard = self.life[0] in (-1, self.host.index) or self._known(
            self.world.hosts[self.life[0]]
        )
        if self.life[0] not in (-1, self.host.index):
            self.world.say(
                f"{self.name} connects to {self.host.name}, "
                f"was at b{self.life[0]}{' (doubt)' * self.doubt}"
            )
        self.life = self.host.life
        self.places.add(self.life)  # our session may have come there although we hear nothing of it
        self.began, self.stamp = self.world.now, 0
        self.epoch += 1
        self._reader = PacketReader()
        properties: Properties | None = None
        if self.version == 5:
            properties = {}
            if not self.clean:
                properties[Property.SESSION_EXPIRY_INTERVAL] = 3600
            if self.receive_maximum:
                properties[Property.RECEIVE_MAXIMUM] = self.receive_maximum
        will = None
        self.will_sent = None
        if self.will is not None:
            topic, qos, retain = self.will
            self.will_sent = Sent(
                len(self.ledger.sent),
                self,
                self.epoch,
                topic,
                qos,
                retain,
                self.life,
                0.0,
                will=True,
            )
            self.ledger.sent.append(self.will_sent)
            will = Will(topic, b"%d|will" % self.will_sent.number, qos, retain)
        name = "MQIsdp" if self.version == 3 else "MQTT"
        self._send(
            Connect(name, self.version, self.clean, 0, self.name, None, None, will, properties)
        )

    def _doubtful(self) -> bool:
        """Whether the last broker is another one that is not alive any more, or out of reach of the
        next one."""
        sessions = {host.life for host in self.world.alive() if self.name in host.running.sessions}
        if self.forked and sessions - {self.life}:
            return True  # a cut left an older one somewhere
        if self.life == self.host.life or self.life[0] < 0:
            return self.doubt and self.state != "up"
        if self.hasty:
            return True
        last = self.world.hosts[self.life[0]]
        if not last.alive or last.life != self.life or last.paused or self.host.paused:
            return True
        if not any(last in group and self.host in group for group in self.world.components()):
            return True
        if self._misdated(last):
            return True
        return last.id not in {
            x.id for x in self.host.running.cluster.directory.database.reachable()
        }

    def _misdated(self, last: Host) -> bool:
        """Whether the next broker has not heard of our connection to the last one, and its clock is
        further behind than that is ago: it takes itself for the older one then
        (docs/decisions/0016, not promised)."""
        if self.world.fastest - self.host.ahead <= self.world.now - self.began:
            return False
        return not self._known(last)

    def _known(self, last: Host) -> bool:
        """Whether the next broker has heard of our connection to the last one."""
        listing = self.host.running.cluster.directory.database.listings.get(last.id)
        entry = b"" if listing is None else listing.entries.get(CLIENT + self.name.encode(), b"")
        return int.from_bytes(entry[1:9], "big") >= max(1, self.stamp)

    def hop(self, host: Host) -> None:
        """Connect to another broker; the last one does not hear of it from us."""
        if self._end is not None:
            self._down("hopped")
            self.host = host
            self.connect()

    def roam(self, host: Host, how: str) -> None:
        """Go to another host: `leave` says so, `cut` loses the connection first, `hop` connects
        while the old one is open."""
        if how == "leave" and self.state == "up":
            self.disconnect(host)
        elif how == "cut" and self.state == "up":
            self.cut()
            self.host = host
        elif how == "hop" and self.state != "connecting":
            self.hop(host)

    def disconnect(self, move_to: Host | None = None) -> None:
        """Send DISCONNECT, and come back only where the test says."""
        if self._end is not None:
            self._send(Disconnect())
            self._end.close()
        self._down("left")
        if move_to is None:
            self._stay_down = True
        else:
            self.host = move_to
            self.world.after(0.01, self.connect)

    def cut(self) -> None:
        """Break the connection; the will is due, and the client comes back."""
        if self._end is None:
            return
        self.world.say(f"{self.name} loses its connection to {self.host.name}")
        if self.will_sent is not None and self.state == "up":
            self.will_sent.at = self.world.now
            self.will_sent.acked = self.world.now
        self._end.abort()
        self._down("cut")
        self.world.after(self.retry, self.connect)

    def lost(self, reason: str) -> None:
        """The connection is gone, and not by our doing."""
        self.misdated |= self.hasty and self.doubt and self.host.alive
        if (
            self.host.life == self.life
            and self.host.alive
            and self.life[1] not in self.host.left
            and not self.doubt
            and not self._stale()
            and not self._taken_for_gone()
        ):
            self.errors.append(
                f"closed by a living broker: {reason} "
                f"({self.epoch} at {self.world.now - self.world.started:.4f})"
            )
        self._down(reason)
        self.world.after(self.retry, self.connect)

    def _stale(self) -> bool:
        """Whether the broker has stood still, and our CONNECT may be as old as that."""
        until = self.host.running.cluster.barrier.stale_until
        return self.state == "connecting" and until > self.world.now - 1.0

    def _taken_for_gone(self) -> bool:
        """Whether our will may have been published by the standby of our broker, which closes our
        connection then."""
        return self.will is not None and self.host.running.counters.fences > 0

    def _down(self, reason: str) -> None:
        self._untold |= self.state == "connecting"
        self.state = "down"
        self._end = None
        for sent in (*self._out.values(), *self._released.values()):
            sent.repeated = True

    def read(self, on: bool) -> None:
        """Read what comes, or do not: a slow consumer."""
        if self._end is not None:
            if on:
                self._end.resume_reading()
            else:
                self._end.pause_reading()

    # ---- packets

    def _send(self, packet: Packet) -> None:
        data = encode_packet(packet, self.version)
        if self._corked is not None:
            self._corked.append(data)
        elif self._end is not None:
            self._end.write(data)

    def data(self, data: bytes) -> None:
        """Bytes came."""
        for first, body in self._reader.feed(data):
            self._packet(decode_packet(first, body, self.version))

    def _packet(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._received(packet)
            case Puback():
                self._acked(self._out.pop(packet.packet_id, None), packet.reason)
            case Pubrec():
                sent = self._out.pop(packet.packet_id, None)
                if sent is not None:
                    self._acked(sent, packet.reason)
                    self._released[packet.packet_id] = sent
                self._send(Pubrel(packet.packet_id))
            case Pubrel():
                self._in.discard(packet.packet_id)
                self._before.discard(packet.packet_id)
                self._send(Pubcomp(packet.packet_id))
            case Pubcomp():
                self._released.pop(packet.packet_id, None)
            case Suback():
                self._subscribed(packet)
            case Connack():
                self._connected(packet)
            case Disconnect():
                if self.life[1] not in self.host.left and not (
                    packet.reason == 0x8E and self.doubt
                ):
                    self.errors.append(f"DISCONNECT {packet.reason:#x}")
            case _:
                self.errors.append(f"unexpected {packet}")

    def _connected(self, packet: Connack) -> None:
        if packet.code:
            self.errors.append(f"refused: {packet.code:#x}")
            return
        self.state = "up"
        if self.host.alive and (session := self.host.running.sessions.get(self.name)) is not None:
            self.stamp = session.stamp
        if packet.session_present and self.epoch == 1:
            self.errors.append("Session Present without a session")
        present = packet.session_present and not self._began_untold()
        self._untold, self._told = False, self.stamp
        if self.doubt or not present:
            # For the checkers it is another one: perhaps it is older, and has not seen what came to
            # the last one.
            self.session += 1
            self.begun[self.session] = self.world.now
            self._unsubscribed = not present
            self.holders = set()
        self.holders.add(self.life)
        self.visits[self.epoch] = (self.life, self.began, self.world.now, self._heard)
        if not present:
            self._out.clear()
            self._released.clear()
            self._before |= self._in if self.version == 3 and not self.clean else set()
            self._in.clear()
            self.interests.clear()
        if self.misdated:
            self.misdated = False
            self.interests.clear()
        if self.filters and not self.interests:
            # So does one that was found: we left it before its SUBACK.
            self._unsubscribed = True
            self.subscribe(self.filters)
        for packet_id, sent in list(self._out.items()):
            assert sent.packet is not None
            sent.copies += 1
            sent.doubted |= self.doubt
            self._send(
                Publish(
                    sent.topic,
                    sent.packet.payload,
                    sent.qos,
                    sent.retain,
                    True,
                    packet_id,
                    sent.packet.properties,
                )
            )
        for packet_id in list(self._released):
            self._send(Pubrel(packet_id))
        if self.on_up is not None:
            self.on_up(self)

    def _began_untold(self) -> bool:
        """Whether our session began with a CONNACK that we have not read: we gave up that
        connection, so that Session Present 0 never reached us. No broker can know that. A client
        subscribes again then; we do so for such a session alone, so that one which was kept has to
        have its subscriptions still."""
        session = self.host.running.sessions.get(self.name) if self.host.alive else None
        if not self._untold or session is None or session.subscriptions:
            return False
        return self.hasty or session.created > self._told

    def _next_id(self) -> int:
        while True:
            self._packet_id = self._packet_id % 65535 + 1
            if self._packet_id not in self._out and self._packet_id not in self._released:
                return self._packet_id

    def subscribe(self, filters: list[tuple[str, int]]) -> None:
        packet_id = self._next_id()
        requests = [SubscriptionRequest(f, qos, self.no_local) for f, qos in filters]
        self._subscribing[packet_id] = requests
        self._send(Subscribe(packet_id, requests))

    def _subscribed(self, packet: Suback) -> None:
        if self._unsubscribed:
            self.begun[self.session] = self.world.now
            self._unsubscribed = False
        for request, code in zip(
            self._subscribing.pop(packet.packet_id), packet.codes, strict=True
        ):
            if code > 2:
                self.errors.append(f"subscription to {request.filter} refused: {code:#x}")
            else:
                interest = Interest(
                    request.filter,
                    code,
                    self.world.now,
                    self.life,
                    self.epoch,
                    request.no_local,
                    self.session,
                )
                self.interests.append(interest)
                self.ever.append(interest)

    # ---- messages

    def burst(self, topic: str, qos: int, count: int, padding: int) -> None:
        """Publish messages of one topic and size as one piece, which brokers handle as one
        (decision 5)."""
        self._corked = []
        same: Properties | None = (
            {Property.USER_PROPERTY: [("burst", "of many")]}
            if self.version == 5 and count % 2
            else None
        )
        for _ in range(count):
            self.publish(topic, qos, False, padding, digits=6, properties=same)
        data, self._corked = b"".join(self._corked), None
        if self._end is not None and data:
            self._end.write(data)

    def publish(
        self,
        topic: str,
        qos: int,
        retain: bool = False,
        padding: int = 0,
        *,
        digits: int = 1,
        properties: Properties | None = None,
    ) -> Sent | None:
        """Publish the next message; None while there is no connection."""
        if self.state != "up":
            return None
        sent = Sent(
            len(self.ledger.sent), self, self.epoch, topic, qos, retain, self.life, self.world.now
        )
        self.ledger.sent.append(sent)
        packet_id = self._next_id() if qos else None
        payload = b"%0*d|" % (digits, sent.number) + b"x" * padding
        if self.version == 5 and sent.number % 3 == 0 and digits == 1:
            properties = {
                Property.USER_PROPERTY: [("number", str(sent.number))],
                Property.CONTENT_TYPE: "text",
            }
        if self.expiries and self.version == 5 and not retain:
            sent.expiry = self.expiries[sent.number % len(self.expiries)]
            properties = (properties or {}) | {Property.MESSAGE_EXPIRY_INTERVAL: sent.expiry}
        sent.packet = Publish(topic, payload, qos, retain, False, packet_id, properties)
        if packet_id is not None:
            self._out[packet_id] = sent
        self._send(sent.packet)
        return sent

    def _acked(self, sent: Sent | None, reason: int) -> None:
        if sent is None:
            return
        if reason >= 0x80:
            self.errors.append(f"publish refused: {reason:#x}")
        elif sent.acked is None:
            sent.acked = self.world.now

    def _received(self, packet: Publish) -> None:
        epoch = self.epoch
        if packet.qos == 2:
            new = packet.packet_id not in self._in and not (
                packet.dup and packet.packet_id in self._before
            )
            self._in.add(packet.packet_id or 0)
        else:
            new = True
        if new and not packet.payload:
            self.deleted.append(packet.topic)
        elif new:
            number = int(packet.payload.partition(b"|")[0])
            got = Got(
                number, packet.topic, packet.qos, packet.retain, epoch, self.session, self.world.now
            )
            self.got.append(got)
            self._compare(packet, self.ledger.sent[number])
        if not packet.qos:
            return
        answer: Packet = (
            Pubrec(packet.packet_id or 0) if packet.qos == 2 else Puback(packet.packet_id or 0)
        )
        if self.ack_delay:
            self.world.after(self.ack_delay, self._late, answer, epoch)
        else:
            self._send(answer)

    def _late(self, answer: Packet, epoch: int) -> None:
        if epoch == self.epoch and self.state == "up":
            self._send(answer)

    def _compare(self, packet: Publish, sent: Sent) -> None:
        """The message is what was published: topic, payload and properties."""
        if packet.topic != sent.topic:
            self.errors.append(f"message {sent.number} came as {packet.topic}, was {sent.topic}")
        if sent.packet is None:
            return
        if packet.payload != sent.packet.payload:
            self.errors.append(f"payload of message {sent.number} was changed")
        properties, published = packet.properties or {}, sent.packet.properties or {}
        if sent.expiry is not None:
            self._in_time(packet, sent)
            expiry = int(Property.MESSAGE_EXPIRY_INTERVAL)
            properties = {name: value for name, value in properties.items() if name != expiry}
            published = {name: value for name, value in published.items() if name != expiry}
        if self.version == 5 and properties != published:
            self.errors.append(
                f"properties of message {sent.number} were changed: {packet.properties}"
            )

    def _in_time(self, packet: Publish, sent: Sent) -> None:
        """What expires says no more than is left of its time, and does not come when that is over;
        what is sent again may."""
        assert sent.expiry is not None
        left = (packet.properties or {}).get(Property.MESSAGE_EXPIRY_INTERVAL, 0)
        passed = self.world.now - sent.at
        if left > sent.expiry or (not packet.dup and passed + left > sent.expiry + self.uncounted):
            self.errors.append(
                f"message {sent.number} expires after {sent.expiry} s, and came {passed:.2f} s "
                f"after it was published, with {left} s left"
            )


class _Wire:
    """One connection of a client; what comes on one that it gave up is ignored."""

    def __init__(self, client: SimClient, epoch: int) -> None:
        self.client = client
        self.epoch = epoch

    @property
    def current(self) -> bool:
        return self.client.epoch == self.epoch and self.client.state != "down"

    def data(self, data: bytes) -> None:
        if self.current:
            self.client.data(data)

    def lost(self, reason: str) -> None:
        if self.current:
            self.client.lost(reason)
