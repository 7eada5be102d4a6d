"""Options of a listener beyond amqtt's keys, and bind addresses that are not a host and a
port. Pure.

amqtt rejects keys that it does not know: `take_options` removes ours from a configuration before
amqtt sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mqttree.broker.base.record import Record
from mqttree.broker.config.options import switch

UNIX = "unix:"
"""The beginning of the bind value of a Unix socket."""

MAX_UNIX_PATH = 107
"""bytes; what fits into sockaddr_un with its final zero (unix(7))."""

DEFAULT_SOCKET_MODE = 0o660
"""Permissions of a Unix socket: who may connect. The group is for the services that use the
broker."""


class ListenerOptions(Record):
    """The options of one listener that amqtt does not have."""

    require_certificate: bool = False
    """Clients must show a certificate that `cafile`, `capath` or `cadata` vouches for (mutual
    TLS)."""
    use_identity_as_username: bool = False
    """The common name of the client's certificate is its user name, whatever its CONNECT says."""
    proxy_protocol: bool = False
    """Every connection begins with a PROXY header, from a load balancer in front."""
    socket_mode: int = DEFAULT_SOCKET_MODE
    """Permissions of a Unix socket."""


def _mode(value: object) -> int:
    """Octal digits as a text: YAML reads 0660 and 660 as numbers, and neither is what is meant."""
    if (
        not isinstance(value, str)
        or not 3 <= len(value) <= 4
        or not set(value) <= set("01234567")
        or int(value, 8) > 0o777
    ):
        raise ValueError(f"{value!r} are no permissions; write octal digits in quotes, '0660'")
    return int(value, 8)


OPTIONS: dict[str, Callable[[object], Any]] = {
    "require_certificate": switch,
    "use_identity_as_username": switch,
    "proxy_protocol": switch,
    "socket_mode": _mode,
}


class OptionError(ValueError):
    """A key of a listener that cannot be used; `key` with underscores."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


def take_options(entry: dict[str, Any], base: ListenerOptions | None = None) -> ListenerOptions:
    """Remove our keys from a listener's configuration and return them. Keys that it does not have
    are those of `base` (the default listener), as with amqtt's own keys. Raises OptionError, which
    names the key."""
    base = base or ListenerOptions()
    found = {name: getattr(base, name) for name in OPTIONS}
    for key in list(entry):
        name = key.replace("-", "_") if isinstance(key, str) else key
        if name in OPTIONS:
            try:
                found[name] = OPTIONS[name](entry.pop(key))
            except ValueError as error:
                raise OptionError(name, str(error)) from None
    return ListenerOptions(**found)


def check_options(options: ListenerOptions, listener: Any) -> None:
    """Check our keys against amqtt's keys of the same listener (a ListenerConfig with defaults
    applied). Raises OptionError."""
    trusts = any(getattr(listener, key) is not None for key in ("cafile", "capath", "cadata"))
    if options.require_certificate and not listener.ssl:
        raise OptionError("require_certificate", "needs ssl: true")
    if options.require_certificate and not trusts:
        raise OptionError(
            "require_certificate",
            "needs cafile, capath or cadata: whose certificates are to be trusted",
        )
    if (
        options.use_identity_as_username
        and not options.require_certificate
        and not options.proxy_protocol
    ):
        raise OptionError("use_identity_as_username", "needs require_certificate: true")


def split_options(
    listeners: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, ListenerOptions]]:
    """Split listeners' configurations into amqtt's part and ours. Raises OptionError."""
    default = dict(listeners.get("default") or {})
    options = {"default": take_options(default)}
    rest = {"default": default}
    for name, entry in listeners.items():
        if name != "default" and isinstance(entry, dict):
            rest[name] = dict(entry)
            base = options["default"]
            if entry.get("ssl") is False:
                # No certificate is shown there.
                base = base.replace(require_certificate=False, use_identity_as_username=False)
            options[name] = take_options(rest[name], base)
        elif name != "default":
            rest[name] = entry
    return {name: rest[name] for name in listeners}, options


def unix_path(bind: str | None) -> str | None:
    """Return the path of a Unix socket's bind value; None: it is an address and port.

    Raises ValueError for a path that is empty or too long.
    """
    if bind is None or not bind.startswith(UNIX):
        return None
    path = bind[len(UNIX) :]
    if path.startswith("//"):  # unix:///run/broker.sock
        path = path[2:]
    if not path or "\0" in path:
        raise ValueError(f"{bind!r} has no path; write unix:/run/mqttree.sock")
    if len(path.encode()) > MAX_UNIX_PATH:
        raise ValueError(f"the path of a Unix socket has {MAX_UNIX_PATH} bytes at most: {path!r}")
    return path
