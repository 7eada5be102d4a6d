"""Counters of one node: plain integers, because some are on the hot path."""

from __future__ import annotations

from typing import Final


class Traffic:
    """What was sent by all clients, or over one link. Each connection holds the one in which its
    bytes are counted."""

    __slots__ = ("forwarded", "other", "received", "sent")

    def __init__(self) -> None:
        # Of links: PUBLISH packets sent, and those accepted.
        self.forwarded = 0
        self.received = 0
        # Bytes handed to the transport.
        self.sent = 0
        # Bytes of packets other than PUBLISH, counted when they are queued.
        self.other = 0


class Counted:
    """What is counted. Fields only: their names are taken from this class."""

    # Messages accepted from clients: at QoS 0 in runs, at QoS 1 and 2 on the fast path, and
    # all others, wills and the broker's own included. `published` is their sum.
    published_runs: int = 0
    published_acknowledged: int = 0
    published_single: int = 0
    # Packets from clients that are in no run, and acknowledgements in runs.
    packets_single: int = 0
    packets_acknowledging: int = 0
    # Packets to clients other than PUBLISH: one by one, and in runs.
    answers_single: int = 0
    answers_run: int = 0
    # Bytes of packets from clients other than PUBLISH, without `packets_acknowledging`.
    bytes_received_other: int = 0

    # Messages
    delivered: int = 0
    wills: int = 0
    published_internally: int = 0
    packet_ids_reused: int = 0
    expired: int = 0
    publish_refused: int = 0
    queued_over_limit: int = 0
    dropped_slow_consumer: int = 0
    dropped_queue_full: int = 0
    dropped_too_large: int = 0
    dropped_memory: int = 0
    dropped_link: int = 0

    # Packets and bytes of clients
    bytes_received: int = 0

    # Connections
    connections_accepted: int = 0
    connects: int = 0
    connects_refused: int = 0
    connections_abandoned: int = 0
    connect_timeout: int = 0
    keep_alive_timeout: int = 0
    authentication_failed: int = 0
    redirected: int = 0
    bridge_loops: int = 0
    taken_over: int = 0
    takeover_unread: int = 0
    malformed: int = 0
    protocol_errors: int = 0
    slow_consumer_closed: int = 0
    memory_closed: int = 0
    refused_open_files: int = 0
    tls_failed: int = 0
    proxy_garbage: int = 0
    websocket_refused: int = 0
    websocket_errors: int = 0
    websocket_close_timeout: int = 0

    # Sessions and subscriptions
    sessions_expired: int = 0
    sessions_refused: int = 0
    sessions_shed: int = 0
    session_takeovers: int = 0
    session_takeovers_unexpected: int = 0
    session_takeovers_timed_out: int = 0
    session_takeovers_uncertain: int = 0
    promotions: int = 0
    sessions_claimed: int = 0
    fences: int = 0
    doubts: int = 0
    messages_voided: int = 0
    sessions_merged: int = 0
    sessions_superseded: int = 0
    sessions_wrong_user: int = 0
    session_tombstones_forgotten: int = 0
    sessions_unannounced: int = 0
    sessions_loaded: int = 0
    merged_messages: int = 0
    merged_uncertain: int = 0
    subscriptions_refused: int = 0
    subscriptions_unconfirmed: int = 0

    # Backpressure
    publishers_paused: int = 0
    pause_requests_sent: int = 0
    pause_requests_received: int = 0
    pause_requests_ignored: int = 0

    # Retained messages
    retained_refused: int = 0
    retained_restored: int = 0
    retained_sent: int = 0
    retained_dropped: int = 0
    retained_loaded: int = 0
    retained_tombstones_forgotten: int = 0
    retained_clock_ahead: int = 0

    # Shared subscriptions
    shared_assigned: int = 0
    shared_passed_on: int = 0
    shared_undelivered: int = 0
    shared_late: int = 0
    shared_reassigned: int = 0
    shared_declined: int = 0
    shared_uncertain: int = 0
    shared_untracked: int = 0
    groups_refused: int = 0

    # Links
    links_opened: int = 0
    links_closed: int = 0
    links_surplus: int = 0
    links_refused: int = 0
    link_timeouts: int = 0
    link_garbage: int = 0
    link_wrong_secret: int = 0
    link_wrong_id: int = 0
    link_wrong_cluster: int = 0
    link_tampered: int = 0
    duplicate_id: int = 0
    id_conflicts: int = 0
    link_bytes_control: int = 0
    link_bytes_data: int = 0
    topology_changes: int = 0

    # Messages between brokers
    duplicates: int = 0
    replayed: int = 0
    replay_log_trimmed: int = 0
    replay_log_lost: int = 0
    replay_log_reserve_full: int = 0
    ordered_feed_full: int = 0
    gaps_forgotten: int = 0
    routed_dropped: int = 0
    interest_refused: int = 0
    interest_widened: int = 0
    advertisements_refused: int = 0
    lost_before_path: int = 0
    overlays_refused: int = 0
    link_costs_refused: int = 0
    link_state_refused: int = 0

    # Where clients should connect
    placement_questions: int = 0
    placement_refused: int = 0
    placement_unanswered: int = 0
    redirects_ignored: int = 0
    redirects_forgone: int = 0
    redirect_topics_invalid: int = 0
    rebalanced: int = 0

    # Clients whose broker died

    # The journal and the log tail
    journal_frames: int = 0
    journal_bytes: int = 0
    journal_errors: int = 0
    journal_truncated: int = 0
    journal_frames_split: int = 0
    journal_snapshots: int = 0
    stream_bytes: int = 0
    standby_changes: int = 0
    image_faults: int = 0
    images_dropped: int = 0
    log_tail_bytes: int = 0
    log_tail_errors: int = 0
    log_tail_damaged: int = 0
    log_tail_replayed: int = 0

    # The broker itself
    turns_cut: int = 0
    turns_long: int = 0
    plugin_errors: int = 0
    answers_unexpected: int = 0
    log_lines_suppressed: int = 0
    admin_refused: int = 0
    admin_misdirected: int = 0
    admin_unauthorized: int = 0
    admin_readers_closed: int = 0


class Counters(Counted):
    """All counters of a broker; `broker/io/metric_help.py` has a sentence for each that users
    see."""

    def __init__(self) -> None:
        self.to_clients = Traffic()
        # Of links that are over, and of each that is not.
        self.over_links = Traffic()
        self._links: dict[Traffic, None] = {}

    def begin_link(self) -> Traffic:
        """Return what counts the traffic of a new link."""
        traffic = Traffic()
        self._links[traffic] = None
        return traffic

    def end_connection(self, traffic: Traffic) -> Traffic:
        """Return where a connection counts from now on that is over; `traffic`: where it did."""
        if traffic not in self._links:
            return traffic
        del self._links[traffic]
        over = self.over_links
        over.sent += traffic.sent
        over.other += traffic.other
        over.forwarded += traffic.forwarded
        over.received += traffic.received
        return over

    @property
    def forwarded(self) -> int:
        """PUBLISH packets that were sent on links."""
        return self.over_links.forwarded + sum([each.forwarded for each in self._links])

    @property
    def received_link(self) -> int:
        """PUBLISH packets of links that were accepted."""
        return self.over_links.received + sum([each.received for each in self._links])

    @property
    def link_bytes_sent(self) -> int:
        """Bytes that went to links."""
        return self.over_links.sent + sum([each.sent for each in self._links])

    @property
    def published(self) -> int:
        """Application messages accepted from clients, wills and the broker's own."""
        return self.published_runs + self.published_acknowledged + self.published_single

    @property
    def publish_received(self) -> int:
        """PUBLISH packets from clients that were accepted."""
        return self.published - self.wills - self.published_internally

    @property
    def packets_received(self) -> int:
        """Number of MQTT packets from clients, CONNECT packets that were refused included."""
        fast = self.published_runs + self.published_acknowledged + self.packets_acknowledging
        return fast + self.packets_single + self.connects + self.connects_refused

    @property
    def packets_sent(self) -> int:
        """Number of MQTT packets that were sent to clients: messages, answers and CONNACK."""
        answers = self.published_acknowledged + self.answers_single + self.answers_run
        return self.delivered + answers + self.connects + self.connects_refused

    @property
    def bytes_sent(self) -> int:
        """Bytes that went to clients."""
        return self.to_clients.sent

    @property
    def publish_bytes_received(self) -> int:
        """Bytes of the PUBLISH packets from clients, headers included: all but the others, so that
        none need be measured."""
        return max(
            0, self.bytes_received - self.bytes_received_other - 4 * self.packets_acknowledging
        )

    @property
    def publish_bytes_sent(self) -> int:
        """Bytes of the PUBLISH packets that went to clients, headers included; what still waits is
        not in it."""
        return max(
            0, self.to_clients.sent - self.to_clients.other - 4 * self.published_acknowledged
        )

    @property
    def dropped(self) -> int:
        """PUBLISH packets that a client should have had and did not get."""
        return self.dropped_slow_consumer + self.dropped_queue_full + self.dropped_too_large

    def as_dict(self) -> dict[str, int]:
        """Return name -> value, sums instead of what is counted separately only because that is
        cheaper."""
        found = {name: getattr(self, name) for name in _SHOWN}
        sums = {
            "published": self.published,
            "packets_received": self.packets_received,
            "packets_sent": self.packets_sent,
            "bytes_sent": self.to_clients.sent,
            "link_bytes_sent": self.link_bytes_sent,
            "forwarded": self.forwarded,
            "received_link": self.received_link,
            "publish_bytes_received": self.publish_bytes_received,
            "publish_bytes_sent": self.publish_bytes_sent,
        }
        return sums | found


_PARTS: Final = frozenset(
    {
        "published_runs",
        "published_acknowledged",
        "published_single",
        "packets_single",
        "packets_acknowledging",
        "answers_single",
        "answers_run",
        "bytes_received_other",
    }
)
"""What is shown as a part of a sum only."""

# Compiled or not, a class has its fields by name, in order.
_SHOWN: Final = tuple(name for name in vars(Counted) if name[0] != "_" and name not in _PARTS)
