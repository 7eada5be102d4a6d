"""Two running brokers with the same id, as a data directory was copied. One of the two serves
clients, the other does not.

The broker that started first goes on: others know it, and it has clients. The one that started
later (the higher boot number; of two that started in the same second the higher instance, a random
number) yields as soon as the other proves that it holds the key of the id: it sends its clients
away, closes its links and accepts neither until the other is gone. It dials the other once a
second, so it serves again some seconds after that has ended. An announcement, or a refusal by a
third broker, proves nothing: this broker dials the address to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mqttree.broker.base.address import Address
from mqttree.broker.core.client import disconnect
from mqttree.broker.core.effects import Dial
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Disconnect
from mqttree.discovery.dialler import NEVER

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.ports import MemberBroker

CALL_PAUSE = 1.0
"""s between two dials to the address of the other one: false announcements cause no more dials."""
GONE_S = 5.0
"""s after the last proof of the other one until it counts as gone: longer than a dial takes to
fail."""


class IdConflict:
    """Knows the other broker with the id of this one, if there is one."""

    def __init__(
        self,
        node: MemberBroker,
        links: Mapping[bytes, Link],
        lose: Callable[[Link, str, float], None],
    ) -> None:
        """`node`: this broker; `links`: by the neighbour's id; `lose`: ends a link for a reason, at
        a time (s)."""
        self._node = node
        self._links = links
        self._lose = lose
        self.refuses_clients = False
        """This broker is the one that does not serve."""
        self.other: Address | None = None
        self._proven_at = -NEVER
        self._call_at = -NEVER

    def suspect(self, address: Address, now: float) -> None:
        """Dial a broker that is said to have the id of this one."""
        if now >= self._call_at:
            self._call_at = now + CALL_PAUSE
            self._node.effects.append(Dial(address.host, address.port))

    def proven(self, start: tuple[int, int], address: Address, now: float) -> None:
        """Note that the broker at `address` proved in a handshake that it holds the key of our
        id. `start`: its boot number and instance; `now`: s."""
        self._proven_at = now
        self.other = address
        if not self.refuses_clients and start < (
            self._node.config.boot,
            self._node.config.instance,
        ):
            self._yield(address, now)

    def _yield(self, address: Address, now: float) -> None:
        self.refuses_clients = True
        self._call_at = now + CALL_PAUSE
        self._node.counters.id_conflicts += 1
        self._node.log(
            "error",
            f"the broker at {address} has the id of this one, {self._node.config.id.hex()}, "
            "and started before it, or at the same time (a copied data directory?): "
            "this one accepts no clients until that one is gone",
        )
        for session in list(self._node.sessions.values()):
            disconnect(session, ReasonCode.SERVER_BUSY)
        for link in list(self._links.values()):
            link.conn.close(
                encode_packet(Disconnect(ReasonCode.NORMAL_DISCONNECTION), 5) if link.up else b""
            )
            self._lose(link, "another broker has our id", now)

    def next_deadline(self) -> float:
        """When `tick` is due (s)."""
        return self._call_at if self.refuses_clients else NEVER

    def tick(self, now: float) -> None:
        """Find out whether the other one still runs."""
        if not self.refuses_clients or now < self._call_at or self.other is None:
            return
        # This broker was stopped: that says nothing about the other one.
        if now > self._call_at + CALL_PAUSE:
            self._proven_at = now
        if self._proven_at + GONE_S <= now:
            self.refuses_clients = False
            self._node.log(
                "warning",
                f"the broker at {self.other} with this one's id is gone: clients may connect again",
            )
            self.other = None
        else:
            self.suspect(self.other, now)
