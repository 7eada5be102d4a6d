"""Which address is dialled when: backoff, jitter, and how many dials are under way at a time."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

from discovery.address import Address

NEVER = float("inf")
MAX_DIALS = 8
"""Dials under way at a time: enough to be done with a hundred addresses in a few round trips, few enough that a
starting federation of a hundred does not send every broker a hundred SYNs at once."""
MAX_RETRIES = 6
"""Of these, dials of addresses that failed before: dead addresses that swallow packets hold their dial until it times
out, and must leave room for those that were never tried."""
BACKOFF_FIRST = 0.1
BACKOFF_CAP = 5.0
BACKOFF_CAP_LATE = 10.0
BACKOFF_LATE = 60.0
"""Seconds of failing after which the cap becomes BACKOFF_CAP_LATE."""
REDIAL_FLOOR = 0.1
"""Seconds between two dials of one address, whatever asks for them: announcements can be forged, dials cost a peer."""
MIN_DELAY = 0.02


@dataclass(slots=True, eq=False)
class Target:
    """One address to dial. `owner` is the id of the broker known to be there; `wanted` is false while it is linked."""

    address: Address
    owner: bytes | None = None
    static: bool = False
    wanted: bool = False
    due: float = NEVER
    failures: int = 0
    failing_since: float = NEVER
    started: float = -NEVER
    under_way: bool = False


_Entry = tuple[float, int, Target]


class Dialler:
    """Targets and their next dials. Knows nothing of members: an owner is only a label here."""

    def __init__(self, rng: random.Random, timeout: float) -> None:
        """Take the randomness, and the seconds after which a dial that was never heard of again counts as failed."""
        self._rng = rng
        self._timeout = timeout
        self.targets: dict[Address, Target] = {}
        self._fresh: list[_Entry] = []
        self._retries: list[_Entry] = []
        self._serial = 0
        self._under_way: dict[Address, Target] = {}  # in the order of their start
        self._retrying = 0

    @property
    def under_way(self) -> int:
        """How many dials were begun and not yet heard of."""
        return len(self._under_way)

    def add(self, address: Address) -> Target:
        """Return the target of this address, made when it is new; not dialled before it is wanted."""
        target = self.targets.get(address)
        if target is None:
            target = self.targets[address] = Target(address)
        return target

    def remove(self, target: Target) -> None:
        """Forget an address."""
        self._release(target)
        target.wanted = False
        target.due = NEVER
        self.targets.pop(target.address, None)

    def want(self, target: Target, due: float) -> None:
        """Dial at `due`, or earlier when that is already planned; a dial under way is left to end first."""
        target.wanted = True
        due = max(due, target.started + REDIAL_FLOOR)
        if not target.under_way and due < target.due:
            self._plan(target, due)

    def unwant(self, target: Target) -> None:
        """Do not dial any more; a dial under way is not cancelled."""
        target.wanted = False
        target.due = NEVER

    def forgive(self, target: Target) -> None:
        """Forget that it failed, so that the backoff begins anew."""
        if target.failures and not target.under_way:
            target.failures = 0
            target.failing_since = NEVER
            if target.due != NEVER:
                self._plan(target, target.due)  # it belongs in the other queue now

    def penalise(self, target: Target, now: float, patience: float = 0.0) -> None:
        """Count a failure; when still wanted, dial again after the backoff plus `patience` (s)."""
        self._release(target)
        target.failures += 1
        target.failing_since = min(target.failing_since, now)
        if target.wanted:
            self._plan(target, max(now + patience + self._backoff(target, now), target.started + REDIAL_FLOOR))

    def postpone(self, target: Target, due: float) -> None:
        """Dial no earlier than `due`."""
        target.wanted = True
        if not target.under_way:
            self._plan(target, due)

    def finished(self, target: Target) -> None:
        """Take note that the dial has ended without failing."""
        self._release(target)

    def take(self, now: float) -> tuple[list[Target], list[Target]]:
        """Return the targets to dial now, and those whose dial timed out (already planned again)."""
        late: list[Target] = []
        while self._under_way:
            oldest = next(iter(self._under_way.values()))
            if oldest.started + self._timeout > now:
                break
            self.penalise(oldest, now)
            late.append(oldest)
        begun: list[Target] = []
        while len(self._under_way) < MAX_DIALS:
            entry = self._next()
            if entry is None or entry[0] > now:
                break
            target = entry[2]
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
            entry = self._next()
            if entry is not None:
                deadline = min(deadline, entry[0])
        return deadline

    def _next(self) -> _Entry | None:
        """The entry that is due first and may be begun, both queues considered."""
        fresh = self._top(self._fresh, False)
        retry = self._top(self._retries, True) if self._retrying < MAX_RETRIES else None
        if fresh is None or retry is None:
            return fresh or retry
        return fresh if fresh[0] <= retry[0] else retry

    def _top(self, heap: list[_Entry], retries: bool) -> _Entry | None:
        while heap:
            due, _, target = heap[0]
            if target.due == due and (target.failures > 0) is retries and not target.under_way:
                return heap[0]
            heapq.heappop(heap)  # planned otherwise since
        return None

    def _plan(self, target: Target, due: float) -> None:
        target.due = due
        heap = self._retries if target.failures else self._fresh
        self._serial += 1
        heapq.heappush(heap, (due, self._serial, target))
        if len(heap) > 4 * len(self.targets) + 64:  # outdated entries below the top, left by plans that changed
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
        """Seconds to wait after a failure: exponential, capped, with full jitter."""
        cap = BACKOFF_CAP if now - target.failing_since < BACKOFF_LATE else BACKOFF_CAP_LATE
        ceiling = min(cap, BACKOFF_FIRST * 2.0 ** min(target.failures - 1, 10))
        return max(MIN_DELAY, self._rng.uniform(0.0, ceiling))
