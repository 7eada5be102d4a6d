"""What links carried, what processes used, and how both went over time: from samples, which are
few."""

from __future__ import annotations

from mqttree.bench.duckdb.events import TAPPED, Events
from mqttree.bench.spark.clocks import SECOND
from mqttree.bench.spark.traffic import COUNTED, Network, network

_WITHIN = "(t >= since and t < until)"
_TAPS = """
    select no, broker as source, peer as target,
        if(kind = 'control', 'control', 'data') as "class",
        if(kind = 'control', name, 'publish') as packet,
        count(*) as packets, sum(size) as bytes,
        sum(if({within}, size, 0)) as bytes_measured
    from ({rows}) group by all
"""
_KINDS = "case name {} end".format(
    " ".join(f"when '{name}' then '{kind}'" for name, kind in COUNTED.items())
)
_SAMPLES = f"""
    with sample as (
        select *, {_WITHIN} as within, cast(floor((t - zero) / {SECOND}) as int) as second
        from other where kind in ('link', 'counted')
    ),
    one as (
        select *, 'wire' as "class", 'link' as how, "count" as packet, size as byte
        from sample where kind = 'link'
        union all
        select *, 'control', 'link', null, control_bytes from sample where kind = 'link'
        union all
        select *, 'data', 'link', null, data_bytes from sample where kind = 'link'
        union all
        select *, {_KINDS}, 'broker', null, "count" from sample where kind = 'counted'
    )
    select no, t, since, within, second, broker as source, peer as target, "class", how, packet,
        byte
    from one where byte is not null
"""
# A counter that fell began again at zero, as the first one did. What rose since a sample before the
# measured time is not of it, or not all of it; a link that is new counts from zero.
_COUNTERS = f"""
    with risen as (
        select *, lag(t) over mine as before,
            min(if(within, t, null)) over (partition by no, how) as opening,
            coalesce(lag(packet) over mine, 0) as packet_before,
            coalesce(lag(byte) over mine, 0) as byte_before
        from ({_SAMPLES})
        window mine as (partition by no, source, target, "class", how order by t)
    ),
    counted as (
        select no, source, target, "class", how, second,
            if(packet >= packet_before, packet - packet_before, packet) as packets,
            if(byte >= byte_before, byte - byte_before, byte) as bytes,
            if(within and if(before is null, t > opening, before >= since), bytes, 0) as inside
        from risen
    )
    select no, source, target, "class", how, second,
        case when grouping(target) = 0 then 'link' when grouping(source) = 0 then 'sent'
            else 'second' end as "of",
        sum(packets) as packets, sum(bytes) as bytes, sum(inside) as bytes_measured
    from counted
    group by grouping sets ((no, source, target, "class", how), (no, second, "class", how),
        (no, second, "class", how, source))
    having "of" <> 'sent' or ("class" = 'wire' and how = 'link')
"""
# A process that was restarted counts from zero, and what the process before it used after its last
# sample is in none.
_RESOURCES = f"""
    with sample as (
        select *, kind = 'fault' and name in ('start', 'restart') as starts
        from other where kind in ('resources', 'fault')
    ),
    lived as (
        select *, sum(if(starts, 1, 0)) over (
            partition by no, broker order by t rows between unbounded preceding and current row
        ) as life
        from sample where kind = 'resources' or starts
    ),
    step as (
        select *, lag(t) over mine as before, cpu_s - lag(cpu_s) over mine as rose
        from lived where kind = 'resources'
        window mine as (partition by no, broker, life order by t)
    ),
    used as (
        select no, broker as process, name as role, rss,
            if(t > before and rose >= 0 and before >= since, rose, null) as spent,
            if(spent is null, null, (t - before) / {SECOND}) as seconds
        from step where {_WITHIN}
    )
    select no, process, role, sum(spent) / sum(seconds) as cpu,
        max(spent / seconds) as cpu_most, avg(rss) as rss, max(rss) as rss_most,
        count(*) as samples
    from used group by all
"""


def read(events: Events) -> Network:
    """Return what is counted of the links and processes of all runs. `events` are the traces."""
    database = events.database
    columns = "h.no, h.since, h.until, r.kind, r.broker, r.peer, r.name, r.size"
    tapped = database.tuples(_TAPS.format(within=_WITHIN, rows=events.files.rows(columns, TAPPED)))
    return network(tapped, database.rows(_COUNTERS), database.tuples(_RESOURCES))
