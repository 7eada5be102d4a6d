"""The state machine of a leg: a client of the foreign broker and of this one, between which PUBLISH
and its acknowledgements pass as they are, under their packet identifiers. What must last is in the
two sessions (`session_pair`)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from mqttree.broker.leg.addresses import Addresses
from mqttree.broker.leg.backoff import CLOSED, RESET, SHORTEST, TAKEN_OVER_PAUSE, Backoff
from mqttree.broker.leg.connect import (
    OTHER_REASONS,
    UNSUPPORTED,
    describe,
    foreign_connect,
    local_connect,
)
from mqttree.broker.leg.effects import (
    Close,
    DialForeign,
    Enter,
    LegEffect,
    Log,
    ToForeign,
    ToHere,
    TryAddress,
)
from mqttree.broker.leg.leg_settings import LegSettings, Start
from mqttree.broker.leg.leg_states import CROSSES, ENTERED, Action, Input, State, transition
from mqttree.broker.leg.marks import Federation
from mqttree.broker.leg.own_traffic import PROBE, STATE, OwnTraffic
from mqttree.broker.leg.packets import CROSSING, messages, read_suback
from mqttree.broker.leg.poison import PAUSE
from mqttree.broker.leg.protocol_level import ProtocolLevel
from mqttree.broker.leg.relay import Relay
from mqttree.broker.leg.retained_exchange import RetainedExchange
from mqttree.broker.leg.ring_alarm import RingAlarm
from mqttree.broker.leg.session_pair import LocalSession, SessionPair, paired
from mqttree.broker.leg.subscriptions import Subscriptions
from mqttree.broker.wire.constants import MAX_PACKET_SIZE, PacketType, ReasonCode
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import Connack, Disconnect, Pingreq, Publish, Suback
from mqttree.broker.wire.properties import Properties, Property
from mqttree.broker.wire.publish_header import PACKET_IDS, PUBREL_HEAD
from mqttree.broker.wire.strings import shorten
from mqttree.broker.wire.varint import read_length

PATIENCE = 10.0
"""s until a connection stands and both brokers have accepted."""
TOLD = 32
"""Different reasons for which a leg was lost that are logged until it is up again: the foreign
broker may put what it likes into some."""
QUEUE_LOOK = 1.0
"""s between two looks of a lazy leg whether messages wait for it."""


@dataclass(slots=True, eq=False, repr=False)
class LegCounters:
    """What has happened to one leg."""

    connects: int = 0
    """How often it came up."""
    failures: int = 0
    """How often it did not, or was lost."""
    sessions_lost: int = 0
    """How often the foreign broker had forgotten the session."""
    refused_filters: list[str] = field(default_factory=list)
    """Filters that a broker has refused, of this connection."""
    moves: int = 0
    """How often it went on at another address."""


class Leg:
    """One leg. The driver hands in what happens, with the time, and takes the effects."""

    def __init__(
        self,
        settings: LegSettings,
        exchange: RetainedExchange,
        rng: random.Random,
        now: float,
        federation: Federation | None = None,
        *,
        standby: bool = False,
    ) -> None:
        """`settings`: how it connects; `exchange`: compares retained messages; `rng`: draws pauses;
        `now`: s; it dials at once, unless `standby`: then it waits for `take_turn`; `federation`:
        of this broker; without one messages get no mark."""
        self.settings = settings
        self.state = State.STANDBY if standby else State.WAITING
        self.counters = LegCounters()
        self.password: bytes | None = None
        """Of the user at the foreign broker, for the next connection."""
        self.last_error = ""
        """Why it was not up last."""
        self.relay = Relay(settings, rng, federation, exchange)
        """The way of packets that cross, with their counters."""
        self.waiting = 0
        """Messages that wait in the session here; the driver sets it ahead of `tick`."""
        self.entered: LocalSession | None = None
        """The session here once this broker has let the leg in; the driver sets it ahead of
        `here_received` while the leg is entering."""
        self._told: set[str] = set()  # reasons for which it was lost, since it was up
        self._rng = rng
        self._effects: list[LegEffect] = []
        self._due = now  # to dial, to give up, or to ping
        self._heard = now  # when the foreign broker sent something last
        self._keep_alive = float(settings.keep_alive)
        self._level = ProtocolLevel(settings.version, plain=settings.plain)
        self._capabilities: Properties = {}  # of the foreign broker
        self._will = bool(settings.state_topic)  # it takes a retained will
        self._own = OwnTraffic()
        self._pair = SessionPair()
        self._subscriptions = Subscriptions(settings)
        self._early: list[bytes] = []  # of the foreign broker, before this one has accepted
        self._exchange = exchange
        self._crossing = self.relay.crossing
        self._alarm = RingAlarm(settings.name, self._crossing)
        self._addresses = Addresses(len(settings.addresses), settings.round_robin)
        self._backoff = Backoff(rng)
        self._crossed = 0  # messages, when they were counted last
        self._busy = now  # when one crossed last, as far as known
        self._crossed_before = 0  # messages that went out on earlier connections
        self._closed_at = 0  # which address has closed last

    # ---------------------------------------------------------------- outputs

    def take_effects(self) -> list[LegEffect]:
        """Drain what the driver is to do."""
        effects, self._effects = self._effects + self._exchange.take_effects(), []
        if self._exchange.take_unanswered():
            self._ping_there()
            effects += self._effects
            self._effects = []
        return effects

    def next_deadline(self) -> float | None:
        """When `tick` is due (s); None: never."""
        if self.state in (State.STOPPED, State.STANDBY):
            return None
        merge = self._exchange.due
        return self._due if merge is None else min(self._due, merge)

    @property
    def version(self) -> int:
        """The version of MQTT in which it speaks to both, 5 or 4 (3.1.1)."""
        return self._level.version

    @property
    def address(self) -> str:
        """The address of the foreign broker that is dialled, or connected to."""
        return self.settings.addresses[self._addresses.place]

    @property
    def reads(self) -> bool:
        """Whether more of the foreign broker is to be read."""
        return not self._early

    @property
    def messages_in(self) -> int:
        """PUBLISH packets that came from the foreign broker."""
        return self.relay.there.messages

    @property
    def messages_out(self) -> int:
        """PUBLISH packets that went there."""
        return self.relay.here.messages

    def drops(self) -> dict[str, int]:
        """Return how many messages did not get across, by reason: no rule has a name for them, and
        those of `Relay.drops`."""
        return {"unnamed": self.settings.rules.unnamed, **self.relay.drops()}

    @property
    def max_qos(self) -> int:
        """The highest QoS at which messages go to the foreign broker."""
        return min(self.settings.max_qos, self.relay.lower_qos.taken)

    # ---------------------------------------------------------------- inputs

    def tick(self, now: float) -> None:
        """Do what is due at `now` (s)."""
        self._exchange.tick(now)
        if now < self._due or self.state in (State.STOPPED, State.STANDBY):
            return
        if self.state is State.WAITING:
            self._on(Input.DUE, now)
        elif self.state is State.RESTING:
            self._due = now + QUEUE_LOOK
            if self.waiting >= self.settings.threshold:
                self._on(Input.NEEDED, now)
        elif self.state is not State.UP:
            self.on_lost(f"no answer within {PATIENCE:g} s", now)
        elif self._keep_alive and now >= self._heard + 1.5 * self._keep_alive:
            self.on_lost("it is silent", now)
        elif self._idle(now):
            self._log("info", f"leg {self.settings.name} rests, as nothing is to be sent")
            self._on(Input.IDLE, now)
            self._due = now + QUEUE_LOOK
        else:
            self._look_for_rings(now)
            if self._keep_alive or self._own.waits:
                self._ping_there()
            self._due = now + self._interval()
            if self._addresses.looks_home(now):
                self._effects.append(TryAddress(0))

    def _interval(self) -> float:
        """Return s between two ticks of a leg that is up."""
        return self._keep_alive / 2 if self._keep_alive else PATIENCE

    def _idle(self, now: float) -> bool:
        """Return whether a lazy leg has nothing to do at `now` (s)."""
        crossed = self.messages_in + self.messages_out
        if crossed != self._crossed or self.waiting:
            self._crossed, self._busy = crossed, now
        return self.settings.start is Start.LAZY and now - self._busy >= self.settings.idle_timeout

    def on_answer(self, place: int, now: float) -> None:
        """Note that an address (`place`) answers at `now` (s): go back to the first one, or know
        that the foreign broker is there, which has just closed the connection."""
        if self.state is State.WAITING and place == self._closed_at:
            self.relay.poison.on_answer()
            self._log_refused()
        elif self.state is State.UP and place == 0:
            away = self.address
            self._addresses.go_home()
            self._on(Input.LOST, now)
            self._due = now
            self._log("info", f"leg {self.settings.name} goes back to {self.address} from {away}")

    def stand_by(self, why: str, now: float) -> None:
        """Let another gateway of this name have both sessions. `why`: for the log; `now`: s."""
        if self.state is State.STOPPED:
            return
        if self.state is not State.STANDBY:
            self._on(Input.YIELD, now)
        elif why == self.last_error:
            return
        self.last_error = why
        self._log("info", f"leg {self.settings.name} is on standby: {why}")

    def take_turn(self, now: float, *, heir: bool) -> None:
        """Dial at `now` (s), as no other gateway of this name does. `heir`: another one did, so
        that the foreign broker may have a session, and another broker of the federation its
        counterpart."""
        if self.state is State.STANDBY:
            self._pair.heir = self._pair.shared = heir
            self.relay.poison.on_lost()
            self._on(Input.TURN, now)

    def on_dialled(self, session: LocalSession | None, now: float) -> None:
        """Note that the connection to the foreign broker stands. `session`: the one here, None if
        there is none; `now`: s."""
        self._pair.on_dialled(session)
        if session is not None:
            self.relay.look_for_proof(session.unanswered)
            self._follow_qos()
        self._heard = now
        self._on(Input.DIALLED, now)

    def on_lost(
        self, why: str, now: float, least: float = 0.0, *, displeased: bool = False
    ) -> None:
        """Note that a connection could not be opened or has ended; harmless when repeated. `why`:
        for the log; `now`: s; `least`: s until the next dial at least; `displeased`: the foreign
        broker does not like what it got."""
        if self.state in (State.WAITING, State.RESTING, State.STANDBY, State.STOPPED):
            return
        self.counters.failures += 1
        where = f"leg {self.settings.name} to {self.address}"
        once = self.settings.start is Start.ONCE
        if blamed := self._blame(why, now, displeased=displeased):
            why += f", probably for {blamed}"
            least = max(least, PAUSE)
        elif self.state is State.UP and self._backoff.is_taken_over(why, now):
            why += f" again and again: another client may be {shorten(self.settings.client_id)}"
            least = TAKEN_OVER_PAUSE + self._rng.uniform(0.0, TAKEN_OVER_PAUSE)
        if self.state is State.CONNECTING:
            before = str(self._level)
            if self._level.on_lost(once=once) and str(self._level) != before:
                why += f"; {self._level} is tried"
        if once and not self._level.changed:
            self._on(Input.ENDED, now)
            self.last_error = why
            self._log("warning", f"{where}: {why}; it is not dialled again (start once)")
            return
        self._addresses.on_lost(was_up=self.state is State.UP)
        self._on(Input.LOST, now)
        self._due = max(self._due, now + least)
        self.last_error = why
        pause = self._due - now
        self._log(self._level_of(why), f"{where}: {why}; it is dialled again in {pause:.0f} s")

    def _blame(self, why: str, now: float, *, displeased: bool) -> str:
        """Return what the foreign broker has probably closed the connection for, "": not known.
        `why`, `now`, `displeased`: as of `on_lost`."""
        poison = self.relay.poison
        if self.state not in CROSSES or not (displeased or why in (CLOSED, RESET)):
            poison.on_lost()
            return ""
        self._closed_at = self._addresses.place
        self._effects.append(TryAddress(self._closed_at))
        if topic := poison.on_closed(now, self._exchange.published):
            return f"a message to {shorten(topic.decode(errors='replace'))}"
        # Otherwise a message may be to blame, too.
        alone = poison.alone or self.messages_out == self._crossed_before
        own = self._own.on_closed() if alone and why != RESET else ""
        return f"{own} of the leg, which is left out from now on" if own else ""

    def _level_of(self, why: str) -> str:
        """Return the level at which a failure is logged: the same again and again, in turn with
        others, is one line until the leg was up. `why`: what is said of it."""
        if why in self._told or len(self._told) >= TOLD:
            return "debug"
        self._told.add(why)
        return "warning"

    def stop(self, now: float) -> None:
        """End the leg; its sessions stay. `now`: s."""
        self._on(Input.STOP, now)

    def foreign_received(self, data: bytes, now: float) -> None:
        """Take bytes of the foreign broker, cut anywhere, at `now` (s)."""
        self._heard = now
        try:
            for packets in self.relay.there.take(data):
                self._foreign_packets(packets, now)
        except WireError as error:
            self.on_lost(error.message, now)

    def here_received(self, data: bytes, now: float) -> None:
        """Take bytes of this broker, whole packets or parts of them, at `now` (s)."""
        try:
            for packets in self.relay.here.take(data):
                if self.state in CROSSES and packets[0] >> 4 in CROSSING:
                    alone = self.relay.poison.alone
                    self._there_send(self.relay.outwards(packets, now))
                    self._here_send(self.relay.take_answers())
                    if alone:
                        self._send_alone(now)
                    if self._alarm.due:
                        self._raise_alarm(now)
                elif self.state in ENTERED:
                    self._own_packet(packets, now)
        except WireError as error:
            self.on_lost(error.message, now)

    # ---------------------------------------------------------------- steps

    def _on(self, given: Input, now: float) -> None:
        before = self.state
        action, self.state = transition(before, given)
        if before in CROSSES and self.state not in CROSSES:
            self.relay.on_lost()
            self._exchange.on_leg_down(now)
        match action:
            case Action.DIAL:
                self._dial(now, cleaned=False)
            case Action.DIAL_AGAIN:
                self._there_send(encode_packet(Disconnect(), self.version))
                self._effects.append(Close())
                self._dial(now, cleaned=True)
            case Action.GREET:
                self._greet(now)
            case Action.ENTER:
                self._ask_to_enter()
            case Action.SUBSCRIBE:
                self._enter(now)
            case Action.CARRY:
                self._carry(now)
            case Action.BACK_OFF:
                self._back_off(now)
            case Action.LEAVE:
                if before is State.UP:
                    self._publish_state(b"0", now)
                if before in ENTERED:
                    self._there_send(encode_packet(Disconnect(), self.version))
                self._effects.append(Close())

    def _dial(self, now: float, *, cleaned: bool) -> None:
        self._due = now + PATIENCE
        self._pair.dialling(cleaned=cleaned)
        if self.settings.rules.outgoing and not cleaned:
            self._effects.append(self._subscriptions.prepare())
        self._effects.append(DialForeign(self._addresses.place))

    def _greet(self, now: float) -> None:
        """Send CONNECT to the foreign broker."""
        self._due = now + PATIENCE
        level = self._level
        level.connecting()
        self._own.connecting()
        self._crossed_before = self.messages_out
        self.relay.connecting(level.version, echoing=level.plain, now=now)
        clean = self._pair.clean_start(level.version, foreign=True)
        will = self._will and STATE not in self._own.left_out
        self._there_send(
            foreign_connect(self.settings, level, self.password, clean=clean, will=will)
        )

    def _ask_to_enter(self) -> None:
        """Send CONNECT to this broker."""
        self.relay.entering()
        self.entered = None
        self._effects.append(Enter())
        clean = self._pair.clean_start(self.version, foreign=False)
        self._here_send(
            local_connect(
                self.settings, self.version, self._capabilities, clean=clean, will=self._will
            )
        )

    def _enter(self, now: float) -> None:
        """Note that both brokers have let the leg in: messages cross, and it subscribes."""
        pair = self._pair
        self.counters.refused_filters.clear()
        self._due = now + PATIENCE
        moved = pair.moved(self.address)
        if moved:
            self.relay.lower_qos.other_broker()
            self._follow_qos()
        if pair.known is not None and self._lacks_counterpart(moved):
            # Others will have their identifiers.
            self.relay.released(pair.known.incoming)
            for packet_id in pair.known.incoming:
                self._here_send(PUBREL_HEAD + PACKET_IDS[packet_id])
        if pair.present and (moved or (pair.heir and pair.known is None)):
            # What this session received with our identifiers was released elsewhere, or never is.
            self._there_send(b"".join(PUBREL_HEAD + number for number in PACKET_IDS[1:65536]))
        pair.entered()
        subscriptions = self._subscriptions
        retains = self._exchange.retains(inwards=True), self._exchange.retains(inwards=False)
        self._here_send(subscriptions.begin(self.version, retains, pair.filters))
        self._there_send(subscriptions.subscribe_there(pair.filters_there(self.address)))
        self._ping_there()
        early, self._early = self._early, []
        for packets in early:
            self._foreign_packets(packets, now)

    def _lacks_counterpart(self, moved: bool) -> bool:
        """Return whether the foreign session does not belong to the one here, and say so. `moved`:
        it is at another address."""
        settings = self.settings
        if moved:
            self.counters.moves += 1
            self._log(
                "info",
                f"leg {settings.name} goes on at {self.address}: what was not acknowledged "
                "elsewhere is sent again, and may come twice",
            )
            return True
        if self._pair.present:
            return False
        self.counters.sessions_lost += 1
        self._log(
            "warning",
            f"leg {settings.name}: the foreign broker has lost the session: what it had not "
            "acknowledged is sent again, and may come twice there",
        )
        return True

    def _subscribe_here(self, now: float) -> None:
        """Subscribe at this broker, once the foreign one has answered SUBSCRIBE and PINGREQ."""
        subscriptions = self._subscriptions
        if not subscriptions.accepted_there:
            return
        self._here_send(subscriptions.subscribe_here(self._pair.filters, self.address))
        if subscriptions.accepted_here:
            self._on(Input.SUBSCRIBED, now)

    def _carry(self, now: float) -> None:
        self._backoff.on_up(now)
        self.counters.connects += 1
        self._due = now + self._interval()
        self._busy = now
        self._addresses.on_up(now)
        self._log("info", f"leg {self.settings.name} to {self.address} is up ({self._level})")
        self.last_error = ""
        self._told.clear()
        self._level.on_up()
        self._publish_state(b"1", now)
        self._look_for_rings(now)
        if self._own.waits:
            self._ping_there()
        moved = self._pair.moved(self.address)
        self._exchange.on_leg_up(now, present=self._pair.present and not moved)
        self._send_alone(now)

    def _back_off(self, now: float) -> None:
        pause = self._backoff.next_pause(now)
        # While other addresses have not been tried, the pause is short.
        self._due = now + (SHORTEST if self._addresses.more else pause)
        self._early.clear()
        self._effects.append(Close())

    # ---------------------------------------------------------------- packets

    def _foreign_packets(self, packets: bytes, now: float) -> None:
        """Take packets of the foreign broker: some that cross, or another one. Raises
        MalformedPacket and ProtocolViolation."""
        match self.state:
            case State.ENTERING:
                self._early.append(packets)
            case State.SUBSCRIBING | State.UP if packets[0] >> 4 in CROSSING:
                # Without the bit of a bridge there is no Retain As Published.
                plain = self._level.plain and self.version != 5
                stored = self._subscriptions.brings_stored or plain
                self._here_send(self.relay.inwards(packets, now, stored=stored))
                if self.relay.poison.alone:
                    self._send_alone(now)
                if self._alarm.due:
                    self._raise_alarm(now)
            case State.CONNECTING | State.SUBSCRIBING | State.UP:
                if packets[0] >> 4 != PacketType.UNSUBACK:
                    self._foreign_packet(packets, now)

    def _foreign_packet(self, data: bytes, now: float) -> None:
        body = read_length(data, 1)[1]
        if data[:2] == b"\x20\x02" and self.version == 5:  # of a broker that knows no MQTT 5
            packet = decode_packet(data[0], data[body:], 4)
        elif data[0] >> 4 == PacketType.SUBACK:
            packet = read_suback(data[body:], self.version)
        else:
            packet = decode_packet(data[0], data[body:], self.version)
        if isinstance(packet, Connack) and self.state is State.CONNECTING:
            self._foreign_connack(packet, now)
        elif self.state not in CROSSES:
            self.on_lost(f"{type(packet).__name__.upper()} instead of CONNACK", now)
        elif isinstance(packet, Suback):
            self._note_granted(packet)
            self._note_refused(self._subscriptions.answered_there(packet), "the foreign broker")
            if self.state is State.SUBSCRIBING:
                if self._subscriptions.asks_again():
                    self._ping_there()
                self._subscribe_here(now)
        elif isinstance(packet, Disconnect):
            why = f"it disconnects: {describe(packet.reason)} (reason {packet.reason:#04x})"
            if packet.reason == ReasonCode.SESSION_TAKEN_OVER:
                why += f". Another client is {shorten(self.settings.client_id)}: no two gateways "
                why += "at one broker may have one name, unless they are of one federation"
                self.on_lost(why, now, TAKEN_OVER_PAUSE + self._rng.uniform(0.0, TAKEN_OVER_PAUSE))
            else:
                self.on_lost(why, now, displeased=packet.reason not in OTHER_REASONS)
        elif data[0] >> 4 == PacketType.PINGRESP:
            self._exchange.on_ping_answered()
            self._own_answered(now)
            if self.state is State.SUBSCRIBING:
                self._subscriptions.pinged()
                self._subscribe_here(now)
        else:
            self.on_lost(f"{type(packet).__name__.upper()} is not for a client", now)

    def _foreign_connack(self, packet: Connack, now: float) -> None:
        self._level.on_connack()
        if packet.code:
            self._refused(packet, now)
            return
        pair = self._pair
        pair.present = packet.session_present
        self._capabilities = packet.properties or {}
        self._keep_alive = float(
            self._capabilities.get(Property.SERVER_KEEP_ALIVE, self.settings.keep_alive)
        )
        self._crossing.accepted(
            self._capabilities.get(Property.MAXIMUM_PACKET_SIZE, MAX_PACKET_SIZE)
        )
        self.relay.lower_qos.accepted(self._capabilities.get(Property.MAXIMUM_QOS, 2))
        self._follow_qos()
        careful = self.relay.poison.careful
        self._exchange.on_connack(self._crossing, self.version, self._capabilities, careful=careful)
        cleaning = pair.clean_start(self.version, foreign=True)
        self._on(Input.CLEANED if cleaning else Input.ACCEPTED, now)

    def _refused(self, packet: Connack, now: float) -> None:
        """Note that the foreign broker does not let the leg in, and choose how to come again."""
        code = packet.code
        if code in UNSUPPORTED:
            self._level.change()
        elif code == ReasonCode.RETAIN_NOT_SUPPORTED:
            self._will = False
        said = (packet.properties or {}).get(Property.REASON_STRING, "")
        why = f", {shorten(said)}" if said else ""
        self.on_lost(f"it refuses: {describe(code)} (code {code:#04x}{why})", now)

    def _own_packet(self, data: bytes, now: float) -> None:
        body = read_length(data, 1)[1]
        packet = decode_packet(data[0], data[body:], self.version)
        if isinstance(packet, Connack):
            self._own_connack(packet, now)
        elif isinstance(packet, Suback):
            self._note_refused(self._subscriptions.answered_here(packet), "this broker")
            if self.state is State.SUBSCRIBING:
                self._on(Input.SUBSCRIBED, now)
        elif isinstance(packet, Disconnect):
            self.on_lost(f"this broker disconnects it (reason {packet.reason:#04x})", now)

    def _own_connack(self, packet: Connack, now: float) -> None:
        pair = self._pair
        if packet.code:
            self.on_lost(f"this broker refuses its session (code {packet.code:#04x})", now)
        elif pair.known is not None and not packet.session_present:
            pair.gone_here()
            self.on_lost("the session here is gone", now)
        else:
            if pair.heir and packet.session_present:
                pair.known = paired(self.entered)
            self._on(Input.ENTERED, now)

    def _note_granted(self, packet: Suback) -> None:
        """Take the QoS that the foreign broker grants. With MQTT 3.1.1 nothing else says which one
        it takes."""
        subscriptions = self._subscriptions
        less, most = subscriptions.granted_less(packet), subscriptions.granted_at_qos_2(packet)
        if self.version != 5 and most is not None:
            self.relay.lower_qos.granted(most)
            self._follow_qos()
        if less is not None and subscriptions.taken > less:
            self._log(
                "warning",
                f"leg {self.settings.name}: the foreign broker grants QoS {less} where more was "
                f"asked for: messages of these filters come in at QoS {less}",
            )

    def _follow_qos(self) -> None:
        """Keep to the QoS that the foreign broker takes by now, and say so if it is less."""
        most = self._subscriptions.taken = self.relay.lower_qos.taken
        if self.relay.follow_qos():
            self._log(
                "warning",
                f"leg {self.settings.name}: the foreign broker takes QoS {most} at most: messages "
                f"of a higher QoS cross at QoS {most}. To have no such line: max-qos {most}",
            )

    def _note_refused(self, refused: Iterable[tuple[str, int]], who: str) -> None:
        """Note filters that a broker refuses, with their codes. `who`: the broker, for the log."""
        for topic_filter, code in refused:
            self.counters.refused_filters.append(topic_filter)
            self._log(
                "warning",
                f"leg {self.settings.name}: {who} refuses the filter {shorten(topic_filter)} "
                f"(code {code:#04x})",
            )

    # ---------------------------------------------------------------- everything else

    def _publish_state(self, payload: bytes, now: float) -> None:
        if self._will:
            topic = self.settings.state_topic
            if STATE not in self._own.left_out:
                self._there_send(self._crossing.own(topic, payload, now, retain=True))
                self._own.sent(STATE)
            if self.settings.as_user is None:
                self._here_send(encode_packet(Publish(topic, payload, 0, True), self.version))

    def _look_for_rings(self, now: float) -> None:
        if (
            self.settings.probes
            and self._own.may_send(PROBE)
            and (probe := self._crossing.probe(now))
        ):
            self._there_send(probe)
            self._own.sent(PROBE)

    def _own_answered(self, now: float) -> None:
        """Note that PINGRESP has come, at `now` (s): a probe may follow that had to wait for it."""
        if self._own.on_ping_answered() and self.state is State.UP:
            self._look_for_rings(now)
            if self._own.waits:
                self._ping_there()
            self._send_alone(now)

    def _send_alone(self, now: float) -> None:
        """Send the next message of those that go one by one, at `now` (s), as far as all else is
        answered, and say what was dropped of them."""
        poison = self.relay.poison
        if poison.alone and self.state is State.UP and not self._own.waits:
            self._there_send(poison.take(now))
        self._log_refused()

    def _log_refused(self) -> None:
        """Say which message was dropped as the foreign broker closes the connection for it."""
        if refused := self.relay.poison.take_refused():
            ((topic, payload, _),) = messages(refused, self.version)
            self._exchange.refuse(topic, payload)
            self._log(
                "warning",
                f"leg {self.settings.name}: the foreign broker closes the connection for a message "
                f"to {shorten(topic.decode(errors='replace'))} of {len(refused)} bytes; it is "
                "dropped",
            )

    def _raise_alarm(self, now: float) -> None:
        for line in self._alarm.lines(self.address, now):
            self._log("warning", line)

    def _ping_there(self) -> None:
        self._exchange.on_ping_sent()
        self._own.on_ping_sent()
        self._there_send(encode_packet(Pingreq(), self.version))

    def _there_send(self, data: bytes) -> None:
        if data:
            self._effects.append(ToForeign(data))

    def _here_send(self, data: bytes) -> None:
        if data:
            self._effects.append(ToHere(data))

    def _log(self, level: str, text: str) -> None:
        self._effects.append(Log(level, text))
