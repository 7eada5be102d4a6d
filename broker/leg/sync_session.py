"""A second, short session of a leg at its foreign broker: it subscribes, and what comes with RETAIN
is what that broker has retained. Pure.

The leg itself subscribes with Retain As Published, so a stored message could not be told from one
that is published now. Here RETAIN is set on stored ones alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqttree.broker.leg.effects import Close, DialForeign, LegEffect, ToForeign
from mqttree.broker.leg.packets import read_suback
from mqttree.broker.leg.sync_states import SyncAction, SyncInput, SyncState, sync_transition
from mqttree.broker.wire.constants import MAX_PACKET_SIZE, MAX_TOPIC_LEVELS, PacketType
from mqttree.broker.wire.decode import decode_packet, decode_publish
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from mqttree.broker.wire.properties import Properties, Property
from mqttree.broker.wire.varint import read_length

PUBLISH = PacketType.PUBLISH
QUIET = 2.0
"""s without a retained message behind PINGRESP after which all have come: some brokers send them
beside SUBACK and PINGRESP, by another thread."""
PATIENCE = 10.0
"""s until the connection stands and the foreign broker has accepted."""
READ_AHEAD = 1024 * 1024
"""bytes that wait to be looked at, beyond which the connection is not read."""


class SyncSession:
    """One sync session after the other. Whoever uses it takes what has come by `take`."""

    def __init__(self, client_id: str, username: str | None, keep_alive: int) -> None:
        """`client_id`, `username`: at the foreign broker; `keep_alive`: s."""
        self.state = SyncState.IDLE
        self.refused: list[str] = []
        """Filters of the last question that the foreign broker has refused."""
        self.failure = ""
        """Why the session was lost, since it was wanted."""
        self.password: bytes | None = None
        """Of the user, for the next connection."""
        self.maximum_packet_size = MAX_PACKET_SIZE
        """bytes that are taken."""
        self.unusable = 0
        """Retained messages that came and that no client may publish here, or that are too
        large."""
        self._client_id, self._username = client_id, username
        self._keep_alive = self._wanted_keep_alive = float(keep_alive)
        self._version = 5
        self._effects: list[LegEffect] = []
        self._rest = b""
        self._skipped = 0  # bytes that are still to come of a message that is too large
        self._asked: Sequence[str] = ()
        self._subscribed: Sequence[str] = ()  # of the question before
        self._identifier = 0
        self._granted = False
        self._pings = self._pongs = self._marker = 0
        self._heard = self._latest = self._ping_at = 0.0

    # ---------------------------------------------------------------- outputs

    def take_effects(self) -> list[LegEffect]:
        """Drain what the driver is to do."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def due(self) -> float | None:
        """When `tick` is due (s); None: never."""
        match self.state:
            case SyncState.IDLE:
                return None
            case SyncState.DIALLING | SyncState.CONNECTING:
                return self._heard + PATIENCE
            case SyncState.ASKING if self._complete:
                return min(self._ping_at, self._latest + QUIET)
        return self._ping_at

    @property
    def reads(self) -> bool:
        """Whether more of the foreign broker is to be read."""
        return len(self._rest) < READ_AHEAD or not self.waits

    @property
    def _complete(self) -> bool:
        return self._granted and self._pongs >= self._marker

    # ---------------------------------------------------------------- inputs

    def want(self, version: int, now: float) -> None:
        """Begin a session. `version`: of MQTT (4 or 5); `now`: s."""
        self._version = version
        self.failure = ""
        self._on(SyncInput.WANTED, now)

    def on_dialled(self, now: float) -> None:
        """Note that the connection stands, at `now` (s)."""
        self._on(SyncInput.DIALLED, now)

    def ask(self, filters: Sequence[str], now: float) -> None:
        """Ask what is retained for `filters`, at `now` (s). The session is ready once it has the
        answer."""
        self._asked = filters
        self._on(SyncInput.ASKED, now)

    def received(self, data: bytes, now: float) -> None:
        """Keep bytes of the foreign broker, cut anywhere, which came at `now` (s)."""
        if self.state is not SyncState.IDLE:
            self._heard = now
            self._rest += data[self._skipped :]
            self._skipped = max(0, self._skipped - len(data))

    def on_lost(self, why: str, now: float) -> None:
        """Note that the connection could not be opened or has ended; harmless when repeated. `why`:
        for the log; `now`: s."""
        if self.state is not SyncState.IDLE:
            self.failure = why
        self._on(SyncInput.LOST, now)

    def end(self, now: float) -> None:
        """End the session at `now` (s); harmless when repeated."""
        self._on(SyncInput.ENDED, now)

    def tick(self, now: float) -> None:
        """Do what is due at `now` (s)."""
        due = self.due
        if due is None or now < due:
            return
        if self.state in (SyncState.DIALLING, SyncState.CONNECTING):
            self.on_lost(f"no answer within {PATIENCE:g} s", now)
        elif self._keep_alive and now >= self._heard + 1.5 * self._keep_alive:
            self.on_lost("it is silent", now)
        elif now >= self._ping_at:
            self._ping(now)
        if (
            self.state is SyncState.ASKING
            and self._complete
            and not self._rest
            and now >= self._latest + QUIET
        ):
            self._on(SyncInput.ANSWERED, now)

    def take(self, most: int, now: float) -> list[Publish]:
        """Return retained messages that have come, at most about `most` of them; the rest is due at
        once. `now`: s."""
        found: list[Publish] = []
        data, position, size, looked = self._rest, 0, len(self._rest), 0
        try:
            while position + 2 <= size and looked < most and self.state is not SyncState.IDLE:
                length, body = read_length(data, position + 1)
                if body < 0:
                    break
                end = body + length
                first = data[position]
                large = end - position > self.maximum_packet_size and first >> 4 == PUBLISH
                if end > size and not large:
                    break
                position = end
                looked += 1
                if large:
                    self.unusable += first & 1
                    self._skipped = max(0, end - size)
                elif first >> 4 != PUBLISH:
                    self._packet(first, data[body:end], now)
                elif first & 1:
                    found += self._usable(first, data[body:end])
                if first >> 4 == PUBLISH and first & 1:
                    self._latest = now
        except WireError as error:
            self.on_lost(error.message, now)
        self._rest = data[position:] if self.state is not SyncState.IDLE else b""
        return found

    def _usable(self, first: int, body: bytes) -> list[Publish]:
        """Return a retained message if a client may publish it here. `first`: the first byte of its
        packet; `body`: what is behind its length."""
        try:
            packet = decode_publish(first, body, self._version)
            if packet.topic.count("/") < MAX_TOPIC_LEVELS:
                return [packet]
        except WireError:
            pass
        self.unusable += 1
        return []

    @property
    def waits(self) -> bool:
        """Whether there is a whole packet that was not looked at."""
        length, body = read_length(self._rest, 1) if len(self._rest) > 1 else (0, -1)
        return body >= 0 and body + length <= len(self._rest)

    # ---------------------------------------------------------------- steps

    def _on(self, given: SyncInput, now: float) -> None:
        action, self.state = sync_transition(self.state, given)
        match action:
            case SyncAction.DIAL:
                self._heard, self._rest, self._skipped = now, b"", 0
                self._asked = self._subscribed = ()
                self._pings = self._pongs = 0
                self._effects.append(DialForeign(sync=True))
            case SyncAction.GREET:
                self._heard = now
                self._send(self._connect())
            case SyncAction.ASK:
                self._ask(now)
            case SyncAction.GIVE_UP:
                self._rest = b""
                self._effects.append(Close(sync=True))
            case SyncAction.HANG_UP:
                self._rest = b""
                self._send(encode_packet(Disconnect(), self._version))
                self._effects.append(Close(sync=True))

    def _connect(self) -> bytes:
        properties: Properties = {}
        if self._version == 5 and self.maximum_packet_size < MAX_PACKET_SIZE:
            properties[Property.MAXIMUM_PACKET_SIZE] = self.maximum_packet_size
        packet = Connect(
            "MQTT",
            self._version,
            True,
            int(self._wanted_keep_alive),
            self._client_id,
            self._username,
            self.password,
            None,
            properties or None,
        )
        return encode_packet(packet, self._version)

    def _ask(self, now: float) -> None:
        """Subscribe. What was subscribed to before is unsubscribed from, so that it brings no live
        messages."""
        self.refused = []
        if self._subscribed:
            self._send(
                encode_packet(
                    Unsubscribe(self._next_identifier(), list(self._subscribed)), self._version
                )
            )
        self._subscribed = self._asked
        self._granted, self._latest = False, now
        requests = [SubscriptionRequest(topic_filter, 0) for topic_filter in self._asked]
        packet = Subscribe(self._next_identifier(), requests)
        self._send(encode_packet(packet, self._version))
        self._ping(now)
        self._marker = self._pings

    def _next_identifier(self) -> int:
        self._identifier = self._identifier % 0xFFFF + 1
        return self._identifier

    def _ping(self, now: float) -> None:
        self._pings += 1
        self._ping_at = now + self._keep_alive / 2 if self._keep_alive else now + 1e9
        self._send(encode_packet(Pingreq(), self._version))

    def _packet(self, first: int, body: bytes, now: float) -> None:
        """Take a packet other than PUBLISH. Raises MalformedPacket and ProtocolViolation."""
        if first >> 4 == PacketType.UNSUBACK:
            return
        if first >> 4 == PacketType.SUBACK:
            packet: Packet = read_suback(body, self._version)
        else:
            packet = decode_packet(first, body, self._version)
        if isinstance(packet, Connack) and self.state is SyncState.CONNECTING:
            if packet.code:
                self.on_lost(f"it refuses (code {packet.code:#04x})", now)
                return
            known = (packet.properties or {}).get(Property.SERVER_KEEP_ALIVE)
            self._keep_alive = self._wanted_keep_alive if known is None else float(known)
            self._ping_at = now + self._keep_alive / 2 if self._keep_alive else now + 1e9
            self._on(SyncInput.ACCEPTED, now)
        elif self.state is SyncState.CONNECTING:
            self.on_lost(f"{type(packet).__name__.upper()} instead of CONNACK", now)
        elif isinstance(packet, Suback):
            if packet.packet_id == self._identifier:
                self._granted, self._latest = True, now
                pairs = zip(self._asked, packet.codes, strict=False)
                self.refused = [asked for asked, code in pairs if code >= 0x80]
        elif first >> 4 == PacketType.PINGRESP:
            self._pongs += 1
            if self._pongs == self._marker:
                self._latest = now
        elif isinstance(packet, Disconnect):
            self.on_lost(f"it disconnects (reason {packet.reason:#04x})", now)

    def _send(self, data: bytes) -> None:
        self._effects.append(ToForeign(data, sync=True))
