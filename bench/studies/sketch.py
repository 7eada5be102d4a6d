"""The ceiling: the least that can still be called forwarding MQTT, to know what generator and
interpreter can do.

Exact topics, and + at the end; PUBLISH passed on unchanged at any QoS with the publisher's packet
identifiers, no sessions, no checks. It is the target `sketch`, and listens on a port of 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import cast

import uvloop

from mqttree.bench.load import packets

_routes: dict[bytes, list[Sketch]] = {}
_below: dict[bytes, list[Sketch]] = {}
"""By what stands before the /+ of a filter."""
_touched: set[Sketch] = set()


class Sketch(asyncio.Protocol):
    """One client's connection."""

    __slots__ = ("_body", "_rest", "outbox", "transport", "version")

    def __init__(self) -> None:
        self.outbox: list[bytes] = []
        self.version = 4
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=1 << 30)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client's subscriptions."""
        for route in (*_routes.values(), *_below.values()):
            if self in route:
                route.remove(self)

    def data_received(self, data: bytes) -> None:
        """Parse every packet of the chunk in place, then write each touched connection once."""
        if self._rest:
            data = self._rest + data
        pos, end, routes, touched = 0, len(data), _routes, _touched
        while pos + 1 < end:
            length = data[pos + 1]
            body = pos + 2
            if length > 127:
                head = packets.header(data, pos, end)
                if head is None:
                    break
                body, length = head[0], head[1] - head[0]
            after = body + length
            if after > end:
                break
            first = data[pos]
            if first >> 4 == packets.PUBLISH:
                at = body + 2 + (data[body] << 8 | data[body + 1])
                packet, topic = data[pos:after], data[body + 2 : at]
                route = routes.get(topic) or _below.get(topic[: topic.rfind(b"/")])
                for target in route or ():
                    target.outbox.append(packet)
                    touched.add(target)
                if first & 6:
                    self.outbox.append(
                        (packets.PUBACK_HEAD if first & 2 else packets.PUBREC_HEAD)
                        + data[at : at + 2]
                    )
                    touched.add(self)
            else:
                self._control(first, data[body:after])
                touched.add(self)
            pos = after
        self._rest = data[pos:]
        for target in touched:
            if target.outbox:
                target.transport.write(b"".join(target.outbox))
                target.outbox.clear()
        touched.clear()

    def _control(self, first: int, body: bytes) -> None:
        """Answer everything that is not a PUBLISH."""
        if first == 0x10:
            self.version = body[6]
            self.outbox.append(b"\x20\x03\0\0\0" if self.version == 5 else b"\x20\x02\0\0")
        elif first == 0x82:
            at = 3 if self.version == 5 else 2
            length = int.from_bytes(body[at : at + 2], "big")
            wanted = body[at + 2 : at + 2 + length]
            routes = _below if wanted.endswith(b"/+") else _routes
            routes.setdefault(wanted.removesuffix(b"/+"), []).append(self)
            self.outbox.append(packets.packet(0x90, body[:at] + body[-1:]))
        elif first == 0x50:  # PUBREC -> PUBREL
            self.outbox.append(packets.PUBREL_HEAD + body[:2])
        elif first == 0x62:  # PUBREL -> PUBCOMP
            self.outbox.append(packets.PUBCOMP_HEAD + body[:2])
        elif first == 0xC0:
            self.outbox.append(b"\xd0\0")


async def serve(port: int) -> None:
    """Listen on 127.0.0.1 until cancelled."""
    server = await asyncio.get_running_loop().create_server(Sketch, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(int(sys.argv[1])))
