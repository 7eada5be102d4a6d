"""One federator: its settings, bounds, bad input, and topics that it forgets."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.federator.codec import encode
from mqttree.bench.federator.federator import IDLE_INTERVALS, MAX_TOPICS, Federator, Log, Publish
from mqttree.bench.federator.messages import CoreAnnouncement, Data, Membership, PublicationId
from mqttree.bench.federator.settings import MAX_LOG, Codec, NonMember, Settings
from mqttree.bench.federator.topics import FILTERS, Kind

CORE_ANN, MEMB_ANN, ROUTING = (
    kind.topic("t") for kind in (Kind.CORE_ANN, Kind.MEMB_ANN, Kind.ROUTING)
)
BEACON, FEDERATED = Kind.BEACON.topic("t"), Kind.FEDERATED.topic("t")


def federator(**settings: Any) -> Federator:
    return Federator(Settings(**({"id": 5, "neighbours": (4, 6)} | settings)))


def data(origin: int, number: int, sender: int, payload: bytes = b"x") -> bytes:
    return encode(Data(PublicationId(origin, number), sender, payload), Codec.BINCODE)


def announcement(core: int, seq: int, dist: int, sender: int) -> bytes:
    return encode(CoreAnnouncement(core, seq, dist, sender), Codec.BINCODE)


def membership(core: int, seq: int, sender: int) -> bytes:
    return encode(Membership(core, seq, sender), Codec.BINCODE)


def test_the_first_with_interest_announces_itself_at_once_and_regularly() -> None:
    one = federator()
    assert one.deadline() == math.inf
    one.received(BEACON, b"", 100.0)
    first = announcement(5, 0, 0, 5)
    assert one.take_effects() == [Publish(4, CORE_ANN, first), Publish(6, CORE_ANN, first)]
    one.received(BEACON, b"", 105.0)
    assert one.take_effects() == []
    assert one.deadline() == 110.0
    one.tick(110.0)
    second = announcement(5, 1, 0, 5)
    assert one.take_effects() == [Publish(4, CORE_ANN, second), Publish(6, CORE_ANN, second)]
    # The last beacon was 15 seconds ago.
    one.tick(120.0)
    assert one.take_effects() == []


def test_a_tick_that_is_late_makes_up_for_nothing() -> None:
    one = federator(beacon_interval=1000.0)
    one.received(BEACON, b"", 0.0)
    one.take_effects()
    one.tick(95.0)
    assert len(one.take_effects()) == 2
    assert one.deadline() == 105.0


def test_a_publication_reaches_clients_once_and_goes_on() -> None:
    one = federator()
    one.received(BEACON, b"", 0.0)
    one.received(MEMB_ANN, membership(5, 0, 4), 0.1)
    one.received(MEMB_ANN, membership(5, 0, 6), 0.1)
    one.take_effects()
    one.received(ROUTING, data(9, 0, 4), 0.2)
    assert one.take_effects() == [
        Publish(5, FEDERATED, b"x"),
        Publish(6, ROUTING, data(9, 0, 5)),
    ]
    one.received(ROUTING, data(9, 0, 6), 0.3)
    assert one.take_effects() == []
    assert one.counts.duplicates == 1
    one.received(FEDERATED, b"y", 0.4)
    assert one.take_effects() == [
        Publish(4, ROUTING, data(5, 0, 5, b"y")),
        Publish(6, ROUTING, data(5, 0, 5, b"y")),
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, [4]), ({"preferred_parent": 6}, [6]), ({"nonmember": NonMember.ALL}, [4, 6])],
)
def test_a_non_member_sends_to_one_parent_or_to_all(
    settings: dict[str, Any], expected: list[int]
) -> None:
    one = federator(**settings)
    one.received(CORE_ANN, announcement(1, 0, 3, 4), 0.0)
    one.received(CORE_ANN, announcement(1, 0, 3, 6), 0.0)
    one.take_effects()
    one.received(FEDERATED, b"y", 0.1)
    effects = one.take_effects()
    assert [each.broker for each in effects if isinstance(each, Publish)] == expected


def test_the_parents_with_the_lowest_ids_stay() -> None:
    one = federator(neighbours=(3, 4, 6, 7), redundancy=2)
    for sender in (7, 6, 4, 3, 7):
        one.received(CORE_ANN, announcement(1, 0, 3, sender), 0.0)
    mesh = one.meshes().get("t")
    assert mesh is not None and mesh.parents == [3, 4]
    # A shorter way makes the others too long.
    one.received(CORE_ANN, announcement(1, 0, 2, 7), 0.0)
    assert mesh.parents == [7]


def test_an_announcement_is_relayed_once_or_again_when_it_is_nearer() -> None:
    for again, expected in ((False, 1), (True, 2)):
        one = federator(relays_nearer=again)
        one.received(CORE_ANN, announcement(1, 0, 7, 4), 0.0)
        one.received(CORE_ANN, announcement(1, 0, 3, 6), 0.1)
        relayed = [each for each in one.take_effects() if isinstance(each, Publish)]
        assert len(relayed) == expected
        assert relayed[0] == Publish(6, CORE_ANN, announcement(1, 0, 8, 5))


def test_distances_can_be_counted_as_the_public_code_does() -> None:
    one = federator(doubles_distance=True)
    one.received(CORE_ANN, announcement(1, 0, 2, 4), 0.0)
    assert one.take_effects() == [Publish(6, CORE_ANN, announcement(1, 0, 4, 5))]
    mesh = one.meshes().get("t")
    assert mesh is not None and mesh.dist == 3


def test_the_public_codes_variants_go_together() -> None:
    settings = Settings(id=1, neighbours=(2,), preferred_parent=2, codec=Codec.JSON)
    code = settings.as_public_code()
    assert (code.nonmember, code.relays_nearer, code.doubles_distance, code.codec) == (
        NonMember.ALL,
        True,
        True,
        Codec.BINCODE,
    )


def test_nobody_but_a_neighbour_becomes_parent_or_child() -> None:
    one = federator()
    one.received(CORE_ANN, announcement(1, 0, 0, 9), 0.0)
    one.received(BEACON, b"", 0.0)
    one.take_effects()
    one.received(MEMB_ANN, membership(5, 0, 9), 0.0)
    mesh = one.meshes().get("t")
    assert mesh is not None and mesh.core == 5 and not mesh.children
    assert one.counts.strangers == 2


def test_own_messages_that_come_back_change_nothing() -> None:
    one = federator()
    one.received(BEACON, b"", 0.0)
    one.take_effects()
    one.received(CORE_ANN, announcement(5, 9, 0, 4), 0.1)
    one.received(CORE_ANN, announcement(1, 9, 0, 5), 0.1)
    one.received(MEMB_ANN, membership(5, 0, 5), 0.1)
    mesh = one.meshes().get("t")
    assert one.take_effects() == [] and mesh is not None
    assert mesh.core == 5 and not mesh.children and one.counts.strangers == 0


def test_what_cannot_be_read_is_counted_and_said_once_a_minute() -> None:
    one = federator()
    for topic in ("federated", "federator/beacon", "federator/what/t"):
        one.received(topic, b"", 0.0)
    for topic in (CORE_ANN, MEMB_ANN, ROUTING):
        one.received(topic, b"\xff" * 7, 30.0)
    assert one.bad_messages == 6 and not one.meshes()
    assert [type(each) for each in one.take_effects()] == [Log]
    one.received(ROUTING, b"", 60.0)
    (line,) = one.take_effects()
    assert isinstance(line, Log) and "7 so far" in line.text


def test_messages_of_unknown_topics_keep_nothing() -> None:
    one = federator()
    one.received(FEDERATED, b"x", 0.0)
    one.received(ROUTING, data(9, 0, 4), 0.0)
    one.received(MEMB_ANN, membership(1, 0, 4), 0.0)
    assert not one.meshes() and one.take_effects() == []


def test_there_is_a_bound_on_topics() -> None:
    one = federator()
    for number in range(MAX_TOPICS + 10):
        one.received(Kind.BEACON.topic(f"t{number}"), b"", 0.0)
    assert len(one.meshes()) == MAX_TOPICS and one.topics_refused == 10
    lines = [each for each in one.take_effects() if isinstance(each, Log)]
    assert len(lines) == 1


def test_idle_topics_are_forgotten_and_their_numbers_go_on() -> None:
    one = federator()
    one.received(CORE_ANN, announcement(1, 0, 0, 4), 0.0)
    for _ in range(7):
        one.received(FEDERATED, b"x", 1.0)
    now = 0.0
    while one.deadline() < math.inf:
        now = one.deadline()
        one.tick(now)
    assert not one.meshes()
    assert IDLE_INTERVALS * 10 <= now <= IDLE_INTERVALS * 10 + 20
    # Other federators may have the numbers up to 6 in their logs.
    one.received(CORE_ANN, announcement(1, 90, 0, 4), now)
    one.take_effects()
    one.received(FEDERATED, b"y", now)
    assert one.take_effects() == [Publish(4, ROUTING, data(5, 7, 5, b"y"))]


def test_a_topic_with_interest_is_not_forgotten() -> None:
    one = federator()
    for number in range(400):
        one.received(BEACON, b"", number * 5.0)
        one.tick(number * 5.0)
    assert one.meshes()


def test_all_logs_together_are_bounded() -> None:
    one = federator(log_size=MAX_LOG)
    one.received(BEACON, b"", 0.0)
    for number in range(3_000):
        one.received(ROUTING, data(9, number, 4), 0.0)
    mesh = one.meshes().get("t")
    assert mesh is not None and mesh.logged == 3_000
    for number in range(999):
        one.received(Kind.BEACON.topic(f"t{number}"), b"", 0.0)
    one.tick(10.0)
    assert mesh.logged == MAX_LOG // 1_000


def test_a_log_has_a_size_and_a_minimum_time() -> None:
    one = federator(log_size=10, log_time=5.0)
    one.received(BEACON, b"", 0.0)
    for number in range(100):
        one.received(ROUTING, data(9, number, 4), 0.1 * number)
    mesh = one.meshes().get("t")
    assert mesh is not None and 49 <= mesh.logged <= 51
    one.received(ROUTING, data(9, 100, 4), 60.0)
    assert mesh.logged == 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": -1},
        {"id": 1 << 32},
        {"neighbours": (5,)},
        {"neighbours": (4, 4)},
        {"neighbours": tuple(range(10, 300))},
        {"redundancy": 0},
        {"core_interval": 0.0},
        {"beacon_interval": math.nan},
        {"log_size": 0},
        {"log_size": MAX_LOG + 1},
        {"log_time": -1.0},
        {"log_time": math.nan},
        {"preferred_parent": 9},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        federator(**wrong)


SMALL = st.integers(0, 7)
ANY_MESSAGE = st.one_of(
    st.tuples(st.just(BEACON), st.just(b"")),
    st.tuples(st.just(FEDERATED), st.binary(max_size=3)),
    st.tuples(st.just(CORE_ANN), st.builds(announcement, SMALL, SMALL, SMALL, SMALL)),
    st.tuples(st.just(MEMB_ANN), st.builds(membership, SMALL, SMALL, SMALL)),
    st.tuples(st.just(ROUTING), st.builds(data, SMALL, SMALL, SMALL)),
    st.tuples(st.sampled_from(FILTERS).map(lambda f: f[:-1] + "t"), st.binary(max_size=20)),
    st.tuples(st.text(max_size=10), st.binary(max_size=3)),
)


@given(st.lists(st.tuples(ANY_MESSAGE, st.floats(0.0, 20.0)), max_size=40), st.integers(1, 2))
def test_whatever_comes_a_federator_keeps_its_promises(
    happenings: list[tuple[tuple[str, bytes], float]], redundancy: int
) -> None:
    one = federator(redundancy=redundancy)
    now = 0.0
    delivered = 0
    for (topic, payload), later in happenings:
        now += later
        one.tick(now)
        one.received(topic, payload, now)
        assert one.deadline() > now or one.deadline() == math.inf
        for effect in one.take_effects():
            if isinstance(effect, Publish):
                assert effect.broker in (4, 5, 6)
                delivered += effect.broker == 5
        for mesh in one.meshes().values():
            assert mesh.parents == sorted(set(mesh.parents)) and len(mesh.parents) <= redundancy
            assert {*mesh.parents, *mesh.children} <= {4, 6}
            assert (mesh.core == 5) <= (not mesh.parents)
            assert mesh.answered <= {4, 6}
    assert delivered == one.counts.delivered
