"""Topics that are the legs' own. Pure."""

from __future__ import annotations

from mqttree.broker.wire.strings import is_own_name

LEG, STATE, COMMON = b"mqttree/leg/", b"/state", b"/common"
"""Topics of a leg, with its name in the middle: whether it is up, and until when both of its sides
are known to have had the same retained messages (`RetainedHistory`). The second one stays in this
federation."""


def topic_of(name: str, kind: bytes) -> str:
    """Return a topic of the leg `name`; `kind`: STATE or COMMON. A name may make it invalid."""
    return f"{LEG.decode()}{name}{kind.decode()}"


def own(topic: bytes) -> bool:
    """Return whether a `topic` is never compared: it is a broker's or the legs' own."""
    return is_own_name(topic) or (
        topic.startswith(b"mqttree/")
        and (
            topic.startswith(b"mqttree/probe/")
            or (topic.startswith(LEG) and topic.endswith((STATE, COMMON)))
        )
    )


def stays(topic: bytes) -> bool:
    """Return whether a `topic` does not leave this federation."""
    return topic.startswith(LEG) and topic.endswith(COMMON)
