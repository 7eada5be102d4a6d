"""Moves clients with one connection that would better be at another broker, while this broker is
the root of the tree: every ten seconds it looks whether a broker has too much, and once a minute
whether moves would save enough. One client in a hundred is moved in a minute at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.cluster.directory.questions import Answer
from mqttree.broker.cluster.placement.decider import PLAN_WORK, Decider
from mqttree.broker.cluster.placement.placement_messages import (
    ASK_CLIENTS,
    REDIRECT,
    STATUS,
    encode_redirect,
)
from mqttree.placement.controller import WORTH_RATE
from mqttree.placement.greedy import GAMMA
from mqttree.placement.redirection import Advice, Candidate, Overload, pays

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.placement.ports import PlacingBroker
    from mqttree.broker.cluster.placement.redirector import Redirector
    from mqttree.routing.link_state import LinkStateDatabase

ROUND_S: Final = 60.0
"""s between two rounds at least."""

ANSWER_WAIT: Final = 2.0
"""s for the clients of other brokers."""

PART: Final = 100
"""One client in so many is moved in a round, and one at least."""


class Rebalancer:
    """Looks for clients to be moved, and has them moved."""

    def __init__(
        self,
        host: PlacingBroker,
        *,
        decider: Decider,
        database: LinkStateDatabase,
        bus: UnicastBus,
        redirector: Redirector,
    ) -> None:
        """`host`: this broker; `decider`: knows the traffic; `database`: which brokers can be
        reached; `bus`: carries questions; `redirector`: has the clients here."""
        self._host = host
        self._decider = decider
        self._database = database
        self._bus = bus
        self._redirector = redirector
        self._overload: Overload = Overload(GAMMA)
        self._next = 0.0  # s, no round before
        self._round = 0  # the number of the one that is under way, 0: none is
        self._waits = False  # for clients of other brokers
        self._over: dict[str, float] = {}  # messages/s too many, by broker
        self._asked: set[bytes] = set()  # brokers whose clients are waited for
        self._clients: list[Any] = []
        self._connected = 0

    def look(self, now: float) -> None:
        """See whether a round is due at `now` (s); to be called every ten seconds."""
        if not self._redirector.enabled or self._redirector.quiet:
            self.stop()
            return
        loads = self._decider.knowledge.brokers()
        over = self._overload.look(loads, now)
        internal = sum([load.aio for load in loads], 0.0)
        if self._round or now < self._next or len(loads) < 2:
            return
        if not over and internal < WORTH_RATE:
            return
        self._next = now + ROUND_S
        self._round = number = int(now * 1000) + 1
        self._over = over
        # The rates of topics are known once this is answered.
        self._decider.ask(STATUS, {}, lambda answer: self._begin(number, answer))

    def stop(self) -> None:
        """End the round that is under way: another broker is the root, or brokers have come or
        gone."""
        self._round = 0
        self._waits = False
        self._asked.clear()
        self._clients = []

    def _begin(self, number: int, answer: Answer) -> None:
        if number != self._round:
            return
        if answer[0] != 200:
            self.stop()
            return
        self._clients = list(self._redirector.candidates())
        self._connected = self._host.clients.connected
        self._asked = {
            listing.id
            for listing in self._database.reachable()
            if self._bus.send(listing.id, ASK_CLIENTS, b"")
        }
        self._waits = True
        self._host.timers.schedule(self._host.now + ANSWER_WAIT, lambda now: self._plan(number))
        if not self._asked:
            self._plan(number)

    def clients_came(self, broker_id: bytes, connected: int, clients: list[Any]) -> None:
        """Take what the broker `broker_id`, if it was asked, has told: how many clients it has
        (`connected`), and some that may be moved (`clients`)."""
        if broker_id not in self._asked:
            return
        self._asked.discard(broker_id)
        self._connected += connected
        source = broker_id.hex()
        # A broker speaks of its own clients alone.
        self._clients += [
            each for each in clients if isinstance(each, dict) and each.get("at") == source
        ]
        if not self._asked:
            self._plan(self._round)

    def _plan(self, number: int) -> None:
        if number != self._round or not self._waits:
            return
        self._waits = False
        self._asked.clear()
        clients, self._clients = self._clients, []
        self._host.turns.go(self._planning(clients), lambda: self._round != number)

    def _planning(self, clients: list[Any]) -> Iterator[int]:
        decider = self._decider
        now = self._host.now
        found: list[tuple[Advice, int]] = []
        over = self._over
        redirections = decider.redirections
        for _ in redirections.plan(self._candidates(clients), decider.knowledge, now, found, over):
            yield PLAN_WORK
        internal = sum([load.aio for load in decider.knowledge.brokers()], 0.0)
        relieving = [each for each in found if each[0].source in over]
        saving = [each for each in found if each[0].source not in over]
        wanted = relieving + (saving if pays(saving, internal) else [])
        most = max(1, self._connected // PART)
        chosen = wanted[:most]
        going = {advice.client for advice, _ in chosen}
        for advice, _ in found:
            if advice.client not in going:
                redirections.drop(advice)
        for advice, _ in chosen:
            if redirections.commit(advice, now):
                self._move(advice, now)
        self._round = 0

    def _candidates(self, clients: list[Any]) -> Iterator[Candidate]:
        for each in clients:
            try:
                yield self._decider.candidate(each)
            except ValueError:
                self._host.counters.placement_refused += 1

    def _move(self, advice: Advice, now: float) -> None:
        self._host.counters.rebalanced += 1
        if advice.source in self._over:
            self._overload.relieved(advice.source, now)
        source = bytes.fromhex(advice.source)
        if source == self._host.config.id:
            self._redirector.chosen(advice.client, advice.address)
        else:
            self._bus.send(source, REDIRECT, encode_redirect(advice.client, advice.address))
