"""How two brokers come to a link: who each says that it is, and the proof of the cluster secret (design section 3; MQTT-ST II-C).

    dialler                                  called broker
    CONNECT 0x85, nonce            ->
                                   <-        CONNECT 0x85 ("connects back"), nonce, proof
    CONNACK, proof                 ->
                                   <-        CONNACK

Nonces and proofs (HMAC-SHA256 over both nonces and ids) are there when a cluster secret is set.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.wire.constants import ReasonCode
from broker.wire.encode import encode_packet
from broker.wire.errors import MalformedPacket
from broker.wire.packets import Connack, Connect
from broker.wire.properties import Properties, Property
from discovery.address import is_wildcard, normal_host
from discovery.announcement import MAX_CLUSTER, MAX_NAME, check_text

if TYPE_CHECKING:
    from broker.federation import Federation
    from broker.link import Link

AUTHENTICATION = "mqttree-hmac-sha256"
MAX_VERSION = 65_535
"""The highest version of the link protocol that anybody may say."""


@dataclass(slots=True)
class Peer:
    """What a broker says of itself when it connects."""

    id: bytes
    boot: int
    host: str
    port: int
    name: str
    cluster: str
    capability: float
    versions: tuple[int, int]
    """The oldest version of the link protocol that it speaks, and the newest."""
    routing: str = "flood"


def calls_as_broker(connect: Connect) -> bool:
    """Return whether a CONNECT with the top bit of the protocol level is one of ours: Mosquitto's bridges set that bit, too."""
    said = (connect.properties or {}).get(Property.USER_PROPERTY, [])
    return connect.version == 5 and any(name == "protocol" for name, _ in said)


def peer_of(connect: Connect) -> Peer:
    """Read who connects.

    Raises:
        MalformedPacket: a bridge CONNECT that does not say it.
    """
    values = dict((connect.properties or {}).get(Property.USER_PROPERTY, []))
    try:
        host, _, port = values["address"].rpartition(":")
        newest = int(values["protocol"])
        peer = Peer(
            bytes.fromhex(connect.client_id),
            int(values["boot"]),
            host if is_wildcard(host) else normal_host(host.strip("[]")),
            int(port),
            check_text("name", values.get("name", ""), MAX_NAME).decode(),
            check_text("cluster", values["cluster"], MAX_CLUSTER).decode(),
            float(values["capability"]),
            (int(values.get("oldest", newest)), newest),
            values.get("routing", "flood"),
        )
    except (KeyError, ValueError):
        raise MalformedPacket("bridge CONNECT without id, boot, address, cluster, capability and protocol") from None
    ranges = 0 <= peer.boot < 2**32 and 0 < peer.port < 65536 and 0 <= peer.capability < 1e6
    if len(peer.id) != 8 or not ranges or not 0 <= peer.versions[0] <= newest <= MAX_VERSION:
        raise MalformedPacket("bridge CONNECT with values out of range")
    return peer


class LinkHandshake:
    """The exchange before a link is up. It says who we are and finds out who the other one is; `Admission` decides."""

    __slots__ = ("federation", "link", "nonce", "peer_nonce")

    def __init__(self, federation: Federation, link: Link) -> None:
        self.federation = federation
        self.link = link
        self.nonce = federation.rng.randbytes(16)
        self.peer_nonce = b""

    def call(self) -> None:
        """Send our CONNECT on a connection that we dialled."""
        self.link.conn.send(self._connect(b""))

    def _connect(self, proof: bytes) -> bytes:
        own = self.federation.own
        config = self.federation.config
        oldest, newest = config.versions()
        properties: Properties = {
            Property.USER_PROPERTY: [
                ("cluster", config.cluster),
                ("routing", config.routing),
                ("protocol", str(newest)),
                ("oldest", str(oldest)),
                ("boot", str(own.boot)),
                ("address", f"{config.host}:{config.port}"),
                ("name", config.name),
                ("capability", f"{config.capability:.1f}"),
            ]
        }
        if config.secret is not None:
            properties[Property.AUTHENTICATION_METHOD] = AUTHENTICATION
            properties[Property.AUTHENTICATION_DATA] = self.nonce + proof
        keep_alive = max(1, round(config.link_timeout))
        return encode_packet(
            Connect("MQTT", 5, True, keep_alive, own.id.hex(), None, None, None, properties, bridge=True), 5
        )

    def _proof(self, role: bytes) -> bytes:
        """HMAC over who proves, both nonces (dialler's first) and both ids: nothing of it can be replayed elsewhere."""
        peer = self.link.peer
        assert self.federation.config.secret is not None
        assert peer is not None
        mine, theirs = (self.nonce, self.federation.own.id), (self.peer_nonce, peer.id)
        first, second = (mine, theirs) if self.link.dialled else (theirs, mine)
        text = role + first[0] + second[0] + first[1] + second[1]
        return hmac.digest(self.federation.config.secret, text, "sha256")

    def connect_received(self, connect: Connect, now: float) -> None:
        """Take the other broker's CONNECT: the first packet to a called broker, the answer to a dialler.

        Raises:
            MalformedPacket: it does not say who connects.
        """
        link = self.link
        federation = self.federation
        link.peer = peer_of(connect)
        properties = connect.properties or {}
        data = properties.get(Property.AUTHENTICATION_DATA, b"")
        secret = federation.config.secret
        if secret is not None:
            if properties.get(Property.AUTHENTICATION_METHOD) != AUTHENTICATION or len(data) < 16:
                self.refuse(ReasonCode.NOT_AUTHORIZED, "has no cluster secret", "link_wrong_secret")
                return
            self.peer_nonce = data[:16]
            if link.dialled and not hmac.compare_digest(data[16:], self._proof(b"called")):
                self.refuse(ReasonCode.NOT_AUTHORIZED, "has another cluster secret", "link_wrong_secret")
                return
        elif Property.AUTHENTICATION_METHOD in properties:
            self.refuse(ReasonCode.BAD_AUTHENTICATION_METHOD, "wants a cluster secret", "link_wrong_secret")
            return
        if not federation.admission.acceptable(link, now):
            return
        if link.dialled:
            if not federation.admission.admit(link, now):
                return
            answer: Properties | None = None
            if secret is not None:
                answer = {
                    Property.AUTHENTICATION_METHOD: AUTHENTICATION,
                    Property.AUTHENTICATION_DATA: self._proof(b"dialler"),
                }
            link.conn.send(encode_packet(Connack(False, 0, answer), 5))
            link.come_up(now)
        else:
            link.conn.send(self._connect(self._proof(b"called") if secret is not None else b""))

    def connack_received(self, packet: Connack, now: float) -> None:
        """Take the other broker's CONNACK: it refuses, or it has agreed; to a called broker it brings the dialler's proof."""
        link = self.link
        federation = self.federation
        properties = packet.properties or {}
        if packet.code:
            why = properties.get(Property.REASON_STRING, "")[:200] or hex(packet.code)
            why = "".join(letter if letter.isprintable() else "?" for letter in why)  # it is going to stand in our log
            federation.refused(link, why)
            link.conn.close()
            federation.link_lost(link, f"refused: {why}", now)
            return
        if link.dialled or link.state == "up":
            return
        if federation.config.secret is not None:
            data = properties.get(Property.AUTHENTICATION_DATA, b"")
            if link.peer is None or not hmac.compare_digest(data, self._proof(b"dialler")):
                self.refuse(ReasonCode.NOT_AUTHORIZED, "has another cluster secret", "link_wrong_secret")
                return
        # Only now is it proven who calls: nothing that stands may be touched before.
        if federation.admission.admit(link, now):
            link.conn.send(encode_packet(Connack(False, 0, None), 5))
            link.come_up(now)

    def refuse(self, reason: int, why: str, counter: str) -> None:
        """Turn the other broker away: it is told why, we log one line and count."""
        link = self.link
        federation = self.federation
        federation.count(counter)
        peer = link.conn.peer
        federation.log("warning", f"broker at {peer} {why}; link refused", cause=f"link refused ({counter})", peer=peer)
        properties: Properties = {Property.REASON_STRING: f"your broker {why}"}
        link.conn.close(encode_packet(Connack(False, reason, properties), 5))
        federation.link_lost(link, why, federation.node.now)
