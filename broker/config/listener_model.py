"""What the broker reads of its listeners, whoever has read their configuration, and what follows
from it: where other brokers dial, what the start line says."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from mqttree.broker.base.address import DEFAULT_PORT, Address, is_loopback
from mqttree.broker.base.record import Record
from mqttree.broker.config.listener_options import ListenerOptions, split_options, unix_path
from mqttree.broker.config.options import TlsSettings, split_bind

TCP, WEBSOCKET, EXTERNAL = "tcp", "ws", "external"
"""Types of listeners; amqtt's are equal to these texts."""

PORTS = {TCP: DEFAULT_PORT, WEBSOCKET: 8883}
"""The port of a listener that names none."""

ALL_INTERFACES = f"0.0.0.0:{DEFAULT_PORT}"
"""Where the default listener binds when nothing else is said."""


class ListenerModel(Protocol):
    """One listener of a configuration, as amqtt's model has it."""

    @property
    def type(self) -> str:
        """What connections come there: TCP, WEBSOCKET or EXTERNAL (from another server in this
        program)."""

    @property
    def bind(self) -> str | None:
        """Where it listens, as `split_bind` and `unix_path` read it; None: nowhere."""

    @property
    def max_connections(self) -> int:
        """Connections at a time; 0 or less: any number."""

    @property
    def ssl(self) -> bool:
        """Whether connections to this listener speak TLS."""


class HasListeners(Protocol):
    """A configuration whose listeners have names."""

    @property
    def listeners(self) -> Mapping[str, ListenerModel]:
        """By name; one is `default`."""


class TcpListener(Record):
    """A listener of plain TCP at `bind`, for any number of connections."""

    bind: str = ALL_INTERFACES
    type: str = TCP
    max_connections: int = 0
    ssl: bool = False


class OneListener(Record):
    """The configuration of a broker without a file: the listener `default` of plain TCP."""

    default: TcpListener

    @property
    def listeners(self) -> dict[str, ListenerModel]:
        """The listener by its name."""
        return {"default": self.default}


def link_listener(
    config: HasListeners, data: Mapping[str, Any] | None = None, tls: TlsSettings | None = None
) -> str | None:
    """Return the name of the listener that other brokers are to dial: the default one if it is
    plain TCP, else the first that is.

    `config`: of the listeners. `data`: the content of the file, for our options of listeners.
    `tls`: settings of links; if set, the listener must use TLS, and require a certificate if links
    have one.
    """
    options = split_options((data or {}).get("listeners", {"default": {}}))[1]
    name: str
    for name in ["default", *(name for name in config.listeners if name != "default")]:
        listener, ours = config.listeners[name], options.get(name, ListenerOptions())
        if listener.type != TCP or listener.bind is None or unix_path(listener.bind) is not None:
            continue
        required = tls is not None and tls.certfile is not None
        if (
            bool(listener.ssl) is (tls is not None)
            and not ours.proxy_protocol
            and ours.require_certificate >= required
        ):
            return name
    return None


def link_bind(
    config: HasListeners, data: Mapping[str, Any] | None = None, tls: TlsSettings | None = None
) -> Address | None:
    """Return the address where `link_listener` binds; `config`, `data`, `tls` as there."""
    name = link_listener(config, data, tls)
    return None if name is None else split_bind(str(config.listeners[name].bind))


def describe_listeners(
    config: HasListeners, ports: Mapping[str, int] = MappingProxyType({})
) -> str:
    """Return the names of all listeners for the start line; `ports`: those that are open, by
    listener."""
    found = []
    for name, listener in config.listeners.items():
        if listener.type == EXTERNAL:
            found.append("external")
        elif listener.bind is not None:
            secure = {TCP: "tls ", WEBSOCKET: "wss "}
            plain = {TCP: "", WEBSOCKET: "ws "}
            kind = (secure if listener.ssl else plain)[listener.type]
            path = unix_path(listener.bind)
            address = split_bind(listener.bind, PORTS[listener.type]) if path is None else None
            where = (
                f"unix:{path}"
                if address is None
                else Address(address.host or "0.0.0.0", ports.get(name, address.port))
            )
            found.append(f"{kind}{where}")
    return ", ".join(found) or "nothing"


def exposed(config: HasListeners, names: Container[str] | None = None) -> bool:
    """Return whether other machines can reach any of the listeners `names`."""
    listeners = [
        listener for name, listener in config.listeners.items() if names is None or name in names
    ]
    binds = [listener.bind for listener in listeners if listener.type != EXTERNAL]
    return any(
        not is_loopback(split_bind(bind).host)
        for bind in binds
        if bind is not None and unix_path(bind) is None
    )
