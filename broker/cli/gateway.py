"""`mqttree federate`: a broker with a leg, by which clients of a foreign broker join it."""

from __future__ import annotations

import argparse
import os

from broker.config.leg_options import LEG_OPTIONS, flag_error, read_leg
from broker.config.options import read_settings


def federate(arguments: argparse.Namespace) -> int:
    """Run a broker with a leg until a signal ends it. Raises ConfigError for options that cannot be
    used."""
    leg = read_leg({name: getattr(arguments, name) for name in LEG_OPTIONS}, flag_error)
    settings = read_settings(vars(arguments), os.environ)
    if settings.data_dir is None and not arguments.no_data_dir:
        arguments.data_dir = f"./mqttree-{settings.name or leg.url.host}"
    from broker.cli.run import run

    return run(arguments, {settings.name or "": leg})
