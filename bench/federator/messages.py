"""What federators send each other, as objects."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class PublicationId(NamedTuple):
    """A publication's name: the broker where a client published it, and that one's count."""

    origin: int
    number: int


class CoreAnnouncement(NamedTuple):
    """A core says that it is there, and relays pass it on (CORE_ANN)."""

    core: int
    seq: int
    """The core counts its announcements."""
    dist: int
    """The hops between the core and the sender."""
    sender: int


class Membership(NamedTuple):
    """A member of the mesh says to one of its parents that it is a child (MESH_MEMB_ANN)."""

    core: int
    seq: int
    """The announcement that it answers."""
    sender: int


class Data(NamedTuple):
    """A publication on its way along the mesh (DATA; "routing" in the public implementations)."""

    id: PublicationId
    sender: int
    payload: bytes


Message: TypeAlias = CoreAnnouncement | Membership | Data
