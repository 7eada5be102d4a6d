"""What brokers tell each other about placement, each in a message to one broker (`unicast_bus`).

PLACEMENT_QUESTION  u32 number, u8 operation, JSON; from the broker that was asked to the root
PLACEMENT_ANSWER    u32 number, u16 status as in HTTP, JSON
ASK_RATES           none; from the root
RATES               f64 rate and u32 number of all other topics, then of each topic: u16 size,
                    topic, f32 messages/s
ASK_CLIENTS         none; from the root: it looks for moves that pay
CLIENTS             JSON: how many clients are connected, and some that may be sent elsewhere
REDIRECT            JSON: a client, and where it is to connect; from the root
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from typing import Any, Final

from mqttree.broker.cluster.directory.questions import read_json
from mqttree.broker.cluster.directory.unicast_bus import BEHIND
from mqttree.broker.wire.errors import MalformedPacket

PLACEMENT_QUESTION: Final = BEHIND | 20
PLACEMENT_ANSWER: Final = BEHIND | 21
ASK_RATES: Final = 22
RATES: Final = BEHIND | 23
ASK_CLIENTS: Final = 26
CLIENTS: Final = BEHIND | 27
REDIRECT: Final = BEHIND | 28
"""Kinds of messages to one broker."""

PLACE: Final = 1
TOLD: Final = 2
FORGET: Final = 3
STATUS: Final = 4
PLAN: Final = 5
ADVISE: Final = 6
"""Operations of a PLACEMENT_QUESTION."""

MAX_RATES: Final = 1000
"""topics of one RATES."""

MAX_TOPIC: Final = 512
"""bytes of a topic in it; longer ones are left out."""

MAX_BYTES: Final = 256 * 1024
"""bytes of one message, so that no record grows large: topics that do not fit are left out."""

MAX_CLIENTS: Final = 100
"""clients of one CLIENTS."""

Rates = dict[str, float]
"""Topic -> messages/s."""


def encode_question(operation: int, body: object) -> bytes:
    """Return a PLACEMENT_QUESTION without its number. `operation`: what is asked for; `body`: what
    JSON can say."""
    return bytes((operation,)) + json.dumps(body).encode()


def decode_question(data: bytes) -> tuple[int, Any]:
    """Return operation and body of a PLACEMENT_QUESTION. Raises MalformedPacket."""
    if not data:
        raise MalformedPacket("question about placement is truncated")
    return data[0], read_json(data[1:])


def encode_clients(connected: int, questions: list[dict[str, Any]]) -> bytes:
    """Return a CLIENTS. `connected`: clients; `questions`: of those that may be sent elsewhere, as
    many as fit."""
    parts: list[str] = []
    size = 100
    for question in questions:
        text = json.dumps(question)
        size += len(text) + 2
        if size > MAX_BYTES:
            break
        parts.append(text)
    return f'{{"connected":{connected},"clients":[{",".join(parts)}]}}'.encode()


def decode_clients(data: bytes) -> tuple[int, list[Any]]:
    """Return how many clients are connected, and the questions of some, which are not read yet.
    Raises MalformedPacket."""
    value = read_json(data) if len(data) <= MAX_BYTES else None
    connected = value.get("connected") if isinstance(value, dict) else None
    clients = value.get("clients") if isinstance(value, dict) else None
    if type(connected) is not int or connected < 0 or not isinstance(clients, list):
        raise MalformedPacket("clients that may be sent elsewhere are not what they should be")
    return connected, clients[:MAX_CLIENTS]


def encode_redirect(client: str, address: str) -> bytes:
    """Return a REDIRECT. `client`: its identifier; `address`: "HOST:PORT"."""
    return json.dumps({"client": client, "address": address}).encode()


def decode_redirect(data: bytes) -> tuple[str, str]:
    """Return the client of a REDIRECT, and where it is to connect. Raises MalformedPacket."""
    value = read_json(data)
    if isinstance(value, dict):
        client, address = value.get("client"), value.get("address")
        if isinstance(client, str) and isinstance(address, str):
            return client, address
    raise MalformedPacket("a redirection without a client, or without an address")


def encode_rates(rates: Iterable[tuple[bytes, float]], rest: float, topics: int) -> bytes:
    """Return a RATES.

    `rates`: topics (UTF-8) with their rates (messages/s), the highest first; `rest`, `topics`: rate
    and number of all others.
    """
    parts: list[bytes] = []
    size = 12
    for topic, rate in rates:
        size += 6 + len(topic)
        if len(parts) >= MAX_RATES or size > MAX_BYTES or len(topic) > MAX_TOPIC:
            topics += 1
            rest += rate
        else:
            parts.append(struct.pack(">H", len(topic)) + topic + struct.pack(">f", rate))
    return struct.pack(">dI", rest, topics) + b"".join(parts)


def decode_rates(data: bytes) -> tuple[Rates, float, int]:
    """Return the rates by topic, and rate and number of all others. Raises MalformedPacket."""
    if not 12 <= len(data) <= MAX_BYTES:
        raise MalformedPacket("rates of topics are truncated, or too many")
    rest, topics = struct.unpack_from(">dI", data)
    found: Rates = {}
    at = 12
    try:
        while at < len(data):
            (size,) = struct.unpack_from(">H", data, at)
            topic = data[at + 2 : at + 2 + size].decode()
            (rate,) = struct.unpack_from(">f", data, at + 2 + size)
            at += 6 + size
            if not topic or size > MAX_TOPIC or "+" in topic or "#" in topic or "\0" in topic:
                raise MalformedPacket("rates of topics with a name that is none")
            _check_rate(rate)
            found[topic] = rate
    except (struct.error, UnicodeDecodeError):
        raise MalformedPacket("rates of topics are truncated") from None
    _check_rate(rest)
    if len(found) > MAX_RATES:
        raise MalformedPacket("rates of too many topics")
    return found, rest, topics


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and rate >= 0):
        raise MalformedPacket("rates of topics with a number that is no rate")
