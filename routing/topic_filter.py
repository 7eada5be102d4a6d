"""Topic names and topic filters: what is valid, what matches what (MQTT 3.1.1 and 5, section 4.7).

Everything here works on whole strings and favours being obviously right; :mod:`subscription_trie`
is the fast counterpart and is tested against :func:`matches`.
"""

from __future__ import annotations

from typing import Final

MAX_TOPIC_BYTES: Final = 65_535
"""Longest topic name or filter in bytes of UTF-8: the length prefix is two bytes (MQTT-4.7.3-3)."""

SHARE_PREFIX: Final = "$share/"
"""How the filter of a shared subscription begins (MQTT-4.8.2-1)."""


def _valid_utf8_string(text: str) -> bool:
    """Whether ``text`` can travel as a non-empty UTF-8 Encoded String (MQTT-1.5.4-1, -2;
    MQTT-4.7.3-1, -2, -3)."""
    if not text or len(text) > MAX_TOPIC_BYTES or "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        return len(text.encode()) <= MAX_TOPIC_BYTES
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8 form
        return False


def valid_topic_name(topic: str) -> bool:
    """Whether a PUBLISH may carry ``topic``.

    At least one character, at most 65,535 bytes of UTF-8, no U+0000, no surrogate, no wildcard
    (MQTT-3.3.2-2; MQTT-4.7.1-1; MQTT-4.7.3-1 to -3). A topic that begins with ``$`` is valid: who
    may publish to it is for the broker to say. An MQTT 5 PUBLISH with a topic alias carries an
    empty topic; resolve the alias first.
    """
    return "+" not in topic and "#" not in topic and _valid_utf8_string(topic)


def valid_topic_filter(filter: str) -> bool:
    """Whether a SUBSCRIBE or UNSUBSCRIBE may carry ``filter``.

    At least one character, at most 65,535 bytes of UTF-8, no U+0000, no surrogate; wildcards where
    they may stand (MQTT-4.7.1-1, -2); what begins with ``$share/`` has a share name and a filter
    behind it (MQTT-4.8.2-1, -2).
    """
    if not _valid_utf8_string(filter):
        return False
    if not filter.startswith(SHARE_PREFIX):
        return well_formed(filter)
    group, slash, inner = filter[len(SHARE_PREFIX) :].partition("/")
    return bool(group and slash and inner) and not is_wildcard(group) and well_formed(inner)


def well_formed(filter: str) -> bool:
    """Whether each wildcard of ``filter`` fills a level, and ``#`` the last one (MQTT-4.7.1-1, -2);
    no other check."""
    if "#" in filter and (filter.find("#") != len(filter) - 1 or filter[-2:] not in ("#", "/#")):
        return False
    return "+" not in filter or all(level == "+" or "+" not in level for level in filter.split("/"))


def is_wildcard(filter: str) -> bool:
    """Whether ``filter`` has a wildcard; without one it matches the one topic that it spells."""
    return "+" in filter or "#" in filter


def split_shared(filter: str) -> tuple[str | None, str]:
    """Return share name and inner filter of a shared subscription; `(None, filter)` for an ordinary
    one (MQTT 5, 4.8.2).

    Raises ValueError: the filter begins with `$share/` but lacks a share name or a filter, or has a
    wildcard in the share name; never for a filter that `valid_topic_filter` accepts.
    """
    if not filter.startswith(SHARE_PREFIX):
        return None, filter
    group, _, inner = filter[len(SHARE_PREFIX) :].partition("/")
    if not group or not inner or is_wildcard(group):
        raise ValueError(f"malformed shared subscription: {filter[:80]!r}")
    return group, inner


def matches(filter: str, topic: str) -> bool:
    """Whether ``filter`` matches ``topic``, both valid; the definition that every faster way is
    tested against.

    Level by level: ``+`` stands for one level, also an empty one; ``#`` for the parent and any
    number of levels below it (4.7.1.2, 4.7.1.3). A wildcard at the first level never matches a
    topic that begins with ``$`` (MQTT-4.7.2-1). Letters match by code point, without normalisation
    (MQTT-4.7.3-4). ``$share/`` is not treated in any special way.
    """
    if topic.startswith("$") and filter.startswith(("+", "#")):
        return False
    filter_levels = filter.split("/")
    topic_levels = topic.split("/")
    for depth, level in enumerate(filter_levels):
        if level == "#":
            return True
        if depth == len(topic_levels):
            return False
        if level not in ("+", topic_levels[depth]):
            return False
    return len(filter_levels) == len(topic_levels)


def overlaps(a: str, b: str) -> bool:
    """Whether a topic can match filter ``a`` and filter ``b`` (both valid, ``$share/`` split
    off)."""
    if (a.startswith("$") and b.startswith(("+", "#"))) or (
        b.startswith("$") and a.startswith(("+", "#"))
    ):
        return False
    a_levels = a.split("/")
    b_levels = b.split("/")
    for one, other in zip(a_levels, b_levels, strict=False):
        if one == "#" or other == "#":
            return True
        if one not in (other, "+") and other != "+":
            return False
    short, long = sorted((a_levels, b_levels), key=len)
    # "#" stands for its parent, too.
    return len(short) == len(long) or (len(long) == len(short) + 1 and long[-1] == "#")


def covers(a: str, b: str) -> bool:
    """Whether filter ``a`` matches every topic that filter ``b`` matches (both valid, ``$share/``
    split off).

    Exact but for the limit on the length of a topic: a filter so long that only few topics fit its
    wildcards may be covered although this says that it is not, which costs an aggregation a line
    and never a message.
    """
    if b.startswith("$") and a.startswith(("+", "#")):
        return False
    a_levels = a.split("/")
    b_levels = b.split("/")
    if b in ("#", "/#"):
        # The parent that this '#' includes would be the empty topic, which does not exist: one
        # level more is certain.
        b_levels.insert(-1, "+")
    for depth, level in enumerate(a_levels):
        if level == "#":
            return True
        if depth == len(b_levels) or b_levels[depth] == "#":
            return False
        # A literal never equals '+', so a literal in a does not cover a '+' in b.
        if level not in ("+", b_levels[depth]):
            return False
    return len(a_levels) == len(b_levels)
