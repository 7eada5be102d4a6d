"""Every limit of the broker, with its reason.

What happens at each limit is said beside it and counted under the name given in brackets.
"""

from __future__ import annotations

MAX_PACKET_SIZE = 268_435_460
"""bytes; what MQTT's length field can say, and the header (MQTT 5, 2.1.4). A smaller one can be
set; larger packets: 0x95 and close [protocol_errors]."""

MAX_CONNECT_SIZE = 512 * 1024
"""bytes; the largest CONNECT that makes sense (five 64 KiB strings and properties). An
unauthenticated peer must not make us hold more than this [malformed]."""

CONNECT_TIMEOUT = 10.0
"""s; from accept to CONNECT. A half-open connection costs a socket: slow or silent ones are closed
[connect_timeout]."""

CLOSE_TIME = 5.0
"""s; from our decision to close until a peer that does not read its last packets is cut off."""

CLIENT_BACKLOG_BYTES = 64 * 1024 * 1024
"""bytes; waiting for a client that reads too slowly, beyond what the transport holds. QoS 0 beyond
it is dropped [dropped_slow_consumer]; a client whose acknowledgements alone exceed twice this is
closed [slow_consumer_closed], and so is one for which more than this waits for the journal, the
largest piece aside."""

COLLECTOR = (30_000, 1, 100_000_000)
"""objects, rounds, rounds; when the garbage collector looks through what is new, what was new in
the last rounds, and everything. Below 30,000 it comes while a burst of messages is under way, finds
each of them alive and looks again later: at 90,000 messages a second over a link an eighth of the
broker's time, now a thirtieth. A look takes up to 25 ms with a full log. Everything takes a second:
not in months, as it finds nothing (decision 30). What comes by COLLECT counts as a round, ten a
second."""

COLLECT = 0.1
"""s between two times that the collector is told to look through what is new; some ms. By itself it
comes when 30,000 objects more were made than went; where messages in the log, and routes, make room
for as many new ones that is not before it has 300,000 to look through: 170 ms."""

HOLD_BACKLOG_BYTES = 1024 * 1024
"""bytes; once a subscriber is behind by this, its publishers are not read for HOLD_TIME, so that a
fast publisher is slowed down by TCP rather than its messages dropped. Small enough that hundreds of
slow subscribers fit into memory."""

HOLD_TIME = 0.5
"""s; longest time without progress for which one slow subscriber may hold back its publishers;
after it the subscriber is `stalled` and holds back nobody until it has caught up (others must not
suffer)."""

HOLD_LOOK = 0.02
"""s after which a subscriber without progress is looked at once more: this broker may have been
stopped, or without a processor, and what the subscriber sent meanwhile is read by then."""

LINK_BACKLOG_BYTES = 32 * 1024 * 1024
"""bytes; waiting for a link. QoS 0 messages beyond it are dropped [dropped_link]."""

LINK_KEPT_BYTES = 512 * 1024 * 1024
"""bytes; waiting for a link, with QoS 1, QoS 2 and retained messages. Beyond it the link leaves the
live stream and is replayed from the log when it drained. Publishers are held long before
(HOLD_LINK_BYTES): what is beyond that was on its way, two messages of MAX_PACKET_SIZE, or is of
brokers that do not hold theirs."""

MAX_INFLIGHT = 1024
"""QoS 1 and 2 messages unacknowledged by a client that announced no Receive Maximum (3.1.1).
Mosquitto says 20; more keeps fast clients busy over any RTT, and small devices acknowledge before
they read on."""

MAX_INFLIGHT_5 = 16_384
"""the same for MQTT 5 clients, whatever larger Receive Maximum they announce: with most packet
identifiers in use the search for a free one would take long."""

MAX_QUEUED = 10_000
"""QoS 1 and 2 messages waiting for one session beyond the window. The newest is dropped
[dropped_queue_full]."""

MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""bytes of payload waiting for one session, as above."""

MAX_MISSED = 1_000
"""QoS 0 messages kept for one client that is away. Those after them are dropped, as all are for
every absent client elsewhere: nobody may rely on them, and a fast publisher must not fill the
memory. Not counted."""

MAX_MISSED_BYTES = 1024 * 1024
"""bytes of these."""

HOLD_QUEUED = 5_000
"""messages queued for a *connected* session at which its QoS 1 and 2 publishers are held back like
above."""

HOLD_QUEUED_BYTES = 16 * 1024 * 1024
"""bytes of these: large messages fill MAX_QUEUED_BYTES long before they are many."""

PIECES_BACKLOG = 1024 * 1024
"""bytes waiting for a link beyond which it takes no more old messages that somebody has asked an
origin for [routed_dropped]: they are asked for again, and many who ask at once must not fill the
memory, or keep what is new waiting for long."""

HOLD_LINK_BYTES = 8 * 1024 * 1024
"""bytes waiting for a link from which on who publishes at QoS 1 or 2 is held back until all of them
have gone out, as long as the link lives. What is on its way comes on top. Half a second's worth of
128 Mbit/s, so that a fast link never runs empty."""

HOLD_PACE = 0.02
"""s between two different things that one broker tells another about whom to hold; the first goes
at once."""

HOLD_REPEAT = 0.2
"""s after which they are repeated; valid for two and a half times as long, so that a broker that
hangs holds nobody for longer than a slow client would (HOLD_TIME). Each is the longer the more
brokers are told."""

HOLD_LIFE = 10.0
"""s; for which what is told is valid at most, however many are told."""

HOLDS_PER_SECOND = 250.0
"""that one broker sends, about; links on the way take thousands a second
(LINK_REQUESTS_PER_SECOND)."""

HOLD_TOPICS = 64
HOLD_BYTES = 16 * 1024
"""topics that one slow subscriber, and that one broker, has held by name, and bytes of them; beyond
it the subscriber's filters stand for them, and beyond these everything."""

HOLD_KNOWN = 4096
"""topics of which a broker that is asked remembers whether they match; then they are matched
anew."""

HOLD_LONGEST = 300.0
"""s for which a broker may hold publishers elsewhere without a pause [pause_requests_ignored]. Its
subscribers have taken what waited by then, unless they take less than some tens of messages a
second; who lies must not stop others for ever."""

QUEUED_MEMORY = 700
"""bytes of memory that a waiting message takes besides its payload and topic."""

HELD_QUEUE_BYTES = 128 * 1024 * 1024
"""bytes of memory of what waits for one session while publishers elsewhere are held for it, instead
of MAX_QUEUED and MAX_QUEUED_BYTES: what was on its way when they were told must fit (queues of
links, sockets, a read of each publisher), 170,000 messages of 64 bytes. Those beyond are dropped
[dropped_queue_full]."""

HELD_QUEUES_BYTES = 512 * 1024 * 1024
"""bytes of memory of all sessions that have more waiting than MAX_QUEUED or MAX_QUEUED_BYTES
[queued_over_limit]."""

MAX_SUBSCRIPTIONS = 100_000
"""subscriptions of one session; more are refused with 0x97 (0x80 in 3.1.1)
[subscriptions_refused]."""

MAX_FILTERS_MEMORY = 256 * 1024 * 1024
"""bytes of memory of all filters of one session: MAX_SUBSCRIPTIONS of 40 characters with wildcards
and six levels. As many of 60 KB, or with 200 levels that nobody else has, would take gigabytes; as
above [subscriptions_refused]."""

MAX_RETAINED = 1_000_000
"""retained messages; more are not retained [retained_refused]."""

MAX_RETAINED_BYTES = 1024 * 1024 * 1024
"""bytes of retained messages; as above."""

MAX_TOMBSTONES = 100_000
"""deleted and expired retained topics whose time is remembered, some 300 bytes each. Of more the
oldest are forgotten: a broker that was cut off meanwhile may bring their messages back
[retained_tombstones_forgotten]."""

TOMBSTONE_AGE = 86_400.0
"""s; as long they are remembered: a broker that was away for a night, or a day's journey, does not
bring back what is deleted."""

CLOCK_AHEAD = 300.0
"""s; times of a neighbour that are further ahead of our time of day decide about their topics, but
our clock stays [retained_clock_ahead]. Clocks that nobody sets run away by less in a year."""

RETAINED_CHECK = 60.0
"""s between two comparisons of the retained messages with a neighbour in the tree when nothing has
happened: 30 bytes each."""

RETAINED_PACE = 0.005
RETAINED_ITEMS = 200
RETAINED_BYTES = 256 * 1024
RETAINED_RECORDS = 2048
"""s between two steps of a comparison with one neighbour, twice as much behind one with records,
and what one step sends: messages, bytes of these, bytes of records. A step is some ms of work for
either, so that clients hardly wait for it; records stay below half of the neighbour's
LINK_REQUESTS_PER_SECOND."""

RETAINED_STEPS = 2
"""steps with messages that are on their way: the next one waits until the neighbour has handled all
but one of them. One that is slow, or serves much else, has no more of them to handle in one go."""

RETAINED_JOBS = 70_000
"""parts of the table of retained messages that wait to be compared with one neighbour: there are
65,792, and each waits once; no more are noted [retained_dropped]. The next comparison finds what is
left."""

RETAINED_AGAIN = 600.0
"""s; who had no room for a retained message of a neighbour asks for nothing more for so long: it
would be refused again."""

MAX_SESSIONS = 1_000_000
"""sessions kept for clients that are away; more are refused with 0x97 (3 in 3.1.1)
[sessions_refused]."""

MOVE_TIME = 1.0
"""s without a sign of the broker that has a client's session, until the client begins anew
[session_takeovers_timed_out]: longer than a repair of the tree, much shorter than clients wait for
CONNACK."""

MOVE_LONGEST = 10.0
"""s that a client waits for its session at most, if it is on its way, behind much else: most
clients wait longer for CONNACK."""

MAX_MOVES = 20_000
"""clients that wait for their session at a time; more are refused as busy (0x89)
[connects_refused]. Those of a broker that is stopped come at once; each costs two messages and a
connection that waits."""

MAX_SESSION_TOMBSTONES = 10_000
"""sessions that have ended while another broker that is away has an older one, which must not come
back [session_tombstones_forgotten]; some 100 bytes on every broker."""
SESSION_TOMBSTONE_TIME = 86_400.0
"""s for which they are remembered: as long as deleted retained messages."""

MAX_GIVEN = 10_000
"""ranges of numbers of one origin that a session got from logs and older sessions, and that go with
it when it moves: as many as it can have waiting. Of more the oldest are forgotten, and may come
twice."""

MAX_BROUGHT = 10_000
"""retained messages of the last LOG_AGE that came by a comparison and were delivered, some 200
bytes each: they say what a session that is merged has had. Of more, the oldest are forgotten, and
may come twice."""

MAX_LEFT = 10_000
"""clients that left other brokers in the last seconds, 200 bytes each; of more, the oldest are
forgotten: who of them comes here may get again what is on its way."""

MAX_STARTS = 10_000
"""different moments of the last LOG_AGE at which subscriptions were made, with the position of each
origin. Beyond, the oldest are forgotten: what was published before those may be delivered to
them."""

MAX_REPEATS = 1000
"""sessions that came from elsewhere and have had newer messages of an origin than this broker; of
more, some may get them twice [session_takeovers_uncertain]. They are looked through for each such
message: some 0.1 ms."""

MAX_MOVED_BYTES = 512 * 1024 * 1024
"""bytes of one session on its way: MAX_QUEUED_BYTES waiting, as much in flight, and what is around
it. Larger: begins anew."""

MAX_EXPORT_BYTES = 256 * 1024 * 1024
"""bytes of encoded sessions kept for those that take them; beyond it those that nobody asked for
lately are encoded again."""

JOURNAL_BACKLOG_BYTES = 64 * 1024 * 1024
"""bytes of the journal that wait for the disk; beyond it publishers are not read until half of them
are written. At four times as much - brokers whose publishers cannot be held, acknowledgements - it
counts as a disk that does not write [journal_errors]. One frame counts as this much at most: it may
hold a packet, or a session, that is larger by itself."""

JOURNAL_DAMAGED = 4
"""damaged files of the journal that are put aside; each may be as large as all that is kept, and a
bad disk damages many."""

JOURNAL_BEAT = 20.0
"""s between two frames at most while a broker keeps sessions, though it is idle: as well is it
known how long its clients were connected when it is killed. Sessions live, and delayed wills wait,
this much longer at most."""

JOURNAL_FRAME_BYTES = 1024 * 1024 * 1024
"""bytes of a frame of the journal; more is split [journal_frames_split]. With one record more
(a packet has 256 MiB) it can be read."""

ROUTE_CACHE = 65_536
"""topics whose route is kept; the cache is emptied when it is full (a publisher of ever new topics
must not grow it)."""

ROUTE_CACHE_TOPIC = 512
"""bytes; the routes of longer topics are not kept: 65,536 topics of 64 KiB each would be 4 GiB."""

ROUTE_CACHE_DELIVERIES = 4_000_000
"""receivers in all kept routes together; as above (many topics times many subscribers of all of
them)."""

ROUTE_CACHE_ORIGINS = 256
"""origins whose links are kept with a route, with routing by topic; then they are forgotten. A
neighbour may make them up."""

INTERNED_RECEIVERS = 4096
"""different sets of receivers shared by cached routes; then the cache is emptied (every
subscription change can make one)."""

TOPIC_ALIAS_MAXIMUM = 64
"""aliases a client may use towards us (MQTT-3.1.2-26); each is a dict entry."""

TOPIC_ALIASES_OUT = 64
"""aliases that we use towards a client, whatever it takes beyond that; as above. Other topics are
sent as they are."""

AUTHENTICATION_TIME = 10.0
"""s; for a client that authenticates again to come to an end; like CONNECT_TIMEOUT, then it is
closed [authentication_failed]."""

MAX_SCRAM_NONCE = 256
"""characters of a client's nonce: ten times what is useful."""

MAX_SCRAM_ITERATIONS = 1_000_000
"""of a stored verifier: a plain password of that user costs us this, about a second."""

MAX_ARGON2_MEMORY = 1024 * 1024
"""KiB; a stored hash that takes more to check would be a mistake, or the end of the broker."""

LOG_BYTES = 32 * 1024 * 1024
"""bytes of QoS 1 and 2 messages kept for replay to neighbours after a repair; the oldest go first
[replay_log_trimmed], but not before each neighbour that is linked has acknowledged them, or is not
owed them."""

LOG_LARGE = 2 * 1024 * 1024
LOG_LARGE_TIME = 30.0
"""bytes of a message that pushes nothing out of a full log for so many s, up to AWAY_LOGS logs in
all (and half of the memory): two of 20 MB had pushed out all else in a tenth of a second, and a
neighbour that got its messages another way from then on lacked what was still on its old one."""

LOG_OLD = 25_000
"""entries of the log that go in one turn, once a second, as they are old: 20 ms."""

HOLD_LOG_BYTES = 8 * 1024 * 1024
"""bytes beyond LOG_BYTES, kept for neighbours that have not acknowledged them, from which on
publishers are held back."""

LOG_KEPT_BYTES = 512 * 1024 * 1024
"""bytes of the log with what is kept for neighbours, as LINK_KEPT_BYTES and mostly the same bytes;
of more the oldest are dropped [replay_log_trimmed]. What a neighbour still needed of them is lost,
said and counted [replay_log_lost]."""

SPARED_BYTES = 128 * 1024 * 1024
"""bytes of what has left the log and is kept for sessions on their way: of one of them,
MAX_QUEUED_BYTES may wait and twice that be in the log while it moves; and as many for shared
subscriptions just known. The oldest go first [replay_log_reserve_full]."""

UNLOGGED_BYTES = 16 * 1024 * 1024
"""bytes of numbers of QoS 2 messages that wait for clients that are away and have left the log: of
five sessions with full queues whose messages came one by one, of a hundred that got runs. The
oldest go first [queued_unnumbered]."""

UNLOGGED_MEMORY = 320
"""bytes that one of these takes, or a run of them, and 8 for each message."""

PARTED_TIME = 5.0
"""s for which the log is kept for a broker whose link broke, or that is back: by then it has found
another way, and asked. Longer, but not for more than REPAIR_TIME, while it goes on asking."""

AWAY_LOGS = 4
"""logs of messages that are kept for that time for brokers that nobody reaches any more, while no
publisher is held for them: a link that breaks is there again after half a second, and what was on
its way may be more than a log. Of more the oldest go [replay_log_trimmed]."""

ABSENT_BROKERS = 256
ABSENT_FILTERS = 10_000
ABSENT_RANGES = 4096
ABSENT_TIME = 3600.0
ABSENT_BACK = 5.0
"""brokers that are away and for which it is counted what they lose; filters of one, more count as
everything; ranges of numbers that are told apart, so that what it has got elsewhere does not count;
s after which it is taken to stay away, and for which one that is back may say what it lacks."""

CUT_TIME = 5.0
"""s for which messages of other brokers that come after a link was lost are kept for those behind
it: until these have heard of it, and keep them themselves."""

TAIL_BACK = 60.0
"""s; the same for one for which there is something in the log's tail, from its last question on:
who asks for a piece lets its subscribers have it first, and these may be slow."""

TAIL_BYTES = 1024 * 1024 * 1024
"""bytes of the log's tail on the disk, if the configuration does not say otherwise (log-tail); of
more the oldest are dropped. What a broker that is away has not got of them is lost, said and
counted [replay_log_lost]. An hour (ABSENT_TIME) of 300 KB/s."""

TAIL_SEGMENT_BYTES = 16 * 1024 * 1024
"""bytes of one file of it, about; an eighth of the tail at most."""

TAIL_FRAME_BYTES = 256 * 1024
"""bytes that are written, and read, at a time, about: as much as an answer to a question brings."""

REPAIR_TIME = 30.0
"""s; for a neighbour to say what it has before the log keeps nothing for it: a repair takes less
than one, but its records may come behind a large message on a slow link."""

LOG_AGE = 120.0
"""s; messages older than this are not replayed: a broker that was away longer begins afresh."""

HOLD_FEED = 10_000
"""messages of one broker that wait for what is missing before them, from which on their publishers
are held at that broker: a repair of a tenth of a second at 100,000 a second holds nobody."""

HOLD_FEEDS_BYTES = 8 * 1024 * 1024
"""bytes of these, of all brokers together; as much as of a link (HOLD_LINK_BYTES)."""

HELD_FEEDS_BYTES = 128 * 1024 * 1024
"""bytes of these, and HELD_MEMORY each, beyond which what comes is not taken, but asked for again
when there is room [ordered_feed_full]: four times what a neighbour can replay from its log."""

ANSWERS_BYTES = 2 * MAX_PACKET_SIZE
"""bytes of answers of origins of which not all parts are here. One that goes beyond is dropped and
asked for again [routed_dropped]: an honest one has some 256 KiB and a message more."""

HELD_MEMORY = 300
"""bytes of memory that one of these takes besides its packet."""

MAX_SKIPS = 4096
"""ranges of one origin's numbers that have not been here, with routing by interest: nobody wanted
them, or they are asked for. Of those beyond, the oldest are not passed on any more should they
come; what is still missing here is kept apart, in as many [gaps_forgotten]."""

MAX_GAPS = 64
"""holes remembered in the sequence of one origin; the oldest is given up (those messages count as
seen) [gaps_forgotten]."""

MAX_ORIGINS = 4096
"""origins (broker, boot) whose sequence is remembered; the one unheard for longest goes first. Four
times the members."""

MAX_CHOICES = 1000
"""shared subscriptions that one message says another broker for, 24 bytes each; the groups beyond
get it from nobody [shared_undelivered]."""

MAX_PASSES = 8
"""brokers that had a message for a shared subscription and had no member left; then it is dropped
[shared_undelivered]."""

SHARE_QUEUED = 1000
"""messages waiting for a member of a shared subscription at which other brokers' members come
before it. Below it a member whose window is full for a moment keeps what is published beside it."""

MAX_ASSIGNED = 10_000
MAX_ASSIGNED_BYTES = 64 * 1024 * 1024
"""messages for members of shared subscriptions at one other broker, and bytes of those at all, that
are kept until the members have acknowledged them: as much as may wait for a session. With half of
it publishers wait, as for a slow subscriber. Of those beyond it, what is at a broker that dies is
lost [shared_untracked]."""

MAX_HELD_SHARED = 40_000
MAX_HELD_SHARED_BYTES = 256 * 1024 * 1024
"""QoS 2 messages of all other brokers that wait until members of shared subscriptions here have
room, and bytes of these: as much as four brokers may have here. More are given back
[shared_declined]."""

MAX_ASSIGNED_MOVED = 100_000
"""of these, given to another member as the first one's broker was gone; should it come back, it
does not get them again."""

MAX_ASSIGNED_TAKEN = 50_000
"""entries, of up to 256 messages each, of what members here took at QoS 2, with a journal."""

SHARE_WAITS = 120.0
"""s that a message waits for a member of a shared subscription whose broker is gone, when no other
can be reached; as long as the log has it [shared_undelivered, shared_uncertain]."""

MAX_QUIET_ORIGINS = 1024
"""of these, origins of which nothing was heard lately; of more that a neighbour tells us we take no
note, before they publish. It may make them up, and must not fill the table of the whole
federation."""

MAX_VECTOR_GAPS = 2048
"""gaps told to a neighbour at once; beyond it only the newest of each origin. A few are usual,
thousands somebody's invention."""

MAX_INTERESTS = 250_000
"""filters that clients of one broker want, with routing by interest. Every other broker keeps each,
some 600 bytes; of more it is told `#` instead [interest_widened], until half as many are left."""

TOLD_FILTERS_MEMORY = 256 * 1024 * 1024
ALL_FILTERS_MEMORY = 1024 * 1024 * 1024
TOLD_GROUPS_MEMORY = 256 * 1024 * 1024
GROUP_MEMORY, MEMBERS_MEMORY = 1_000, 300
"""bytes of memory of the filters that another broker tells of, and that all others do:
MAX_INTERESTS usual ones are 150 MiB. Who tells of more gets everything, as if it had asked for `#`,
until it has been away [interest_widened]. And of shared subscriptions that others tell of, 200,000
or so; what each takes besides its filter, and each broker with members. Of more, members get what
is published at their own broker alone [groups_refused]."""

MAX_RANGES = 1_000_000
"""ranges of numbers of all origins that were not here, 120 bytes each; origins may be made up. The
oldest go [gaps_forgotten]."""

MAX_OVERLAY_BROKERS = 256
MAX_OVERLAY_LINKS = 8192
"""other brokers, and links between all of them, with which messages take the shortest ways with
routing by topic; with more they keep to the spanning tree. To find the ways of all origins anew
takes time with the square of the brokers, a third of a second with 200 of them; and brokers and
links are what others tell: they may be made up."""

MAX_LINKS = 1024
"""links to other brokers; more are refused [links_refused]."""

FULL_MESH = 8
"""other brokers to each of which there is a link. Of more, 2 * log2(n) are chosen
(neighbour_selection.py): a link costs both ends a refresh of the tree twice a second, and 200
brokers would keep 19,900."""

MAX_HANDSHAKES = 256
"""callers that have not proven yet that they are brokers; the oldest makes room [links_refused]. A
broker is done in two round trips: a federation of hundreds that starts at once gets through, and so
it does past somebody who calls and says no more."""

RECORD_BYTES = 64 * 1024
"""bytes of packets in one record of a link that a secret protects: AES-GCM is at its best speed
there, and a neighbour that is not believed before its record is whole makes us hold no more. A
longer record closes the link [link_tampered]."""

RECORDS_PER_KEY = 1 << 20
"""records under one key; both ends then take the next one. 64 GiB at most, far from where AES-GCM
begins to say something about what it hides (2^36 blocks for a chance of 2^-57)."""

GOSSIP_PAUSE = 0.05
"""s between two lists of members to one neighbour: newcomers are told at once, a flood of them in
one piece."""

SEEN_PAUSE = 0.05
"""s between two reports to one neighbour of what has been here: one is enough for a repair, and
somebody who shakes the tree must not have all of us do nothing but report."""

TOPOLOGY_CHANGES = 10
"""publications of $TC a second; beyond it only the newest, a little later: nobody can draw more
from them."""

DRAIN_TIME = 30.0
"""s; for a drain to come to its end, as long as containers and services are usually given to
stop."""

DRAIN_RATE = 100.0
"""clients that are told to go a second, at least: others take ten times as many without being
noticed."""

DRAIN_SESSIONS = 5.0
"""s from when the last client was told to go until sessions that no broker has fetched end: most
clients come back within two."""

DRAIN_TREE = 4.0
"""s for the neighbours to turn to others: with another way at hand they take two hellos. Longer:
there is none."""

DRAIN_ASK = 0.2
"""s between two questions to a neighbour what has been there."""

PLUGIN_BACKLOG_BYTES = 64 * 1024
"""bytes read ahead from a client whose packet waits for a plugin; then it is not read any more."""

MAX_ENDED = 1_000
"""clients that have gone while a plugin is asked about what they sent, which still counts. Of more
at a time, what waits is dropped with the connection: slow plugins and clients that come and go must
not fill the memory."""

TAKEOVER_QUIET = 1.0
TAKEOVER_LONGEST = 5.0
"""s; for which a new connection of a client waits until what came on its old one is handled,
without and with progress there. Only a plugin, a slow subscriber or a peer that never stops sending
makes that longer than a turn of the loop; and clients wait some seconds for CONNACK. What is left
then is lost with the old connection; it was not acknowledged [takeover_unread]."""

MAX_SUCCESSORS = 16
"""connections of one client that wait so, in line; one more is refused as busy (0x89)
[connects_refused]."""

PLUGIN_ANSWER = 30.0
"""s; for plugins to answer a question. Who asked waits that long at most, then it counts as a no
[plugin_errors]: longer than a slow directory takes, about as long as clients wait for their
CONNACK."""

LINGER = 1.0
"""s; from our last packet after an error until the connection is closed for good. A peer that is
still sending would lose that packet to the reset with which the kernel answers bytes that nobody
reads."""

MAX_TOPIC_LEVELS = 201
"""levels of a topic or filter, 200 slashes between them as with Mosquitto: a 64 KiB filter of
single characters would make 32,768 trie nodes. Deeper topics close the connection (0x90)
[protocol_errors], deeper filters are refused (0x8F; 0x80 before MQTT 5) [subscriptions_refused]."""

MAX_PING_PAYLOAD = 1024 * 1024
"""bytes of records in one PINGREQ on a link; MAX_ORIGINS origins with MAX_VECTOR_GAPS fit twice
(SEEN, ORIGINS), and the members. Larger: garbage [link_garbage]."""

LINK_REQUESTS = 5000.0
LINK_REQUESTS_PER_SECOND = 1000.0
"""units of work, a tenth of a millisecond each, that a neighbour may ask for by records at once and
in a second: a record counts 1 and 1 for each 1,000 bytes, one that makes us go through tables 9
more. Repairs need some hundred; beyond it the link is closed [link_garbage]. Walks through the log
count 1 for each 2,000 entries by themselves, and wait when there is nothing left."""

MAX_REPLAY = 4 * 32 * 1024 * 1024
"""bytes of old messages that a neighbour may have replayed at once, four whole logs, or what there
is the first time; one log more with every second. What is asked for beyond it waits so long. As
many of listings, and 4 MiB more with every second."""

PROXY_HEADER_BYTES = 4096
"""bytes of a PROXY header, addresses and all TLVs: balancers send some hundred. Longer: closed
[proxy_garbage]."""

PROXY_TIMEOUT = 5.0
"""s; from accept to the end of the PROXY header, which balancers send at once. Later: closed
[proxy_garbage]."""

MAX_RULES = 100_000
"""rules of a rules file; more are an error at the start: each is some hundred bytes, and a file of
1 MiB has fewer."""

RULE_GROUPS = 10_000
"""combinations of rules about one client that are kept as one object for all to whom they apply;
then they are forgotten, and clients that come later have another one."""

PERMITTED_TOPICS = 4096
"""topics of one client for which the rules have said yes and are not asked again; then they are
forgotten. 150 bytes each."""

PASSWORD_CHECKS = 1000
"""clients whose password waits to be checked, at 20 ms each: who comes then would wait longer than
clients do, and is refused as busy (0x89) [connects_refused]."""

PASSWORDS_KNOWN = 10_000
"""user names and passwords (as a keyed digest) that were right lately, so that thousands of clients
that come back at once need not wait for argon2; then they are forgotten."""

MEMORY_STEP = 5_000
"""sessions, and connections, that are counted in one turn of the count of memory: about a
millisecond."""

MEMORY_HEAVY = 64 * 1024
"""bytes that wait for a session or connection from which on it may be ended when memory is
short."""

MEMORY_SHED = 50
"""sessions, and connections, that are ended in one turn for that."""

RETAINED_MEMORY = 500
"""bytes of memory that a retained message takes besides its payload and topic, its mark
included."""

TOMBSTONE_MEMORY = 300
"""bytes of memory that a deleted retained topic takes that is remembered."""

SESSION_MEMORY = 1_500
SUBSCRIPTION_MEMORY = 600
CONNECTION_MEMORY = 1_500
"""bytes of memory that each session, subscription and connection takes, besides names, filters and
what a client leaves here."""

FILTERS_MEMORY = 8
"""bytes of memory for each byte of a SUBSCRIBE or UNSUBSCRIBE that waits for its turn."""

REF_MEMORY = 600
START_MEMORY = 100
"""bytes of memory that an open message of a shared subscription takes besides its packet, and each
origin in the position of a subscription."""

LEVEL_MEMORY = 250
"""bytes of memory that a level of a filter with wildcards takes besides its word, at most: a node
that no other filter shares."""

IDENTIFIER_MEMORY = 64
"""bytes of memory that a QoS 2 packet identifier takes that is not released."""

PROPERTY_MEMORY = 130
"""bytes of memory that a User Property takes besides its text: on the wire it may have five
bytes."""

ROUTE_MEMORY = 1_000
ROUTE_SHOWN_MEMORY = 150
"""bytes of memory that a kept route takes, and each client that has it among its own, as rules are
in force."""

FILES_KEPT = 256
"""open files that clients may not take, so that links, the admin port and the journal have theirs;
a fifth of all where there are few."""

SYS_SESSIONS = 20_000
"""sessions whose waiting messages $SYS adds up: a walk of some milliseconds every interval. With
more: the retained alone."""

LOG_PAUSE = 60.0
"""s in which one line is logged of each cause and host that peers bring about; the others are
counted [log_lines_suppressed]."""

LOG_SOURCES = 1024
"""pairs of cause and host that the log's limit tells apart, 300 bytes each; further hosts count as
one for each cause."""

LOG_CAUSES = 20
"""causes of one host that the log's limit tells apart: what is wrong with a packet is one each, and
a peer can make many up."""

LOG_LINKS = 20
"""lines about links that come up or go down, for each host and LOG_PAUSE: some tens of brokers may
run on one machine."""

TURN_TIME = 0.005
"""s; a read whose handling took longer is the connection's last in this turn of the event loop: a
burst of many small messages from one publisher must not keep the others, links and timers
waiting."""

TURN_WORK = 10_000
"""steps of work of about a microsecond that one turn of the event loop does by what costs more than
its bytes: topics without a route, packets that no run takes. Who goes beyond is not read for the
rest of the turn, nothing is lost [turns_cut]. Half of TURN_LONG, also on a machine that is half as
fast."""

PACKET_WORK = 20
"""steps that such a packet, and a topic without a route, count besides what is found."""

RETAINED_WORK = 30
"""steps that a retained message counts besides: it is kept, stamped, hashed and goes to the
journal."""

MAX_FILTERS_SIZE = 1280 * 1024
"""bytes of a SUBSCRIBE or UNSUBSCRIBE, 40,000 filters of 30 characters, or all that one session may
have of 10. Larger: 0x95 and close [protocol_errors]; who wants more filters sends several."""

FILTERS_DECODED = 10
"""bytes of a SUBSCRIBE or UNSUBSCRIBE that are decoded in a step of work."""

DECODED_AT_ONCE = 20 * 1024
"""bytes of one that are decoded in one turn, 5,000 filters of one character; of a larger one so
many filters."""

FILTERS_AT_ONCE = 250
"""filters of one packet, or of a session that ends, that are handled in one turn: 65,536 of them
take most of a second."""

RETAINED_AT_ONCE = 1000
"""steps of the search for retained messages that new subscriptions get, in one turn: a filter may
look through a million."""

MAX_FORMS = 128
"""placements of wildcards, as `a/+/#` is one with all filters that differ in words alone, among the
subscriptions of one session, each group of shared subscriptions by itself: as many of its filters
match one topic at most, and each costs every message of a new topic a microsecond, at every broker.
More are refused with 0x97 (0x80 in 3.1.1) [subscriptions_refused]. Filters that differ in words may
be MAX_SUBSCRIPTIONS, and hardly any client has ten placements."""

TURN_LONG = 0.05
"""s; a turn of the event loop that took longer is counted [turns_long]: clients notice it."""
