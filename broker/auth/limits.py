"""Limits of rules."""

from __future__ import annotations

from mqttree.broker.config.limits import ConfigLimits


class AuthLimits(ConfigLimits, kw_only=True):
    """Limits of rules."""

    max_rules: int = 100_000
    """rules of a rules file; more are an error at the start: each is some hundred bytes, and a file
    of 1 MiB has fewer."""
