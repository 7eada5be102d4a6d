"""The settings of a broker in a federation, with the one set of defaults.

The settings given at the start (`options.RunSettings`), those derived from them
(`options.FederationSettings`) and those of a node (`node_config.NodeConfig`) extend these. The
spanning tree and discovery have their own settings on a lower floor, and their defaults are taken
from there.
"""

from __future__ import annotations

from typing import Any

from mqttree.broker.base.address import DEFAULT_PORT
from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.broker.base.broker_key import BrokerKey
from mqttree.broker.base.record import Settings
from mqttree.discovery.effects import DEFAULT_CLUSTER, DISCOVERY_TIME
from mqttree.stp.config import HELLO_S, MAX_AGE_S
from mqttree.stp.root_policy import ANSWER_S, CAPABILITY, DELTA, GAMMA


class ClusterModel(Settings):
    """Settings that are the same for all brokers of a cluster, or should be. Times in s, sizes in
    bytes."""

    cluster: str = DEFAULT_CLUSTER
    secret: bytes | None = None
    """The content of the secret file; from `FederationSettings` on, the key that
    `link_keys.cluster_key` makes of it."""
    discovery: str = "multicast"
    """How other brokers are found: one of `options.DISCOVERIES`."""
    routing: str = "topic"
    """Which links messages take: one of `routing_modes.ROUTINGS`."""
    path_policy: str = "capability"
    """With routing by topic, through which brokers paths lead: those of high capability
    (`capability`), or those that pass on little (`balance`)."""
    overlay_policy: str = CAPABILITY
    """With routing `ort`, how the root of a topic's overlay is elected: by `capability`, or by root
    balance (`balance`)."""
    overlay_gamma: float = GAMMA
    overlay_delta: float = DELTA
    """Weights of the root balance: RB = gamma * R + delta * clients."""
    answer_time: float = ANSWER_S
    """Tt: with routing `ort`, answers are collected for so long before a root is elected."""
    hello: float = HELLO_S
    link_timeout: float = MAX_AGE_S
    discovery_time: float = DISCOVERY_TIME
    replicas: int = 1
    """How many other brokers, standbys, have the journal of this one, too: 0, 1 or 2."""
    acknowledge: str = "standby"
    """Whether output that waits for the journal also waits for the standbys (`standby`), or not
    (`local`)."""
    standby_hosts: str = "other"
    """Whether a standby on another host is preferred (`other`) or not (`any`)."""
    log_tail: int = 1024 * 1024 * 1024
    """Bytes of the log tail on the disk (`log_tail`); 0: there is none. Of more the oldest messages
    are dropped [replay_log_lost]. An hour of 300 KB/s."""
    redirect_clients: bool = False
    """Whether MQTT 5 clients are sent to brokers where they cost less."""


class BrokerModel(ClusterModel):
    """The settings of one broker."""

    id: bytes = bytes(ID_BYTES)
    boot: int = 1
    key: BrokerKey | None = None
    """The key that proves the id. None: brokers with keys do not link with this one."""
    name: str = ""
    host: str = "127.0.0.1"
    """The address that is announced, and that breaks ties between brokers: a concrete one, not a
    wildcard."""
    port: int = DEFAULT_PORT
    announce_host: str | None = None
    """The host in announcements; "" means the address that their datagrams come from. None:
    `host`."""
    seeds: tuple[tuple[str, int], ...] = ()
    """Literal IP addresses."""
    capability: float = 1.0
    memory_limit: int = 0
    """Bytes that the broker keeps for clients and other brokers (`memory_limit`), 0: no limit."""
    max_connections: int = 0
    """Clients connected at a time, 0: no limit."""


def values(settings: ClusterModel, model: type[ClusterModel]) -> dict[str, Any]:
    """Return the values of `settings` for each field of `model`, which they extend."""
    return {name: getattr(settings, name) for name in model.FIELDS}
