"""The states of a link as a table: every state with every input, and links that follow it."""

from __future__ import annotations

from itertools import product

import pytest

from mqttree.broker.cluster.delivery.resync import DIRECTORY_WAIT_S
from mqttree.broker.cluster.link.control_records import PING, SEEN
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.link.link_states import (
    BEHIND,
    FORWARDING,
    HANDSHAKE,
    TRANSITIONS,
    UP,
    Action,
    Input,
    State,
    transition,
)
from mqttree.broker.cluster.link.version_vector import encode_vector
from mqttree.broker.core.effects import Dial
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import ProtocolViolation
from mqttree.broker.wire.packets import Auth, Connack, Disconnect, Subscribe, SubscriptionRequest
from mqttree.broker.wire.properties import Property
from mqttree.stp.bpdu import Role
from tests.kit.link_harness import Neighbour, bridge, lone, message, ping, unharmed
from tests.kit.node_harness import FakeTransport, World
from tests.text.test_architecture import read

OF_THE_HANDSHAKE = {Input.CONNECT, Input.AUTH, Input.UNPROVEN, Input.AGREED}
OF_THE_STREAM = {
    Input.FORWARDS,
    Input.REPLAYED,
    Input.TAKEN_OUT,
    Input.OVERFLOWED,
    Input.DRAINED,
}
MESSAGES = {Input.PUBLISH, Input.PINGREQ, Input.PINGRESP}


@pytest.mark.parametrize(("state", "happened"), list(product(State, Input)))
def test_each_pair_has_one_outcome_or_closes_the_link(state: State, happened: Input) -> None:
    if (state, happened) not in TRANSITIONS:
        with pytest.raises(ProtocolViolation, match=f"{happened.value} has no place on a link"):
            transition(state, happened)
        return
    action, following = transition(state, happened)
    if state is State.CLOSED:
        assert (action, following) == (Action.IGNORE, State.CLOSED)
    elif happened is Input.LOST:
        assert (action, following) == (Action.END, State.CLOSED)
    else:
        assert following is not State.CLOSED
        # Nothing leads back into the handshake, and only agreement out of it.
        assert (state in UP) <= (following in UP)
        assert (state in HANDSHAKE and following in UP) is (happened is Input.AGREED)
    if state in HANDSHAKE:
        assert happened not in MESSAGES | OF_THE_STREAM | {Input.OTHER}
    if state in UP:
        assert happened not in OF_THE_HANDSHAKE | {Input.OTHER}
        assert happened in OF_THE_STREAM | {Input.BLOCKS, Input.LOST} or following is state


# ---------------------------------------------------------------- a link follows it


def state_of(link: Link) -> State:
    """The state of a link, whose attributes say the same."""
    assert link.up is (link.state in UP)
    assert link.forwarding is (link.state in FORWARDING)
    assert link.live is (link.state is State.LIVE)
    assert link.behind is (link.state in BEHIND)
    return link.state


SUBSCRIBE = encode_packet(Subscribe(1, [SubscriptionRequest("t", 0)]), 5)
PROOF = encode_packet(Auth(0x18, {Property.AUTHENTICATION_METHOD: "m"}), 5)
PACKETS: dict[Input, bytes] = {
    Input.CONNECT: encode_packet(bridge(7), 5),
    Input.AUTH: PROOF,
    Input.CONNACK: encode_packet(Connack(False, 0), 5),
    Input.REFUSAL: encode_packet(Connack(False, 0x87), 5),
    Input.PUBLISH: message(),
    Input.PINGREQ: ping((PING, b"\0\0\0\1")),
    Input.PINGRESP: b"\xd0\x04\0\0\0\1",
    Input.DISCONNECT: encode_packet(Disconnect(0), 5),
    Input.OTHER: SUBSCRIBE,
}


def linked(world: World, state: State) -> tuple[Neighbour, Link]:
    """A neighbour, and its link in a state."""
    near = Neighbour(world, 7, link=False)
    near.send(encode_packet(bridge(7), 5))
    link = next(iter(world.node.cluster.link_registry.handshakes))
    assert link.state is State.AGREEING
    if state is State.AGREEING:
        return near, link
    near.send(PACKETS[Input.CONNACK])
    assert link.state is State.BLOCKED
    if state in FORWARDING:
        near.bpdu(world.node.cluster.tree.root, Role.ROOT, Role.DESIGNATED, path_cost_us=50)
        assert link.state is State.FORWARDING
    if state is State.LIVE:
        near.send(ping((SEEN, b"")))
        near.send(ping((SEEN, encode_vector(world.node.cluster.forwarder.vector))))
        world.advance(DIRECTORY_WAIT_S)
    if state in BEHIND:
        link.overflowed()
    return near, link


@pytest.mark.parametrize("state", [State.AGREEING, *UP])
@pytest.mark.parametrize("happened", list(PACKETS))
def test_a_record_out_of_place_closes_the_link(state: State, happened: Input) -> None:
    world = lone()
    near, link = linked(world, state)
    assert state_of(link) is state
    world.lines.clear()
    garbage = world.counters.link_garbage
    near.send(PACKETS[happened])
    if (state, happened) in TRANSITIONS:
        assert world.counters.link_garbage == garbage
        ends = happened in (Input.REFUSAL, Input.DISCONNECT)
        assert (state_of(link) is State.CLOSED) is ends
    else:
        assert state_of(link) is State.CLOSED
        assert world.counters.link_garbage == garbage + 1
        (line,) = [text for text in world.logged if text.endswith("; closed")]
        why = f"{happened.value} has no place on a link that is {state.value}"
        assert line == f"link to b7 (10.0.0.7:1883): {why}; closed"
    unharmed(world)


@pytest.mark.parametrize("happened", list(PACKETS))
def test_a_called_broker_may_send_only_what_the_table_has(happened: Input) -> None:
    world = lone(seeds=(("10.0.0.9", 1883),))
    link = dialled(world)
    assert state_of(link) is State.DIALLED
    link.packets(PACKETS[happened], world.now)
    world.settle()
    if happened is Input.CONNECT:
        assert state_of(link) is State.BLOCKED
    else:
        assert state_of(link) is State.CLOSED
        refused = happened in (Input.REFUSAL, Input.DISCONNECT)
        assert world.counters.link_garbage == (not refused)


def dialled(world: World) -> Link:
    """A link that the node has dialled."""
    transport = FakeTransport()
    conn = world.node.connection_registry.made(
        "10.0.0.9:1883", "link", transport, world.now, Dial("10.0.0.9", 1883)
    )
    transport.conn = conn
    return next(link for link in world.node.cluster.link_registry.handshakes if link.conn is conn)


def test_an_input_without_a_place_that_is_no_packet_closes_the_link() -> None:
    world = lone()
    _, link = linked(world, State.BLOCKED)
    assert link.move(Input.DRAINED) is Action.IGNORE
    assert state_of(link) is State.CLOSED
    assert world.counters.link_garbage == 1
    assert "an empty queue has no place on a link that is blocked" in world.logged[-1]
    unharmed(world)


def test_a_link_goes_through_its_states() -> None:
    world = lone()
    near, link = linked(world, State.LIVE)
    for happened, follows in (
        (link.overflowed, State.FORWARDING_BEHIND),
        (link.overflowed, State.FORWARDING_BEHIND),
        (lambda: link.drained(world.now), State.FORWARDING),
        (lambda: link.drained(world.now), State.FORWARDING),
    ):
        happened()
        assert state_of(link) is follows
    near.send(ping((SEEN, encode_vector(world.node.cluster.forwarder.vector))))
    world.advance(DIRECTORY_WAIT_S)
    assert state_of(link) is State.LIVE
    near.bpdu(world.node.cluster.tree.root, Role.BLOCKED, Role.DESIGNATED, path_cost_us=50)
    assert state_of(link) is State.BLOCKED
    link.overflowed()
    assert state_of(link) is State.BLOCKED_BEHIND
    link.drained(world.now)
    assert state_of(link) is State.BLOCKED
    world.node.connection_lost(near.conn, "broke", world.now)
    assert state_of(link) is State.CLOSED


# ---------------------------------------------------------------- the page


def rows() -> list[str]:
    """The table as the page has it: what each input does in which states."""
    found: dict[tuple[Input, Action, State | None], list[str]] = {}
    for given_input, state in product(Input, State):
        if state is State.CLOSED or (state, given_input) not in TRANSITIONS:
            continue
        action, following = TRANSITIONS[state, given_input]
        same = None if following is state else following
        found.setdefault((given_input, action, same), []).append(state.value)
    return [
        f"| {given_input.value} | {named(states)} | {action.value} "
        f"| {'the same' if following is None else following.value} |"
        for (given_input, action, following), states in found.items()
    ]


def named(states: list[str]) -> str:
    up, handshake = [state.value for state in UP], [state.value for state in HANDSHAKE]
    if states == handshake + up:
        return "each"
    if states[-len(up) :] == up:
        return ", ".join([*states[: -len(up)], "each that is up"])
    return ", ".join(states)


def test_the_page_has_the_table_of_link_states() -> None:
    page = read("docs/reference/link-protocol.md")
    assert "\n".join(rows()) in page, "python -m tests.unit.cluster.test_link_states prints it"
    for state in State:
        assert f"| {state.value} | " in page


if __name__ == "__main__":
    print("\n".join(rows()))
