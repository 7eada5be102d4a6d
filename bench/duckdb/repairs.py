"""When all clients were served again after a fault."""

from __future__ import annotations

from collections.abc import Sequence

from mqttree.bench.duckdb import subscriptions
from mqttree.bench.duckdb.events import Events
from mqttree.bench.duckdb.session import Database
from mqttree.bench.spark.faults import SERVED, Fault, Repairs, repairs, serve

_MARKS = """
    select no, t, kind, name, broker, peer from other
    where kind in ('fault', 'agreed')
        or (kind = 'role' and name not like 'state:%' and t < until)
"""
_ALIVE = """
    select s.no, s.publisher, s.sequence, s.t as sent, s.topic, f.fault, f.starts, f.ends
    from published s join spell_of_fault f on f.no = s.no and s.t >= f.starts and s.t < f.ends
    where not exists (select 1 from down d where d.fault = f.fault and d.broker = s.source)
"""
_PAIRS = f"""
    with talker as (
        select no, fault, starts, publisher, topic, max(sent) as last from alive
        group by all
    )
    select distinct t.fault, t.publisher, m.client
    from talker t join matched m using (no, topic)
    where m.since <= t.starts and m.until > t.last
        and not starts_with(m.receiver, '{subscriptions.SHARED}')
        and not exists (select 1 from down d where d.fault = t.fault and d.broker = m.broker)
"""
# What comes after it was undone, the undoing may have repaired: as with trees, it is put down to no
# fault.
_SERVED = """
    with came as (
        select a.fault, a.publisher, d.client, min(d.t) as came
        from delivered d join alive a using (no, publisher, sequence)
        where d.t < a.ends group by all
    )
    select p.fault, count(*) as pairs, count(came) as served, max(came) as last
    from pair p left join came using (fault, publisher, client) group by all
"""


def read(events: Events) -> Repairs:
    """Return how long it took all federations to agree first, and after each fault. `events` are
    the traces."""
    return repairs(events.database.rows(_MARKS))


def served(database: Database, faults: Sequence[Fault]) -> None:
    """Fill in when all clients were served again after those of the `faults` that are of runs whose
    messages `messages.read` has read."""
    mine = [fault for fault in faults if fault.kind in SERVED]
    database.put(
        "spell_of_fault",
        "no int, fault int, starts long, ends long",
        [(fault.no, index, fault.at, fault.ends) for index, fault in enumerate(mine)],
    )
    downs = [(index, broker) for index, fault in enumerate(mine) for broker in sorted(fault.down)]
    database.put("down", "fault int, broker string", downs)
    database.make("alive", _ALIVE)
    database.make("topic", "select distinct no, topic from alive")
    subscriptions.match(database, "topic")
    database.make("pair", _PAIRS)
    serve(mine, database.rows(_SERVED))
