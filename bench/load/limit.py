"""Whether a measured rate says something about the broker, or about the generator. Pure."""

from __future__ import annotations

from collections.abc import Sequence

BUSY = 0.9
"""Of a core: who uses so much has nothing left, as far as one can tell from outside."""
KEPT_UP = 0.98
"""Of the rate that was asked for."""
LATE = 0.5
"""Of the delay that 99 % of the messages keep to: so late may the generator itself be."""


def limit_of_rate(generator: Sequence[float], cores: int, brokers: Sequence[float]) -> str:
    """Return why the generator may have been the limit of a load that sends as much as it can, in
    one line; empty where it was not.

    `generator` has the CPUs used by each of its processes (1.0: one core full), which may use so
    many `cores`; `brokers` those that each broker used or waited for: when others have its core, it
    is not the generator that keeps it from doing more.
    """
    why = _busy(generator)
    if cores and sum(generator) / cores >= BUSY:
        why.append(f"the generator used {sum(generator) / cores:.0%} of its {cores} cores")
    if brokers and max(brokers) < BUSY:
        why.append(f"the broker wanted {max(brokers):.0%} of a core only")
    return ", ".join(why)


def limit_of_pace(
    listeners: Sequence[float], rate: float, asked: float, late: float, delay: float
) -> str:
    """Return why the generator may have been the limit of a load by the clock, in one line; empty
    where it was not.

    `listeners` has the CPUs used by each process that only receives (who sends by the clock is
    always awake); `rate` messages a second arrived, of `asked`; 99 % were sent not more than `late`
    behind their time, and arrived not more than `delay` behind it (both in ms).
    """
    why = _busy(listeners)
    if rate < asked * KEPT_UP:
        why.append(f"{rate:,.0f} of {asked:,.0f} messages a second arrived")
    if late >= delay * LATE > 0.0:
        why.append(f"the generator was {late:.2f} ms late itself (p99)")
    return ", ".join(why)


def _busy(processes: Sequence[float]) -> list[str]:
    if not processes or max(processes) < BUSY:
        return []
    return [f"a process of the generator used {max(processes):.0%} of a core"]


RUN_BUSY = 0.8
"""Of a core, for each process of a scenario's generator: above that part of what is measured may be
its own speed."""
RUN_LATE = 0.1
"""Of the mean delay: so late may 99 % of a scenario's messages be sent."""


def limit_of_capacity(generator: float | None) -> str:
    """Return why the generator of a scenario's run may have been the limit of its rates, in one
    line; empty where it was not. `generator` is what its busiest process used of a core (None: not
    known)."""
    if generator is None or generator <= RUN_BUSY:
        return ""
    return f"limited by the generator: it used {generator:.0%} of a core"


def limit_of_delay(late: float | None, delay: float | None) -> str:
    """Return why the delays of a scenario's run say as much about its generator as about brokers,
    in one line; empty where they do not. `late`: so late (p99) it sent its messages; `delay`: their
    mean delay (both in ms; None: not known)."""
    if late is None or not delay or late <= delay * RUN_LATE:
        return ""
    return (
        f"limited by the generator: {late:.2g} ms late itself (p99), "
        f"of a mean delay of {delay:.2g} ms"
    )
