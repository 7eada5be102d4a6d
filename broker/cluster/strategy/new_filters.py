"""Filters of other brokers that this one has heard of a moment ago, and messages that went on from
here before that (docs/decisions/0020).

Filters take the spanning tree and messages do not. So the broker that sent a message here may have
known a filter earlier than this one, and have sent the message for it, which then ends here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice, takewhile

from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.strategy.ports import Log
from mqttree.routing.topic_filter import matches

MAX_COMPARED_AGE, MAX_COMPARED, MAX_COMPARED_FILTERS = 5.0, 300, 16
"""s of messages that have passed here, how many of them, and how many filters, are compared when a
broker has a new filter; beyond that it asks the origins for all."""


class NewFilters:
    """Filters that brokers have posted in this turn."""

    __slots__ = ("_learnt",)

    def __init__(self) -> None:
        self._learnt: dict[bytes, list[str]] = {}  # by the broker's id

    def learnt(self, broker_id: bytes, topic_filter: str) -> None:
        """Note that a broker has a filter that was not known here."""
        self._learnt.setdefault(broker_id, []).append(topic_filter)

    def take_missed(
        self, log: Log, now: float, origins_to: Callable[[bytes], Iterable[bytes]]
    ) -> list[tuple[bytes, bytes]]:
        """Forget the new filters; returns the brokers that may lack messages for theirs, each with
        the id of the origin.

        `log`: what has passed here; `now`: s; `origins_to`: returns the ids of the origins whose
        messages for a broker pass here.
        """
        learnt, self._learnt = self._learnt, {}
        wanted = []
        for broker, filters in learnt.items():
            origins = dict.fromkeys(origins_to(broker))
            if origins:
                wanted.append((broker, filters, origins))
        if not wanted:
            return []
        found: list[tuple[bytes, bytes]] = []
        recent = takewhile(lambda entry: entry.at >= now - MAX_COMPARED_AGE, log.latest())
        messages = ((entry.key, topic.decode()) for entry in recent for topic in entry.topics())
        looked = list(islice(messages, MAX_COMPARED))
        for key, topic in looked:
            origin = split_key(key)[0]
            for broker, filters, origins in wanted:
                if origin in origins and (
                    len(filters) > MAX_COMPARED_FILTERS
                    or any(known == "#" or matches(known, topic) for known in filters)
                ):
                    del origins[origin]
                    found.append((broker, origin))
        if len(looked) >= MAX_COMPARED:
            found += [(broker, origin) for broker, _, origins in wanted for origin in origins]
        return found
