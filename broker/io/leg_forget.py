"""Ends the session of a leg at its foreign broker, for a leg that is not wanted any more."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from mqttree.broker.config.leg_options import LegModel
from mqttree.broker.io.tls import describe_error
from mqttree.broker.leg.connect import describe
from mqttree.broker.leg.leg import PATIENCE
from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import Connack, Connect, Disconnect
from mqttree.broker.wire.varint import read_length

MAX_CONNACK_BYTES = 64 * 1024
"""bytes of a CONNACK that are read."""


async def forget(settings: LegSettings, model: LegModel, context: ssl.SSLContext | None) -> str:
    """Connect to each address with Clean Start and disconnect, so that nothing is kept there.
    `settings`, `model`: of the leg; `context`: of TLS, None: without. Returns why that failed at
    one of them, "" if it did not."""
    found = ""
    for place, address in enumerate(settings.addresses):
        try:
            async with asyncio.timeout(PATIENCE):
                for version in (model.version,) if model.version else (5, 4):
                    code = await _begin_anew(settings, model, context, place, version)
                    if not code:
                        break
            if code:
                found = f"{address} refuses: {describe(code)} (code {code:#04x})"
        except (OSError, ValueError, EOFError, OverflowError) as error:
            found = f"{address}: {describe_error(error) or 'timed out'}"
        except WireError as error:
            found = f"{address}: {error.message}"
    return found


async def _begin_anew(
    settings: LegSettings,
    model: LegModel,
    context: ssl.SSLContext | None,
    place: int,
    version: int,
) -> int:
    """Return the code of the CONNACK in `version` of MQTT at the address with the number `place`;
    1 if the broker closes instead. Raises OSError, ValueError and WireError."""
    url = model.urls[place]
    reader, writer = await asyncio.open_connection(
        url.host, url.port, ssl=context, server_hostname=None if context is None else url.host
    )
    try:
        connect = Connect(
            "MQTT", version, True, 0, settings.client_id, url.user, model.password(), None, None
        )
        writer.write(encode_packet(connect, version))
        data, body, length = b"", -1, 0
        while body < 0 or len(data) < body + length:
            more = await reader.read(MAX_CONNACK_BYTES)
            if not more:
                return 1
            data += more
            if len(data) > 1:
                length, body = read_length(data, 1)
        # A broker that knows no MQTT 5 answers in an older version.
        known = 4 if data[:2] == b"\x20\x02" else version
        packet = decode_packet(data[0], data[body : body + length], known)
        if data[0] >> 4 != PacketType.CONNACK or not isinstance(packet, Connack):
            return 1
        if not packet.code:
            writer.write(encode_packet(Disconnect(), version))
        return packet.code
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
