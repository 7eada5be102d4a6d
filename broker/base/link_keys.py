"""The keys of a link between two brokers that have the cluster secret (docs/decisions/0002).

    secret file -> cluster key (slow, once at the start: `cluster_key`)
    cluster key, both ephemeral X25519 keys, transcript (both CONNECTs)
                -> the keys of one connection: `LinkKeys`

Each connection has its own keys. Who learns the secret later cannot read what was recorded: the
ephemeral keys are gone.
"""

from __future__ import annotations

import hashlib
import hmac

from mqttree.broker.wire.varint import encode_varint

KEY_BYTES = 32
NONCE_BYTES = 32
OFFER_BYTES = NONCE_BYTES + KEY_BYTES
"""bytes that a CONNECT carries: a nonce, and an ephemeral public key."""

SCRYPT_COST = 1 << 15
"""Cost in memory (with r = 8: 32 MiB) and time (some 0.1 s): once at the start of a broker, and for
every guess of an attacker."""


def cluster_key(secret: bytes, cluster: str) -> bytes:
    """Return the key that stands for a cluster's secret: 32 bytes, slow to compute on purpose (RFC
    7914)."""
    # This imports what links need now, and not when the first link waits for it.
    Offer(bytes(OFFER_BYTES))
    expand(bytes(KEY_BYTES), b"")
    salt = b"mqttree cluster key 1 " + cluster.encode()
    return hashlib.scrypt(
        secret, salt=salt, n=SCRYPT_COST, r=8, p=1, maxmem=1 << 26, dklen=KEY_BYTES
    )


def transcript(dialler: bytes, called: bytes) -> bytes:
    """Return the hash over every byte of the two CONNECTs' bodies, the dialler's first."""
    found = hashlib.sha256(b"mqttree link 1")
    for body in (dialler, called):
        packet = b"\x10" + encode_varint(len(body)) + body
        found.update(len(packet).to_bytes(4, "big"))
        found.update(packet)
    return found.digest()


class Offer:
    """The part of one end in a handshake: a nonce and an ephemeral key pair. Used once."""

    __slots__ = ("_private", "data")

    def __init__(self, entropy: bytes) -> None:
        """`entropy`: OFFER_BYTES random bytes."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private = X25519PrivateKey.from_private_bytes(entropy[NONCE_BYTES:OFFER_BYTES])
        self.data = entropy[:NONCE_BYTES] + self._private.public_key().public_bytes_raw()

    def shared(self, data: bytes) -> bytes:
        """Return the secret that only the two ends know, given the other end's `data`. Raises
        ValueError for an invalid key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        if len(data) != OFFER_BYTES:
            raise ValueError(f"{len(data)} bytes instead of {OFFER_BYTES}")
        return self._private.exchange(X25519PublicKey.from_public_bytes(data[NONCE_BYTES:]))


class LinkKeys:
    """The keys of one connection. Both ends prove that they have them before anything else is
    said."""

    __slots__ = ("_prk", "_transcript")

    def __init__(self, key: bytes, shared: bytes, transcript: bytes) -> None:
        """`key`: the cluster's; `shared`: of the ephemeral keys; `transcript`: of the CONNECTs."""
        psk = hmac.digest(key, b"mqttree link secret 1", "sha256")
        self._prk = hmac.digest(transcript, psk + shared, "sha256")  # HKDF-Extract (RFC 5869)
        self._transcript = transcript

    def proof(self, *, dialler: bool) -> bytes:
        """Return the proof that an end has the secret, and has seen the same two CONNECTs."""
        return hmac.digest(
            self._key(b"dialler proves" if dialler else b"called proves"),
            self._transcript,
            "sha256",
        )

    def records(self, *, dialler: bool) -> bytes:
        """Return the key of the records that an end sends."""
        return self._key(b"dialler sends" if dialler else b"called sends")

    def _key(self, label: bytes) -> bytes:
        return expand(self._prk, label)


def expand(key: bytes, label: bytes) -> bytes:
    """Return a key of 32 bytes for one purpose (HKDF-Expand with SHA-256, RFC 5869)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    return HKDFExpand(SHA256(), KEY_BYTES, b"mqttree " + label).derive(key)


def next_key(key: bytes) -> bytes:
    """Return the key that follows this one. The old key cannot be computed from it."""
    return expand(key, b"next")
