"""Which brokers may link, and which of two links to one broker stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.base.address import Address, is_wildcard
from mqttree.broker.cluster.link.handshake import LINK_PROTOCOL
from mqttree.broker.config.routing_modes import mixes
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Disconnect

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.link.peer import Peer
    from mqttree.broker.cluster.link.ports import HandshakeHost

MAX_HANDSHAKES = 256
"""callers that have not proven yet that they are brokers; the oldest makes room
[links_refused]. A broker is done in two round trips: a federation of hundreds that starts at
once gets through, and so it does past callers that send nothing."""


class Admission:
    """Accepts or refuses handshakes; a refused connection is closed when its methods return."""

    __slots__ = ("cluster", "protocol")

    def __init__(self, cluster: HandshakeHost) -> None:
        self.cluster = cluster
        self.protocol = LINK_PROTOCOL
        """The version of the link protocol that this broker speaks."""

    def make_room(self, now: float) -> None:
        """Give up the oldest handshake of a caller when there are too many: a broker needs two
        round trips for its own."""
        cluster = self.cluster
        callers: list[Link] = []
        most = MAX_HANDSHAKES
        if len(cluster.link_registry.handshakes) >= most:
            callers = [link for link in cluster.link_registry.handshakes if not link.dialled]
        if len(callers) >= most:
            cluster.node.counters.links_refused += 1
            callers[0].conn.abort("too many handshakes")
            cluster.link_registry.on_link_down(callers[0], "too many handshakes", now)

    def acceptable(self, link: Link, now: float, *, proven: bool = True) -> bool:
        """Return whether the broker that introduced itself on `link` may have one at all; False: it
        was turned away. `now`: s; `proven`: it is going to prove nothing more of what it says."""
        cluster = self.cluster
        config = cluster.config
        peer = link.peer
        assert peer is not None
        if is_wildcard(peer.host):
            peer.host = split_peer(link.conn.peer)[0]
        if peer.cluster != config.cluster:
            why = f"is of cluster {peer.cluster!r}, not {config.cluster!r}"
            link.handshake.refuse(ReasonCode.NOT_AUTHORIZED, why, "link_wrong_cluster")
            return False
        if peer.protocol != self.protocol:
            why = f"speaks link protocol {peer.protocol}, not {self.protocol}"
            link.handshake.refuse(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, why, "links_refused")
            return False
        if not mixes(peer.routing, config.routing):
            why = f"routes by {peer.routing}, which does not mix with {config.routing}"
            link.handshake.refuse(ReasonCode.NOT_AUTHORIZED, why, "links_refused")
            return False
        if peer.id == cluster.own.id and (proven or self._is_self(peer)):
            self._own_id(link, now)
            return False
        if cluster.id_conflict.refuses_clients:
            self._drop(link, "another broker uses the id of this one")
            return False
        old = cluster.links.get(peer.id)
        # Refused before this broker's CONNECT goes back: the other broker would take that for a
        # link, and dial again and again.
        return old is None or old is link or not self._refuse_id_conflict(link, old, now)

    def _is_self(self, peer: Peer) -> bool:
        """Whether the broker with this one's id is this very process."""
        return (peer.boot, peer.instance) == (
            self.cluster.own.boot,
            self.cluster.config.instance,
        )

    def _own_id(self, link: Link, now: float) -> None:
        """Refuse a broker with this one's id: this process itself, or another broker that has a
        copy of the data directory."""
        cluster = self.cluster
        peer = link.peer
        assert peer is not None
        dialled = Address(*link.address) if link.dialled else None
        if self._is_self(peer):  # a dial that reached ourselves
            if dialled is not None:
                cluster.membership.address_is_self(dialled, now)
            self._drop(link, "is this broker itself")
        else:
            link.handshake.refuse(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "has this broker's own id", "duplicate_id"
            )
            if dialled is not None:  # what a caller says of its address proves nothing
                cluster.membership.link_up(peer.id, peer.boot, dialled, now, dialled)
            if link.handshake.method is not None:
                cluster.id_conflict.proven(
                    (peer.boot, peer.instance), dialled or Address(peer.host, peer.port), now
                )

    def _refuse_id_conflict(self, link: Link, old: Link, now: float) -> bool:
        """Refuse another broker with the id of a linked one. Returns whether this is one."""
        new_peer, old_peer = link.peer, old.peer
        assert new_peer is not None
        assert old_peer is not None
        if (new_peer.host, new_peer.port) == (
            old_peer.host,
            old_peer.port,
        ) or new_peer.boot < old_peer.boot:
            return False
        alive = old.up and old.conn.last_heard + 2 * self.cluster.config.hello > now
        if new_peer.boot > old_peer.boot and not alive:
            return False  # it has moved
        other = str(Address(old_peer.host, old_peer.port))
        link.handshake.refuse(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            "has the id of another linked broker",
            "duplicate_id",
            other,
        )
        return True

    def admit(self, link: Link, now: float) -> bool:
        """Make this the link to its peer, whose identity is proven; False: another one stays and
        this one was dropped. `now`: s."""
        links = self.cluster.links
        peer = link.peer
        assert peer is not None
        old = links.get(peer.id)
        if old is not None and old is not link and not self._replaces(link, old, now):
            return False
        links[peer.id] = link
        return True

    def _replaces(self, link: Link, old: Link, now: float) -> bool:
        """One pair keeps one link: decide which, the same way at both ends. False: the old one
        stays, `link` was dropped."""
        new_peer, old_peer = link.peer, old.peer
        assert new_peer is not None
        assert old_peer is not None
        if self._refuse_id_conflict(link, old, now):
            return False
        if new_peer.boot < old_peer.boot:
            self._drop(link, "is an older start of a broker that is linked")
            return False
        if new_peer.boot == old_peer.boot:
            # The link that the lower id dialled stays. A second dial of the same broker means that
            # it lost the first.
            lower_dialled = (self.cluster.own.id < new_peer.id) == link.dialled
            if old.dialled != link.dialled and not lower_dialled:
                self._drop(link, "is linked already")
                if link.dialled:
                    self.cluster.membership.address_is_peer(
                        Address(*link.address), new_peer.id, now
                    )
                return False
        self._replace(old, now)
        return True

    def _replace(self, old: Link, now: float) -> None:
        old.conn.close(
            encode_packet(Disconnect(ReasonCode.SESSION_TAKEN_OVER), 5) if old.up else b""
        )
        self.cluster.link_registry.on_link_down(
            old, "replaced by a newer link", now, quiet=True, replaced=True
        )

    def _drop(self, link: Link, why: str) -> None:
        """Close a connection that is one too many; not a fault, so no warning."""
        self.cluster.node.log("debug", f"link with {link.conn.peer}: {why}")
        link.conn.close()
        self.cluster.link_registry.on_link_down(link, why, self.cluster.node.now, quiet=True)


def split_peer(peer: str) -> tuple[str, int]:
    """Split "HOST:PORT" of a connection's peer."""
    host, _, port = peer.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0
