"""AUTH of a client that is connected: it proves once more who it is (MQTT 5, 4.12.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.auth.enhanced_auth import AuthenticationFailed
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import ProtocolViolation
from mqttree.broker.wire.packets import Auth
from mqttree.broker.wire.strings import shorten

if TYPE_CHECKING:
    from mqttree.broker.core.client import Client

REAUTHENTICATION_TIMEOUT_S = 10.0
"""s; for a client that authenticates again to come to an end; as late as for CONNECT, it is
closed then [authentication_failed]."""


def authenticate_again(client: Client, packet: Auth, now: float) -> None:
    """Handle an AUTH (`packet`) of a `client` that is connected (MQTT 5, 4.12.1). What it publishes
    meanwhile is handled as before. `now`: s.

    Raises:
        ProtocolViolation: the client has not authenticated this way at first (MQTT-4.12.0-7), the
            order is wrong, or the method is another one (MQTT-4.12.1-1).
    """
    authentication = client.authentication
    if authentication is None:
        raise ProtocolViolation(
            "AUTH of a client whose CONNECT had no Authentication Method [MQTT-4.12.0-7]"
        )
    begun = authentication.running
    try:
        answer = authentication.take(packet, connected=True)
    except AuthenticationFailed as error:
        _failed(client, str(error))
        return
    data = encode_packet(answer, 5)
    if len(data) > client.session.maximum_packet_size:
        raise ProtocolViolation(
            "AUTH exceeds the client's Maximum Packet Size", ReasonCode.PACKET_TOO_LARGE
        )
    client.send(data)
    if authentication.running and not begun:
        run, longest = authentication.run, REAUTHENTICATION_TIMEOUT_S

        def check(now: float) -> None:
            if (
                authentication.running
                and authentication.run == run
                and not (client.conn.closing or client.conn.closed)
            ):
                _failed(client, f"it took longer than {longest:g} s")

        client.node.timers.schedule(now + longest, check)


def _failed(client: Client, why: str) -> None:
    node = client.node
    node.counters.authentication_failed += 1
    name, peer = shorten(client.session.client_id), client.conn.peer
    text = f"client {name} at {peer} failed to authenticate again ({shorten(why)}); closed"
    node.log_limit.line("warning", "failed to authenticate again", peer, text)
    client.shut(ReasonCode.NOT_AUTHORIZED, "failed to authenticate again")
