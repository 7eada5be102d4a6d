"""What a broker says of itself in the CONNECT of a link."""

from __future__ import annotations

from dataclasses import dataclass

from mqttree.broker.base.address import is_wildcard, normal_host
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.packets import Connect
from mqttree.broker.wire.properties import Property
from mqttree.discovery.announcement import MAX_CLUSTER, MAX_NAME, check_text

MAX_VERSION = 65_535
"""The highest version of the link protocol that a broker may say."""


@dataclass(slots=True, eq=False, repr=False)
class Peer:
    """A broker's description of itself in its CONNECT."""

    id: bytes
    boot: int
    host: str
    port: int
    name: str
    cluster: str
    capability: float
    protocol: int
    """The version of the link protocol that it speaks."""
    routing: str = "flood"
    instance: int = 0
    """Which process says this, should two have one id and one boot number; 0: it does not say."""
    standby: bool = False
    """Whether it takes images of other brokers."""


def peer_of(connect: Connect) -> Peer:
    """Read which broker connects.

    Raises:
        MalformedPacket: a bridge CONNECT that does not say it.
    """
    values = dict((connect.properties or {}).get(Property.USER_PROPERTY, []))
    try:
        host, _, port = values["address"].rpartition(":")
        peer = Peer(
            bytes.fromhex(connect.client_id),
            int(values["boot"]),
            host if is_wildcard(host) else normal_host(host.strip("[]")),
            int(port),
            check_text("name", values.get("name", ""), MAX_NAME).decode(),
            check_text("cluster", values["cluster"], MAX_CLUSTER).decode(),
            float(values["capability"]),
            int(values["protocol"]),
            values.get("routing", "flood"),
            int(values.get("instance", "0"), 16),
            values.get("standby") == "1",
        )
    except (KeyError, ValueError):
        raise MalformedPacket(
            "bridge CONNECT without id, boot, address, cluster, capability and protocol"
        ) from None
    ranges = (
        0 <= peer.boot < 2**32
        and 0 <= peer.instance < 2**64
        and 0 < peer.port < 65536
        and 0 <= peer.capability < 1e6
        and 0 <= peer.protocol <= MAX_VERSION
    )
    if len(peer.id) != 8 or not ranges:
        raise MalformedPacket("bridge CONNECT with values out of range")
    return peer
