"""A broker's settings: precedence, and one clear line for everything that cannot be."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from amqtt.contexts import BrokerConfig
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.address import Address
from mqttree.broker.base.link_keys import cluster_key
from mqttree.broker.compat.broker import Broker
from mqttree.broker.compat.config import read_config
from mqttree.broker.config.listener_model import describe_listeners, exposed, link_bind
from mqttree.broker.config.listener_section import read_listeners
from mqttree.broker.config.mqtt_options import node_options
from mqttree.broker.config.options import (
    FederationSettings,
    RunSettings,
    read_settings,
    split_bind,
    unknown_variables,
)
from mqttree.broker.config.secret_file import too_open
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile
from mqttree.broker.limits import DEFAULTS


def told(
    tmp_path: Path, text: str | None = None, environment: dict[str, str] | None = None, **flags: Any
) -> RunSettings:
    if text is not None:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        flags["config"] = str(path)
    return read_settings(flags, environment or {})


def refusal(
    tmp_path: Path, text: str | None = None, environment: dict[str, str] | None = None, **flags: Any
) -> str:
    with pytest.raises(ConfigError) as caught:
        settings = told(tmp_path, text, environment, **flags)
        read_listeners(settings.file, settings.listen)
        node_options(settings.file)
        if settings.file is not None:
            read_config(settings.file)
    line = str(caught.value)
    assert line
    assert "\n" not in line
    return line.replace(f"{tmp_path}/", "")


PRECEDENCE = [
    # option, flag, variable, file (each a text, or with the value that it stands for), default
    ("listen", "127.0.0.1:1", "h:2", "h:3", None),
    ("name", "a", "b", "c", None),
    ("data_dir", ("a", Path("a")), ("b", Path("b")), ("c", Path("c")), None),
    ("cluster", "a", "b", "c", "mqttree"),
    ("discovery", "off", "dns", "static", "multicast"),
    (
        "seed",
        (["a:1", "b"], (Address("a", 1), Address("b", 1883))),
        ("c:2,d:3", (Address("c", 2), Address("d", 3))),
        ("[e, 'f:4']", (Address("e", 1883), Address("f", 4))),
        (),
    ),
    (
        "advertise",
        ("a:1", Address("a", 1)),
        ("b:2", Address("b", 2)),
        ("c:3", Address("c", 3)),
        None,
    ),
    ("routing", "flood", "topic", "interest", "topic"),
    (
        "admin",
        ("1.1.1.1:1", Address("1.1.1.1", 1)),
        ("2", Address("0.0.0.0", 2)),
        ("'[::1]:3'", Address("::1", 3)),
        None,
    ),
    ("log_level", "debug", "error", "warning", "info"),
]


@pytest.mark.parametrize(("option", "flag", "variable", "filed", "default"), PRECEDENCE)
@pytest.mark.parametrize("spelling", ["_", "-"])
def test_flags_precede_environment_file_and_default(
    tmp_path: Path, option: str, flag: Any, variable: Any, filed: Any, default: Any, spelling: str
) -> None:
    flag, variable, filed = (
        each if isinstance(each, tuple) else (each, each) for each in (flag, variable, filed)
    )
    text = f"federation:\n  {option.replace('_', spelling)}: {filed[0]}\n"
    environment = {f"MQTTREE_{option.upper()}": variable[0]}
    assert getattr(told(tmp_path), option) == default
    assert getattr(told(tmp_path, text), option) == filed[1]
    assert getattr(told(tmp_path, text, environment), option) == variable[1]
    assert getattr(told(tmp_path, text, environment, **{option: flag[0]}), option) == flag[1]
    assert getattr(told(tmp_path, text, {f"MQTTREE_{option.upper()}": ""}), option) == filed[1]


def test_the_secret_is_what_the_file_says_but_its_last_newline(tmp_path: Path) -> None:
    secrets = [tmp_path / name for name in "abc"]
    for path in secrets:
        path.write_bytes(path.name.encode() * 16 + b"\r\n")
        path.chmod(0o600)
    flag, variable, filed = map(str, secrets)
    text = f"federation: {{secret-file: {filed}}}"
    environment = {"MQTTREE_SECRET_FILE": variable}
    assert told(tmp_path).secret is None
    assert told(tmp_path, text).secret == b"c" * 16
    assert told(tmp_path, text, environment).secret == b"b" * 16
    assert told(tmp_path, text, environment, secret_file=flag).secret == b"a" * 16


def test_the_file_comes_from_the_environment_too(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("federation: {name: x}")
    assert read_settings({}, {"MQTTREE_CONFIG": str(tmp_path / "x.yaml")}).name == "x"
    assert (
        read_settings({}, {"MQTTREE_PORT": "tcp://10.0.0.1:1883", "MQTTREE_SERVICE_HOST": "x"})
        == RunSettings()
    )


def test_the_file_tunes_what_has_no_flag(tmp_path: Path) -> None:
    settings = told(
        tmp_path,
        "federation:\n  hello: 1\n  link-timeout: 8.5\n  discovery-time: 0.1\n  capability: 7\n"
        "  multicast_group: 239.1.2.3\n  multicast_port: 4000\n  interfaces: 10.0.0.1\n"
        "  discovery: off\n  client-address: example.org:8883\n",
        {"MQTTREE_HELLO": "9"},
    )
    assert (
        settings.hello,
        settings.link_timeout,
        settings.discovery_time,
        settings.capability,
    ) == (
        1.0,
        8.5,
        0.1,
        7.0,
    )
    assert (settings.multicast_group, settings.multicast_port) == ("239.1.2.3", 4000)
    assert settings.interfaces == ("10.0.0.1",)
    federation = settings.federation(
        split_bind(""), id=b"12345678", boot=9, capability=3.5, own_host=lambda: "10.9.8.7"
    )
    assert federation.node_config().clients_at() == "example.org:8883"
    assert settings.discovery == "off"  # for YAML this is False


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("federation: {}", (0.5, 2.0, 0.3, 0.2)),
        ("federation: {timers: default}", (0.5, 2.0, 0.3, 0.2)),
        ("federation: {timers: paper}", (10.0, 39.6, 9.5, 0.2)),
        ("federation: {timers: paper, hello: 1, answer-time: 3}", (1.0, 39.6, 9.5, 3.0)),
    ],
)
def test_timers_of_the_paper_are_taken_where_none_is_given(
    tmp_path: Path, text: str, times: tuple[float, ...]
) -> None:
    found = told(tmp_path, text)
    assert (found.hello, found.link_timeout, found.discovery_time, found.answer_time) == times


def test_the_election_of_roots_is_configured_by_policy_and_weights(tmp_path: Path) -> None:
    found = told(
        tmp_path, "federation: {overlay-policy: balance, overlay-gamma: 1, overlay-delta: 0}"
    )
    assert (found.overlay_policy, found.overlay_gamma, found.overlay_delta) == ("balance", 1.0, 0.0)


WRONG_VALUES = {
    "federation": [
        ("name: 7", "expected a text, not the number 7; put it in quotes"),
        ("name: ''", "name is empty"),
        ("hello: soon", "expected a number, not the text 'soon'"),
        ("hello: .nan", "expected a number, not the number nan"),
        ("discovery-time: -1", "-1 is not between 0.01 and 3600 s"),
        ("seed: [a, 'b:x']", "address 'b:x': port 'x' is not a number from 1 to 65535"),
        ("seed: {a: 1}", "expected a text, not keys and values"),
        ("multicast-port: 0", "0 is not a port number from 1 to 65535"),
        ("multicast-group: 10.0.0.1", "'10.0.0.1' is not an IPv4 multicast address"),
        ("interfaces: eth0", "'eth0' is not the IPv4 address of an interface"),
        ("secret-file: nowhere", "cannot read nowhere: No such file or directory"),
        ("discovery: on", "True is not one of multicast, static, dns, off"),
        (
            "discovery: multicats",
            "'multicats' is not one of multicast, static, dns, off; did you mean 'multicast'?",
        ),
        ("routing: topc", "'topc' is not one of flood, interest, topic, srt, ort; did you mean 't"),
        ("tls: {cafle: x}", "cafle: unknown key; did you mean 'cafile'?"),
        ("admin-tls: {certfle: x}", "certfle: unknown key; did you mean 'certfile'?"),
        (
            "tls: {check-hostnam: true}",
            "check-hostnam: unknown key; did you mean 'check-hostname'?",
        ),
        ("tls: {check-hostname: 1}", "check-hostname: expected true or false, not the number 1"),
    ],
    "listeners.default": [
        ("max-connections: -2", "-2 is not a number of connections, or -1 for as many as come"),
        ("type: udp", "'udp' is not one of tcp, ws, external"),
        ("type: tpc", "'tpc' is not one of tcp, ws, external; did you mean 'tcp'?"),
        ("bind: [a]", "expected a text or nothing, not a list"),
        ("bind: a:b:c", "address 'a:b:c'"),
        ("max-connections: many", "expected a number, not the text 'many'"),
        ("ssl: 1.5", "expected true or false, not the number 1.5"),
        ("ssl: on", "a listener with ssl needs certfile and keyfile"),
        ("cafile: nowhere.pem", "cannot read nowhere.pem: No such file or directory"),
    ],
    "": [
        ("federation: 7", "expected keys and values, not the number 7"),
        ("session_expiry_interval: -1", "-1 is not a whole number of seconds from 0"),
        ("listners: {}", "unknown key; did you mean 'listeners'?"),
        ("timeout-disconnect-delay: soon", "expected a number or nothing, not the text 'soon'"),
        ("max-qos: 3", "3 is not 0, 1 or 2"),
        ("plugins: 5", "expected keys and values or a list"),
    ],
}
"""By the section: entries, and what is said of them."""


@pytest.mark.parametrize(
    ("section", "entry", "reason"),
    [(section, *row) for section, rows in WRONG_VALUES.items() for row in rows],
)
def test_a_wrong_value_is_named_with_its_line_and_key(
    tmp_path: Path, section: str, entry: str, reason: str
) -> None:
    levels = section.split(".") if section else []
    lines = [f"{name}:" for name in levels] + [entry]
    text = "\n".join("  " * depth + line for depth, line in enumerate(lines))
    key = ".".join([*levels, entry.partition(":")[0]])
    assert refusal(tmp_path, text).startswith(f"config.yaml:{len(lines)}: {key}: {reason}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "federation:\n  cluster: a\n  routing: fast\n",
            "config.yaml:3: federation.routing: 'fast' is not one of flood, interest, topic",
        ),
        (
            "federation: {overlay-gamma: -1}",
            "config.yaml:1: federation.overlay-gamma: -1 is not between 0 and 1000000",
        ),
        (
            "\n\nfederation:\n\n  ruoting: flood",
            "config.yaml:5: federation.ruoting: unknown key; did you mean 'routing'?",
        ),
        (
            "federation:\n  cluster: a\n\n  cluster: b",
            "config.yaml:4: federation.cluster: is there twice, first in line 2",
        ),
        (
            "federation: {}\nmqtt: {}\nfederation: {}",
            "config.yaml:3: federation: is there twice, first in line 1",
        ),
        (
            "federation: {data-dir: a, data_dir: b}",
            "config.yaml:1: federation.data_dir: is there twice",
        ),
        (
            "federation:\n  cluster: " + "x" * 65,
            "config.yaml:2: federation.cluster: cluster name has 65 bytes, more than 64",
        ),
        (
            "federation:\n  seed: []\n  admin: x:y",
            (
                "config.yaml:3: federation.admin: address 'x:y': "
                "port 'y' is not a number from 0 to 65535"
            ),
        ),
        ("- a\n- b", "config.yaml:1: expected keys and values, not a list"),
        ("just words", "config.yaml:1: expected keys and values, not the text 'just words'"),
        ("a: b: c", "config.yaml:1: mapping values are not allowed here"),
        ("a: 1\nb: [1,\n2]]\n", "config.yaml:3: "),
        ("a: 'x", "config.yaml:1: found unexpected end of stream"),
        ("a: 1\n\tb: 2", "config.yaml:2: found character '\\t' that cannot start any token"),
        (
            "a: !!python/object/apply:os.system ['false']",
            "config.yaml:1: could not determine a constructor for the tag",
        ),
        ("a: *b", "config.yaml:1: found undefined alias 'b'"),
        ("a: \x01", "config.yaml: unacceptable character"),
        ("a: 2020-13-45", "config.yaml:1: 2020-13-45 is out of range: month must be in 1..12"),
        ("--- {}\n--- {}", "config.yaml:2: but found another document"),
        ("? [a]\n: 1", "config.yaml:1: found unhashable key"),
        (
            "listeners:\n  ws:\n    type: ws",
            "config.yaml:1: listeners: there has to be a listener 'default'",
        ),
        (
            "listeners:\n  default:\n    certfile: a",
            (
                "config.yaml:2: listeners.default: "
                "If specifying the 'certfile' or 'keyfile', both are required."
            ),
        ),
        (
            "name: a\nmax-qos: " + "9" * 5000,
            f"config.yaml:2: {'9' * 40}... (5000 characters) is out of range: Exceeds the limit",
        ),
    ],
)
def test_a_wrong_file_names_its_line_and_key(tmp_path: Path, text: str, line: str) -> None:
    assert refusal(tmp_path, text).startswith(line)


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("routing", "Flood", "'Flood' is not one of flood, interest, topic"),
        ("discovery", "", "'' is not one of multicast, static, dns, off"),
        ("listen", "127.0.0.1:65536", "address '127.0.0.1:65536': port '65536' is not a number"),
        ("listen", "300.0.0.1:1", "address '300.0.0.1:1': '300.0.0.1' is not an IPv4 address"),
        ("listen", "::1:1883:x", "address '::1:1883:x': expected HOST:PORT, with IPv6 [IPv6]:PORT"),
        ("advertise", "0.0.0.0:1", "address '0.0.0.0:1': it has to be one address"),
        ("seed", ["0.0.0.0:1"], "address '0.0.0.0:1': a seed has to name one host"),
        ("seed", [""], "address '': host is empty"),
        ("name", "a\nb", "name 'a\\nb' has characters that cannot be printed"),
        ("data_dir", "", "'' is not a file name"),
        ("secret_file", "/", "cannot read /: Is a directory"),
        ("log_level", "loud", "'loud' is not one of debug, info, warning, error"),
    ],
)
def test_a_wrong_flag_is_named(tmp_path: Path, flag: str, value: Any, reason: str) -> None:
    line = f"--{flag.replace('_', '-')}: {reason}"
    assert refusal(tmp_path, **{flag: value}).startswith(line)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("nowhere.yaml", "cannot read nowhere.yaml: No such file or directory"),
        ("/", "cannot read /: Is a directory"),
        ("a\0b", "cannot read 'a\\x00b': not a file name"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, path: str, line: str) -> None:
    assert refusal(tmp_path, config=path).startswith(line)


def test_variables_that_are_none_are_named() -> None:
    environment = {
        "MQTTREE_LISTN": "x",
        "MQTTREE_HELLO": "1",
        "MQTTREE_ADMIN": "127.0.0.1:8080",
        "MQTTREE_CONFIG": "c",
        "MQTTREE_CORE": "python",
        "PATH": "x",
        # What container networks make of services named mqttree and mqttree-admin.
        "MQTTREE_SERVICE_HOST": "x",
        "MQTTREE_SERVICE_PORT_MQTT": "x",
        "MQTTREE_PORT": "tcp://10.0.0.1:1883",
        "MQTTREE_PORT_1883_TCP_ADDR": "x",
        "MQTTREE_ADMIN_PORT": "tcp://10.0.0.1:8080",
        "MQTTREE_ENV_PATH": "x",
    }
    assert unknown_variables(environment) == [
        "MQTTREE_HELLO is no variable of mqttree: write hello into the configuration file",
        "MQTTREE_LISTN is no variable of mqttree; did you mean 'MQTTREE_LISTEN'?",
    ]
    assert unknown_variables({}) == []


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, environment={"MQTTREE_ROUTING": "fast"}).startswith(
        "MQTTREE_ROUTING: 'fast' is not one of"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"short\n", "has 5 bytes, a cluster secret needs 16 at least"),
        (b"x" * 4097, "is longer than"),
    ],
)
def test_an_unusable_secret_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    (tmp_path / "secret").chmod(0o600)
    assert refusal(tmp_path, secret_file=str(tmp_path / "secret")).startswith(
        f"--secret-file: secret {reason}"
    )


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602, 0o620, 0o644, 0o666])
def test_a_secret_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"s" * 32)
    path.chmod(mode)
    line = refusal(tmp_path, secret_file=str(path))
    assert line == (
        "--secret-file: secret holds a secret that others may read or change "
        f"(mode {mode:04o}): chmod 600 secret"
    )
    for fine in (0o600, 0o400):
        path.chmod(fine)
        assert told(tmp_path, secret_file=str(path)).secret == b"s" * 32


@pytest.mark.parametrize(
    ("mode", "owner", "user", "open_"),
    [
        (0o600, 10, 10, False),
        (0o400, 0, 0, False),
        (0o440, 0, 10, False),
        (0o640, 0, 10, False),
        (0o640, 0, 0, True),
        (0o640, 10, 10, True),
        (0o660, 0, 10, True),
        (0o644, 0, 10, True),
        (0o650, 0, 10, True),
    ],
)
def test_a_secret_of_root_may_be_readable_by_its_group(
    mode: int, owner: int, user: int, open_: bool
) -> None:
    assert too_open(mode, owner, user) == open_


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_secret_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"s" * 32)
    path.chmod(0o600)
    os.chown(path, 12_345, -1)
    assert "belongs to another user (uid 12345)" in refusal(tmp_path, secret_file=str(path))


def test_brokers_are_given_a_key_and_not_the_secret() -> None:
    keys = {
        RunSettings(secret=secret, cluster=cluster)
        .federation(
            Address("127.0.0.1", 1883), id=b"i" * 8, boot=1, capability=1.0, own_host=lambda: ""
        )
        .secret
        for secret, cluster in (
            (b"s" * 16, "one"),
            (b"s" * 16, "two"),
            (b"t" * 16, "one"),
            (b"s" * 16, "one"),
        )
    }
    assert keys == {
        cluster_key(b"s" * 16, "one"),
        cluster_key(b"s" * 16, "two"),
        cluster_key(b"t" * 16, "one"),
    }
    assert {len(key) for key in keys if key is not None} == {32}


def test_a_file_that_is_no_text_or_too_large(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a: 1\nb: \xff\n")
    assert refusal(tmp_path, config=str(tmp_path / "x")) == "x:2: not UTF-8 text"
    (tmp_path / "x").write_bytes(b"#" * (1024 * 1024 + 1))
    assert "larger than" in refusal(tmp_path, config=str(tmp_path / "x"))


def test_nesting_and_aliases_end(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[" * 20_000) == "config.yaml: nested too deeply"
    bomb = "a0: &a0 {x: 1}\n" + "".join(
        f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}\n" for n in range(1, 30)
    )
    assert "unknown key" in refusal(tmp_path, bomb)
    assert "unknown key" in refusal(tmp_path, "a: &a {b: *a}\n")


@given(st.text(max_size=200))
def test_any_text_is_a_file_or_one_line(text: str) -> None:
    try:
        file = ConfigFile.parse("f", text)
        read_settings({"config": file}, {})
        read_listeners(file)
        read_config(file)
    except ConfigError as error:
        assert "\n" not in str(error)
        assert str(error)


AMQTT_FILE = """\
listeners:
  default:
    type: tcp
    bind: 0.0.0.0:1884
    max_connections: 100
  secure:
    bind: 127.0.0.1:8883
  web:
    type: ws
    bind: 127.0.0.1:8080
timeout_disconnect_delay: 2
plugins:
  - amqtt.plugins.authentication.AnonymousAuthPlugin:
      allow_anonymous: false
  - amqtt.plugins.logging_amqtt.EventLoggerPlugin
"""


def test_a_file_of_amqtt_works_unchanged(tmp_path: Path) -> None:
    settings = told(tmp_path, AMQTT_FILE + "federation: {name: x}\n")
    assert settings.file is not None
    config = BrokerConfig.from_dict(read_config(settings.file))
    assert config.listeners["secure"].max_connections == 100
    assert config.timeout_disconnect_delay == 2
    assert list(config.plugins or {}) == [
        "amqtt.plugins.authentication.AnonymousAuthPlugin",
        "amqtt.plugins.logging_amqtt.EventLoggerPlugin",
    ]
    found = read_listeners(settings.file)
    assert found.by_name["secure"].max_connections == 100
    assert describe_listeners(found) == "0.0.0.0:1884, 127.0.0.1:8883, ws 127.0.0.1:8080"
    assert link_bind(found) == Address("0.0.0.0", 1884)
    assert exposed(found)
    assert not exposed(read_listeners(None, "localhost:1"))
    assert link_bind(read_listeners(settings.file, "127.0.0.1:7")) == Address("127.0.0.1", 7)


@pytest.mark.parametrize("key", ["bind", "type", "max_connections", "ssl", "certfile"])
def test_a_listener_has_values_of_the_default_one_as_with_amqtt(key: str, tmp_path: Path) -> None:
    (tmp_path / "pem").write_text("")
    files = {"certfile": str(tmp_path / "pem"), "keyfile": str(tmp_path / "pem")}
    default = {"bind": ":1884", "type": "ws", "max_connections": 3, "ssl": True, **files}
    listeners: Any = {
        "default": default,
        "bare": {},
        "own": {"bind": ":1885", "max_connections": 4},
    }
    file = ConfigFile("f", {"listeners": listeners}, {})
    theirs = BrokerConfig.from_dict(read_config(file)).listeners
    for name, ours in read_listeners(file).by_name.items():
        assert getattr(ours, key) == str(getattr(theirs[name], key)) or (
            getattr(ours, key) == getattr(theirs[name], key)
        )


PLAIN = {"bind": "0.0.0.0:1883", "type": "tcp", "max_connections": 0, "ssl": False}


def test_a_plain_listener_beside_one_with_tls_is_plain_and_other_brokers_dial_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "pem").write_text("")
    pem = str(tmp_path / "pem")
    default = {"bind": ":8883", "ssl": True, "certfile": pem, "keyfile": pem, "cafile": pem}
    default |= {"max-connections": 3, "require-certificate": True}
    file = ConfigFile("f", {"listeners": {"default": default, "plain": PLAIN}}, {})
    listeners = read_listeners(file)
    assert link_bind(listeners) == Address("0.0.0.0", 1883)
    assert not listeners.options["plain"].require_certificate

    async def amqtt() -> Any:
        return Broker(read_config(file)).config.listeners["plain"]

    theirs = asyncio.run(amqtt())
    for key, value in PLAIN.items():
        assert getattr(listeners.by_name["plain"], key) == getattr(theirs, key) == value


def test_without_a_file_there_is_the_default_listener(tmp_path: Path) -> None:
    assert link_bind(read_listeners(None)) == Address("0.0.0.0", 1883)
    assert link_bind(read_listeners(None, "[::1]:1")) == Address("::1", 1)
    settings = told(tmp_path, "listeners: {default: {type: tcp, bind: ':2'}}")
    assert link_bind(read_listeners(settings.file)) == Address("", 2)
    settings = told(tmp_path, "listeners: {default: {type: ws, bind: 1}}")
    assert link_bind(read_listeners(settings.file)) is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ("", 1883)),
        ("1884", ("", 1884)),
        (":1884", ("", 1884)),
        (":", ("", 1883)),
        ("0.0.0.0:1884", ("0.0.0.0", 1884)),
        ("[::]:1884", ("::", 1884)),
        ("localhost", ("localhost", 1883)),
        ("127.0.0.1", ("127.0.0.1", 1883)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        (":0", ("", 0)),
    ],
)
def test_a_bind_value_is_an_address_a_port_or_both(text: str, address: tuple[str, int]) -> None:
    assert split_bind(text) == address


def settled(bind: str, **changes: Any) -> FederationSettings:
    settings = RunSettings(**changes)
    return settings.federation(
        split_bind(bind), id=b"12345678", boot=9, capability=3.5, own_host=lambda: "10.9.8.7"
    )


@pytest.mark.parametrize("size", [0, 16 * 1024 * 1024])
def test_the_log_tail_reaches_the_node(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"federation:\n  log-tail: {size}\n")
    settings = read_settings({"config": str(path)}, {})
    federation = settings.federation(
        Address("127.0.0.1", 1883), id=b"12345678", boot=1, capability=1.0, own_host=lambda: ""
    )
    assert federation.node_config().log_tail == size


@pytest.mark.parametrize(
    ("bind", "advertise", "host", "announced", "interfaces"),
    [
        ("0.0.0.0:1884", None, "10.9.8.7", "", None),
        (":1884", None, "10.9.8.7", "", None),
        ("[::]:1884", None, "10.9.8.7", "", None),
        ("127.0.0.1:1884", None, "127.0.0.1", None, ("127.0.0.1",)),
        ("localhost:1884", None, "127.0.0.1", None, ("127.0.0.1",)),
        ("127.0.0.5:1884", None, "127.0.0.5", None, ("127.0.0.1",)),
        ("[::1]:1884", None, "::1", None, ("127.0.0.1",)),
        ("10.1.2.3:1884", None, "10.1.2.3", None, ("10.1.2.3",)),
        ("[fd00::1]:1884", None, "fd00::1", None, None),
        ("0.0.0.0:1884", ("mq.example", 99), "mq.example", None, None),
        ("127.0.0.1:1884", ("10.0.0.1", 99), "10.0.0.1", None, ("127.0.0.1",)),
    ],
)
def test_the_advertised_address_decides_what_is_announced(
    bind: str, advertise: Any, host: str, announced: str | None, interfaces: Any
) -> None:
    found = settled(bind, advertise=Address(*advertise) if advertise else None)
    assert (found.host, found.announce_host, found.interfaces) == (host, announced, interfaces)
    assert found.port == (99 if advertise else 1884)
    node = found.node_config()
    assert (node.host, node.port, node.announce_host, node.id, node.boot) == (
        host,
        found.port,
        announced,
        b"12345678",
        9,
    )
    assert node.capability == 3.5
    node.membership(DEFAULTS)
    node.tree()
    node.announced()


def test_seeds_are_parted_into_addresses_and_names() -> None:
    seeds = (Address("10.0.0.1", 1), Address("b.example", 2), Address("::1", 3))
    found = settled("1", seed=seeds, discovery="static")
    assert found.seeds == (("10.0.0.1", 1), ("::1", 3))
    assert found.seed_names == (("b.example", 2),)
    off = settled("1", seed=seeds, discovery="off")
    assert (off.seeds, off.seed_names) == ((), ())


def test_a_broker_without_a_name_gets_one() -> None:
    assert settled("127.0.0.1:1884").name.endswith(":1884")
    assert settled("127.0.0.1:1884", name="x").name == "x"
    assert len(settled("127.0.0.1:65535").name) <= 64


def test_durability_needs_a_data_directory(tmp_path: Path) -> None:
    """Its key is at the top of the file; async and sync need a place."""
    assert told(tmp_path).durability is None
    assert told(tmp_path, "durability: sync\nfederation: {data-dir: d}").durability == "sync"
    environment = {"MQTTREE_DURABILITY": "none"}
    assert (
        told(tmp_path, "durability: sync\nfederation: {data-dir: d}", environment).durability
        == "none"
    )
    assert (
        told(tmp_path, "durability: sync", environment, durability="async", data_dir="d").durability
        == "async"
    )
    assert told(tmp_path, "durability: none").durability == "none"


@pytest.mark.parametrize(
    ("text", "flags", "line"),
    [
        (None, {"durability": "always"}, "--durability: 'always' is not one of none, async, sync"),
        (
            "durability: 3",
            {"data_dir": "d"},
            "config.yaml:1: durability: 3 is not one of none, async, sync",
        ),
        (
            "durability: async",
            {},
            "config.yaml:1: durability: async needs a data directory (--data-dir)",
        ),
        ("federation: {durability: sync}", {}, "config.yaml:1: federation.durability: unknown key"),
    ],
)
def test_an_impossible_durability_is_refused(
    tmp_path: Path, text: str | None, flags: dict[str, Any], line: str
) -> None:
    assert refusal(tmp_path, text, **flags).startswith(line)


def test_seeds_without_discovery_are_an_error(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path, seed="a:1", discovery="off")
        == "--seed: discovery is off (--discovery), so no seed would be dialled"
    )
    text = "federation: {discovery: off, seed: b}"
    assert "federation.seed: discovery is off" in refusal(tmp_path, text)
    assert told(tmp_path, text, discovery="static").seed == (Address("b", 1883),)


@pytest.mark.parametrize(
    ("value", "count"),
    [("3", 3), (1, 1), (1000, 1000), ("0", 0), (True, 0), ("x", 0), ("-1", 0), (1001, 0)],
)
def test_brokers_to_wait_for(tmp_path: Path, value: object, count: int) -> None:
    if count:
        assert told(tmp_path, wait_for=value).wait_for == count
    else:
        assert "is not a number of brokers from 1 to 1000" in refusal(tmp_path, wait_for=value)
