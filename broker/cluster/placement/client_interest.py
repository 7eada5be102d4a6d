"""What a client subscribes to and publishes, as far as its broker knows it, and the question where
it should be that follows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.cluster.placement.redirect_table import NOTHING_KNOWN, Interest
from mqttree.broker.wire.packets import Connect
from mqttree.broker.wire.properties import Property
from mqttree.routing.topic_filter import is_wildcard, overlaps, split_shared

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Permissions
    from mqttree.broker.core.dispatcher import Dispatcher
    from mqttree.broker.core.session import Session

TOPICS: Final = "mqttree-topics"
"""The User Property of a CONNECT that says what the client is going to subscribe to and publish."""

MAX_SAID: Final = 16 * 1024
"""bytes of that property: clients have few topics, or use `MultiClient`."""

MAX_FILTERS: Final = 200
"""filters and topics of a client that is looked at, some ms at the broker that decides; one with
more stays where it is."""

MAX_COMPARED: Final = 1000
"""filters of other clients with which those of one client that have wildcards are compared, some
ms. At a broker with more of them these count as wanted by others, so that their topics are no
reason to leave."""


def said_interest(connect: Connect, permissions: Permissions | None) -> Interest:
    """Return what a client says in its CONNECT, nothing if it does not.

    `connect`: its CONNECT; `permissions`: of the client, None: it may do everything.

    Raises:
        TooMuchError: what it says is beyond a limit; the text is one line.
        ValueError: what it says is invalid; the text is one line.
        PermissionError: the client may not do what it says; the text is one line.
    """
    properties = connect.properties or {}
    found = [text for name, text in properties.get(Property.USER_PROPERTY, ()) if name == TOPICS]
    if not found:
        return NOTHING_KNOWN
    # A broker whose clients do not say it starts without them.
    from mqttree.broker.cluster.placement.decider import check_names
    from mqttree.placement.question import TooMuchError, read_question

    if len(found) > 1:
        raise ValueError(f"{TOPICS}: more than one")
    if len(found[0]) > MAX_SAID:
        raise TooMuchError(f"{TOPICS}: more than {MAX_SAID} bytes")
    try:
        value = json.loads(found[0])
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or value.keys() - {"subscribe", "publish"}:
        raise ValueError(f"{TOPICS}: not a JSON object with subscribe and publish")
    try:
        question = read_question(value, connect.client_id)
        check_names(question)
    except ValueError as error:
        raise ValueError(f"{TOPICS}: {error}") from None
    if len(question.subscribe) + len(question.publish) > MAX_FILTERS:
        raise TooMuchError(f"{TOPICS}: more than {MAX_FILTERS} filters and topics")
    interest = Interest(question.subscribe, question.publish)
    try:
        check_allowed(interest, permissions)
    except PermissionError as error:
        raise PermissionError(f"{TOPICS}: {error}") from None
    return interest


def check_allowed(interest: Interest, permissions: Permissions | None) -> None:
    """Raise PermissionError with one line if a client may not do what its `interest` says.
    `permissions`: what it may do; None: everything."""
    if permissions is None:
        return
    for name in interest.subscribe:
        if not permissions.may_subscribe(split_shared(name)[1]):
            raise PermissionError(f"subscribe: {name[:64]!r} is not allowed")
    for name in interest.publish:
        if not permissions.may_publish(name):
            raise PermissionError(f"publish: {name[:64]!r} is not allowed")


def session_interest(session: Session, publish: tuple[str, ...] = ()) -> Interest:
    """Return what a `session` subscribes to, nothing if that is too much to be looked at.
    `publish`: topics that its client has said it publishes."""
    if len(session.subscriptions) + len(publish) > MAX_FILTERS:
        return NOTHING_KNOWN
    return Interest(tuple(session.subscriptions), publish)


def question_of(
    client: str, interest: Interest, dispatcher: Dispatcher, session: Session | None
) -> dict[str, Any]:
    """Return the question where a client should be, as JSON has it.

    `client`: its identifier; `interest`: what it subscribes to and publishes; `dispatcher`: has the
    subscriptions of all clients here; `session`: its session, if it is here.
    """
    return {
        "client": client,
        "subscribe": list(interest.subscribe),
        "publish": list(interest.publish),
        "sessions": 1,
        "alone": unshared_filters(client, interest, dispatcher),
        "queued": 0 if session is None else len(session.queue) + len(session.inflight),
    }


def unshared_filters(client: str, interest: Interest, dispatcher: Dispatcher) -> list[str]:
    """Return the filters of a client that no other one here has, or has a part of.

    `client`: its identifier; `interest`: what it subscribes to, or is going to; `dispatcher`: has
    all subscriptions.
    """
    found: list[str] = []
    trie = dispatcher.trie
    left = MAX_COMPARED
    for name in interest.subscribe:
        group, inner = split_shared(name)
        # A member of a group gets its messages wherever it is.
        if group is not None:
            continue
        if not is_wildcard(inner):
            if all(one.session.client_id == client for one in trie.match(inner)):
                found.append(name)
            continue
        left -= dispatcher.subscriptions
        if left >= 0 and all(
            trie.only(other, client) for other in dispatcher.filters() if overlaps(inner, other)
        ):
            found.append(name)
    return found
