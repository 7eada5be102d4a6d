"""How subscribing, matching and memory grow with the number of subscriptions, from 1,000 to
1,000,000.

A part of `mqttree bench micro`. Every size is measured in a process of its own, so that one does
not use again what another freed.
"""

from __future__ import annotations

import gc
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

SIZES = (1_000, 10_000, 100_000, 1_000_000)

_PER_SESSION = 100
_CHANGES = 20_000
_FEW = 500
_MANY = 20_000
_TURNS = 5


@dataclass(frozen=True, slots=True)
class Growth:
    """What was measured among `size` subscriptions: ns and bytes for each.

    `match_few`: 500 topics again and again, which stay in the processor's caches; `match_many`:
    20,000 topics, which do not.
    """

    size: int
    insert: float
    match_few: float
    match_many: float
    memory: float


def table(sizes: Sequence[int] = SIZES) -> int:
    """Print the table of `sizes`, a line at a time; 1 if one could not be measured."""
    print("subscriptions      log          insert      match few     match many     memory")
    first: Growth | None = None
    for size in sizes:
        done = subprocess.run(
            [sys.executable, "-m", "mqttree.bench.studies.growth", str(size)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(
                f"mqttree bench: {size:,} subscriptions: {done.stderr.strip()[-300:]}",
                file=sys.stderr,
            )
            return 1
        one = Growth(**json.loads(done.stdout))
        first = first or one
        cells = [f"{size:>13,}{math.log(size) / math.log(first.size):>8.2f}x"]
        for name in ("insert", "match_few", "match_many"):
            value, least = getattr(one, name), getattr(first, name)
            cells.append(f"{value:>7,.0f} ns {value / least:>4.1f}x")
        print("".join(cells) + f"{one.memory:>9,.0f} B", flush=True)
    return 0


def measure(size: int) -> Growth:
    """Subscribe `size` times, half of the filters with a wildcard; then others come and go, and
    topics are matched, each of which one filter of either kind concerns. Nothing is cached.

    Raises RuntimeError: a match did not find these two.
    """
    from mqttree.broker.cli.run import GC_THRESHOLDS
    from mqttree.broker.config.node_config import NodeConfig
    from mqttree.broker.core.session import Session, Subscription
    from mqttree.broker.node import Node
    from mqttree.routing.topic_filter import split_shared

    node = Node(NodeConfig(discovery="off"), 0.0, 0.0, random.Random(1))
    fanout = node.dispatcher
    numbers = list(range(size // 2 + _CHANGES // 2))
    random.Random(2).shuffle(numbers)
    sessions = [Session(node, f"client-{number}") for number in range(size // _PER_SESSION)]
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as the broker does

    def add(number: int, topic_filter: str) -> None:
        session = sessions[number % len(sessions)]
        fanout.subscribe(Subscription(session, topic_filter, 0), *split_shared(topic_filter))

    before = _resident()
    for number in numbers[: size // 2]:
        add(number, _name(number))
        add(number + 1, _wild(number))
    memory = (_resident() - before) / size
    # Among so many, as the clients of a broker come and go: what is measured is a subscription
    # more, of either kind.
    more = [(number, name(number)) for number in numbers[size // 2 :] for name in (_name, _wild)]
    insert = math.inf
    for _ in range(_TURNS):
        start = time.process_time_ns()
        for number, topic_filter in more:
            add(number, topic_filter)
        insert = min(insert, (time.process_time_ns() - start) / len(more))
        for number, topic_filter in more:
            fanout.unsubscribe(
                sessions[number % len(sessions)], topic_filter, *split_shared(topic_filter)
            )
    some = [_name(number) for number in random.Random(3).choices(numbers[: size // 2], k=_MANY)]
    trie = fanout.trie
    if any(len(trie.match(name)) != 2 for name in some):
        raise RuntimeError("a topic is not matched by its two filters")
    few = some[:_FEW] * (_MANY // _FEW)
    return Growth(size, insert, _match(trie.match, few), _match(trie.match, some), memory)


def _match(match: Callable[[str], object], names: list[str]) -> float:
    """Return ns per match, the best of several turns."""
    best = math.inf
    for _ in range(_TURNS):
        start = time.process_time_ns()
        for name in names:
            match(name)
        best = min(best, (time.process_time_ns() - start) / len(names))
    return best


def _name(number: int) -> str:
    return f"site/{number % 100}/line/{number // 100 % 100}/device/{number}/state"


def _wild(number: int) -> str:
    levels = _name(number).split("/")
    levels[(1, 3, 6)[number % 3]] = "+"
    return "/".join(levels) if number % 5 else f"{_name(number)}/#"


def _resident() -> int:
    """Bytes of memory that this process uses."""
    import psutil

    gc.collect()
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    print(json.dumps(asdict(measure(int(sys.argv[1])))))
