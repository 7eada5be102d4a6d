"""MQTT 5 as a client speaks it at a foreign broker, and how that broker's address is written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.config.broker_url import BrokerUrl, read_url
from mqttree.broker.io.client_protocol import (
    MAX_WAITING,
    RECEIVE_MAXIMUM,
    ClientError,
    ClientOptions,
    ClientProtocol,
    Received,
)
from mqttree.broker.wire import (
    V5,
    Auth,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    encode_packet,
)


class Pair:
    """A client, and what the broker at the other end says and hears."""

    def __init__(self, connack: dict[int, Any] | None = None, **options: Any) -> None:
        self.client = ClientProtocol(ClientOptions("c", **options))
        self.decoder = Decoder(V5)
        self.first = self.heard()
        self.say(Connack(False, 0, connack))

    def say(self, *packets: Packet) -> list[Received]:
        return self.client.receive(b"".join(encode_packet(each, V5) for each in packets))

    def heard(self) -> list[Packet]:
        out = bytes(self.client.out)
        self.client.out.clear()
        return self.decoder.receive(out)


def test_it_connects_and_subscribes_without_its_own_messages() -> None:
    pair = Pair(user="u", password=b"p", filters=("a/#", "b"), qos=1)
    assert pair.first == [
        Connect("MQTT", V5, True, 30, "c", "u", b"p", properties={Property.RECEIVE_MAXIMUM: 1000})
    ]
    (subscribe,) = pair.heard()
    assert isinstance(subscribe, Subscribe)
    said = [(each.filter, each.qos, each.no_local) for each in subscribe.filters]
    assert said == [("a/#", 1, True), ("b", 1, True)]
    # Retained messages are old ones.
    assert {each.retain_handling for each in subscribe.filters} == {2}
    assert not pair.client.connected
    pair.say(Suback(subscribe.packet_id, [1, 0x87]))
    assert pair.client.connected and pair.client.refused_filters == ["b"]


def test_without_filters_it_is_connected_at_once() -> None:
    assert Pair().client.connected


@pytest.mark.parametrize(
    ("qos", "answers"),
    [(0, []), (1, [Puback(7)]), (2, [Pubrec(7)])],
)
def test_a_message_is_taken_once_and_acknowledged(qos: int, answers: list[Packet]) -> None:
    pair = Pair()
    message = Publish("t", b"x", qos, packet_id=7 if qos else None)
    assert pair.say(message) == [Received("t", b"x")]
    assert pair.heard() == answers
    if qos == 2:
        assert pair.say(Publish("t", b"x", 2, dup=True, packet_id=7)) == []
        assert pair.heard() == answers
        pair.say(Pubrel(7))
        assert pair.heard() == [Pubcomp(7)]
        assert pair.say(message) == [Received("t", b"x")]


def test_it_publishes_at_qos_2() -> None:
    pair = Pair()
    assert pair.client.publish("t", b"x")
    assert pair.heard() == [Publish("t", b"x", 2, packet_id=1)]
    assert pair.client.unfinished == 1
    pair.say(Pubrec(1))
    assert pair.heard() == [Pubrel(1)]
    pair.say(Pubcomp(1))
    assert pair.client.unfinished == 0 and pair.client.dropped == 0
    # What it did not send it does not know.
    pair.say(Pubrec(9))
    assert pair.heard() == [Pubrel(9, 0x92)]


def test_a_refused_message_is_counted() -> None:
    for qos, answer in ((1, Puback(1, 0x87)), (2, Pubrec(1, 0x97))):
        pair = Pair(qos=qos)
        pair.client.publish("t", b"x")
        pair.heard()
        pair.say(answer)
        assert pair.client.dropped == 1 and pair.client.unfinished == 0
        assert pair.heard() == []


def test_it_sends_no_more_at_once_than_the_broker_takes() -> None:
    pair = Pair({Property.RECEIVE_MAXIMUM: 2})
    for number in range(MAX_WAITING + 3):
        pair.client.publish("t", b"%d" % number)
    assert len(pair.heard()) == 2
    assert pair.client.dropped == 1 and pair.client.unfinished == MAX_WAITING + 2
    pair.say(Pubrec(1))
    assert pair.heard() == [Pubrel(1)]
    pair.say(Pubcomp(1))
    assert pair.heard() == [Publish("t", b"2", 2, packet_id=3)]


def test_it_obeys_the_limits_of_the_broker() -> None:
    limits = {
        Property.MAXIMUM_QOS: 1,
        Property.MAXIMUM_PACKET_SIZE: 50,
        Property.SERVER_KEEP_ALIVE: 7,
    }
    pair = Pair(limits, filters=("a",))
    (subscribe,) = pair.heard()
    assert isinstance(subscribe, Subscribe) and subscribe.filters[0].qos == 1
    pair.say(Suback(subscribe.packet_id, [1]))
    assert pair.client.publish("t", bytes(39)) and not pair.client.publish("t", bytes(40))
    (sent,) = pair.heard()
    assert isinstance(sent, Publish) and sent.qos == 1 and len(encode_packet(sent, V5)) <= 50
    assert pair.client.dropped == 1 and pair.client.keep_alive == 7


def test_nothing_is_published_before_the_subscriptions_stand() -> None:
    client = ClientProtocol(ClientOptions("c", filters=("a",)))
    assert not client.publish("t", b"x") and client.dropped == 1


def test_a_broker_that_does_not_answer_is_lost() -> None:
    pair = Pair()
    pair.client.ping()
    assert pair.heard() == [Pingreq()]
    pair.say(Pingresp())
    pair.client.ping()
    with pytest.raises(ClientError, match="does not answer"):
        pair.client.ping()


@pytest.mark.parametrize(
    ("packet", "said"),
    [
        (Disconnect(0x8E), "it disconnects: session taken over"),
        (Connack(False, 0), "second CONNACK"),
        (Publish("", b"", properties={Property.TOPIC_ALIAS: 1}), "topic alias"),
        (Suback(1, [0]), "SUBACK for other filters"),
        (Subscribe(1, []), "not MQTT 5"),
        (Pingreq(), "it sends Pingreq"),
        (Auth(0x18, {Property.AUTHENTICATION_METHOD: "m"}), "it sends Auth"),
    ],
)
def test_what_a_broker_may_not_send_ends_the_connection(packet: Packet, said: str) -> None:
    with pytest.raises(ClientError, match=said):
        Pair().say(packet)


def test_a_refusal_is_said_in_words() -> None:
    client = ClientProtocol(ClientOptions("c"))
    with pytest.raises(ClientError, match="it refuses: bad user name or password"):
        client.receive(encode_packet(Connack(False, 0x86), V5))
    client = ClientProtocol(ClientOptions("c"))
    with pytest.raises(ClientError, match="before CONNACK"):
        client.receive(encode_packet(Pingresp(), V5))


def test_a_broker_that_ignores_the_receive_maximum_is_lost() -> None:
    pair = Pair()
    for number in range(1, RECEIVE_MAXIMUM + 1):
        pair.say(Publish("t", b"", 2, packet_id=number))
    with pytest.raises(ClientError, match="more than 1000"):
        pair.say(Publish("t", b"", 2, packet_id=RECEIVE_MAXIMUM + 1))


@given(st.binary(max_size=60), st.booleans())
def test_bytes_bring_one_error_or_none(data: bytes, connected: bool) -> None:
    client = Pair().client if connected else ClientProtocol(ClientOptions("c", filters=("a",)))
    try:
        client.receive(data)
    except ClientError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("mqtt://h", BrokerUrl("h", 1883, False, None)),
        ("mqtts://u@h", BrokerUrl("h", 8883, True, "u")),
        ("mqtt://u%40x@10.0.0.1:99/", BrokerUrl("10.0.0.1", 99, False, "u@x")),
        ("mqtt://[::1]:1884", BrokerUrl("::1", 1884, False, None)),
    ],
)
def test_an_address_is_read(text: str, url: BrokerUrl) -> None:
    assert read_url(text) == url
    assert read_url(str(url)) == url._replace(user=None)


@pytest.mark.parametrize(
    "text",
    ["", "h:1883", "http://h", "mqtt://", "mqtt://h:0", "mqtt://h:x", "mqtt://h:99999",
     "mqtt://h/path", "mqtt://h?x", "mqtt://h#x", "mqtt://u:p@h", "mqtt://[h", "mqtt://:1"],
)  # fmt: skip
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|password"):
        read_url(text)


@given(st.text(max_size=30) | st.text(max_size=20).map("mqtt://".__add__))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        url = read_url(text)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert url.host and 0 < url.port < 65536
