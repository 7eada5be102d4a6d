"""A client that goes where a broker sends it that drains, and knows which brokers keep its session
in a journal."""

from __future__ import annotations

from mqttree.broker.base.address import parse_address
from mqttree.broker.wire.packets import Connack, Disconnect, Packet
from mqttree.broker.wire.properties import Property
from tests.sim.clients import SimClient


class Roamer(SimClient):
    """A client that goes where a draining broker sends it; without a Server Reference it waits for
    its broker."""

    def _packet(self, packet: Packet) -> None:
        refused = isinstance(packet, Connack) and packet.code
        if (refused or isinstance(packet, Disconnect)) and self.life[1] in self.host.left:
            assert isinstance(packet, Connack | Disconnect)
            where = (packet.properties or {}).get(Property.SERVER_REFERENCE)
            if where is not None:
                host = self.world.at_address(parse_address(where))
                assert host is not None and host is not self.host
                self.host = host
            if self._end is not None:
                self._end.close()
            self._down("sent away")
            self.world.after(self.retry, self.connect)
        else:
            super()._packet(packet)


class Walker(Roamer):
    """Its session is where it was when a broker with a journal is back."""

    back_at = 0.0
    """s from the start of the world; it does not connect again before that."""

    def connect(self) -> None:
        wait = self.world.started + self.back_at - self.world.now
        if self.epoch and wait > 0 and self.state == "down":
            self.world.after(wait, self.connect)
        else:
            super().connect()

    def _doubtful(self) -> bool:
        if self.life[0] == self.host.index and self.life[0] in self.world.kept and not self.forked:
            return self.doubt and self.state != "up"
        return super()._doubtful()
