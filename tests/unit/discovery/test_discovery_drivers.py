from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import psutil
import pytest

from mqttree.broker.base.address import Address
from mqttree.discovery.drivers import dns as dns_module
from mqttree.discovery.drivers import multicast as multicast_module
from mqttree.discovery.drivers.dns import Resolver
from mqttree.discovery.drivers.multicast import GROUP, PORT, Multicast, interfaces_for

GROUPS = ("239.255.77.201", "239.255.77.202", "239.255.77.203")
LOOPBACK = ["127.0.0.1"]


@pytest.fixture
def port() -> Iterator[int]:
    """A UDP port that is not in use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        found: int = sock.getsockname()[1]
    yield found


class Ear:
    """What one driver heard and complained of, and a way to wait for it."""

    def __init__(self) -> None:
        self.heard: list[tuple[bytes, tuple[str, int]]] = []
        self.reasons: list[str] = []
        self._news = asyncio.Event()

    def datagram(self, data: bytes, source: tuple[str, int]) -> None:
        self.heard.append((data, source))
        self._news.set()

    def unavailable(self, reason: str) -> None:
        self.reasons.append(reason)
        self._news.set()

    async def until(self, reached: Callable[[Ear], bool]) -> None:
        async with asyncio.timeout(60):
            while not reached(self):
                self._news.clear()
                await self._news.wait()

    def data(self) -> list[bytes]:
        return [data for data, _ in self.heard]


@asynccontextmanager
async def listening(
    port: int, group: str = GROUPS[0], interfaces: list[str] | None = LOOPBACK, rescan: float = 10.0
) -> AsyncIterator[tuple[Multicast, Ear]]:
    ear = Ear()
    driver = Multicast(
        ear.datagram, ear.unavailable, group=group, port=port, interfaces=interfaces, rescan=rescan
    )
    driver.start()
    try:
        yield driver, ear
    finally:
        driver.close()


async def test_several_brokers_of_one_host_hear_each_other_and_themselves(port: int) -> None:
    async with (
        listening(port) as (one, a),
        listening(port) as (two, b),
        listening(port) as (three, c),
    ):
        for number, driver in enumerate((one, two, three)):
            assert driver.joined == LOOPBACK
            driver.send(b"from %d" % number)
        for ear in (a, b, c):
            await ear.until(lambda ear: len(ear.heard) == 3)
            assert sorted(ear.data()) == [b"from 0", b"from 1", b"from 2"]
            assert {source for _, source in ear.heard} == {("127.0.0.1", port)}
            assert ear.reasons == []


async def test_multicast_groups_on_one_port_do_not_mix(port: int) -> None:
    async with (
        listening(port, GROUPS[0]) as (one, a),
        listening(port, GROUPS[1]) as (two, b),
        listening(port, GROUPS[2]) as (three, c),
    ):
        for round_number in range(3):
            for name, driver in ((b"a", one), (b"b", two), (b"c", three)):
                driver.send(name + b"%d" % round_number)
        for name, ear in ((b"a", a), (b"b", b), (b"c", c)):
            await ear.until(lambda ear: len(ear.heard) >= 3)
            assert ear.data() == [name + b"0", name + b"1", name + b"2"]


async def test_unicast_to_the_port_is_not_heard(port: int) -> None:
    async with listening(port) as (driver, ear):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"unicast", ("127.0.0.1", port))
        driver.send(b"multicast")
        await ear.until(lambda ear: bool(ear.heard))
        assert ear.data() == [b"multicast"]


async def test_every_interface_and_loopback_meet_on_loopback(port: int) -> None:
    async with listening(port, interfaces=None) as (everywhere, a), listening(port) as (here, b):
        assert "127.0.0.1" in everywhere.joined
        everywhere.send(b"everywhere")
        here.send(b"here")
        await a.until(lambda ear: b"here" in ear.data() and b"everywhere" in ear.data())
        await b.until(lambda ear: len(ear.heard) >= 2)
        # There is one copy: the other interfaces' are not heard here.
        assert sorted(b.data()) == [b"everywhere", b"here"]
        assert [source[0] for _, source in b.heard] == ["127.0.0.1", "127.0.0.1"]


async def test_a_big_datagram_is_cut_and_an_empty_one_arrives(port: int) -> None:
    async with listening(port) as (driver, ear):
        driver.send(bytes(9000))
        driver.send(b"")
        await ear.until(lambda ear: len(ear.heard) == 2)
        assert [len(data) for data in ear.data()] == [2048, 0]


async def test_a_flood_leaves_the_loop_to_others(port: int) -> None:
    async with listening(port) as (driver, ear):
        for _ in range(100):
            driver.send(b"x")
        await ear.until(lambda ear: bool(ear.heard))
        assert len(ear.heard) <= 64
        await ear.until(lambda ear: len(ear.heard) == 100)


async def test_a_missing_interface_is_reported_once_and_tried_again(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    real = psutil.net_if_stats

    def none_at_first() -> object:
        nonlocal looks
        looks += 1
        return {} if looks < 4 else real()

    monkeypatch.setattr(psutil, "net_if_stats", none_at_first)
    async with listening(port, interfaces=None, rescan=0.01) as (driver, ear):
        driver.send(b"nobody hears this")
        assert ear.reasons == ["multicast cannot be used: no interface with an IPv4 address is up"]
        async with asyncio.timeout(60):
            while "127.0.0.1" not in driver.joined:
                await asyncio.sleep(0.01)
        driver.send(b"late")
        await ear.until(lambda ear: b"late" in ear.data())
        assert len(ear.reasons) == 1


async def test_an_interface_address_of_another_machine_is_reported_once(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    real = psutil.net_if_stats

    def counted() -> object:
        nonlocal looks
        looks += 1
        return real()

    monkeypatch.setattr(psutil, "net_if_stats", counted)
    async with listening(port, interfaces=["203.0.113.254"], rescan=0.01) as (driver, ear):
        async with asyncio.timeout(60):
            while looks < 4:
                await asyncio.sleep(0.01)
        driver.send(b"x")
        assert driver.joined == []
        assert len(ear.reasons) == 1
        assert ear.reasons[0].startswith(
            f"multicast cannot be used: cannot join {GROUPS[0]}:{port} on 203.0.113.254: "
        )


async def test_an_interface_made_again_is_joined_again(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(port, rescan=0.01) as (driver, ear):
        first = next(iter(driver._sockets.values()))
        monkeypatch.setattr(multicast_module.socket, "if_nametoindex", lambda name: 0)
        async with asyncio.timeout(60):
            while first in driver._sockets.values() or not driver._sockets:
                await asyncio.sleep(0.01)
        driver.send(b"again")
        await ear.until(lambda ear: ear.data() == [b"again"])


async def test_a_broken_socket_is_closed_and_reported(port: int) -> None:
    class Broken(socket.socket):
        def sendto(self, *args: object) -> int:  # type: ignore[override]
            raise OSError(101, "Network is unreachable")

    async with listening(port, rescan=60.0) as (driver, ear):
        interface, sock = next(iter(driver._sockets.items()))
        driver._sockets[interface] = Broken(fileno=sock.detach())
        driver.send(b"x")
        assert driver.joined == []
        assert ear.reasons == [
            "multicast cannot be used: cannot send on 127.0.0.1: Network is unreachable"
        ]


async def test_close_is_final_and_a_second_start_does_nothing(port: int) -> None:
    async with listening(port) as (driver, ear):
        driver.start()
        driver.send(b"before")
        driver.close()
        driver.close()
        driver.send(b"after")
        assert driver.joined == []
        await asyncio.sleep(0)
        assert ear.heard == []


async def test_a_reader_may_be_closed_while_it_reads(port: int) -> None:
    async with listening(port) as (driver, _):
        heard: list[bytes] = []

        def first(data: bytes, source: tuple[str, int]) -> None:
            heard.append(data)
            reader.close()

        reader = Multicast(first, heard.append, group=GROUPS[0], port=port, interfaces=LOOPBACK)  # type: ignore[arg-type]
        reader.start()
        driver.send(b"1")
        driver.send(b"2")
        async with asyncio.timeout(60):
            while not heard:
                await asyncio.sleep(0.01)
        assert heard == [b"1"]


async def test_datagrams_stay_on_the_network_by_default(port: int) -> None:
    async with listening(port) as (driver, _):
        sock = next(iter(driver._sockets.values()))
        assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == 1
        assert struct.unpack("i", sock.getsockopt(socket.IPPROTO_IP, 49, 4)) == (0,)
    assert (GROUP, PORT) == ("239.255.77.71", 18830)


@pytest.mark.parametrize(
    ("host", "interfaces"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("10.0.0.1", ["10.0.0.1"]),
        ("localhost", ["127.0.0.1"]),
        ("0.0.0.0", None),
        ("::", None),
        ("", None),
        ("broker", None),
    ],
)
def test_the_host_decides_which_interfaces_are_used(
    host: str, interfaces: list[str] | None
) -> None:
    assert interfaces_for(host) == interfaces


class Names:
    """A name server: answers in order, the last one for ever."""

    def __init__(self, *answers: list[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, seed: Address) -> list[str]:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, OSError):
            raise answer
        return answer


async def follow(names: Names, asked: int) -> list[object]:
    events: list[object] = []
    resolver = Resolver(
        [Address("brokers", 1883)],
        lambda seed, found: events.append(found),
        lambda seed, reason: events.append((seed.host, reason)),
        interval=0.004,
        retry=0.001,
        lookup=names,
    )
    resolver.start()
    async with asyncio.timeout(60):
        while names.asked < asked:
            await asyncio.sleep(0.001)
    await resolver.close()
    await resolver.close()
    return events


async def test_all_addresses_are_given_and_only_changes_are_reported() -> None:
    names = Names(
        ["10.0.0.2", "::1", "10.0.0.10", "10.0.0.2"], ["::1", "10.0.0.10", "10.0.0.2"], ["10.0.0.3"]
    )
    ordered = [Address("10.0.0.2", 1883), Address("10.0.0.10", 1883), Address("::1", 1883)]
    assert await follow(names, 5) == [ordered, [Address("10.0.0.3", 1883)]]


async def test_failures_are_reported_once_each_change() -> None:
    gone, slow = (
        socket.gaierror(-2, "Name or service not known"),
        socket.gaierror(-3, "Temporary failure"),
    )
    names = Names(gone, gone, slow, slow, ["10.0.0.1"], slow, ["10.0.0.1"], [])
    assert await follow(names, 10) == [
        ("brokers", "Name or service not known"),
        ("brokers", "Temporary failure"),
        [Address("10.0.0.1", 1883)],
        ("brokers", "Temporary failure"),
        ("brokers", "no address"),
    ]


async def test_the_systems_name_lookup_reports_its_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "127.0.0.1" in await dns_module.system_lookup(Address("localhost", 1883))

    def fail(*_: object, **__: object) -> None:
        raise UnicodeError("label too long")

    monkeypatch.setattr(dns_module.socket, "getaddrinfo", fail)
    with pytest.raises(OSError, match="label too long"):
        await dns_module.system_lookup(Address("x", 1))
