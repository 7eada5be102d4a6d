"""Topics, retained messages, shared subscriptions and routes: found and looked at."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mqttree.broker.cluster.directory.link_state_directory import INTEREST
from mqttree.broker.core.topic_rates import TOP
from mqttree.broker.core.traffic_meter import PERIOD, TrafficMeter
from mqttree.broker.io.api.clients import BETWEEN
from mqttree.broker.io.api.routes import RequestError
from mqttree.broker.io.api.search import AT_ONCE, Page
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.strings import shorten
from mqttree.routing.group_selection import parse_key
from mqttree.routing.topic_filter import matches, valid_topic_filter

if TYPE_CHECKING:
    from mqttree.broker.cluster.sharing.group_table import GroupTable
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.retained_store import RetainedStore
    from mqttree.broker.node import Node
    from mqttree.routing.link_state import LinkStateDatabase

MAX_PAYLOAD = 65_536
"""bytes of a payload that are shown."""


def top_topics(node: Node, topic_filter: str, text: str, limit: int) -> dict[str, Any]:
    """Return the topics that clients of this broker publish to most, `limit` at most;
    `topic_filter`: that matches them; `text`: that they contain; `node`: this broker. Raises
    RequestError: they are not counted, or the filter is invalid."""
    meter, dispatcher = _meter(node), node.dispatcher
    _check(topic_filter)
    wanted = text.casefold()
    counted = meter.topics(TOP)
    found = []
    for topic, rate in counted.top:
        name = topic.decode(errors="replace")
        if wanted in name.casefold() and (topic_filter == "#" or matches(topic_filter, name)):
            found.append((topic, name, rate))
    rows = []
    for topic, name, rate in found[:limit]:
        try:
            route = dispatcher.routes.get(topic) or dispatcher.route(topic, keep=False)
        except WireError:
            continue
        receivers = len(route.deliveries) + len(route.shared)
        rows.append({"topic": name, "per_s": round(rate, 4), "receivers": receivers})
    return {
        "topics": rows,
        "total": len(found),
        "others": counted.others,
        "others_per_s": round(counted.rest, 4),
    }


def _check(topic_filter: str) -> None:
    if not valid_topic_filter(topic_filter):
        raise RequestError(400, f"filter: {shorten(topic_filter)} is no topic filter")


def traffic(node: Node, most: int, cpu: float) -> dict[str, Any]:
    """Return the traffic of this broker, with the `most` frequent topics; `cpu`: its share of a
    processor core; `node`: this broker. Raises RequestError: topics are not counted."""
    meter = _meter(node)
    top, sums = meter.top(most), meter.sums
    _, others, rest = meter.topics(len(top))
    return {
        "boot": node.config.boot,
        "seconds": PERIOD,
        "topics": [
            [each.topic.decode(errors="replace"), round(each.rate, 4), each.receivers]
            for each in top
        ],
        "rest": {"topics": others, "in_per_s": round(rest, 4)},
        "in": round(sums.published, 4),
        "out": round(sums.delivered, 4),
        "link_in": round(sums.link_in, 4),
        "link_out": round(sums.link_out, 4),
        "cpu": round(cpu, 4),
    }


def _meter(node: Node) -> TrafficMeter:
    meter = node.traffic
    if meter is None:
        raise RequestError(404, "topics are not counted here (topic-rates)")
    return meter


def retained(
    node: Node, page: Page[dict[str, Any]], topic_filter: str, text: str, now: float
) -> Iterator[None]:
    """Offer retained messages to a page, some hundred at a time.

    `node`: this broker; `page`: takes them; `topic_filter`: that matches their topics; `text`:
    that these contain; `now`: s. Raises RequestError: it is no filter.
    """
    _check(topic_filter)
    return _retained(node.retained, page, topic_filter, text.casefold(), now)


def _retained(
    store: RetainedStore, page: Page[dict[str, Any]], topic_filter: str, wanted: str, now: float
) -> Iterator[None]:
    for number, message in enumerate(store.search(topic_filter, now), 1):
        if message is not None:
            topic = message.topic.decode(errors="replace")
            if wanted in topic.casefold() and page.wants(topic):
                page.put(topic, _about(topic, message, now))
        if not number % AT_ONCE:
            yield


def _about(topic: str, message: Message, now: float) -> dict[str, Any]:
    at = message.expires_at
    return {
        "topic": topic,
        "qos": message.qos,
        "bytes": len(message.payload),
        "expires_s": None if at is None else round(at - now, 3),
    }


def retained_message(store: RetainedStore, topic: str, now: float) -> dict[str, Any]:
    """Return the message of a `topic` in the `store`; `now`: s. Raises RequestError: there is
    none."""
    message = store.get(topic)
    if message is None or message.expired(now):
        raise RequestError(404, "no retained message of this topic")
    payload = message.payload[:MAX_PAYLOAD]
    text: str | None
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        # The cut may have left part of a character.
        cut = len(payload) < len(message.payload) and error.start > len(payload) - 4
        text = payload[: error.start].decode() if cut else None
    return {
        **_about(topic, message, now),
        "text": text,
        "base64": None if text is not None else base64.b64encode(payload).decode(),
        "whole": len(payload) == len(message.payload),
    }


def groups(table: GroupTable, page: Page[dict[str, Any]], text: str) -> Iterator[None]:
    """Offer the shared subscriptions of a `table` that have members here to a `page`, some hundred
    at a time; `text`: that their filter contains."""
    wanted = text.casefold()
    for number, group in enumerate(list(table.here.values()), 1):
        name, inner = parse_key(group.key)
        topic_filter = f"$share/{name}/{inner}"
        fits = group.members and wanted in topic_filter.casefold()
        if fits and page.wants(topic_filter):
            counts = {"members": len(group.members), "connected": len(group.connected)}
            page.put(topic_filter, {"filter": topic_filter, **counts})
        if not number % AT_ONCE:
            yield


def routing_table(
    database: LinkStateDatabase, page: Page[dict[str, Any]], text: str, broker: str
) -> Iterator[None]:
    """Offer to a `page` the filters of which other brokers want messages, by the `database`, some
    hundred at a time; `text`: that the filter contains; `broker`: id of the broker, "": of all."""
    wanted = text.casefold()
    for listing in database.reachable():
        who = listing.id.hex()
        if broker not in ("", who):
            continue
        via = database.via(listing.id)
        link = None if via is None else via.hex()
        for number, key in enumerate(list(listing.entries), 1):
            if key[:1] == INTEREST and key in listing.entries:
                topic_filter = key[1:].decode(errors="replace")
                place = topic_filter + BETWEEN + who
                if wanted in topic_filter.casefold() and page.wants(place):
                    page.put(place, {"filter": topic_filter, "broker": who, "via": link})
            if not number % AT_ONCE:
                yield
