"""Bridges of other brokers, clients with the top bit of the protocol level, and rings that they
close.

A foreign broker with two bridges to us sends what it got by one of them by the other: a message
goes round for ever, as MQTT counts no hops, and two equal messages may as well be two. So what
leads where is asked, not guessed:

    a bridge is read often   -> probe: a message of a topic without other use, to this bridge alone
    that comes by another one -> both lead to one broker: the younger is closed, and refused as long
                                as the older is connected [bridge_loops]
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, Protocol

from mqttree.broker.core.client import ClientHost
from mqttree.broker.core.client_packets import ClientPackets
from mqttree.broker.core.message import Message
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.strings import shorten
from mqttree.routing.topic_filter import matches, split_shared

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.session import Session
    from mqttree.broker.wire.packets import Connect

BRIDGE_READS: Final = 64
FIRST_PROBE_INTERVAL_S: Final = 1.0
MAX_PROBE_INTERVAL_S: Final = 300.0
"""A bridge of another broker that was read so often is probed for a ring, a second after the
last bridge came at the earliest and then in intervals (s) that double up to the last of these:
a ring reads as fast as the network goes, and subscribers of `#` there see each probe
[bridge_loops]."""

TOPIC: Final = b"mqttree/probe/"
"""How the topics of probes begin; a number in hexadecimal follows."""
DIGITS: Final = 16
"""Characters of that number."""


class BridgeHost(ClientHost, Protocol):
    """What bridges ask of their broker."""

    @property
    def rng(self) -> random.Random:
        """Draws the numbers of probes."""

    @property
    def bridges(self) -> Bridges:
        """The bridges of this broker."""


class BridgePackets(ClientPackets):
    """A client that is another broker's bridge."""

    __slots__ = ("bridges", "pause", "probe_at", "probe_topic", "reads")

    def __init__(
        self, node: BridgeHost, conn: Connection, session: Session, connect: Connect
    ) -> None:
        """`node`: this broker; `conn`: the bridge's connection; `session`: its session; `connect`:
        its CONNECT packet."""
        super().__init__(node, conn, session, connect)
        self.bridges = node.bridges
        self.reads = 0  # since its last probe
        self.pause = FIRST_PROBE_INTERVAL_S  # s until the next probe
        self.probe_at = 0.0
        self.probe_topic = b""  # of its last probe
        node.bridges.on_bridge_connected(self)

    def packets(self, data: bytes, now: float) -> int:
        """Handle the whole packets at the start of `data`; returns the bytes used. `now`: s."""
        self.reads += 1
        if TOPIC in data and self.bridges.probe_came(self, data):
            return len(data)
        if self.reads >= BRIDGE_READS and now >= self.probe_at:
            self.bridges.probe(self, now)
        return super().packets(data, now)


class Bridges:
    """The bridges of one broker."""

    def __init__(self, node: BridgeHost) -> None:
        self._node = node
        self._clients: dict[str, BridgePackets] = {}  # by client id; some may have gone
        self._refused: dict[str, str] = {}  # client ids: the younger and the older of two

    def on_bridge_connected(self, client: BridgePackets) -> None:
        """Note that a bridge is connected. All are soon probed again, as what leads where may
        have changed."""
        clients = self._clients
        for client_id in [known for known, other in clients.items() if not _connected(other)]:
            del clients[client_id]
        clients[client.session.client_id] = client
        for other in clients.values():
            other.pause = FIRST_PROBE_INTERVAL_S
            other.probe_at = min(other.probe_at, self._node.now + other.pause)

    def refuses(self, client_id: str) -> str:
        """Return the client id of the older bridge that leads where this one does, if that is
        connected; "" otherwise."""
        older = self._refused.get(client_id, "")
        if older and not ((known := self._clients.get(older)) and _connected(known)):
            del self._refused[client_id]
            return ""
        return older

    def probe(self, client: BridgePackets, now: float) -> None:
        """Send a probe to a bridge, if there is another one by which it could come back; `now`: s.
        The next one follows later than this one did."""
        client.reads = 0
        client.probe_at = now + client.pause
        client.pause = min(2 * client.pause, MAX_PROBE_INTERVAL_S)
        session = client.session
        topic = b"%s%0*x" % (TOPIC, DIGITS, self._node.rng.getrandbits(4 * DIGITS))
        name = topic.decode()
        if (
            sum(map(_connected, self._clients.values())) > 1
            and (session.permissions is None or session.permissions.may_receive(name))
            and any(matches(split_shared(wanted)[1], name) for wanted in session.subscriptions)
        ):
            client.probe_topic = topic
            session.deliver(Message(topic, b"", 0, False, b"", None, None), 0, False, b"", None)

    def probe_came(self, client: BridgePackets, data: bytes) -> bool:
        """Look whether a probe of another bridge is in what a bridge sent, `data`. Then the younger
        of both is closed; returns whether that is this `client`."""
        start = data.index(TOPIC)
        topic = data[start : start + len(TOPIC) + DIGITS]
        for other in self._clients.values():
            if other is not client and other.probe_topic == topic and _connected(other):
                other.probe_topic = b""
                younger = max(client, other, key=lambda each: each.session.stamp)
                self._close(younger, other if younger is client else client)
                return younger is client
        return False

    def _close(self, younger: BridgePackets, older: BridgePackets) -> None:
        node = self._node
        node.counters.bridge_loops += 1
        first, second = older.session.client_id, younger.session.client_id
        node.log(
            "warning",
            f"bridges {shorten(first)} at {older.conn.peer} and {shorten(second)} at "
            f"{younger.conn.peer} lead to one broker, so that messages go round: the second one is "
            "closed, and refused while the first one is connected",
        )
        self._refused = {
            known: other for known, other in self._refused.items() if other in self._clients
        }
        self._refused[second] = first
        younger.shut(ReasonCode.ADMINISTRATIVE_ACTION)
        # All that it would get comes by the other one.
        if node.sessions.get(second) is younger.session:
            node.end_session(younger.session, None)


def _connected(client: BridgePackets) -> bool:
    return client.session.conn is client.conn
