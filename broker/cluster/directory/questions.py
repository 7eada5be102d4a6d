"""Questions to one broker each, and their answers, over the unicast bus: every question is answered
once, by the broker that was asked or, when that is late or cannot be reached, by SILENT.

ADMIN_QUESTION  u32 number, JSON: method, path and query of a request under /api/v1
ADMIN_ANSWER    u32 number, u16 status as in HTTP, JSON
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, Final

from mqttree.broker.base.timers import Timer
from mqttree.broker.cluster.directory.unicast_bus import BEHIND, UnicastBus
from mqttree.broker.cluster.ports import Alarm, MemberBroker
from mqttree.broker.wire.errors import MalformedPacket

ADMIN_QUESTION: Final = BEHIND | 29
ADMIN_ANSWER: Final = BEHIND | 30

WAIT_S: Final = 2.0
"""s for an answer: a busy broker on a slow link answers within a second, and whoever asked waits
for the others as long."""

MAX_OPEN: Final = 10_000
"""questions that wait for other brokers."""

MAX_ANSWER: Final = 256 * 1024
"""bytes of an answer, so that no record grows large."""

Answer = tuple[int, Any]
"""Status as in HTTP, and what JSON can say."""

Then = Callable[[Answer], None]
"""Takes the answer, now or within some seconds."""

BUSY: Final[Answer] = (429, {"error": "too many questions"})
SILENT: Final[Answer] = (503, {"error": "this broker does not answer"})
TOO_LARGE: Final[Answer] = (413, {"error": f"the answer has more than {MAX_ANSWER} bytes"})


class Questions:
    """The questions of one kind, of this broker and to it."""

    def __init__(
        self, host: MemberBroker, bus: UnicastBus, alarm: Alarm, question: int, answer: int
    ) -> None:
        """`host`: this broker; `bus`: carries them; `alarm`: has them sent at once; `question`,
        `answer`: kinds of the messages."""
        self._host = host
        self._bus = bus
        self._alarm = alarm
        self._kinds = question, answer
        self._number = 0
        # Who was asked, what is done with the answer, when it is late.
        self._open: dict[int, tuple[bytes, Then, Timer]] = {}
        self.serve: Callable[[bytes, Then], None] | None = None
        """Answers a question of another broker, given its body. Raises MalformedPacket. None:
        nothing here answers."""
        bus.receive(question, self._question_received)
        bus.receive(answer, self._answer_received)

    def ask(self, broker_id: bytes, body: bytes, then: Then) -> None:
        """Ask the broker `broker_id`; `body`: of the question; `then`: takes the answer."""
        if len(self._open) >= MAX_OPEN:
            then(BUSY)
            return
        now = self._host.now
        self._number = number = self._number % 0xFFFFFFFF + 1
        timer = self._host.timers.schedule(now + WAIT_S, lambda now: self._close(number, SILENT))
        self._open[number] = (broker_id, then, timer)
        if not self._bus.send(broker_id, self._kinds[0], struct.pack(">I", number) + body):
            self._close(number, SILENT)
        self._alarm.hurry(now)

    def broker_gone(self, broker_id: bytes) -> None:
        """Wait no more for the answers of a broker."""
        waiting = [number for number, (asked, _, _) in self._open.items() if asked == broker_id]
        for number in waiting:
            self._close(number, SILENT)

    def _close(self, number: int, answer: Answer) -> None:
        found = self._open.pop(number, None)
        if found is not None:
            _, then, timer = found
            self._host.timers.cancel(timer)
            then(answer)

    def _question_received(self, sender: bytes, data: bytes, now: float) -> None:
        if len(data) < 4:
            raise MalformedPacket("question is truncated")

        def then(answer: Answer) -> None:
            body = encode_answer(answer)
            self._bus.send(sender, self._kinds[1], data[:4] + body)
            self._alarm.hurry(self._host.now)

        if self.serve is not None:
            self.serve(data[4:], then)

    def _answer_received(self, sender: bytes, data: bytes, now: float) -> None:
        if len(data) < 6:
            raise MalformedPacket("answer is truncated")
        number, status = struct.unpack_from(">IH", data)
        found = self._open.get(number)
        if found is not None and found[0] == sender:
            self._close(number, (status, read_json(data[6:])))


def encode_answer(answer: Answer) -> bytes:
    """Return an answer without its number."""
    body = json.dumps(answer[1]).encode()
    if len(body) > MAX_ANSWER:
        return encode_answer(TOO_LARGE)
    return struct.pack(">H", answer[0]) + body


def read_json(data: bytes) -> Any:
    """Return what another broker says in JSON. Raises MalformedPacket."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedPacket("question or answer is no JSON") from None
