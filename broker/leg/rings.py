"""Messages that come back: echoes of a foreign broker without No Local, and rings that lead from a
foreign broker back to this federation by another way. Pure.

A ring is not guessed from messages, of which two equal ones may just as well be two. A leg
publishes a probe at the foreign broker; if that comes to its session here, there is a ring. Only
then equal messages are counted, and a topic that repeats one too often is muted for a while.
"""

from __future__ import annotations

from collections import deque

ECHO_TIME = 10.0
"""s in which an echo has to come."""
ECHOES = 100_000
"""Messages whose echo may be waited for; beyond that the oldest are given up."""
REPEATS, REPEAT_TIME = 16, 10.0
"""Equal messages of one topic, and the s in which they come, that are a ring's."""
MUTE_TIME = 30.0
"""s for which such a topic does not come in."""
WATCH_TIME = 300.0
"""s after a probe has come back in which messages are counted."""
WATCHED = 10_000
"""Different messages that are counted at a time."""


class EchoList:
    """What was sent to a foreign broker that sends it back: an arriving message that equals one of
    its topic is its echo, and those of the topic that were sent before have none. Messages at QoS 0
    are apart from the others, as they overtake those that wait for a place in flight."""

    __slots__ = ("_count", "_sent")

    def __init__(self) -> None:
        self._sent: dict[bytes, deque[tuple[float, int, bool]]] = {}
        self._count = 0

    def sent(self, topic: bytes, payload: bytes, now: float, *, waits: bool = True) -> None:
        """Note a message that was sent. `topic`, `payload`: of it; `now`: s; `waits`: its echo may
        wait for a place in flight, as that of a message at QoS 1 or 2 does."""
        if self._count >= ECHOES:
            self._forget_old(now)
        waiting = self._sent.setdefault(topic, deque())
        waiting.append((now, hash(payload), waits))
        self._count += 1

    def takes(self, topic: bytes, payload: bytes, now: float) -> bool:
        """Return whether a message that came is an echo. `topic`, `payload`: of it; `now`: s."""
        waiting = self._sent.get(topic)
        if waiting is None:
            return False
        digest = hash(payload)
        while waiting and now - waiting[0][0] > ECHO_TIME:
            waiting.popleft()
            self._count -= 1
        place = next((n for n, (_, other, _) in enumerate(waiting) if other == digest), None)
        if place is not None:
            passed = [waiting.popleft() for _ in range(place + 1)]
            overtaken = [one for one in passed if one[2] != passed[-1][2]]
            waiting.extendleft(reversed(overtaken))
            self._count -= len(passed) - len(overtaken)
        if not waiting:
            del self._sent[topic]
        return place is not None

    def resume(self, now: float) -> None:
        """Wait for all echoes from `now` (s) on, as the foreign broker was away."""
        for topic, waiting in self._sent.items():
            self._sent[topic] = deque((now, digest, waits) for _, digest, waits in waiting)

    def _forget_old(self, now: float) -> None:
        """Give up echoes that have not come in time, or all of them."""
        for topic, waiting in list(self._sent.items()):
            while waiting and now - waiting[0][0] > ECHO_TIME:
                waiting.popleft()
                self._count -= 1
            if not waiting:
                del self._sent[topic]
        if self._count >= ECHOES:
            self._sent.clear()
            self._count = 0


class RingWatch:
    """Counts equal messages while a ring is known, and mutes topics in which one goes round."""

    __slots__ = ("_muted", "_seen", "until")

    def __init__(self) -> None:
        self.until = 0.0
        """s: how long messages are counted."""
        self._seen: dict[tuple[bytes, int], tuple[float, int]] = {}
        self._muted: dict[bytes, float] = {}

    def begin(self, now: float) -> None:
        """Note that a ring was found at `now` (s)."""
        self.until = now + WATCH_TIME

    def ended(self, now: float) -> bool:
        """Return whether nothing is counted any more at `now` (s), and forget what was."""
        if now < self.until:
            return False
        self._seen.clear()
        self._muted.clear()
        return True

    def stops(self, topic: bytes, payload: bytes, now: float) -> bool:
        """Return whether a message goes round and must not come in. `topic`, `payload`: of it;
        `now`: s."""
        if (muted := self._muted.get(topic)) is not None:
            if now < muted:
                return True
            del self._muted[topic]
        key = topic, hash(payload)
        since, count = self._seen.get(key, (now, 0))
        if now - since > REPEAT_TIME:
            since, count = now, 0
        if len(self._seen) >= WATCHED:
            self._seen.clear()
        self._seen[key] = since, count + 1
        if count + 1 < REPEATS:
            return False
        self._muted[topic] = now + MUTE_TIME
        del self._seen[key]
        return True
