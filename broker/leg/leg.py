"""The state machine of a leg: a client of the foreign broker and of this one, between which PUBLISH
and its acknowledgements pass as they are, under their packet identifiers.

Invariant: what must last is in the session at the foreign broker and in the one here, and these two
belong together. If one of them is gone the other one is not taken for its counterpart: a foreign
session without ours is ended (Clean Start), and if the foreign one is gone, ours forgets which
QoS 2 messages it has received and not seen released, as others will have their identifiers.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.leg.addresses import Addresses
from broker.leg.beacons import Beacons, listening
from broker.leg.crossing import Crossing
from broker.leg.effects import (
    AskInterest,
    Close,
    DialForeign,
    Enter,
    LegEffect,
    Log,
    ToForeign,
    ToHere,
    TryHome,
)
from broker.leg.interest import Interest, Source
from broker.leg.leg_settings import LegSettings, Start
from broker.leg.leg_states import Action, Input, State, transition
from broker.leg.local_subscriptions import LocalSubscriptions
from broker.leg.marks import Federation
from broker.leg.packets import CROSSING, PacketCutter
from broker.leg.repeats import Repeats
from broker.leg.retained_exchange import RetainedExchange
from broker.leg.unmatched import Unmatched
from broker.wire.constants import MAX_PACKET_SIZE, PacketType, ReasonCode
from broker.wire.decode import decode_packet
from broker.wire.encode import encode_packet
from broker.wire.errors import WireError
from broker.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from broker.wire.properties import Properties, Property
from broker.wire.publish_header import PACKET_IDS, PUBCOMP, PUBREL_HEAD
from broker.wire.strings import shorten
from broker.wire.varint import read_length

SHORTEST, LONGEST = 1.0, 30.0
"""s between two dials: decorrelated jitter, so that legs that lost the same broker come back at
different times."""
STABLE = 60.0
"""s that a leg has been up after which the next dial comes as soon as the first one did."""
PATIENCE = 10.0
"""s until a connection stands and both brokers have accepted."""
SUBSCRIBE_ID, UNSUBSCRIBE_ID, CHANGE_ID = 0xFFFF, 0xFFFE, 0xFFFD
"""Packet identifiers: brokers count those of PUBLISH from 1 up. The last one is that of SUBSCRIBE
while the leg is up."""
NOTE = "$leg/subscribed/"
"""Ahead of filters to which the session here subscribes for a note only, as nobody publishes there:
behind it are QoS and filter of a subscription at the foreign broker. So the leg knows after a
restart which ones it has there."""
AT = "$leg/at/"
"""Ahead of the foreign address that the leg was connected to last, such a note as well, if it has
several."""
TAKEN_OVER_PAUSE = 15.0
"""s until the next dial at least, if another client has taken the foreign session over: two that
take it from each other do so rarely."""
OWN_PAUSE = 300.0
"""s until the next dial at least, if the foreign broker is none: dialling there again would make a
ring again."""
QUEUE_LOOK = 1.0
"""s between two looks of a lazy leg whether messages wait for it."""
CROSSES = (State.SUBSCRIBING, State.UP)
"""States in which messages cross."""
UNSUPPORTED = (0x01, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
"""Codes of a CONNACK by which a broker refuses the version of MQTT."""


UNANSWERED = 2
"""CONNECT packets in a row to which a foreign broker gives no CONNACK before it is tried in another
version of MQTT, or without the bit of a bridge."""
OLD_CODES = (
    "accepted",
    "unacceptable protocol version",
    "identifier rejected",
    "server unavailable",
    "bad user name or password",
    "not authorized",
)
"""Codes of CONNACK in MQTT 3.1.1."""


def describe(code: int) -> str:
    """Return the name of a code of CONNACK or DISCONNECT."""
    if code < len(OLD_CODES):
        return OLD_CODES[code]
    try:
        return ReasonCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "unknown reason"


@dataclass(slots=True)
class LocalSession:
    """What the session here has, when a connection to the foreign broker stands."""

    filters: Mapping[str, int] = field(default_factory=dict)
    """The filters to which it has subscribed, with their QoS."""
    incoming: Collection[int] = ()
    """Identifiers of QoS 2 messages that it has received and not seen released."""


@dataclass(slots=True)
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
        rng: random.Random,
        now: float,
        federation: Federation | None = None,
        *,
        standby: bool = False,
    ) -> None:
        """`settings`: how it connects; `rng`: draws pauses; `now`: s; it dials at once, unless
        `standby`: then it waits for `take_turn`; `federation`: of this broker; without one messages
        get no mark."""
        self.settings = settings
        self.state = State.STANDBY if standby else State.WAITING
        self.counters = LegCounters()
        self.version = settings.version or 5
        """The version of MQTT in which it speaks to both, 5 or 4 (3.1.1)."""
        self.password: bytes | None = None
        """Of the user at the foreign broker, for the next connection."""
        self.last_error = ""
        """Why it was not up last."""
        self.exchange: RetainedExchange | None = None
        """Compares retained messages; None: they only cross when they are published."""
        self.waiting = 0
        """Messages that wait in the session here; the driver sets it ahead of `tick`."""
        self.entered: LocalSession | None = None
        """The session here once this broker has let the leg in; the driver sets it ahead of
        `here_received` while the leg is entering."""
        self._rng = rng
        self._effects: list[LegEffect] = []
        self._due = now  # to dial, to give up, or to ping
        self._pause = SHORTEST
        self._up_since = 0.0
        self._heard = now  # when the foreign broker sent something last
        self._keep_alive = float(settings.keep_alive)
        self._known: LocalSession | None = None
        self._forget = False  # the session here is not to be used again
        self._cleaned = False  # the old session at the foreign broker is ended
        self._capabilities: Properties = {}  # of the foreign broker
        self._present = False  # the foreign broker knew the session
        self._early: list[bytes] = []  # of the foreign broker, before this one has accepted
        self._swallowed: set[int] = set()  # PUBCOMP of this broker with these is not passed on
        self._asked: list[
            tuple[str, int]
        ] = []  # of the foreign broker, then of this one, without an answer
        self._granted: dict[str, int] = {}  # what it has granted: filters with their QoS
        self._behind_retained = False  # what is retained there has come
        self._brings_stored = False  # it comes, as MQTT 3.1.1 brings it to each new subscription
        self._there = PacketCutter()
        self._here = PacketCutter()
        self._choose_messages(federation)
        self._loops_said: set[str] = set()  # legs that were logged as they lead to the same broker
        self._rings = self._loops = 0  # those that were noticed
        # The foreign broker does not take the bridge's bit of MQTT 3.1.1.
        self._plain = settings.plain
        self._answered = False  # whether its CONNACK has come
        self._unanswered = 0  # CONNECT packets in a row without one
        self._will = bool(settings.state_topic)  # it takes a retained will
        self._addresses = Addresses(len(settings.addresses), settings.round_robin)
        self._crossed = 0  # messages, when they were counted last
        self._busy = now  # when one crossed last, as far as known
        self._repeats = Repeats()
        self._heir = False  # another gateway of this name has had both sessions
        self._tries_otherwise = False  # the next CONNECT differs from the one that failed

    def _choose_messages(self, federation: Federation | None) -> None:
        """Make what says which messages cross; `federation`: of this broker."""
        settings = self.settings
        asked = settings.interest is not Source.ALL
        self.interest = Interest(settings.rules) if asked else None
        """What foreign clients want, None if all is sent."""
        self._beacons = Beacons() if settings.interest is Source.BEACON else None
        self._local = LocalSubscriptions()
        self._kept_here: dict[str, int] = {}  # filters of the session here that stay
        self._wanted_here: dict[str, int] = {}  # those that it subscribes to
        self._refused_here: set[str] = set()
        self._crossing = Crossing(
            settings.name,
            settings.rules,
            self._rng,
            self._beacons,
            federation,
            marks=settings.marks,
        )
        self._unmatched = Unmatched(settings.rules)

    # ---------------------------------------------------------------- outputs

    def take_effects(self) -> list[LegEffect]:
        """Drain what the driver is to do."""
        effects, self._effects = self._effects, []
        if self.exchange is not None:
            effects += self.exchange.take_effects()
        return effects

    def next_deadline(self) -> float | None:
        """When `tick` is due (s); None: never."""
        if self.state in (State.STOPPED, State.STANDBY):
            return None
        dues = [self._due]
        if self.interest is not None and self.state in CROSSES:
            dues.append(self.interest.next_deadline())
        if self.exchange is not None and (due := self.exchange.due) is not None:
            dues.append(due)
        return min(dues)

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
        return self._there.messages

    @property
    def messages_out(self) -> int:
        """PUBLISH packets that went there."""
        return self._here.messages

    def drops(self) -> dict[str, int]:
        """Return how many messages did not get across, by reason: the foreign broker has refused
        them, this one has, no rule has a name for them, they had come before, and those of
        `Crossing.drops`."""
        return {
            "refused_there": self._there.refused,
            "refused_here": self._here.refused,
            "unnamed": self.settings.rules.unnamed,
            "repeated": self._repeats.dropped,
            **self._crossing.drops(),
        }

    @property
    def sends_all(self) -> bool:
        """Whether more is sent than what foreign clients are known to want."""
        return self.interest is None or not (self.interest.narrow and self._local.settled)

    @property
    def rings(self) -> int:
        """How often a probe has come back to this federation by another way."""
        return self._crossing.rings

    @property
    def loops(self) -> int:
        """How often the probe of another leg of this federation has come from the foreign
        broker."""
        return self._crossing.loops

    def same_broker(self, now: float) -> list[str]:
        """Return the other legs of this federation that lead to the same foreign broker, or to one
        that is bridged with it, as far as was noticed lately. `now`: s."""
        return self._crossing.same_broker(now)

    def unmatched(self) -> dict[str, Any]:
        """Return how many messages the foreign broker has answered, for how many of these it had no
        subscriber, and for which rules, if there are several."""
        return {
            "answered": self._there.answered,
            "no_subscribers": self._there.unmatched,
            "no_subscribers_by_rule": self._unmatched.by_rule(),
        }

    # ---------------------------------------------------------------- inputs

    def tick(self, now: float) -> None:
        """Do what is due at `now` (s)."""
        self._look_for_interest(now)
        if self.exchange is not None:
            self.exchange.tick(now)
        if now < self._due or self.state in (State.STOPPED, State.STANDBY):
            return
        if self.state is State.WAITING:
            self._on(Input.DUE, now)
        elif self.state is State.RESTING:
            self._due = now + QUEUE_LOOK
            if self.waiting >= self.settings.threshold:
                self._on(Input.NEEDED, now)
        elif self.state is not State.UP:
            self.lost(f"no answer within {PATIENCE:g} s", now)
        elif self._keep_alive and now >= self._heard + 1.5 * self._keep_alive:
            self.lost("it is silent", now)
        elif self._idle(now):
            self._log("info", f"leg {self.settings.name} rests, as nothing is to be sent")
            self._on(Input.IDLE, now)
            self._due = now + QUEUE_LOOK
        else:
            if self._keep_alive:
                self._ping_there()
            self._due = now + self._interval()
            self._look_for_rings(now)
            if self._addresses.looks_home(now):
                self._effects.append(TryHome())

    def _interval(self) -> float:
        """Return s between two ticks of a leg that is up."""
        return self._keep_alive / 2 if self._keep_alive else PATIENCE

    def _idle(self, now: float) -> bool:
        """Return whether a lazy leg has nothing to do at `now` (s)."""
        crossed = self.messages_in + self.messages_out
        if crossed != self._crossed or self.waiting:
            self._crossed, self._busy = crossed, now
        return self.settings.start is Start.LAZY and now - self._busy >= self.settings.idle_timeout

    def home_answers(self, now: float) -> None:
        """Go back to the first address, which answers at `now` (s)."""
        if self.state is State.UP:
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
            self._heir = heir
            self._on(Input.TURN, now)

    def dialled(self, session: LocalSession | None, now: float) -> None:
        """Note that the connection to the foreign broker stands. `session`: the one here, None if
        there is none; `now`: s."""
        self._known = None if self._forget else session
        self._heard = now
        self._on(Input.DIALLED, now)

    def lost(self, why: str, now: float, least: float = 0.0) -> None:
        """Note that a connection could not be opened or has ended; harmless when repeated. `why`:
        for the log; `now`: s; `least`: s until the next dial at least."""
        if self.state in (State.WAITING, State.RESTING, State.STANDBY, State.STOPPED):
            return
        self.counters.failures += 1
        where = f"leg {self.settings.name} to {self.address}"
        if self.state is State.CONNECTING and not self._answered:
            self._unanswered += 1
            if self._unanswered >= UNANSWERED or self.settings.start is Start.ONCE:
                self._speak_otherwise()
                why += f"; {self._language()} is tried"
        if self.settings.start is Start.ONCE and not self._tries_otherwise:
            self._on(Input.ENDED, now)
            self.last_error = why
            self._log("warning", f"{where}: {why}; it is not dialled again (start once)")
            return
        self._addresses.lost(was_up=self.state is State.UP)
        self._on(Input.LOST, now)
        self._due = max(self._due, now + least)
        # The same again and again is one line.
        level = "debug" if why == self.last_error else "warning"
        self.last_error = why
        pause = self._due - now
        self._log(level, f"{where}: {why}; it is dialled again in {pause:.0f} s")

    def stop(self, now: float) -> None:
        """End the leg; its sessions stay. `now`: s."""
        self._on(Input.STOP, now)

    def foreign_received(self, data: bytes, now: float) -> None:
        """Take bytes of the foreign broker, cut anywhere, at `now` (s)."""
        self._heard = now
        try:
            before = self._there.unmatched
            for packets in self._there.take(data):
                if self._there.unmatched != before:
                    self._unmatched.answered(packets)
                self._foreign_packets(packets, now)
        except WireError as error:
            self.lost(error.message, now)

    def here_received(self, data: bytes, now: float) -> None:
        """Take bytes of this broker, whole packets or parts of them, at `now` (s)."""
        try:
            for packets in self._here.take(data):
                if self.state in CROSSES and packets[0] >> 4 in CROSSING:
                    if self._swallowed:
                        packets = self._without_swallowed(packets)
                    if packets:
                        self._repeats.passed(packets, out=True)
                        packets = self._outwards(packets, now)
                        if self._unmatched.kept:
                            self._unmatched.sent(packets)
                        self._there_send(packets)
                        if self._crossing.rings != self._rings:
                            self._note_ring()
                elif self.state in (State.ENTERING, *CROSSES):
                    self._own_packet(packets, now)
        except WireError as error:
            self.lost(error.message, now)

    def interest_answered(self, filters: Collection[str], now: float) -> None:
        """Take what foreign clients subscribe to, as `filters`, without the leg's own ones. `now`:
        s."""
        if self.interest is not None:
            self.interest.answered(filters, now)
            self._follow_interest()

    def interest_failed(self, why: str, now: float) -> None:
        """Note that it could not be found what foreign clients subscribe to, for the reason `why`,
        at `now` (s)."""
        if self.interest is not None:
            self.interest.failed(why, now)
            self._follow_interest()

    # ---------------------------------------------------------------- steps

    def _on(self, given: Input, now: float) -> None:
        before = self.state
        action, self.state = transition(before, given)
        if before in CROSSES and self.state not in CROSSES:
            self._repeats.lost()
            if self.exchange is not None:
                self.exchange.down(now)
        match action:
            case Action.DIAL:
                self._due = now + PATIENCE
                self._cleaned = False
                self._effects.append(DialForeign(self._addresses.place))
            case Action.DIAL_AGAIN:
                self._due = now + PATIENCE
                self._cleaned = True
                self._there_send(encode_packet(Disconnect(), self.version))
                self._effects += (Close(), DialForeign(self._addresses.place))
            case Action.GREET:
                self._due = now + PATIENCE
                self._there.clear()
                self._answered = self._tries_otherwise = False
                self._crossing.begin(self.version, self._plain, now)
                self._there_send(self._connect(self.settings.client_id, foreign=True))
            case Action.ENTER:
                self._here.clear()
                self._swallowed.clear()
                self.entered = None
                self._effects.append(Enter())
                self._here_send(self._connect(self.settings.session, foreign=False))
            case Action.SUBSCRIBE:
                self._enter(now)
            case Action.CARRY:
                self._carry(now)
            case Action.BACK_OFF:
                self._back_off(now)
            case Action.LEAVE:
                if before is State.UP:
                    self._publish_state(b"0", now)
                if before in (State.ENTERING, *CROSSES):
                    self._there_send(encode_packet(Disconnect(), self.version))
                self._effects.append(Close())

    def _connect(self, client_id: str, *, foreign: bool) -> bytes:
        """Return the CONNECT to the foreign broker, or to this one."""
        settings, properties = self.settings, Properties()
        five = self.version == 5
        if five and foreign:
            if not self._clean_start(foreign):
                properties[Property.SESSION_EXPIRY_INTERVAL] = settings.expiry
            properties[Property.RECEIVE_MAXIMUM] = settings.receive_maximum
            if settings.topic_alias_maximum:
                properties[Property.TOPIC_ALIAS_MAXIMUM] = settings.topic_alias_maximum
            if settings.maximum_packet_size < MAX_PACKET_SIZE:
                properties[Property.MAXIMUM_PACKET_SIZE] = settings.maximum_packet_size
        elif five:
            properties[Property.SESSION_EXPIRY_INTERVAL] = 0xFFFFFFFF
            # No topic aliases: the topic of a retained message has to be seen.
            for name in (Property.RECEIVE_MAXIMUM, Property.MAXIMUM_PACKET_SIZE):
                if name in self._capabilities:
                    properties[name] = self._capabilities[name]
            if settings.max_rate:
                window = properties.get(Property.RECEIVE_MAXIMUM, 65_535)
                properties[Property.RECEIVE_MAXIMUM] = min(window, settings.max_rate)
        return encode_packet(
            Connect(
                "MQTT",
                self.version,
                self._clean_start(foreign),
                settings.keep_alive if foreign else 0,
                client_id,
                settings.username if foreign else settings.as_user,
                self.password if foreign else None,
                self._last_will(foreign),
                (properties or None) if five else None,
                bridge=not five and not (foreign and self._plain),
            ),
            self.version,
        )

    def _last_will(self, foreign: bool) -> Will | None:
        """Return what a broker is to publish when the leg is lost. Rules of a user might refuse it
        here, and the leg with it."""
        if not self._will or (not foreign and self.settings.as_user is not None):
            return None
        return Will(self.settings.state_topic, b"0", retain=True)

    def _publish_state(self, payload: bytes, now: float) -> None:
        if self._will:
            topic = self.settings.state_topic
            self._there_send(self._crossing.own(topic, payload, now, retain=True))
            if self.settings.as_user is None:
                self._here_send(encode_packet(Publish(topic, payload, 0, True), self.version))

    def _look_for_rings(self, now: float) -> None:
        if self.settings.probes and (probe := self._crossing.probe(now)):
            self._there_send(probe)

    def _note_ring(self) -> None:
        self._rings = self._crossing.rings
        self._log(
            "warning",
            f"leg {self.settings.name}: what it sends to {self.address} comes back to "
            "this federation by another way: that broker has a second leg or a bridge, or is one "
            "of this federation. Topics in which a message goes round are muted",
        )

    def _note_loops(self, now: float) -> None:
        """Log at `now` (s) which legs lead to the same broker, each once as long as it lasts."""
        self._loops, found = self._crossing.loops, set(self._crossing.same_broker(now))
        for name in sorted(found - self._loops_said):
            self._log(
                "warning",
                f"legs {self.settings.name} and {shorten(name)} of this federation lead to one "
                f"broker, {self.settings.address}, or to brokers that are bridged: a message may "
                "cross by each of them. Take one of them out, or give them different topics",
            )
        self._loops_said = found

    def _clean_start(self, foreign: bool) -> bool:
        """Return whether CONNECT ends an old session. In MQTT 3.1.1 this also makes the new one end
        with its connection, and Mosquitto does not write such a session to the disk in MQTT 5
        either: so the foreign broker gets a connection for that alone."""
        if self._known is not None or self._heir:
            return False
        return not self._cleaned if foreign else self.version == 5

    def _enter(self, now: float) -> None:
        """Note that both brokers have let the leg in: messages cross, and it subscribes."""
        self._forget = False
        self.counters.refused_filters.clear()
        self._due = now + PATIENCE
        if self._known is not None and self._lacks_counterpart(self._known):
            # Others will have their identifiers.
            self._repeats.clear()
            self._swallowed.update(self._known.incoming)
            for packet_id in self._known.incoming:
                self._here_send(PUBREL_HEAD + PACKET_IDS[packet_id])
        if self._present and (self._moved() or (self._heir and self._known is None)):
            # What this session received with our identifiers was released elsewhere, or never is.
            self._there_send(b"".join(PUBREL_HEAD + number for number in PACKET_IDS[1:65536]))
        self._heir = False
        if self.interest is not None:
            self.interest.begin(now)
        if self._beacons is not None:
            self._beacons.begin(now)
        wanted = self._outgoing()
        known_here = {f: q for f, q in self._known_here().items() if not f.startswith((NOTE, AT))}
        old = [f for f in known_here if f not in wanted]
        self._kept_here = {f: q for f, q in known_here.items() if f in wanted}
        self._refused_here.clear()
        if old:
            self._here_send(encode_packet(Unsubscribe(UNSUBSCRIBE_ID, old), self.version))
        self._subscribe_there()
        early, self._early = self._early, []
        for packets in early:
            self._foreign_packets(packets, now)

    def _lacks_counterpart(self, known: LocalSession) -> bool:
        """Return whether the foreign session does not belong to the one here (`known`), and say
        so."""
        settings = self.settings
        if self._moved():
            self.counters.moves += 1
            self._log(
                "info",
                f"leg {settings.name} goes on at {self.address}: what was not acknowledged "
                "elsewhere is sent again, and may come twice",
            )
            return True
        if self._present:
            return False
        self.counters.sessions_lost += 1
        self._log(
            "warning",
            f"leg {settings.name}: the foreign broker has lost the session: what it had not "
            "acknowledged is sent again, and may come twice there",
        )
        return True

    def _moved(self) -> bool:
        """Return whether the leg was connected to another address last."""
        last = next((f for f in self._known_here() if f.startswith(AT)), None)
        return last is not None and last != AT + self.address

    def _known_here(self) -> Mapping[str, int]:
        return {} if self._known is None else self._known.filters

    def _known_there(self) -> dict[str, int]:
        """Return what the leg has subscribed to at the foreign broker: filters with their QoS."""
        if not self._present or self._moved():
            return {}
        notes = (f[len(NOTE) :] for f in self._known_here() if f.startswith(NOTE))
        return {note[2:]: int(note[0]) for note in notes}

    def _subscribe_there(self) -> None:
        """Subscribe at the foreign broker; what is retained there comes ahead of the answer to
        PINGREQ, behind which this broker is subscribed to. MQTT 3.1.1 would bring all that is
        retained once more for a filter that is not new."""
        known, most = self._known_there(), self.settings.max_qos
        wanted = {f: min(qos, most) for f, qos in self._incoming()}
        old = [topic_filter for topic_filter in known if topic_filter not in wanted]
        if old:
            self._there_send(encode_packet(Unsubscribe(UNSUBSCRIBE_ID, old), self.version))
        self._granted = {}
        self._asked = []
        for topic_filter, qos in wanted.items():
            if self.version != 5 and known.get(topic_filter) == qos:
                self._granted[topic_filter] = qos
            else:
                self._asked.append((topic_filter, qos))
        if self._asked:
            self._there_send(self._subscribe(self._asked, inwards=True))
        self._behind_retained = False
        self._brings_stored = bool(self._asked) and self.version != 5
        self._ping_there()

    def _subscribe_here(self, now: float) -> None:
        """Subscribe at this broker, once the foreign one has answered SUBSCRIBE and PINGREQ."""
        if self._asked or not self._behind_retained:
            return
        known = self._known_here()
        notes = {f"{NOTE}{qos}/{f}": 0 for f, qos in self._granted.items()}
        if self.settings.more_addresses:
            notes[AT + self.address] = 0
        old = [f for f in known if f.startswith((NOTE, AT)) and f not in notes]
        if old:
            self._here_send(encode_packet(Unsubscribe(UNSUBSCRIBE_ID, old), self.version))
        self._wanted_here = self._outgoing()
        wanted = self._wanted_here | notes
        always = self.version == 5 and self.interest is None
        self._asked = [(f, q) for f, q in wanted.items() if always or known.get(f) != q]
        if self._asked:
            self._here_send(self._subscribe(self._asked, inwards=False))
        else:
            self._on(Input.SUBSCRIBED, now)

    def _incoming(self) -> list[tuple[str, int]]:
        """Return what the leg subscribes to at the foreign broker, with its QoS."""
        incoming = self.settings.rules.incoming
        return incoming if self._beacons is None else listening(incoming)

    def _outgoing(self) -> dict[str, int]:
        """Return what the leg subscribes to here, with its QoS."""
        most = min(self.settings.max_qos, self._capabilities.get(Property.MAXIMUM_QOS, 2))
        outgoing = dict(self.settings.rules.outgoing)
        if self.interest is not None:
            outgoing = self.interest.subscriptions()
        return {f: min(qos, most) for f, qos in outgoing.items()}

    def _look_for_interest(self, now: float) -> None:
        """Ask what foreign clients want if that is due at `now` (s)."""
        if self.interest is None or self.state not in CROSSES:
            return
        self.interest.tick(now)
        if self._beacons is None:
            if self.interest.asks(now):
                self._effects.append(AskInterest())
        elif self.interest.asks(now):
            if (filters := self._beacons.filters(now)) is None:
                self.interest.postponed(now)
            else:
                self.interest.answered(filters, now)
        self._follow_interest()

    def _follow_interest(self) -> None:
        """Subscribe here to what foreign clients want by now, as far as that is known."""
        if self.interest is None:
            return
        for level, line in self.interest.take_lines():
            self._log(level, f"leg {self.settings.name}: {line}")
        if self.state is State.UP:
            self._local.change(self._outgoing())
            self._change_local()

    def _change_local(self) -> None:
        """Subscribe here to what is wanted, then unsubscribe from what is not."""
        new, covered = self._local.next_subscribe()
        if new:
            self._here_send(self._subscribe(new, covered, CHANGE_ID))
        elif old := self._local.next_unsubscribe():
            self._here_send(encode_packet(Unsubscribe(UNSUBSCRIBE_ID, old), self.version))

    def _local_suback(self, packet: Suback, now: float) -> None:
        """Take the answer to a SUBSCRIBE of `_change_local`, at `now` (s)."""
        if refused := self._local.answered(packet.codes):
            code = max(packet.codes)
            why = f"this broker refuses the filter {shorten(refused[0])} (code {code:#04x})"
            if self.interest is not None and self.interest.narrow:
                self.interest.refused(why, now)
                self._follow_interest()
                return
            self._log("warning", f"leg {self.settings.name}: {why}")
        self._change_local()

    def _carry(self, now: float) -> None:
        self._up_since = now
        wanted = dict(self._wanted_here)
        self._local.begin(self._kept_here | wanted, wanted, self._refused_here)
        self.counters.connects += 1
        self._due = now + self._interval()
        self._busy = now
        self._addresses.came_up(now)
        self._log(
            "info",
            f"leg {self.settings.name} to {self.address} is up ({self._language()})",
        )
        self.last_error = ""
        self._unanswered = 0
        self._publish_state(b"1", now)
        self._look_for_rings(now)
        # Answers came while it was not up.
        self._follow_interest()
        if self.exchange is not None:
            self.exchange.up(now, present=self._present and not self._moved())

    def _subscribe(
        self,
        filters: Iterable[tuple[str, int]],
        covered: Collection[str] = (),
        packet_id: int = SUBSCRIBE_ID,
        *,
        inwards: bool = False,
    ) -> bytes:
        """Return a SUBSCRIBE: No Local, Retain As Published, nothing that is retained, as a merge
        compares that. What foreign clients begin to want is sent at once, unless it is `covered` by
        other filters. `inwards`: it is for the foreign broker."""
        five = self.version == 5
        retain = self._capabilities.get(Property.RETAIN_AVAILABLE, 1) == 1
        if self.exchange is not None:
            retain = self.exchange.retains(inwards=inwards)
        requests = [
            SubscriptionRequest(
                f,
                qos,
                not f.startswith("$share/"),
                retain,
                2 if inwards or self.interest is None or f in covered else 1,
            )
            if five
            else SubscriptionRequest(f, qos)
            for f, qos in filters
        ]
        return encode_packet(Subscribe(packet_id, requests), self.version)

    def _back_off(self, now: float) -> None:
        if self._up_since and now - self._up_since >= STABLE:
            self._pause = SHORTEST
        self._up_since = 0.0
        self._pause = min(LONGEST, self._rng.uniform(SHORTEST, 3 * self._pause))
        # While other addresses have not been tried, the pause is short.
        self._due = now + (SHORTEST if self._addresses.more else self._pause)
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
                self._repeats.passed(packets, out=False)
                packets = self._repeats.without(packets, self.version)
                self._here_send(self._inwards(packets, now))
                if self._crossing.loops != self._loops:
                    self._note_loops(now)
                if self.interest is not None and self._beacons is not None and self._beacons.new:
                    self._beacons.new = False
                    self.interest.hurry(now)
            case State.CONNECTING | State.SUBSCRIBING | State.UP:
                self._foreign_packet(packets, now)

    def _inwards(self, packets: bytes, now: float) -> bytes:
        """Return packets that cross as they are for this broker. Raises MalformedPacket and
        ProtocolViolation."""
        exchange = self.exchange
        if exchange is not None:
            if exchange.listens:
                exchange.acknowledged(packets, now)
            if self._there.retained:
                # Without the bit of a bridge there is no Retain As Published.
                stored = self._brings_stored or (self._plain and self.version != 5)
                packets = exchange.incoming(packets, stored=stored)
        return self._crossing.inwards(packets, now)

    def _outwards(self, packets: bytes, now: float) -> bytes:
        """Return packets that cross as they are for the foreign broker. Raises MalformedPacket and
        ProtocolViolation."""
        crossed = self._crossing.outwards(packets, now)
        if self.exchange is not None and self._here.retained:
            return self.exchange.outgoing(packets, crossed, now)
        return crossed

    def _foreign_packet(self, data: bytes, now: float) -> None:
        body = read_length(data, 1)[1]
        if data[:2] == b"\x20\x02" and self.version == 5:  # of a broker that knows no MQTT 5
            packet = decode_packet(data[0], data[body:], 4)
        else:
            packet = decode_packet(data[0], data[body:], self.version)
        if isinstance(packet, Connack) and self.state is State.CONNECTING:
            self._foreign_connack(packet, now)
        elif self.state not in CROSSES:
            self.lost(f"{type(packet).__name__.upper()} instead of CONNACK", now)
        elif isinstance(packet, Suback):
            self._foreign_suback(packet, now)
        elif isinstance(packet, Disconnect):
            why = f"it disconnects: {describe(packet.reason)} (reason {packet.reason:#04x})"
            if packet.reason == ReasonCode.SESSION_TAKEN_OVER:
                why += f". Another client is {shorten(self.settings.client_id)}: no two gateways "
                why += "at one broker may have one name, unless they are of one federation"
                self.lost(why, now, TAKEN_OVER_PAUSE + self._rng.uniform(0.0, TAKEN_OVER_PAUSE))
            else:
                self.lost(why, now)
        elif data[0] >> 4 == PacketType.PINGRESP:
            if self.exchange is not None:
                self.exchange.ping_answered(now)
            if self.state is State.SUBSCRIBING:
                self._behind_retained, self._brings_stored = True, False
                self._subscribe_here(now)
        elif data[0] >> 4 != PacketType.UNSUBACK:
            self.lost(f"{type(packet).__name__.upper()} is not for a client", now)

    def _speak_otherwise(self) -> None:
        """Choose how to connect next: MQTT 5, 3.1.1 as a bridge, 3.1.1, and from the start."""
        self._unanswered = 0
        self._tries_otherwise = True
        if self.version == 5 and not self.settings.version:
            self.version = 4
        elif self.version == 4 and not self._plain:
            self._plain = True
        else:
            self._tries_otherwise = False
            self.version, self._plain = self.settings.version or 5, self.settings.plain

    def _language(self) -> str:
        """Return how the leg connects, for people."""
        if self.version == 5:
            return "MQTT 5"
        return "MQTT 3.1.1 without the bit of a bridge" if self._plain else "MQTT 3.1.1"

    def _foreign_connack(self, packet: Connack, now: float) -> None:
        self._answered = True
        if packet.code:
            self._refused(packet, now)
            return
        self._present = packet.session_present
        self._capabilities = packet.properties or {}
        self._keep_alive = float(
            self._capabilities.get(Property.SERVER_KEEP_ALIVE, self.settings.keep_alive)
        )
        self._crossing.accepted(
            self._capabilities.get(Property.MAXIMUM_PACKET_SIZE, MAX_PACKET_SIZE)
        )
        if self.exchange is not None:
            self.exchange.connecting(self._crossing, self.version, self._capabilities)
        cleaning = self._clean_start(foreign=True)
        self._on(Input.CLEANED if cleaning else Input.ACCEPTED, now)

    def _foreign_suback(self, packet: Suback, now: float) -> None:
        for (topic_filter, qos), code in zip(self._asked, packet.codes, strict=False):
            if code < 0x80:
                self._granted[topic_filter] = qos
        self._note_refused(packet, "the foreign broker")
        if self.state is State.SUBSCRIBING:
            self._subscribe_here(now)

    def _refused(self, packet: Connack, now: float) -> None:
        """Note that the foreign broker does not let the leg in, and choose how to come again."""
        code = packet.code
        if code in UNSUPPORTED:
            self._speak_otherwise()
        elif code == ReasonCode.RETAIN_NOT_SUPPORTED:
            self._will = False
        said = (packet.properties or {}).get(Property.REASON_STRING, "")
        why = f", {shorten(said)}" if said else ""
        self.lost(f"it refuses: {describe(code)} (code {code:#04x}{why})", now)

    def _own_packet(self, data: bytes, now: float) -> None:
        body = read_length(data, 1)[1]
        packet = decode_packet(data[0], data[body:], self.version)
        if isinstance(packet, Connack):
            if packet.code:
                self.lost(f"this broker refuses its session (code {packet.code:#04x})", now)
            elif self._known is not None and not packet.session_present:
                # Its counterpart at the foreign broker goes, too.
                self._forget = True
                self.lost("the session here is gone", now)
            else:
                if self._heir and packet.session_present:
                    self._known = self.entered
                self._on(Input.ENTERED, now)
        elif isinstance(packet, Suback) and packet.packet_id == CHANGE_ID:
            self._local_suback(packet, now)
        elif isinstance(packet, Suback):
            self._refused_here.update(self._note_refused(packet, "this broker"))
            if self.state is State.SUBSCRIBING:
                self._on(Input.SUBSCRIBED, now)
        elif isinstance(packet, Disconnect):
            self.lost(f"this broker disconnects it (reason {packet.reason:#04x})", now)

    def _note_refused(self, packet: Suback, who: str) -> list[str]:
        """Note the filters that a broker refuses, and return them. `packet`: its answer; `who`: it,
        for the log."""
        asked, self._asked = self._asked, []
        refused = []
        for (topic_filter, _), code in zip(asked, packet.codes, strict=False):
            if code >= 0x80:
                refused.append(topic_filter)
                self.counters.refused_filters.append(topic_filter)
                self._log(
                    "warning",
                    f"leg {self.settings.name}: {who} refuses the filter {shorten(topic_filter)} "
                    f"(code {code:#04x})",
                )
        return refused

    def _without_swallowed(self, packets: bytes) -> bytes:
        """Leave out PUBCOMP of messages whose identifiers the foreign broker has forgotten."""
        kept = []
        position = 0
        while position < len(packets):
            length, body = read_length(packets, position + 1)
            end = body + length
            number = int.from_bytes(packets[body : body + 2], "big")
            if packets[position] == PUBCOMP and number in self._swallowed:
                self._swallowed.discard(number)
            else:
                kept.append(packets[position:end])
            position = end
        return b"".join(kept)

    # ---------------------------------------------------------------- the sync session

    def sync_dialled(self, now: float) -> None:
        """Note that the second connection to the foreign broker stands, at `now` (s)."""
        if self.exchange is not None:
            self.exchange.sync.dialled(now)

    def sync_received(self, data: bytes, now: float) -> None:
        """Take bytes of the foreign broker on that connection, cut anywhere, at `now` (s)."""
        if self.exchange is not None:
            self.exchange.sync.received(data, now)
            self.exchange.go_on(now)

    def sync_lost(self, why: str, now: float) -> None:
        """Note that that connection could not be opened or has ended; harmless when repeated.
        `why`: for the log; `now`: s."""
        if self.exchange is not None:
            self.exchange.sync.lost(why, now)
            self.exchange.go_on(now)

    # ---------------------------------------------------------------- everything else

    def _ping_there(self) -> None:
        if self.exchange is not None:
            self.exchange.ping_sent()
        self._there_send(encode_packet(Pingreq(), self.version))

    def _there_send(self, data: bytes) -> None:
        self._effects.append(ToForeign(data))

    def _here_send(self, data: bytes) -> None:
        self._effects.append(ToHere(data))

    def _log(self, level: str, text: str) -> None:
        self._effects.append(Log(level, text))
