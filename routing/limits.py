"""Limits of the link-state database."""

from __future__ import annotations

from mqttree.broker.base.limits import BaseLimits


class RoutingLimits(BaseLimits, kw_only=True):
    """Limits of what brokers post."""

    listing_entries: int = 1_000_000
    """entries that a broker posts; its aggregated filters are far fewer. A neighbour that sends
    more of one broker is closed [link_garbage], so all brokers of a cluster have the same."""

    listing_own_bytes: int = 256 * 1024 * 1024
    listing_bytes: int = 512 * 1024 * 1024
    """bytes of what this broker posts, entries of up to 100 bytes aside, so long filters and client
    ids; and of what another one posts, which may be made up: beyond it the link is closed
    [link_garbage]. `listing_entries` small ones have 100 MB."""

    listings_memory: int = 1024 * 1024 * 1024
    """bytes of memory of all that other brokers post, what is coming included: who cannot be
    reached makes room, then what is new is not taken [link_state_refused]."""
