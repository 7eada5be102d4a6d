"""What becomes of a placement when the rates of topics change: `mqttree bench placement drift`.
Pure, on a virtual clock.

Clients ask a controller where to connect, again and again as a `MultiClient` does, and go there;
after a while each leaves, and another one with its topics comes.
The controller knows rates as brokers measure them: what was published in ten seconds, averaged with
a half-life of a minute. Beside it, the same clients ask a controller that knows the rates as they
are; and now and then all of them are placed anew by one that does.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mqttree.bench import checked
from mqttree.bench.workloads.workload import Workload, social
from mqttree.broker.core.topic_rates import HALF_LIFE
from mqttree.broker.core.traffic_meter import PERIOD
from mqttree.placement.broker_table import BrokerLoad
from mqttree.placement.case import Unit
from mqttree.placement.controller import TTL, Controller
from mqttree.placement.question import Answer, Question

AGAIN = TTL / 2
"""s after which a client asks again."""

REDRAWN = 600.0
"""s after which the rates of some topics are other ones."""

ALPHA = 1.13
"""Shape of the popularity of topics."""

WARM = 900.0
"""s until averages stand, and each client has asked several times: not counted."""

STAYS = 1800.0
"""s for which a client stays."""


@dataclass(frozen=True)
class Drift:
    """How rates change."""

    deviation: float
    """Of the rates, as a multiple of their mean (lognormal)."""
    mean: float
    """Their mean (messages/s)."""
    redrawn: float
    """The part of all topics that get another rate every `REDRAWN` s."""
    jitter: float
    """How far a rate is from its mean at most in each `PERIOD`, as a part of it."""


@dataclass(frozen=True)
class Drifted:
    """What came of it. Traffic between brokers in messages/s, the mean over the time."""

    measured: float
    """By measured rates."""
    known: float
    """By rates as they are."""
    anew: float
    """By these, where all clients have just been placed anew."""
    moves: int
    """Subscriptions that went to another broker, by measured rates."""


class Rates:
    """The rates of topics, and what brokers measure of them."""

    def __init__(self, topics: int, drift: Drift, seed: int) -> None:
        """`topics`: how many; `drift`: how they change; `seed`: of what is drawn."""
        self._drift = drift
        self._drawn = random.Random(f"drift {seed}")
        self._sigma = math.sqrt(math.log1p(drift.deviation * drift.deviation))
        self._base = [self._draw() for _ in range(topics)]
        self.true = list(self._base)
        """Messages/s in this period."""
        self.measured = list(self._base)
        """What brokers know of them."""

    def _draw(self) -> float:
        half = self._sigma * self._sigma / 2
        return self._drift.mean * self._drawn.lognormvariate(-half, self._sigma)

    def redraw(self) -> None:
        """Give some topics another rate."""
        count = round(self._drift.redrawn * len(self._base))
        for topic in self._drawn.sample(range(len(self._base)), count):
            self._base[topic] = self._draw()

    def go_on(self) -> None:
        """Let a period pass, and have brokers measure it."""
        part = self._drift.jitter
        uniform = self._drawn.uniform
        self.true = [rate * (1 + uniform(-part, part)) for rate in self._base]
        kept = 0.5 ** (PERIOD / HALF_LIFE)
        self.measured = [
            kept * before + (1 - kept) * _poisson(rate * PERIOD, self._drawn) / PERIOD
            for before, rate in zip(self.measured, self.true, strict=True)
        ]


class Advised:
    """Clients that go where a controller tells them, and what that one knows."""

    def __init__(self, work: Workload, brokers: int, seed: int) -> None:
        """`work`: the clients and topics; `brokers`: how many; `seed`: of where publishers are."""
        self.controller = Controller()
        self._names = [f"b{number}" for number in range(brokers)]
        at = work.publishers_on(brokers, seed)
        self._publisher = [self._names[at[topic]] for topic in range(len(work.rates))]
        self._units = [
            [Unit((f"{topic}",), (f"{topic}",)) for topic in topics] for topics in work.clients
        ]
        self._sessions = work.sessions
        # Topic -> broker -> clients that have it there.
        self._there: list[dict[str, int]] = [{} for _ in self._publisher]
        self._answers: list[Answer | None] = [None] * len(work.clients)
        self._rates: list[dict[str, float]] = []
        self._loads: tuple[BrokerLoad, ...] = ()

    def learn(self, rates: Sequence[float]) -> None:
        """Let the controller know other `rates` of topics (messages/s)."""
        self._rates = [{broker: rate} for broker, rate in zip(self._publisher, rates, strict=True)]
        came = dict.fromkeys(self._names, 0.0)
        went = dict.fromkeys(self._names, 0.0)
        for broker, rate, there in zip(self._publisher, rates, self._there, strict=True):
            came[broker] += rate
            for name, count in there.items():
                went[name] += count * rate
        self._loads = tuple(
            [
                BrokerLoad(name, f"{name}:1883", 1.0, False, came[name], went[name], 0.0, 0.0)
                for name in self._names
            ]
        )

    def ask(self, client: int, now: float) -> None:
        """Have a `client` ask at `now` (s), and go where it is told."""
        units = self._units[client]
        names = tuple([unit.topics[0] for unit in units])
        question = Question(f"c{client}", names, sessions=self._sessions)
        # Its own filters show at the brokers where it is.
        answer = self.controller.place(question, units, self, now)
        self._count(self._answers[client], -1)
        self._answers[client] = answer
        self._count(answer, 1)

    def leave(self, client: int) -> None:
        """Let a `client` go."""
        self._count(self._answers[client], -1)
        self._answers[client] = None
        self.controller.forget(f"c{client}")

    def _count(self, answer: Answer | None, sign: int) -> None:
        for session in () if answer is None else answer.sessions:
            for name in session.subscribe:
                there = self._there[int(name)]
                there[session.broker] = there.get(session.broker, 0) + sign
                if not there[session.broker]:
                    del there[session.broker]

    def internal(self, rates: Sequence[float]) -> float:
        """Return the traffic between brokers at these `rates` (messages/s)."""
        return math.fsum(
            rate * (len(there) - (broker in there))
            for rate, there, broker in zip(rates, self._there, self._publisher, strict=True)
        )

    # ---------------------------------------------------------------- what its controller asks

    def brokers(self) -> Sequence[BrokerLoad]:
        """Return all brokers, and their loads as they were measured last."""
        return self._loads

    def rates(self, topic: str) -> Mapping[str, float]:
        """Return the rate of a topic, by broker."""
        return self._rates[int(topic)]

    def wanted(self, topic: str) -> Collection[str]:
        """Return the brokers with a subscriber of a topic."""
        return tuple(self._there[int(topic)])

    def rare(self) -> float:
        """Return the rate of topics that are not known: there are none."""
        return 0.0

    def state(self) -> None:
        """Say that each topic has to be asked for: clients move all the time."""


def simulate(
    work: Workload, brokers: int, drift: Drift, seconds: float, seed: int, *, come: bool = True
) -> Drifted:
    """Return what becomes of a workload while its rates change.

    `work`: the clients and topics, whose own rates do not count; `brokers`: how many; `drift`: how
    rates change; `seconds`: how long that is looked at; `seed`: of what is drawn; `come`: whether
    clients leave and others come.
    """
    rates = Rates(len(work.rates), drift, seed)
    measured, known = Advised(work, brokers, seed), Advised(work, brokers, seed)
    count = len(work.clients)
    sums, anew, before = [0.0, 0.0], [], 0
    steps = round((WARM + seconds) / PERIOD)
    warm, round_of = round(WARM / PERIOD), round(AGAIN / PERIOD)
    for step in range(steps):
        now = step * PERIOD
        if step and step % round(REDRAWN / PERIOD) == 0:
            rates.redraw()
        rates.go_on()
        measured.learn(rates.measured)
        known.learn(rates.true)
        for client in range(step % round_of, count, round_of):
            # Each in another round.
            gone = come and (step // round_of + client // round_of) % round(STAYS / AGAIN) == 0
            for each in (measured, known):
                if gone:
                    each.leave(client)
                each.ask(client, now)
        if step == warm:
            before = measured.controller.moves
        if step >= warm:
            sums[0] += measured.internal(rates.true)
            sums[1] += known.internal(rates.true)
            if step % round_of == 0:
                anew.append(_placed_anew(work, brokers, rates.true, seed))
    return Drifted(
        sums[0] / (steps - warm),
        sums[1] / (steps - warm),
        math.fsum(anew) / len(anew),
        measured.controller.moves - before,
    )


def _placed_anew(work: Workload, brokers: int, rates: Sequence[float], seed: int) -> float:
    """Return the traffic between brokers (messages/s) when all clients come one after the other."""
    fresh = Advised(work, brokers, seed)
    for client in range(len(work.clients)):
        if client % 50 == 0:
            fresh.learn(rates)
        fresh.ask(client, 0.0)
    return fresh.internal(rates)


def _poisson(mean: float, drawn: random.Random) -> float:
    """Return how many messages come where so many (`mean`) are expected."""
    if mean > 50:
        return max(0.0, round(drawn.gauss(mean, math.sqrt(mean))))
    least, product, found = math.exp(-mean), drawn.random(), 0
    while product > least:
        product *= drawn.random()
        found += 1
    return float(found)


def add_arguments(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = commands.add_parser("drift", help="what becomes of a placement when rates change")
    checked.add_counts(
        parser,
        (
            ("clients", 300, 100_000, "clients, and as many topics"),
            ("each", 10, 1000, "topics of a client"),
            ("brokers", 8, 64, "brokers"),
            ("seeds", 8, 1000, "runs, each with other draws"),
        ),
    )
    for name, number, purpose in (
        ("rate", 10.0, "messages/s of a topic, on average (10)"),
        ("seconds", 3600.0, "of virtual time (3600)"),
    ):
        parser.add_argument(
            f"--{name}", type=checked.positive, default=number, metavar="X", help=purpose
        )
    parser.set_defaults(handler=main)


def main(arguments: argparse.Namespace) -> int:
    """Carry out the command. Raises ValueError, in one line, for bad input."""
    print(
        f"{'rates':>10} {'measured/known':>15} {'least':>6} {'most':>6} {'measured/anew':>14} "
        f"{'moves':>6}"
    )
    for name, drift in (
        ("redrawn", Drift(4.0, arguments.rate, 0.1, 0.0)),
        ("jitter", Drift(4.0, arguments.rate, 0.0, 0.3)),
    ):
        found = []
        for seed in range(1, arguments.seeds + 1):
            count = arguments.clients
            work = social(count, count, arguments.each, ALPHA, seed)
            brokers, come = arguments.brokers, name == "redrawn"
            found.append(simulate(work, brokers, drift, arguments.seconds, seed, come=come))
        parts = [_part(each.measured, each.known) for each in found]
        print(
            f"{name:>10} {_ratio(found, 'known'):>15.3f} {min(parts):>6.3f} {max(parts):>6.3f} "
            f"{_ratio(found, 'anew'):>14.3f} {sum(each.moves for each in found):>6}"
        )
    return 0


def _ratio(found: Sequence[Drifted], other: str) -> float:
    measured = math.fsum(each.measured for each in found)
    return _part(measured, math.fsum(getattr(each, other) for each in found))


def _part(one: float, other: float) -> float:
    """Return a ratio; without any traffic that is 1."""
    return one / other if other else math.inf if one else 1.0
