"""Rules: which one decides, whom it is about, what names and wildcards in it mean; and a node that
goes by them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.auth.authorization import (
    ACTIONS,
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    Access,
    Permissions,
    Rules,
)
from mqttree.broker.base.costs import ROUTE_SHOWN_MEMORY
from mqttree.broker.core.effects import Authenticate, Hooks
from mqttree.broker.core.memory_limit import client_memory
from mqttree.broker.core.session import Session
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.packets import Connack, Puback, Publish, Pubrec, Will
from mqttree.routing.topic_filter import covers, matches
from tests.kit.effort import examples
from tests.kit.node_harness import FakeClient, World, connect_packet


def rules(text: str) -> Rules:
    return parse_rules("rules", text, limits=Limits())


def may(
    text: str, user: str | None = "anna", client_id: str = "c", listener: str = "default"
) -> Permissions:
    return Permissions(rules(text), user, client_id, listener)


AT_L_ANNA = "listener l\nuser anna\nallow publish a\n"
PUBLISHING = [
    # rules, user, client id, listener, topic, allowed
    ("", "anna", "c", "l", "a", False),
    ("allow publish a", "anna", "c", "l", "a", True),
    ("allow publish a", "anna", "c", "l", "b", False),
    ("allow all #", None, "c", "l", "b", True),
    ("allow subscribe #", None, "c", "l", "b", False),
    ("allow receive #", None, "c", "l", "b", False),
    ("deny publish a/b\nallow publish a/#", None, "c", "l", "a/b", False),
    ("allow publish a/#\ndeny publish a/b", None, "c", "l", "a/b", True),
    ("deny subscribe a/b\nallow all #", None, "c", "l", "a/b", True),
    ("user anna\nallow publish a", "anna", "c", "l", "a", True),
    ("user anna\nallow publish a", "bert", "c", "l", "a", False),
    ("user anna\nallow publish a", None, "anna", "l", "a", False),
    ("user anna maria\nallow publish a b", "anna maria", "c", "l", "a b", True),
    ("user *\nallow publish a", "bert", "c", "l", "a", True),
    ("user *\nallow publish a", None, "c", "l", "a", False),
    ("anonymous\nallow publish a", None, "c", "l", "a", True),
    ("anonymous\nallow publish a", "anna", "c", "l", "a", False),
    ("client c\nallow publish a", "anna", "c", "l", "a", True),
    ("client c\nallow publish a", "anna", "cc", "l", "a", False),
    ("client c*\nallow publish a", "anna", "cc", "l", "a", True),
    ("client c?\nallow publish a", "anna", "c", "l", "a", False),
    ("client [c]*\nallow publish a", "anna", "c", "l", "a", False),
    ("client [c]*\nallow publish a", "anna", "[c]1", "l", "a", True),
    ("user anna\ndeny publish a\neveryone\nallow publish a", "bert", "c", "l", "a", True),
    ("user anna\ndeny publish a\neveryone\nallow publish a", "anna", "c", "l", "a", False),
    ("everyone\nallow publish a\nuser anna\ndeny publish a", "anna", "c", "l", "a", True),
    ("listener l\nallow publish a", "anna", "c", "l", "a", True),
    ("listener l\nallow publish a", "anna", "c", "other", "a", False),
    (f"{AT_L_ANNA}listener *\nallow publish b", "anna", "c", "other", "b", True),
    (f"{AT_L_ANNA}listener *\nallow publish b", "bert", "c", "l", "b", True),
    (f"{AT_L_ANNA}user bert\nallow publish a", "bert", "c", "other", "a", False),
    ("allow publish %u/%c/x", "anna", "c", "l", "anna/c/x", True),
    ("allow publish %u/%c/x", "anna", "c", "l", "anna/d/x", False),
    ("allow publish %u/%c/x", None, "c", "l", "/c/x", False),
    ("allow publish dev-%c/#", "anna", "7", "l", "dev-7", True),
    ("allow publish dev-%c/#", "anna", "7", "l", "dev-8", False),
    ("allow publish %c", "anna", "%u", "l", "%u", True),
    ("allow publish %c", "anna", "%u", "l", "anna", False),
    ("allow publish 100%", "anna", "c", "l", "100%", True),
]


@pytest.mark.parametrize(("text", "user", "client_id", "listener", "topic", "allowed"), PUBLISHING)
def test_the_first_rule_that_fits_decides(
    text: str, user: str | None, client_id: str, listener: str, topic: str, allowed: bool
) -> None:
    assert may(text, user, client_id, listener).may_publish(topic) is allowed


@pytest.mark.parametrize("name", ["+", "#", "a/b", "anna/#", "/", "", "$SYS", "a\0"])
def test_a_name_that_means_more_than_itself_opens_nothing_and_escapes_nothing(name: str) -> None:
    for mark, user, client_id in (("%u", name, "c"), ("%c", "anna", name)):
        opened = may(f"allow all home/{mark}/#", user, client_id)
        assert not opened.may_publish(f"home/{name}/x")
        assert not opened.may_publish("home/other/x")
        assert not opened.may_receive("home/other/x")
        assert not opened.may_subscribe("home/+/#")
        assert not opened.may_subscribe(f"home/{name}/#")
        closed = may(f"deny all home/{mark}/#\nallow all #", user, client_id)
        assert not closed.may_publish("home/other/x")
        assert not closed.may_receive("home/x")
        assert closed.may_publish("elsewhere/x")


SUBSCRIBING = [
    ("allow subscribe a/#", "a/#", True),
    ("allow subscribe a/#", "a/+/c", True),
    ("allow subscribe a/#", "a", True),
    ("allow subscribe a/#", "#", False),
    ("allow subscribe a/#", "+/b", False),
    ("allow subscribe a/+", "a/#", False),
    ("allow subscribe a/+", "a/b", True),
    ("allow subscribe +/+/#", "a/#", False),  # it would bring "a", too
    ("allow subscribe +/#", "#", True),
    ("allow subscribe #", "$SYS/#", False),
    ("allow subscribe $SYS/#", "$SYS/broker/+", True),
    ("allow publish #", "a", False),
    ("allow receive #", "a", False),
    ("deny subscribe a/b\nallow subscribe a/#", "a/b", False),
    ("deny subscribe a/b\nallow subscribe a/#", "a/+", True),  # a/b is cut out when it comes
    ("deny subscribe a/#\nallow subscribe #", "a/b/#", False),
    ("allow subscribe a/b\ndeny subscribe a/#\nallow subscribe #", "a/b", True),
    ("allow subscribe %c/#", "c/+", True),
    ("allow subscribe %c/#", "+/x", False),
    ("allow subscribe x%c/y", "x+/y", False),
    ("deny subscribe %c/#\nallow subscribe #", "c/x", False),
    ("deny subscribe %c/#\nallow subscribe #", "d/x", True),
]


@pytest.mark.parametrize(("text", "wanted", "allowed"), SUBSCRIBING)
def test_a_subscription_needs_a_rule_that_covers_it(text: str, wanted: str, allowed: bool) -> None:
    assert may(text).may_subscribe(wanted) is allowed


def test_the_rule_that_decided_is_named() -> None:
    anna = may("# first\n\nuser anna\n  deny publish a\nallow publish #\n")
    rule = anna.publish_rule("a")
    assert rule is not None
    assert (rule.line, rule.allow) == (4, False)
    assert anna.subscribe_rule("a") is None


LEVELS = st.sampled_from(["a", "b", "", "+", "%u", "%c", "x%c", "$SYS"])
FILTERS = st.builds(
    lambda levels, deep: "/".join([*levels, "#"] if deep else levels) or "#",
    st.lists(LEVELS, max_size=4),
    st.booleans(),
).filter(bool)
NAMES = st.sampled_from(["a", "b", "+", "a/b", "$SYS", "", "%u"])
HEADS = [
    "user a",
    "user b",
    "user *",
    "anonymous",
    "client a",
    "client *b",
    "everyone",
    "listener l",
    "listener *",
]
WORDS = st.sampled_from(
    [f"{verdict} {action}" for verdict in ("allow", "deny") for action in ACTIONS]
)
LINES = st.lists(
    st.one_of(st.builds("{} {}".format, WORDS, FILTERS), st.sampled_from(HEADS)), max_size=12
)
TOPICS = st.lists(
    st.sampled_from(["a", "b", "", "xa", "xb", "$SYS", "%u", "+"]), min_size=1, max_size=4
).map("/".join)


def by_definition(
    lines: list[str], user: str | None, client_id: str, listener: str, action: int, what: str
) -> bool:
    """The same, by walking through the text."""
    where, kind, name = "*", "everyone", ""
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "listener":
            where, kind = rest, "everyone"
        elif word in ("user", "anonymous", "client", "everyone"):
            kind, name = word, rest
        else:
            concerned = (
                where in ("*", listener)
                and {
                    "everyone": True,
                    "anonymous": user is None,
                    "user": user is not None and name in ("*", user),
                    "client": client_id == name or (name == "*b" and client_id.endswith("b")),
                }[kind]
            )
            action_word, _, topic_filter = rest.partition(" ")
            means = {
                "publish": PUBLISH,
                "subscribe": SUBSCRIBE | RECEIVE,
                "receive": RECEIVE,
                "all": 7,
            }[action_word]
            if not concerned or not means & action:
                continue
            bad = [
                mark
                for mark, own in (("%u", user), ("%c", client_id))
                if mark in topic_filter
                and (not own or own.startswith("$") or set(own) & set("+#/"))
            ]
            if bad and word == "allow":
                continue
            if bad:
                topic_filter = "/".join(
                    "+" if "%u" in x or "%c" in x else x for x in topic_filter.split("/")
                )
            else:
                topic_filter = topic_filter.replace("%u", user or "").replace("%c", client_id)
            if covers(topic_filter, what) if action == SUBSCRIBE else matches(topic_filter, what):
                return word == "allow"
    return False


@settings(max_examples=examples(200), deadline=None)
@given(
    LINES,
    st.one_of(st.none(), NAMES),
    NAMES.filter(bool),
    st.sampled_from(["l", "m"]),
    TOPICS,
    FILTERS,
)
def test_decisions_are_those_of_the_definition(
    lines: list[str], user: str | None, client_id: str, listener: str, topic: str, wanted: str
) -> None:
    if user == "%u" or client_id == "%u":
        # One replacement after the other differs.
        lines = [line for line in lines if not ("%u" in line and "%c" in line)]
    anna = may("\n".join(lines), user, client_id, listener)
    if "+" not in topic:
        assert anna.may_publish(topic) is by_definition(
            lines, user, client_id, listener, PUBLISH, topic
        )
        assert anna.may_receive(topic) is by_definition(
            lines, user, client_id, listener, RECEIVE, topic
        )
    wanted = wanted.replace("%", "p")
    assert anna.may_subscribe(wanted) is by_definition(
        lines, user, client_id, listener, SUBSCRIBE, wanted
    )


# -------------------------------------------------------------------- in a node


def world_of(
    text: str,
    *,
    users: set[str] | None = None,
    anonymous: bool | None = True,
    hooks: Hooks | None = None,
    limits: Limits = DEFAULTS,
) -> World:
    world = World(hooks=hooks, limits=limits)
    change(world, text, users=users, anonymous=anonymous)
    return world


def change(
    world: World, text: str | None, *, users: set[str] | None = None, anonymous: bool | None = True
) -> None:
    access = None if text is None else Access(users, rules(text), anonymous)
    world.node.set_access(access, world.now)
    world.settle()


def enter(
    world: World, user: str, client_id: str = "", version: int = 5, **options: object
) -> FakeClient:
    """Connect by a password that is right."""
    client = world.open(version).sent(
        connect_packet(client_id or user, version, username=user, password=b"right", **options)
    )
    world.answer(Authenticate, True)
    packets = client.take()
    assert isinstance(packets[0], Connack)
    client.connack = packets[0]
    client.inbox = packets[1:]
    return client


def payloads(client: FakeClient) -> list[bytes]:
    return [packet.payload for packet in client.take_publishes()]


def test_rules_for_very_many_clients_come_into_force_in_pieces() -> None:
    """In the end for all of them, whatever was published meanwhile; the rules that came last
    hold."""
    world = world_of("allow all #", limits=Limits(turn_work=1))
    publisher, *clients = [world.connect(f"c{number}") for number in range(350)]
    for client in clients:
        client.subscribe("a", qos=1)
        client.take()
    change(world, "allow all a")  # is not in force for all when the next ones come
    change(world, "deny receive a\nallow all a")
    denied = [session for session in world.node.sessions.values() if not _may_receive(session, "a")]
    assert 0 < len(denied) < 350
    publisher.publish("a", b"meanwhile", qos=1, packet_id=1)
    world.advance(1.0)
    assert not any(_may_receive(session, "a") for session in world.node.sessions.values())
    got = [len(client.take()) for client in clients]
    assert 0 < sum(got) < len(clients)
    publisher.publish("a", b"then", qos=1, packet_id=2)
    world.advance(1.0)
    assert not any(client.take() for client in clients)


def _may_receive(session: Session, topic: str) -> bool:
    assert session.permissions is not None
    return session.permissions.may_receive(topic)


@pytest.mark.statement("3.1.1/MQTT-3.3.5-2")
@pytest.mark.parametrize("version", [4, 5])
def test_a_refused_publish_is_answered_counted_and_goes_nowhere(version: int) -> None:
    world = world_of("allow all a\nallow subscribe #")
    subscriber = world.connect("s").subscribed("#", qos=2)
    client = world.connect("p", version)
    for _ in range(2):
        client.publish("b", qos=0)
        client.publish("b", qos=1, packet_id=1)
        client.publish("b", qos=2, packet_id=2)
        answers = client.take()
        assert [type(a) for a in answers] == [Puback, Pubrec]
        assert [a.reason for a in answers] == ([0x87, 0x87] if version == 5 else [0, 0])  # type: ignore[union-attr]
        if version == 4:
            client.send(b"\x62\x02\x00\x02")
            client.take()
    assert payloads(subscriber) == []
    assert world.counters.publish_refused == 6
    assert (
        sum("may not publish to" in line and "no rule allows it" in line for line in world.logged)
        == 6
    )
    client.publish("a", b"yes", qos=0)
    assert payloads(subscriber) == [b"yes"]
    assert not client.closed


def test_a_topic_alias_and_a_run_are_refused_too() -> None:
    world = world_of("allow publish a\nallow subscribe #")
    subscriber = world.connect("s").subscribed("#")
    client = world.connect("p")
    client.publish("b", properties={35: 1})
    client.publish("", properties={35: 1})
    for _ in range(3):
        client.send(*[Publish(topic, topic.encode(), 0) for topic in ("a", "a", "b", "b", "a")])
    assert payloads(subscriber) == [b"a"] * 9
    assert world.counters.publish_refused == 2 + 6


def test_permitted_topics_are_remembered_for_one_client_until_the_route_goes() -> None:
    world = world_of("client p\nallow publish #\nclient s\nallow subscribe #")
    client, other = world.connect("p"), world.connect("q")
    client.publish("a", b"1")
    routes = world.node.dispatcher.routes
    assert b"a" in routes
    assert client.owner.routes.keys() == {b"a"}
    assert client_memory(client.owner) == client_memory(other.owner) + ROUTE_SHOWN_MEMORY
    assert not other.owner.routes
    other.publish("a", b"2")
    for topic_filter in ("a", "#", "+/b"):
        subscriber = world.connect("s").subscribed(topic_filter)
        assert not client.owner.routes
        client.publish("a", b"3")
        client.publish("a", b"4")
        assert payloads(subscriber) == ([b"3", b"4"] if topic_filter != "+/b" else [])
    viewers = world.node.dispatcher.cache.viewers
    assert viewers[b"a"] == {client.owner}
    client.vanish()
    assert not viewers


def test_the_memory_of_permitted_topics_is_bounded() -> None:
    world = world_of("allow all #", limits=Limits(permitted_topics=10, route_cache=64))
    client = world.connect("p")
    for number in range(500):
        client.publish(f"t/{number % 100}")
        owner = client.owner
        assert len(owner.routes) <= 10
        assert world.node.dispatcher.cache.viewers.keys() == owner.routes.keys()


def test_rules_apply_to_subscriptions_and_retained_messages() -> None:
    world = world_of("deny subscribe a/secret\nallow subscribe a/#\nallow publish #\n")
    publisher = world.connect("p")
    for topic in ("a/x", "a/secret", "b/x"):
        publisher.publish(topic, topic.encode(), retain=True)
    client = world.connect("s")
    assert client.subscribe("a/secret", "#", "b/x", "$share/g/b/x", "$share/g/a/+") == [
        0x87,
        0x87,
        0x87,
        0x87,
        0,
    ]
    old = world.connect("o", 4)
    assert old.subscribe("b/x") == [0x80]
    assert client.subscribe("a/#") == [0]
    assert payloads(client) == [b"a/x"]
    for topic in ("a/y", "a/secret"):
        publisher.publish(topic, topic.encode())
        publisher.publish(topic, topic.encode(), qos=1)
    assert sorted(payloads(client)) == [b"a/y"] * 4  # as oneself, and for the group
    assert world.counters.subscriptions_refused == 5


def test_a_shared_subscription_goes_to_members_that_may_receive() -> None:
    world = world_of(
        "client p\nallow publish #\nclient one\nallow all #\nclient two\n"
        "deny receive t/0\nallow all #"
    )
    members = [world.connect(name) for name in ("one", "two")]
    for member in members:
        member.subscribe("$share/g/t/#", qos=1)
    publisher = world.connect("p")
    for _ in range(4):
        publisher.publish("t/0", qos=1)
        publisher.publish("t/1", qos=0)
    topics = [[packet.topic for packet in member.take_publishes()] for member in members]
    assert sorted(topics[0] + topics[1]) == ["t/0"] * 4 + ["t/1"] * 4
    assert "t/0" not in topics[1]
    assert "t/1" in topics[1]
    publisher.publish("t/0", b"kept", qos=1)
    members[0].disconnect()  # unanswered: another one gets it, if there is one that may
    assert payloads(members[1]) == []


@pytest.mark.parametrize("allowed", [True, False])
def test_a_will_needs_the_right_to_publish(allowed: bool) -> None:
    world = world_of("allow all #" if allowed else "allow subscribe #")
    subscriber = world.connect("s").subscribed("will")
    world.connect("p", will=Will("will", b"gone")).vanish()
    assert payloads(subscriber) == ([b"gone"] if allowed else [])
    assert world.counters.publish_refused == (not allowed)


def test_a_user_name_that_was_not_verified_counts_for_nothing() -> None:
    world = world_of("user anna\nallow publish #\nanonymous\nallow publish open")
    client = world.connect("c", username="anna")
    client.publish("a", qos=1)
    client.publish("open", qos=1)
    assert [a.reason for a in client.take()] == [0x87, 0]  # type: ignore[union-attr]


@pytest.mark.statement("MQTT-3.1.4-2")
@pytest.mark.parametrize("version", [3, 4, 5])
def test_connect_needs_a_known_user(version: int) -> None:
    world = world_of("user anna\nallow all #", users={"anna"}, anonymous=None)
    world.open(version).send(connect_packet("c", version))
    assert not world.effects  # no name: nothing to ask
    assert world.counters.connects_refused == 1
    client = world.open(version).sent(connect_packet("c", version, username="anna", password=b"x"))
    assert world.answer(Authenticate, False) == 1
    (answer,) = client.take()
    assert isinstance(answer, Connack)
    assert answer.code == (0x86 if version == 5 else 4)
    assert enter(world, "anna", version=version).connack.code == 0
    assert world.node.checking == 0


def test_passwords_that_wait_to_be_checked_are_bounded() -> None:
    world = world_of("", users={"anna"}, limits=Limits(password_checks=3))
    clients = [world.open() for _ in range(4)]
    for number, client in enumerate(clients):
        client.send(connect_packet(f"c{number}", 5, username="anna", password=b"x"))
    packet = clients[3].take()[0]
    assert isinstance(packet, Connack)
    assert packet.code == 0x89
    clients[0].vanish()
    world.answer(Authenticate, True)
    assert world.node.checking == 0
    assert [c.take()[0].code for c in clients[1:3]] == [0, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize("version", [4, 5])
def test_a_user_name_that_is_not_checked_is_anonymous(version: int) -> None:
    world = world_of("allow all #", anonymous=False)
    client = world.open(version).sent(connect_packet("c", version, username="anna", password=b"x"))
    (answer,) = client.take()
    assert isinstance(answer, Connack)
    assert answer.code == (0x87 if version == 5 else 5)
    assert client.closed or client.transport.closing
    change(world, "allow all #")
    client = world.open(version).sent(connect_packet("c", version, username="anna", password=b"x"))
    (answer, *_) = client.take()
    assert isinstance(answer, Connack)
    assert answer.code == 0


# -------------------------------------------------------------------- while they are connected


def test_other_rules_hold_from_the_next_packet_on_and_drop_no_client() -> None:
    world = world_of("allow all #")
    subscriber, publisher = world.connect("s").subscribed("a/#", "b/#"), world.connect("p")
    for topic in ("a/1", "b/1"):
        publisher.publish(topic, topic.encode())
    assert payloads(subscriber) == [b"a/1", b"b/1"]
    change(world, "allow all a/#")
    for topic in ("a/1", "b/1"):
        publisher.publish(topic, topic.encode())
    assert payloads(subscriber) == [b"a/1"]
    assert world.counters.publish_refused == 1
    change(world, "deny receive a/#\nallow all #")
    for topic in ("a/1", "b/1"):
        publisher.publish(topic, topic.encode())
    assert payloads(subscriber) == [b"b/1"]
    change(world, None)
    for topic in ("a/1", "b/1"):
        publisher.publish(topic, topic.encode())
    assert payloads(subscriber) == [b"a/1", b"b/1"]
    assert publisher.owner.routes is world.node.dispatcher.routes
    assert not subscriber.closed


def test_queued_messages_that_an_absent_client_may_not_get_any_more_are_dropped() -> None:
    world = world_of("allow all #")
    for name in ("s", "t"):
        client = world.connect(name, 4, clean=False).subscribed("a", "b", qos=1)
        client.subscribe("$share/g/b", qos=1)
        client.disconnect()
    publisher = world.connect("p")
    publisher.publish("a", b"a", qos=1)
    publisher.publish("b", b"b", qos=1)
    change(world, "client s\ndeny receive b\neveryone\nallow all #")
    assert payloads(world.connect("s", 4, clean=False)) == [b"a"]
    assert sorted(payloads(world.connect("t", 4, clean=False))) == [b"a", b"b", b"b"]
    assert world.session("s").queued_bytes == world.session("t").queued_bytes == 0


def test_a_user_removed_from_the_file_stays_connected_without_rights() -> None:
    world = world_of("allow all #", users={"anna", "bert"})
    anna, bert = enter(world, "anna").subscribed("#"), enter(world, "bert")
    change(world, "allow all #", users={"bert"})
    bert.publish("a", b"1")
    anna.publish("a", qos=1)
    (answer,) = anna.take()
    assert isinstance(answer, Puback)
    assert answer.reason == 0x87
    assert not anna.closed


def test_plugins_and_rules_must_both_agree() -> None:
    world = world_of("user anna\nallow publish #", users={"anna"}, hooks=Hooks(authenticate=True))
    anna = enter(world, "anna")
    anna.publish("a", qos=1)
    (answer,) = anna.take()
    assert isinstance(answer, Puback)
    assert answer.reason == 0
    world.open().send(connect_packet("c", 5))
    # Anonymous is all right here: the plugins are asked.
    assert world.answer(Authenticate, True) == 1


def test_a_thousand_rules_are_found_as_fast_as_one() -> None:
    """Counted, not timed: what a decision looks at does not grow with the rules."""
    text = "\n".join(
        f"user u{n}\nallow all plant/{n}/#\ndeny publish plant/+/{n}" for n in range(1000)
    )
    anna = may("user *\nallow all home/%u/#\n" + text + "\neveryone\nallow receive #", "u7")
    assert len(anna.groups) == 3
    assert anna.may_publish("plant/7/x")
    assert not anna.may_publish("plant/8/x")
    assert anna.may_receive("plant/8/x")
    assert anna.may_subscribe("plant/7/#")
    assert anna.rules is not None
    assert anna.rules.about("u7", "another", "l") is anna.groups
