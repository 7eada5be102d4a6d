"""The MQTT topics that federators and their clients publish to."""

from __future__ import annotations

from enum import Enum

MAX_TOPIC = 1024
"""bytes of a federated topic's name. Federators keep the names of all topics, and anyone who may
publish can make up new ones."""


class MessageError(ValueError):
    """A topic, or a payload, that no federator publishes."""


class Kind(Enum):
    """What is published to a topic; the value is what its name begins with."""

    BEACON = "federator/beacon/"
    """A client: I subscribe to this topic (the paper's NEW_REGULAR_TOPIC)."""
    CORE_ANN = "federator/core_ann/"
    MEMB_ANN = "federator/memb_ann/"
    ROUTING = "federator/routing/"
    """Data between federators."""
    FEDERATED = "federated/"
    """What clients publish, and what federators hand to them."""

    def topic(self, name: str) -> str:
        """Return the MQTT topic of this kind for the federated topic `name`."""
        return self.value + name


FILTERS = tuple(f"{kind.value}#" for kind in Kind)
"""What a federator subscribes to at its broker. They match names without a level behind them, such
as "federated", as well: `parse` refuses these."""


def parse(topic: str) -> tuple[Kind, str]:
    """Return what is published to the MQTT topic, and the federated topic's name.

    Raises:
        MessageError: no federator has to do with this topic, or the name is empty or too long.
    """
    for kind in Kind:
        if topic.startswith(kind.value):
            name = topic[len(kind.value) :]
            if not name:
                raise MessageError(f"{topic!r} names no federated topic")
            if len(name) > MAX_TOPIC or len(name.encode("utf-8", "surrogatepass")) > MAX_TOPIC:
                raise MessageError(f"a federated topic's name is longer than {MAX_TOPIC} bytes")
            # Names come from MQTT, so they have none of these; what is made of them has to be one.
            if "+" in name or "#" in name or "\0" in name:
                raise MessageError("a federated topic's name has a wildcard or a null character")
            return kind, name
    raise MessageError(f"{topic[:80]!r} is no topic of federators")
