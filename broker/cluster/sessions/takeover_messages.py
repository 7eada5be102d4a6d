"""What two brokers say about a session that one takes from the other (docs/decisions/0016).

    request  u8 TAKE, DONE, MERGE or END, u64 stamp of the taker's connection, client id, u32 from
             where on, digest of its user (8), with DONE and MERGE u64 stamp of the session that is
             meant, with MERGE the vector of what has to have come to it before it is encoded
    answer   u8 NOTHING, MOVED, NEWER, ENDED, COMING or FOREIGN, stamp, client id, with MOVED the id
             of the broker that has it (its own: begin again)
    part     u8 TAKE or MERGE, stamp, client id, and what `session_parts` says. All parts together
             are the session (`session_head`): with TAKE without its queue, with MERGE all of it

    ended    u8 NOTHING, stamp, client id

A client id is u16 size and UTF-8. All requests may be repeated; what was encoded stays what it was,
until it is taken or given up.
"""

from __future__ import annotations

import struct

from mqttree.broker.cluster.directory.unicast_bus import BEHIND, LIVE
from mqttree.broker.wire.errors import MalformedPacket

SESSION_REQUEST, SESSION_ANSWER, SESSION_PART = 2, 3, 4 | BEHIND
"""Kinds of messages to one broker; parts come behind the messages that clients published before."""
SESSION_ENDED = BEHIND | LIVE | 15
"""The answer to END when there is no session any more: behind its will, on the same path."""

TAKE, MERGE, DONE, END = 1, 2, 3, 4
"""Requests; there are parts of TAKE and MERGE. MERGE: the taker has a newer session of this client,
or a newer copy of this one (`merge`); END: the client begins a new one, so this one ends, with its
will."""
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
