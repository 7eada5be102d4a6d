"""`mqttree federate`: a broker with legs, by which clients of foreign brokers join it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from mqttree.broker.cli.command_line import complain
from mqttree.broker.config.leg_options import LEG_OPTIONS, LegModel, flag_error, read_leg
from mqttree.broker.config.mosquitto_bridges import read_bridges
from mqttree.broker.config.options import read_settings


def federate(arguments: argparse.Namespace) -> int:
    """Run a broker with legs until a signal ends it. Raises ConfigError for options that cannot be
    used."""
    settings = read_settings(vars(arguments), os.environ)
    legs = read_gateway(arguments, settings.name or "")
    if arguments.no_data_dir and settings.data_dir is not None:
        flag_error("no_data_dir", f"there is one, {settings.data_dir}")
    first = next(iter(legs.values()))
    if settings.data_dir is None and not arguments.no_data_dir:
        arguments.data_dir = f"./mqttree-{settings.name or first.url.host}"
    from mqttree.broker.cli.run import run

    return run(arguments, legs)


def read_gateway(arguments: argparse.Namespace, name: str) -> Mapping[str, LegModel]:
    """Return the legs that the command line asks for, by name; `name`: of the one that its flags
    describe. Prints what a file of Mosquitto has and legs have not. Raises ConfigError."""
    given = {option: getattr(arguments, option) for option in LEG_OPTIONS}
    if arguments.from_mosquitto is None:
        return {name: read_leg(given, flag_error)}
    for option, value in given.items():
        if value is not None:
            flag_error(option, "is of no use beside --from-mosquitto")
    legs, notes = read_bridges(arguments.from_mosquitto)
    for note in notes:
        complain(note)
    return legs
