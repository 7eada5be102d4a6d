"""What this broker has of others whose standby it is: an image each (docs/decisions/0062). Pure.

Frames are applied as they come, in order and without a gap, and once a turn the owner hears up to
which LSN everything is here. An image that goes wrong, or is too large, is dropped, and its owner
hears that: it begins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.cluster.directory.link_state_directory import (
    IMAGES,
    STANDBY,
    STATE,
    decode_posted,
)
from mqttree.broker.cluster.link.stream_packets import (
    BEGIN,
    DROP,
    END,
    HAVE,
    decode_stream,
    encode_stream,
)
from mqttree.broker.cluster.link_registry import SILENT
from mqttree.broker.cluster.sessions.fence_messages import FENCE
from mqttree.broker.cluster.sessions.image_states import Action, Input, State, transition
from mqttree.broker.cluster.sessions.records import JournalError
from mqttree.broker.persistence.standby_image import Key, StandbyImage
from mqttree.broker.persistence.succession import Succession

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.delivery.ports import Streamed
    from mqttree.broker.cluster.events import LinkDown, LinkUp, RouteChanged
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.persistence.ports import JournalBroker

POST_INTERVAL_S = 10.0
"""s between two looks at how many bytes the images have, which other brokers are told."""

POSTED_UNIT = 1024 * 1024
"""bytes; in these units they are told it."""

RECORD_BYTES = 100
"""bytes of a frame that are as much work as a message."""


class Images:
    """All images at one broker."""

    def __init__(self, node: JournalBroker, cluster: Cluster) -> None:
        """`node`: this broker; `cluster`: has its links."""
        self._node = node
        self._cluster = cluster
        self.stream: Streamed | None = None
        """This broker's own stream; None: it wants no standby."""
        self.images: dict[Key, StandbyImage] = {}
        self.size = 0
        """Bytes of their frames."""
        self._most = node.config.memory_limit // 4 or node.limits.images_bytes
        # Those whose owners have not heard of the last frame.
        self._untold: dict[StandbyImage, None] = {}
        self._posted = 0
        self._posting = False
        self._succession = Succession(
            node,
            cluster,
            self.valid,
            lambda: self.doubts,
            self._drop,
        )
        cluster.bus.receive(FENCE, self._fence_heard)
        cluster.directory.watch(STATE, self._entry_changed)

    def valid(self) -> dict[bytes, StandbyImage]:
        """Return the images that are complete, by their owners: of each the newest."""
        found = sorted(key for key, image in self.images.items() if image.whole)
        return {key[0]: self.images[key] for key in found}

    @property
    def unprotected(self) -> bool:
        """Whether sessions would end, or wait in the journal, if this broker stopped now."""
        if self.stream is not None:
            return self.stream.unprotected > 0
        return any(session.expiry for session in self._node.sessions.values())

    def is_standby(self) -> bool:
        """Whether this broker is the standby of another one, or has sessions of one that is
        gone."""
        return bool(self.images)

    @property
    def unadopted(self) -> int:
        """Sessions of brokers that are gone which are nowhere else."""
        return self._succession.unadopted

    @property
    def doubts(self) -> bool:
        """Whether this broker does not know which of its sessions its standby has given away."""
        return self.stream is not None and self.stream.doubts

    # ---------------------------------------------------------------- links

    def received(self, link: Link, data: bytes, body: int) -> None:
        """Take a packet of a stream (`data`) that came over `link`. `body`: where it begins behind
        its length.

        Raises:
            MalformedPacket: it cannot be read.
        """
        kind, epoch, lsn, frame = decode_stream(data, body)
        peer = link.peer
        assert peer is not None
        if kind == HAVE:
            if self.stream is not None:
                self.stream.have(link, epoch, lsn)
            return
        key = (peer.id, peer.boot, epoch)
        if kind == BEGIN:
            self._begin(key, link, lsn)
        elif (image := self.images.get(key)) is None:
            # The owner will have heard that it is dropped.
            return
        elif kind == DROP:
            self._on(image, Input.DROPPED)
        elif image.state is State.PROMOTED:
            self._succession.fences.reached(peer.id)
        else:
            self._take(image, lsn, frame, ends=kind == END)

    def link_up(self, event: LinkUp) -> None:
        """Note that there is a neighbour. From the first one on that may be the standby, a broker
        without a disk records what it does."""
        peer = event.link.peer
        if self.stream is None and self._node.config.replicas and peer and peer.standby:
            self._node.timers.schedule(event.now, self._node.record_without_disk)

    def link_down(self, event: LinkDown) -> None:
        """Note that a link is gone."""
        for image in list(self.images.values()):
            if image.link is event.link:
                image.crashed = event.reason != SILENT
                self._on(image, Input.LINK_LOST)
        if self.stream is not None:
            self.stream.link_down()

    def route_changed(self, event: RouteChanged) -> None:
        """Note that another broker can be reached, or no longer."""
        self._succession.route_changed(event)

    def on_suspended(self, seconds: float, now: float) -> None:
        """Note that this broker did not run for `seconds` until `now` (s)."""
        if self.stream is not None:
            self.stream.on_suspended(seconds, now)
        self._succession.on_suspended(seconds, now)

    def _fence_heard(self, sender: bytes, body: bytes, now: float) -> None:
        if self.stream is not None:
            self.stream.fencing.heard(sender, body, now)

    def _entry_changed(self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool) -> None:
        """Drop the images of a broker that has posted later standbys, or that it has none."""
        if key != STANDBY[1:] or value is None or gone:
            return
        last, posted = decode_posted(value)
        needed = {each.epoch for each in posted if each.id == self._cluster.own.id}
        for image in list(self.images.values()):
            owner, _, epoch = image.key
            if owner == broker_id and epoch <= last and epoch not in needed:
                self._on(image, Input.DROPPED)
        self._succession.standbys_changed(broker_id, posted[0].id if posted else b"")

    # ---------------------------------------------------------------- images

    def _begin(self, key: Key, link: Link, lsn: int) -> None:
        """Begin an image. The last valid one of this incarnation of the owner stays until the new
        one is the standby's: nothing else of that owner is needed any more."""
        valid: StandbyImage | None = None
        for image in list(self.images.values()):
            owner, boot, epoch = image.key
            if owner != key[0]:
                continue
            unneeded: StandbyImage | None = image
            if image.whole and boot == key[1] and epoch != key[2]:
                unneeded, valid = valid, image
            if unneeded is not None:
                self._on(unneeded, Input.DROPPED)
        self.images[key] = StandbyImage(key, link, lsn)

    def _take(self, image: StandbyImage, lsn: int, frame: bytes, *, ends: bool) -> None:
        try:
            if ends and image.state is not State.LOADING:
                raise JournalError("has a second snapshot")
            self.size -= image.size
            try:
                image.apply(lsn, frame)
                image.heard = self._node.now
            finally:
                self.size += image.size
        except JournalError as error:
            self._node.counters.image_faults += 1
            peer, title = image.link.conn.peer, image.link.title
            text = f"the image of {title} {error}; it is dropped"
            self._node.log_limit.line("warning", "faulty image", peer, text)
            self._on(image, Input.REFUSED)
            return
        if ends:
            self._on(image, Input.ENDED)
        if not self._untold:
            self._node.output.at_end.append(self._tell)
        self._untold[image] = None
        self._node.turns.work += 1 + len(frame) // RECORD_BYTES
        if not self._posting:
            self._posting = True
            self._node.timers.schedule(self._node.now + POST_INTERVAL_S, self._post)
        while self.size > self._most:
            largest = max(self.images.values(), key=lambda each: each.size)
            self._node.counters.images_dropped += 1
            text = f"the image of {largest.link.title} is dropped: images may take {self._most:,} B"
            self._node.log_limit.line("warning", "images are full", largest.link.conn.peer, text)
            self._on(largest, Input.REFUSED)

    def _drop(self, image: StandbyImage) -> None:
        if image.key in self.images:
            self._on(image, Input.DROPPED)

    def _on(self, image: StandbyImage, given: Input) -> None:
        action, image.state = transition(image.state, given)
        if action is Action.NOTHING:
            return
        del self.images[image.key]
        self.size -= image.size
        self._untold.pop(image, None)
        if action is Action.REFUSE:
            image.link.send_ahead(encode_stream(HAVE, image.key[2], 0))

    def _tell(self) -> None:
        """Tell the owners, at the end of a turn, what is here."""
        untold, self._untold = self._untold, {}
        for image in untold:
            told, image.told = image.told, encode_stream(HAVE, image.key[2], image.lsn)
            image.link.send_ahead(image.told, told)

    def _post(self, now: float) -> None:
        """Post how many bytes the images have, if that has changed by a quarter."""
        self._posting = False
        size = self.size // POSTED_UNIT
        if abs(size - self._posted) > self._posted // 4:
            self._posted = size
            self._cluster.directory.post(IMAGES, size.to_bytes(4, "big"))
        if size:
            self._posting = True
            self._node.timers.schedule(now + POST_INTERVAL_S, self._post)
