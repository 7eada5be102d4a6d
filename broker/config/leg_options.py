"""The options of legs: sections of `legs:` in the configuration file, and flags of `federate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from broker.config.broker_url import BrokerUrl, HttpUrl, read_http_url, read_url
from broker.config.secret_file import read_secret
from broker.config.yaml_file import ConfigError, ConfigFile, kind_of
from broker.leg.interest import Source
from broker.leg.rules import RuleError, Rules, parse_rule
from broker.wire.strings import shorten
from routing.topic_filter import valid_topic_name

__all__ = ["LEG_OPTIONS", "LegModel", "read_leg", "read_legs"]

VERSIONS = {"auto": 0, "5": 5, "3.1.1": 4}
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
    "interest",
    "interest_url",
    "interest_password_file",
    "marks",
)
"""Keys of a section, and flags."""

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
    password_file: Path | None = None
    cafile: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    as_user: str | None = None
    """The user of this broker whose rules count for what the leg publishes and receives here;
    None: it may do everything."""
    state_topic: str | None = None
    """Where its state is published; None: at `mqttree/leg/NAME/state`; "": nowhere."""
    interest: Source = Source.ALL
    """Who says what foreign clients want."""
    interest_url: HttpUrl | None = None
    """Where it is asked; None if it is not asked over HTTP."""
    interest_password_file: Path | None = None
    marks: bool = True
    """Whether messages carry the mark of this federation (MQTT 5)."""
    secret: bytes | None = field(default=None, repr=False)
    """The password, if it is in no file of its own."""

    def password(self) -> bytes | None:
        """Return the password, None without one. Its file is read each time, as it may be a token
        that others renew. Raises ValueError with one line."""
        file = self.password_file
        return self.secret if file is None else read_secret(file, 1, WHAT)

    def interest_password(self) -> bytes:
        """Return the password of the user in `interest_url`, read each time. Raises ValueError with
        one line."""
        file = self.interest_password_file
        return b"" if file is None else read_secret(file, 1, WHAT)

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
    broker = _text(values, "broker", fail)
    if broker is None:
        fail("broker", "is missing: mqtt[s]://[USER@]HOST[:PORT]")
    try:
        url = read_url(broker if "://" in broker else f"mqtt://{broker}")
    except ValueError as error:
        fail("broker", str(error))
    version = str(values.get("mqtt") or "auto")
    if version not in VERSIONS:
        fail("mqtt", f"must be one of {', '.join(VERSIONS)}, not {shorten(version)}")
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
    return LegModel(
        url,
        _topics(values.get("topic"), fail),
        VERSIONS[version],
        password_file,
        _path(values, "cafile", fail),
        cert,
        key,
        _text(values, "as_user", fail),
        _state_topic(values, fail),
        *_interest(values, fail),
        _marks(values.get("marks"), fail),
    )


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


def _interest(
    values: Mapping[str, object], fail: Fail
) -> tuple[Source, HttpUrl | None, Path | None]:
    """Return who says what foreign clients want, where to ask, and the file of the password."""
    text = _text(values, "interest", fail) or Source.ALL.value
    try:
        source = Source(text)
    except ValueError:
        known = ", ".join(each.value for each in Source)
        fail("interest", f"must be one of {known}, not {shorten(text)}")
    where, file = _text(values, "interest_url", fail), _path(values, "interest_password_file", fail)
    if source not in (Source.EMQX, Source.NANOMQ):
        for option, value in (("interest_url", where), ("interest_password_file", file)):
            if value is not None:
                fail(option, "is of no use without interest: emqx or nanomq")
        return source, None, None
    if where is None:
        fail("interest_url", f"is missing: where {text} answers, http[s]://[USER@]HOST:PORT")
    try:
        url = read_http_url(where)
    except ValueError as error:
        fail("interest_url", str(error))
    if (url.user is None) != (file is None):
        fail("interest_password_file", "and a user in interest-url need each other")
    if file is not None:
        try:
            read_secret(file, 1, WHAT)
        except ValueError as error:
            fail("interest_password_file", str(error))
    return source, url, file


def _marks(value: object, fail: Fail) -> bool:
    """Return whether messages carry marks; YAML takes `on` and `off` for truth values."""
    if value not in (None, True, False, "on", "off"):
        fail("marks", f"must be on or off, not {shorten(str(value))}")
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
