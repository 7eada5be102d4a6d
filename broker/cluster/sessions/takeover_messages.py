"""What two brokers say about a session that one takes from the other (docs/decisions/0016).

    request  u8 TAKE, REST, DONE, MERGE or END, u64 stamp of the taker's connection, client id, u32
             from where on, digest of its user (8), with REST and MERGE the vector of what has to
             have come to the session before it is encoded
    answer   u8 NOTHING, MOVED, NEWER, ENDED, COMING or FOREIGN, stamp, client id, with MOVED the id
             of the broker that has it (its own: begin again)
    part     u8 TAKE, REST or MERGE, stamp, client id, and what `session_parts` says.
             Of all parts together
             TAKE, MERGE: the session (`session_head`);
             REST: u32 size, vector of what has come to it, PUBLISH packets

    ended    u8 NOTHING, stamp, client id

A client id is u16 size and UTF-8. All requests may be repeated; what was encoded stays what it was,
until it is taken or given up.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from mqttree.broker.cluster.directory.unicast_bus import BEHIND, LIVE
from mqttree.broker.cluster.link.version_vector import Vector, decode_evaluated, encode_evaluated
from mqttree.broker.wire.errors import MalformedPacket

SESSION_REQUEST, SESSION_ANSWER, SESSION_PART = 2, 3, 4 | BEHIND
"""Kinds of messages to one broker; parts come behind the messages that clients published before."""
SESSION_ENDED = BEHIND | LIVE | 15
"""The answer to END when there is no session any more: behind its will, on the same path."""

TAKE, REST, DONE, MERGE, END = 1, 2, 3, 4, 5
"""Requests; there are parts of TAKE, REST and MERGE. MERGE: the taker has a newer session of this
client (`merge`); END: the client begins a new one, so this one ends, with its will."""
NOTHING, MOVED, NEWER, ENDED, COMING, FOREIGN = 1, 2, 3, 4, 5, 6
"""Answers. FOREIGN: the session is another user's."""

_HEAD = struct.Struct(">BQH")


def encode_takeover(what: int, stamp: int, client_id: str, rest: bytes = b"") -> bytes:
    """Encode a request, an answer or a part. `what`: which of them; `stamp`: of the taker's
    connection; `client_id`: of the session; `rest`: what follows."""
    name = client_id.encode()
    return _HEAD.pack(what, stamp, len(name)) + name + rest


def decode_takeover(body: bytes) -> tuple[int, int, str, bytes]:
    """Decode the same: (what, stamp, client id, rest).

    Raises:
        MalformedPacket: truncated, or the client id is not UTF-8.
    """
    if len(body) < _HEAD.size:
        raise MalformedPacket("message about a session is truncated")
    what, stamp, size = _HEAD.unpack_from(body)
    end = _HEAD.size + size
    try:
        name = body[_HEAD.size : end].decode()
    except UnicodeDecodeError:
        raise MalformedPacket(
            "message about a session with a client id that is not UTF-8"
        ) from None
    if end > len(body):
        raise MalformedPacket("message about a session is truncated")
    return what, stamp, name, body[end:]


def encode_rest(seen: Vector, batches: Iterable[bytes] = ()) -> bytes:
    """Encode the rest of a session: the numbers up to which that is all (`seen`), and the messages
    that came to it (`batches`)."""
    vector = encode_evaluated(seen)
    return b"".join((len(vector).to_bytes(4, "big"), vector, *batches))


def decode_rest(data: bytes, now: float) -> tuple[Vector, bytes]:
    """Decode the same: the numbers, and the batches. `now`: s.

    Raises:
        MalformedPacket: the numbers cannot be read.
    """
    end = 4 + int.from_bytes(data[:4], "big")
    return decode_evaluated(data[4:end], now), data[end:]
