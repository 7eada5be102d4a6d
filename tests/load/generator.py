"""`mqttree bench load` beside faults: messages at a fixed rate, and what became of them."""

from __future__ import annotations

import subprocess
import sys

from tests.kit.brokers import Broker
from tests.kit.waiting import until


class Load:
    """`mqttree bench load` at a fixed rate: it counts what its subscribers miss, get twice, or out
    of order."""

    def __init__(
        self, publish: Broker, subscribe: Broker, rate: int, qos: int, seconds: int, *flags: str
    ) -> None:
        """`rate`: messages a second of all its publishers; they begin when this returns."""
        before = publish.counter("published")
        command = [
            sys.executable,
            "-m",
            "mqttree.bench.cli",
            "load",
            "--port",
            str(publish.port),
            "--qos",
            str(qos),
        ]
        command += [
            "--subscriber-port",
            str(subscribe.port),
            "--publishers",
            "2",
            "--subscribers",
            "2",
            "--topics",
            "2",
            "--processes",
            "2",
            "--window",
            "1000",
            "--rate",
            str(rate),
        ]
        command += ["--seconds", str(seconds), "--warmup", "0", "--drain", "12", *flags]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        begun = before + min(rate, 20_000)
        until(lambda: publish.counter("published") > begun, "the load flows")

    def result(self) -> str:
        """Wait for its end; returns the line that says what arrived."""
        out, _ = self.process.communicate(timeout=240)
        assert "sent " in out, out
        print(out)
        return next(line for line in out.splitlines() if line.startswith("sent "))


def whole(line: str) -> bool:
    """Whether nothing was lost, came twice, or out of order."""
    words = line.replace(",", "").split()
    number = {
        name: int(words[words.index(name) + 1])
        for name in ("lost", "duplicated", "order", "unacknowledged")
    }
    return not any(number.values())
