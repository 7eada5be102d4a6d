"""Settings of a broker among others, with the one set of defaults.

What is given at the start (`options.RunSettings`), what is worked out from it
(`options.FederationSettings`) and what a node is told (`node_config.NodeConfig`) extend these; the
spanning tree and discovery have their own settings on a lower floor, and their defaults are taken
from there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from broker.base import limits
from broker.base.address import DEFAULT_PORT
from broker.base.broker_id import ID_BYTES
from broker.base.broker_key import BrokerKey
from discovery.effects import DEFAULT_CLUSTER, DISCOVERY_TIME
from stp.config import HELLO_S, MAX_AGE_S


@dataclass(slots=True)
class ClusterModel:
    """What is the same for all brokers of a cluster, or should be. Times in s, sizes in bytes."""

    cluster: str = DEFAULT_CLUSTER
    secret: bytes | None = None
    """What was read from a file; from `FederationSettings` on the key that
    `link_keys.cluster_key` makes of it."""
    discovery: str = "multicast"
    """How other brokers are found: one of `options.DISCOVERIES`."""
    routing: str = "topic"
    """Which way messages go: one of `options.ROUTINGS`."""
    path_policy: str = "capability"
    """With routing by topic, through which brokers paths lead: those of high capability
    (`capability`), or those that pass on little (`balance`)."""
    hello: float = HELLO_S
    link_timeout: float = MAX_AGE_S
    discovery_time: float = DISCOVERY_TIME
    log_tail: int = limits.TAIL_BYTES
    """Bytes on the disk of what left the replay log while brokers that want it are away
    (`log_tail`), 0: none."""


@dataclass(slots=True)
class BrokerModel(ClusterModel):
    """One broker of them."""

    id: bytes = bytes(ID_BYTES)
    boot: int = 1
    key: BrokerKey | None = None
    """Proves the id, and has other brokers prove theirs. None: brokers with keys do not link with
    this one."""
    name: str = ""
    host: str = "127.0.0.1"
    """Address that others are told, and that breaks ties between brokers: a concrete one, not a
    wildcard."""
    port: int = DEFAULT_PORT
    announce_host: str | None = None
    """What announcements say; "" means the address that they come from. None: `host`."""
    seeds: tuple[tuple[str, int], ...] = ()
    """Literal IP addresses."""
    capability: float = 1.0
    memory_limit: int = 0
    """Bytes that the broker keeps for clients and others (`memory_limit`), 0: any number."""
    max_connections: int = 0
    """Clients connected at a time, 0: any number."""


def values(settings: ClusterModel, model: type[ClusterModel]) -> dict[str, Any]:
    """Return what `settings` say for each field of `model`, which they extend."""
    return {field.name: getattr(settings, field.name) for field in fields(model)}
