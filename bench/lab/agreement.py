"""Whether brokers are one tree, by what each says of it (`/api/v1/federation`)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

View = dict[str, Any]
"""What one broker says."""
Views = Sequence[View | None]
"""One of each broker that is asked; None: it does not answer."""


PATIENCE = 2.0
"""s after which an answer that has not come is given up."""


async def ask(admin: int, connecting: Callable[[], socket.socket] = socket.socket) -> View | None:
    """Return what the broker with the port `admin` says of the federation; None while it does not
    answer. `connecting` makes the socket for it, where the broker's network is another one."""
    loop = asyncio.get_running_loop()
    try:
        sock = connecting()
    except OSError:
        return None
    with sock:
        sock.setblocking(False)
        try:
            async with asyncio.timeout(PATIENCE):
                await loop.sock_connect(sock, ("127.0.0.1", admin))
                request = b"GET /api/v1/federation HTTP/1.0\r\nHost: lab\r\n\r\n"
                await loop.sock_sendall(sock, request)
                answer = bytearray()
                while data := await loop.sock_recv(sock, 65536):
                    answer += data
            view: View = json.loads(bytes(answer).split(b"\r\n\r\n", 1)[1])
            return view
        except (OSError, TimeoutError, ValueError, IndexError):
            return None


def _links(view: View) -> dict[str, Any]:
    """Its links that are up, by who is at the other end."""
    return {link["peer"]: link for link in view["links"] if link["up"]}


def _rooted(views: Sequence[View]) -> bool:
    """Whether all have one root, and each other one a link towards it."""
    if len({view["root"] for view in views}) != 1:
        return False
    for view in views:
        up = _links(view)
        if view["state"] != "runtime":
            return False
        if view["id"] == view["root"]:
            if view["parent"] is not None:
                return False
        elif view["parent"] not in up or up[view["parent"]]["role"] != "root":
            return False
    return True


def agreed(states: Views, near: dict[str, set[str]] | None = None) -> bool:
    """Whether these views are those of one tree that all of them are in. `near`: the neighbours of
    each, when not all are."""
    known = [state for state in states if state is not None]
    peers = {state["id"] for state in known}
    return (
        len(known) == len(states)
        and all(
            set(_links(state)) == (peers - {state["id"]} if near is None else near[state["id"]])
            for state in known
        )
        and _rooted(known)
    )


def carrying(states: Views) -> bool:
    """Whether the links of the tree let messages through at both ends, also those of QoS 0, which
    are not replayed."""
    known = [state for state in states if state is not None]
    live = {
        (state["id"], link["peer"])
        for state in known
        for link in state["links"]
        if link["up"] and link["forwarding"]
    }
    pairs = [(state["id"], state["parent"]) for state in known if state["parent"] is not None]
    return all((child, parent) in live and (parent, child) in live for child, parent in pairs)


def one_tree(views: dict[str, View], gone: Iterable[str], cut: Iterable[frozenset[str]]) -> bool:
    """Return whether the brokers of `views` (their answers, by name) agree on one tree over which
    messages pass, and hold no link that cannot work.

    `gone` are brokers that are dead or stopped, `cut` pairs between which nothing passes.
    """
    dead, apart = set(gone), set(cut)
    known = list(views.values())
    ids = {view["id"] for view in known}
    works = not any(
        link["name"] in dead or {name, link["name"]} in apart
        for name, view in views.items()
        for link in _links(view).values()
    )
    return works and _rooted(known) and known[0]["root"] in ids and carrying(known)
