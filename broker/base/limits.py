"""Every limit of the broker, with its reason.

What happens at each limit is said beside it and counted under the name given in brackets. A `Node`
is handed its own (docs/decisions/0039); what is given at the start is in `mqttree.broker.config`,
what things cost in `mqttree.broker.base.costs`, and what both ends of a protocol agree on is a
constant of the module that speaks it.
"""

from __future__ import annotations

from mqttree.broker.base.record import Record
from mqttree.broker.base.sequence_set import MAX_GAPS, MAX_ORIGINS
from mqttree.broker.wire.constants import MAX_PACKET_SIZE


class Limits(Record, kw_only=True):
    """What one broker keeps to. Several fields in a row share the text below the last of them."""

    # -------------------------------- clients: their connections and packets

    max_connect_size: int = 512 * 1024
    """bytes; the largest CONNECT that makes sense (five 64 KiB strings and properties). An
    unauthenticated peer must not make us hold more than this [malformed]."""

    close_time: float = 5.0
    """s; from our decision to close until a peer that does not read its last packets is cut off."""

    linger: float = 1.0
    """s; from our last packet after an error until the connection is fully closed. A peer that
    is still sending would lose that packet to the reset with which the kernel answers bytes that
    are not read."""

    client_backlog_bytes: int = 64 * 1024 * 1024
    """bytes; waiting for a client that reads too slowly, beyond what the transport holds. QoS 0
    beyond it is dropped [dropped_slow_consumer]; a client whose acknowledgements alone exceed twice
    this is closed [slow_consumer_closed], and so is one for which more than this waits for the
    journal, the largest piece aside."""

    bridge_reads: int = 64
    bridge_probe_first: float = 1.0
    bridge_probe_longest: float = 300.0
    """A bridge of another broker that was read so often is probed for a ring, a second after the
    last bridge came at the earliest and then in intervals (s) that double up to the last of these:
    a ring reads as fast as the network goes, and subscribers of `#` there see each probe
    [bridge_loops]."""

    max_inflight: int = 1024
    """QoS 1 and 2 messages unacknowledged by a client that announced no Receive Maximum (3.1.1).
    Mosquitto says 20; more keeps fast clients busy over any RTT, and small devices acknowledge
    before they read on."""

    max_topic_levels: int = 201
    """levels of a topic or filter, 200 slashes between them as with Mosquitto: a 64 KiB filter of
    single characters would make 32,768 trie nodes. Deeper topics close the connection (0x90)
    [protocol_errors], deeper filters are refused (0x8F; 0x80 before MQTT 5)
    [subscriptions_refused]."""

    max_filters_size: int = 1280 * 1024
    """bytes of a SUBSCRIBE or UNSUBSCRIBE, 40,000 filters of 30 characters, or all that one session
    may have of 10. Larger: 0x95 and close [protocol_errors]; a client that wants more filters sends
    several."""

    decoded_at_once: int = 20 * 1024
    """bytes of one that are decoded in one turn, 5,000 filters of one character; of a larger one so
    many filters."""

    filters_at_once: int = 250
    """filters of one packet, or of a session that ends, that are handled in one turn: 65,536 of
    them take most of a second."""

    retained_at_once: int = 1000
    """steps of the search for retained messages that new subscriptions get, in one turn: a filter
    may look through a million."""

    max_subscriptions: int = 100_000
    """subscriptions of one session; more are refused with 0x97 (0x80 in 3.1.1)
    [subscriptions_refused]."""

    max_filters_memory: int = 256 * 1024 * 1024
    """bytes of memory of all filters of one session: `max_subscriptions` of 40 characters with
    wildcards and six levels. As many of 60 KB, or with 200 levels that no other filter has, would
    take gigabytes; as above [subscriptions_refused]."""

    max_forms: int = 128
    """placements of wildcards, as `a/+/#` is one with all filters that differ in words alone, among
    the subscriptions of one session, each group of shared subscriptions by itself: as many of its
    filters match one topic at most, and each costs every message of a new topic a microsecond, at
    every broker. More are refused with 0x97 (0x80 in 3.1.1) [subscriptions_refused]. Filters that
    differ in words may be `max_subscriptions`, and hardly any client has ten placements."""

    takeover_quiet: float = 1.0
    takeover_longest: float = 5.0
    """s; for which a new connection of a client waits until what came on its old one is handled,
    without and with progress there. Only a plugin, a slow subscriber or a peer that never stops
    sending makes that longer than a turn of the loop; and clients wait some seconds for CONNACK.
    What is left then is lost with the old connection; it was not acknowledged [takeover_unread]."""

    max_successors: int = 16
    """connections of one client that wait so, in line; one more is refused as busy (0x89)
    [connects_refused]."""

    plugin_backlog_bytes: int = 64 * 1024
    """bytes read ahead from a client whose packet waits for a plugin; then it is not read any
    more."""

    max_ended: int = 1_000
    """clients that have gone while a plugin is asked about what they sent, which still counts. Of
    more at a time, the rest of their packets is dropped with the connection: slow plugins and
    clients that come and go must not fill the memory."""

    plugin_calls: int = 5_000
    """calls of plugins' event methods under way; beyond it the clients that cause more are not read
    until half of them have ended. A plugin that takes longer than messages take to come would fill
    the memory."""

    max_parked: int = 4096
    """connections of one listener that wait for a place; more are closed. Each costs a socket and
    nothing else."""

    plugin_answer: float = 30.0
    """s; for plugins to answer a question. Who asked waits that long at most, then it counts as a
    no [plugin_errors]: longer than a slow directory takes, about as long as clients wait for their
    CONNACK."""

    authentication_time: float = 10.0
    """s; for a client that authenticates again to come to an end; as late as for CONNECT, it is
    closed then [authentication_failed]."""

    password_checks: int = 1000
    """clients whose password waits to be checked, at 20 ms each: a client that comes then would
    wait longer than clients do, and is refused as busy (0x89) [connects_refused]."""

    passwords_known: int = 10_000
    """user names and passwords (as a keyed digest) that were right lately, so that thousands of
    clients that come back at once need not wait for argon2; then they are forgotten."""

    permitted_topics: int = 4096
    """topics of one client for which the rules have said yes and are not asked again; then they are
    forgotten. 150 bytes each."""

    rule_groups: int = 10_000
    """combinations of rules about one client that are kept as one object for all to whom they
    apply; then they are forgotten, and clients that come later have another one."""

    max_rules: int = 100_000
    """rules of a rules file; more are an error at the start: each is some hundred bytes, and a file
    of 1 MiB has fewer."""

    proxy_timeout: float = 5.0
    """s; from accept to the end of the PROXY header, which balancers send at once. Later: closed
    [proxy_garbage]."""

    # -------------------------------- sessions and their queues

    max_sessions: int = 1_000_000
    """sessions kept for clients that are away; more are refused with 0x97 (3 in 3.1.1)
    [sessions_refused]."""

    max_queued: int = 10_000
    """QoS 1 and 2 messages waiting for one session beyond the window. The newest is dropped
    [dropped_queue_full]."""

    max_queued_bytes: int = 64 * 1024 * 1024
    """bytes of payload waiting for one session, as above."""

    max_missed: int = 1_000
    """QoS 0 messages kept for one client that is away. Those after them are dropped, as all are for
    every absent client elsewhere: no client may rely on them, and a fast publisher must not fill
    the memory. Not counted."""

    max_missed_bytes: int = 1024 * 1024
    """bytes of these."""

    held_queue_bytes: int = 128 * 1024 * 1024
    """bytes of memory of the queue of one session while publishers elsewhere are held for it,
    instead of `max_queued` and `max_queued_bytes`: what was on its way when they got HOLD must fit
    (queues of links, sockets, a read of each publisher), 170,000 messages of 64 bytes. Those beyond
    are dropped [dropped_queue_full]."""

    held_queues_bytes: int = 512 * 1024 * 1024
    """bytes of memory of all sessions that have more waiting than `max_queued` or
    `max_queued_bytes` [queued_over_limit]."""

    sys_sessions: int = 20_000
    """sessions whose waiting messages $SYS adds up: a walk of some milliseconds every interval.
    With more: the retained alone."""

    # -------------------------------- publishers that are held for slow subscribers

    hold_backlog_bytes: int = 1024 * 1024
    """bytes; once a subscriber is behind by this, its publishers are not read for `hold_time`, so
    that a fast publisher is slowed down by TCP rather than its messages dropped. Small enough that
    hundreds of slow subscribers fit into memory."""

    hold_time: float = 0.5
    """s; longest time without progress for which one slow subscriber may hold back its publishers;
    after it the subscriber is `stalled` and holds back no publisher until it has caught up (others
    must not suffer)."""

    hold_look: float = 0.02
    """s after which a subscriber without progress is looked at once more: this broker may have been
    stopped, or without a processor, and what the subscriber sent meanwhile is read by then. A
    broker that is as late as that for this look, too, looks again, five times at most."""

    hold_queued: int = 5_000
    """messages queued for a *connected* session at which its QoS 1 and 2 publishers are held back
    like above."""

    hold_queued_bytes: int = 16 * 1024 * 1024
    """bytes of these: large messages fill `max_queued_bytes` long before they are many."""

    hold_pace: float = 0.02
    """s between two different things that one broker tells another about whom to hold; the first
    goes at once."""

    hold_repeat: float = 0.2
    """s after which they are repeated; valid for two and a half times as long, so that a broker
    that hangs holds no publisher for longer than a slow client would (`hold_time`). Each is the
    longer the more brokers get HOLD."""

    holds_per_second: float = 250.0
    """that one broker sends, about; links on the way take thousands a second
    (`link_requests_per_second`)."""

    hold_known: int = 4096
    """topics of which a broker that is asked remembers whether they match; then they are matched
    again."""

    hold_longest: float = 300.0
    """s for which a broker may hold publishers elsewhere without a pause [pause_requests_ignored].
    Its subscribers have taken what waited by then, unless they take less than some tens of messages
    a second; a lying broker must not stop others for ever."""

    # -------------------------------- routes

    route_cache: int = 65_536
    """topics whose route is kept; the cache is emptied when it is full (a publisher of ever new
    topics must not grow it)."""

    route_cache_topic: int = 512
    """bytes; the routes of longer topics are not kept: 65,536 topics of 64 KiB each would be 4
    GiB."""

    counted_topics: int = 100_000
    """topics of which is known how often they are published to: 200 bytes each. Of more, those that
    are published to rarely are forgotten."""

    redirected_clients: int = 50_000
    """clients of which this broker remembers that it sent them elsewhere, or is about to: 1.5 KB
    each at most. Of more none are sent away [redirects_forgone]."""

    redirect_settle: float = 5.0
    """s from a CONNECT until the client is looked at: it has subscribed by then."""

    redirect_quiet: float = 60.0
    """s after brokers have come or gone, or the tree has changed, in which nobody is sent away:
    rates and filters of all brokers are known again, and clients of a broker that died have
    come."""

    route_cache_deliveries: int = 4_000_000
    """receivers in all kept routes together, of routes that topics share once; as above (many
    topics times many subscribers)."""

    changed_filters: int = 1_024
    """filters with wildcards that change before all routes are forgotten, instead of those that
    match: to look a topic up in these costs as much as to find its route."""

    routes_aged: int = 4_096
    """routes that are forgotten each second of those that have not been used since a filter with
    wildcards changed: they may hold sessions that have ended."""

    route_cache_origins: int = 256
    """origins whose links are kept with a route, with routing by topic; then they are forgotten. A
    neighbour may make them up."""

    interned_receivers: int = 4096
    """different sets of receivers shared by cached routes; then the cache is emptied (every
    subscription change can make one)."""

    # -------------------------------- retained messages

    max_retained: int = 1_000_000
    """retained messages; more are not retained [retained_refused]."""

    max_retained_bytes: int = 1024 * 1024 * 1024
    """bytes of retained messages; as above."""

    retained_listed: int = 1000
    """topics of a leaf of the hash tree that are listed for a neighbour; if there are more, all
    their messages are sent. 15 are usual when there are a million."""

    max_tombstones: int = 100_000
    """deleted and expired retained topics whose time is remembered, some 300 bytes each. Of more
    the oldest are forgotten: a broker that was cut off meanwhile may bring their messages back
    [retained_tombstones_forgotten]."""

    tombstone_age: float = 86_400.0
    """s; as long they are remembered: a broker that was away for a night, or a day's journey, does
    not bring back what is deleted."""

    clock_ahead: float = 300.0
    """s; times of a neighbour that are further ahead of our time of day decide about their topics,
    but our clock stays [retained_clock_ahead]. Clocks that are not set drift by less in a
    year."""

    retained_check: float = 60.0
    """s between two comparisons of the retained messages with a neighbour in the tree when nothing
    has happened: 30 bytes each."""

    retained_pace: float = 0.005
    retained_items: int = 200
    retained_bytes: int = 256 * 1024
    retained_records: int = 2048
    """s between two steps of a comparison with one neighbour, twice as much behind one with
    records, and what one step sends: messages, bytes of these, bytes of records. A step is some ms
    of work for either, so that clients hardly wait for it; records stay below half of the
    neighbour's `link_requests_per_second`."""

    retained_steps: int = 2
    """steps with messages that are on their way: the next one waits until the neighbour has handled
    all but one of them. One that is slow, or serves much else, has no more of them to handle in one
    go."""

    retained_jobs: int = 70_000
    """parts of the table of retained messages that wait to be compared with one neighbour: there
    are 65,792, and each waits once; no more are noted [retained_dropped]. The next comparison finds
    what is left."""

    retained_again: float = 600.0
    """s; a broker that had no room for a retained message of a neighbour asks for nothing more for
    so long: it would be refused again."""

    # -------------------------------- turns of the event loop, memory, the process

    turn_time: float = 0.005
    """s; a read whose handling took longer is the connection's last in this turn of the event loop:
    a burst of many small messages from one publisher must not keep the others, links and timers
    waiting."""

    turn_work: int = 10_000
    """steps of work of about a microsecond that one turn of the event loop does by what costs more
    than its bytes: topics without a route, packets that no run takes. Who goes beyond is not read
    for the rest of the turn, nothing is lost [turns_cut]. Half of `turn_long`, also on a machine
    that is half as fast."""

    turn_long: float = 0.05
    """s; a turn of the event loop that took longer is counted [turns_long]: clients notice it."""

    memory_step: int = 150
    """sessions and connections that are counted in one turn of the loop, as the count of memory
    goes on: about a tenth of a millisecond."""

    memory_heavy: int = 64 * 1024
    """bytes that wait for a session or connection from which on it may be ended when memory is
    short."""

    memory_shed: int = 50
    """sessions, and connections, that are ended in one turn for that."""

    collector: tuple[int, int, int] = (30_000, 1, 100_000_000)
    """objects, rounds, rounds; when the garbage collector looks through what is new, what was new
    in the last rounds, and everything. Below 30,000 it comes while a burst of messages is under
    way, finds each of them alive and looks again later: at 90,000 messages a second over a link an
    eighth of the broker's time, now a thirtieth. A look takes up to 25 ms with a full log.
    Everything takes a second: not in months, as it finds nothing (decision 30). What comes by
    `collect` counts as a round, ten a second."""

    collect: float = 0.1
    """s between two times that the garbage collector looks through new objects; some ms. By
    itself it comes when 30,000 objects more were made than went; where messages in the log, and
    routes, make room for as many new ones that is not before it has 300,000 to look through: 170
    ms."""

    admin_connections: int = 64
    """connections of the admin port; one more ends the oldest of the host that has most of them, an
    idle one first."""

    admin_header_timeout: float = 5.0
    """s; from the first byte of a request to the admin port to its end; slower: 408."""

    admin_idle_timeout: float = 60.0
    """s; between two requests of a connection of the admin port; a scraper comes back within a
    minute."""

    admin_readers: int = 32
    """connections of the admin port that read events; one more is refused with 503 (a dashboard
    then asks every few seconds instead), so that requests find room."""

    admin_searches: int = 4
    """searches of the admin port at a time, through clients or topics; more are refused with 429.
    Each takes a third of the processor at most."""

    clock_period: float = 60.0
    """s; after which the node is given the time of day again, as clocks are set, and drift from the
    monotonic one; and what this machine has available."""

    # -------------------------------- lines of the log file

    log_pause: float = 60.0
    """s in which one line is logged of each cause and host that peers bring about; the others are
    counted [log_lines_suppressed]."""

    log_sources: int = 1024
    """pairs of cause and host that the log's limit distinguishes, 300 bytes each; further hosts
    count as one for each cause."""

    log_causes: int = 20
    """causes of one host that the log's limit distinguishes: what is wrong with a packet is one
    each, and a peer can make many up."""

    log_links: int = 20
    """lines about links that come up or go down, for each host and `log_pause`: some tens of
    brokers may run on one machine."""

    # -------------------------------- the journal

    journal_backlog_bytes: int = 64 * 1024 * 1024
    """bytes of the journal that wait for the disk; beyond it publishers are not read until half of
    them are written. At four times as much - brokers whose publishers cannot be held,
    acknowledgements - it counts as a disk that does not write [journal_errors]. One frame counts as
    this much at most: it may hold a packet, or a session, that is larger by itself."""

    journal_damaged: int = 4
    """damaged files of the journal that are put aside; each may be as large as all that is kept,
    and a bad disk damages many."""

    journal_beat: float = 20.0
    """s between two frames at most while a broker keeps sessions, though it is idle: as well is it
    known how long its clients were connected when it is killed. Sessions live, and delayed wills
    wait, this much longer at most."""

    journal_frame_bytes: int = 1024 * 1024 * 1024
    """bytes of a frame of the journal; more is split [journal_frames_split]. With one record more
    (a packet has 256 MiB) it can be read."""

    journal_flush: float = 1.0
    """s between two times that what was written is put on the disk, by a broker that does not wait
    for the disk before it acknowledges."""

    journal_at_once_bytes: int = 256 * 1024
    """bytes of a frame that the event loop writes itself, without `sync`; larger ones, and all
    while data are put on the disk, are handed to a thread."""

    journal_at_once_time: float = 0.002
    journal_at_once_pause: float = 50.0
    """s; a write by the event loop that took longer says that the disk is busy: the thread writes
    all frames for so many times as long. The loop waits for a busy disk for 2 % of its time at
    most."""

    journal_linger: float = 0.01
    """s; PUBACK and PUBCOMP of receivers, which nothing waits for, are written with the next frame,
    so much later at the latest. If the broker is killed before, it repeats these messages as if the
    acknowledgements had not come."""

    journal_smallest: int = 32 * 1024 * 1024
    """bytes that a journal has before a snapshot shortens it: a smaller one is read in a moment."""

    snapshot_step_bytes: int = 128 * 1024
    snapshot_step_items: int = 400
    """bytes and items of one step of a snapshot, about a ms of work. A session is never cut, but
    its messages are recorded before it."""

    snapshot_ahead: int = 8 * 1024 * 1024
    """bytes on their way to the disk with which a snapshot waits; so publishers are held earlier
    while there is one."""

    # -------------------------------- links

    max_links: int = 1024
    """links to other brokers; more are refused [links_refused]."""

    full_mesh: int = 8
    """other brokers to each of which there is a link. Of more, 2 * log2(n) are chosen
    (neighbour_selection.py): a link costs both ends a refresh of the tree twice a second, and 200
    brokers would keep 19,900."""

    dial_timeout: float = 3.0
    """s; for a link's TCP connection to stand."""

    max_handshakes: int = 256
    """callers that have not proven yet that they are brokers; the oldest makes room
    [links_refused]. A broker is done in two round trips: a federation of hundreds that starts at
    once gets through, and so it does past callers that send nothing."""

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

    gossip_pause: float = 0.05
    """s between two lists of members to one neighbour: newcomers are sent at once, a flood of them
    in one piece."""

    seen_pause: float = 0.05
    """s between two reports to one neighbour of what has been here: one is enough for a repair, and
    a broker that makes the tree change all the time must not have all others do nothing but
    report."""

    topology_changes: int = 10
    """publications of $TC a second; beyond it only the newest, a little later: no subscriber can
    use more."""

    # -------------------------------- the replay log and its tail

    log_bytes: int = 32 * 1024 * 1024
    """bytes of QoS 1 and 2 messages kept for replay to neighbours after a repair; the oldest go
    first [replay_log_trimmed], but not before each neighbour that is linked has acknowledged them,
    or is not owed them."""

    log_age: float = 120.0
    """s; messages older than this are not replayed: a broker that was away longer begins afresh."""

    log_large: int = 2 * 1024 * 1024
    log_large_time: float = 30.0
    """bytes of a message that pushes nothing out of a full log for so many s, up to `away_logs`
    logs in all (and half of the memory): two of 20 MB had pushed out all else in a tenth of a
    second, and a neighbour that got its messages another way from then on lacked what was still on
    its old one."""

    log_old: int = 25_000
    """entries of the log that go in one turn, once a second, as they are old: 20 ms. A batch counts
    as its messages while somebody has to be told of each."""

    log_piece: int = 1000
    """entries of the log that are looked at, or handed out, at a time."""

    hold_log_bytes: int = 8 * 1024 * 1024
    """bytes beyond `log_bytes`, kept for neighbours that have not acknowledged them, from which on
    publishers are held back."""

    log_kept_bytes: int = 512 * 1024 * 1024
    """bytes of the log with what is kept for neighbours, as `link_kept_bytes` and mostly the same
    bytes; of more the oldest are dropped [replay_log_trimmed]. What a neighbour still needed of
    them is lost, said and counted [replay_log_lost]."""

    spared_bytes: int = 128 * 1024 * 1024
    """bytes of entries that were trimmed from the log and are pinned for sessions on their way: of
    one, `max_queued_bytes` may wait and twice that be in the log while it moves; and as many for
    shared subscriptions just known. The oldest go first [replay_log_reserve_full]."""

    unlogged_bytes: int = 16 * 1024 * 1024
    """bytes of numbers of QoS 2 messages that wait for clients that are away and have left the log:
    of five sessions with full queues whose messages came one by one, of a hundred that got runs.
    The oldest go first [queued_unnumbered]."""

    parted_time: float = 5.0
    """s for which the log is kept for a broker whose link broke, or that is back: by then it has
    found another way, and asked. Longer, but not for more than `repair_time`, while it goes on
    asking."""

    away_logs: int = 4
    """logs of messages that are kept for that time for brokers that cannot be reached any more,
    while no publisher is held for them: a link that breaks is there again after half a second, and
    what was on its way may be more than a log. Of more the oldest go [replay_log_trimmed]."""

    repair_time: float = 30.0
    """s; for a neighbour to say what it has before the log keeps nothing for it: a repair takes
    less than one, but its records may come behind a large message on a slow link."""

    cut_time: float = 5.0
    """s for which messages of other brokers that come after a link was lost are kept for those
    behind it: until these have heard of it, and keep them themselves."""

    absent_brokers: int = 256
    absent_filters: int = 10_000
    absent_ranges: int = 4096
    absent_time: float = 3600.0
    absent_back: float = 5.0
    """brokers that are away and for which it is counted what they lose; filters of one, more count
    as everything; ranges of numbers that are distinguished, so that what it has got elsewhere does
    not count; s after which it is taken to stay away, and for which one that is back may say what
    it lacks."""

    tail_back: float = 60.0
    """s; the same for one for which there is something in the log's tail, from its last question
    on: a broker that asks for a piece lets its subscribers have it first, and these may be slow."""

    tail_segment_bytes: int = 16 * 1024 * 1024
    """bytes of one file of it, about; an eighth of the tail at most."""

    tail_frame_bytes: int = 256 * 1024
    """bytes that are written, and read, at a time, about: as much as an answer to a question
    brings."""

    # -------------------------------- what came from other brokers

    max_gaps: int = MAX_GAPS
    """holes remembered in the sequence of one origin; the oldest is given up (those messages count
    as seen) [gaps_forgotten]. Not more than a record can tell a neighbour."""

    max_origins: int = MAX_ORIGINS
    """origins (broker, boot) whose sequence is remembered; the one unheard for longest goes first.
    Four times the members, and not more than a neighbour takes."""

    max_quiet_origins: int = 1024
    """of these, origins of which nothing was heard lately; of more that a neighbour tells us we
    take no note, before they publish. It may make them up, and must not fill the table of the whole
    federation."""

    max_ranges: int = 1_000_000
    """ranges of numbers of all origins that were not here, 120 bytes each; origins may be made up.
    The oldest go [gaps_forgotten]."""

    max_starts: int = 10_000
    """different moments of the last `log_age` at which subscriptions were made, with the position
    of each origin. Beyond, the oldest are forgotten: what was published before those may be
    delivered to them."""

    hold_feed: int = 10_000
    """messages of one broker that wait for what is missing before them, from which on their
    publishers are held at that broker: a repair of a tenth of a second at 100,000 a second holds no
    publisher."""

    hold_feeds_bytes: int = 8 * 1024 * 1024
    """bytes of these, of all brokers together; as much as of a link (`hold_link_bytes`)."""

    held_feeds_bytes: int = 128 * 1024 * 1024
    """bytes of these, and `costs.HELD_MEMORY` each, beyond which what comes is not taken, but asked
    for again when there is room [ordered_feed_full]: four times what a neighbour can replay from
    its log."""

    answers_bytes: int = 2 * MAX_PACKET_SIZE
    """bytes of answers of origins of which not all parts are here. One that goes beyond is dropped
    and asked for again [routed_dropped]: an honest one has some 256 KiB and a message more."""

    release_step: int = 500
    """messages of a feed that are delivered in one step, each counted once for every session that
    gets it: about 5 ms of work if they come one by one, less in runs."""

    # -------------------------------- sessions that move between brokers

    move_time: float = 1.0
    """s without a sign of the broker that has a client's session, until the client gets a new
    session [session_takeovers_timed_out]: longer than a repair of the tree, much shorter than
    clients wait for CONNACK."""

    move_longest: float = 10.0
    """s that a client waits for its session at most, if it is on its way, behind much else: most
    clients wait longer for CONNACK."""

    session_written: int = 1_000
    """subscriptions of a session that are encoded, or noted, at a time: about a ms."""

    session_read: int = 250
    """subscriptions or messages of a session that are decoded, and messages that are put into it,
    at a time: about a ms."""

    max_moves: int = 20_000
    """clients that wait for their session at a time; more are refused as busy (0x89)
    [connects_refused]. Those of a broker that is stopped come at once; each costs two messages and
    a connection that waits."""

    max_export_bytes: int = 256 * 1024 * 1024
    """bytes of encoded sessions kept for those that take them; beyond it those that were not asked
    for lately are encoded again."""

    max_session_tombstones: int = 10_000
    """sessions that have ended while another broker that is away has an older one, which must not
    come back [session_tombstones_forgotten]; some 100 bytes on every broker."""

    session_tombstone_time: float = 86_400.0
    """s for which they are remembered: as long as deleted retained messages."""

    max_synced_retained: int = 10_000
    """retained messages of the last `log_age` that came by a comparison and were delivered, some
    200 bytes each: they say what a session that is merged has had. Of more, the oldest are
    forgotten, and may come twice."""

    max_left: int = 10_000
    """clients that left other brokers in the last seconds, 200 bytes each; of more, the oldest are
    forgotten: a client of these that comes here may get again what is on its way."""

    max_repeats: int = 1000
    """sessions that came from elsewhere and have had newer messages of an origin than this broker;
    of more, some may get them twice [session_takeovers_uncertain]. They are looked through for each
    such message: some 0.1 ms."""

    # -------------------------------- shared subscriptions

    share_queued: int = 1000
    """messages waiting for a member of a shared subscription at which other brokers' members come
    before it. Below it a member whose window is full for a moment keeps what is published beside
    it."""

    share_waits: float = 120.0
    """s that a message waits for a member of a shared subscription whose broker is gone, when no
    other can be reached; as long as the log has it [shared_undelivered, shared_uncertain]."""

    max_assigned: int = 10_000
    max_assigned_bytes: int = 64 * 1024 * 1024
    """messages for members of shared subscriptions at one other broker, and bytes of those at all,
    that are kept until the members have acknowledged them: as much as may wait for a session. With
    half of it publishers wait, as for a slow subscriber. Of those beyond it, what is at a broker
    that dies is lost [shared_untracked]."""

    max_held_shared: int = 40_000
    max_held_shared_bytes: int = 256 * 1024 * 1024
    """QoS 2 messages of all other brokers that wait until members of shared subscriptions here have
    room, and bytes of these: as much as four brokers may have here. More are given back
    [shared_declined]."""

    max_assigned_moved: int = 100_000
    """of these, given to another member as the first one's broker was gone; should it come back, it
    does not get them again."""

    max_assigned_taken: int = 50_000
    """entries, of up to 256 messages each, of what members here took at QoS 2, with a journal."""

    groups_at_once: int = 500
    """groups that a broker posts in one moment and that are handled at once; the others follow in
    steps, and the withdrawn ones behind them: until then a message for one of them goes to other
    members, or is given late."""

    groups_step: int = 400
    groups_pace: float = 0.005
    """of these in one step, some 2 ms of work, and s between two steps."""

    groups_noted: int = 500
    """filters of a session that are looked at in one step when it connects or disconnects."""

    # -------------------------------- tables that other brokers fill

    listing_entries: int = 1_000_000
    """entries that a broker posts; its aggregated filters are far fewer. A neighbour that sends
    more of one broker is closed [link_garbage], so all brokers of a cluster have the same."""

    listing_reserved: int = 300_000
    """of these, entries that sessions and shared subscriptions of clients cannot take: filters
    (`max_interests`), links and the tree have to be posted, or no broker would find this one
    [sessions_unannounced, groups_refused]."""

    listing_own_bytes: int = 256 * 1024 * 1024
    listing_bytes: int = 512 * 1024 * 1024
    """bytes of what this broker posts, entries of up to 100 bytes aside, so long filters and client
    ids; and of what another one posts, which may be made up: beyond it the link is closed
    [link_garbage]. `listing_entries` small ones have 100 MB."""

    listings_memory: int = 1024 * 1024 * 1024
    """bytes of memory of all that other brokers post, what is coming included: who cannot be
    reached makes room, then what is new is not taken [link_state_refused]."""

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

    suback_wait: float = 5.0
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

    advertised_time: float = 600.0
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

    # -------------------------------- a drain

    drain_time: float = 30.0
    """s; for a drain to come to its end, as long as containers and services are usually given to
    stop."""

    drain_rate: float = 100.0
    """clients that are disconnected a second, at least: others take ten times as many without being
    noticed."""

    drain_sessions: float = 5.0
    """s from when the last client was disconnected until sessions that no broker has fetched end:
    most clients come back within two."""

    drain_tree: float = 4.0
    """s for the neighbours to turn to others: with another way at hand they take two hellos.
    Longer: there is none."""

    drain_ask: float = 0.2
    """s between two questions to a neighbour what has been there."""

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


DEFAULTS = Limits()
