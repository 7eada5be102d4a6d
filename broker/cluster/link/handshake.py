"""How two brokers set up a link: each sends its id, and the proof of the cluster secret
(MQTT-ST II-C).

    dialler                          called broker
    CONNECT 0x85                 ->                        nonce; with a secret an ephemeral key;
                                                           the broker's own public key
                                 <-  CONNECT 0x85          ("connects back"), the same
                                 <-  AUTH                  the called broker's proof of the secret,
                                                           and its signature
    AUTH                         ->                        the dialler's
    CONNACK                     <->  CONNACK               and all that follows: with a secret in
                                                           encrypted records

Proofs and signatures are over every byte of both CONNECTs (`link_keys`, `broker_key`). Nothing that
a CONNECT says counts before. Nodes that have neither secret nor key (in tests, in programs of their
own) leave AUTH out.
"""

from __future__ import annotations

import contextlib
import hmac
from typing import TYPE_CHECKING

from mqttree.broker.base.address import parse_address
from mqttree.broker.base.broker_key import PUBLIC_BYTES, id_of, signed
from mqttree.broker.base.link_keys import NONCE_BYTES, OFFER_BYTES, LinkKeys, Offer, transcript
from mqttree.broker.cluster.link.link_states import Input
from mqttree.broker.cluster.link.peer import peer_of
from mqttree.broker.cluster.link.record_layer import RecordLayer
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import MalformedPacket, ProtocolViolation
from mqttree.broker.wire.packets import Auth, Connack, Connect
from mqttree.broker.wire.properties import Properties, Property
from mqttree.broker.wire.varint import read_length

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.link.ports import HandshakeHost

AUTHENTICATION = "mqttree-x25519-sha256-aes256gcm"
"""The Authentication Method of brokers with a cluster secret."""
IDENTITY = "mqttree-ed25519"
"""The Authentication Method without a secret: ids are proven, nothing is encrypted."""
LINK_PROTOCOL = 6
"""The version of the link protocol. It is another one whenever links carry something else, or it
means something else: brokers of two versions do not link (docs/decisions/0017)."""


class LinkHandshake:
    """The exchange before a link is up. Each broker sends its id and proves it; `Admission`
    decides."""

    __slots__ = (
        "_body",
        "_keys",
        "_offer",
        "_public",
        "_transcript",
        "cluster",
        "link",
        "method",
    )

    def __init__(self, cluster: HandshakeHost, link: Link) -> None:
        self.cluster = cluster
        self.link = link
        # Drawn so that the seeds of simulations that broke something still mean the same.
        cluster.rng.randbytes(16)
        config = cluster.config
        self.method = (
            AUTHENTICATION
            if config.secret is not None
            else IDENTITY
            if config.key is not None
            else None
        )
        self._offer: Offer | None = None
        self._body = b""  # of our CONNECT
        self._public = b""  # the other broker's key
        self._transcript = b""  # there once both CONNECTs are
        self._keys: LinkKeys | None = None

    def call(self) -> None:
        """Send this broker's CONNECT on a connection that it dialled."""
        self._connect()

    def _connect(self) -> None:
        own = self.cluster.own
        config = self.cluster.config
        properties: Properties = {
            Property.USER_PROPERTY: [
                ("cluster", config.cluster),
                ("routing", config.routing),
                ("protocol", str(self.cluster.link_registry.admission.protocol)),
                ("boot", str(own.boot)),
                ("address", f"{config.host}:{config.port}"),
                ("name", config.name),
                ("capability", f"{config.capability:.1f}"),
                ("standby", "1"),
                *([("instance", f"{config.instance:016x}")] if config.instance else ()),
            ]
        }
        if self.method is not None:
            properties[Property.AUTHENTICATION_METHOD] = self.method
            properties[Property.AUTHENTICATION_DATA] = self._data()
        keep_alive = max(1, round(config.link_timeout))
        packet = encode_packet(
            Connect(
                "MQTT", 5, True, keep_alive, own.id.hex(), None, None, None, properties, bridge=True
            ),
            5,
        )
        self._body = packet[read_length(packet, 1)[1] :]
        self.link.conn.send(packet)

    def _data(self) -> bytes:
        """Return what this broker's CONNECT brings for the proofs."""
        config = self.cluster.config
        public = config.key.public if config.key is not None else b""
        if config.secret is None:
            return self.cluster.entropy(NONCE_BYTES) + public
        self._offer = Offer(self.cluster.entropy(OFFER_BYTES))
        return self._offer.data + public

    def connect_received(self, connect: Connect, body: bytes, now: float) -> None:
        """Take the other broker's CONNECT at `now` (s): the first packet to a called broker, the
        answer to a dialler. `connect`: what it says; `body`: the same as it came, for the proofs.

        Raises:
            MalformedPacket: it does not say who connects.
        """
        link = self.link
        cluster = self.cluster
        link.peer = peer_of(connect)
        properties = connect.properties or {}
        method = properties.get(Property.AUTHENTICATION_METHOD)
        if method != self.method:
            self._refuse_method(method)
        elif self.method is not None:
            self._begin_proof(properties.get(Property.AUTHENTICATION_DATA, b""), body, now)
        elif not cluster.link_registry.admission.acceptable(link, now):
            pass
        elif link.dialled:
            self._agree(now)
        else:
            self._connect()
            link.move(Input.UNPROVEN)

    def _refuse_method(self, method: str | None) -> None:
        counter = "link_wrong_secret"
        if self.method == AUTHENTICATION:
            self.refuse(ReasonCode.NOT_AUTHORIZED, "has no cluster secret", counter)
        elif method == AUTHENTICATION:
            self.refuse(ReasonCode.BAD_AUTHENTICATION_METHOD, "requires a cluster secret", counter)
        elif method == IDENTITY:
            self.refuse(
                ReasonCode.BAD_AUTHENTICATION_METHOD,
                "requires a proof of the id, and this one has no key",
                "link_wrong_id",
            )
        else:
            self.refuse(ReasonCode.NOT_AUTHORIZED, "does not prove its id", "link_wrong_id")

    def _begin_proof(self, data: bytes, body: bytes, now: float) -> None:
        """Prepare the proofs from both CONNECTs; a called broker sends its own CONNECT first, and
        then its proof."""
        link, config = self.link, self.cluster.config
        assert link.peer is not None
        size = NONCE_BYTES if config.secret is None else OFFER_BYTES
        self._public = data[size:]
        if (config.key is not None and not self._public) or len(self._public) not in (
            0,
            PUBLIC_BYTES,
        ):
            self.refuse(ReasonCode.NOT_AUTHORIZED, "does not prove its id", "link_wrong_id")
            return
        if self._public and id_of(self._public) != link.peer.id:
            self.refuse(
                ReasonCode.NOT_AUTHORIZED,
                "claims an id that is not that of its key",
                "link_wrong_id",
            )
            return
        if not link.dialled:
            if not self.cluster.link_registry.admission.acceptable(link, now, proven=False):
                return
            self._connect()
        self._transcript = transcript(*(self._body, body) if link.dialled else (body, self._body))
        if config.secret is not None:
            assert self._offer is not None
            try:
                shared = self._offer.shared(data[:size])
            except ValueError:
                raise MalformedPacket("bridge CONNECT with an invalid key") from None
            self._keys = LinkKeys(config.secret, shared, self._transcript)
        self._offer = None
        self._body = b""
        if not link.dialled:
            link.conn.send(self._auth())

    def _auth(self) -> bytes:
        """Return the AUTH packet with this broker's proof and signature, as far as it has any."""
        key, dialler = self.cluster.config.key, self.link.dialled
        proof = self._keys.proof(dialler=dialler) if self._keys is not None else b""
        return _auth_packet(
            self.method or "",
            proof + (key.sign(self._transcript, dialler=dialler) if key is not None else b""),
        )

    def auth_received(self, packet: Auth, body: bytes, now: float) -> None:
        """Take the other broker's proof, at `now` (s), that it has the secret and its id, and has
        seen the same CONNECTs; with a secret all is encrypted from here on. `packet`: the proof;
        `body`: the same as it came.

        Raises:
            MalformedPacket: it cannot be read.
            ProtocolViolation: it contains more than a proof.
        """
        link, keys = self.link, self._keys
        data: bytes = (packet.properties or {}).get(Property.AUTHENTICATION_DATA, b"")
        expected = _auth_packet(self.method or "", data)
        if body != expected[read_length(expected, 1)[1] :]:
            raise ProtocolViolation("AUTH of a broker with more in it than its proof")
        proof = keys.proof(dialler=not link.dialled) if keys is not None else b""
        if not hmac.compare_digest(data[: len(proof)], proof):
            self.refuse(
                ReasonCode.NOT_AUTHORIZED, "has another cluster secret", "link_wrong_secret"
            )
            return
        signature = data[len(proof) :]
        if self._public and not signed(
            self._public, signature, self._transcript, dialler=not link.dialled
        ):
            self.refuse(ReasonCode.NOT_AUTHORIZED, "does not prove its id", "link_wrong_id")
            return
        # The last packet that goes out unencrypted. The CONNECT has gone, as this answers it.
        if link.dialled:
            transport = link.conn.transport
            transport.write(self._auth())
        self._transcript = b""
        if keys is not None:
            self._keys = None
            RecordLayer(
                link,
                keys.records(dialler=link.dialled),
                keys.records(dialler=not link.dialled),
                self.cluster.node.limits.records_per_key,
            )
        if self.cluster.link_registry.admission.acceptable(link, now):
            self._agree(now)

    def _agree(self, now: float) -> None:
        """Have the link come up, now that the other broker is known, unless another link
        to it stays."""
        link = self.link
        if self.cluster.link_registry.admission.admit(link, now):
            link.conn.send(encode_packet(Connack(False, 0, None), 5))
            link.come_up(now)

    def refused(self, packet: Connack, now: float) -> None:
        """Take the other broker's CONNACK that says why it refuses: log that, and close."""
        link = self.link
        cluster = self.cluster
        properties = packet.properties or {}
        why = properties.get(Property.REASON_STRING, "")[:200] or hex(packet.code)
        # The text goes to this broker's log.
        why = "".join(letter if letter.isprintable() else "?" for letter in why)
        cluster.link_registry.refused(link, why)
        if (
            packet.code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
            and Property.SERVER_REFERENCE in properties
        ):
            with contextlib.suppress(ValueError):
                cluster.id_conflict.suspect(
                    parse_address(properties[Property.SERVER_REFERENCE]), now
                )
        link.conn.close()
        cluster.link_registry.on_link_down(link, f"refused: {why}", now)

    def agreed(self, now: float) -> None:
        """Take the dialler's CONNACK, where brokers prove nothing."""
        # Only now is the caller known: existing links may not be touched before.
        self._agree(now)

    def refuse(self, reason: int, why: str, counter: str, other: str = "") -> None:
        """Refuse the other broker: its CONNACK says why, and this broker logs one line and counts.

        `reason`: reason code of the CONNACK; `why`: what it is, does or lacks, behind "your
        broker"; `counter`: the counter's name; `other`: "HOST:PORT" of the broker that has its id.
        """
        link = self.link
        cluster = self.cluster
        counters = cluster.node.counters
        setattr(counters, counter, getattr(counters, counter) + 1)
        peer = link.conn.peer
        cluster.node.log_limit.line(
            "warning", f"link refused ({counter})", peer, f"broker at {peer} {why}; link refused"
        )
        properties: Properties = {Property.REASON_STRING: f"your broker {why}"}
        if other:
            properties[Property.SERVER_REFERENCE] = other
        link.conn.close(encode_packet(Connack(False, reason, properties), 5))
        cluster.link_registry.on_link_down(link, why, cluster.node.now)


def _auth_packet(method: str, data: bytes) -> bytes:
    """Return an AUTH packet of a broker; it has no other form."""
    properties: Properties = {
        Property.AUTHENTICATION_METHOD: method,
        Property.AUTHENTICATION_DATA: data,
    }
    return encode_packet(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties), 5)
