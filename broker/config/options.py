"""Options of a broker: flags, environment variables, the configuration file and defaults, in this
order of precedence."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from mqttree.broker.base.address import (
    DEFAULT_PORT,
    Address,
    is_loopback,
    is_wildcard,
    parse_address,
)
from mqttree.broker.base.link_keys import cluster_key
from mqttree.broker.base.record import Record
from mqttree.broker.config.model import BrokerModel, ClusterModel, values
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.config.routing_modes import ROUTINGS
from mqttree.broker.config.secret_file import read_secret
from mqttree.broker.config.yaml_file import (
    ConfigError,
    ConfigFile,
    did_you_mean,
    kind_of,
    not_one_of,
)
from mqttree.discovery.announcement import MAX_CLUSTER, MAX_NAME, check_text
from mqttree.discovery.drivers.multicast import GROUP, PORT, interfaces_for
from mqttree.discovery.seeds import parse_seeds, split_seeds
from mqttree.stp.root_policy import BALANCE, CAPABILITY

if TYPE_CHECKING:
    from mqttree.broker.config.leg_options import LegModel

MIN_SECRET = 16
"""bytes; an attacker who has recorded one handshake can guess a shorter cluster secret, however
slow each guess is."""

MAX_COUNT = 1000
"""brokers that `wait-for` may name: more than ever link."""

MIN_TAIL, MAX_TAIL = 16 * 1024 * 1024, 64 * 1024 * 1024 * 1024
"""bytes of the log tail: some of its segments at least; its index takes a thousandth of it in
memory."""

PAPER_TIMERS = {"hello": 10.0, "link_timeout": 39.6, "discovery_time": 9.5}
"""s; `timers: paper`. The keep-alive is that of MQTT-ST, fig. 2. Td and To are not published: these
make up the times that are (Overlays, table 2), 19.5 s = Td + keep-alive until there is a tree, and
59.1 s = To + 19.5 s after a broker has failed."""

DISCOVERIES = ("multicast", "static", "dns", "off")
DURABILITIES = ("none", "async", "sync")
LEVELS = ("debug", "info", "warning", "error")
LOOPBACK_BIND = f"127.0.0.1:{DEFAULT_PORT}"


class TlsSettings(Record):
    """TLS for links to other brokers. Files are PEM."""

    cafile: Path
    """The authority of other brokers' certificates."""
    certfile: Path | None = None
    """This broker's certificate. With it links are mutual: brokers connect only to a listener that
    requires certificates."""
    keyfile: Path | None = None
    check_hostname: bool = False
    """Whether a certificate must be for the address that was dialled."""


class AdminTlsSettings(Record):
    """TLS of the admin port. Files are PEM."""

    certfile: Path
    keyfile: Path
    cafile: Path | None = None
    """The authority of the certificates that clients need; None: they need none."""


class AccessSettings(Record):
    """The section `access`: files of users and rules, and who may be anonymous
    (docs/guides/security.md)."""

    users: Path | None = None
    """The users file; None: the plugins alone decide."""
    rules: Path | None = None
    """The rules file; None: all clients may do everything."""
    anonymous: bool | dict[str, bool] | None = None
    """Whether clients may come without a user name: everywhere, or by listener. None: if there are
    no users."""


class FederationSettings(BrokerModel):
    """The settings of a broker in a federation. Its name is "" until the port is known, if it
    contains that; `memory_limit` and `max_connections` hold unless the file's section `mqtt` has
    others. Times in s."""

    seed_names: tuple[tuple[str, int], ...] = ()
    """Host names, to be resolved again and again."""
    multicast_group: str = GROUP
    multicast_port: int = PORT
    interfaces: tuple[str, ...] | None = None
    """IPv4 addresses of the interfaces for multicast; None: all that are up."""
    weights: tuple[float, float] | None = None
    """Weights of processors and of memory with which the capability is measured again and again;
    None: it is not measured again."""
    tls: TlsSettings | None = None
    """None: links are dialled by plain TCP."""
    client_address: Address | None = None
    """The address for clients, if it is not the one for brokers."""
    topic_rates: bool = False
    """Whether it is counted how often topics are published to."""
    any_broker: bool = False
    """Other brokers may link without secret or certificate although clients have to
    authenticate."""
    asked: bool = False
    """How other brokers are found was configured, and is not only the default."""
    alone: str = ""
    """Why this broker does not federate after all."""

    @property
    def federates(self) -> bool:
        """Whether this broker looks for other brokers or accepts them."""
        return self.discovery != "off" or bool(self.seeds or self.seed_names)

    @property
    def authenticates(self) -> bool:
        """Whether other brokers prove that they belong to the cluster."""
        return self.secret is not None or (self.tls is not None and self.tls.certfile is not None)

    def stay_alone(self, why: str) -> None:
        """Do not federate; `why`: for a log line."""
        self.discovery = "off"
        self.seeds = self.seed_names = ()
        self.alone = why

    def node_config(self) -> NodeConfig:
        """Return the settings of the node."""
        client_address = str(self.client_address or "")
        return NodeConfig(
            **values(self, BrokerModel),
            client_address=client_address,
            topic_rates=self.topic_rates,
        )


class RunSettings(ClusterModel):
    """All options of `mqttree run`, read and checked. None: not given."""

    file: ConfigFile | None = None
    listen: str | None = None
    name: str | None = None
    data_dir: Path | None = None
    durability: str | None = None
    """None: async with a data directory, else none."""
    seed: tuple[Address, ...] = ()
    advertise: Address | None = None
    admin: Address | None = None
    admin_hosts: tuple[str, ...] = ()
    admin_token_file: Path | None = None
    """The file of the token that requests to the admin port need; made if it does not exist."""
    admin_tls: AdminTlsSettings | None = None
    topic_rates: bool = True
    """Whether it is counted how often topics are published to."""
    timers: str = "default"
    """`paper`: the times of `PAPER_TIMERS`, where none is given."""
    wait_for: int = 1
    """How many brokers, this one included, must have been seen before `/readyz` says yes."""
    log_level: str = "info"
    capability: float | None = None
    cpu_weight: float = 1.0
    memory_weight: float = 1.0
    """The capability's weights of the CPU and of memory."""
    multicast_group: str = GROUP
    multicast_port: int = PORT
    interfaces: tuple[str, ...] | None = None
    tls: TlsSettings | None = None
    client_address: Address | None = None
    log_format: str = "text"
    allow_unauthenticated_brokers: bool = False
    given: frozenset[str] = frozenset()
    """The names of the options that were given, in whatever way."""
    asked: bool = False
    access: AccessSettings = AccessSettings()
    legs: Mapping[str, LegModel] = MappingProxyType({})
    """Sessions at foreign brokers, by name."""

    def federation(
        self, bind: Address, *, id: bytes, boot: int, capability: float, own_host: Callable[[], str]
    ) -> FederationSettings:
        """Return the settings of a broker whose links come in at `bind`.

        `id`, `boot`: the broker's id and boot number. `capability`: the measured one, which the
        configured one overrides. `own_host`: returns this machine's address, called when `bind` is
        a wildcard.
        """
        interfaces: tuple[str, ...] | None = None
        announce_host: str | None = None
        host = bind.host
        if is_wildcard(host):
            # The right address depends on the broker that asks: an announcement is answered to
            # the address that it came from.
            host, announce_host = own_host(), ""
        elif is_loopback(host):
            host = "127.0.0.1" if host == "localhost" else host
            interfaces = ("127.0.0.1",)
        else:
            found = interfaces_for(host)
            interfaces = tuple(found) if found is not None else None
        port = bind.port
        if self.advertise is not None:
            host, port = self.advertise
            announce_host = None
        literals, names = split_seeds(self.seed if self.discovery != "off" else ())
        shared = values(self, ClusterModel)
        if self.secret is not None:
            shared["secret"] = cluster_key(self.secret, self.cluster)
        return FederationSettings(
            **shared,
            name=self.name if self.name is not None else default_name(port) if port else "",
            host=host,
            port=port,
            announce_host=announce_host,
            id=id,
            boot=boot,
            seeds=tuple((seed.host, seed.port) for seed in literals),
            seed_names=tuple((seed.host, seed.port) for seed in names),
            multicast_group=self.multicast_group,
            multicast_port=self.multicast_port,
            interfaces=self.interfaces if self.interfaces is not None else interfaces,
            capability=self.capability if self.capability is not None else capability,
            weights=(self.cpu_weight, self.memory_weight) if self.capability is None else None,
            tls=self.tls,
            client_address=self.client_address,
            topic_rates=self.topic_rates,
            any_broker=self.allow_unauthenticated_brokers,
            asked=self.asked,
        )


AMQTT_KEYS = (
    "plugins",
    "auth",
    "topic_check",
    "sys_interval",
    "timeout_disconnect_delay",
    "session_expiry_interval",
)
"""Keys of a configuration file that are amqtt's alone."""

FILE_KEYS = (
    "listeners",
    "max_qos",
    "federation",
    "access",
    "durability",
    "mqtt",
    "legs",
    *AMQTT_KEYS,
)
"""All keys of a configuration file."""


def as_flag(name: str) -> str:
    """Return the flag of an option."""
    return f"--{name.replace('_', '-')}"


def as_keyword(name: str) -> str:
    """Return the keyword argument of an option."""
    return "seeds" if name == "seed" else name


def read_settings(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    spelt: Callable[[str], str] = as_flag,
) -> RunSettings:
    """Return the settings: flags override the environment, which overrides the file, which
    overrides the defaults.

    `flags`: by name with underscores, None for those not given; `config` is the name of the file,
    or its content. `environment`: variables, as in os.environ. `spelt`: returns how a flag is
    written, for errors.

    Raises ConfigError with one line that names the flag, the variable, or the file, its line and
    key.
    """
    config = flags.get("config")
    if config is None:
        config = environment.get("MQTTREE_CONFIG") or None
    file = ConfigFile.read(config) if isinstance(config, str) else config
    inner = [name for name, option in OPTIONS.items() if not option.top]
    if file is not None:
        file.section((), FILE_KEYS)
    section = file.section(("federation",), inner) if file is not None else {}
    settings = RunSettings(file=file, access=read_access(file), legs=read_legs(file))
    places: dict[str, str] = {}
    for name, option in OPTIONS.items():
        variable = f"MQTTREE_{name.upper()}"
        value: Any
        if flags.get(name) is not None:
            value, where = flags[name], spelt(name)
        elif option.flag and environment.get(variable):
            # In containers, an empty variable means that it is not set.
            value, where = environment[variable], variable
        elif file is not None and option.top and file.data.get(name) is not None:
            value, where = file.data[name], file.where((name,))
        elif file is not None and section.get(name) is not None:
            key = name if name in file.data["federation"] else name.replace("_", "-")
            value, where = section[name], file.where(("federation", key))
        else:
            continue
        try:
            setattr(settings, option.field or name, option.read(value))
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        places[name] = where
        settings.asked |= name in ("seed", "discovery")
        if name == "durability" and value != "none" and settings.data_dir is None:
            raise ConfigError(f"{where}: {value} needs a data directory ({spelt('data_dir')})")
    if settings.seed and settings.discovery == "off":
        raise ConfigError(
            f"{places['seed']}: discovery is off ({places['discovery']}), "
            "so no seed would be dialled"
        )
    if settings.timers == "paper":
        for name, seconds in PAPER_TIMERS.items():
            if name not in places:
                setattr(settings, name, seconds)
    settings.given = frozenset(places)
    return settings


def read_legs(file: ConfigFile | None) -> Mapping[str, LegModel]:
    """Return the legs of a file, by name. Raises ConfigError with one line."""
    if file is None or file.data.get("legs") is None:
        return {}
    from mqttree.broker.config import leg_options

    return leg_options.read_legs(file)


def read_keywords(keywords: Mapping[str, Any]) -> RunSettings:
    """Return the options of a broker in another program: keyword arguments over the file's over
    defaults; the environment does not count. None means not given; `config` is a file's name, or
    the mapping that a file would hold.

    The defaults keep to the program: without a listener 127.0.0.1:1883; no other brokers unless a
    cluster (multicast) or seeds (static) are given.

    Raises ConfigError with one line that names the keyword, or the file, its line and key.
    """
    flags = {name: _plain_path(value) for name, value in keywords.items()}
    flags["seed"] = flags.pop("seeds", None)
    config = flags.get("config")
    if isinstance(config, Mapping):
        flags["config"] = ConfigFile("config", copy.deepcopy(dict(config)), {})
    elif config is not None and not isinstance(config, str):
        raise ConfigError(f"config: expected a file name or a mapping, not {kind_of(config)}")
    settings = read_settings(flags, {}, as_keyword)
    if settings.listen is None and (settings.file is None or "listeners" not in settings.file.data):
        settings.listen = LOOPBACK_BIND
    if "discovery" not in settings.given:
        settings.discovery = (
            "static"
            if "seed" in settings.given
            else "multicast"
            if "cluster" in settings.given
            else "off"
        )
    return settings


def _plain_path(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def read_access(file: ConfigFile | None) -> AccessSettings:
    """Read the file's `access:` section. Raises ConfigError with one line that names the file, its
    line and key."""
    section = file.section(("access",), ACCESS) if file is not None else {}
    found: dict[str, Any] = {}
    for name, value in section.items():
        if file is not None and value is not None:
            try:
                found[name] = ACCESS[name](value)
            except ValueError as error:
                file.fail(("access", name), str(error))
    return AccessSettings(**found)


def split_bind(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Return the address in a text as amqtt writes it: "HOST:PORT", "PORT", ":PORT", "[IPv6]:PORT",
    "HOST" or "". The host is "" for every interface, the port 0 for a free one. Raises ValueError
    with one line."""
    trimmed = text.strip()
    if trimmed.isascii() and trimmed.isdecimal():
        trimmed = f":{trimmed}"
    if not trimmed or (trimmed.startswith(":") and trimmed.count(":") == 1):
        port = parse_address(f"0.0.0.0{trimmed if trimmed != ':' else ''}", default_port, 0).port
        return Address("", port)
    return parse_address(trimmed, default_port, 0)


def default_name(port: int) -> str:
    """Return the default name of a broker: the machine and, as there may be several, the port."""
    letters = (letter for letter in os.uname().nodename if letter.isprintable())
    host = "".join(letters).partition(".")[0][: MAX_NAME - 8]
    if not host.isascii():
        host = ""
    return f"{host or 'broker'}:{port}"


def first_address() -> str:
    """Return this machine's first IPv4 address that is up and not loopback, else 127.0.0.1."""
    import psutil

    try:
        stats = psutil.net_if_stats()
        for name, addresses in psutil.net_if_addrs().items():
            if name in stats and stats[name].isup:
                for entry in addresses:
                    if entry.family == 2 and not is_loopback(entry.address):  # AF_INET
                        return str(entry.address)
    except (OSError, psutil.Error):
        pass
    return "127.0.0.1"


# ------------------------------------------------------------------ readers: a text or a YAML value
# -> what it means


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(
            f"expected a text, not {kind_of(value)}"
            + ("; put it in quotes" if isinstance(value, int | float) else "")
        )
    return value


def _choice(*choices: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value is False and "off" in choices:  # what YAML makes of a bare `off`
            return "off"
        if not isinstance(value, str) or value not in choices:
            raise ValueError(not_one_of(value, choices))
        return value

    return read


def _bound(value: object) -> str:
    """Return where to listen as a text. "" would be every interface, and comes from a variable that
    is not set."""
    text = str(value) if type(value) is int else _text(value).strip()
    if not text:
        raise ValueError("expected HOST:PORT, not an empty text")
    return text


def _bind(value: object) -> str:
    text = _bound(value)
    split_bind(text)
    return text


def _address(value: object) -> Address:
    address = parse_address(_text(value))
    if is_wildcard(address.host):
        raise ValueError(f"address {value!r}: it has to be one address that others can reach")
    return address


def _admin(value: object) -> Address:
    found = split_bind(_bound(value), 8080)
    return Address(found.host or "0.0.0.0", found.port)


def _hosts(value: object) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [value]
    return tuple(_text(text) for text in texts)


def _seeds(value: object) -> tuple[Address, ...]:
    texts = value if isinstance(value, list | tuple) else [value]
    try:
        return tuple(parse_seeds([_text(text) for text in texts]))
    except ValueError as error:
        raise ValueError(str(error).removeprefix("seed: ")) from None


def _bounded(what: str, limit: int) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = _text(value)
        if not text.strip():
            raise ValueError(f"{what} is empty")
        check_text(what, text, limit)
        return text

    return read


def _path(value: object) -> Path:
    text = _text(value)
    if not text or "\0" in text:
        raise ValueError(f"{text!r} is not a file name")
    return Path(text)


def _secret(value: object) -> bytes:
    return read_secret(_path(value), MIN_SECRET, "a cluster secret")


def number(low: float, high: float, unit: str = "") -> Callable[[object], float]:
    """Return a reader of numbers from `low` to `high`; `unit`: as errors show it."""

    def read(value: object) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise ValueError(f"expected a number, not {kind_of(value)}")
        if not low <= value <= high:
            raise ValueError(f"{value:g} is not between {low:.10g} and {high:.10g}{unit}")
        return float(value)

    return read


def _replicas(value: object) -> int:
    if type(value) is not int or value not in (0, 1, 2):
        raise ValueError(f"{value!r} is not a number of standbys: 0, 1 or 2")
    return value


def _count(value: object) -> int:
    number = (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 5
        else value
    )
    if type(number) is not int or not 1 <= number <= MAX_COUNT:
        raise ValueError(f"{value!r} is not a number of brokers from 1 to {MAX_COUNT}")
    return number


def _tail(value: object) -> int:
    if type(value) is not int or not (value == 0 or MIN_TAIL <= value <= MAX_TAIL):
        raise ValueError(f"{value!r} is not a number of bytes from {MIN_TAIL} to {MAX_TAIL}, nor 0")
    return value


def _port(value: object) -> int:
    if type(value) is not int or not 0 < value < 65536:
        raise ValueError(f"{value!r} is not a port number from 1 to 65535")
    return value


def switch(value: object) -> bool:
    """Return a truth value. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, not {kind_of(value)}")
    return value


def _group(value: object) -> str:
    text = _text(value)
    parts = text.split(".")
    numbers = [
        int(part) if part.isascii() and part.isdecimal() and len(part) <= 3 else 256
        for part in parts
    ]
    if len(numbers) != 4 or max(numbers) > 255 or not 224 <= numbers[0] <= 239:
        raise ValueError(f"{text!r} is not an IPv4 multicast address")
    return ".".join(map(str, numbers))


def _interfaces(value: object) -> tuple[str, ...]:
    found = []
    for entry in value if isinstance(value, list) else [value]:
        host = parse_address(_text(entry)).host
        if interfaces_for(host) != [host]:
            raise ValueError(f"{entry!r} is not the IPv4 address of an interface")
        found.append(host)
    if not found:
        raise ValueError("the list is empty")
    return tuple(found)


def _files(value: object, files: Sequence[str], *switches: str) -> dict[str, Any]:
    """Read a section of TLS: `files`, which have to be there, and `switches`."""
    if not isinstance(value, dict):
        raise ValueError(f"expected {', '.join(files)}, not {kind_of(value)}")
    found: dict[str, Any] = {}
    for key, entry in value.items():
        name = str(key).replace("-", "_")
        if name in switches:
            try:
                found[name] = switch(entry)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
        elif name in files:
            found[name] = _path(entry)
            if not found[name].is_file():
                raise ValueError(f"{name}: cannot read {entry}: No such file")
        else:
            known = [each.replace("_", "-") for each in (*files, *switches)]
            raise ValueError(f"{key}: unknown key{did_you_mean(str(key), known)}")
    return found


def _tls(value: object) -> TlsSettings:
    found = _files(value, ("cafile", "certfile", "keyfile"), "check_hostname")
    if "cafile" not in found:
        raise ValueError("needs cafile: whose certificates other brokers have")
    if ("certfile" in found) != ("keyfile" in found):
        raise ValueError("certfile and keyfile go together")
    return TlsSettings(**found)


def _admin_tls(value: object) -> AdminTlsSettings:
    found = _files(value, ("certfile", "keyfile", "cafile"))
    if "certfile" not in found or "keyfile" not in found:
        raise ValueError("needs certfile and keyfile: what the admin port shows")
    return AdminTlsSettings(**found)


def _anonymous(value: object) -> bool | dict[str, bool]:
    if isinstance(value, bool):
        return value
    if not isinstance(value, dict) or not value:
        raise ValueError(
            f"expected yes or no, or listeners with yes or no each, not {kind_of(value)}"
        )
    for listener, choice in value.items():
        if not isinstance(choice, bool):
            raise ValueError(f"listener {listener!r}: expected yes or no, not {kind_of(choice)}")
    return {str(listener): choice for listener, choice in value.items()}


ACCESS: dict[str, Callable[[object], Any]] = {
    "users": _path,
    "rules": _path,
    "anonymous": _anonymous,
}
"""Keys of the file's `access:` section."""


class Option(NamedTuple):
    """An option: how its value is read, whether it is a flag and a variable too, its field, and
    whether its key is at the top of the file."""

    read: Callable[[object], Any]
    flag: bool = True
    field: str = ""
    top: bool = False


OPTIONS: dict[str, Option] = {
    "listen": Option(_bind),
    "name": Option(_bounded("name", MAX_NAME)),
    "data_dir": Option(_path),
    "durability": Option(_choice(*DURABILITIES), top=True),
    "cluster": Option(_bounded("cluster name", MAX_CLUSTER)),
    "secret_file": Option(_secret, field="secret"),
    "discovery": Option(_choice(*DISCOVERIES)),
    "seed": Option(_seeds),
    "advertise": Option(_address),
    "routing": Option(_choice(*ROUTINGS)),
    "path_policy": Option(_choice("capability", "balance"), flag=False),
    "overlay_policy": Option(_choice(CAPABILITY, BALANCE), flag=False),
    "overlay_gamma": Option(number(0.0, 1e6), flag=False),
    "overlay_delta": Option(number(0.0, 1e6), flag=False),
    "answer_time": Option(number(0.001, 3600.0, " s"), flag=False),
    "admin": Option(_admin),
    "admin_hosts": Option(_hosts, flag=False),
    "admin_token_file": Option(_path),
    "admin_tls": Option(_admin_tls, flag=False),
    "wait_for": Option(_count),
    "log_level": Option(_choice(*LEVELS)),
    "log_format": Option(_choice("text", "json")),
    "capability": Option(number(0.0, 1e8), flag=False),
    "cpu_weight": Option(number(0.0, 1e4), flag=False),
    "memory_weight": Option(number(0.0, 1e4), flag=False),
    "hello": Option(number(0.02, 3600.0, " s"), flag=False),
    "link_timeout": Option(number(0.1, 3600.0, " s"), flag=False),
    "discovery_time": Option(number(0.01, 3600.0, " s"), flag=False),
    "timers": Option(_choice("default", "paper"), flag=False),
    "multicast_group": Option(_group, flag=False),
    "multicast_port": Option(_port, flag=False),
    "interfaces": Option(_interfaces, flag=False),
    "tls": Option(_tls, flag=False),
    "client_address": Option(_address, flag=False),
    "replicas": Option(_replicas, flag=False),
    "acknowledge": Option(_choice("standby", "local"), flag=False),
    "standby_hosts": Option(_choice("other", "any"), flag=False),
    "log_tail": Option(_tail, flag=False),
    "allow_unauthenticated_brokers": Option(switch, flag=False),
    "topic_rates": Option(switch, flag=False),
    "redirect_clients": Option(switch, flag=False),
}
"""Keys of the file's `federation:` section, or of the file, with underscores; those with `flag` are
flags and MQTTREE_ variables as well.

Of other MQTTREE_ variables `unknown_variables` tells.
"""

_OTHERS = re.compile(r"CORE|COMPILE|OPTIMISE|TESTS|(\w+_)?(SERVICE_(HOST|PORT)|PORT|ENV)(_\w+)?")
"""What else begins with MQTTREE_: the build's and the tests' own variables, and those that a
container network makes up for a service of that name."""


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a line for each variable that looks like an option and is none. `environment`: as
    os.environ."""
    known = [
        "MQTTREE_CONFIG",
        *(f"MQTTREE_{name.upper()}" for name, o in OPTIONS.items() if o.flag),
    ]
    lines = []
    for variable in sorted(environment):
        name = variable.removeprefix("MQTTREE_")
        if name == variable or variable in known or _OTHERS.fullmatch(name):
            continue
        key = name.lower()
        hint = did_you_mean(variable, known)
        if key in OPTIONS:
            hint = f": write {key.replace('_', '-')} into the configuration file"
        lines.append(f"{variable} is no variable of mqttree{hint}")
    return lines
