"""`mqttree federate`: a broker with a leg, by which clients of a foreign broker join it."""

from __future__ import annotations

import argparse
import os
import ssl
from pathlib import Path
from typing import NamedTuple

from broker.config.broker_url import BrokerUrl, read_url
from broker.config.options import read_settings
from broker.config.secret_file import read_secret
from broker.config.yaml_file import ConfigError
from broker.io.broker_service import BrokerService
from broker.io.leg_driver import LegDriver
from broker.io.tls import client_context, describe_error
from broker.leg.leg import LegSettings
from broker.leg.rules import RuleError, Rules, parse_rule
from broker.wire.constants import MAX_PACKET_SIZE

VERSIONS = {"auto": 0, "5": 5, "3.1.1": 4}
DEFAULT_RULE = "# both 2"


class ForeignBroker(NamedTuple):
    """What the command line says of a foreign broker."""

    url: BrokerUrl
    password: bytes | None
    context: ssl.SSLContext | None
    rules: Rules
    version: int


def federate(arguments: argparse.Namespace) -> int:
    """Run a broker with a leg until a signal ends it. Raises ConfigError for options that cannot be
    used."""
    foreign = read_foreign(arguments)
    settings = read_settings(vars(arguments), os.environ)
    if settings.data_dir is None and not arguments.no_data_dir:
        arguments.data_dir = f"./mqttree-{settings.name or foreign.url.host}"
    from broker.cli.run import run

    return run(arguments, lambda service: leg_of(service, foreign))


def read_foreign(arguments: argparse.Namespace) -> ForeignBroker:
    """Return what the flags of a leg say. Raises ConfigError with one line."""
    try:
        url = read_url(arguments.broker)
    except ValueError as error:
        raise ConfigError(f"--broker: {error}") from None
    try:
        rules = Rules([parse_rule(line) for line in arguments.topic or (DEFAULT_RULE,)])
    except RuleError as error:
        raise ConfigError(f"--topic: {error}") from None
    if arguments.mqtt not in VERSIONS:
        raise ConfigError(f"--mqtt: '{arguments.mqtt}' is none of {', '.join(VERSIONS)}")
    try:
        file = arguments.password_file
        password = None if file is None else read_secret(Path(file), 1, "a password")
    except ValueError as error:
        raise ConfigError(f"--password-file: {error}") from None
    context = _context(arguments) if url.tls else None
    return ForeignBroker(url, password, context, rules, VERSIONS[arguments.mqtt])


def _context(arguments: argparse.Namespace) -> ssl.SSLContext:
    flag, file = "--cafile", arguments.cafile
    try:
        context = client_context(None if file is None else Path(file))
        if arguments.cert is not None:
            flag, file = "--cert", arguments.cert
            context.load_cert_chain(file, arguments.key)
    except OSError as error:
        raise ConfigError(f"{flag}: cannot use {file}: {describe_error(error)}") from None
    return context


def leg_of(service: BrokerService, foreign: ForeignBroker) -> LegDriver:
    """Return the leg of a broker that runs, not started."""
    node, url = service.node, foreign.url
    config = node.config
    name = config.id.hex()
    settings = LegSettings(
        name,
        str(url).partition("://")[2],
        foreign.rules,
        url.user,
        foreign.password,
        foreign.version,
        topic_alias_maximum=config.topic_alias_maximum,
        maximum_packet_size=min(config.max_packet_size, MAX_PACKET_SIZE),
    )
    return LegDriver(service.driver, settings, url.host, url.port, foreign.context)
