"""The mixed load: what is published, what is read in bulk, what is checked, and when the generator
is the limit."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import re
import resource
import select
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.bench.load import LoadError, Tally, packets, scan
from mqttree.bench.load.channel import Channel, WebSocketChannel, answer, frame, unframed
from mqttree.bench.load.cpu import CpuMeter, cores, on_cores, share_out
from mqttree.bench.load.limit import limit_of_pace, limit_of_rate
from mqttree.bench.load.mix_peers import MixPublisher, MixSubscriber, PacedSubscriber
from mqttree.bench.load.mix_worker import shares
from mqttree.bench.load.mixture import CYCLE, MARK, MixSpec, Mixture, room
from mqttree.bench.load.sequence import Sequence
from tests.kit.effort import examples

SPEC = MixSpec(publishers=3, subscribers=2, topics=10)
PREFIX = b"mix/001/"


@pytest.fixture(scope="module")
def mixtures() -> dict[tuple[int, int], Mixture]:
    """The encoded cycles for (QoS, user properties of MQTT 5), made once: each takes a moment."""
    return {
        (qos, properties): Mixture(spec_of(qos, properties))
        for qos, properties in ((0, 0), (1, 0), (2, 0), (1, 2))
    }


def spec_of(qos: int, properties: int = 0) -> MixSpec:
    return dataclasses.replace(
        SPEC, qos=qos, user_properties=properties, version=5 if properties else 4
    )


def publishes(data: bytes) -> list[tuple[int, int, int]]:
    found, rest = scan.walk(data, 0)
    assert rest == len(data)
    return found


# ---------------------------------------------------------------- what is published


@pytest.mark.parametrize(("qos", "properties"), [(0, 0), (1, 0), (2, 0), (1, 2)])
def test_a_batch_is_the_single_messages(
    mixtures: dict[tuple[int, int], Mixture], qos: int, properties: int
) -> None:
    mixture = mixtures[qos, properties]
    batch = mixture.batch(2, 40, 30, 12345)
    assert batch == b"".join(mixture.one(2, number, 12345) for number in range(40, 70))
    for number, (first, start, stop) in zip(range(40, 70), publishes(batch), strict=True):
        message = scan.read(batch, start, stop, qos)
        assert first == 0x30 | qos << 1
        assert (message.publisher, message.turn, message.place) == (2, 0, number)
        assert message.stamp == 12345
        owner = re.fullmatch(rb"mix/(\d{3})/\d{5}~", message.topic)
        assert owner is not None
        assert int(owner[1]) == mixture.owner[number]
        assert len(message.identifier) == (2 if qos else 0)
        length = stop - start - 2 - len(message.topic) - (2 if qos else 0)
        assert 32 <= length - len(spec_of(qos, properties).properties) <= 256


def test_topics_sizes_and_identifiers_are_as_asked(
    mixtures: dict[tuple[int, int], Mixture],
) -> None:
    mixture = mixtures[1, 0]
    data = mixture.batch(0, 0, CYCLE, 1)
    messages = [scan.read(data, start, stop, 1) for _, start, stop in publishes(data)]
    assert len({message.topic for message in messages}) == SPEC.topics
    sizes = {stop - start - 18 for _, start, stop in publishes(data)}
    assert sizes == set(range(32, 257))
    # As many as may be in flight have different identifiers, also where the cycle begins again.
    identifiers = [message.identifier for message in messages]
    window = identifiers[-16_000:] + identifiers[:16_000]
    assert len(set(window)) == len(window)
    assert b"\0\0" not in identifiers


def test_a_batch_ends_with_the_cycle() -> None:
    assert room(0) == CYCLE
    assert room(CYCLE - 1) == 1
    assert room(CYCLE) == CYCLE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"publishers": 0}, "publishers must be"),
        ({"subscribers": 300}, "subscribers must be"),
        ({"topics": 1}, "topics must be 2 to"),
        ({"qos": 3}, "qos must be"),
        ({"window": 40_000}, "window must be"),
        ({"least": 20}, "least must be 32"),
        ({"most": 3000}, "most must be"),
        ({"user_properties": 1}, "user_properties must be 0 to 0"),
        ({"rate": 0.0}, "rate must be positive"),
        ({"seconds": 0.0}, "seconds must be positive"),
        ({"topic": "a/b"}, "topic must be"),
        ({"transport": "quic"}, "transport must be"),
    ],
)
def test_impossible_mixes_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(SPEC, **changes).check()


# ---------------------------------------------------------------- reading in bulk


def fed(scanner: scan.Scanner, data: bytes, cuts: list[int]) -> tuple[int, bytes]:
    """Feed the data in pieces; return the messages and the answers."""
    count, answers, before = 0, b"", 0
    for cut in [*sorted(cuts), len(data)]:
        more, answer = scanner.take(data[before:cut])
        count, answers, before = count + more, answers + answer, cut
    return count, answers


cut_lists = st.lists(st.integers(0, 4000), max_size=30)


@given(cut_lists)
@settings(max_examples=examples(60), deadline=None)
def test_arrivals_are_counted_however_they_are_cut(
    mixtures: dict[tuple[int, int], Mixture], cuts: list[int]
) -> None:
    data = mixtures[0, 0].batch(1, 1000, 50, 99)
    assert fed(scan.scanner(spec_of(0)), data, cuts) == (50, b"")


@given(cut_lists, st.sampled_from([0, 2]), st.integers(0, 65_000))
@settings(max_examples=examples(100), deadline=None)
def test_every_arrival_at_qos_1_is_acknowledged(
    mixtures: dict[tuple[int, int], Mixture], cuts: list[int], properties: int, start: int
) -> None:
    data = mixtures[1, properties].batch(1, start, 50, 99)
    identifiers = [scan.read(data, s, e, 1).identifier for _, s, e in publishes(data)]
    count, answers = fed(scan.scanner(spec_of(1, properties)), data, cuts)
    assert count == 50
    assert answers == b"".join(b"\x40\x02" + each for each in identifiers)


@pytest.mark.parametrize("identifier", [b"~\x1b", b"\x1b\x1b", b"xx", b"~~", b"b\x02", b"\x1bb"])
@pytest.mark.parametrize("qos", [1, 2])
def test_packet_identifiers_may_look_like_other_bytes(
    mixtures: dict[tuple[int, int], Mixture], identifier: bytes, qos: int
) -> None:
    whole = mixtures[qos, 0].one(0, 7, 1)
    at = whole.index(b"~") + 1
    whole = whole[:at] + identifier + whole[at + 2 :]
    head = b"\x40\x02" if qos == 1 else b"\x50\x02"
    for cut in range(2 * len(whole)):
        assert fed(scan.scanner(spec_of(qos)), whole * 2, [cut]) == (2, (head + identifier) * 2)


@given(cut_lists, st.permutations(range(20)))
@settings(max_examples=examples(100), deadline=None)
def test_arrivals_and_releases_at_qos_2_are_answered(
    mixtures: dict[tuple[int, int], Mixture], cuts: list[int], order: list[int]
) -> None:
    arrivals = [mixtures[2, 0].one(0, number, 5) for number in range(10)]
    releases = [b"\x62\x02" + bytes((0x62, 0x02 + number)) for number in range(10)]
    parts = [(arrivals + releases)[number] for number in order]
    count, answers = fed(scan.scanner(spec_of(2)), b"".join(parts), cuts)
    assert count == 10
    found = [answers[at : at + 4] for at in range(0, len(answers), 4)]
    assert sorted(found) == sorted(
        [b"\x50\x02" + (number + 1).to_bytes(2, "big") for number in range(10)]
        + [b"\x70\x02" + each[2:] for each in releases]
    )


@given(st.lists(st.integers(0, 40), max_size=8))
@settings(max_examples=examples(60), deadline=None)
def test_acknowledgements_are_counted_however_they_are_cut(cuts: list[int]) -> None:
    data = (
        b"\x40\x02\0\1\x40\x02\0\2"
        b"\x50\x02\0\3\x50\x03\0\4\x10\x50\x02\0\5"
        b"\x70\x02\0\6\x70\x03\0\7\0\x40\x04\0\x08\0\0"
    )
    done, released, before, reader = 0, b"", 0, scan.Acknowledged()
    for cut in [*sorted(cuts), len(data)]:
        more, answer = reader.take(data[before:cut])
        done, released, before = done + more, released + answer, max(before, cut)
    assert done == 5
    assert released == b"\x62\x02\0\3\x62\x02\0\4\x62\x02\0\5"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x40\x03\0\1\x97", "refused with reason 0x97"),
        (b"\xe0\x01\x8e", "packet type 14"),
        (b"\x20\x02\0\0", "packet type 2"),
    ],
)
def test_a_packet_that_no_publisher_should_get_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        scan.Acknowledged().take(data)


def test_the_first_whole_packet_of_a_chunk_is_found(
    mixtures: dict[tuple[int, int], Mixture],
) -> None:
    data = mixtures[1, 0].batch(0, 0, 5, 1)
    starts = [0] + [stop for _, _, stop in publishes(data)]
    before = 2 + len(PREFIX) + 6 + 2
    for cut in range(len(data)):
        expected = next((start - cut for start in starts[:-1] if start >= cut), -1)
        assert scan.first_packet(data[cut:], before) == expected
    assert scan.first_packet(MARK * 40, before) == -1


def test_acknowledgements_with_the_bytes_of_a_mark_are_no_first_packet() -> None:
    identifiers = [0x1630, 0x1631, 0x1632, 0x1600 | MARK[0], *range(0x1640, 0x1680)]
    data = b"".join(b"\x62\x02" + identifier.to_bytes(2, "big") for identifier in identifiers)
    # 0x30 at the end of the first one seems to begin a PUBLISH of 0x62 bytes, with a mark inside.
    assert scan.first_packet(data, 10) == -1


def test_a_changed_message_is_noticed(mixtures: dict[tuple[int, int], Mixture]) -> None:
    data = mixtures[0, 0].one(0, 0, 1)
    ((_, start, stop),) = publishes(data)
    for broken in (data[:-1] + b"y", data.replace(MARK, b"?"), data[:-1] + MARK):
        with pytest.raises(ValueError, match="not as it was published"):
            scan.read(broken, start, stop, 0)


# ---------------------------------------------------------------- what is checked


def own(mixture: Mixture, publisher: int, count: int) -> list[scan.Message]:
    """The first messages of a publisher that go to subscriber 1."""
    number, found = mixture.start(publisher), []
    while len(found) < count:
        if mixture.owner[number % CYCLE] == 1:
            data = mixture.one(publisher, number, 7)
            ((_, start, stop),) = publishes(data)
            found.append(scan.read(data, start, stop, 0))
        number += 1
    return found


@pytest.mark.parametrize(
    ("order", "tally"),
    [
        ([0, 1, 2, 3], Tally(4)),
        ([0, 2, 3], Tally(3, lost=1)),
        ([3], Tally(1, lost=3)),
        ([0, 1, 1, 2], Tally(4, duplicated=1)),
        ([1, 0, 2], Tally(3, out_of_order=1)),
        ([1, 0, 0], Tally(3, out_of_order=1, duplicated=1)),
    ],
)
def test_every_loss_and_repetition_is_counted(
    mixtures: dict[tuple[int, int], Mixture], order: list[int], tally: Tally
) -> None:
    mixture = mixtures[0, 0]
    checker = Sequence(mixture, 1, SPEC.publishers, PREFIX)
    messages = {publisher: own(mixture, publisher, 4) for publisher in (0, 2)}
    for number in order:
        for each in messages.values():
            checker.see(each[number], gap=False)
    assert checker.tally == Tally(
        2 * tally.received, 2 * tally.lost, 2 * tally.duplicated, 2 * tally.out_of_order
    )


def test_messages_that_were_not_checked_are_not_missing(
    mixtures: dict[tuple[int, int], Mixture],
) -> None:
    mixture = mixtures[0, 0]
    checker = Sequence(mixture, 1, SPEC.publishers, PREFIX)
    messages = own(mixture, 0, 4)
    checker.see(messages[2], gap=True)
    checker.see(messages[3], gap=False)
    checker.see(messages[0], gap=True)
    assert checker.tally == Tally(3, duplicated=1)


def test_a_message_for_another_subscriber_is_noticed(
    mixtures: dict[tuple[int, int], Mixture],
) -> None:
    mixture = mixtures[0, 0]
    checker = Sequence(mixture, 0, SPEC.publishers, b"mix/000/")
    with pytest.raises(ValueError, match="another subscriber"):
        checker.see(own(mixture, 0, 1)[0], gap=False)


def test_a_publishers_own_messages_go_on_in_the_next_cycle(
    mixtures: dict[tuple[int, int], Mixture],
) -> None:
    mixture = mixtures[0, 0]
    number = mixture.first_own(b"\1", 0)
    assert mixture.start(0) <= number
    for _ in range(CYCLE):
        following = mixture.next_own(b"\1", number)
        assert following > number and mixture.owner[following % CYCLE] == 1
        if following >= CYCLE:
            break
        number = following
    assert following >= CYCLE
    with pytest.raises(LoadError, match="no topic"):
        mixture.next_own(b"\7", 0)


# ---------------------------------------------------------------- clients


class Line:
    """A channel, and the broker's end of it."""

    def __init__(self, kind: type[Channel] = Channel) -> None:
        ours, self.broker = socket.socketpair()
        self.epoll = select.epoll()
        self.channel = kind(ours, self.epoll)

    def close(self) -> None:
        self.channel.close()
        self.broker.close()
        self.epoll.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kind", [MixSubscriber, PacedSubscriber])
def test_a_subscriber_counts_answers_and_checks(
    mixtures: dict[tuple[int, int], Mixture], qos: int, kind: type[MixSubscriber]
) -> None:
    line, mixture = Line(), mixtures[qos, 0]
    number, sent = mixture.first_own(b"\1", 0), b""
    for _ in range(40):
        sent += mixture.one(0, number, 1)
        number = mixture.next_own(b"\1", number)
    try:
        subscriber = kind(line.channel, spec_of(qos), mixture, 1)
        line.broker.sendall(sent + (b"\x62\x02\0\1" if qos == 2 else b""))
        assert subscriber.ready(select.EPOLLIN) == subscriber.received == 40
        assert subscriber.seen.tally == Tally(40)
        if qos:
            assert len(line.broker.recv(1000)) == 4 * (40 + (qos == 2))
    finally:
        line.close()


def test_a_publisher_counts_sent_and_acknowledged_messages(
    mixtures: dict[tuple[int, int], Mixture],
) -> None:
    line = Line()
    try:
        publisher = MixPublisher(line.channel, mixtures[2, 0], 1)
        publisher.publish(3)
        assert (publisher.sent, publisher.in_flight) == (3, 3)
        identifiers = [
            scan.read(data, start, stop, 2).identifier
            for data in [line.broker.recv(10_000)]
            for _, start, stop in publishes(data)
        ]
        line.broker.sendall(b"".join(b"\x50\x02" + each for each in identifiers))
        publisher.ready(select.EPOLLIN)
        assert line.broker.recv(100) == b"".join(b"\x62\x02" + each for each in identifiers)
        line.broker.sendall(b"".join(b"\x70\x02" + each for each in identifiers[:2]))
        publisher.ready(select.EPOLLIN)
        assert (publisher.sent, publisher.in_flight) == (3, 1)
    finally:
        line.close()


def test_bytes_that_do_not_fit_wait() -> None:
    line = Line()
    try:
        whole = bytes(range(256)) * 8192
        line.channel.send(whole)
        line.channel.send(b"end")
        assert line.channel.blocked
        got = b""
        while len(got) < len(whole) + 3:
            got += line.broker.recv(1 << 20)
            line.channel.flush()
        assert got == whole + b"end"
        assert not line.channel.blocked
    finally:
        line.close()


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_websocket_frames_are_masked_and_read(size: int) -> None:
    data = os.urandom(size)
    sent = frame(data)
    assert sent.endswith(data) and sent[1] & 0x80
    # A server's frame has no mask.
    head = len(sent) - size - 4
    served = sent[:1] + bytes((sent[1] & 0x7F,)) + sent[2:head] + data
    assert unframed(served * 2) == (data * 2, b"")
    assert unframed(served[:-1] if size else served[:1]) == (b"", served[:-1] if size else b"\x82")


def test_a_websocket_stream_may_be_cut_anywhere() -> None:
    line = Line(WebSocketChannel)
    try:
        got = b""
        for byte in b"\x82\x03abc\x89\x01p\x82\x02de":
            line.broker.send(bytes((byte,)))
            got += line.channel.receive()
        assert got == b"abcde"
        with pytest.raises(LoadError, match="closed a WebSocket"):
            unframed(b"\x88\x00")
    finally:
        line.close()


# ---------------------------------------------------------------- processes and cores


@pytest.mark.parametrize("rate", [None, 100.0])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_client_is_driven_once(rate: float | None, processes: int) -> None:
    spec = MixSpec(publishers=10, subscribers=7, processes=processes, rate=rate)
    parts = shares(spec)
    assert len(parts) == processes
    assert sorted(index for each, _ in parts for index in each) == list(range(10))
    assert sorted(index for _, each in parts for index in each) == list(range(7))
    if rate and processes > 1:
        assert not any(publishers and subscribers for publishers, subscribers in parts)


def test_cores_are_shared_out() -> None:
    assert share_out([0, 1, 2, 3], 1, True) == ([0], [1, 2, 3])
    assert share_out([4, 5, 7], 2, True) == ([4, 5], [7])
    assert share_out([0, 1], 2, True) == share_out([0, 1, 2], 1, False) == ([], [])


def test_cores_are_given_back() -> None:
    before = cores()
    with on_cores(before[:1]):
        assert cores() == before[:1]
    assert cores() == before
    with on_cores([]):
        assert cores() == before


def test_the_cpu_time_of_a_process_is_read() -> None:
    meter = CpuMeter(os.getpid())
    before = meter.read()
    sum(range(300_000))
    assert meter.read() > before > 0.0
    assert meter.waited() >= 0.0
    with pytest.raises(LoadError, match="gone"):
        CpuMeter(1 << 22)


@pytest.mark.parametrize(
    ("generator", "available", "brokers", "said"),
    [
        ([0.5, 0.6], 3, [0.95], ""),
        ([0.95, 0.2], 3, [1.0], "a process of the generator used 95%"),
        ([0.85, 0.85], 1, [1.0], "170% of its 1 cores"),
        ([0.1], 3, [0.6], "the broker wanted 60%"),
        ([0.1], 3, [0.6, 0.97], ""),
    ],
)
def test_the_limit_of_a_rate_is_named(
    generator: list[float], available: int, brokers: list[float], said: str
) -> None:
    line = limit_of_rate(generator, available, brokers)
    assert said in line and bool(said) == bool(line)


@pytest.mark.parametrize(
    ("listeners", "rate", "late", "said"),
    [
        ([0.5], 1000.0, 0.05, ""),
        ([0.95], 1000.0, 0.05, "a process of the generator"),
        ([0.5], 900.0, 0.05, "900 of 1,000 messages"),
        ([0.5], 1000.0, 0.6, "0.60 ms late itself"),
    ],
)
def test_the_limit_of_a_pace_is_named(
    listeners: list[float], rate: float, late: float, said: str
) -> None:
    line = limit_of_pace(listeners, rate, 1000.0, late, 1.0)
    assert said in line and bool(said) == bool(line)


def test_a_generator_with_more_than_a_thousand_files_hears_answers() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    ours, theirs = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1024))
    try:
        with select.epoll() as epoll:
            theirs.sendall(b"\x20\x02\x00\x00")
            assert answer(Channel(high, epoll), packets.CONNACK) == b"\x00\x00"
    finally:
        for each in (ours, theirs, high):
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
