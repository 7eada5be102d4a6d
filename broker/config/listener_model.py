"""What the broker reads of its listeners, whoever has read their configuration, and what follows
from it: where other brokers dial, what the start line says."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from mqttree.broker.base.address import DEFAULT_PORT, Address, is_loopback
from mqttree.broker.base.record import Record
from mqttree.broker.config.listener_options import ListenerOptions, unix_path
from mqttree.broker.config.options import TlsSettings, split_bind

KINDS = TCP, WEBSOCKET, EXTERNAL = ("tcp", "ws", "external")
"""Types of listeners; amqtt's are equal to these texts."""

PORTS = {TCP: DEFAULT_PORT, WEBSOCKET: 8883}
"""The port of a listener that names none."""

ALL_INTERFACES = f"0.0.0.0:{DEFAULT_PORT}"
"""Where the default listener binds when nothing else is said."""


class ListenerModel(Protocol):
    """One listener of a configuration, as we read it or as amqtt does."""

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

    @property
    def cafile(self) -> str | Path | None:
        """File of the authorities that vouch for certificates of clients (PEM)."""

    @property
    def capath(self) -> str | Path | None:
        """Folder of such authorities, as OpenSSL has it."""

    @property
    def cadata(self) -> str | Path | None:
        """Such authorities as text."""

    @property
    def certfile(self) -> str | Path | None:
        """The certificate of this listener (PEM)."""

    @property
    def keyfile(self) -> str | Path | None:
        """The key of that certificate."""


class ListenerSettings(Record):
    """One listener; `ListenerModel` says what the fields mean."""

    bind: str | None = ALL_INTERFACES
    type: str = TCP
    max_connections: int = 0
    ssl: bool = False
    cafile: str | Path | None = None
    capath: str | Path | None = None
    cadata: str | Path | None = None
    certfile: str | Path | None = None
    keyfile: str | Path | None = None


class Listeners(Record):
    """The listeners of a broker, and their options that amqtt does not have, by name. One is
    `default`."""

    by_name: Mapping[str, ListenerModel]
    options: Mapping[str, ListenerOptions] = MappingProxyType({})


def link_listener(listeners: Listeners, tls: TlsSettings | None = None) -> str | None:
    """Return the name of the listener that other brokers are to dial: the default one if it is
    plain TCP, else the first that is. With `tls`, the settings of links, it must use TLS, and
    require a certificate if links have one."""
    required = tls is not None and tls.certfile is not None
    for name in sorted(listeners.by_name, key=lambda name: name != "default"):
        listener = listeners.by_name[name]
        options = listeners.options.get(name, ListenerOptions())
        if (
            listener.type == TCP
            and listener.bind is not None
            and unix_path(listener.bind) is None
            and bool(listener.ssl) is (tls is not None)
            and not options.proxy_protocol
            and options.require_certificate >= required
        ):
            return name
    return None


def link_bind(listeners: Listeners, tls: TlsSettings | None = None) -> Address | None:
    """Return the address where `link_listener` binds; `listeners`, `tls` as there."""
    name = link_listener(listeners, tls)
    return None if name is None else split_bind(str(listeners.by_name[name].bind))


def describe_listeners(
    listeners: Listeners, ports: Mapping[str, int] = MappingProxyType({})
) -> str:
    """Return the names of all listeners for the start line; `ports`: those that are open, by
    listener."""
    found = []
    for name, listener in listeners.by_name.items():
        if listener.type == EXTERNAL:
            found.append("external")
        elif listener.bind is not None:
            secure = {TCP: "tls ", WEBSOCKET: "wss "}
            plain = {TCP: "", WEBSOCKET: "ws "}
            kind = (secure if listener.ssl else plain)[listener.type]
            found.append(f"{kind}{bound_address(listener, ports.get(name))}")
    return ", ".join(found) or "nothing"


def bound_address(listener: ListenerModel, port: int | None) -> str:
    """Return where a `listener` listens: HOST:PORT, or unix:PATH; "": nowhere. `port`: which it has
    been given, None: that of its bind."""
    if listener.bind is None or listener.type == EXTERNAL:
        return ""
    if path := unix_path(listener.bind):
        return f"unix:{path}"
    address = split_bind(listener.bind, PORTS[listener.type])
    return str(Address(address.host or "0.0.0.0", address.port if port is None else port))


def exposed(listeners: Listeners, names: Container[str] | None = None) -> bool:
    """Return whether other machines can reach any of the `listeners` that have one of the
    `names`."""
    binds = [
        listener.bind
        for name, listener in listeners.by_name.items()
        if listener.type != EXTERNAL and (names is None or name in names)
    ]
    return any(
        not is_loopback(split_bind(bind).host)
        for bind in binds
        if bind is not None and unix_path(bind) is None
    )
