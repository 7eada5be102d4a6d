"""The dialler: which address is dialled when, with backoff, jitter, and a limit of dials under
way."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

from mqttree.broker.base.address import Address

NEVER = float("inf")
MAX_DIALS = 8
"""Dials under way at a time: enough to be done with a hundred addresses in a few round trips, few
enough that a starting federation of a hundred does not send every broker a hundred SYNs at once."""
MAX_RETRIES = 6
"""Of these, dials of addresses that failed before: dead addresses that swallow packets hold their
dial until it times out, and must leave room for those that were never tried."""
BACKOFF_FIRST = 0.1
BACKOFF_CAP = 5.0
BACKOFF_CAP_LATE = 10.0
BACKOFF_LATE = 60.0
"""Seconds of failing after which the cap becomes BACKOFF_CAP_LATE."""
REDIAL_FLOOR = 0.1
"""Seconds between two dials of one address, whatever asks for them: announcements can be forged,
dials cost a peer."""
MIN_DELAY = 0.02
FIRST_TRY = 1.0
"""Seconds within which a first dial must be due to count as about to be made."""
DOUBTFUL_BURST = 100
DOUBTFUL_RATE = 50.0
"""Dials, at once and a second, of unconfirmed addresses that are not configured: made-up brokers
must not make this one dial a thousand addresses, and a federation of a hundred brokers must form
without delay."""


@dataclass(slots=True, eq=False, repr=False)
class Target:
    """One address to dial. `owner` is the id of the broker known to be there; `wanted` is false
    while it is linked."""

    address: Address
    owner: bytes | None = None
    static: bool = False
    wanted: bool = False
    due: float = NEVER
    failures: int = 0
    failing_since: float = NEVER
    started: float = -NEVER
    under_way: bool = False
    proven: bool = False
    """A broker has answered at the address."""

    @property
    def doubtful(self) -> bool:
        """Whether only other brokers say that a broker is there."""
        return not (self.proven or self.static)


_Entry = tuple[float, int, Target]


class Dialler:
    """Targets and their next dials. It knows nothing of members: an owner is only a label here."""

    def __init__(self, rng: random.Random, timeout: float) -> None:
        """Take the source of jitter, and the seconds after which a dial without an answer counts as
        failed."""
        self._rng = rng
        self._timeout = timeout
        self.targets: dict[Address, Target] = {}
        self._heaps: dict[tuple[bool, bool], list[_Entry]] = {
            (r, d): [] for r in (False, True) for d in (False, True)
        }
        # Doubtful targets that may be dialled at once, as of `_doubtful_at`.
        self._doubtful = float(DOUBTFUL_BURST)
        self._doubtful_at = -NEVER
        self._serial = 0
        # In the order of their start.
        self._under_way: dict[Address, Target] = {}
        self._retrying = 0

    def first_tries(self, now: float) -> list[Target]:
        """Return the targets that are dialled for the first time, or are about to be."""
        soon = now + FIRST_TRY
        return [
            t
            for t in self.targets.values()
            if t.wanted and not t.failures and (t.under_way or t.due <= soon)
        ]

    def add(self, address: Address) -> Target:
        """Return the target of this address, made if it is new; it is not dialled before it is
        wanted."""
        target = self.targets.get(address)
        if target is None:
            target = self.targets[address] = Target(address)
        return target

    def remove(self, target: Target) -> None:
        """Forget a target and its address: a dial to it that is under way counts no more."""
        self._release(target)
        target.wanted = False
        target.due = NEVER
        self.targets.pop(target.address, None)

    def want(self, target: Target, due: float) -> None:
        """Dial at `due`, or earlier when that is already planned; a dial under way is left to end
        first."""
        target.wanted = True
        due = max(due, target.started + REDIAL_FLOOR)
        if not target.under_way and due < target.due:
            self._plan(target, due)

    def trust(self, target: Target, *, static: bool | None = None) -> None:
        """Note that a broker answered at the address, or with `static` whether the configuration
        names it."""
        if static is None:
            target.proven = True
        else:
            target.static = static
        if target.due != NEVER and not target.under_way:
            # It may belong in another queue now.
            self._plan(target, target.due)

    def unwant(self, target: Target) -> None:
        """Do not dial any more; a dial under way is not cancelled."""
        target.wanted = False
        target.due = NEVER

    def forgive(self, target: Target) -> None:
        """Forget earlier failures, so that the backoff begins again."""
        if target.failures and not target.under_way:
            target.failures = 0
            target.failing_since = NEVER
            if target.due != NEVER:
                # It belongs in the other queue now.
                self._plan(target, target.due)

    def penalise(self, target: Target, now: float, patience: float = 0.0) -> None:
        """Count a failed dial of `target` at `now` (s). If it is still wanted, it is dialled again
        after the backoff plus `patience` (s)."""
        self._release(target)
        target.failures += 1
        target.failing_since = min(target.failing_since, now)
        if target.wanted:
            self._plan(
                target,
                max(now + patience + self._backoff(target, now), target.started + REDIAL_FLOOR),
            )

    def resume(self, target: Target, now: float) -> None:
        """Dial an address again that had failed before it was given up: after the backoff that it
        had then."""
        self.postpone(target, now + self._backoff(target, now))

    def postpone(self, target: Target, due: float) -> None:
        """Dial no earlier than `due`."""
        target.wanted = True
        if not target.under_way:
            self._plan(target, due)

    def finished(self, target: Target) -> None:
        """Note that the dial has ended without failing."""
        self._release(target)

    def take(self, now: float) -> tuple[list[Target], list[Target]]:
        """Return the targets to dial now, and those whose dial timed out (already planned
        again)."""
        late: list[Target] = []
        while self._under_way:
            oldest = next(iter(self._under_way.values()))
            if oldest.started + self._timeout > now:
                break
            self.penalise(oldest, now)
            late.append(oldest)
        begun: list[Target] = []
        self._doubtful = min(
            DOUBTFUL_BURST, self._doubtful + max(0.0, now - self._doubtful_at) * DOUBTFUL_RATE
        )
        self._doubtful_at = now
        while len(self._under_way) < MAX_DIALS:
            entry = self._next(now)
            if entry is None or entry[0] > now:
                break
            target = entry[2]
            if target.doubtful:
                self._doubtful -= 1
            target.due = NEVER
            target.started = now
            target.under_way = True
            self._under_way[target.address] = target
            if target.failures:
                self._retrying += 1
            begun.append(target)
        return begun, late

    def next_deadline(self) -> float:
        """When `take` has something to do next, or NEVER."""
        deadline = NEVER
        for target in self._under_way.values():
            deadline = target.started + self._timeout
            break
        if len(self._under_way) < MAX_DIALS:
            for doubtful in (False, True):
                entry = self._first(doubtful)
                if entry is not None:
                    deadline = min(
                        deadline, max(entry[0], self._allowed_at()) if doubtful else entry[0]
                    )
        return deadline

    def _allowed_at(self) -> float:
        """When the next doubtful address may be dialled."""
        if self._doubtful >= 1:
            return -NEVER
        # Not just before it.
        return self._doubtful_at + (1 - self._doubtful) / DOUBTFUL_RATE + 1e-6

    def _next(self, now: float) -> _Entry | None:
        """Return the entry that may begin: doubtful ones only when no other is due."""
        sure = self._first(False)
        if self._doubtful < 1 or (sure is not None and sure[0] <= now):
            return sure
        doubtful = self._first(True)
        if sure is None or doubtful is None:
            return sure or doubtful
        return min(sure, doubtful, key=lambda entry: entry[0])

    def _first(self, doubtful: bool) -> _Entry | None:
        """Return the entry of this kind that is due first, of both queues."""
        fresh = self._top(False, doubtful)
        retry = self._top(True, doubtful) if self._retrying < MAX_RETRIES else None
        if fresh is None or retry is None:
            return fresh or retry
        return fresh if fresh[0] <= retry[0] else retry

    def _top(self, retries: bool, doubtful: bool) -> _Entry | None:
        heap = self._heaps[retries, doubtful]
        while heap:
            due, _, target = heap[0]
            if (
                target.due == due
                and (target.failures > 0) is retries
                and target.doubtful is doubtful
                and not target.under_way
            ):
                return heap[0]
            # The plan has changed since.
            heapq.heappop(heap)
        return None

    def _plan(self, target: Target, due: float) -> None:
        target.due = due
        heap = self._heaps[target.failures > 0, target.doubtful]
        self._serial += 1
        heapq.heappush(heap, (due, self._serial, target))
        # Changed plans leave outdated entries below the top.
        if len(heap) > 4 * len(self.targets) + 64:
            valid = {entry[2].address: entry for entry in heap if entry[2].due == entry[0]}
            heap[:] = valid.values()
            heapq.heapify(heap)

    def _release(self, target: Target) -> None:
        if target.under_way:
            target.under_way = False
            self._under_way.pop(target.address, None)
            if target.failures:
                self._retrying -= 1

    def _backoff(self, target: Target, now: float) -> float:
        """Return the seconds to wait after a failure: exponential, capped, with full jitter."""
        cap = BACKOFF_CAP if now - target.failing_since < BACKOFF_LATE else BACKOFF_CAP_LATE
        ceiling = min(cap, BACKOFF_FIRST * 2.0 ** min(target.failures - 1, 10))
        return max(MIN_DELAY, self._rng.uniform(0.0, ceiling))
