"""Counters of one node: plain integers, because some are on the hot path."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Everything counted; `as_dict` is what /api/federation and /metrics show."""

    published: int = 0  # application messages accepted from clients (and wills)
    delivered: int = 0  # PUBLISH packets queued to clients
    forwarded: int = 0  # PUBLISH packets queued to links
    received_link: int = 0  # PUBLISH packets accepted from links
    duplicates: int = 0  # PUBLISH packets from links that had been here before
    replayed: int = 0  # PUBLISH packets sent again to a link after a repair
    link_bytes_control: int = 0
    link_bytes_data: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    connects: int = 0
    connects_refused: int = 0
    connect_timeout: int = 0
    keep_alive_timeout: int = 0
    taken_over: int = 0
    malformed: int = 0
    protocol_errors: int = 0
    dropped_slow_consumer: int = 0
    slow_consumer_closed: int = 0
    dropped_queue_full: int = 0
    dropped_too_large: int = 0
    dropped_link: int = 0
    expired: int = 0
    publish_refused: int = 0
    subscriptions_refused: int = 0
    retained_refused: int = 0
    sessions_refused: int = 0
    wills: int = 0
    links_opened: int = 0
    links_closed: int = 0
    links_refused: int = 0
    link_timeouts: int = 0
    link_garbage: int = 0
    link_wrong_secret: int = 0
    link_wrong_cluster: int = 0
    duplicate_id: int = 0
    topology_changes: int = 0
    log_trimmed: int = 0
    gaps_forgotten: int = 0
    plugin_errors: int = 0
    proxy_garbage: int = 0  # connections without a PROXY header where one is required

    def as_dict(self) -> dict[str, int]:
        """Return name -> value."""
        return asdict(self)
