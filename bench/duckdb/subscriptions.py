"""Who should have got what: subscriptions as intervals of time for each topic that was
published."""

from __future__ import annotations

from collections.abc import Iterable

from mqttree.bench.duckdb.session import Database
from mqttree.bench.spark.source import Run
from mqttree.bench.trace.repair import FOREVER

SHARED = "$share/"
_SHARE = r"^\$share/[^/]+/(.*)$"
_INTERVALS = f"""
    with said as (
        select *, min(if(kind = 'unsubscribed', t, null)) over (
            partition by no, client, broker, topic order by t
            rows between 1 following and unbounded following
        ) as ends
        from other where kind in ('subscribed', 'unsubscribed')
    )
    select no, client, broker, t as since, coalesce(ends, {FOREVER}) as until,
        if(regexp_matches(topic, '{_SHARE}'), topic, client) as receiver,
        if(regexp_matches(topic, '{_SHARE}'), regexp_extract(topic, '{_SHARE}', 1), topic)
            as filter,
        (no, process) not in (select (no, process) from broken) as clean
    from said where kind = 'subscribed'
"""
"""(no, client, broker, receiver, filter, since, until, clean): from SUBACK to unsubscription.

receiver: the client, or a shared subscription ($share/GROUP/FILTER), all of whose members are one.
A client that another broker takes over has two that overlap. clean: the process that notes its
deliveries recorded everything.
"""
_MATCHED = r"""
    with wild as (
        select distinct no, filter, regexp_extract(filter, '^((?:[^/+#]*/)*)', 1) as start,
            string_split(if(filter = '#', '', regexp_replace(filter, '/#$', '')), '/') as levels,
            case when filter = '#' then '.*' when filter like '%/#' then '(/.*)?' else '' end
                as rest
        from subscription where regexp_matches(filter, '[+#]')
    ),
    pattern as (
        select no, filter, start,
            '^' || array_to_string(list_transform(levels, lambda level:
                replace(regexp_escape(level), '\+', '[^/]*')), '/') || rest || '$' as pattern
        from wild
    ),
    levels as (select no, topic, string_split(topic, '/') as level from {topics}),
    begins as (
        select no, topic, unnest(list_transform(range(len(level) + 1), lambda n:
            if(n = 0, '', array_to_string(level[1:n], '/') || '/'))) as start
        from levels
    ),
    fits as (
        select no, filter, topic from pattern join begins using (no, start)
        where regexp_matches(topic, pattern)
            and not (regexp_matches(filter, '^[+#]') and starts_with(topic, '$'))
        union all
        select distinct s.no, s.filter, s.filter from subscription s
        join {topics} p on p.no = s.no and p.topic = s.filter
        where not regexp_matches(s.filter, '[+#]')
    )
    select s.*, f.topic from subscription s join fits f using (no, filter)
"""
_MERGED = """
    with opened as (
        select *, max(until) over (
            partition by {keys} order by since, until
            rows between unbounded preceding and 1 preceding
        ) as before
        from matched
    ),
    numbered as (
        select *, sum(if(before is null or since > before, 1, 0)) over (
            partition by {keys} order by since, until
            rows between unbounded preceding and current row
        ) as island
        from opened
    )
    select {keys}, min(since) as since, max(until) as until, bool_and(clean) as clean
    from numbered group by {keys}, island
"""


def note(database: Database, runs: Iterable[Run]) -> None:
    """Make the table `subscription` of all subscriptions of all `runs`."""
    broken = [(no, process) for no, run in enumerate(runs) for process in sorted(run.broken)]
    database.put("broken", "no int, process string", broken)
    database.make("subscription", _INTERVALS)


def match(database: Database, topics: str) -> None:
    """Make the table `matched`: subscriptions with the topics that their filters match, one row for
    each. `topics` is a table of (no, topic).

    A filter with wildcards is only tried on topics that begin as it does.
    """
    database.make("matched", _MATCHED.format(topics=topics))


def merged(*of: str) -> str:
    """Return a query for (no, receiver, topic, of, since, until, clean), intervals of `matched`
    that overlap made one."""
    return _MERGED.format(keys=", ".join(("no", "receiver", "topic", *of)))


def gaps(unsure: int) -> str:
    """Return a query for (no, receiver, topic, gaps): when what was published need not have come,
    as (lost, back), with `unsure` ns around.

    As in mqttree.bench.runner.book: of a shared subscription the interruptions of each of its
    members, and one that does not end goes on.
    """
    return f"""
        with mine as (
            select *, coalesce(lead(since) over (
                partition by no, receiver, topic, client order by since
            ), {FOREVER - unsure}) + {unsure} as back
            from ({merged("client")})
        )
        select no, receiver, topic, list({{'lost': until - {unsure}, 'back': back}}) as gaps
        from mine where until < {FOREVER} group by all
    """


RECEIVERS = f"""
    select no, client, topic,
        list(receiver order by starts_with(receiver, '{SHARED}'), receiver) as receivers,
        count(*) filter (starts_with(receiver, '{SHARED}')) as shared
    from (select distinct no, client, topic, receiver from matched)
    group by no, client, topic having shared > 0
"""
"""(no, client, topic, receivers, shared): of whom clients with shared subscriptions may get a
topic's messages for: the client itself first, if it has a subscription of its own; shared: how many
of them are shared ones."""
