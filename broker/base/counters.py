"""Counters of one node: plain integers, because some are on the hot path."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


class Traffic:
    """Bytes that went out, apart for clients and for links: a connection knows where its own are
    counted."""

    __slots__ = ("other", "sent")

    def __init__(self) -> None:
        self.sent = 0  # when they were handed to the transport
        self.other = 0  # of packets that are no messages, when they were queued


@dataclass(slots=True)
class Counters:
    """Everything counted; `as_dict` is what /api/federation and /metrics show."""

    published_runs: int = 0  # application messages accepted from clients: at QoS 0 in runs,
    published_acknowledged: int = 0  # at QoS 1 and 2 on the fast path,
    published_single: int = 0  # and all others; wills and the broker's own, too
    delivered: int = 0  # PUBLISH packets queued to clients
    forwarded: int = 0  # PUBLISH packets queued to links
    received_link: int = 0  # PUBLISH packets accepted from links
    duplicates: int = 0  # PUBLISH packets from links that had been here before
    replayed: int = 0  # PUBLISH packets sent again to a link after a repair
    link_bytes_control: int = 0
    link_bytes_data: int = 0
    packets_single: int = 0  # packets from clients: those that no run took,
    packets_acknowledging: int = 0  # and acknowledgements in runs
    answers_single: int = 0  # packets to clients that are no PUBLISH: one by one,
    answers_run: int = 0  # and in runs
    bytes_received: int = 0  # from clients
    # of packets that are no PUBLISH, without what packets_acknowledging counts
    bytes_received_other: int = 0
    to_clients: Traffic = field(default_factory=Traffic)
    to_links: Traffic = field(default_factory=Traffic)
    accepted: int = 0  # connections, before anything was said on them
    connects: int = 0
    connects_refused: int = 0
    # connections that were closed again before they could be accepted, while the broker was stopped
    connects_given_up: int = 0
    authentication_failed: int = 0  # of enhanced authentication, at CONNECT or later
    redirected: int = 0
    connect_timeout: int = 0
    keep_alive_timeout: int = 0
    taken_over: int = 0
    # of these, before everything was handled that had come on the old connection
    takeover_unread: int = 0
    malformed: int = 0
    protocol_errors: int = 0
    admin_refused: int = 0  # requests to the admin port that were refused, by whatever status
    admin_misdirected: int = 0  # of these, under a name that is not this broker's
    # lines that peers caused, beyond one a minute for each cause and host
    log_lines_suppressed: int = 0
    dropped_slow_consumer: int = 0
    slow_consumer_closed: int = 0
    dropped_queue_full: int = 0
    # messages queued beyond MAX_QUEUED, as they were on their way when their publishers were held
    # elsewhere
    queued_over: int = 0
    holds_sent: int = 0  # to other brokers, so that they do not read their publishers for a while
    holds_received: int = 0  # from other brokers; those that only repeat or change one do not count
    holds_ignored: int = 0  # of brokers that never pause
    publishers_held: int = 0  # for other brokers
    dropped_too_large: int = 0
    dropped_link: int = 0
    expired: int = 0
    publish_refused: int = 0
    subscriptions_refused: int = 0
    # granted although some broker had not said that it knows of them
    subscriptions_unconfirmed: int = 0
    retained_refused: int = 0
    # taken because a neighbour's stored messages were compared with ours
    retained_restored: int = 0
    retained_sent: int = 0  # sent to neighbours for that reason
    retained_dropped: int = 0  # parts of such comparisons that were too much at a time
    tombstones_forgotten: int = 0  # deletions of retained messages that were too many to remember
    clocks_ahead: int = 0  # times of retained messages that were too far ahead to be believed
    retained_loaded: int = 0  # from the journal at the start
    sessions_loaded: int = 0
    answers_unexpected: int = 0  # of the driver, which nothing waited for
    journal_frames: int = 0
    journal_bytes: int = 0
    journal_errors: int = 0  # writes that failed
    journal_cut: int = 0  # files whose end could not be read at the start
    journal_split: int = 0  # turns that changed too much for one frame
    # times that everything was written once more, so that what was before can be deleted
    checkpoints: int = 0
    # connections closed because the open files that are left are kept for links and the admin port
    refused_files: int = 0
    sessions_shed: int = 0  # sessions of clients that were away, ended because memory was short
    memory_closed: int = 0  # connections closed for the same reason
    dropped_memory: int = 0  # messages for clients that were away, dropped for the same reason
    sessions_refused: int = 0
    sessions_expired: int = 0
    sessions_moved: int = 0  # taken over from another broker
    takeover_unexpected: int = 0  # answers about sessions that no state waits for
    sessions_unmoved: int = 0  # at a broker that did not answer: their clients began anew
    # moved although what they had had is not all kept in mind: QoS 2 may come twice
    sessions_uncertain: int = 0
    # older ones, from brokers that were away, whose messages newer ones of the same clients got
    sessions_merged: int = 0
    merged_messages: int = 0  # such messages
    # QoS 2 messages of older sessions that had been sent and not answered: they are not sent again
    merged_unsure: int = 0
    sessions_lost: int = 0  # ended because their clients have newer ones elsewhere
    # CONNECTs refused, as another user has a session with their client id
    sessions_foreign: int = 0
    # that ended while others had older ones, and were too many to remember: those may come back
    sessions_forgotten: int = 0
    sessions_untold: int = 0  # that others cannot know of, as the listing is full
    wills: int = 0
    internal: int = 0  # messages that the broker or a plugin published
    links_opened: int = 0
    links_closed: int = 0
    links_surplus: int = 0
    links_refused: int = 0
    interest_refused: int = 0  # entries of other brokers that are no topic filters
    # times that so many filters were wanted, here or by another broker, that it gets everything
    interest_widened: int = 0
    overlay_refused: int = 0  # entries of other brokers that are no costs of links
    # entries of other brokers that are no shared subscriptions or too many, or own ones that are
    groups_refused: int = 0
    shared_elsewhere: int = 0  # messages given to members of shared subscriptions at other brokers
    # of those given to us, passed on: no member was left, or all were away
    shared_passed_on: int = 0
    shared_undelivered: int = 0  # and for which no member was found
    # given to members elsewhere of whose group this broker heard only after they were published
    shared_late: int = 0
    # given to another member, as the first one's broker was gone or had none any more
    shared_given_again: int = 0
    shared_declined: int = 0  # of those given to us, given back: too much waits for members here
    # at QoS 2, perhaps sent to a client whose broker did not come back: nobody else gets them
    shared_uncertain: int = 0
    # too many were not acknowledged at a time: these are lost if the broker that has them is
    shared_unguarded: int = 0
    # messages to one broker that nobody knows the way to, or that cannot be read
    routed_dropped: int = 0
    link_timeouts: int = 0
    link_garbage: int = 0
    link_wrong_secret: int = 0
    link_wrong_id: int = 0  # brokers that did not prove that their id is theirs
    link_wrong_cluster: int = 0
    link_tampered: int = 0  # links closed because what came was not what the other broker had sent
    duplicate_id: int = 0
    # times that clients were no longer accepted, as a broker that was there before has this one's
    # id
    id_conflicts: int = 0
    topology_changes: int = 0
    # of other brokers, as there was no room for what they say of themselves
    listings_refused: int = 0
    log_trimmed: int = 0
    # messages that were dropped from the log although a neighbour may have lacked them
    log_lost: int = 0
    # messages that wait for clients that are away, and whose numbers are neither in the log nor
    # noted
    log_unnumbered: int = 0
    # messages that sessions on their way, or new groups, may need; no room in the log, or beside it
    log_unspared: int = 0
    tail_bytes: int = 0  # written to the log's tail, for brokers that were away
    tail_errors: int = 0  # times that it could not be written
    tail_damaged: int = 0  # pieces of it that could not be read
    tail_replayed: int = 0  # messages from it that brokers got which had been away
    # messages of other brokers for which too much waited already; their brokers are asked for them
    # again
    feeds_refused: int = 0
    # holes in the sequences of origins that were too many; no neighbour is asked for them any more
    gaps_forgotten: int = 0
    # times that a connection had caused so much work in one turn that the rest waited for another
    turns_cut: int = 0
    turns_long: int = 0  # times that this broker did nothing else for more than 50 ms
    plugin_errors: int = 0
    proxy_garbage: int = 0  # connections without a PROXY header where one is required
    # TLS handshakes of clients that came to nothing: no certificate, a wrong one, no TLS at all
    tls_failed: int = 0
    websocket_refused: int = 0  # connections to a WebSocket listener that were not upgraded
    # closed for text frames, frames that break RFC 6455 and messages that are too large
    websocket_errors: int = 0
    websocket_close_timeout: int = 0  # no close frame in answer to ours

    @property
    def published(self) -> int:
        """Application messages accepted from clients, wills and the broker's own."""
        return self.published_runs + self.published_acknowledged + self.published_single

    @property
    def publish_received(self) -> int:
        """PUBLISH packets from clients that were accepted."""
        return self.published - self.wills - self.internal

    @property
    def packets_received(self) -> int:
        """MQTT packets from clients."""
        fast = self.published_runs + self.published_acknowledged + self.packets_acknowledging
        return fast + self.packets_single + self.connects + self.connects_refused

    @property
    def packets_sent(self) -> int:
        """MQTT packets to clients."""
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
        """Return name -> value, sums instead of what is counted apart only because that is
        cheaper."""
        found = {name: value for name, value in asdict(self).items() if name not in _PARTS}
        sums = {
            "published": self.published,
            "packets_received": self.packets_received,
            "packets_sent": self.packets_sent,
            "bytes_sent": self.to_clients.sent,
            "link_bytes_sent": self.to_links.sent,
            "publish_bytes_received": self.publish_bytes_received,
            "publish_bytes_sent": self.publish_bytes_sent,
        }
        return sums | found


_PARTS = frozenset(
    {
        "published_runs",
        "published_acknowledged",
        "published_single",
        "packets_single",
        "packets_acknowledging",
        "answers_single",
        "answers_run",
        "bytes_received_other",
        "to_clients",
        "to_links",
    }
)
