"""A broker that is killed, and started again: real processes and paho (docs/decisions/0021). In a
federation: tests/sim/test_outages.py, test_durability.py, test_debts.py."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqttree.broker.config.data_dir import DataDir
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import clients
from tests.kit.waiting import PATIENCE, until

MODES = ["async", "sync"]


def one(folder: Path, *flags: str) -> Cluster:
    return Cluster(folder, "--discovery", "off", *flags)


def again(broker: Broker) -> Broker:
    """Kill -9 and start."""
    broker.kill()
    return broker.start().up()


def offline(broker: Broker, client_id: str, topic_filter: str, qos: int = 2) -> None:
    """A session whose client is away."""
    with clients() as make:
        make(broker.port, client_id=client_id, clean=False, expiry=3600).subscribe(
            topic_filter, qos
        )


@pytest.mark.parametrize("mode", MODES)
def test_acknowledged_messages_are_there_after_kill_9(tmp_path: Path, mode: str) -> None:
    """Killed in the middle of a stream: all that was acknowledged comes, in order, nothing
    twice."""
    with one(tmp_path, "--durability", mode) as cluster, clients() as make:
        broker = cluster.add().up()
        offline(broker, "away", "d/#")
        publisher = make(broker.port)
        payloads = [(qos, b"%d %d" % (qos, n)) for n in range(400) for qos in (1, 2)]
        sent = {publisher.publish(f"d/{qos}", payload, qos): payload for qos, payload in payloads}
        until(lambda: len(publisher.acknowledged) > 100, "acknowledgements")
        broker.kill()
        assert publisher.lost.wait(PATIENCE)
        acknowledged = {sent[mid] for mid in publisher.acknowledged}
        broker.start().up()
        subscriber = make(broker.port, client_id="away", clean=False, expiry=3600)
        assert subscriber.session_present
        until(lambda: acknowledged <= set(subscriber.payloads()), "all that was acknowledged")
        got = subscriber.payloads()
        assert len(got) == len(set(got))
        for qos in (1, 2):
            numbers = [int(p.split()[1]) for p in got if p.startswith(b"%d " % qos)]
            assert numbers == sorted(numbers)


# ---------------------------------------------------------------- a disk that is full


@pytest.mark.parametrize("mode", MODES)
def test_a_full_disk_is_reported_and_the_broker_recovers_by_itself(
    tmp_path: Path, mode: str
) -> None:
    """Async goes on and says so; sync acknowledges nothing that it could not write. With room again
    all is well, unattended."""
    with one(tmp_path, "--durability", mode) as cluster, clients() as make:
        broker = cluster.add().up()
        offline(broker, "away", "d")
        assert broker.process is not None
        _, hard = resource.prlimit(
            broker.process.pid, resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY)
        )
        publisher = make(broker.port)
        mids = [publisher.publish("d", b"%03d" % n + b"x" * 1000, 1) for n in range(60)]
        until(lambda: broker.lines("the journal cannot be written"), "a line about it")
        assert len(broker.lines("ERROR", "journal")) == 1
        other = make(broker.port)  # whoever wants nothing kept is served
        other.subscribe("q", 1)
        other.done(other.publish("q", b"x", 1))
        if mode == "async":
            publisher.done(*mids)
        else:
            assert len(publisher.acknowledged) < 60
            until(lambda: broker.counter("journal_errors") > 1, "another attempt")
            assert len(publisher.acknowledged) < 60
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        publisher.done(*mids)
        until(
            lambda: broker.lines("the journal contains everything again"), "a line that it is over"
        )
        again(broker)
        away = make(broker.port, client_id="away", clean=False, expiry=3600)
        assert [p[:3] for p in away.got(60)] == [b"%03d" % n for n in range(60)]


def without_journal(folder: Path) -> None:
    shutil.rmtree(folder / "journal")


def emptied(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def cut_off(folder: Path) -> None:
    os.truncate(folder / "journal" / "00000001", 0)


def replaced(folder: Path) -> None:
    moved(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    ("lose", "mode"),
    [
        *((without_journal, mode) for mode in MODES),
        *((emptied, mode) for mode in MODES),
        (cut_off, "async"),
        (moved, "async"),
        (replaced, "async"),
    ],
)
def test_what_is_removed_is_reported_and_written_again(
    tmp_path: Path, lose: Callable[[Path], None], mode: str
) -> None:
    """The journal, or who the broker is, too."""
    with one(tmp_path, "--durability", mode) as cluster, clients() as make:
        broker = cluster.add().up()
        own = broker.view()["id"]
        offline(broker, "away", "d")
        publisher = make(broker.port)
        publisher.done(publisher.publish("d", b"before", 1))
        lose(broker.data_dir)
        until(lambda: broker.lines("the journal contains everything again"), "a new journal")
        assert len(broker.lines("ERROR", "the journal cannot be written")) == 1
        publisher.done(publisher.publish("d", b"after", 1))
        again(broker)
        assert broker.view()["id"] == own
        away = make(broker.port, client_id="away", clean=False, expiry=3600)
        assert away.got(2) == [b"before", b"after"]


def test_a_directory_that_another_broker_took_is_left_to_it(tmp_path: Path) -> None:
    with one(tmp_path) as cluster:
        broker = cluster.add().up()
        emptied(broker.data_dir)
        DataDir(broker.data_dir)
        until(lambda: broker.counter("journal_errors") > 2, "attempts")
        assert len(broker.lines("ERROR", "the journal cannot be written")) == 1
        assert [path.name for path in broker.data_dir.iterdir()] == ["lock"]
