"""What a leg subscribes to at both brokers when it connects. Pure.

What is retained at the foreign broker comes ahead of its answer to PINGREQ, behind which this
broker is subscribed to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mqttree.broker.leg.effects import Prepare
from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.leg.session_pair import AT, NOTE, PAIRED, is_note
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connect,
    Disconnect,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from mqttree.broker.wire.properties import Properties, Property

SUBSCRIBE_ID, UNSUBSCRIBE_ID = 0xFFFF, 0xFFFE
"""Packet identifiers: brokers count those of PUBLISH from 1 up."""


class Subscriptions:
    """The subscriptions of one leg. What it returns as bytes is to be sent."""

    def __init__(self, settings: LegSettings) -> None:
        """`settings`: of the leg."""
        self.brings_stored = False
        """Whether the foreign broker sends what it has retained, as MQTT 3.1.1 brings it to each
        new subscription."""
        self.taken = 2
        """The highest QoS that the foreign broker takes, as far as is known."""
        self._settings = settings
        self._version = 5
        self._retain = True, True  # whether RETAIN crosses to here, and from here
        # Of the foreign broker, then of this one, without an answer.
        self._asked: list[tuple[str, int]] = []
        self._granted: dict[str, int] = {}  # what the foreign one has granted: filters with QoS
        self._behind_retained = False  # what is retained there has come
        self._early = False  # PINGRESP has come ahead of SUBACK

    # ---------------------------------------------------------------- both, when it connects

    def prepare(self) -> Prepare:
        """Return what has the session here collect messages."""
        wanted = self._outgoing()
        properties: Properties = {
            Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF,
            # Messages already queued must not be sent on this connection.
            Property.RECEIVE_MAXIMUM: 1,
        }
        settings = self._settings
        connect = Connect(
            "MQTT", 5, False, 0, settings.session, settings.as_user, None, None, properties
        )
        subscribe = self._subscribe(wanted.items(), inwards=False, version=5)
        parts = (encode_packet(connect, 5), subscribe, encode_packet(Disconnect(), 5))
        return Prepare(tuple(wanted), b"".join(parts))

    def begin(
        self,
        version: int,
        retain: tuple[bool, bool],
        known: Mapping[str, int],
    ) -> bytes:
        """Give up filters here that are not wanted any more, as both brokers have let the leg in.

        `version`: of MQTT (4 or 5); `retain`: whether RETAIN crosses to here, and from here;
        `known`: filters of the session here with their QoS.
        """
        self._version, self._retain = version, retain
        wanted = self._outgoing()
        return self._unsubscribe(f for f in known if not is_note(f) and f not in wanted)

    def subscribe_there(self, known: Mapping[str, int]) -> bytes:
        """Subscribe at the foreign broker; MQTT 3.1.1 would bring all that is retained once more
        for a filter that is not new. `known`: filters of the session there with their QoS."""
        most = self._settings.max_qos
        wanted = {f: min(qos, most) for f, qos in self._settings.rules.incoming}
        self._granted = {}
        self._asked = []
        for topic_filter, qos in wanted.items():
            if self._version != 5 and known.get(topic_filter) == qos:
                self._granted[topic_filter] = qos
            else:
                self._asked.append((topic_filter, qos))
        self._behind_retained = self._early = False
        self.brings_stored = bool(self._asked) and self._version != 5
        gone = self._unsubscribe(f for f in known if f not in wanted)
        return gone + (self._subscribe(self._asked, inwards=True) if self._asked else b"")

    def granted_less(self, packet: Suback) -> int | None:
        """Return the lowest QoS that the foreign broker grants in its SUBACK where more was asked
        for; None: it grants all."""
        pairs = zip(self._asked, packet.codes, strict=False)
        return min((code for (_, qos), code in pairs if code < qos), default=None)

    def granted_at_qos_2(self, packet: Suback) -> int | None:
        """Return the highest QoS that the foreign broker grants, in its SUBACK or before, where 2
        was asked for; None: 2 was not asked for, or it refuses all that."""
        pairs = zip(self._asked, packet.codes, strict=False)
        new = [code for (_, qos), code in pairs if qos == 2 and code < 0x80]
        return max((*new, *(qos for qos in self._granted.values() if qos == 2)), default=None)

    def answered_there(self, packet: Suback) -> list[tuple[str, int]]:
        """Take the SUBACK of the foreign broker. Returns the filters that it refuses, with their
        codes."""
        for (topic_filter, qos), code in zip(self._asked, packet.codes, strict=False):
            if code < 0x80:
                # What is granted less is asked for again each time, as this says what is taken.
                self._granted[topic_filter] = min(qos, code)
        return self._refused(packet)

    def pinged(self) -> None:
        """Note that PINGRESP has come from the foreign broker. It has sent what it has retained
        then, unless it answers PINGREQ ahead of the SUBSCRIBE before: in that case it is to be
        asked again, once SUBACK has come (`asks_again`)."""
        if not self._behind_retained and self.brings_stored and self._asked:
            self._early = True
        else:
            self._behind_retained, self.brings_stored = True, False

    def asks_again(self) -> bool:
        """Return whether another PINGREQ is to follow, now that SUBACK has come."""
        early, self._early = self._early, False
        return early

    @property
    def accepted_there(self) -> bool:
        """Whether the foreign broker has answered SUBSCRIBE, and PINGREQ behind it."""
        return not self._asked and self._behind_retained

    def subscribe_here(self, known: Mapping[str, int], address: str) -> bytes:
        """Subscribe at this broker, notes included; nothing if it has all that.

        `known`: filters of the session here with their QoS; `address`: of the foreign broker.
        """
        notes = {f"{NOTE}{qos}/{f}": 0 for f, qos in self._granted.items()}
        notes[PAIRED] = 0
        if self._settings.more_addresses:
            notes[AT + address] = 0
        gone = self._unsubscribe(f for f in known if is_note(f) and f not in notes)
        wanted = self._outgoing() | notes
        always = self._version == 5
        self._asked = [(f, q) for f, q in wanted.items() if always or known.get(f) != q]
        return gone + (self._subscribe(self._asked, inwards=False) if self._asked else b"")

    @property
    def accepted_here(self) -> bool:
        """Whether this broker has answered SUBSCRIBE, or was not asked."""
        return not self._asked

    def answered_here(self, packet: Suback) -> list[tuple[str, int]]:
        """Take the SUBACK of this broker. Returns the filters that it refuses, with their codes."""
        return self._refused(packet)

    def _refused(self, packet: Suback) -> list[tuple[str, int]]:
        asked, self._asked = self._asked, []
        pairs = zip(asked, packet.codes, strict=False)
        return [(topic_filter, code) for (topic_filter, _), code in pairs if code >= 0x80]

    # ---------------------------------------------------------------- filters and packets

    def _outgoing(self) -> dict[str, int]:
        """Return what the leg subscribes to here, with its QoS."""
        most = min(self._settings.max_qos, self.taken)
        return {f: min(qos, most) for f, qos in self._settings.rules.outgoing}

    def _unsubscribe(self, filters: Iterable[str]) -> bytes:
        """Return an UNSUBSCRIBE, nothing without filters."""
        old = list(filters)
        return encode_packet(Unsubscribe(UNSUBSCRIBE_ID, old), self._version) if old else b""

    def _subscribe(
        self, filters: Iterable[tuple[str, int]], *, inwards: bool, version: int = 0
    ) -> bytes:
        """Return a SUBSCRIBE: No Local, Retain As Published, nothing that is retained, as a merge
        compares that. `inwards`: it is for the foreign broker; `version`: of MQTT, 0: that of the
        connection."""
        retain, version = self._retain[0 if inwards else 1], version or self._version
        if version == 5:
            requests = [
                SubscriptionRequest(f, qos, not f.startswith("$share/"), retain, 2)
                for f, qos in filters
            ]
        else:
            requests = [SubscriptionRequest(f, qos) for f, qos in filters]
        return encode_packet(Subscribe(SUBSCRIBE_ID, requests), version)
