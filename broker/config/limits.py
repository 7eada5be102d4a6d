"""Limits from which options of the configuration have their defaults."""

from __future__ import annotations

from mqttree.routing.limits import RoutingLimits


class ConfigLimits(RoutingLimits, kw_only=True):
    """Limits that options may lower."""

    max_retained_bytes: int = 1024 * 1024 * 1024
    """bytes of retained messages; more are not retained [retained_refused]."""

    full_mesh: int = 8
    """other brokers to each of which there is a link. Of more, 2 * log2(n) are chosen
    (neighbour_selection.py): a link costs both ends a refresh of the tree twice a second, and 200
    brokers would keep 19,900."""

    log_bytes: int = 32 * 1024 * 1024
    """bytes of QoS 1 and 2 messages kept for replay to neighbours after a repair; the oldest go
    first [replay_log_trimmed], but not before each neighbour that is linked has acknowledged them,
    or is not owed them."""

    away_logs: int = 4
    """logs of messages that are kept for that time for brokers that cannot be reached any more,
    while no publisher is held for them: a link that breaks is there again after half a second, and
    what was on its way may be more than a log. Of more the oldest go [replay_log_trimmed]."""
