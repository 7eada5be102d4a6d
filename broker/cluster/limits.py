"""Limits of the federation: links, the replay log, what came from other brokers, takeovers, shared
subscriptions, and tables that other brokers fill.
"""

from __future__ import annotations

from mqttree.broker.base.sequence_set import MAX_GAPS, MAX_ORIGINS
from mqttree.broker.core.limits import CoreLimits


class ClusterLimits(CoreLimits, kw_only=True):
    """What a broker keeps to in a federation."""

    # -------------------------------- sessions and their queues

    held_queue_bytes: int = 128 * 1024 * 1024
    """bytes of memory of the queue of one session while publishers elsewhere are held for it,
    instead of `max_queued` and `max_queued_bytes`: what was on its way when they got HOLD must fit
    (queues of links, sockets, a read of each publisher), 170,000 messages of 64 bytes. Those beyond
    are dropped [dropped_queue_full]."""

    held_queues_bytes: int = 512 * 1024 * 1024
    """bytes of memory of all sessions that have more waiting than `max_queued` or
    `max_queued_bytes` [queued_over_limit]."""

    # -------------------------------- publishers that are held for slow subscribers

    hold_max_s: float = 300.0
    """s for which a broker may hold publishers elsewhere without a pause [pause_requests_ignored].
    Its subscribers have taken what waited by then, unless they take less than some tens of messages
    a second; a lying broker must not stop others for ever."""

    # -------------------------------- routes

    redirected_clients: int = 50_000
    """clients of which this broker remembers that it sent them elsewhere, or is about to: 1.5 KB
    each at most. Of more none are sent away [redirects_forgone]."""

    redirect_settle_s: float = 5.0
    """s from a CONNECT until the client is looked at: it has subscribed by then."""

    redirect_quiet_s: float = 60.0
    """s after brokers have come or gone, or the tree has changed, in which no client is sent away:
    rates and filters of all brokers are known again, and clients of a broker that died have
    come."""

    route_cache_origins: int = 256
    """origins whose links are kept with a route, with routing by topic; then they are forgotten. A
    neighbour may make them up."""

    # -------------------------------- retained messages

    retained_listed: int = 1000
    """topics of a leaf of the hash tree that are listed for a neighbour; if there are more, all
    their messages are sent. 15 are usual when there are a million."""

    retained_check_s: float = 60.0
    """s between two comparisons of the retained messages with a neighbour in the tree when nothing
    has happened: 30 bytes each."""

    # -------------------------------- the journal

    journal_backlog_bytes: int = 64 * 1024 * 1024
    """bytes of the journal that wait for the disk; beyond it publishers are not read until half of
    them are written. At four times as much - brokers whose publishers cannot be held,
    acknowledgements - it counts as a disk that does not write [journal_errors]. One frame counts as
    this much at most: it may hold a packet, or a session, that is larger by itself."""

    # -------------------------------- links

    max_links: int = 1024
    """links to other brokers; more are refused [links_refused]."""

    pieces_backlog: int = 1024 * 1024
    """bytes waiting for a link beyond which it takes no more old messages that a broker has asked
    an origin for [routed_dropped]: they are asked for again, and many who ask at once must not fill
    the memory, or keep what is new waiting for long."""

    link_requests: float = 5000.0
    link_requests_per_second: float = 1000.0
    """units of work, a tenth of a millisecond each, that a neighbour may ask for by records at once
    and in a second: a record counts 1 and 1 for each 1,000 bytes, one that makes us go through
    tables 9 more. Repairs need some hundred; beyond it the link is closed [link_garbage]. Walks
    through the log count 1 for each 2,000 entries by themselves, and wait when there is nothing
    left."""

    max_replay: int = 4 * 32 * 1024 * 1024
    """bytes of old messages that a neighbour may have replayed at once, four whole logs, or what
    there is the first time; one log more with every second. What is asked for beyond it waits so
    long. As many of listings, and 4 MiB more with every second."""

    records_per_key: int = 1 << 20
    """records of a link under one key; both ends then take the next one, so all brokers of a
    cluster have the same. 64 GiB at most, far from where AES-GCM begins to say something about what
    it hides (2^36 blocks for a chance of 2^-57)."""

    mark_bytes: int = 1024 * 1024
    """bytes of the log between two marks on one link at least, which the neighbour acknowledges."""

    # -------------------------------- the replay log and its tail

    log_age_s: float = 120.0
    """s; messages older than this are not replayed: a broker that was away longer begins afresh."""

    log_large_bytes: int = 2 * 1024 * 1024
    log_large_s: float = 30.0
    """bytes of a message that pushes nothing out of a full log for so many s, up to `away_logs`
    logs in all (and half of the memory): two of 20 MB had pushed out all else in a tenth of a
    second, and a neighbour that got its messages another way from then on lacked what was still on
    its old one."""

    log_old: int = 25_000
    """entries of the log that go in one turn, once a second, as they are old: 20 ms. A batch counts
    as its messages while some broker has to be told of each."""

    log_piece: int = 1000
    """entries of the log that are looked at, or handed out, at a time."""

    hold_log_bytes: int = 8 * 1024 * 1024
    """bytes beyond `log_bytes`, kept for neighbours that have not acknowledged them, from which on
    publishers are held back."""

    log_kept_bytes: int = 512 * 1024 * 1024
    """bytes of the log with what is kept for neighbours, as `link_kept_bytes` and mostly the same
    bytes; of more the oldest are dropped [replay_log_trimmed]. What a neighbour still needed of
    them is lost, said and counted [replay_log_lost]."""

    absent_max_s: float = 3600.0
    """s after which an absent broker is taken to stay away."""

    # -------------------------------- what came from other brokers

    max_gaps: int = MAX_GAPS
    """holes remembered in the sequence of one origin; the oldest is given up (those messages count
    as seen) [gaps_forgotten]. Not more than a record can tell a neighbour."""

    max_origins: int = MAX_ORIGINS
    """origins (broker, boot) whose sequence is remembered; the one unheard for longest goes first.
    Four times the members, and not more than a neighbour takes."""

    max_ranges: int = 1_000_000
    """ranges of numbers of all origins that were not here, 120 bytes each; origins may be made up.
    The oldest go [gaps_forgotten]."""

    max_starts: int = 10_000
    """different moments of the last `log_age_s` at which subscriptions were made, with the position
    of each origin. Beyond, the oldest are forgotten: what was published before those may be
    delivered to them."""

    hold_feed: int = 10_000
    """messages of one broker that wait for what is missing before them, from which on their
    publishers are held at that broker: a repair of a tenth of a second at 100,000 a second holds no
    publisher."""

    held_feeds_bytes: int = 128 * 1024 * 1024
    """bytes of the batches of `hold_feed`, and `costs.HELD_MEMORY` each, beyond which what comes
    is not taken, but asked for again when there is room [ordered_feed_full]: four times what a
    neighbour can replay from its log."""

    release_step: int = 500
    """messages of a feed that are delivered in one step, each counted once for every session that
    gets it: about 5 ms of work if they come one by one, less in runs."""

    # -------------------------------- sessions that move between brokers

    session_written: int = 1_000
    """subscriptions of a session that are encoded, or noted, at a time: about a ms."""

    session_read: int = 250
    """subscriptions or messages of a session that are decoded, and messages that are put into it,
    at a time: about a ms."""

    max_left: int = 10_000
    """clients that left other brokers in the last seconds, 200 bytes each; of more, the oldest are
    forgotten: a client of these that comes here may get again what is on its way."""

    max_repeats: int = 1000
    """sessions that alone are owed messages of an origin; of more, some do not get them
    [session_takeovers_uncertain]. They are looked through for each such message: some 0.1 ms."""

    # -------------------------------- shared subscriptions

    max_assigned: int = 10_000
    """messages for members of shared subscriptions at one other broker that are kept until the
    members have acknowledged them: as much as may wait for a session. With half of it publishers
    wait, as for a slow subscriber. Of those beyond it, what is at a broker that dies is lost
    [shared_untracked]."""

    max_held_shared: int = 40_000
    """QoS 2 messages of all other brokers that wait until members of shared subscriptions here have
    room: as much as four brokers may have here. More are given back [shared_declined]."""

    groups_at_once: int = 500
    """groups that a broker posts in one moment and that are handled at once; the others follow in
    steps, and the withdrawn ones behind them: until then a message for one of them goes to other
    members, or is given late."""

    groups_step: int = 400
    groups_interval_s: float = 0.005
    """of these in one step, some 2 ms of work, and s between two steps."""

    groups_noted: int = 500
    """filters of a session that are looked at in one step when it connects or disconnects."""

    # -------------------------------- tables that other brokers fill

    listing_reserved: int = 300_000
    """of these, entries that sessions and shared subscriptions of clients cannot take: filters
    (`max_interests`), links and the tree have to be posted, or no broker would find this one
    [sessions_unannounced, groups_refused]."""

    listing_changes: int = 5_000
    listing_sessions: int = 1_000
    """entries that a broker posts in one moment beyond which sessions, filters and groups are
    handled in steps; sessions of one step, 2 ms of work."""

    interest_step: int = 500
    """steps of work (some 5 us each) at a time on posting filters, and filters of another broker
    that are handled at a time: a filter may cover a hundred thousand others, and all brokers have
    to hear of each. No message waits for that."""

    interest_at_once: int = 1000
    """filters that a broker posts in one moment and that are handled at once; the others follow in
    steps, and the broker gets everything until then."""

    interest_changes: int = 100_000
    """posted filters that wait to be handled; if there are more, the oldest are handled at once."""

    suback_wait_s: float = 5.0
    """s for which a SUBACK waits at most until all brokers know of the subscription: longer than it
    takes to find that a broker hangs (link_timeout) and to repair the tree
    [subscriptions_unconfirmed]."""

    suback_waves: float = 2000.0
    """questions whether all brokers know, a second, that all brokers together send, about: each
    crosses every link of the tree twice, and a link takes so many records besides all others
    (`link_requests_per_second`)."""

    max_interests: int = 250_000
    """filters that clients of one broker want, with routing by interest. Every other broker keeps
    each, some 600 bytes; of more it gets `#` instead [interest_widened], until half as many are
    left."""

    told_filters_memory: int = 256 * 1024 * 1024
    all_filters_memory: int = 1024 * 1024 * 1024
    told_groups_memory: int = 256 * 1024 * 1024
    """bytes of memory of the filters that another broker posts, and that all others do:
    `max_interests` usual ones are 150 MiB. A broker that posts more gets everything, as if it had
    asked for `#`, until it has been away [interest_widened]. And of shared subscriptions that
    others post, 200,000 or so; of more, members get what is published at their own broker alone
    [groups_refused]."""

    advertised_memory: int = 32 * 1024 * 1024
    """bytes of the topics and filters that one neighbour tells, with routing by srt: 50,000 or so
    in all. Those of the clients here have as much. What is beyond does not get into the tables:
    such messages do not leave this broker, or do not reach such subscribers
    [advertisements_refused]."""

    advertised_s: float = 600.0
    """s; a topic that was not published to for so long, and up to twice as long, is withdrawn, with
    routing by srt, and its broker leaves its overlay, with routing by ort. A client that publishes
    once in ten minutes is advertised all the time."""

    max_topic_overlays: int = 4096
    """topics with an overlay at one broker, with routing by ort: some 2 KB each, and a topic
    PINGREQ of some 80 bytes to each neighbour each half second. Messages to others do not leave
    their broker [overlays_refused]."""

    max_overlay_brokers: int = 256
    max_overlay_links: int = 8192
    """other brokers, and links between all of them, with which messages take the shortest paths
    with routing by topic; with more they keep to the spanning tree. To find the paths of all
    origins again takes time with the square of the brokers, a third of a second with 200 of them;
    and brokers and links are what others post: they may be made up."""

    def __post_init__(self) -> None:
        """Check what other brokers have a limit for, too: they would not ask for messages in holes
        that a record leaves out, and close a link that names more origins.

        Raises:
            ValueError: one line that names the limit.
        """
        for name, value, most in (
            ("max_gaps", self.max_gaps, MAX_GAPS),
            ("max_origins", self.max_origins, MAX_ORIGINS),
        ):
            if not 1 <= value <= most:
                raise ValueError(
                    f"limits: {name}: {value} is not between 1 and {most}, as other brokers take"
                    " no more"
                )
