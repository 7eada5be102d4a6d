"""What a leg subscribes to at both brokers when it connects, and here while it is up. Pure.

What is retained at the foreign broker comes ahead of its answer to PINGREQ, behind which this
broker is subscribed to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mqttree.broker.leg.beacons import Beacons, listening
from mqttree.broker.leg.interest import Interest
from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.leg.local_subscriptions import LocalSubscriptions
from mqttree.broker.leg.session_pair import AT, NOTE, is_note
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Suback, Subscribe, SubscriptionRequest, Unsubscribe

SUBSCRIBE_ID, UNSUBSCRIBE_ID, CHANGE_ID = 0xFFFF, 0xFFFE, 0xFFFD
"""Packet identifiers: brokers count those of PUBLISH from 1 up. The last one is that of SUBSCRIBE
while the leg is up."""


class Subscriptions:
    """The subscriptions of one leg. What it returns as bytes is to be sent."""

    __slots__ = (
        "_asked",
        "_beacons",
        "_behind_retained",
        "_early",
        "_granted",
        "_interest",
        "_kept_here",
        "_local",
        "_refused_here",
        "_retain",
        "_settings",
        "_version",
        "_wanted_here",
        "brings_stored",
        "taken",
    )

    def __init__(
        self, settings: LegSettings, interest: Interest | None, beacons: Beacons | None
    ) -> None:
        """`settings`: of the leg; `interest`: what foreign clients want, None if all is sent;
        `beacons`: by which they say so, None if they do not."""
        self.brings_stored = False
        """Whether the foreign broker sends what it has retained, as MQTT 3.1.1 brings it to each
        new subscription."""
        self.taken = 2
        """The highest QoS that the foreign broker takes, as far as is known."""
        self._settings = settings
        self._interest, self._beacons = interest, beacons
        self._version = 5
        self._retain = True, True  # whether RETAIN crosses to here, and from here
        # Of the foreign broker, then of this one, without an answer.
        self._asked: list[tuple[str, int]] = []
        self._granted: dict[str, int] = {}  # what the foreign one has granted: filters with QoS
        self._behind_retained = False  # what is retained there has come
        self._early = False  # PINGRESP has come ahead of SUBACK
        self._local = LocalSubscriptions()
        self._kept_here: dict[str, int] = {}  # filters of the session here that stay
        self._wanted_here: dict[str, int] = {}  # those that it subscribes to
        self._refused_here: set[str] = set()

    @property
    def settled(self) -> bool:
        """Whether the session here has subscribed to nothing but what is wanted."""
        return self._local.settled

    # ---------------------------------------------------------------- both, when it connects

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
        known = {f: qos for f, qos in known.items() if not is_note(f)}
        self._kept_here = {f: qos for f, qos in known.items() if f in wanted}
        self._refused_here.clear()
        return self._unsubscribe(f for f in known if f not in wanted)

    def subscribe_there(self, known: Mapping[str, int]) -> bytes:
        """Subscribe at the foreign broker; MQTT 3.1.1 would bring all that is retained once more
        for a filter that is not new. `known`: filters of the session there with their QoS."""
        most = self._settings.max_qos
        wanted = {f: min(qos, most) for f, qos in self._incoming()}
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
        if self._settings.more_addresses:
            notes[AT + address] = 0
        gone = self._unsubscribe(f for f in known if is_note(f) and f not in notes)
        self._wanted_here = self._outgoing()
        wanted = self._wanted_here | notes
        always = self._version == 5 and self._interest is None
        self._asked = [(f, q) for f, q in wanted.items() if always or known.get(f) != q]
        return gone + (self._subscribe(self._asked, inwards=False) if self._asked else b"")

    @property
    def accepted_here(self) -> bool:
        """Whether this broker has answered SUBSCRIBE, or was not asked."""
        return not self._asked

    def answered_here(self, packet: Suback) -> list[tuple[str, int]]:
        """Take the SUBACK of this broker. Returns the filters that it refuses, with their codes."""
        refused = self._refused(packet)
        self._refused_here.update(topic_filter for topic_filter, _ in refused)
        return refused

    def _refused(self, packet: Suback) -> list[tuple[str, int]]:
        asked, self._asked = self._asked, []
        pairs = zip(asked, packet.codes, strict=False)
        return [(topic_filter, code) for (topic_filter, _), code in pairs if code >= 0x80]

    # ---------------------------------------------------------------- here, while it is up

    def came_up(self) -> None:
        """Note that messages cross."""
        wanted = dict(self._wanted_here)
        self._local.begin(self._kept_here | wanted, wanted, self._refused_here)

    def change(self) -> bytes:
        """Subscribe here to what foreign clients want by now."""
        self._local.change(self._outgoing())
        return self.next_change()

    def next_change(self) -> bytes:
        """Subscribe here to what is wanted, then unsubscribe from what is not."""
        new, covered = self._local.next_subscribe()
        if new:
            return self._subscribe(new, covered, CHANGE_ID)
        return self._unsubscribe(self._local.next_unsubscribe())

    def changed(self, packet: Suback) -> list[str]:
        """Take the answer to a SUBSCRIBE of `next_change`. Returns the filters that were
        refused."""
        return self._local.answered(packet.codes)

    # ---------------------------------------------------------------- filters and packets

    def _incoming(self) -> list[tuple[str, int]]:
        """Return what the leg subscribes to at the foreign broker, with its QoS."""
        incoming = self._settings.rules.incoming
        return incoming if self._beacons is None else listening(incoming)

    def _outgoing(self) -> dict[str, int]:
        """Return what the leg subscribes to here, with its QoS."""
        most = min(self._settings.max_qos, self.taken)
        outgoing = dict(self._settings.rules.outgoing)
        if self._interest is not None:
            outgoing = self._interest.subscriptions()
        return {f: min(qos, most) for f, qos in outgoing.items()}

    def _unsubscribe(self, filters: Iterable[str]) -> bytes:
        """Return an UNSUBSCRIBE, nothing without filters."""
        old = list(filters)
        return encode_packet(Unsubscribe(UNSUBSCRIBE_ID, old), self._version) if old else b""

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
        retain = self._retain[0 if inwards else 1]
        if self._version == 5:
            requests = [
                SubscriptionRequest(
                    f,
                    qos,
                    not f.startswith("$share/"),
                    retain,
                    2 if inwards or self._interest is None or f in covered else 1,
                )
                for f, qos in filters
            ]
        else:
            requests = [SubscriptionRequest(f, qos) for f, qos in filters]
        return encode_packet(Subscribe(packet_id, requests), self._version)
