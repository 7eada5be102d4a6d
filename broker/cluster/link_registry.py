"""The links of this broker: which there are, how each begins and ends, and when each has to say
something.

`Link` parses and encodes, its handshake says when it is up; what follows from that at other modules
they hear as events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqttree.broker.cluster.events import ClusterEvents, LinkDown, LinkUp
from mqttree.broker.cluster.link.admission import Admission, split_peer
from mqttree.broker.cluster.link.handshake import LinkHandshake
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.link.link_states import Action, Input
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import Connect, Disconnect
from mqttree.discovery.dialler import NEVER
from mqttree.discovery.membership import Membership

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.ports import HandshakeHost
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.effects import Dial

MAX_LINK_LINES = 20
"""lines about links that come up or go down, for each host and `REPEAT_INTERVAL_S`: some tens of
brokers may run on one machine."""

SILENT = "silent"
"""Why a link ends that was not heard for too long."""

SUSPENDED_S = 1.0
"""s; a broker that did not run for so long was stopped itself: the silence of others proves
nothing."""


class LinkRegistry:
    """All links of this broker, and those that are not up yet."""

    def __init__(
        self,
        host: HandshakeHost,
        *,
        events: ClusterEvents,
        membership: Membership,
        enabled: bool,
        settle: Callable[[float], None],
        plan: Callable[[], None],
    ) -> None:
        """`host`: what links ask of the cluster; `events`: dispatches what happens to links;
        `membership`: hears of a broker that stops; `enabled`: whether this broker federates;
        `settle`: carries out what was decided, at a time (s); `plan`: says that the cluster may be
        due at another time."""
        self._host = host
        self._events = events
        self._membership = membership
        self._enabled = enabled
        self._settle = settle
        self._plan = plan
        self.admission: Admission = Admission(host)
        """Decides which of them stay."""
        self.links: dict[bytes, Link] = {}
        """By the peer's id, once admitted."""
        self.handshakes: dict[Link, None] = {}
        """Those that are not up yet, the oldest first."""
        self.to_ping: list[Link] = []
        """Links with records that are to be sent."""

    # ---------------------------------------------------------------- begin

    def accept(self, conn: Connection, connect: Connect, body: bytes, now: float) -> None:
        """Take over the connection `conn`, whose first packet `connect` was a broker's CONNECT.
        `body`: the packet's bytes behind the length; `now`: s."""
        if len(self.links) + len(self.handshakes) >= self._host.node.limits.max_links:
            self._host.node.counters.links_refused += 1
            conn.abort("too many links")
            return
        self.admission.make_room(now)
        link = self._begin(conn, False, split_peer(conn.peer), now)
        if not self._enabled:
            link.handshake.refuse(
                ReasonCode.NOT_AUTHORIZED, "dials a broker that does not federate", "links_refused"
            )
            return
        try:
            link.introduce(connect, body, now)
        except WireError as error:
            link.fail(error)
        self._settle(now)

    def dialled(self, conn: Connection, dial: Dial, now: float) -> None:
        """Take the connection `conn`, which the driver has opened for `dial`; `now`: s."""
        self._begin(conn, True, (dial.host, dial.port), now).handshake.call()

    def _begin(self, conn: Connection, dialled: bool, address: tuple[str, int], now: float) -> Link:
        """Make a link of the connection `conn` to `address` (host, port), at `now` (s); `dialled`:
        this broker dialled."""
        link = Link(self._host, conn, dialled, address, self._handshake, now)
        conn.owner = link
        conn.link = link
        self.handshakes[link] = None
        self._plan()
        return link

    def _handshake(self, link: Link) -> LinkHandshake:
        return LinkHandshake(self._host, link)

    def on_link_up(self, link: Link, now: float) -> None:
        """Note that a link's handshake is complete."""
        self.handshakes.pop(link, None)
        self._host.node.counters.links_opened += 1
        self._host.node.log_limit.line(
            "info", "link up", link.conn.peer, f"link to {link.title} is up", MAX_LINK_LINES
        )
        self._events.dispatch(LinkUp(link, now))
        link.send_ping(now)
        self._settle(now)

    # ---------------------------------------------------------------- end

    def on_link_down(
        self, link: Link, reason: str, now: float, *, quiet: bool = False, replaced: bool = False
    ) -> None:
        """Note that a `link` is gone, in whatever state it was, for a `reason` (text); `now`: s.
        `quiet`: it ended on purpose, so the log says nothing; `replaced`: the next link to the same
        broker is up already."""
        was_up = link.up
        if link.move(Input.LOST) is not Action.END:
            return
        link.conn.link = None
        self.handshakes.pop(link, None)
        self._events.dispatch(
            LinkDown(link, reason, now, was_up=was_up, quiet=quiet, replaced=replaced)
        )
        self._settle(now)

    def on_disconnect(self, link: Link, reason: int, now: float) -> None:
        """Take a DISCONNECT with the code `reason` on a `link`: the other broker stops. `now`:
        s."""
        if reason == ReasonCode.SERVER_SHUTTING_DOWN and link.peer is not None and link.up:
            self._membership.member_left(link.peer.id, link.peer.boot, now)
        self.on_link_down(link, f"closed by the other broker ({reason:#04x})", now)

    def refused(self, link: Link, why: str) -> None:
        """Note that another broker refused a link that was dialled here, and `why`."""
        self._host.node.counters.links_refused += 1
        self._host.node.log_limit.line(
            "warning",
            "refused our link",
            link.conn.peer,
            f"broker at {link.conn.peer} refused the link: {why}",
        )

    def close_all(self) -> None:
        """Close all links that are admitted, as this broker stops."""
        for link in list(self.links.values()):
            link.conn.close(encode_packet(Disconnect(ReasonCode.SERVER_SHUTTING_DOWN), 5))

    # ---------------------------------------------------------------- time

    def next_deadline(self) -> float:
        """When a link is to say something, or to be closed (s)."""
        due, config = NEVER, self._host.config
        for link in self.links.values():
            due = min(due, link.next_hello)
            if (silent := link.conn.last_heard + config.link_timeout) < due:
                due = silent
        for link in self.handshakes:
            due = min(due, link.opened + config.handshake_timeout)
        return due

    def tick(self, now: float) -> None:
        """Close links that are silent, or whose handshake takes too long; let the others say
        something if it is time. `now`: s."""
        host, config = self._host, self._host.config
        for link in list(self.handshakes):
            if link.opened + config.handshake_timeout <= now:
                host.node.counters.link_timeouts += 1
                link.conn.abort("handshake timed out")
                self.on_link_down(link, "handshake timed out", now)
        for link in list(self.links.values()):
            if not link.up:
                continue
            if link.conn.last_heard + config.link_timeout <= now:
                host.node.counters.link_timeouts += 1
                host.node.log(
                    "warning", f"link to {link.title}: silent for {config.link_timeout:g} s; closed"
                )
                link.conn.abort(SILENT)
                continue
            if link.mid_packet and link.conn.last_heard + config.hello > now:
                host.on_link_alive(link, now)  # its BPDUs are queued behind a large packet
            if link.next_hello <= now:
                link.send_ping(now)

    def on_suspended(self, seconds: float, now: float) -> None:
        """Note that this broker did not run for `seconds` until `now` (s): if these were many, no
        neighbour could be heard, so none was silent."""
        if seconds <= SUSPENDED_S:
            return
        for link in (*self.links.values(), *self.handshakes):
            link.conn.last_heard = now
            link.opened = max(link.opened, now - 0.5)

    def send_records(self, now: float) -> None:
        """Send the records that wait; `now`: s."""
        for link in self.to_ping:
            if link.up and not link.conn.closing:
                link.send_ping(now)
        self.to_ping.clear()
