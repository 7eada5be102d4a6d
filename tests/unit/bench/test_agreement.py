"""Whether brokers are one tree, by what they say."""

from __future__ import annotations

from typing import Any

from mqttree.bench.lab.agreement import View, agreed, carrying, one_tree


def view(name: str, root: str, parent: str | None, links: dict[str, str]) -> View:
    """What a broker says that has links (peer -> role), all of them up."""
    return {
        "id": name,
        "root": root,
        "parent": parent,
        "state": "runtime",
        "links": [
            {"peer": peer, "name": peer, "role": role, "up": True, "forwarding": role != "blocked"}
            for peer, role in links.items()
        ],
    }


def triangle() -> list[Any]:
    """Three brokers, each linked to each; `a` is the root."""
    return [
        view("a", "a", None, {"b": "designated", "c": "designated"}),
        view("b", "a", "a", {"a": "root", "c": "designated"}),
        view("c", "a", "a", {"a": "root", "b": "alternate"}),
    ]


def test_brokers_agree_if_their_views_make_one_tree() -> None:
    assert agreed(triangle()) and not agreed([])
    assert not agreed([*triangle()[:2], None]), "one does not answer"
    assert not agreed(triangle()[:2]), "they know another one"
    for index, change in (
        (0, {"parent": "b"}),
        (1, {"root": "b"}),
        (1, {"parent": "c"}),
        (2, {"parent": None}),
        (2, {"state": "forming"}),
    ):
        views = triangle()
        views[index] |= change
        assert not agreed(views), change


def test_brokers_may_agree_though_not_all_are_neighbours() -> None:
    near = {"a": {"b"}, "b": {"a", "c"}, "c": {"b"}}
    line = [
        view("a", "a", None, {"b": "designated"}),
        view("b", "a", "a", {"a": "root", "c": "designated"}),
        view("c", "a", "b", {"b": "root"}),
    ]
    assert agreed(line, near) and not agreed(line) and not agreed(triangle(), near)
    line[2]["links"][0]["up"] = False
    assert not agreed(line, near)


def test_the_tree_carries_messages_if_all_its_links_forward() -> None:
    assert carrying(triangle())
    for index, link in ((1, 0), (0, 0)):
        for what in ("forwarding", "up"):
            views = triangle()
            views[index]["links"][link][what] = False
            assert not carrying(views), (index, what)
    views = triangle()
    views[2]["links"][1]["forwarding"] = False
    assert carrying(views), "the tree does not need that link"


def test_brokers_agree_on_one_tree_without_dead_links_and_brokers() -> None:
    a = view("a", "a", None, {"b": "designated", "c": "designated"})
    b = view("b", "a", "a", {"a": "root", "c": "blocked"})
    c = view("c", "a", "a", {"a": "root", "b": "designated"})
    views = {"a": a, "b": b, "c": c}
    assert one_tree(views, [], [])
    assert not one_tree({}, [], [])
    assert not one_tree({"b": b, "c": c}, ["a"], []), "the root is dead"
    assert not one_tree({"a": a, "b": b}, ["c"], []), "they still hold links to a dead one"
    assert not one_tree(views, [], [frozenset("bc")]), "a link is up that cannot be"
    assert not one_tree(views | {"b": view("b", "b", None, {})}, [], [])
    assert not one_tree(views | {"b": b | {"state": "forming"}}, [], [])
    half = view("a", "a", None, {"b": "blocked", "c": "designated"})
    assert not one_tree(views | {"a": half}, [], []), "one end does not forward"
