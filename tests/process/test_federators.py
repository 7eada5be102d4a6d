"""Federators as processes beside unmodified Mosquittos: `mqttree federate --protocol spohn`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mqttree.bench.lab.launcher import Program
from tests.kit.clients import Client, clients
from tests.kit.foreign import MOSQUITTO, MosquittoBroker
from tests.kit.raw_client import RawClient
from tests.kit.waiting import PATIENCE, until

TOPIC = "federated/room/temperature"
BEACON = "federator/beacon/room/temperature"
# Long enough for a slow machine: three of them without a word end a core.
INTERVALS = ("--core-interval", "5", "--beacon-interval", "5")

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


def federate(*words: str) -> list[str]:
    return [sys.executable, "-m", "mqttree.broker.cli", "federate", "--protocol", "spohn", *words]


class Line:
    """Three Mosquittos in a line, 0 to 2, with a federator each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        brokers = [MosquittoBroker(folder, f"mosquitto-{number}") for number in range(3)]
        self.ports = [stack.enter_context(each).port for each in brokers]
        self.federators: list[Program] = []
        for number in range(3):
            neighbours = [each for each in (number - 1, number + 1) if 0 <= each < 3]
            flags = [f"--neighbour={each}={self.url(each)}" for each in neighbours]
            command = federate(
                "--broker", self.url(number), "--id", str(number), *INTERVALS, *flags
            )
            program = Program(f"federator {number}", command, folder / f"{number}.log")
            self.federators.append(program)
            program.launch()
            stack.callback(self.end, program)
        for number in range(3):
            self.connected(number)

    def url(self, number: int) -> str:
        return f"mqtt://127.0.0.1:{self.ports[number]}"

    def log(self, number: int) -> str:
        path = self.federators[number].log_path
        assert path is not None
        return path.read_text() if path.exists() else ""

    def connected(self, number: int) -> None:
        """Wait until the federator is connected to its own and its neighbours' brokers."""
        brokers = 3 if number == 1 else 2
        until(
            lambda: self.log(number).count("connected to broker") >= brokers,
            f"federator {number} is connected",
        )

    def end(self, program: Program) -> None:
        if program.running:
            program.end(signal.SIGKILL)
        assert program.log_path is not None
        print(program.name, program.log_path.read_text(), sep=":\n")


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with ExitStack() as stack:
        yield Line(tmp_path, stack)


def first_of(publisher: Client, receivers: list[Client], topic: str) -> None:
    """Publish until all receivers have got the same publication: until then the mesh is being
    formed."""
    tried: list[bytes] = []

    def reached() -> bool:
        tried.append(b"first %d of %d" % (len(tried), id(publisher)))
        publisher.publish(topic, tried[-1], 2)
        for each in receivers:
            each.publish(BEACON, b"", 2)
        return bool(set(tried).intersection(*(each.payloads(TOPIC) for each in receivers)))

    until(reached, "a publication has reached all")


def test_a_publication_at_one_mosquitto_reaches_subscribers_of_others(line: Line) -> None:
    with clients() as new:
        subscribers: list[Client] = []
        for number in (0, 2):
            subscribers.append(new(line.ports[number]))
            subscribers[-1].subscribe(TOPIC, 2)
            # The first one's broker is the core, and all know it before the second one comes: of
            # two cores one would give way, and publications would be lost meanwhile.
            first_of(new(line.ports[2]), subscribers, TOPIC)
        for number in (1, 0, 2):
            publisher = new(line.ports[number])
            first_of(publisher, subscribers, TOPIC)
            sent = [b"%d from %d" % (each, number) for each in range(20)]
            publisher.done(*[publisher.publish(TOPIC, each, 2) for each in sent])
            for each in subscribers:

                def all_here(each: Client = each, sent: list[bytes] = sent) -> bool:
                    each.publish(BEACON, b"", 2)
                    return set(sent) <= set(each.payloads(TOPIC))

                until(all_here, f"20 messages from {number}")
                here = [payload for payload in each.payloads(TOPIC) if payload in sent]
                assert here == sent
    assert line.federators[1].end(signal.SIGTERM, PATIENCE) == 0
    assert "federator of broker 1 ends: 1 topics; " in line.log(1)


def test_a_federator_survives_what_it_cannot_read(line: Line) -> None:
    with clients() as new:
        attacker = new(line.ports[1])
        for topic in (
            "federated",
            "federator/beacon",
            "federator/core_ann/x",
            "federator/routing/x",
        ):
            attacker.done(attacker.publish(topic, b"\xff" * 5, 2))
        subscriber, publisher = new(line.ports[0]), new(line.ports[2])
        subscriber.subscribe(TOPIC, 2)
        first_of(publisher, [subscriber], TOPIC)
    assert line.log(1).count("a message cannot be read") == 1


def test_a_federator_connects_again(line: Line) -> None:
    """Another client takes its session over, as its own second start would."""
    before = line.log(0).count("connected to broker 0")
    rival = RawClient(line.ports[0], "mqttree-federator-0")
    until(
        lambda: line.log(0).count("connected to broker 0") > before,
        "federator 0 is connected again",
    )
    rival.sock.close()
    assert "no connection to broker 0 at" in line.log(0)
    with clients() as new:
        subscriber, publisher = new(line.ports[0]), new(line.ports[2])
        subscriber.subscribe(TOPIC, 2)
        first_of(publisher, [subscriber], TOPIC)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--broker", "http://x"], "--broker: must be mqtt[s]://[USER@]HOST[:PORT]"),
        (["--broker", "mqtt://u:secret@x"], "a password is given by a file"),
        (["--neighbour", "2"], "--neighbour: must be mqtt[s]://"),
        (["--neighbour", "x=mqtt://h"], "--neighbour: must be ID=URL, not 'x=mqtt://h'"),
        (["--neighbour", "1=mqtt://h"], "broker 1 is given twice"),
        (["--redundancy", "0"], "redundancy is from 1"),
        (["--core-interval", "nan"], "intervals are from 0.01 to 86400 seconds"),
        (["--prefer-parent", "7"], "the preferred parent is not a neighbour"),
        (["--password-file", "no-such-file"], "cannot read no-such-file: No such file"),
        (
            ["--cafile", "no-such-file", "--neighbour", "2=mqtts://h"],
            "--cafile: cannot use no-such-file: No such file",
        ),
        (["--codec", "pickle"], "invalid choice: 'pickle'"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str) -> None:
    command = federate("--id", "1", "--broker", "mqtt://127.0.0.1", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and "secret" not in done.stderr
