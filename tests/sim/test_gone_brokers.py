"""A broker that ended without a goodbye is an alarm until it is back or the alarm is dismissed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mqttree.broker.cluster.drain import DrainOptions
from mqttree.broker.io.api.federation import brokers
from mqttree.broker.io.api.monitor import Monitor
from mqttree.broker.node import Node
from tests.kit.loop_harness import Loop
from tests.sim.world import Host, World


def federation(
    apart: tuple[int, ...] = (), seed: int = 1, **config: Any
) -> tuple[World, list[Host]]:
    """Three brokers, each of which sees the others, but for two that are kept `apart`; with
    another `seed` they come in another order."""
    world = World(seed)
    hosts = [world.add(discovery="multicast", **config) for _ in range(3)]
    if apart:
        world.block(*apart)
    for host in hosts:
        host.start()
    world.run(5.0)
    return world, hosts


def alarms(host: Host) -> list[dict[str, Any]]:
    return host.running.cluster.gone_brokers.alarms()


def warnings(host: Host) -> list[str]:
    return [text for _, level, text in host.logs if level == "warning" and "is gone" in text]


@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
def test_a_broker_that_crashed_is_an_alarm_until_it_is_back(routing: str) -> None:
    world, hosts = federation(routing=routing)
    hosts[2].kill()
    world.run(20.0)
    for host in hosts[:2]:
        [alarm] = alarms(host)
        assert alarm["id"] == hosts[2].id.hex()
        assert (alarm["ended"], alarm["seen_by"]) == ("crash", ["b0", "b1"])
        assert warnings(host) == [alarm["text"]]
        assert alarm["text"].startswith("b2 is gone since ")
        assert alarm["text"].endswith("(crash seen by b0, b1)")
    world.run(4000.0)
    assert [len(alarms(host)) for host in hosts[:2]] == [1, 1]
    hosts[2].start()
    world.run(5.0)
    assert [alarms(host) for host in hosts] == [[], [], []]


def test_a_broker_that_hangs_was_silent() -> None:
    world, hosts = federation()
    hosts[2].pause()
    world.run(20.0)
    assert [alarms(host)[0]["ended"] for host in hosts[:2]] == ["silence", "silence"]
    hosts[2].resume()
    world.run(10.0)
    assert [alarms(host) for host in hosts] == [[], [], []]


def test_a_broker_behind_one_that_crashed_is_cut_off() -> None:
    world, hosts = federation(apart=(0, 2))
    hosts[1].kill()
    world.run(20.0)
    assert {alarm["name"]: alarm["ended"] for alarm in alarms(hosts[0])} == {
        "b1": "crash",
        "b2": "cut off",
    }


@pytest.mark.parametrize("end", [Host.leave, lambda host: host.drain(DrainOptions(within=5.0))])
def test_a_broker_that_said_goodbye_is_no_alarm(end: Callable[[Host], None]) -> None:
    world, hosts = federation()
    end(hosts[2])
    world.run(30.0)
    assert not hosts[2].alive
    assert [alarms(host) + warnings(host) for host in hosts[:2]] == [[], []]


def test_a_short_absence_is_no_alarm() -> None:
    world, hosts = federation()
    hosts[2].kill()
    world.run(2.0)
    hosts[2].start()
    world.run(30.0)
    assert [alarms(host) + warnings(host) for host in hosts] == [[], [], []]


@pytest.mark.parametrize(("seed", "away"), [(0, 7.0), (1, 7.0), (1, 20.0)])
def test_a_broker_that_is_back_with_a_new_id_is_back_and_does_not_miss_itself(
    seed: int, away: float
) -> None:
    """Whether it hears before or after it is back that others have lost it, or it is an alarm."""
    world, hosts = federation(seed=seed)
    hosts[2].kill()
    world.run(away)
    hosts[2].id = b"newcomer"
    hosts[2].start()
    world.run(30.0)
    assert [alarms(host) for host in hosts] == [[], [], []]
    assert warnings(hosts[2]) == []


def test_an_alarm_that_is_dismissed_at_one_broker_is_so_at_all_until_the_next_crash() -> None:
    world, hosts = federation()
    hosts[2].kill()
    world.run(20.0)
    found: list[bool] = []

    def dismiss(node: Node) -> None:
        found.append(node.cluster.gone_brokers.dismiss(hosts[2].id))

    hosts[1].do(dismiss, hosts[1].running)
    world.run(2.0)
    hosts[1].do(dismiss, hosts[1].running)
    assert found == [True, False]
    assert [alarms(host) for host in hosts[:2]] == [[], []]
    hosts[2].start()
    world.run(5.0)
    hosts[2].kill()
    world.run(20.0)
    assert [len(alarms(host)) for host in hosts[:2]] == [1, 1]


def test_a_broker_that_starts_later_knows_the_alarms() -> None:
    world, hosts = federation()
    hosts[2].kill()
    world.run(20.0)
    late = world.add(discovery="multicast")
    late.start()
    world.run(12.0)
    assert [alarm["text"] for alarm in alarms(late)] == [alarms(hosts[0])[0]["text"]]


def test_alarms_survive_a_restart() -> None:
    world, hosts = federation()
    kept: list[Any] = []
    hosts[0].running.cluster.gone_brokers.keep = kept.append
    hosts[2].kill()
    world.run(20.0)
    hosts[0].leave()
    hosts[1].kill()
    world.run(1.0)
    hosts[0].start()
    hosts[0].running.cluster.gone_brokers.restore(kept[-1])
    assert alarms(hosts[0]) == kept[-1]
    hosts[2].start()
    world.run(5.0)
    assert alarms(hosts[0]) == kept[-1][:0]


def test_what_a_broker_with_a_wrong_clock_says_is_an_alarm_of_now() -> None:
    world, hosts = federation()
    value = bytes([255] * 8) + b"cx"
    directory = hosts[1].running.cluster.directory
    hosts[1].do(lambda node: directory.post(b"slost" + bytes(8), value), hosts[1].running)
    hosts[1].do(lambda node: directory.post(b"slost" + bytes(3), b""), hosts[1].running)
    world.run(10.0)
    [alarm] = alarms(hosts[0])
    assert (alarm["name"], alarm["seen_by"]) == ("x", ["b1"])
    assert alarm["since"] <= hosts[0].running.cluster.clock.physical(world.now) / 1000


def shown(host: Host) -> tuple[list[str], list[str]]:
    """The texts of all alarms at a broker, and the names of those that its table calls alive."""
    loop, node = Loop(), host.running
    loop.now = host.world.now
    monitor = Monitor(
        node,
        loop,  # type: ignore[arg-type]
        began=loop.now,
        legs=lambda: [],
        tell=lambda kind, data: None,
    )
    rows = brokers(node, loop.now)
    return [row["text"] for row in monitor.alarms()], [row["name"] for row in rows if row["alive"]]


@pytest.mark.parametrize("after", ["the end", "a dismissal", "a return under another id"])
def test_what_a_broker_announced_before_its_end_does_not_make_it_alive(after: str) -> None:
    world, hosts = federation()
    hosts[2].kill()
    world.run(7.0)
    names = ["b0", "b1"]
    match after:
        case "a dismissal":
            node = hosts[0].running
            hosts[0].do(lambda node: node.cluster.gone_brokers.dismiss(hosts[2].id), node)
        case "a return under another id":
            hosts[2].id = b"newcomer"
            hosts[2].start()
            names.append("b2")
    world.run(0.5)
    for host in hosts[: 3 if hosts[2].alive else 2]:
        texts, alive = shown(host)
        assert alive == names
        assert [text for text in texts if "no path" in text] == []


def rows_at(host: Host) -> list[dict[str, Any]]:
    return brokers(host.running, host.world.now)


def test_rates_of_a_broker_that_cannot_be_reached_are_not_shown_as_its_present_ones() -> None:
    rates = ("published_per_s", "delivered_per_s", "link_in_per_s", "link_out_per_s")
    world, hosts = federation(topic_rates=True)
    for host in hosts:
        host.do(lambda node: setattr(node.counters.over_links, "received", 600), host.running)
    world.run(12.0)
    assert all(row["link_in_per_s"] > 0 for row in rows_at(hosts[0]))
    hosts[2].kill()
    world.run(1.0)
    own, other, dead = rows_at(hosts[0])
    assert own["link_in_per_s"] > 0 and other["link_in_per_s"] > 0
    assert [dead[key] for key in rates] == [None] * 4
    hosts[1].kill()
    world.run(1.0)
    assert (rows_at(hosts[0])[0]["link_in_per_s"], rows_at(hosts[0])[0]["link_out_per_s"]) == (0, 0)


def test_earlier_ids_of_a_broker_that_is_back_are_no_brokers() -> None:
    world, hosts = federation()
    for new in (b"newcomer", b"oncemore"):
        hosts[2].kill()
        world.run(3.0)
        hosts[2].id = new
        hosts[2].start()
        world.run(3.0)
    for host in hosts:
        assert [row["name"] for row in rows_at(host)] == ["b0", "b1", "b2"]
        assert all(row["reachable"] for row in rows_at(host))
    hosts[2].kill()
    world.run(1.0)
    assert [row["name"] for row in rows_at(hosts[0])] == ["b0", "b1", "b2"]
