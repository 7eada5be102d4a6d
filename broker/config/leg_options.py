"""The options of legs: sections of `legs:` in the configuration file, and flags of `federate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from mqttree.broker.config.broker_url import BrokerUrl, read_url
from mqttree.broker.config.secret_file import read_secret
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile, did_you_mean, kind_of
from mqttree.broker.leg.leg_settings import Start
from mqttree.broker.leg.retained_rules import Retain
from mqttree.broker.leg.rules import RuleError, Rules, parse_rule
from mqttree.broker.wire.strings import shorten
from mqttree.routing.topic_filter import valid_topic_name

STARTS = {start.value: start for start in Start}
RETAIN = [each.value for each in Retain]
PLAIN = "3.1.1-plain"
"""MQTT 3.1.1 without the bit of a bridge."""
VERSIONS = {"auto": 0, "5": 5, "3.1.1": 4, PLAIN: 4}
DEFAULT_RULE = "# both 2"
MAX_NAME = 64
"""characters of a leg's name, which is in two client ids."""
WHAT = "a password"
LEG_OPTIONS = (
    "broker",
    "topic",
    "mqtt",
    "password_file",
    "cafile",
    "cert",
    "key",
    "as_user",
    "state_topic",
    "max_qos",
    "start",
    "idle_timeout",
    "threshold",
    "round_robin",
    "client_id",
    "keep_alive",
    "receive_maximum",
    "max_queued",
    "max_queued_bytes",
    "max_rate",
    "alpn",
    "psk_identity",
    "psk_file",
    "marks",
    "probes",
    "retain",
)
"""Keys of a section, and flags."""
MAX_QUEUED, MAX_QUEUED_BYTES = 100_000, 256 * 1024 * 1024
"""Messages at QoS 1 and 2 that wait here for one foreign broker, and bytes of them: a night of one
message a second and more, as a foreign broker may be away for long unnoticed. Those beyond
are dropped, the newest first [mqttree_leg_dropped_total, queue_full]."""

HIGHEST_QOS = 2
RECEIVE_MAXIMUM = 1000
"""Messages at QoS 1 and 2 that a foreign broker may have in flight to here, if it takes so many."""

Fail = Callable[[str, str], NoReturn]
"""Raises ConfigError about an option."""


@dataclass(frozen=True, slots=True)
class LegModel:
    """What the options say of one leg. Two that are equal lead to the same broker in the same
    way."""

    url: BrokerUrl
    topics: tuple[str, ...]
    """Lines of rules."""
    version: int = 0
    """Of MQTT: 5, 4 (3.1.1), or 0: 5 if the foreign broker knows it."""
    plain: bool = False
    """Whether MQTT 3.1.1 comes without the bit of a bridge."""
    password_file: Path | None = None
    cafile: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    as_user: str | None = None
    """The user of this broker whose rules count for what the leg publishes and receives here;
    None: it may do everything."""
    state_topic: str | None = None
    """Where its state is published; None: at `mqttree/leg/NAME/state`; "": nowhere."""
    marks: bool = True
    """Whether messages carry the mark of this federation (MQTT 5)."""
    probes: bool = True
    """Whether it looks for rings, by messages to `mqttree/probe/`."""
    retain: Retain = Retain.BOTH
    """Which way RETAIN crosses."""
    secret: bytes | None = field(default=None, repr=False)
    """The password, if it is in no file of its own."""
    others: tuple[BrokerUrl, ...] = ()
    """Further addresses of the foreign broker."""
    round_robin: bool = False
    """Whether all addresses are equal; else the first one comes first."""
    max_qos: int = HIGHEST_QOS
    """The highest QoS of messages that cross."""
    start: Start = Start.AUTOMATIC
    idle_timeout: int = 60
    """s without messages after which a lazy leg disconnects."""
    threshold: int = 1
    """Messages that have to wait here for a lazy leg to connect."""
    client_id: str = ""
    """The client id at the foreign broker; "": one made of the name."""
    keep_alive: int = 10
    """s."""
    receive_maximum: int = RECEIVE_MAXIMUM
    """Messages at QoS 1 and 2 that the foreign broker may have in flight to here."""
    max_queued: int = MAX_QUEUED
    max_queued_bytes: int = MAX_QUEUED_BYTES
    max_rate: int = 0
    """Messages that go out in a second; 0: as many as there are."""
    alpn: str | None = None
    """The protocol that TLS asks for."""
    psk_identity: str | None = None
    """The name of the key that both sides know, instead of certificates."""
    psk: bytes | None = field(default=None, repr=False)
    """That key, if it is in no file of its own."""
    psk_file: Path | None = None
    """Where it is, in hexadecimal digits."""

    @property
    def urls(self) -> tuple[BrokerUrl, ...]:
        """All addresses."""
        return (self.url, *self.others)

    def pre_shared_key(self) -> bytes | None:
        """Return the key that both sides know, None without one. Its file is read each time. Raises
        ValueError with one line."""
        return self.psk if self.psk_file is None else read_key(self.psk_file)

    def password(self) -> bytes | None:
        """Return the password, None without one. Its file is read each time, as it may be a token
        that others renew. Raises ValueError with one line."""
        file = self.password_file
        return self.secret if file is None else read_secret(file, 1, WHAT)

    @property
    def rules(self) -> Rules:
        """Which topics cross."""
        return Rules([parse_rule(line) for line in self.topics])


def read_legs(file: ConfigFile) -> dict[str, LegModel]:
    """Return the legs in the section `legs:` of a file, by name. Raises ConfigError with one line
    for what cannot be used."""
    legs = file.data.get("legs")
    if legs is None:
        return {}
    if not isinstance(legs, dict):
        file.fail(("legs",), f"expected names of legs, not {kind_of(legs)}")
    found = {}
    for name in legs:
        if not isinstance(name, str) or not name or len(name) > MAX_NAME or not name.isprintable():
            file.fail(("legs", str(name)), f"a leg's name is a text of 1-{MAX_NAME} characters")
        values = file.section(("legs", name), LEG_OPTIONS)

        def fail(option: str, reason: str, name: str = name) -> NoReturn:
            file.fail(("legs", name, option.replace("_", "-")), reason)

        found[name] = read_leg(values, fail)
    return found


def read_leg(values: Mapping[str, object], fail: Fail) -> LegModel:
    """Return what options say of one leg. `values`: by name, None for what is not given; `fail`:
    raises ConfigError about an option, for a reason.

    Raises:
        ConfigError: one of them cannot be used.
    """
    url, *others = _urls(values, fail)
    version = str(values.get("mqtt") or "auto")
    if version not in VERSIONS:
        fail("mqtt", _must_be(version, VERSIONS))
    cert, key = _path(values, "cert", fail), _path(values, "key", fail)
    if key is not None and cert is None:
        fail("key", "is of no use without cert")
    password_file = _path(values, "password_file", fail)
    if password_file is not None:
        if url.user is None:
            fail("password_file", "is of no use without a user: mqtt://USER@HOST")
        try:
            read_secret(password_file, 1, WHAT)
        except ValueError as error:
            fail("password_file", str(error))
    start = str(values.get("start") or "automatic")
    if start not in STARTS:
        fail("start", _must_be(start, STARTS))
    for option in ("idle_timeout", "threshold"):
        if values.get(option) is not None and start != "lazy":
            fail(option, "is of no use without start lazy")
    alpn = _text(values, "alpn", fail)
    if alpn is not None and not (url.tls and 0 < len(alpn.encode()) < 256):
        fail("alpn", "is a name of 1-255 bytes, of use with mqtts:// alone")
    psk_identity, psk_file = _psk(values, url, fail)
    client_id = _text(values, "client_id", fail) or ""
    if len(client_id.encode()) > 65_535 or not client_id.isprintable():
        fail("client_id", "is no client id")
    return LegModel(
        url,
        _topics(values.get("topic"), fail),
        VERSIONS[version],
        version == PLAIN,
        password_file,
        _path(values, "cafile", fail),
        cert,
        key,
        _text(values, "as_user", fail),
        _state_topic(values, fail),
        _on_or_off(values, "marks", fail),
        _on_or_off(values, "probes", fail),
        others=tuple(others),
        round_robin=_switch(values, "round_robin", fail),
        max_qos=_whole(values, "max_qos", 0, 2, HIGHEST_QOS, fail),
        start=STARTS[start],
        idle_timeout=_whole(values, "idle_timeout", 1, 86_400, 60, fail),
        threshold=_whole(values, "threshold", 1, MAX_QUEUED, 1, fail),
        client_id=client_id,
        keep_alive=_whole(values, "keep_alive", 0, 65_535, 10, fail),
        receive_maximum=_whole(values, "receive_maximum", 1, 65_535, RECEIVE_MAXIMUM, fail),
        max_queued=_whole(values, "max_queued", 1, 10_000_000, MAX_QUEUED, fail),
        max_queued_bytes=_whole(values, "max_queued_bytes", 1, 1 << 40, MAX_QUEUED_BYTES, fail),
        max_rate=_whole(values, "max_rate", 0, 1_000_000, 0, fail),
        alpn=alpn,
        psk_identity=psk_identity,
        psk_file=psk_file,
        retain=Retain(_one_of(values, "retain", RETAIN, fail)),
    )


def _urls(values: Mapping[str, object], fail: Fail) -> list[BrokerUrl]:
    """Return the addresses of the foreign broker, one at least. The user of the first one is that
    of all."""
    given = values.get("broker")
    texts = given if isinstance(given, list) else [given]
    if given is None or not texts:
        fail("broker", "is missing: mqtt[s]://[USER@]HOST[:PORT]")
    found: list[BrokerUrl] = []
    for text in texts:
        if not isinstance(text, str) or not text:
            fail("broker", f"expected a text, not {kind_of(text)}")
        try:
            url = read_url(text if "://" in text else f"mqtt://{text}")
        except ValueError as error:
            fail("broker", str(error))
        if found and url.user not in (None, found[0].user):
            fail("broker", "all addresses have one user, that of the first one")
        if found and url.tls != found[0].tls:
            fail("broker", "either all addresses are mqtts://, or none is")
        found.append(url._replace(user=found[0].user) if found else url)
    if len(set(found)) < len(found):
        fail("broker", "an address is there twice")
    return found


def _psk(
    values: Mapping[str, object], url: BrokerUrl, fail: Fail
) -> tuple[str | None, Path | None]:
    """Return the name of a key that both sides know, and its file."""
    identity, file = _text(values, "psk_identity", fail), _path(values, "psk_file", fail)
    if identity is None and file is None:
        return None, None
    if identity is None or file is None:
        fail("psk_file" if file is None else "psk_identity", "is missing: both go together")
    if not knows_psk():
        fail("psk_file", "needs Python 3.13 or newer")
    if not url.tls:
        fail("psk_file", "is of use with mqtts:// alone")
    try:
        read_key(file)
    except ValueError as error:
        fail("psk_file", str(error))
    return identity, file


def knows_psk() -> bool:
    """Return whether TLS of this Python has keys that both sides know."""
    return sys.version_info >= (3, 13)


def read_key(file: Path) -> bytes:
    """Return the key in a file of hexadecimal digits. Raises ValueError with one line."""
    try:
        return bytes.fromhex(read_secret(file, 1, "a key").decode())
    except ValueError as error:
        if str(file) in str(error):
            raise
        raise ValueError(f"{file} has something else than hexadecimal digits") from None


def _whole(
    values: Mapping[str, object], option: str, low: int, high: int, default: int, fail: Fail
) -> int:
    value = values.get(option)
    if value is None:
        return default
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 16:
        value = int(value)
    if type(value) is not int or not low <= value <= high:
        fail(option, f"must be a whole number from {low} to {high}, not {shorten(str(value))}")
    return value


def _switch(values: Mapping[str, object], option: str, fail: Fail) -> bool:
    value = values.get(option)
    if value is not None and not isinstance(value, bool):
        fail(option, f"must be yes or no, not {kind_of(value)}")
    return bool(value)


def _must_be(word: str, words: Iterable[str]) -> str:
    known = list(words)
    hint = did_you_mean(word[:60], known)
    return f"must be one of {', '.join(known)}, not {shorten(word)}{hint}"


def _one_of(values: Mapping[str, object], option: str, words: list[str], fail: Fail) -> str:
    """Return a word of an option, the first one of `words` if none is given."""
    word = values.get(option)
    # YAML reads the word off as False.
    word = words[0] if word is None else "off" if word is False else word
    if word not in words:
        fail(option, _must_be(str(word), words))
    return str(word)


def _topics(value: object, fail: Fail) -> tuple[str, ...]:
    """Return lines of rules that can be used, the default one if none is given."""
    lines = value if isinstance(value, list) else [DEFAULT_RULE if value is None else value]
    for line in lines:
        if not isinstance(line, str):
            fail("topic", f"expected lines of text, not {kind_of(line)}")
        try:
            parse_rule(line)
        except RuleError as error:
            fail("topic", str(error))
    if not lines:
        fail("topic", "has no rule: nothing would cross")
    return tuple(lines)


def _state_topic(values: Mapping[str, object], fail: Fail) -> str | None:
    topic = _text(values, "state_topic", fail)
    if topic in (None, "off"):
        return None if topic is None else ""
    if not valid_topic_name(topic) or topic.startswith("$"):
        fail("state_topic", f"{shorten(topic)} is no topic to which a leg may publish")
    return topic


def _on_or_off(values: Mapping[str, object], option: str, fail: Fail) -> bool:
    """Return whether an option is on, as it is if it is not given; YAML takes `on` and `off` for
    truth values."""
    value = values.get(option)
    if value not in (None, True, False, "on", "off"):
        fail(option, f"must be on or off, not {shorten(str(value))}")
    return value not in (False, "off")


def _text(values: Mapping[str, object], option: str, fail: Fail) -> str | None:
    value = values.get(option)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        fail(option, f"expected a text, not {kind_of(value)}")
    return value


def _path(values: Mapping[str, object], option: str, fail: Fail) -> Path | None:
    text = _text(values, option, fail)
    return None if text is None else Path(text)


def flag_error(option: str, reason: str) -> NoReturn:
    """Raise ConfigError about a flag."""
    raise ConfigError(f"--{option.replace('_', '-')}: {reason}")
