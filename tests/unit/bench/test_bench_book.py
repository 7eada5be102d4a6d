"""What is booked of a run: losses, duplicates, order, interruptions; the printed table."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.runner import one_run
from mqttree.bench.runner.book import UNSURE_NS, Book
from mqttree.bench.scenarios import run_table
from mqttree.bench.scenarios.workload import ClientSpec, matches, shares

S = 1_000_000_000


def book(qos: int = 2, shared: bool = False) -> tuple[Book, list[ClientSpec]]:
    topic_filter = "$share/g/t" if shared else "t"
    subscribers = [ClientSpec(f"s{n}", "", "h", "b", (topic_filter,)) for n in range(2)]
    publisher = ClientSpec("p", "", "h", "b", ("t",), 0)
    kept = Book([*subscribers, publisher], {"": qos})
    for receiver in kept.receivers.values():
        receiver.since = 1
    return kept, subscribers


def test_an_accepted_message_that_did_not_come_is_lost() -> None:
    kept, (one, other) = book()
    for due in range(4):
        kept.publish(0, due, due)
    for sequence in (0, 1, 2):
        kept.accept(0, sequence)
    kept.accept(0, 0)
    for sequence in (0, 1, 3):
        assert kept.deliver(kept.receiver(one), 0, sequence, 100)
    assert kept.deliver(kept.receiver(other), 0, 0, 100)
    figures = kept.summary(2.0)[""]
    assert (
        figures["published"],
        figures["accepted"],
        figures["unaccepted"],
        figures["delivered"],
    ) == (4, 3, 1, 4)
    assert (figures["lost"], figures["expected"], figures["unsure"]) == (1 + 2, 4 + 3, 0), (
        "3 was not accepted, but came to one"
    )
    assert kept.outstanding == 4 and figures["published_per_s"] == 2.0


def test_subscribers_have_delays_and_the_longest_outage_of_their_own() -> None:
    kept, (one, other) = book()
    for sent in range(10):
        kept.publish(0, sent * S, sent * S)
        if sent != 3:
            kept.accept(0, sent)
    for sequence, delay in ((0, 10), (1, 20), (6, 30), (8, 40)):
        kept.deliver(kept.receiver(one), 0, sequence, sequence * S + delay * 1_000_000)
    found = kept.subscribers()
    assert found[one.name]["delivered"] == 4 and found[one.name]["delay_mean_ms"] == 25
    assert round(found[one.name]["delay_sd_ms"], 3) == 12.91
    assert found[one.name]["outage_s"] == 4, "2, 4 and 5 are lost, 3 was never accepted"
    assert found[other.name]["outage_s"] == 9 and found[other.name]["delay_mean_ms"] is None
    kept.receiver(other).gaps.append((0, 9 * S))
    assert kept.subscribers()[other.name]["outage_s"] == 0, "it was not there"


def test_lateness_of_the_generator_is_in_the_delay_and_beside_it() -> None:
    kept, (one, _) = book()
    kept.publish(0, 1_000_000, 4_000_000)
    kept.deliver(kept.receiver(one), 0, 0, 6_000_000)
    figures = kept.summary(1.0)[""]
    assert (
        figures["delay_mean_ms"] == figures["delay_p50_ms"] == 5.0
        and figures["delay_sent_mean_ms"] == figures["delay_sent_p99_ms"] == 2.0
        and figures["lag_p99_ms"] == 3.0
    )


def test_a_qos_0_message_is_expected_once_it_was_published() -> None:
    kept, (one, _) = book(qos=0)
    kept.publish(0, 0, 0)
    kept.deliver(kept.receiver(one), 0, 0, 10)
    assert kept.missing("") == (2, 1, 0)


def test_duplicates_and_reordered_messages_are_counted() -> None:
    kept, (one, _) = book()
    for due in range(3):
        kept.publish(0, due, due)
    for sequence in (0, 2, 1, 1, 0):
        kept.deliver(kept.receiver(one), 0, sequence, 10)
    assert (kept.flows[""].duplicates, kept.flows[""].reordered) == (2, 1)
    assert not kept.deliver(kept.receiver(one), 0, 3, 10) and not kept.deliver(
        kept.receiver(one), 7, 0, 10
    )


def test_a_shared_subscription_is_one_receiver() -> None:
    kept, (one, other) = book(shared=True)
    kept.publish(0, 0, 0)
    assert kept.receiver(one) is kept.receiver(other) and kept.outstanding == 1
    kept.deliver(kept.receiver(one), 0, 0, 10)
    kept.deliver(kept.receiver(other), 0, 0, 10)
    assert kept.flows[""].duplicates == 1 and kept.outstanding == 0


def test_messages_around_an_interruption_are_not_expected() -> None:
    kept, (one, other) = book(qos=0)
    kept.receiver(other).since = 0
    for due in (0, 10 * S - UNSURE_NS, 10 * S, 12 * S, 14 * S):
        kept.publish(0, due, due)
    kept.receiver(one).gaps.append((10 * S, 12 * S))
    assert kept.missing("") == (2, 2, 3 + 5)


def record(number: int, delay: float | None, status: str = "complete") -> dict[str, Any]:
    flows = {} if delay is None else {"": {"delay_mean_ms": delay, "lost": 0, "delivered": 5}}
    return {
        "cell": {"topics": 3},
        "repetition": number,
        "summary": {"flows": flows},
        "status": status,
        "scenario": "s",
        "failures": [] if status == "complete" else ["b1 ended with code 1"],
    }


def test_classes_of_a_mix_are_compared_with_runs_of_their_own() -> None:
    def run(mix: str, **rates: float) -> dict[str, Any]:
        flows = {name: {"delivered_per_s": rate} for name, rate in rates.items()}
        return {"cell": {"cpu": 0.5, "mix": mix}, "status": "complete", "summary": {"flows": flows}}

    (table,) = run_table.ratios(
        [run("a", a=10.0), run("b", b=4.0), run("a+b", a=5.0, b=3.0), run("a+c", a=5.0, c=1.0)]
    )
    lines = [[word.strip() for word in line.split("|")[1:-1]] for line in table.splitlines()[5:]]
    assert lines == [
        ["cpu=0.5", "a+b", "a", "10.0", "5.0", "0.50"],
        ["cpu=0.5", "a+b", "b", "4.0", "3.0", "0.75"],
        ["cpu=0.5", "a+c", "a", "10.0", "5.0", "0.50"],
    ]
    assert run_table.ratios([record(1, 2.0)]) == []


def test_the_table_shows_failed_runs_as_failed() -> None:
    records = [record(1, 2.0), record(2, 4.0), record(3, None, "failed")]
    headings, lines = run_table.rows(records, ["delay_mean_ms", "lost", "repair_s"])
    assert headings == ["topics", "delay ms", "lost", "repair s", "runs", "state"]
    assert lines == [["3", "3.00 ±1.41 (2/3)", "0 ±0 (2/3)", "-", "3", "1 failed, 2 ok"]]
    assert run_table.failures(records) == ["s topics=3 r3: failed: b1 ended with code 1"]
    assert "| 3 " in run_table.text("title", headings, lines)


def test_a_run_that_failed_is_in_no_average() -> None:
    good, failed = record(1, 10.0), record(2, 90.0, "failed")
    for each, value in ((good, 10), (failed, 90)):
        phase = dict.fromkeys(("seconds", "control_bytes", "data_bytes", "bytes"), value)
        each["summary"]["phases"] = [phase | {"name": "idle"}]
    _, lines = run_table.rows([good, failed], ["delay_mean_ms"])
    assert lines == [["3", "10.00 (1/2)", "2", "1 failed, 1 ok"]]
    assert run_table.rows([failed], ["delay_mean_ms"])[1] == [["3", "-", "1", "failed"]]
    (table,) = run_table.phases([good, failed])
    assert (
        table.splitlines()[-1].split("|")[1:3] == [" idle (1/2) ", " 10.0    "]
        and "90" not in table
    )

    def run(mix: str, status: str, **rates: float) -> dict[str, Any]:
        flows = {name: {"delivered_per_s": rate} for name, rate in rates.items()}
        return {"cell": {"mix": mix}, "status": status, "summary": {"flows": flows}}

    runs = [
        run("a", "complete", a=10.0),
        run("a", "failed", a=900.0),
        run("a+b", "failed", a=1.0),
        run("a+b", "complete", a=5.0),
    ]
    (table,) = run_table.ratios(runs)
    assert [word.strip() for word in table.splitlines()[-1].split("|")[4:-1]] == [
        "10.0 (1/2)",
        "5.0 (1/2)",
        "0.50",
    ]


def test_figures_that_a_complete_run_lacks_are_named() -> None:
    run = record(1, 2.0)
    run["summary"] |= {
        "skipped": 3,
        "interruptions": 2,
        "missing": {"repair_s": "1 of 2 faults not repaired"},
    }
    assert run_table.remarks([run, record(2, 1.0), record(3, None, "failed")], ["repair_s"]) == [
        "s topics=3 r1: no repair s: 1 of 2 faults not repaired; 3 messages were not published, "
        "as their publishers were not connected; 2 connections of clients were lost"
    ]
    assert "repair" not in run_table.remarks([run], ["lost"])[0], "it was not asked for"


def test_ramps_are_in_no_rate_and_no_delay_and_their_losses_count() -> None:
    kept, (one, _) = book()
    kept.steady = (2 * S, 4 * S)
    for second in range(6):
        kept.publish(0, second * S, second * S)
        kept.accept(0, second)
        if second != 1:
            kept.deliver(kept.receiver(one), 0, second, second * S + second * 1_000_000)
    figures = kept.summary(2.0)[""]
    rates = [figures[f"{what}_per_s"] for what in ("published", "accepted", "delivered")]
    assert rates == [1, 1, 1] and figures["delay_mean_ms"] == 2.5
    assert (figures["published"], figures["delivered"], figures["lost"]) == (6, 5, 1 + 6)


def test_what_processes_of_the_generator_booked_adds_up() -> None:
    whole, (one, _) = book()
    first, _ = book()
    second, _ = book()
    for number, (part, delay) in enumerate(((first, 10), (second, 30))):
        for kept in (whole, part):
            sent = number * S
            sequence = kept.publish(0, sent, sent)
            kept.accept(0, sequence)
            kept.deliver(kept.receiver(one), 0, sequence, sent + delay * 1_000_000)
    done = [
        {
            "flows": part.closed(),
            "steady": seconds,
            "subscribers": {name: {}},
            "interruptions": 1,
            "skipped": 2,
            "opened": {},
            "generator_cpu": used,
        }
        for part, seconds, name, used in ((first, 1.9, "s0", 0.5), (second, 2.0, "s1", 0.25))
    ]
    found = one_run.done(done)
    assert found["flows"] == whole.summary(2.0) and found["flows"][""]["lost"] == 2
    assert (found["generator_cpu"], found["generators"]) == (0.75, [0.5, 0.25])
    assert (found["interruptions"], found["skipped"]) == (2, 4)
    assert set(found["subscribers"]) == {"s0", "s1"}


@given(
    topics=st.lists(st.integers(0, 6), max_size=8),
    filters=st.lists(
        st.sampled_from(["0", "1", "2", "3", "#", "$share/g/4", "$share/h/#"]), max_size=8
    ),
    count=st.integers(1, 4),
)
def test_each_message_and_shared_subscription_stays_in_one_process(
    topics: list[int], filters: list[str], count: int
) -> None:
    names = [f"t/{each}" for each in topics]
    wanted = [f"{each[:-1]}t/{each[-1]}" for each in filters]
    specs = [ClientSpec(f"s{n}", "", "h", "b", (each,)) for n, each in enumerate(wanted)]
    specs += [ClientSpec(f"p{n}", "", "h", "b", (each,), n) for n, each in enumerate(names)]
    parts = shares(specs, count)
    assert sorted(each.name for part in parts for each in part) == sorted(s.name for s in specs)
    assert len(parts) <= count and all(parts)
    home = {each.name: number for number, part in enumerate(parts) for each in part}
    for one in specs:
        for other in specs:
            mine, theirs = one.topics[0], other.topics[0]
            hears = one.number < 0 <= other.number and matches(mine, theirs)
            joined = mine == theirs and mine.startswith("$share/")
            assert not (hears or joined) or home[one.name] == home[other.name]


def test_clients_that_share_nothing_are_spread_evenly() -> None:
    specs = [ClientSpec(f"s{n}", "", "h", "b", (f"t/{n}",)) for n in range(10)]
    specs += [ClientSpec(f"p{n}", "", "h", "b", (f"t/{n}",), n) for n in range(10)]
    assert [len(part) for part in shares(specs, 2)] == [10, 10]
