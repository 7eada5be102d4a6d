"""Very many groups, of other brokers or one client, are looked at in pieces
(group_table.py), whatever comes between."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqttree.broker.base import costs
from mqttree.broker.base.turns import PAUSE
from mqttree.broker.cluster.directory.link_state_directory import GROUP, POST_INTERVAL, Changes
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.cluster.sharing.catchup import ASKED, GROUP_ASK, PATIENCE_S, RETRY, TIME_SIZE
from mqttree.broker.cluster.sharing.group_table import NOTE_WORK
from mqttree.broker.cluster.sharing.shared_subscriptions import SharedSubscriptions
from mqttree.broker.core.wildcard_forms import filter_memory
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.properties import Property
from mqttree.routing.group_selection import decode_standing, encode_standing, group_id_of, group_key
from mqttree.routing.topic_filter import split_shared
from tests.kit.link_harness import Neighbour, bid, lone
from tests.kit.node_harness import World

BROKERS = (101, 102)
NAMES = [group_key(f"g{number}", f"a/{number}") for number in range(12)]

whole = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3))
step = st.one_of(
    st.tuples(
        st.just("post"),
        st.sampled_from(BROKERS),
        st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(0, 3)),
    ),
    st.tuples(st.just("came"), st.sampled_from(BROKERS), whole),
    st.tuples(st.just("went"), st.sampled_from(BROKERS), st.just({})),
    st.tuples(
        st.just("wait"),
        st.just(0),
        st.sampled_from(
            [POST_INTERVAL, POST_INTERVAL, 10 * POST_INTERVAL, DEFAULTS.log_age_s + 1.0]
        ),
    ),
    st.tuples(st.just("publish"), st.just(0), st.sampled_from(range(len(NAMES)))),
)


class Others:
    """What other brokers have announced, as they would say it themselves."""

    def __init__(self, many: Iterable[bool] = (False,), limits: Limits = DEFAULTS) -> None:
        """`many`: whether they announce their groups in one piece, in turn; `limits`: those of the
        broker that hears it."""
        self.many = cycle(many)
        self.world = lone(link_timeout=60_000.0, limits=limits)
        self.sharing: SharedSubscriptions = self.world.node.cluster.sharing
        self.publisher = self.world.connect("p")
        self.told: dict[int, dict[bytes, int]] = {}  # of those that can be reached
        self.packet_id = 0

    def post(self, broker: int, changes: dict[bytes, int | None]) -> None:
        if broker not in self.told:
            return
        found: Changes = []
        for key, weight in changes.items():
            if weight is not None:
                self.told[broker][key] = weight
            elif self.told[broker].pop(key, None) is None:
                continue
            found.append((key, None if weight is None else encode_standing(weight)))
        self.tell(broker, found)

    def tell(self, broker: int, changes: Changes, *, gone: bool = False) -> None:
        if not next(self.many):
            for key, value in changes:
                self.sharing.groups._posted(bid(broker), key, value, gone)
        elif changes:
            self.sharing.groups._many_posted(
                bid(broker), [(GROUP + key, value) for key, value in changes], gone
            )

    def came(self, broker: int, groups: dict[bytes, int]) -> None:
        self.went(broker, {})
        self.told[broker] = dict(groups)
        self.tell(broker, [(key, encode_standing(weight)) for key, weight in groups.items()])
        self.sharing.groups.route_changed(RouteChanged(bid(broker), bid(broker)))

    def went(self, broker: int, _: dict[bytes, int]) -> None:
        self.tell(broker, [(key, None) for key in self.told.pop(broker, {})], gone=True)
        self.sharing.groups.route_changed(RouteChanged(bid(broker), None))

    def wait(self, _: int, seconds: float) -> None:
        self.world.advance(seconds)

    def publish(self, _: int, number: int) -> None:
        self.packet_id += 1
        self.publisher.publish(f"a/{number}", b"x", 1, packet_id=self.packet_id)

    def check(self) -> None:
        """What holds at every moment."""
        sharing, memory = self.sharing, 0
        for group_id, pool in sharing.groups.pools.items():
            memory += (
                costs.GROUP_MEMORY
                + filter_memory(pool.filter)
                + costs.MEMBERS_MEMORY * len(pool.brokers)
            )
            for broker_id, standing in pool.brokers.items():
                assert standing.announcer is sharing.groups._announcers[broker_id]
                assert (group_id in standing.announcer.group_ids) is not (
                    group_id in standing.announcer.stale
                )
        assert sharing.groups.memory == memory
        for broker_id, announcer in sharing.groups._announcers.items():
            assert all(
                broker_id in sharing.groups.pools[group_id].brokers
                for group_id in announcer.group_ids | announcer.stale
            )
            assert announcer.busy or announcer.group_ids
        for broker in BROKERS:
            seen = sharing.groups._announcers.get(bid(broker))
            if broker not in self.told:
                assert seen is None or (seen.cut and not seen.unhandled)
                continue
            if seen is None:
                assert not self.told[broker]
                continue
            assert not seen.cut
            # What has not been handled is queued; all else is as it was announced, or is going to
            # be forgotten.
            news = {key[1:]: value for key, value in seen.earlier} | seen.updates
            for key, weight in self.told[broker].items():
                if key in news:
                    assert news[key] == encode_standing(weight)
                else:
                    assert sharing.groups.pools[group_id_of(key)].brokers[
                        bid(broker)
                    ].weight == decode_standing(encode_standing(weight))
                    assert group_id_of(key) in seen.group_ids
            waiting = {group_id_of(key) for key in news} | seen.stale.keys()
            assert (
                seen.group_ids.keys() - waiting
                == {group_id_of(key) for key in self.told[broker]} - waiting
            )


TWO: dict[bytes, int] = dict.fromkeys(NAMES[:2], 0)
NONE: dict[bytes, int | None] = dict.fromkeys(NAMES[:2])


# It withdraws all of its groups, and goes while that is still to be looked at.
@example([("came", 101, TWO), ("post", 101, NONE), ("went", 101, {})], [False])
# It announces very many in one moment, withdraws them one by one, and announces very many again.
@example([("came", 101, TWO), ("post", 101, NONE), ("came", 101, TWO)], [False, True])
@given(st.lists(step, max_size=20), st.lists(st.booleans(), min_size=1, max_size=4))
def test_announcements_handled_in_pieces_end_as_brokers_say(
    steps: list[tuple[str, int, object]], many: list[bool]
) -> None:
    """Brokers come, go, and announce changes, while earlier announcements are still handled: in the
    end all is as they say."""
    others = Others(many, Limits(groups_at_once=3, groups_step=2))
    for name, broker, what in steps:
        getattr(others, name)(broker, what)
        others.check()
    others.wait(0, 1.0)
    others.check()
    assert not any(announcer.busy for announcer in others.sharing.groups._announcers.values())
    for broker in BROKERS:
        others.went(broker, {})
    others.wait(0, DEFAULTS.log_age_s + 2.0)
    assert not others.sharing.groups._announcers
    assert not others.sharing.groups.memory


def asked(neighbour: Neighbour) -> list[bytes]:
    """Marks that the node has asked for."""
    bodies = [body[TIME_SIZE:] for body in neighbour.routed(GROUP_ASK)]
    return [body[at : at + 6] for body in bodies for at in range(0, len(body), 6)]


def test_a_broker_is_asked_for_the_age_of_many_groups_in_pieces() -> None:
    """Something was published before they were known: each is asked for once, in some turns, and
    then again."""
    world = lone(routing="topic", link_timeout=60_000.0)
    world.connect("p").publish("b", b"x", 1)
    neighbour = Neighbour(world, 101).child()
    standing = encode_standing(1)
    names = [GROUP + b"g%d\0a/%d" % (number, number) for number in range(3 * ASKED)]
    neighbour.known(*((name, standing) for name in names), number=2)
    neighbour.take()
    first: list[bytes] = []
    for _ in range(20):
        world.advance(POST_INTERVAL)
        some = asked(neighbour)
        assert len(some) <= 2 * ASKED
        first += some
    assert sorted(first) == sorted(group_id_of(name[1:]) for name in names)
    world.advance(RETRY)
    world.advance(0.1)
    assert sorted(asked(neighbour)) == sorted(first)
    silent(world, PATIENCE_S)
    sharing = world.node.cluster.sharing
    assert not any(pool.brokers[bid(101)].pending for pool in sharing.groups.pools.values())
    neighbour.take()
    silent(world, 2 * RETRY)
    assert not asked(neighbour)


@pytest.mark.parametrize("size", [0, TIME_SIZE - 1, TIME_SIZE + 1])
def test_a_malformed_question_or_answer_is_refused(size: int) -> None:
    world = lone(link_timeout=60_000.0)
    catchup = world.node.cluster.catchup
    for received in (catchup._ask_received, catchup._ages_received):
        with pytest.raises(MalformedPacket):
            received(bid(101), bytes(size), world.now)


def silent(world: World, seconds: float) -> None:
    for _ in range(round(10 * seconds)):
        world.advance(0.1)


# ------------------------------------------------------------------ members here

FILTERS = [f"$share/g{number % 3}/a/{number}" for number in range(9)]
FOREVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
happens = st.one_of(
    st.sampled_from(["turn", "turn", "vanish", "come", "clean", "end"]),
    st.tuples(st.sampled_from(["subscribe", "unsubscribe"]), st.sampled_from(FILTERS)),
)


@given(st.lists(happens, max_size=25))
def test_groups_are_announced_right_while_members_come_and_go(
    steps: list[str | tuple[str, str]],
) -> None:
    """What is announced of each group is right as soon as there is nothing more to be done."""
    world = lone(link_timeout=60_000.0, limits=Limits(groups_noted=2, turn_work=NOTE_WORK))
    other = world.connect("other", version=5)
    assert other.subscribe(FILTERS[0], qos=1) == [1]
    client = world.connect("k", clean=False, properties=FOREVER)
    for topic_filter in FILTERS:
        client.subscribe(topic_filter, qos=1)
    for step in steps:
        session = world.node.sessions.get("k")
        here = session is not None and session.conn is not None
        if step == "turn":
            turn(world)
        elif step == "vanish" and here:
            client.vanish()
        elif step in ("come", "clean") and not here:
            client = world.connect("k", clean=step == "clean", properties=FOREVER)
        elif step == "end" and session is not None and not here:
            world.node.end_session(session, None)
        elif isinstance(step, tuple) and here:
            (client.subscribe if step[0] == "subscribe" else client.unsubscribe)(step[1])
    for _ in range(200):
        turn(world)
    sharing = world.node.cluster.sharing
    assert not sharing.groups._noting
    session = world.node.sessions.get("k")
    entries = world.node.cluster.directory.database.own.entries
    for topic_filter in FILTERS:
        name, inner = split_shared(topic_filter)
        assert name is not None
        members = [other.conn] if topic_filter == FILTERS[0] else []
        if session is not None and topic_filter in session.subscriptions:
            members.append(session.conn)
        told = entries.get(GROUP + group_key(name, inner))
        assert told == (
            encode_standing(sum(conn is not None for conn in members)) if members else None
        )


def turn(world: World) -> None:
    world.now += PAUSE
    world.node.tick(world.now)
    world.settle()
