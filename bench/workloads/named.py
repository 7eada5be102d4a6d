"""Workloads that scenarios call by name, or by the path of a file."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

from mqttree.bench.workloads import workload, workload_file
from mqttree.bench.workloads.workload import Workload
from mqttree.bench.workloads.workload_file import WorkloadError

FOLDER = Path(__file__).parent
NAMES = ("social", "social-100", "pairs", "islands", "fan-in", "fan-out", "across")
"""`social`: 1,000 topics with a publisher each, and 100 clients that follow ten of them each, drawn
with the popularity of the data that the paper's authors published. `social-100`: one such draw, of
which much is known. `pairs`: 1,000 topics with a publisher and a client each (figure 2).
`islands`: with 2, 4 or 8 brokers, as many parts that have nothing in common, one at each broker, if
clients attach at random: what brokers do that share a machine, but no message.

Others tell the costs of messages apart (figures 3 and 4). `fan-in`: of 1,000 topics 100 have a
client; `fan-out`: each of 200 topics has five clients; `across`: as `pairs`, but with two brokers
all publishers are at the first one, and with random attach all clients at the second."""

TOPICS, FOLLOWERS, EACH, ALPHA = 1000, 100, 10, 0.68
FANNED_OUT, EACH_FANNED_OUT = 200, 5
ISLANDS, EACH_ON_ISLANDS = 8, 5
MAX_BYTES = 1 << 26


@lru_cache(maxsize=4)
def named(name: str, seed: int) -> Workload:
    """Return a workload whose topics all have the same rate. Raises WorkloadError, in one line.

    `name`: of `NAMES`, or a file's path; `seed`: of what is drawn.
    """
    if name == "social":
        return workload.social(TOPICS, FOLLOWERS, EACH, ALPHA, seed)
    if name == "pairs":
        return _pairs()
    if name == "across":
        both = _pairs()
        both.publishers[2] = dict.fromkeys(range(TOPICS), 0)
        both.attached[2] = [1] * TOPICS
        return both
    if name == "islands":
        return _islands(seed)
    if name == "fan-in":
        step = TOPICS // FOLLOWERS
        clients = [[number * step] for number in range(FOLLOWERS)]
        return Workload(clients, workload.equal_rates(TOPICS))
    if name == "fan-out":
        each = FANNED_OUT * EACH_FANNED_OUT // FOLLOWERS
        clients = [
            sorted((number * each + place) % FANNED_OUT for place in range(each))
            for number in range(FOLLOWERS)
        ]
        return Workload(clients, workload.equal_rates(FANNED_OUT))
    text = text_of(FOLDER / f"{name}.json" if name in NAMES else Path(name))
    try:
        found = workload_file.read(text)
    except WorkloadError as error:
        raise WorkloadError(f"{name}: {error}") from None
    if not found.rates:
        raise WorkloadError(f"{name}: no topic is in it")
    if len(set(found.rates.values())) > 1:
        # Every publisher of a flow has the flow's rate.
        raise WorkloadError(f"{name}: its topics have different rates")
    found.rates = dict.fromkeys(found.rates, 1)
    return found


def _pairs() -> Workload:
    return Workload([[topic] for topic in range(TOPICS)], workload.equal_rates(TOPICS))


def _islands(seed: int) -> Workload:
    """Topics and clients are of the island of their number modulo eight, and islands go to the
    broker of their number modulo M: each to one, where M divides eight."""
    drawn = random.Random(f"clients {seed}")
    draw = workload.popular_topics(TOPICS // ISLANDS, ALPHA, drawn)
    number = TOPICS // EACH_ON_ISLANDS
    clients = []
    for client in range(number):
        island = client % ISLANDS
        clients.append([topic * ISLANDS + island for topic in draw(EACH_ON_ISLANDS)])
    found = Workload(clients, workload.equal_rates(TOPICS))
    for brokers in (1, 2, 4, 8):
        found.publishers[brokers] = {topic: topic % brokers for topic in range(TOPICS)}
        found.attached[brokers] = [client % brokers for client in range(number)]
    return found


def text_of(path: Path, most: int = MAX_BYTES) -> str:
    """Return the text of a file. Raises WorkloadError, in one line.

    `path`: of the file; `most`: bytes that it may have.
    """
    try:
        with path.open("rb") as file:
            # A device says that it has no bytes, and may have no end.
            found = file.read(most + 1)
        if len(found) > most:
            raise WorkloadError(f"{path}: larger than {most:,} bytes")
        return found.decode()
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: no text in UTF-8") from None
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from None
