"""Commands and configuration files of the brokers that are compared: plain, with TLS and WebSocket,
and two that are one. Pure.

In both, {port}, {tls}, {ws}, {extra} and {more} stand for free ports, {peer_port} and so on for
those of the other one of two, {first_port} and {last_port} for those where publishers and
subscribers are, {config} for the file, {dir} for an empty folder, {cert} and {key}
for a certificate of 127.0.0.1 and its key, {python} for this interpreter, {name} for a name of its
own, {pair} for one that two have in common, and {durability} (none, async) or {persistence} (false,
true) for whether messages are kept on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line, and what stands in the file that {config} names."""

    command: str
    config: str = ""


@dataclass(frozen=True, slots=True)
class Launches:
    """All ways to start one kind of broker, and how to ask for its version.

    plain: how it listens on one plain port.
    wide: how it listens with TLS and WebSocket, too (None: it does not).
    paths: by name, the brokers that messages pass, the publishers' first. `hop`: two of them that
        are one; `leg`, `legout`: a Mosquitto and this one with a leg to it, and the other way
        round; `legs`: this one between two Mosquittos; `pair`, `standby`: as `hop`, and the second
        one has no clients; with `standby` it has the journal of the first.
    version: a command that prints its version (empty: there is none).
    """

    plain: Launch
    wide: Launch | None = None
    paths: Mapping[str, tuple[Launch, ...]] = field(default_factory=dict)
    version: str = ""


def mqttree(program: str) -> Launches:
    """Return how mqttree is started, whose command line begins with `program`."""
    common = f"{program} run --log-level warning --durability {{durability}} --data-dir {{dir}}"
    configured = f"{common} -c {{config}} --discovery off"
    hop = Launch(
        f"{common} --listen 127.0.0.1:{{port}} --cluster {{pair}} --name {{name}}"
        " --discovery static --seed 127.0.0.1:{peer_port}"
    )
    unprotected = Launch(f"{hop.command} -c {{config}}", "federation: {replicas: 0}\n")
    return Launches(
        Launch(f"{common} --listen 127.0.0.1:{{port}} --discovery off"),
        Launch(configured, _MQTTREE_LISTENERS),
        {
            "hop": (hop, hop),
            "pair": (unprotected, unprotected),
            "standby": (hop, hop),
            "leg": (_NEIGHBOUR, Launch(configured, _MQTTREE_LEG)),
            "legout": (Launch(configured, _MQTTREE_LEG_OUT), _NEIGHBOUR),
            "legs": (_NEIGHBOUR, Launch(configured, _MQTTREE_LEGS), _NEIGHBOUR),
        },
        f"{program} --version",
    )


_MQTTREE_PORT = """\
listeners:
  default: {type: tcp, bind: "127.0.0.1:{port}"}
legs:
"""
_MQTTREE_FIRST = """\
  first: {broker: "127.0.0.1:{first_port}", topic: "# in 2"}
"""
_MQTTREE_LAST = """\
  last: {broker: "127.0.0.1:{last_port}", topic: "# out 2"}
"""
_MQTTREE_LEG = _MQTTREE_PORT + _MQTTREE_FIRST
_MQTTREE_LEG_OUT = _MQTTREE_PORT + _MQTTREE_LAST
_MQTTREE_LEGS = _MQTTREE_LEG + _MQTTREE_LAST
_MQTTREE_LISTENERS = """\
listeners:
  default: {type: tcp, bind: "127.0.0.1:{port}"}
  tls: {type: tcp, bind: "127.0.0.1:{tls}", ssl: true, certfile: "{cert}", keyfile: "{key}"}
  ws: {type: ws, bind: "127.0.0.1:{ws}"}
"""


def mosquitto(program: str, nodelay: bool = True) -> Launches:
    """Return how the Mosquitto at `program` is started; `nodelay`: with set_tcp_nodelay."""
    plain = ("set_tcp_nodelay true\n" if nodelay else "") + _MOSQUITTO
    command = f"{program} -c {{config}}"
    bridged = (Launch(command, plain + _MOSQUITTO_BRIDGE), Launch(command, plain))
    return Launches(
        Launch(command, plain),
        Launch(command, plain + _MOSQUITTO_MORE),
        dict.fromkeys(("hop", "leg", "legout", "legs"), bridged),
        f"{program} -h",
    )


# 2.0.11 never delivers QoS 2 messages that once waited for a place in flight (more than 20 at a
# time, any client), and QoS 1 is faster for it without that limit too.
_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence {persistence}
persistence_location {dir}/
log_dest none
max_inflight_messages 0
max_queued_messages 0
"""
_NEIGHBOUR = Launch(
    "mosquitto -c {config}",
    "set_tcp_nodelay true\n"
    + _MOSQUITTO.replace("max_inflight_messages 0", "max_inflight_messages 1000"),
)
"""A Mosquitto at an end of a leg, set as docs/bridging.md says. Without a limit 2.0.11 gives packet
identifiers at QoS 2 to new messages that are not released yet."""
_MOSQUITTO_MORE = """\
listener {tls} 127.0.0.1
certfile {cert}
keyfile {key}
listener {ws} 127.0.0.1
protocol websockets
"""
_MOSQUITTO_BRIDGE = """\
connection hop
address 127.0.0.1:{peer_port}
topic # out 2
try_private true
start_type automatic
restart_timeout 1
notifications_local_only true
cleansession true
"""


def flashmq(program: str) -> Launches:
    """Return how the FlashMQ at `program` is started. Its limits for each client are raised: by
    default it drops what a subscriber does not take at once."""
    command = f"{program} --config-file {{config}}"
    return Launches(
        Launch(command, _FLASHMQ),
        Launch(command, _FLASHMQ + _FLASHMQ_MORE),
        version=f"{program} --version",
    )


_FLASHMQ = """\
allow_anonymous true
thread_count 1
log_level warning
log_file {dir}/log
max_qos_msg_pending_per_client 65535
max_qos_bytes_pending_per_client 268435456
client_max_write_buffer_size 67108864
listen {
    protocol mqtt
    port {port}
    inet4_bind_address 127.0.0.1
    inet_protocol ip4
    tcp_nodelay true
}
"""
_FLASHMQ_MORE = """\
listen {
    protocol mqtt
    port {tls}
    inet4_bind_address 127.0.0.1
    inet_protocol ip4
    fullchain {cert}
    privkey {key}
    tcp_nodelay true
}
listen {
    protocol websockets
    port {ws}
    inet4_bind_address 127.0.0.1
    inet_protocol ip4
    tcp_nodelay true
}
"""


def nanomq(program: str) -> Launches:
    """Return how the NanoMQ at `program` is started."""
    command = f"{program} start --conf {{config}}"
    return Launches(
        Launch(command, _NANOMQ),
        Launch(command, _NANOMQ + _NANOMQ_MORE),
        version=f"{program} --version",
    )


_NANOMQ = """\
mqtt {
    max_mqueue_len = 65535
}
listeners.tcp {
    bind = "127.0.0.1:{port}"
}
log {
    to = [file]
    level = error
    dir = "{dir}"
    file = "log"
}
auth {
    allow_anonymous = true
    no_match = allow
    deny_action = ignore
}
"""
_NANOMQ_MORE = """\
listeners.ssl {
    bind = "127.0.0.1:{tls}"
    certfile = "{cert}"
    keyfile = "{key}"
    verify_peer = false
}
listeners.ws {
    bind = "127.0.0.1:{ws}/mqtt"
}
"""


def nats(program: str) -> Launches:
    """Return how the NATS server at `program` is started, which speaks MQTT 3.1.1, too. A hop is
    one between two members of a cluster."""
    command = f"{program} -c {{config}}"
    hop = Launch(command, _NATS + _NATS_CLUSTER)
    return Launches(
        Launch(command, _NATS), paths={"hop": (hop, hop)}, version=f"{program} --version"
    )


_NATS = """\
listen: 127.0.0.1:{extra}
server_name: "{name}"
log_file: "{dir}/log"
jetstream { store_dir: "{dir}" }
mqtt { listen: 127.0.0.1:{port}, max_ack_pending: 20000 }
"""
_NATS_CLUSTER = """\
cluster { name: {pair}, listen: 127.0.0.1:{more}, routes: ["nats://127.0.0.1:{peer_more}"] }
"""

OTHERS: dict[str, Callable[[str], Launches]] = {
    "mosquitto": mosquitto,
    "flashmq": flashmq,
    "nanomq": nanomq,
    "nats": nats,
}
"""Brokers that join when their program is given, by name."""
