"""The owner of a session: it belongs to the user who began it, at every broker
(docs/decisions/0016).

Each broker posts its sessions in the directory with a digest of their owner, so that every other
one refuses a CONNECT with that client id by another user. An owner is a user name that was
checked; None: anonymous, a user like the others.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mqttree.broker.core.core_broker import CoreBroker

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Access
    from mqttree.broker.auth.enhanced_auth import Method
    from mqttree.broker.core.effects import Hooks
    from mqttree.broker.core.session import Session

KEPT, RESUMED, GONE = 1, 2, 4
"""Flags of an entry: the session outlives its connection; it goes on with an older one; it has
ended, and older ones are not to come back."""

ANONYMOUS = bytes(8)
"""Digest of no owner."""

_ENTRY = struct.Struct(">BQQQ8s")


class OwningBroker(CoreBroker, Protocol):
    """What knows which user a client is."""

    @property
    def access(self) -> Access | None:
        """Users and rules in force; None: plugins alone decide."""

    @property
    def hooks(self) -> Hooks:
        """The hooks that plugins implement."""

    @property
    def methods(self) -> dict[str, Method]:
        """Authentication Methods (MQTT 5) and what begins an exchange."""


class Entry(NamedTuple):
    """What a broker posts of a session. `stamp`: when its newest connection began; `created`: when
    the session did; `floor`: of the last Clean Start, nothing older is part of it. All three are
    times of the hybrid clock."""

    flags: int
    stamp: int
    created: int
    floor: int
    owner: bytes

    def encode(self) -> bytes:
        """Return the value in the directory."""
        return _ENTRY.pack(*self)


def decode_entry(value: bytes | None) -> Entry | None:
    """Return what another broker posted; None for nothing, and for what cannot be read."""
    return None if value is None or len(value) != _ENTRY.size else Entry(*_ENTRY.unpack(value))


def digest(owner: str | None) -> bytes:
    """Return 8 bytes that stand for an owner."""
    return ANONYMOUS if owner is None else blake2b(owner.encode(), digest_size=8).digest()


LEG_LISTENER = LEG_OWNER = "$leg"
"""The listener by which this process alone connects, for its sessions at other brokers, and who
those of them belong to that have no user. No user can log in under such a name."""


def owner_of(
    node: OwningBroker, username: str | None, listener: str, *, proven: bool
) -> str | None:
    """Return the user that a client is, None: its name has not been checked.

    `node`: knows whether names are checked; `username`: as it says; `listener`: where it came in;
    `proven`: enhanced authentication has confirmed the name.
    """
    if listener == LEG_LISTENER and username is None:
        return LEG_OWNER
    verified = proven or node.hooks.verified
    certified = listener == LEG_LISTENER or listener in node.config.identity_listeners
    if node.access is not None:
        return node.access.known_as(username, verified=verified, certified=certified)
    return username if verified or certified else None


def belongs(node: OwningBroker, session: Session, owner: str | None) -> bool:
    """Return whether a `session` is of the user `owner`. So is a session under the same name that
    began before users were asked for. `node`: knows whether names are checked."""
    return session.owner == owner or (
        session.owner is None and session.username == owner and not _comes(node, None)
    )


def abandoned(node: OwningBroker, session: Session) -> bool:
    """Whether no client can come back for a session: its owner would not be let in any more."""
    return session.conn is None and not _comes(node, session.owner)


def _comes(node: OwningBroker, owner: str | None) -> bool:
    access = node.access
    if owner == LEG_OWNER or node.hooks.authenticate or (access is None and node.methods):
        return True  # it does, or plugins decide
    if owner is None:
        return access.anonymous_somewhere if access is not None else node.config.allow_anonymous
    return bool(node.config.identity_listeners) or (
        access is not None and access.users is not None and owner in access.users
    )
