"""Names of seeds, resolved again and again. It decides nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable

from mqttree.broker.base.address import Address, sort_key

INTERVAL = 30.0
"""Seconds between look-ups of a name that resolves: about the life of a record that a container
network hands out."""
RETRY = 1.0
"""Seconds until the next look-up of a name that does not resolve; doubled up to INTERVAL."""
MAX_ADDRESSES = 64
"""Addresses taken from one name: a name server's answer over UDP holds no more, a wrong one must
not fill tables."""

Lookup = Callable[[Address], Awaitable[list[str]]]


class Resolver:
    """Resolves every name periodically and reports all of its IPv4 and IPv6 addresses, or each new
    reason of a failure.

    `on_resolved(seed, addresses)` is called when the answer changed; `on_failed(seed, reason)` when
    the failure did. A name that fails after having been resolved keeps the addresses that it had.
    """

    def __init__(
        self,
        seeds: Iterable[Address],
        on_resolved: Callable[[Address, list[Address]], None],
        on_failed: Callable[[Address, str], None],
        *,
        interval: float = INTERVAL,
        retry: float = RETRY,
        lookup: Lookup | None = None,
    ) -> None:
        """`seeds`: host names with ports. `on_resolved`, `on_failed`: see above. `interval`: s
        between two lookups of a name, `retry`: s after a failure. `lookup`: replaces the system's
        resolver in tests."""
        self._seeds = list(dict.fromkeys(seeds))
        self._on_resolved = on_resolved
        self._on_failed = on_failed
        self._interval = interval
        self._retry = retry
        self._lookup = lookup if lookup is not None else system_lookup
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to resolve, each name in a task of its own. Needs a running event loop."""
        if not self._tasks:
            self._tasks = [
                asyncio.get_running_loop().create_task(self._follow(seed)) for seed in self._seeds
            ]

    async def close(self) -> None:
        """Stop; nothing is called afterwards."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, seed: Address) -> None:
        known: list[Address] | None = None
        failure: str | None = None
        wait = self._retry
        while True:
            try:
                hosts = await self._lookup(seed)
                found = sorted({Address(host, seed.port) for host in hosts}, key=sort_key)[
                    :MAX_ADDRESSES
                ]
                if not found:
                    raise OSError("no address")
            except OSError as error:
                reason = error.strerror or str(error)
                if reason != failure:
                    failure = reason
                    self._on_failed(seed, reason)
                await asyncio.sleep(wait)
                wait = min(wait * 2, self._interval)
                continue
            failure, wait = None, self._retry
            if found != known:
                known = found
                self._on_resolved(seed, found)
            await asyncio.sleep(self._interval)


async def system_lookup(seed: Address) -> list[str]:
    """Ask the system for all addresses of a name. Raises OSError (socket.gaierror) when there is
    none.

    In a thread of its own and not in the loop's executor, for which a program waits when it ends: a
    name server that does not answer must not hold up the end of a broker.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(hosts: list[str], error: OSError | None) -> None:
        if not answer.done():
            if error is None:
                answer.set_result(hosts)
            else:
                answer.set_exception(error)

    def ask() -> None:
        hosts: list[str] = []
        failure: OSError | None = None
        try:
            found = socket.getaddrinfo(seed.host, seed.port, type=socket.SOCK_STREAM)
            hosts = [str(entry[4][0]) for entry in found]
        except OSError as error:
            failure = error
        # A label that IDNA refuses.
        except UnicodeError as error:
            failure = OSError(str(error))
        try:
            loop.call_soon_threadsafe(settle, hosts, failure)
        except RuntimeError:
            # The loop has ended meanwhile.
            return

    threading.Thread(target=ask, name=f"resolve {seed.host}", daemon=True).start()
    return await answer
