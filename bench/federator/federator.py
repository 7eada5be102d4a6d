"""A federator: the meshes of all topics beside one broker, with bounds on what they keep."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple, TypeAlias

from mqttree.bench.federator import codec
from mqttree.bench.federator.mesh import Counts, Deliver, Mesh
from mqttree.bench.federator.messages import CoreAnnouncement, Data, Membership, Message
from mqttree.bench.federator.settings import MAX_LOG, Settings
from mqttree.bench.federator.topics import Kind, MessageError, parse

MAX_TOPICS = 4_096
"""topics with a mesh. Anyone who may publish can begin one, so further ones are refused: with names
of 1 KiB these are 4 MiB, and a few KiB each beside their logs."""

IDLE_INTERVALS = 10
"""core intervals without a core, interest or any message after which a topic is forgotten. Three
times as long as a core lives: no broker can still follow the announcements of this one, whose
numbers then begin at 0 again."""

COMPLAINT_INTERVAL = 60.0
"""s between two lines about messages that cannot be read: anyone can send as many as they like."""


class Publish(NamedTuple):
    """Publish a payload to an MQTT topic at a broker: at a neighbour's, or at this federator's
    own one."""

    broker: int
    topic: str
    payload: bytes


class Log(NamedTuple):
    """Write a line to the log; `level` is "info" or "warning"."""

    level: str
    text: str


Effect: TypeAlias = Publish | Log

_KINDS: dict[type[Message], Kind] = {
    CoreAnnouncement: Kind.CORE_ANN,
    Membership: Kind.MEMB_ANN,
    Data: Kind.ROUTING,
}


class Federator:
    """What one federator knows and decides. All methods take `now` in seconds, of a clock that
    never goes back."""

    def __init__(self, settings: Settings) -> None:
        """`settings`: who it is, and what it may use."""
        self.settings = settings
        self.counts = Counts()
        self.bad_messages = 0
        """Messages that could not be read."""
        self.topics_refused = 0
        """Beacons and announcements of topics beyond the bound."""
        self._meshes: dict[str, Mesh] = {}
        self._effects: list[Effect] = []
        # (when, topic) of cores that will announce. An entry counts if `_due` has the same time.
        self._timers: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        self._upkeep_at = math.inf
        self._complain_at = -math.inf
        # Other brokers may remember the numbers of a forgotten topic.
        self._first_number = 0

    def take_effects(self) -> list[Effect]:
        """Return what is to be done, in order, and forget it here."""
        effects, self._effects = self._effects, []
        return effects

    def deadline(self) -> float:
        """Return when `tick` has something to do (s); infinity: not before another message."""
        while self._timers and self._due.get(self._timers[0][1]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return min(self._upkeep_at, self._timers[0][0] if self._timers else math.inf)

    def meshes(self) -> dict[str, Mesh]:
        """Return all meshes by their topic's name."""
        return dict(self._meshes)

    def received(self, topic: str, payload: bytes, now: float) -> None:
        """Take what was published at this federator's broker to the MQTT topic `topic` by anyone
        but this federator. What cannot be read is counted, with a line in the log now and then.

        `payload`: of the message; `now`: in seconds.
        """
        try:
            kind, name = parse(topic)
            message = self._read(kind, payload)
        except MessageError as error:
            self._complain(str(error), now)
            return
        mesh = self._mesh_for(kind, name, now)
        if mesh is None:
            return
        if isinstance(message, CoreAnnouncement):
            mesh.core_announced(message, now)
        elif isinstance(message, Membership):
            mesh.member_announced(message, now)
        elif isinstance(message, Data):
            mesh.data_received(message, now)
        elif kind is Kind.BEACON:
            mesh.beacon(now)
        else:
            mesh.published(payload, now)
        self._finish(name, mesh, now)

    def tick(self, now: float) -> None:
        """Announce where this broker is core, end interest, and forget what is of no use."""
        while self.deadline() <= now:
            if self._upkeep_at <= now:
                self._keep_up(now)
                continue
            _, name = heapq.heappop(self._timers)
            self._due.pop(name, None)
            mesh = self._meshes[name]
            mesh.tick(now)
            self._finish(name, mesh, now)

    def _mesh_for(self, kind: Kind, name: str, now: float) -> Mesh | None:
        """Return the topic's mesh. A new one begins with a beacon or an announcement only, as long
        as there is room."""
        mesh = self._meshes.get(name)
        if mesh is not None:
            return mesh
        if kind not in (Kind.BEACON, Kind.CORE_ANN):
            return None
        if len(self._meshes) >= MAX_TOPICS:
            self.topics_refused += 1
            if self.topics_refused == 1:
                self._effects.append(Log("warning", f"there are {MAX_TOPICS} topics, no more fit"))
            return None
        mesh = self._meshes[name] = Mesh(self.settings, self.counts, self._first_number)
        mesh.used_at = now
        if self._upkeep_at == math.inf:
            self._upkeep_at = now + self.settings.core_interval
        return mesh

    def _read(self, kind: Kind, payload: bytes) -> Message | None:
        """Return the message between federators, None for one of clients. Raises MessageError."""
        if kind is Kind.CORE_ANN:
            return codec.decode_announcement(payload, self.settings.codec)
        if kind is Kind.MEMB_ANN:
            return codec.decode_membership(payload, self.settings.codec)
        if kind is Kind.ROUTING:
            return codec.decode_data(payload, self.settings.codec)
        return None

    def _finish(self, name: str, mesh: Mesh, now: float) -> None:
        """Take a mesh's effects, note when it has something to do next, and hold its log to its
        bound."""
        if mesh.effects:
            effects, mesh.effects = mesh.effects, []
            for effect in effects:
                if isinstance(effect, Deliver):
                    topic = Kind.FEDERATED.topic(name)
                    self._effects.append(Publish(self.settings.id, topic, effect.payload))
                    continue
                topic = _KINDS[type(effect.message)].topic(name)
                payload = codec.encode(effect.message, self.settings.codec)
                self._effects += [Publish(to, topic, payload) for to in effect.to]
        due = mesh.deadline()
        if due == math.inf:
            self._due.pop(name, None)
        elif self._due.get(name) != due:
            self._due[name] = due
            heapq.heappush(self._timers, (due, name))
        self._trim(mesh, now)

    def _trim(self, mesh: Mesh, now: float) -> None:
        """Hold a mesh's log to its size, and all logs together to what one may have at most."""
        most = MAX_LOG // len(self._meshes)
        mesh.trim(min(self.settings.log_size, most), most, now)

    def _keep_up(self, now: float) -> None:
        """Forget topics that have been idle for long, and what their logs keep too much."""
        idle = IDLE_INTERVALS * self.settings.core_interval + self.settings.log_time
        for name, mesh in list(self._meshes.items()):
            if now - mesh.idle_since(now) >= idle and not mesh.interested(now):
                self._first_number = max(self._first_number, mesh.next_number)
                del self._meshes[name]
                self._due.pop(name, None)
            else:
                self._finish(name, mesh, now)
        self._upkeep_at = now + self.settings.core_interval if self._meshes else math.inf

    def _complain(self, why: str, now: float) -> None:
        self.bad_messages += 1
        if now >= self._complain_at:
            self._complain_at = now + COMPLAINT_INTERVAL
            text = f"a message cannot be read ({self.bad_messages} so far): {why}"
            self._effects.append(Log("warning", text))
