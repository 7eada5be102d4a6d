"""Effects that are answered later: order, waiting, bounds, answers that come too late, twice or for
nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.log_limit import MAX_SOURCES
from mqttree.broker.core.effects import (
    AppendFrame,
    Authenticate,
    AuthorizePublish,
    AuthorizeReceive,
    AuthorizeSubscribe,
    BeginSegment,
    DiscardSegments,
    Effect,
    Event,
    Hooks,
    TailRead,
)
from mqttree.broker.core.predecessor import PREDECESSOR_SILENCE_S
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.persistence.journal_states import State
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from tests.kit.journal_harness import DiskEffect, Durable
from tests.kit.node_harness import FakeClient, World, connect_packet, cut

ALL = pytest.mark.parametrize("version", [3, 4, 5])


def everything(effect: AuthorizeReceive) -> set:
    return set(effect.receivers)


def subscribed(
    world: World, name: str, topic_filter: str = "#", qos: int = 2, version: int = 5
) -> FakeClient:
    client = world.connect(name, version)
    client.send(Subscribe(1, [SubscriptionRequest(topic_filter, qos)]))
    assert world.answer(AuthorizeSubscribe, [True]) == 1
    assert client.take() == [Suback(1, [qos])]
    return client


# ---------------------------------------------------------------- authentication


@pytest.mark.statement("MQTT-3.1.4-2")
@ALL
@pytest.mark.parametrize("allowed", [False, True])
def test_packets_behind_connect_wait_for_authentication(version: int, allowed: bool) -> None:
    """MQTT-3.1.4-2, -6: nothing behind CONNECT is handled before the answer, nor at all when it is
    no."""
    world = World(hooks=Hooks(authenticate=True))
    client = world.open(version).sent(
        connect_packet("a", version, username="u", password=b"p"),
        Publish("t", b"x", 1, packet_id=1),
        Pingreq(),
    )
    client.send(Pingreq())
    assert client.take() == []
    assert world.counters.published == 0
    (effect,) = world.effects
    assert isinstance(effect, Authenticate)
    assert (effect.connect.username, effect.connect.password) == ("u", b"p")
    world.answer(Authenticate, allowed)
    connack, *rest = client.take()
    assert isinstance(connack, Connack)
    assert connack.code == (0 if allowed else 0x86 if version == 5 else 4)
    assert rest == ([Puback(1), Pingresp(), Pingresp()] if allowed else [])
    assert client.closed is not allowed
    assert world.counters.published == allowed


def test_without_a_user_name_not_authorized() -> None:
    world = World(hooks=Hooks(authenticate=True))
    client = world.open().sent(connect_packet("a"))
    world.answer(Authenticate, False)
    assert client.last_reason() == 0x87


def test_an_answer_that_a_connect_does_not_wait_for_changes_nothing() -> None:
    world = World(hooks=Hooks(authenticate=True))
    client = world.open().sent(connect_packet("c"))
    (effect,) = world.effects
    effect.client.on_cluster_joined(world.now)
    effect.client.on_predecessor_read(world.now)
    effect.client.on_placement("other:1883", world.now)
    effect.client.on_takeover(7, world.now)
    assert client.take() == []
    world.answer(Authenticate, True)
    assert [type(packet) for packet in client.take()] == [Connack]


@pytest.mark.parametrize("allowed", [False, True])
def test_an_answer_after_the_end_of_its_connection_is_ignored(allowed: bool) -> None:
    world = World(hooks=Hooks(authenticate=True), connect_timeout=5.0)
    world.open().sent(connect_packet("a", will=Will("t", b"gone"))).vanish()
    world.answer(Authenticate, allowed)
    assert not world.node.sessions
    assert world.counters.wills == 0


def test_waiting_for_plugins_is_not_the_clients_silence() -> None:
    world = World(hooks=Hooks(authenticate=True), connect_timeout=5.0)
    client = world.open().sent(connect_packet("a"))
    world.advance(20)
    assert not client.closed
    world.answer(Authenticate, True)
    assert isinstance(client.take()[0], Connack)


def test_bytes_behind_a_waiting_packet_are_bounded() -> None:
    """Then the transport is not read any more, until the answer."""
    world = World(hooks=Hooks(authenticate=True))
    client = world.open().sent(connect_packet("a"))
    chunk = encode_packet(Publish("t", b"x" * 1000), 5)
    sent = 0
    while client.transport.reading:
        client.chunks([chunk])
        sent += 1
        assert sent * len(chunk) < DEFAULTS.plugin_backlog_bytes + 2 * len(chunk)
    world.answer(Authenticate, True)
    assert client.transport.reading
    assert world.counters.published == sent


def test_of_two_authentications_of_one_id_the_later_stays() -> None:
    world = World(hooks=Hooks(authenticate=True))
    first, second = world.open().sent(connect_packet("a")), world.open().sent(connect_packet("a"))
    world.answer(Authenticate, True)
    assert first.closed
    assert world.session("a").conn is second.conn


# ---------------------------------------------------------------- publishing


@pytest.mark.statement("3.1.1/MQTT-3.3.5-2", "3.1/not authorised PUBLISH")
@ALL
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_waits_and_is_answered(version: int, qos: int) -> None:
    world = World(hooks=Hooks(topics=True))
    watcher = subscribed(world, "w")
    client = world.connect("a", version)
    client.send(*(Publish("t", b"%d" % n, qos, packet_id=n) for n in (1, 2, 3)), Pingreq())
    for number, allowed in ((1, True), (2, False), (3, True)):
        assert client.take() == []
        assert world.answer(AuthorizePublish, allowed) == 1
        refused = 0 if allowed or version < 5 else 0x87
        answer = {0: [], 1: [Puback(number, refused)], 2: [Pubrec(number, refused)]}[qos]
        assert client.take() == answer + ([Pingresp()] if number == 3 else [])
    world.answer(AuthorizeReceive, everything)
    assert watcher.payloads() == [b"1", b"3"]
    assert world.counters.publish_refused == 1
    if qos == 2:
        client.send(Pubrel(2))
        assert client.take() == [Pubcomp(2, 0x92 if version == 5 else 0)]


@pytest.mark.statement("MQTT-4.3.3-9")
def test_refused_qos_2_may_be_tried_again() -> None:
    """4.3.3: after PUBREC from 0x80 on the identifier is free."""
    world = World(hooks=Hooks(topics=True))
    client = world.connect("a")
    client.publish("t", b"x", 2)
    world.answer(AuthorizePublish, False)
    client.publish("t", b"x", 2)
    world.answer(AuthorizePublish, True)
    assert client.take() == [Pubrec(1, 0x87), Pubrec(1)]


def takes_over(world: World) -> None:
    """The client comes back, and the plugin's answer takes longer than it waits for its old
    connection."""
    new = world.open(4).sent(connect_packet("a", 4, clean=False))
    world.advance(PREDECESSOR_SILENCE_S * 1.1)
    assert [type(packet) for packet in new.take()] == [Connack]


@pytest.mark.parametrize("end", ["take over", "shut"])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_publish_whose_answer_comes_too_late_is_not_taken(end: str, allowed: bool) -> None:
    """Not acknowledged, so not taken; the client repeats it."""
    world = World(hooks=Hooks(topics=True))
    client = world.connect("a", 4, clean=False)
    client.publish("t", b"x", 2)
    if end == "shut":
        client.owner.shut(0x8B)
        world.settle()
    else:
        takes_over(world)
    world.answer(AuthorizePublish, allowed)
    assert world.counters.published == 0
    assert not world.session("a").incoming
    again = world.connect("a", 4, clean=False)
    again.publish("t", b"x", 2, dup=True)
    world.answer(AuthorizePublish, True)
    assert again.take() == [Pubrec(1)]
    assert world.counters.published == 1


def test_dollar_topics_are_not_asked_about() -> None:
    world = World(hooks=Hooks(topics=True))
    client = world.connect("a")
    client.publish("$SYS/x", b"x", 1)
    assert world.effects == []
    assert client.take() == [Puback(1, 0x87)]


# ---------------------------------------------------------------- subscribing


@ALL
def test_subscribe_waits_and_is_answered_for_each_filter(version: int) -> None:
    world = World(hooks=Hooks(topics=True))
    client = world.connect("a", version)
    client.send(
        Subscribe(3, [SubscriptionRequest(f, 1) for f in ("yes", "no", "/" * 201)]), Pingreq()
    )
    assert client.take() == []
    world.answer(AuthorizeSubscribe, [True, False, True])
    codes = [1, 0x87, 0x8F] if version == 5 else [1, 0x80, 0x80]
    assert client.take() == [Suback(3, codes), Pingresp()]
    assert set(world.session("a").subscriptions) == {"yes"}


def test_a_subscribe_whose_answer_comes_too_late_is_not_granted() -> None:
    world = World(hooks=Hooks(topics=True))
    world.connect("a", 4, clean=False).send(Subscribe(3, [SubscriptionRequest("t", 1)]))
    takes_over(world)
    world.answer(AuthorizeSubscribe, [True])
    assert not world.session("a").subscriptions


# ---------------------------------------------------------------- receiving


def test_shared_subscriptions_go_to_a_member_that_may_receive() -> None:
    world = World(hooks=Hooks(topics=True))
    group = [subscribed(world, f"m{n}", "$share/g/t") for n in range(3)]
    allowed = {group[1].owner.session}
    client = world.connect("a")
    for number in range(1, 7):
        client.publish("t", b"%d" % number, 1, packet_id=number)
        world.answer(AuthorizePublish, True)
        world.answer(AuthorizeReceive, allowed)
    assert [len(m.take()) for m in group] == [0, 6, 0]
    group[1].disconnect()
    assert [len(m.take()) for m in (group[0], group[2])] == [0, 0]
    client.publish("t", b"nobody", 1, packet_id=9)
    world.answer(AuthorizePublish, True)
    world.answer(AuthorizeReceive, set())
    assert [len(m.take()) for m in (group[0], group[2])] == [0, 0]


def test_a_receiver_that_left_before_the_answer_gets_nothing() -> None:
    world = World(hooks=Hooks(topics=True))
    leaver, stays = subscribed(world, "leaver"), subscribed(world, "stays")
    world.connect("a").publish("t", b"x", 1)
    world.answer(AuthorizePublish, True)
    leaver.disconnect()
    world.answer(AuthorizeReceive, everything)
    assert stays.payloads() == [b"x"]
    assert leaver.take() == []


def test_publishers_wait_when_too_many_answers_are_missing() -> None:
    world = World(hooks=Hooks(topics=True), limits=Limits(hold_queued=10))
    watcher = subscribed(world, "w")
    client = world.connect("a")
    for number in range(1, 11):
        assert client.transport.reading
        client.publish("t", b"x", 1, packet_id=number)
        world.answer(AuthorizePublish, True)
    assert not client.transport.reading
    world.answer(AuthorizeReceive, everything)
    assert client.transport.reading
    assert len(watcher.payloads()) == 10


def test_events_are_sent_only_when_a_plugin_listens() -> None:
    quiet = World()
    quiet.connect("a").subscribe("t")
    assert quiet.effects == []
    names = frozenset(
        {"broker_client_connected", "broker_client_subscribed", "broker_message_received"}
    )
    world = World(hooks=Hooks(events=names))
    client = world.connect("a").subscribed("t", "/" * 201)
    client.publish("t", b"x")
    client.publish("t", b"y", 1)
    client.publish("t", b"z", 2, packet_id=2)
    client.disconnect()
    told = [(e.name, e.arguments.get("packet_id")) for e in world.effects if isinstance(e, Event)]
    assert told == [
        ("broker_client_connected", None),
        ("broker_client_subscribed", None),
        *(("broker_message_received", n) for n in (0, 1, 2)),
    ]


# ---------------------------------------------------------------- any interleaving


def check_answers(
    number: int, packets: list[Any], messages: list[tuple[int, str, int]], refused: set[bytes]
) -> None:
    """What one of three clients got: an answer for each PUBLISH, and every message that was
    allowed, once and in order."""
    assert isinstance(packets[0], Connack)
    assert isinstance(packets[-1], Pingresp | Publish)
    assert sum(isinstance(p, Pingresp) for p in packets) == 2
    answered = [p.packet_id for p in packets if isinstance(p, Puback | Pubrec)]
    assert answered == [i for i, (who, _, qos) in enumerate(messages, 1) if who == number and qos]
    got = [p.payload for p in packets if isinstance(p, Publish)]
    assert len(set(got)) == len(got)
    for sender in range(3):
        sent = [
            b"%d:%d" % (sender, i)
            for i, (who, t, _) in enumerate(messages, 1)
            if who == sender and t != "$x"
        ]
        sent = [body for body in sent if body not in refused]
        came = [body for body in got if body.startswith(b"%d:" % sender)]
        assert came == sent[len(sent) - len(came) :]  # all since its subscription was granted
        if sender == number:
            assert came == sent


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", "$x"]), st.integers(0, 2)),
        max_size=25,
    ),
    st.lists(st.integers(0, 10_000), max_size=10),
    st.integers(0, 2**32),
    st.sampled_from([4, 5]),
)
def test_answers_in_any_order_keep_the_order_of_packets(
    messages: list[tuple[int, str, int]], places: list[int], seed: int, version: int
) -> None:
    """Three clients that publish and subscribe; answers at any time, some no. Order per publisher
    and topic stays, what was allowed arrives once, what was not never, every QoS 1 and 2 PUBLISH
    has its answer."""
    rng = random.Random(seed)
    world = World(hooks=Hooks(authenticate=True, topics=True))
    streams = []
    for number in range(3):
        packets = [
            connect_packet(f"c{number}", version),
            Subscribe(1, [SubscriptionRequest("+", 2)]),
            Pingreq(),
        ]
        mine = [
            (index, topic, qos)
            for index, (who, topic, qos) in enumerate(messages, 1)
            if who == number
        ]
        packets += [
            Publish(t, b"%d:%d" % (number, i), q, packet_id=i if q else None) for i, t, q in mine
        ]
        packets.append(Pingreq())
        data = b"".join(encode_packet(p, version) for p in packets)
        streams.append((world.open(version), cut(data, places)))
    refused: set[bytes] = set()

    def answer_one() -> bool:
        if not world.effects:
            return False
        effect = world.effects.pop(rng.randrange(len(world.effects)))
        result: object = True
        if isinstance(effect, AuthorizePublish):
            result = rng.random() < 0.8
            if not result:
                refused.add(effect.message.payload)
        elif isinstance(effect, AuthorizeSubscribe):
            result = [True]
        elif isinstance(effect, AuthorizeReceive):
            result = set(effect.receivers)
        world.node.answer(effect, result, world.now)
        world.settle()
        return True

    while any(chunks for _, chunks in streams):
        client, chunks = rng.choice([s for s in streams if s[1]])
        client.chunks([chunks.pop(0)])
        for _ in range(rng.randrange(3)):
            answer_one()
    while answer_one():
        pass
    for number, (client, _) in enumerate(streams):
        check_answers(number, client.take(), messages, refused)


# ---------------------------------------------------------- clients that go while a plugin is asked


@ALL
@pytest.mark.parametrize("polite", [False, True])
def test_packets_that_a_client_sent_before_it_went_count(version: int, polite: bool) -> None:
    """PUBLISH, DISCONNECT and the end of the connection are there before the first answer;
    MQTT-3.14.4-3: no will, then."""
    world = World(hooks=Hooks(topics=True))
    reader = subscribed(world, "r", version=version)
    writer = world.connect("w", version, will=Will("t/will", b"w"))
    writer.send(*[Publish(f"t/{n}", b"%d" % n) for n in range(5)], *[Disconnect()] * polite)
    writer.vanish()
    assert "w" in world.node.sessions
    while world.answer(AuthorizePublish, True):
        pass
    while world.answer(AuthorizeReceive, everything):
        pass
    world.advance(1)
    assert reader.payloads() == [b"%d" % n for n in range(5)] + [b"w"] * (not polite)
    assert writer.closed
    assert "w" not in world.node.sessions
    assert world.node.connection_registry.ended == 0


@ALL
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_need_not_stay_until_its_password_is_checked(version: int, qos: int) -> None:
    """CONNECT, PUBLISH, DISCONNECT and the end of the connection come at once."""
    world = World(hooks=Hooks(authenticate=True))
    reader = world.open(version)
    reader.send(connect_packet("r", version), Subscribe(1, [SubscriptionRequest("t", 0)]))
    world.answer(Authenticate, True)
    reader.take()
    message = Publish("t", b"x", qos, packet_id=1 if qos else None)
    for allowed in (True, False):
        writer = world.open(version).sent(connect_packet("w", version), message, Disconnect())
        writer.vanish()
        world.answer(Authenticate, allowed)
        world.advance(1)
        assert reader.payloads() == [b"x"] * allowed
        assert writer.closed
    assert set(world.node.sessions) == {"r"}
    assert world.node.connection_registry.ended == world.node.checking == 0


def test_a_client_that_went_closes_no_newer_connection_of_its_own() -> None:
    """The plugin answers about the older one last."""
    world = World(hooks=Hooks(authenticate=True))
    old, new = world.open().sent(connect_packet("c"), Publish("t", b"1")), world.open()
    old.vanish()
    world.now += 0.01
    new.send(connect_packet("c"))
    first, second = [e for e in world.effects if isinstance(e, Authenticate)]
    for effect in (second, first):
        world.node.answer(effect, True, world.now)
        world.settle()
    assert old.closed and not new.closed
    assert world.counters.takeover_unread == 1


def test_an_ended_client_is_not_written_to_and_can_reconnect() -> None:
    world = World(hooks=Hooks(topics=True))
    old = subscribed(world, "c")
    old.send(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 1, packet_id=2))
    old.vanish()
    world.answer(AuthorizePublish, True)  # the second one waits
    world.answer(AuthorizeReceive, everything)
    assert old.take() == []
    new = world.open().sent(connect_packet("c"))
    world.advance(PREDECESSOR_SILENCE_S * 1.1)
    assert old.closed
    assert not new.closed
    world.answer(AuthorizePublish, True)
    assert world.node.connection_registry.ended == 0
    assert world.session("c").conn is new.conn


def test_ended_connections_that_await_a_plugin_are_bounded() -> None:
    world = World(hooks=Hooks(topics=True), limits=Limits(max_ended=3))
    for n in range(5):
        client = world.connect(f"c{n}")
        client.send(Publish("t", b"x"))
        client.vanish()
    assert world.node.connection_registry.ended == 3
    assert len(world.node.sessions) == 3
    world.answer(AuthorizePublish, True)
    assert not world.node.sessions


def test_plugins_are_not_asked_about_what_is_no_filter() -> None:
    world = World(hooks=Hooks(topics=True))
    client = world.connect("c")
    assert client.subscribe("/" * 201, "$share/g/" + "/" * 201) == [0x8F] * 2
    client.send(Subscribe(1, [SubscriptionRequest("t", 0), SubscriptionRequest("a/#/b", 0)]))
    assert client.closed
    assert not world.effects


# ---------------------------------------------------------- answers that come twice or for nothing


def asked(world: World, kind: type[Effect]) -> Any:
    """The one effect of a kind that waits for its answer."""
    found = [effect for effect in world.effects if isinstance(effect, kind)]
    assert len(found) == 1, found
    return found[0]


def refused(world: World, effect: Effect, result: Any) -> bool:
    """Whether an answer is one that nothing waits for."""
    before = world.counters.answers_unexpected
    world.node.answer(effect, result, world.now)
    world.settle()
    return bool(world.counters.answers_unexpected > before)


def test_a_client_is_authenticated_once() -> None:
    world = World(hooks=Hooks(authenticate=True))
    client = world.open().sent(connect_packet())
    effect = asked(world, Authenticate)
    assert not refused(world, effect, True)
    assert refused(world, effect, False)
    assert refused(world, effect, True)
    assert len(client.take()) == 1
    assert not client.closed
    assert world.counters.connects == 1
    assert "nothing waits for this answer to Authenticate: it is left out" in world.logged


def test_a_message_is_published_once() -> None:
    world = World(hooks=Hooks(topics=True))
    subscriber, client = world.connect("s"), world.connect("p")
    subscriber.send(Subscribe(1, [SubscriptionRequest("t", 1)]))
    effect = asked(world, AuthorizeSubscribe)
    assert not refused(world, effect, [True])
    assert refused(world, effect, [False])
    subscriber.take()
    client.send(Publish("t", b"x", 1, packet_id=1))
    effect = asked(world, AuthorizePublish)
    assert not refused(world, effect, True)
    assert refused(world, effect, True)
    assert len(client.take()) == 1
    effect = asked(world, AuthorizeReceive)
    assert not refused(world, effect, {world.session("s")})
    assert refused(world, effect, {world.session("s")})
    assert subscriber.payloads() == [b"x"]


@pytest.mark.parametrize(
    "effect",
    [
        Event("broker_client_connected"),
        DiscardSegments(1),
        AppendFrame(b"", 1),
        TailRead(1, 0, 10, 7),
    ],
)
def test_an_answer_that_nothing_waits_for_is_refused(effect: Effect) -> None:
    """Two kinds have no answer, and this broker has no journal."""
    assert refused(World(), effect, None)


# ---------------------------------------------------------------- the journal


def lazy(*, sync: bool = False) -> Durable:
    """A broker with a journal and a durable session "c" that gets "t" at QoS 1, whose disk says
    nothing by itself from now on."""
    world = Durable(sync=sync)
    world.connect("c", version=4, clean=False).subscribe("t", qos=1)
    world.files.lazy = True
    return world


def told(world: Durable) -> list[DiskEffect]:
    """Effects that the disk has carried out, taken from it so that it does not say so."""
    untold, world.files.untold = world.files.untold, []
    return [effect for effect, _ in untold]  # type: ignore[misc]


def test_a_frame_is_durable_once() -> None:
    world = lazy()
    world.connect("p").publish("t", b"x", 1)
    *_, last = told(world)
    assert isinstance(last, AppendFrame)
    assert not refused(world, last, None)
    assert refused(world, last, None)
    assert refused(world, AppendFrame(b"", last.lsn + 5), None)
    # What the kernel had did not get to the disk.
    assert not refused(world, last, "Input/output error")
    assert world.journal.frames.state is State.FAILED


def test_a_segment_that_was_refused_does_not_begin() -> None:
    world = lazy()
    world.begin_snapshot()
    world.settle()
    (begin,) = (effect for effect in told(world) if isinstance(effect, BeginSegment))
    assert not refused(world, begin, "Too many open files")
    assert refused(world, begin, None)
    assert refused(world, begin, "Too many open files")
    assert world.journal.frames.state is State.WRITING


ERRORS = (None, None, None, "Input/output error", "No space left on device")


@given(seed=st.integers(0, 2**32), sync=st.booleans())
def test_no_answer_of_a_disk_is_impossible(seed: int, sync: bool) -> None:
    """Answers in any order, some again and again, some for what was never asked: nothing raises,
    and a disk that is sound again leads to a journal that is."""
    chance = random.Random(seed)
    world = lazy(sync=sync)
    publisher = world.connect("p")
    known: list[DiskEffect] = [
        AppendFrame(b"", 1 << 40),
        BeginSegment(1 << 20),
        BeginSegment(0),
        AppendFrame(b"", 0),
    ]
    for _ in range(40):
        known += told(world)
        match chance.randrange(5):
            case 0:
                world.begin_snapshot() if world.journal.frames.state is State.WRITING else None
            case 1:
                world.advance(chance.choice((0.01, 0.5, 1.1)))
            case 2:
                publisher.publish("t", b"x" * chance.randrange(100), 1)
            case _:
                effect = chance.choice(known[-6:] if chance.random() < 0.7 else known)
                world.node.answer(effect, chance.choice(ERRORS), world.now)
                world.settle()
    assert len(world.lines) < MAX_SOURCES
    for effect in known + told(world):
        world.node.answer(effect, "Input/output error", world.now)
    world.files.lazy, world.files.failed = False, ""
    world.settle()
    for _ in range(3):
        world.advance(5.0)
        publisher.publish("t", b"x", 1)
    assert world.journal.healthy
