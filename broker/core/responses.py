"""Answers to what a client asks of its broker by MQTT 5 request and response. They are not
published: they are handed to the one session."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Session
from mqttree.broker.wire.properties import Property, encode_properties
from mqttree.broker.wire.varint import read_length


class Response(NamedTuple):
    """Where an answer goes."""

    session: Session
    topic: str
    correlation: bytes | None

    @classmethod
    def of(cls, session: Session, properties: dict[int, Any]) -> Response | None:
        """Return where the answer to a question goes; None: it names no Response Topic.

        `session`: of the client that asks; `properties`: of its PUBLISH.
        """
        topic = properties.get(Property.RESPONSE_TOPIC)
        if not topic:
            return None
        return cls(session, topic, properties.get(Property.CORRELATION_DATA))


def respond(response: Response, status: int, body: dict[str, Any]) -> None:
    """Send an answer to the client that has asked, if it still has its session here and subscribes
    to its Response Topic.

    `response`: where it goes; `status`: as in HTTP; `body`: what JSON can say.
    """
    session, topic, correlation = response
    if session.ended or session.conn is None:
        return
    found = max(session.wanting(topic), key=lambda each: each.qos, default=None)
    if found is None:
        return
    if status != 200:
        body = {**body, "status": status}
    properties = b""
    if correlation is not None:
        whole = encode_properties({Property.CORRELATION_DATA: correlation})
        properties = whole[read_length(whole, 0)[1] :]
    payload = json.dumps(body).encode()
    message = Message(topic.encode(), payload, found.qos, False, properties, None, None)
    session.deliver(message, found.qos, False, found.ids, None)
