"""The part of a node that makes it one of many: discovery, links, the tree, and messages over it (design section 3).

It decides; `Link` parses and encodes, `stp.tree.Tree` computes, `discovery.membership.Membership` knows who is there.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from broker import limits
from broker.config import NodeConfig
from broker.connection import Connection
from broker.effects import Datagram, Dial
from broker.link import ASK_SEEN, BPDU, DONE, MEMBERS, ORIGINS, SEEN, WANT, Link
from broker.rate import Rate
from broker.relay import Relay
from broker.wire.constants import ReasonCode
from broker.wire.encode import encode_packet
from broker.wire.errors import MalformedPacket, WireError
from broker.wire.packets import Connect, Disconnect
from discovery import effects as discovery
from discovery.address import Address, is_wildcard
from discovery.gossip import decode_members, encode_members
from discovery.membership import Membership
from discovery.roster import MAX_MEMBERS
from stp import bpdu as bpdus
from stp.tree import ForwardingChanged, RootChanged, TopologyChange, Tree
from stp.vector import Identity

if TYPE_CHECKING:
    from broker.node import Node

STOPPED = 1.0
"""s; a timer that is later than this says that we were stopped, not that everybody else is dead."""


class Federation:
    """Everything between this broker and the others."""

    def __init__(self, node: Node, now: float, wall: float, rng: random.Random) -> None:
        config = node.config
        self.node = node
        self.config: NodeConfig = config
        self.rng = rng
        self.own = Identity(config.id, config.boot, (config.host, config.port))
        self.tree = Tree(self.own, config.capability, config.tree(), now, rng)
        self.membership = Membership(config.membership(), config.announced(), now, wall, rng)
        self.relay = Relay(node, self, now)
        self.links: dict[bytes, Link] = {}  # by the peer's id, once admitted
        self.handshakes: dict[Link, None] = {}  # oldest first
        self.to_ping: list[Link] = []
        self._logged: dict[str, float] = {}
        self._gossip_at = now  # members are told again no earlier
        self._change: TopologyChange | None = None  # the newest one that $TC has not told
        self._changes = Rate(limits.TOPOLOGY_CHANGES, now)
        self._change_at = now
        self._due = now
        self.enabled = config.discovery != "off" or bool(config.seeds)

    # ---------------------------------------------------------------- inputs

    def datagram_received(self, data: bytes, source: tuple[str, int], now: float) -> None:
        """Take a datagram of the discovery group."""
        self.membership.datagram_received(data, source, now)
        self._settle(now)

    def accept(self, conn: Connection, connect: Connect, now: float) -> None:
        """Take over a connection whose first packet was a broker's CONNECT."""
        if len(self.links) + len(self.handshakes) >= limits.MAX_LINKS:
            self.count("links_refused")
            conn.abort("too many links")
            return
        self._make_room(now)
        link = Link(self, conn, False, split_peer(conn.peer), now)
        conn.owner = link
        self.node.links_by_connection[conn] = link
        self.handshakes[link] = None
        try:
            link.connect_received(connect, now)
        except WireError as error:
            link.fail(error)
        self._settle(now)

    def _make_room(self, now: float) -> None:
        """Give up the oldest handshake of a caller when there are too many: a broker needs two round trips for its own."""
        callers: list[Link] = []
        if len(self.handshakes) >= limits.MAX_HANDSHAKES:
            callers = [link for link in self.handshakes if not link.dialled]
        if len(callers) >= limits.MAX_HANDSHAKES:
            self.count("links_refused")
            callers[0].conn.abort("too many handshakes")
            self.link_lost(callers[0], "too many handshakes", now)

    def dialled(self, conn: Connection, dial: Dial, now: float) -> None:
        """Take a connection that we dialled and that stands."""
        link = Link(self, conn, True, (dial.host, dial.port), now)
        conn.owner = link
        self.node.links_by_connection[conn] = link
        self.handshakes[link] = None
        link.call()

    def dial_failed(self, dial: Dial, reason: str, now: float) -> None:
        """Note that a dial came to nothing."""
        self.membership.dial_failed(Address(dial.host, dial.port), reason, now)
        self._settle(now)

    def seed_resolved(self, seed: str, addresses: Iterable[tuple[str, int]], now: float) -> None:
        """Take what the name of a configured seed resolved to."""
        self.membership.seed_resolved([Address(h, p) for h, p in addresses], now, seed)
        self._settle(now)

    # ---------------------------------------------------------------- time

    def next_deadline(self) -> float | None:
        """When `tick` is due (s), None when never."""
        return self._due if self.enabled or self.links or self.handshakes else None

    def tick(self, now: float) -> None:
        """Do what is due: hellos, time-outs, discovery, the tree."""
        if now < self._due:
            return
        if now - self._due > STOPPED:  # we were stopped or starved: nobody's silence is proven by it
            for link in (*self.links.values(), *self.handshakes):
                link.conn.last_heard = now
                link.opened = max(link.opened, now - 0.5)
        for link in list(self.handshakes):
            if link.opened + self.config.handshake_timeout <= now:
                self.count("link_timeouts")
                link.conn.abort("handshake timed out")
                self.link_lost(link, "handshake timed out", now)
        for link in list(self.links.values()):
            if link.state != "up":
                continue
            if link.conn.last_heard + self.config.link_timeout <= now:
                self.count("link_timeouts")
                self.log("warning", f"link to {link.title}: silent for {self.config.link_timeout:g} s; closed")
                link.conn.abort("silent")
                continue
            if link.conn.mid_packet and link.conn.last_heard + self.config.hello > now:
                self.heard(link, now)  # its BPDUs wait behind a large packet
            if link.next_hello <= now:
                link.send_ping(now)
        self.membership.tick(now)
        self.tree.tick(now)
        self.relay.tick(now)
        self._tell_change(now)
        self._settle(now)

    def _deadline(self, now: float) -> float:
        due = [now + self.config.hello]
        due.append(self.tree.next_deadline())
        if (at := self.membership.next_deadline()) is not None:
            due.append(at)
        for link in self.links.values():
            due.append(min(link.next_hello, link.conn.last_heard + self.config.link_timeout))
        for link in self.handshakes:
            due.append(link.opened + self.config.handshake_timeout)
        if self._change is not None:
            due.append(self._change_at)
        if self._gossip_at > now and any(link.gossiped != self.membership.gossip_version for link in self.links.values()):
            due.append(self._gossip_at)
        return max(now + 0.001, min(due))

    def _settle(self, now: float) -> None:
        """Carry out what discovery and the tree decided, until neither wants more."""
        for _ in range(16):  # each round can only lead to a few more; the rest comes with the next tick
            busy = False
            for effect in self.membership.take_effects():
                busy = True
                self._discovery(effect, now)
            for change in self.tree.take_changes():
                busy = True
                self._tree_changed(change, now)
            for peer_id, bpdu in self.tree.take_bpdus(now):
                link = self.links.get(peer_id)
                if link is not None and link.state == "up":
                    link.add_record(BPDU, bpdus.encode(bpdu))
            self.membership.tree_agreed(self.tree.agreed, now)
            if not busy:
                break
        self._gossip(now)
        for link in self.to_ping:
            if link.state == "up" and not link.conn.closing:
                link.send_ping(now)
        self.to_ping.clear()
        self._due = self._deadline(now)

    def _gossip(self, now: float) -> None:
        """Tell the members: a new neighbour at once, all of them what changed, but not each change by itself."""
        version = self.membership.gossip_version
        again = now >= self._gossip_at
        record = b""
        for link in self.links.values():
            if link.state == "up" and link.gossiped != version and (again or link.gossiped == -1):
                if link.gossiped != -1:
                    self._gossip_at = now + limits.GOSSIP_PAUSE
                link.gossiped = version
                record = record or encode_members(self.membership.members(now))
                link.add_record(MEMBERS, record)

    def _discovery(self, effect: discovery.Effect, now: float) -> None:
        match effect:
            case discovery.Announce(data):
                self.node.effects.append(Datagram(data))
            case discovery.Dial(address):
                if self._alive_at(address, now):
                    self.membership.dial_failed(address, "the broker there is linked", now)
                else:
                    self.node.effects.append(Dial(address.host, address.port))
            case discovery.Log(level, text):
                self.node.log(level, text)
            case discovery.StateChanged(state):
                self.node.log("debug", f"federation state: {state}")
            case _:
                pass

    def _alive_at(self, address: Address, now: float) -> bool:
        """Say whether the link to the broker that advertises this address works.

        Another broker that goes about with its id (a copied data directory) makes discovery think that it was restarted. A second
        dial would take the place of the link that stands, again with every announcement.
        """
        return any(
            link.state == "up"
            and link.peer is not None
            and (link.peer.host, link.peer.port) == address
            and link.conn.last_heard + 2 * self.config.hello > now
            for link in self.links.values()
        )

    def _tree_changed(self, change: object, now: float) -> None:
        match change:
            case RootChanged():
                root = self.tree.root
                who = "this broker" if self.tree.is_root else f"{root.address[0]}:{root.address[1]}"
                self.node.log("info", f"root of the tree is now {who}")
            case ForwardingChanged():
                link = self.links.get(change.peer)
                if link is not None:
                    self.relay.forwarding_changed(link, change.forwarding, now)
            case TopologyChange():
                self.count("topology_changes")
                self._change = change
                self._tell_change(now)
            case _:
                pass

    def _tell_change(self, now: float) -> None:
        """Publish the newest topology change; what comes too often waits, and only the newest of that is published."""
        change = self._change
        if change is None:
            return
        if not self._changes.take(now):
            self._change_at = now + 1 / limits.TOPOLOGY_CHANGES
            return
        self._change = None
        text = {"origin": change.origin.hex(), "number": change.number, "epoch": self.tree.epoch}
        self.node.publish_internal("$TC", json.dumps(text).encode(), 0, False)

    # ---------------------------------------------------------------- links

    def acceptable(self, link: Link, now: float) -> bool:
        """Decide whether a broker that introduced itself may have a link at all; False: it was turned away."""
        peer = link.peer
        assert peer is not None
        if is_wildcard(peer.host):
            peer.host = split_peer(link.conn.peer)[0]
        dialled = Address(*link.address) if link.dialled else None
        if peer.cluster != self.config.cluster:
            why = f"is of cluster {peer.cluster!r}, not {self.config.cluster!r}"
            link.refuse(ReasonCode.NOT_AUTHORIZED, why, "link_wrong_cluster")
            return False
        if peer.protocol != self.config.link_protocol:
            why = f"speaks link protocol {peer.protocol[:16]!r}, not {self.config.link_protocol!r}"
            link.refuse(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, why, "links_refused")
            return False
        if peer.id == self.own.id:
            if peer.boot == self.own.boot:  # a dial that reached ourselves
                if dialled is not None:
                    self.membership.address_is_self(dialled, now)
                self._drop(link, "is this broker itself")
            else:
                link.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "has this broker's own id", "duplicate_id")
                if dialled is not None:  # what a caller says of its address proves nothing
                    self.membership.link_up(peer.id, peer.boot, dialled, now, dialled)
            return False
        old = self.links.get(peer.id)
        # Refused before our CONNECT goes back: the other broker would take that for a link, again and again.
        return old is None or old is link or not self._namesake(link, old, now)

    def _namesake(self, link: Link, old: Link, now: float) -> bool:
        """Whether this is another broker with the id of a linked one; it was refused then."""
        new_peer, old_peer = link.peer, old.peer
        assert new_peer is not None
        assert old_peer is not None
        if (new_peer.host, new_peer.port) == (old_peer.host, old_peer.port) or new_peer.boot < old_peer.boot:
            return False
        alive = old.state == "up" and old.conn.last_heard + 2 * self.config.hello > now
        if new_peer.boot > old_peer.boot and not alive:
            return False  # it has moved
        link.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "has the id of another one", "duplicate_id")
        return True

    def admit(self, link: Link, now: float) -> bool:
        """Make this the link to its peer, whose identity is proven; False: another one stays and this one was dropped."""
        peer = link.peer
        assert peer is not None
        old = self.links.get(peer.id)
        if old is not None and old is not link and not self._replaces(link, old, now):
            return False
        self.links[peer.id] = link
        return True

    def _replaces(self, link: Link, old: Link, now: float) -> bool:
        """One pair keeps one link: decide which, the same way at both ends. False: the old one stays, `link` was dropped."""
        new_peer, old_peer = link.peer, old.peer
        assert new_peer is not None
        assert old_peer is not None
        if self._namesake(link, old, now):
            return False
        if new_peer.boot < old_peer.boot:
            self._drop(link, "is an older start of a broker that is linked")
            return False
        if new_peer.boot == old_peer.boot:
            # The link that the lower id dialled stays. A second dial of the same broker means that it lost the first.
            lower_dialled = (self.own.id < new_peer.id) == link.dialled
            if old.dialled != link.dialled and not lower_dialled:
                self._drop(link, "is linked already")
                if link.dialled:
                    self.membership.address_is_peer(Address(*link.address), new_peer.id, now)
                return False
        self._replace(old, now)
        return True

    def _replace(self, old: Link, now: float) -> None:
        old.conn.close(encode_packet(Disconnect(ReasonCode.SESSION_TAKEN_OVER), 5) if old.state == "up" else b"")
        self.link_lost(old, "replaced by a newer link", now, quiet=True, replaced=True)

    def _drop(self, link: Link, why: str) -> None:
        """Close a connection that is one too many; not a fault, so no warning."""
        self.log("debug", f"link with {link.conn.peer}: {why}")
        link.conn.close()
        self.link_lost(link, why, self.node.now, quiet=True)

    def link_up(self, link: Link, now: float) -> None:
        """Note that a link's handshake is complete."""
        peer = link.peer
        assert peer is not None
        self.handshakes.pop(link, None)
        self.count("links_opened")
        self.log("info", f"link to {link.title} is up")
        address = Address(peer.host, peer.port)
        self.membership.link_up(peer.id, peer.boot, address, now, Address(*link.address) if link.dialled else None)
        self.tree.port_up(Identity(peer.id, peer.boot, (peer.host, peer.port)), peer.capability, now)
        self.relay.link_up(link)
        link.send_ping(now)
        self._settle(now)

    def link_lost(self, link: Link, reason: str, now: float, *, quiet: bool = False, replaced: bool = False) -> None:
        """Note that a link is gone, whatever its state was. `replaced`: the next one to the same broker stands already."""
        if link.state == "closed":
            return
        was_up = link.state == "up"
        link.state = "closed"
        self.node.links_by_connection.pop(link.conn, None)
        self.handshakes.pop(link, None)
        self.relay.link_down(link)
        peer = link.peer
        if peer is not None and self.links.get(peer.id) is link:
            del self.links[peer.id]
            if was_up:
                self.count("links_closed")
                if not quiet:
                    self.log("info", f"link to {link.title} is down: {reason}")
                self.tree.port_down(peer.id, now, not replaced)
                if not replaced:
                    self.membership.link_down(peer.id, now, peer.boot)
        if link.dialled and not was_up:
            self.membership.dial_failed(Address(*link.address), reason, now)
        self._settle(now)

    def link_left(self, link: Link, reason: int, now: float) -> None:
        """Take a DISCONNECT on a link: a broker that stops says goodbye."""
        if reason == ReasonCode.SERVER_SHUTTING_DOWN and link.peer is not None:
            self.membership.member_left(link.peer.id, link.peer.boot, now)
        self.link_lost(link, f"closed by the other broker ({reason:#04x})", now)

    def refused(self, link: Link, why: str) -> None:
        """Note that another broker turned our dial away."""
        self.count("links_refused")
        self.log("warning", f"broker at {link.conn.peer} refused the link: {why}", key=f"refused {link.source}")

    def heard(self, link: Link, now: float) -> None:
        """Note that part of a packet came: the peer lives, however large the packet."""
        if link.peer is not None and link.state == "up":
            self.tree.heard(link.peer.id, now)

    def rtt_sample(self, link: Link, rtt_ms: float, now: float) -> None:
        """Take a measured round trip."""
        if link.peer is not None:
            self.tree.rtt_sample(link.peer.id, rtt_ms, now)
            self._settle(now)

    def record_received(self, link: Link, kind: int, body: bytes, now: float) -> None:
        """Take one record of a PINGREQ.

        Raises:
            MalformedPacket: it cannot be read.
        """
        peer = link.peer
        assert peer is not None
        if kind == BPDU:
            try:
                self.tree.bpdu_received(peer.id, bpdus.decode(body), now)
            except bpdus.BpduError as error:
                raise MalformedPacket(f"BPDU: {error}") from None
        elif kind == MEMBERS:
            via = Address(peer.host, peer.port)
            for broker_id, boot, addresses, alive in decode_members(body)[:MAX_MEMBERS]:
                self.membership.member_learnt(broker_id, boot, addresses, now, alive=alive, via=via)
        elif kind == SEEN:
            self.relay.seen_received(link, body, now)
        elif kind == ASK_SEEN:
            self.relay.send_seen(link)
        elif kind == ORIGINS:
            self.relay.origins_received(link, body, now)
        elif kind == WANT:
            self.relay.want_received(link, body, now)
        elif kind == DONE:
            self.relay.done_received(link, body, now)
        self._settle(now)

    def link_behind(self, link: Link) -> None:
        """Note that a link's queue overflowed."""
        self.relay.link_behind(link)

    def link_caught_up(self, link: Link, now: float) -> None:
        """Note that it drained: replay what it missed."""
        self.relay.link_caught_up(link)
        self._settle(now)

    # ---------------------------------------------------------------- end

    def leave(self, now: float) -> None:
        """Say goodbye to everybody; the driver then closes."""
        self.membership.leave(now)
        self._settle(now)
        for link in list(self.links.values()):
            link.conn.close(encode_packet(Disconnect(ReasonCode.SERVER_SHUTTING_DOWN), 5))

    # ---------------------------------------------------------------- telling

    def count(self, counter: str) -> None:
        """Count a rare event by the name of its counter."""
        setattr(self.node.counters, counter, getattr(self.node.counters, counter) + 1)

    def log(self, level: str, text: str, *, key: str = "") -> None:
        """Log a line; one with a `key` at most once a minute, so that a fault that goes on does not fill the log."""
        if key:
            now = self.node.now
            if self._logged.get(key, -1e9) + 60.0 > now:
                return
            if len(self._logged) > 1024:
                self._logged.clear()
            self._logged[key] = now
        self.node.log(level, text)

    def state(self) -> dict[str, Any]:
        """What /api/federation says (design section 6)."""
        tree = self.tree
        config = self.config
        links = []
        for peer_id, link in sorted(self.links.items()):
            port = tree.ports.get(peer_id)
            peer = link.peer
            assert peer is not None
            links.append(
                {
                    "peer": peer_id.hex(),
                    "name": peer.name,
                    "address": f"{peer.host}:{peer.port}",
                    "up": link.state == "up",
                    "role": port.role.name.lower() if port is not None else "blocked",
                    "forwarding": link.live,
                    "rtt_ms": round(link.rtt_ms, 3) if link.rtt_ms is not None else None,
                }
            )
        return {
            "id": config.id.hex(),
            "name": config.name,
            "boot": config.boot,
            "listen": f"{config.host}:{config.port}",
            "cluster": config.cluster,
            "state": str(self.membership.state),
            "capability": config.capability,
            "root": tree.root.id.hex(),
            "root_address": f"{tree.root.address[0]}:{tree.root.address[1]}",
            "path_cost_ms": round(tree.path_cost_ms, 3),
            "parent": tree.parent.hex() if tree.parent is not None else None,
            "epoch": tree.epoch,
            "routing": config.routing,
            "links": links,
            "counters": self.node.counters.as_dict()
            | {f"discovery_{name}": value for name, value in self.membership.counters.items()},
        }


def split_peer(peer: str) -> tuple[str, int]:
    """Split "HOST:PORT" of a connection's peer."""
    host, _, port = peer.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0
