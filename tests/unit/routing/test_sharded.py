"""A dict in parts is a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttree.routing import subscription_trie
from mqttree.routing.sharded import SHARDS, ShardedDict
from mqttree.routing.subscription_trie import TopicTrie


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9))))
def test_a_sharded_dict_behaves_like_a_dict(changes: list[tuple[int, int | None]]) -> None:
    parts: ShardedDict[int] = ShardedDict()
    model: dict[str, int] = {}
    for number, value in changes:
        key = str(number)
        assert (key in parts) == (key in model)
        assert parts.get(key) == model.get(key)
        if value is not None:
            parts[key] = model[key] = value
            assert parts[key] == value
        elif number % 2 and key in model:
            del parts[key], model[key]
        else:
            assert parts.pop(key) == model.pop(key, None)
    assert dict(parts.items()) == model
    assert sorted(parts.values()) == sorted(model.values())
    assert len(parts) == len(model)
    assert sum(map(len, parts.parts())) == len(model)


def test_many_keys_are_spread() -> None:
    parts: ShardedDict[int] = ShardedDict()
    for number in range(100 * SHARDS):
        parts[f"a/{number}"] = number
    assert max(len(part) for part in parts.parts()) < 200


def test_siblings_come_in_parts_when_they_are_many() -> None:
    topics = [
        f"{level}{number}"
        for level in ("", "a/", "$a/")
        for number in range(subscription_trie.SPLIT_CHILDREN + 100)
    ]
    found: TopicTrie[int] = TopicTrie()
    for topic in topics:
        found.set(topic, 1)
    assert sorted(topic for topic, _ in found.match("+")) == sorted(
        t for t in topics if "/" not in t
    )
    assert sorted(topic for topic, _ in found.match("a/+")) == sorted(
        t for t in topics if t[:2] == "a/"
    )
    assert (
        len(found.match("#"))
        == len(found.match("+/#"))
        == 2 * (subscription_trie.SPLIT_CHILDREN + 100)
    )
    search = found.search("+/+")
    first = next(topic for topic in search if topic is not None)
    for topic in topics:
        if topic != first:
            found.pop(topic)
    assert [topic for topic in search if topic is not None and topic in found] == []
    assert [topic for topic, _ in found.match("+/+")] == [first]
