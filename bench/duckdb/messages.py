"""Publications joined with deliveries: delays, losses, duplicates and order, as counts that are
small enough to keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mqttree.bench.duckdb import subscriptions
from mqttree.bench.duckdb.events import Events
from mqttree.bench.duckdb.session import Database, Row
from mqttree.bench.spark.clocks import SECOND, Second
from mqttree.bench.spark.counted import (
    DAY,
    Spans,
    every,
    note_far,
    perhaps_far,
    spans_and_seconds,
)

_MESSAGE = f"""
    h.no, r.publisher, r.sequence, cast(floor((t - h.zero) / {SECOND}) as int) as second
"""
_TIMED = "(t >= h.since and t < h.until) as timed"
_SPANS = """
    with message as (
        select no, 'published' as kind, second, t, sequence, late from published
        union all
        select no, 'accepted', second, t, sequence, null from accepted
        union all
        select no, 'delivered', second, t, sequence, null from delivered
    )
    select no, kind, second, count(*) as n, min(t) as first, max(t) as last,
        max(sequence) as highest, max(late) as late
    from message group by all
"""
# Noted twice (a generator that repeats itself after a reconnect): the first time counts.
_ONCE = """
    select * from published
    qualify row_number() over (partition by no, publisher, sequence order by t) = 1
"""
_SENT = """
    select p.no, p.publisher, p.sequence, p.t as sent, p.topic, p.source,
        coalesce(p.flow, '') as flow, p.size, coalesce(p.late, 0) as late,
        p.counted, p.timed,
        if(a.answered is null, null, greatest(a.answered - p.t, 0)) as wait
    from {published} p
    left join (
        select no, publisher, sequence, min(t) as answered from accepted group by all
    ) a using (no, publisher, sequence)
"""
_PUBLISHED = """
    select no, flow, topic, source, wait is not null as accepted, count(*) as n,
        count(*) filter (timed) as rated, sum(if(timed, wait, null)) as wait
    from sent where counted group by all
"""
# Of receivers that have a client in common with another shared subscription to the same topic
# nothing tells whether a message came twice, or each of two groups had its own.
_SEVERAL = """
    select distinct no, unnest(receivers) as receiver, topic from shared where shared > 1
"""
_WANTED = f"""
    select m.no, m.receiver, m.topic, m.since, m.until, m.clean and s.topic is null as clean
    from ({subscriptions.merged()}) m left join several s using (no, receiver, topic)
"""
_EDGED = """
    select w.*, e.first, e.last, g.gaps,
        w.since <= e.first and w.until > e.last and len(list_filter(
            coalesce(g.gaps, []), lambda gap: gap.lost <= e.last and gap.back >= e.first
        )) = 0 as always
    from wanted w join edge e using (no) left join gap g using (no, receiver, topic)
"""
_REGULAR = "select no, receiver, topic, since, until, clean from edged where always"
# Spells do not overlap: one beside a spell that holds for all has seen no publication.
_IRREGULAR = """
    select no, receiver, topic, since, until, clean, gaps from edged
    where not always and (no, receiver, topic) not in (select (no, receiver, topic) from regular)
"""
_SPELLS = """
    select no, receiver, topic, list({'since': since, 'until': until}) as spells,
        any_value(gaps) as gaps
    from irregular group by all
"""
_TO_ONE = """
    select d.*, coalesce(s.receivers[1], d.client) as receiver
    from delivered d
    left join shared s on s.no = d.no and s.client = d.client and s.topic = d.named
"""
# Of a message that a client has to get for several receivers it gets a copy for each, in whatever
# order.
_TO_WHOM = """
    select d.* exclude (copy), coalesce(s.receivers[least(d.copy, len(s.receivers))], d.client)
        as receiver
    from (
        select *, row_number() over (
            partition by no, publisher, sequence, client order by t
        ) as copy
        from delivered
    ) d
    left join shared s on s.no = d.no and s.client = d.client and s.topic = d.named
"""
# From the newest message to the oldest, each one's first delivery first: it is late if a newer one
# has come before.
_BOTH = """
    with pair as (
        select d.no, d.publisher, d.sequence, d.t as came, d.target, d.receiver,
            d.timed as within, coalesce(s.topic, d.named) as topic, s.source, s.flow, s.size,
            s.sent, s.late, coalesce(s.counted, false) as counted, s.timed,
            s.wait is not null as accepted
        from ({deliveries}) d left join sent s using (no, publisher, sequence)
    )
    select *, coalesce(lag(sequence) over mine = sequence, false) as again,
        min(came) over (
            partition by no, publisher, receiver, topic order by sequence desc, came
            rows between unbounded preceding and 1 preceding
        ) as newer
    from pair
    window mine as (partition by no, publisher, receiver, topic order by sequence desc, came)
"""
_INSIDE = """
    coalesce(len(list_filter(p.spells,
        lambda spell: b.sent >= spell.since and b.sent < spell.until)) > 0, true) as asked,
    {unsure} as unsure
"""
_JUDGED = f"""
    select b.no, b.flow, b.topic, b.receiver, b.source, b.target, b.accepted, b.within, b.size,
        b.sent is null as unmatched, b.counted and not b.again as first,
        first and coalesce(b.timed, false) as timed, b.counted and b.again as duplicate,
        b.came - b.sent as delay, first and delay > {DAY} as far,
        if(delay > {DAY}, 0, greatest(delay, 0)) as after,
        if(delay > {DAY}, 0, greatest(delay + b.late, 0)) as taken,
        first and not starts_with(b.receiver, '{subscriptions.SHARED}') and b.came > b.newer
            as reordered,
        {{inside}}
    from ({_BOTH}) b {{spells}}
"""
_CELLS = """
    select no, flow, topic, receiver, source, target, accepted,
        count(*) filter (first) as n, count(*) filter (first and asked) as asked,
        count(*) filter (first and asked and unsure) as unsure, count(*) filter (timed) as timed,
        coalesce(sum(taken) filter (timed), 0) as delay,
        coalesce(sum(after) filter (timed), 0) as delay_sent,
        max(taken) filter (timed) as longest, count(*) filter (duplicate) as duplicates,
        count(*) filter (reordered) as reordered, count(*) filter (first and delay < 0) as early,
        count(*) filter (far) as far, count(*) filter (within) as arrived,
        coalesce(sum(size) filter (within), 0) as size, count(*) filter (unmatched) as unmatched
    from judged group by all
"""
_CAME = """
    select c.no, c.flow, c.source, c.target, e.every * sum(c.n) as n,
        e.every * sum(c.timed) as timed, cast(e.every * sum(c.delay) as double) as delay,
        cast(e.every * sum(c.delay_sent) as double) as delay_sent,
        e.every * sum(if(s.topic is null, c.duplicates, 0)) as duplicates,
        e.every * sum(c.reordered) as reordered, e.every * sum(c.early) as early,
        e.every * sum(c.arrived) as arrived, e.every * sum(c.unmatched) as unmatched,
        e.every * sum(c.size) as size, max(c.longest) as longest
    from cell c join factor e using (no) left join several s using (no, receiver, topic)
    group by c.no, c.flow, c.source, c.target, e.every
"""
_SUMS_SENT = """
    select p.no, p.flow, p.source, e.every * sum(p.n) as n,
        e.every * coalesce(sum(p.n) filter (p.accepted), 0) as accepted,
        e.every * sum(p.rated) as rated,
        e.every * coalesce(sum(p.rated) filter (p.accepted), 0) as rated_accepted,
        cast(e.every * sum(p.wait) as double) as wait
    from publication p join factor e using (no) group by p.no, p.flow, p.source, e.every
"""
_WITHIN_GAPS = """
    coalesce(len(list_filter({gaps}, lambda gap: {sent} >= gap.lost and {sent} <= gap.back)) > 0,
        false)
"""
_EXPECTED = f"""
    select p.no, p.flow, r.receiver, p.topic, p.accepted, r.clean, sum(p.n) as n
    from publication p join regular r using (no, topic) group by all
    union all
    select s.no, s.flow, i.receiver, s.topic, s.wait is not null, i.clean, count(*)
    from sent s join irregular i using (no, topic)
    where s.counted and s.sent >= i.since and s.sent < i.until
        and not {_WITHIN_GAPS.format(gaps="i.gaps", sent="s.sent")}
    group by all
    union all
    select no, flow, receiver, topic, accepted, true, sum(unsure) from cell where unsure > 0
    group by all
"""
# What a process that did not end may not have recorded is unknown, not lost.
_MISSING = f"""
    with wanted as (
        select no, flow, receiver, topic, accepted, sum(n) as expected, bool_and(clean) as clean
        from ({_EXPECTED}) group by no, flow, receiver, topic, accepted
    ),
    got as (
        select no, flow, receiver, topic, accepted, sum(asked) as asked, sum(n) as n
        from cell where flow is not null group by no, flow, receiver, topic, accepted
    ),
    compared as (
        select no, flow, accepted, coalesce(expected, 0) as expected,
            coalesce(clean, true) as clean,
            greatest(coalesce(w.expected, 0) - coalesce(asked, 0), 0) as lacking,
            coalesce(n, 0) - if(w.expected is null, 0, coalesce(asked, 0)) as unexpected
        from wanted w full join got using (no, flow, receiver, topic, accepted)
    )
    select no, flow, every * sum(expected) as expected, every * sum(if(clean, lacking, 0)) as lost,
        every * sum(if(clean and accepted, lacking, 0)) as lost_accepted,
        every * sum(if(clean, 0, lacking)) as unknown, every * sum(unexpected) as unexpected
    from compared join factor using (no) group by no, flow, every
"""


def bucket(value: str) -> str:
    """Return mqttree.bench.load.histogram.bucket of a `value` (ns, not negative), in SQL: values
    are off by less than 1/256 of themselves."""
    # log2 of a double may be off by one beside a power of two
    near = f"cast(floor(log2(cast(greatest({value}, 1) as double))) as int)"
    length = (
        f"({near} + 1 + if({value} >> ({near} + 1) > 0, 1, 0) - if({value} >> {near} = 0, 1, 0))"
    )
    shift = f"greatest({length} - 8, 0)"
    return f"cast(({value} >> {shift}) + ({shift} << 7) as int)"


def _histogram(column: str) -> str:
    return f"""
        select no, flow, {bucket(column)} as bucket, every * count(*) as n
        from judged join factor using (no) where timed group by no, flow, bucket, every
    """


@dataclass
class Messages:
    """What became of the messages of all runs: as in counted.Counts, but for the histograms, which
    are (no, flow, bucket, n) here."""

    spans: Spans = field(default_factory=dict)
    seconds: list[Second] = field(default_factory=list)
    came: list[Row] = field(default_factory=list)
    sent: list[Row] = field(default_factory=list)
    missing: list[Row] = field(default_factory=list)
    buckets: list[tuple[int, str, int, int]] = field(default_factory=list)
    sent_buckets: list[tuple[int, str, int, int]] = field(default_factory=list)


def read(events: Events, numbers: Sequence[int]) -> None:
    """Make the tables `published`, `accepted` and `delivered` of the messages of the runs with
    these `numbers`."""
    files, database = events.of(numbers), events.database
    published = f"""
        {_MESSAGE}, {_TIMED}, (t >= h.load_since and t < h.load_until) as counted, r.topic,
        r.broker as source, r.flow, r.size, r.late
    """
    database.make("published", files.rows(published, ("published",)))
    database.make("accepted", files.rows(_MESSAGE, ("accepted",)))
    delivered = f"{_MESSAGE}, {_TIMED}, r.client, r.broker as target, r.topic as named"
    database.make("delivered", files.rows(delivered, ("delivered",)))


def count(events: Events, into: Messages, unsure: int) -> None:
    """Add what there is to count of the messages that `read` has read to `into`. `events` are the
    traces, `unsure` is as in Bounds."""
    database = events.database
    spans, seconds = spans_and_seconds(database.rows(_SPANS))
    into.spans |= spans
    into.seconds += seconds
    _publications(database)
    _subscriptions(database, spans, unsure)
    _deliveries(database)
    if perhaps_far(spans):
        far = "select no, sum(far) as far from cell group by no having sum(far) > 0"
        note_far(events.runs, database.rows(far))
    into.came += database.rows(_CAME)
    into.sent += database.rows(_SUMS_SENT)
    into.missing += database.rows(_MISSING)
    into.buckets += database.tuples(_histogram("taken"))
    if any(about.get("late") for about in spans.values()):
        into.sent_buckets += database.tuples(_histogram("after"))


def _publications(database: Database) -> None:
    """Make the tables `sent`, with one row for each message, and `publication`, which counts those
    that were published in the load."""
    twice = "select 1 from published group by no, publisher, sequence having count(*) > 1"
    once = f"({_ONCE})" if database.some(twice) else "published"
    database.make("sent", _SENT.format(published=once))
    database.make("publication", _PUBLISHED)
    database.make("topic", "select distinct no, topic from publication")


def _subscriptions(database: Database, spans: Spans, unsure: int) -> None:
    """Make the tables of subscriptions to what was published.

    `shared`: whose messages clients with shared ones may get. `several`: receivers that cannot be
    told from others. `regular`: those that hold for all of a run's publications. `irregular`: those
    of receivers without such a one, with the gaps in which nothing need have come.
    """
    subscriptions.match(database, "topic")
    database.make("shared", subscriptions.RECEIVERS)
    database.make("several", _SEVERAL)
    database.make("wanted", _WANTED)
    database.make("gap", subscriptions.gaps(unsure))
    edges = [(no, each["first"], each["last"]) for no, each in spans.items() if "first" in each]
    database.put("edge", "no int, first long, last long", edges)
    database.make("edged", _EDGED)
    database.make("regular", _REGULAR)
    database.make("irregular", _IRREGULAR)
    database.make("spell", _SPELLS)


def _deliveries(database: Database) -> None:
    """Make the tables `judged`, with a row for each delivery, and `cell`, which counts them by who
    got them."""
    irregular = database.some("select 1 from spell")
    inside = _INSIDE.format(unsure=_WITHIN_GAPS.format(gaps="p.gaps", sent="b.sent"))
    database.make(
        "judged",
        _JUDGED.format(
            deliveries=_to_whom(database),
            inside=inside if irregular else "true as asked, false as unsure",
            spells="left join spell p using (no, receiver, topic)" if irregular else "",
        ),
    )
    database.make("cell", _CELLS)


def _to_whom(database: Database) -> str:
    """Return a query for deliveries with their receivers: the client, or a shared subscription of
    it to the topic."""
    ((most,),) = database.tuples("select max(len(receivers)) from shared")
    if most is None:
        return "select *, client as receiver from delivered"
    return _TO_ONE if most == 1 else _TO_WHOM


def prepare(events: Events) -> None:
    """Make the tables that all batches need. `events` are the traces."""
    factors = [(number, every(run)) for number, run in enumerate(events.runs)]
    events.database.put("factor", "no int, every long", factors)
    subscriptions.note(events.database, events.runs)
