from __future__ import annotations

import hmac
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.address import (
    Address,
    is_loopback,
    is_wildcard,
    normal_host,
    parse_address,
    sort_key,
)
from mqttree.discovery.announcement import (
    MAX_DATAGRAM,
    Announcement,
    AnnouncementError,
    bind,
    decode,
    unsigned,
)
from mqttree.discovery.seeds import parse_seed, parse_seeds, split_seeds
from tests.kit.effort import examples

ID = bytes(range(1, 9))
PLAIN = Announcement("mqttree", ID, 3, 7, 1_700_000_000.125, Address("", 1883), "one", new=True)
# fmt: off
GOLDEN = bytes.fromhex(
    "4d515472" "01" "02" "0102030405060708" "00000003" "00000007" "0000018bcfe5687d" "075b"
    "07" "6d717474726565" "00" "03" "6f6e65"
)
# fmt: on

texts = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=16)
hosts = st.sampled_from(["", "10.0.0.1", "192.168.254.253", "fd00::2", "broker-1.example.org"])
announcements = st.builds(
    Announcement,
    cluster=texts,
    id=st.binary(min_size=8, max_size=8),
    boot=st.integers(0, 2**32 - 1),
    counter=st.integers(0, 2**32 - 1),
    wall=st.integers(0, 2**42).map(lambda ms: ms / 1000),
    address=st.builds(Address, hosts, st.integers(1, 65535)),
    name=texts,
    leave=st.booleans(),
    new=st.booleans(),
)
secrets = st.none() | st.binary(min_size=1, max_size=64)


def test_golden_bytes() -> None:
    assert PLAIN.encode(None) == GOLDEN
    signed = GOLDEN[:5] + b"\x06" + GOLDEN[6:]
    mapped = bytes(10) + b"\xff\xff\x0a\0\0\x09"
    for host, source in (
        ("", bytes(16)),
        ("10.0.0.9", mapped),
        ("fd00::2", b"\xfd" + bytes(14) + b"\2"),
    ):
        body = signed + source
        assert PLAIN.encode(b"s3cret", host) == body + hmac.digest(b"s3cret", body, "sha256")
    assert decode(GOLDEN, None) == PLAIN


@given(announcements, secrets)
@settings(deadline=None, max_examples=examples(150))
def test_an_encoded_announcement_decodes_to_the_same(
    announcement: Announcement, secret: bytes | None
) -> None:
    data = announcement.encode(secret)
    assert len(data) <= MAX_DATAGRAM
    assert decode(data, secret, announcement.cluster) == announcement


@given(announcements, secrets, st.binary(min_size=1, max_size=40))
@settings(deadline=None, max_examples=examples(100))
def test_fields_of_later_versions_are_skipped(
    announcement: Announcement, secret: bytes | None, more: bytes
) -> None:
    data = announcement.encode(secret)
    if secret is None:
        assert decode(data + more, None) == announcement
    else:
        body = data[:-48] + more + data[-48:-32]
        assert decode(body + hmac.digest(secret, body, "sha256"), secret) == announcement
        with pytest.raises(AnnouncementError):
            decode(data + more, secret)


@given(
    st.binary(max_size=600) | st.binary(max_size=500).map(lambda tail: GOLDEN[:6] + tail), secrets
)
@settings(deadline=None, max_examples=examples(200))
def test_no_bytes_do_more_than_raise_announcement_error(data: bytes, secret: bytes | None) -> None:
    try:
        decode(data, secret)
    except AnnouncementError as error:
        assert error.kind in {"garbage", "version", "cluster", "secret"}
        assert "\n" not in str(error)


@given(announcements, st.data())
@settings(deadline=None, max_examples=examples(100))
def test_any_changed_byte_breaks_the_signature(
    announcement: Announcement, data: st.DataObject
) -> None:
    raw = bytearray(announcement.encode(b"secret"))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(AnnouncementError):
        decode(bytes(raw), b"secret")


HOSTS = ("10.0.0.9", "10.0.0.10", "127.0.0.1", "fd00::2", "::ffff:10.0.0.11", "::1")


def test_an_announcement_sent_again_from_another_address_is_refused() -> None:
    template = PLAIN.encode(b"secret")
    for host in HOSTS:
        data = bind(template, b"secret", host)
        assert data == PLAIN.encode(b"secret", host)
        assert unsigned(data, b"secret") == unsigned(template, b"secret")
        for other in (*HOSTS, "", "nonsense"):
            if other == host:
                assert decode(data, b"secret", "mqttree", other) == PLAIN
                continue
            with pytest.raises(AnnouncementError, match="for another address") as caught:
                decode(data, b"secret", "mqttree", other)
            assert caught.value.kind == "source"
    # The template itself must not be sent.
    with pytest.raises(AnnouncementError, match="for another address"):
        decode(template, b"secret", None, "10.0.0.9")
    # Without a secret there is nothing to rely on.
    assert decode(bind(GOLDEN, None, "10.0.0.9"), None, None, "10.0.0.10") == PLAIN


def test_every_cut_is_refused() -> None:
    for secret in (None, b"x"):
        data = PLAIN.encode(secret)
        for length in range(len(data)):
            with pytest.raises(AnnouncementError):
                decode(data[:length], secret)


LONG = PLAIN.encode(None) + bytes(600)
BELL = GOLDEN[:-3] + b"o\x07e"


@pytest.mark.parametrize(
    ("data", "secret", "cluster", "kind", "word"),
    [
        (b"", None, None, "garbage", "not an announcement"),
        (b"GET / HTTP/1.1\r\n\r\n", None, None, "garbage", "not an announcement"),
        (LONG, None, None, "garbage", "more than 512"),
        (GOLDEN[:4] + b"\x02" + GOLDEN[5:], None, None, "version", "version 2"),
        (GOLDEN, b"secret", None, "secret", "not signed"),
        (PLAIN.encode(b"secret"), None, None, "secret", "has no cluster secret"),
        (PLAIN.encode(b"secret"), b"other", None, "secret", "another cluster secret"),
        (PLAIN.encode(b"secret"), b"other", "mqttree", "secret", "another cluster secret"),
        (PLAIN.encode(b"secret"), b"other", "elsewhere", "cluster", "mqttree"),
        (GOLDEN, None, "elsewhere", "cluster", "mqttree"),
        (BELL, None, None, "garbage", "printed"),
        (GOLDEN[:-3] + b"o\xffe", None, None, "garbage", "UTF-8"),
        (GOLDEN.replace(b"\x07\x5b", b"\0\0"), None, None, "garbage", "port is 0"),
        (GOLDEN[:32] + b"\xff" + GOLDEN[33:], None, None, "garbage", "cut off"),
        (GOLDEN[:22] + b"\xff" * 8 + GOLDEN[30:], None, None, "garbage", "out of range"),
    ],
)
def test_a_wrong_announcement_is_refused_with_its_reason(
    data: bytes, secret: bytes | None, cluster: str | None, kind: str, word: str
) -> None:
    with pytest.raises(AnnouncementError, match=word) as caught:
        decode(data, secret, cluster)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "wrong",
    [
        Announcement("c" * 65, ID, 1, 1, 0.0, Address("", 1)),
        Announcement("c", ID, 1, 1, 0.0, Address("", 1), "n" * 65),
        Announcement("c", ID, 1, 1, 0.0, Address("h" * 254, 1)),
        Announcement("c", ID[:7], 1, 1, 0.0, Address("", 1)),
        Announcement("c", ID, 1 << 32, 1, 0.0, Address("", 1)),
        Announcement("c", ID, 1, -1, 0.0, Address("", 1)),
        Announcement("c", ID, 1, 1, -1.0, Address("", 1)),
        Announcement("c", ID, 1, 1, 0.0, Address("", 65536)),
        Announcement("line\nline", ID, 1, 1, 0.0, Address("", 1)),
    ],
)
def test_an_announcement_that_does_not_fit_is_refused(wrong: Announcement) -> None:
    with pytest.raises(ValueError):
        wrong.encode(None)


def test_the_longest_announcement_fits() -> None:
    longest = Announcement("c" * 64, ID, 1, 1, 0.0, Address(".".join(["h" * 62] * 4), 1), "n" * 64)
    assert len(longest.encode(b"s")) <= MAX_DATAGRAM
    assert decode(longest.encode(b"s"), b"s") == longest


def test_a_wildcard_host_means_the_sender_of_the_announcement() -> None:
    assert PLAIN.address_from(("10.0.0.9", 18830)) == Address("10.0.0.9", 1883)
    wildcard = Announcement("c", ID, 1, 1, 0.0, Address("0.0.0.0", 1884))
    assert decode(wildcard.encode(None), None).address_from(("10.0.0.9", 1)) == Address(
        "10.0.0.9", 1884
    )
    fixed = Announcement("c", ID, 1, 1, 0.0, Address("10.0.0.1", 1884))
    assert fixed.address_from(("10.0.0.9", 1)) == Address("10.0.0.1", 1884)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("broker1", "broker1", 1883),
        ("Broker1:1884", "broker1", 1884),
        (" 10.0.0.1:1 ", "10.0.0.1", 1),
        ("[fd00::2]:1884", "fd00::2", 1884),
        ("[fd00:0:0::2]", "fd00::2", 1883),
        ("fd00::2", "fd00::2", 1883),
        ("[::ffff:10.0.0.1]:65535", "10.0.0.1", 65535),
        ("a_b.example.org.", "a_b.example.org.", 1883),
    ],
)
def test_a_seed_is_a_host_with_or_without_a_port(text: str, host: str, port: int) -> None:
    address = parse_seed(text)
    assert address == Address(host, port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":1883",
        "host:",
        "host:0",
        "host:65536",
        "host:1_0",
        "host:+1",
        "host:x",
        "1.2.3",
        "1.2.3.4.5",
        "256.1.1.1",
        "a b",
        "-x",
        "x..y",
        "[::1",
        "[::1]x",
        "[::1]:",
        "[host]:1",
        "::1::2",
        "a:b:c",
        "h" * 254,
        "0.0.0.0",
        "[::]:1",
        "host:\u0661",
        "http://host:1",
    ],
)
def test_a_wrong_seed_is_named_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^seed: address ") as caught:
        parse_seed(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lists_of_seeds_are_joined_without_duplicates() -> None:
    seeds = parse_seeds(["a:1, 10.0.0.1", "b,a:1,", "[::1]:2"])
    assert seeds == [("a", 1), ("10.0.0.1", 1883), ("b", 1883), ("::1", 2)]
    assert split_seeds(seeds) == ([("10.0.0.1", 1883), ("::1", 2)], [("a", 1), ("b", 1883)])
    with pytest.raises(ValueError):
        parse_seeds([""])
    with pytest.raises(ValueError, match="more than 1024"):
        parse_seeds(f"h:{port}" for port in range(1, 1026))


def test_order_is_by_number_then_port() -> None:
    ordered = [
        Address("9.0.0.1", 1885),
        Address("10.0.0.2", 1883),
        Address("10.0.0.10", 99),
        Address("10.0.0.10", 1883),
        Address("::1", 1),
        Address("fd00::9", 1),
        Address("fd00::10", 1),
        Address("a", 1),
        Address("B", 1),
    ]
    shuffled = random.Random(1).sample(ordered, len(ordered))
    assert sorted(shuffled, key=sort_key) == ordered
    assert sort_key(Address("::ffff:10.0.0.2", 1883)) == sort_key(Address("10.0.0.2", 1883))


def test_wildcard_and_loopback_hosts_are_recognised() -> None:
    assert [host for host in ("", "0.0.0.0", "::", "10.0.0.1", "h") if is_wildcard(host)] == [
        "",
        "0.0.0.0",
        "::",
    ]
    assert [
        host for host in ("127.0.0.2", "::1", "localhost", "10.0.0.1", "h") if is_loopback(host)
    ] == ["127.0.0.2", "::1", "localhost"]
    assert normal_host("FD00::0:2") == "fd00::2"
