"""What was published, accepted and delivered, message by message: losses, duplicates and order of a
run while it lasts. Pure.

The trace says the same and more; this is for the table that is printed at once, and for knowing
when everything has arrived.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqttree.bench.load.histogram import Histogram
from mqttree.bench.scenarios.workload import ClientSpec, matches

UNSURE_NS = 1_000_000_000
"""ns around an interruption of a subscriber: what was published so shortly before or after it need
not have arrived."""


@dataclass(slots=True)
class Published:
    """One publisher's messages: when each was sent (ns), how much later than it was due (ns), and
    which were accepted."""

    spec: ClientSpec
    qos: int
    times: array[int] = field(default_factory=lambda: array("q"))
    late: array[int] = field(default_factory=lambda: array("q"))
    accepted: bytearray = field(default_factory=bytearray)
    acceptances: int = 0
    echoes: int = 0
    """First deliveries of its messages, over all receivers."""


MAX_SUBSCRIBERS = 100
"""Subscribers beyond which none has figures of its own."""


@dataclass(slots=True)
class Delays:
    """Delays in ns, as sums."""

    count: int = 0
    total: int = 0
    squares: int = 0

    def add(self, delay: int) -> None:
        """Take one of `delay` ns."""
        self.count += 1
        self.total += delay
        self.squares += delay * delay

    @property
    def mean_ms(self) -> float | None:
        """ms; None without any."""
        return self.total / self.count / 1e6 if self.count else None

    @property
    def deviation_ms(self) -> float | None:
        """Their standard deviation in ms; None for fewer than two."""
        if self.count < 2:
            return None
        spread = self.squares - self.total * self.total / self.count
        return math.sqrt(max(0.0, spread) / (self.count - 1)) / 1e6


@dataclass(slots=True)
class Receiver:
    """A subscriber, or all members of a shared subscription: how often each message has come, by
    publisher."""

    filters: tuple[str, ...]
    members: int = 0
    counts: dict[int, bytearray] = field(default_factory=dict)
    highest: dict[int, int] = field(default_factory=dict)
    since: int = 0
    """ns; when the (last) subscription was acknowledged."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """(lost, back) in ns; back 0: not yet."""
    shared: bool = False
    delays: Delays = field(default_factory=Delays)
    came: int = 0
    """First deliveries."""


@dataclass(slots=True)
class Flow:
    """What was published, delivered and lost in one flow, and how late it came.

    Of the steady time: lag, delay, from when messages were due, and sent_delay, from when they were
    handed to the socket (both with sums, ns); rated: what was published, accepted and delivered in
    it. All else is of the whole load."""

    delay: Histogram = field(default_factory=Histogram)
    delay_sum: int = 0
    sent_delay: Histogram = field(default_factory=Histogram)
    sent_sum: int = 0
    rated: list[int] = field(default_factory=lambda: [0, 0, 0])
    lag: Histogram = field(default_factory=Histogram)
    published: int = 0
    accepted: int = 0
    delivered: int = 0
    duplicates: int = 0
    reordered: int = 0
    unaccepted: int = 0
    expected: int = 0
    lost: int = 0
    unsure: int = 0

    def merge(self, other: Flow) -> None:
        """Add what another process of the generator booked."""
        for name in ("delay", "sent_delay", "lag"):
            getattr(self, name).merge([getattr(other, name)])
        for name in (*_COUNTS, "delay_sum", "sent_sum"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.rated = [mine + more for mine, more in zip(self.rated, other.rated, strict=True)]

    def figures(self, seconds: float) -> dict[str, Any]:
        """Return its figures, for run.json; `seconds`: of the steady time."""
        delay, rates = self.delay, ("published_per_s", "accepted_per_s", "delivered_per_s")
        known = delay.total
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            **{
                name: count / seconds if seconds else None
                for name, count in zip(rates, self.rated, strict=True)
            },
            "delay_mean_ms": self.delay_sum / known / 1e6 if known else None,
            "delay_sent_mean_ms": self.sent_sum / known / 1e6 if known else None,
            "delay_sent_p99_ms": self.sent_delay.percentile(99) if known else None,
            **{f"delay_p{p}_ms": delay.percentile(p) if known else None for p in (50, 90, 99)},
            "lag_p99_ms": self.lag.percentile(99) if self.lag.total else None,
        }


_COUNTS = (
    "published",
    "accepted",
    "unaccepted",
    "delivered",
    "expected",
    "lost",
    "unsure",
    "duplicates",
    "reordered",
)


class Book:
    """All that was published and delivered in a run, by flow."""

    def __init__(self, specs: Sequence[ClientSpec], qos: dict[str, int]) -> None:
        """`qos`: of each flow."""
        self.steady = (-math.inf, math.inf)
        """The time (ns) that rates and delays are of: without ramps."""
        self.publishers = {
            spec.number: Published(spec, qos[spec.flow]) for spec in specs if spec.number >= 0
        }
        self.receivers: dict[str, Receiver] = {}
        self.flows = {flow: Flow() for flow in qos}
        self.fanout: dict[int, int] = {}
        self.outstanding = 0
        for spec in specs:
            if spec.number < 0:
                shared = spec.topics[0].startswith("$share/")
                key = spec.topics[0] if shared else spec.name
                self.receivers.setdefault(key, Receiver(spec.topics, shared=shared)).members += 1
        takers_of = _takers(self.receivers.values())
        for published in self.publishers.values():
            takers = takers_of(published.spec.topics[0])
            self.fanout[published.spec.number] = len(takers)
            for receiver in takers:
                receiver.counts[published.spec.number] = bytearray()

    def receiver(self, spec: ClientSpec) -> Receiver:
        """That of a subscriber."""
        return self.receivers[spec.topics[0] if spec.topics[0].startswith("$share/") else spec.name]

    def publish(self, number: int, due: int, sent: int) -> int:
        """Book a message of the publisher `number` that was due at `due` and was sent at `sent`
        (both ns); return its sequence number.

        Its delay counts from `due`: a broker that does not take messages in time makes them late,
        too, and would not be seen to. That from `sent` is counted beside it, and how late we were
        (lag). Bytes in a socket's queue count as sent.
        """
        published = self.publishers[number]
        published.times.append(sent)
        published.late.append(sent - due)
        published.accepted.append(0)
        flow = self.flows[published.spec.flow]
        flow.published += 1
        if self._is_steady(sent):
            flow.rated[0] += 1
            flow.lag.add(sent - due)
        self.outstanding += self.fanout[number]
        return len(published.times) - 1

    def _is_steady(self, at: int) -> bool:
        """Whether a time (ns) is in the steady one."""
        return self.steady[0] <= at < self.steady[1]

    def accept(self, number: int, sequence: int) -> None:
        """Book an acknowledgement."""
        published = self.publishers[number]
        if not published.accepted[sequence]:
            published.accepted[sequence] = 1
            published.acceptances += 1
            flow = self.flows[published.spec.flow]
            flow.accepted += 1
            flow.rated[1] += self._is_steady(published.times[sequence])

    def deliver(self, receiver: Receiver, number: int, sequence: int, at: int) -> bool:
        """Book that the message `sequence` of the publisher `number` arrived for `receiver` at `at`
        (ns). Returns False if it is no message of this run, or not for this receiver."""
        counts = receiver.counts.get(number)
        if counts is None or sequence >= len(self.publishers[number].times):
            return False
        published = self.publishers[number]
        flow = self.flows[published.spec.flow]
        if len(counts) <= sequence:
            counts.extend(bytes(sequence + 1 - len(counts)))
        if counts[sequence]:
            flow.duplicates += 1
            counts[sequence] = min(255, counts[sequence] + 1)
            return True
        counts[sequence] = 1
        flow.delivered += 1
        published.echoes += 1
        receiver.came += 1
        self.outstanding -= 1
        if sequence < receiver.highest.get(number, -1):
            if not receiver.shared:
                flow.reordered += 1
        else:
            receiver.highest[number] = sequence
        flow.rated[2] += self._is_steady(at)
        sent = published.times[sequence]
        if self._is_steady(sent):
            delay = at - sent
            flow.sent_delay.add(delay)
            flow.sent_sum += delay
            delay += published.late[sequence]
            flow.delay.add(delay)
            flow.delay_sum += delay
            receiver.delays.add(delay)
        return True

    def missing(self, flow: str) -> tuple[int, int, int]:
        """(expected, lost, unsure) of a flow: what should have arrived, what did not, and what did
        not but need not have.

        Expected is what was accepted (QoS 0: published) while the subscriber was there, and
        whatever did arrive.
        """
        found = [self._missing(receiver, flow) for receiver in self.receivers.values()]
        expected, lost, unsure = (sum(each[place] for each in found) for place in range(3))
        return expected, lost, unsure

    def _missing(self, receiver: Receiver, flow: str | None = None) -> tuple[int, int, int]:
        """`missing` of one receiver; None: of all flows."""
        expected = lost = unsure = 0
        for number, counts in receiver.counts.items():
            published = self.publishers[number]
            if flow is not None and published.spec.flow != flow:
                continue
            if len(counts) == len(published.times) and 0 not in counts:
                expected += len(counts)
                continue
            for sequence, sent in enumerate(published.times):
                if sequence < len(counts) and counts[sequence]:
                    expected += 1
                elif published.qos and not published.accepted[sequence]:
                    continue
                elif _unsure(receiver, sent):
                    unsure += 1
                else:
                    expected += 1
                    lost += 1
        return expected, lost, unsure

    def outage_s(self, receiver: Receiver) -> float:
        """Return the longest time in which nothing of one publisher that should have reached the
        receiver did, from the first message that it lacks to the next one that came (s; 0: it lacks
        none).

        Where none came any more it ends with the last message that was published.
        """
        longest = 0
        for number, counts in receiver.counts.items():
            published = self.publishers[number]
            since = -1
            for sequence, sent in enumerate(published.times):
                if sequence < len(counts) and counts[sequence]:
                    longest, since = max(longest, sent - since if since >= 0 else 0), -1
                elif not _unsure(receiver, sent) and not (
                    published.qos and not published.accepted[sequence]
                ):
                    since = sent if since < 0 else since
            if since >= 0:
                longest = max(longest, published.times[-1] - since)
        return longest / 1e9

    def subscribers(self) -> dict[str, dict[str, Any]]:
        """Figures of each subscriber by its name, or the filter that several share, for run.json;
        empty where there are too many."""
        if len(self.receivers) > MAX_SUBSCRIBERS:
            return {}
        return {
            name: {
                "delivered": receiver.came,
                "lost": self._missing(receiver)[1],
                "delay_mean_ms": receiver.delays.mean_ms,
                "delay_sd_ms": receiver.delays.deviation_ms,
                "outage_s": self.outage_s(receiver),
            }
            for name, receiver in self.receivers.items()
        }

    def closed(self) -> dict[str, Flow]:
        """Return the flows by name, with what was not accepted, and what is missing."""
        for name, flow in self.flows.items():
            flow.expected, flow.lost, flow.unsure = self.missing(name)
            flow.unaccepted = sum(
                len(each.times) - each.acceptances
                for each in self.publishers.values()
                if each.spec.flow == name and each.qos
            )
        return self.flows

    def summary(self, seconds: float) -> dict[str, dict[str, Any]]:
        """Figures of each flow, for run.json; `seconds`: of the steady time."""
        return {name: flow.figures(seconds) for name, flow in self.closed().items()}


def _takers(receivers: Iterable[Receiver]) -> Callable[[str], list[Receiver]]:
    """Return what finds the receivers of a topic, each once. Filters that are topics are looked up:
    there may be thousands of them, and as many publishers."""
    exact: dict[str, list[Receiver]] = {}
    others: list[Receiver] = []
    for receiver in receivers:
        if any("#" in each or each.startswith("$share/") for each in receiver.filters):
            others.append(receiver)
            continue
        for topic in dict.fromkeys(receiver.filters):
            exact.setdefault(topic, []).append(receiver)

    def find(topic: str) -> list[Receiver]:
        more = [each for each in others if any(matches(one, topic) for one in each.filters)]
        return exact.get(topic, []) + more

    return find


def _unsure(receiver: Receiver, sent: int) -> bool:
    """Whether a message that was sent at `sent` (ns) need not have reached the receiver."""
    return not receiver.since or any(
        lost_at - UNSURE_NS <= sent <= (back or sent) + UNSURE_NS for lost_at, back in receiver.gaps
    )
