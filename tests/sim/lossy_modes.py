"""What schedules of the papers' own routing modes (`srt`, `ort`) have in common: messages may be
lost, and it is compared to the message what is counted as lost."""

from __future__ import annotations

from collections.abc import Iterable

from tests.sim.checkers import Messages
from tests.sim.clients import SimClient
from tests.sim.schedule import quiet
from tests.sim.test_federation import Event, Scene


class NothingOwed(Messages):
    """All that is checked of messages but losses, which are not excluded here."""

    def _losses(self) -> None:
        """A message may be lost while the tree changes, and before the way is open."""

    def left_behind(self, client: SimClient) -> list[str]:
        """The same goes for messages to sessions that move."""
        return []


class EvenScene(Scene):
    """Brokers that are linked to each other but for some pairs, all delays 10 ms, without jitter;
    b0 has the most capability."""

    def __init__(
        self,
        brokers: int,
        events: list[Event],
        apart: Iterable[tuple[int, int]],
        **config: object,
    ) -> None:
        super().__init__(1, brokers, events, **config)
        self.world.loss = self.world.jitter = 0.0
        for a in range(brokers):
            for b in range(brokers):
                self.world._base[a, b] = 0.01
        for a, b in apart:
            self.world.block(a, b)
        for index in range(brokers):
            self.world.add(capability=float(90 - index), **self.config).start()
        quiet(self.world)

    def client(self, name: str, broker: int, *filters: str) -> SimClient:
        client = SimClient(
            self.world,
            self.ledger,
            name,
            self.hosts[broker],
            filters=[(text, 2) for text in filters],
        )
        client.connect()
        self.clients.append(client)
        self.world.run(0.5)
        assert client.state == "up"
        return client

    def lost(self) -> int:
        return sum(host.running.counters.lost_before_path for host in self.world.alive())


def missing(publisher: SimClient, subscriber: SimClient) -> list[int]:
    """The numbers of the messages that did not come."""
    got = {one.number for one in subscriber.got}
    return [
        sent.number
        for sent in publisher.ledger.sent
        if sent.client is publisher and sent.number not in got
    ]
