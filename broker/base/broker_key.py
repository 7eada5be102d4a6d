"""The key to which a broker's id belongs: the id is a hash of its public half, and a broker signs
each handshake with it.

So no other broker can take the id of a broker that is away, with or without a cluster secret. A
copy of the data directory contains the key, too: with it, another broker can prove the same id
(`id_conflict`).
"""

from __future__ import annotations

import hashlib

from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.broker.base.record import Record
from mqttree.broker.wire.errors import MalformedPacket

SEED_BYTES = 32
PUBLIC_BYTES = 32


class BrokerKey(Record):
    """An Ed25519 key (RFC 8032): `seed` is secret, `public` goes with every CONNECT to a broker."""

    seed: bytes
    public: bytes

    @property
    def id(self) -> bytes:
        """The broker's id: the hash of the public key, as bytes."""
        return id_of(self.public)

    def sign(self, transcript: bytes, *, dialler: bool) -> bytes:
        """Return the signature that proves that this broker took part in the handshake with this
        transcript, in this role."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(_said(transcript, dialler))


def make_key(seed: bytes) -> BrokerKey:
    """Return the key made from a seed: SEED_BYTES random bytes."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return BrokerKey(
        seed, Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    )


def id_of(public: bytes) -> bytes:
    """Return the id that belongs to a public key. To find another key with the same id takes 2^64
    attempts."""
    return hashlib.sha256(b"mqttree broker id 1" + public).digest()[:ID_BYTES]


def signed(public: bytes, signature: bytes, transcript: bytes, *, dialler: bool) -> bool:
    """Return whether the owner of a key took part in a handshake.

    `public`: the key. `signature`: what its owner sent. `transcript`: all that both sides have
    sent. `dialler`: whether the owner is the side that dialled.

    Raises MalformedPacket for bytes that cannot be a key.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _said(transcript, dialler))
    except InvalidSignature:
        return False
    except ValueError:
        raise MalformedPacket("bridge CONNECT with a public key that is none") from None
    return True


def _said(transcript: bytes, dialler: bool) -> bytes:
    return b"mqttree link 1 " + (b"dialler " if dialler else b"called ") + transcript
