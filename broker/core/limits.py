"""Limits of one broker: its clients, sessions, routes and retained messages."""

from __future__ import annotations

from mqttree.broker.auth.limits import AuthLimits


class CoreLimits(AuthLimits, kw_only=True):
    """What one broker keeps to."""

    # -------------------------------- clients: their connections and packets

    max_connect_size: int = 512 * 1024
    """bytes; the largest CONNECT that makes sense (five 64 KiB strings and properties). An
    unauthenticated peer must not make us hold more than this [malformed]."""

    linger_s: float = 1.0
    """s; from our last packet after an error until the connection is fully closed. A peer that
    is still sending would lose that packet to the reset with which the kernel answers bytes that
    are not read."""

    client_backlog_bytes: int = 64 * 1024 * 1024
    """bytes; waiting for a client that reads too slowly, beyond what the transport holds. QoS 0
    beyond it is dropped [dropped_slow_consumer]; a client whose acknowledgements alone exceed twice
    this is closed [slow_consumer_closed], and so is one for which more than this waits for the
    journal, the largest piece aside."""

    max_inflight: int = 1024
    """QoS 1 and 2 messages unacknowledged by a client that announced no Receive Maximum (3.1.1).
    Mosquitto says 20; more keeps fast clients busy over any RTT, and small devices acknowledge
    before they read on."""

    filters_at_once: int = 250
    """filters of one packet, or of a session that ends, that are handled in one turn: 65,536 of
    them take most of a second."""

    max_subscriptions: int = 100_000
    """subscriptions of one session; more are refused with 0x97 (0x80 in 3.1.1)
    [subscriptions_refused]."""

    max_filters_memory: int = 256 * 1024 * 1024
    """bytes of memory of all filters of one session: `max_subscriptions` of 40 characters with
    wildcards and six levels. As many of 60 KB, or with 200 levels that no other filter has, would
    take gigabytes; as above [subscriptions_refused]."""

    plugin_backlog_bytes: int = 64 * 1024
    """bytes read ahead from a client whose packet waits for a plugin; then it is not read any
    more."""

    max_ended: int = 1_000
    """clients that have gone while an answer about what they sent is awaited (a password check, a
    session from another broker, a plugin); it still counts. Of more at a time, the rest of their
    packets is dropped with the connection: slow answers and clients that come and go must not fill
    the memory."""

    password_checks: int = 1000
    """clients whose password waits to be checked, at 20 ms each: a client that comes then would
    wait longer than clients do, and is refused as busy (0x89) [connects_refused]."""

    permitted_topics: int = 4096
    """topics of one client for which the rules have said yes and are not asked again; then they are
    forgotten. 150 bytes each."""

    # -------------------------------- sessions and their queues

    max_sessions: int = 1_000_000
    """sessions kept for clients that are away; more are refused with 0x97 (3 in 3.1.1)
    [sessions_refused]."""

    max_queued: int = 10_000
    """QoS 1 and 2 messages waiting for one session beyond the window. The newest is dropped
    [dropped_queue_full]."""

    max_queued_bytes: int = 64 * 1024 * 1024
    """bytes of payload waiting for one session, as `max_queued`."""

    max_missed: int = 1_000
    """QoS 0 messages kept for one client that is away. Those after them are dropped, as all are for
    every absent client elsewhere: no client may rely on them, and a fast publisher must not fill
    the memory. Not counted."""

    sys_sessions: int = 20_000
    """sessions whose waiting messages $SYS adds up: a walk of some milliseconds every interval.
    With more: the retained alone."""

    # -------------------------------- publishers that are held for slow subscribers

    hold_backlog_bytes: int = 1024 * 1024
    """bytes; once a subscriber is behind by this, its publishers are not read for `HOLD_TIMEOUT_S`:
    TCP slows a fast publisher down, and no message is dropped. Small enough that hundreds of slow
    subscribers fit into memory."""

    hold_queued: int = 5_000
    """messages queued for a *connected* session at which its QoS 1 and 2 publishers are held back
    like above."""

    hold_queued_bytes: int = 16 * 1024 * 1024
    """bytes of these: large messages fill `max_queued_bytes` long before they are many."""

    # -------------------------------- routes

    route_cache: int = 65_536
    """topics whose route is kept; the cache is emptied when it is full (a publisher of ever new
    topics must not grow it)."""

    counted_topics: int = 100_000
    """topics of which is known how often they are published to: 200 bytes each. Of more, those that
    are published to rarely are forgotten."""

    route_cache_deliveries: int = 4_000_000
    """receivers in all kept routes together, of routes that topics share once; as `route_cache`
    (many topics times many subscribers)."""

    changed_filters: int = 1_024
    """filters with wildcards that change before all routes are forgotten, instead of those that
    match: to look a topic up in these costs as much as to find its route."""

    routes_aged: int = 4_096
    """routes that are forgotten each second of those that have not been used since a filter with
    wildcards changed: they may hold sessions that have ended."""

    interned_receivers: int = 4096
    """different sets of receivers shared by cached routes; then the cache is emptied (every
    subscription change can make one)."""

    # -------------------------------- retained messages

    max_retained: int = 1_000_000
    """retained messages; more are not retained [retained_refused]."""

    max_tombstones: int = 100_000
    """deleted and expired retained topics whose time is remembered, some 300 bytes each. Of more
    the oldest are forgotten: a broker that was cut off meanwhile may bring their messages back
    [retained_tombstones_forgotten]."""

    # -------------------------------- turns of the event loop, memory, the process

    memory_step: int = 150
    """sessions and connections that are counted in one turn of the loop, as the count of memory
    goes on: about a tenth of a millisecond."""

    # -------------------------------- links

    link_backlog_bytes: int = 32 * 1024 * 1024
    """bytes; waiting for a link. QoS 0 messages beyond it are dropped [dropped_link]."""

    link_kept_bytes: int = 512 * 1024 * 1024
    """bytes; waiting for a link, with QoS 1, QoS 2 and retained messages. Beyond it the link leaves
    the live stream and is replayed from the log when it drained. Publishers are held long before
    (`hold_link_bytes`): what is beyond that was on its way, two messages of 256 MiB, or is of
    brokers that do not hold theirs."""

    hold_link_bytes: int = 8 * 1024 * 1024
    """bytes waiting for a link from which on publishers at QoS 1 or 2 are held back until all of
    them have gone out, as long as the link lives. What is on its way comes on top. Half a second's
    worth of 128 Mbit/s, so that a fast link never runs empty."""
