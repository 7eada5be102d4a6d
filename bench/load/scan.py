"""Reading streams of MQTT packets in bulk: what is counted costs no Python bytecode for a single
message. Pure; what these functions rely on is the layout of `mqttree.bench.load.mixture`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mqttree.bench.load import packets
from mqttree.bench.load.mixture import FILLER, LABEL_BYTES, MARK, MixSpec

_END = FILLER * 4
"""Ends the part of a chunk that has whole heads only: nothing but filler has four of these."""
_HEAD_BYTES = 3
"""An incomplete head (from the end of its topic on) or PUBREL at the end of a chunk has so many
bytes and the properties at most."""


class Counter:
    """Arrivals at QoS 0: each has one MARK."""

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Return how many PUBLISH packets begin their payload in `data`, and what is to be
        answered: nothing."""
        return data.count(MARK), b""


class Acknowledger:
    """Arrivals at QoS 1: the packet identifier stands between the end of the topic and MARK."""

    def __init__(self, properties: bytes) -> None:
        """Expect so many bytes of `properties` before each payload."""
        self._find = re.compile(rb"~(..)" + _gap(properties) + MARK, re.DOTALL).findall
        self._rest = b""

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Return how many PUBLISH packets came, and their PUBACKs."""
        if self._rest:
            data = self._rest + data
        # All heads before filler are complete; what is behind it is looked at with what follows.
        filler = data.rfind(_END)
        if filler < 0:
            self._rest = data
            return 0, b""
        found = self._find(data, 0, filler)
        self._rest = data[filler + len(_END) :]
        return len(found), packets.PUBACK_HEAD.join([b"", *found])


class Receiver:
    """Arrivals at QoS 2, and the PUBRELs among them."""

    def __init__(self, properties: bytes) -> None:
        """Expect so many bytes of `properties` before each payload."""
        pattern = rb"~(..)" + _gap(properties) + MARK + rb"|\x62\x02(..)"
        self._split = re.compile(pattern, re.DOTALL).split
        self._keep = _HEAD_BYTES + len(properties)
        self._rest = b""

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Return how many PUBLISH packets came, and the PUBRECs and PUBCOMPs that are due."""
        parts = self._split(self._rest + data)
        self._rest = parts[-1][-self._keep :]
        received = [each for each in parts[1::3] if each is not None]
        released = [each for each in parts[2::3] if each is not None]
        answers = packets.PUBREC_HEAD.join([b"", *received])
        return len(received), answers + packets.PUBCOMP_HEAD.join([b"", *released])


Scanner = Counter | Acknowledger | Receiver


def scanner(spec: MixSpec) -> Scanner:
    """Return what reads the stream of one subscriber of a load."""
    if not spec.qos:
        return Counter()
    return (Acknowledger if spec.qos == 1 else Receiver)(spec.properties)


def _gap(properties: bytes) -> bytes:
    return b".{%d}" % len(properties) if properties else b""


class Acknowledged:
    """What a publisher is sent: PUBACK at QoS 1, PUBREC and PUBCOMP at QoS 2."""

    _runs = re.compile(rb"(?:\x40\x02..)++|(?:\x50\x02..)++|(?:\x70\x02..)++", re.DOTALL)

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Return how many messages are done with, and the PUBRELs that are due. Raises ValueError
        for a refusal and for anything that a publisher is not sent."""
        data = self._rest + data
        done, answers, pos, end = 0, [], 0, len(data)
        while pos < end:
            match = self._runs.match(data, pos)
            if match is not None:
                run = match.end() - pos
                if data[pos] == 0x50:
                    answer = bytearray(data[pos : pos + run])
                    answer[0::4] = b"\x62" * (run // 4)
                    answers.append(bytes(answer))
                else:
                    done += run // 4
                pos += run
                continue
            head = packets.header(data, pos, end)
            if head is None or head[1] > end:
                break
            kind, body = data[pos] >> 4, data[head[0] : head[1]]
            if kind not in (packets.PUBACK, packets.PUBREC, packets.PUBCOMP):
                raise ValueError(f"a publisher was sent packet type {kind}: {body.hex()}")
            if len(body) > 2 and body[2] >= 0x80:
                raise ValueError(f"a PUBLISH was refused with reason 0x{body[2]:02x}")
            if kind == packets.PUBREC:
                answers.append(packets.PUBREL_HEAD + body[:2])
            else:
                done += 1
            pos = head[1]
        self._rest = data[pos:]
        return done, b"".join(answers)


@dataclass(frozen=True, slots=True)
class Message:
    """What a PUBLISH says of itself. turn and place: of the publisher's cycle; stamp: when it was
    sent, or should have been (ns)."""

    topic: bytes
    publisher: int
    turn: int
    place: int
    stamp: int
    identifier: bytes


def walk(data: bytes | bytearray, pos: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return the packets in `data` from `pos` on, each as (first byte, start of its body, end), and
    where the incomplete one at the end begins. Raises ValueError for a broken length."""
    found, end = [], len(data)
    while end - pos >= 2:
        length = data[pos + 1]
        if length < 0x80:
            start = pos + 2
            stop = start + length
        else:
            head = packets.header(data, pos, end)
            if head is None:
                break
            start, stop = head
        if stop > end:
            break
        found.append((data[pos], start, stop))
        pos = stop
    return found, pos


def read(data: bytes, start: int, stop: int, qos: int) -> Message:
    """Return the message whose body is `data[start:stop]`, published at `qos`. Raises ValueError
    where it is not laid out as it was published."""
    behind = start + 2 + int.from_bytes(data[start : start + 2], "big")
    identifier = data[behind : behind + 2] if qos else b""
    mark = data.find(MARK, behind + len(identifier), stop)
    if mark < 0 or not _filled(data, mark, stop):
        raise ValueError(f"a PUBLISH is not as it was published: {data[start:stop].hex()}")
    return Message(
        data[start + 2 : behind],
        int(data[mark + 1 : mark + 5], 16),
        int(data[mark + 5 : mark + 9], 16),
        int(data[mark + 22 : mark + 27], 16),
        int(data[mark + 9 : mark + 22], 16),
        identifier,
    )


def _filled(data: bytes, mark: int, stop: int) -> bool:
    """Whether a label at `mark` is followed by filler up to `stop`, and by nothing else."""
    filler = stop - mark - LABEL_BYTES
    return filler >= 0 and data.count(FILLER, mark + LABEL_BYTES, stop) == filler


def first_packet(data: bytes, before: int) -> int:
    """Return where the first whole PUBLISH of `data` begins, whose payload begins so many bytes
    `before` behind the start of its body; -1 if there is none."""
    # A packet identifier may have the bytes of a mark, and of a first byte.
    mark = data.find(MARK)
    while mark >= 0:
        body = mark - before
        # The length before the body has one to three bytes.
        for pos in range(max(0, body - 4), body - 1):
            head = packets.header(data, pos, len(data)) if data[pos] & 0xF0 == 0x30 else None
            if head is not None and head[0] == body and _filled(data, mark, head[1]):
                return pos
        mark = data.find(MARK, mark + 1)
    return -1
