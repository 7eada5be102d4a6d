"""Every way in: TCP, TLS and mutual TLS, WebSocket and its secure form, Unix sockets, IPv6, and
each behind a load balancer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from amqtt.contexts import ListenerConfig
from amqtt.errors import BrokerError
from websockets.asyncio.client import connect as ws_connect

from mqttree.broker.compat.broker import Broker
from mqttree.broker.config.listener_model import describe_listeners, exposed, link_listener
from mqttree.broker.config.listener_options import (
    ListenerOptions,
    OptionError,
    check_options,
    split_options,
    unix_path,
)
from mqttree.broker.config.listener_section import read_listeners
from mqttree.broker.config.options import FederationSettings, TlsSettings
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile
from mqttree.broker.io.proxy_protocol import SIGNATURE
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack, Pingreq, Pingresp
from tests.kit.node_harness import connect_packet
from tests.kit.raw_client import RawStreams
from tests.kit.waiting import PATIENCE, eventually
from tests.process.certificates import Authority

ANONYMOUS = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def running(
    settings: FederationSettings | None = None,
    limits: Limits = DEFAULTS,
    **listeners: dict[str, Any],
) -> AsyncIterator[Broker]:
    """A started broker with these listeners; a default one is made up."""
    default = {"default": {"bind": "127.0.0.1:0"}}
    broker = Broker(
        {"listeners": default | listeners, "plugins": ANONYMOUS},
        settings=settings or FederationSettings(discovery="off", port=0),
        limits=limits,
    )
    await broker.start()
    try:
        yield broker
    finally:
        await broker.shutdown()


CONNECT = encode_packet(connect_packet("c", 4), 4)


async def served(
    streams: Streams, before: bytes = b"", client_id: str = "c", code: int = 0, **fields: Any
) -> None:
    """Connect as an MQTT client over these streams, and get answers; or a refusal with a `code`."""
    client = RawStreams(*streams)
    connect = connect_packet(client_id, 4, **fields)
    client.writer.write(before + encode_packet(connect, 4))
    connack = await client.receive()
    assert isinstance(connack, Connack) and connack.code == code
    if not code:
        client.send(Pingreq())
        assert isinstance(await client.receive(), Pingresp)


async def refused(streams: Streams, before: bytes = b"") -> None:
    """The broker closes without an answer."""
    streams[1].write(before)
    assert await RawStreams(*streams).closed()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server_files(authority: Authority) -> dict[str, str]:
    """amqtt's keys of a TLS listener."""
    certificate, key = authority.issue("localhost")
    return {"certfile": str(certificate), "keyfile": str(key), "cafile": str(authority.ca)}


@pytest.fixture(scope="module")
def sensor(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("sensor-7")


def secure(files: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"bind": "127.0.0.1:0", "ssl": True} | files | more


# -------------------------------------------------------------------- TLS


async def test_mutual_tls_accepts_only_clients_with_a_certificate(
    authority: Authority, server_files: dict[str, str], sensor: tuple[Path, Path], tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").issue("sensor-7")
    async with running(tls=secure(server_files, require_certificate=True)) as broker:
        port = broker.ports["tls"]
        await served(await asyncio.open_connection("127.0.0.1", port, ssl=authority.client(sensor)))
        assert broker.node.sessions["c"].username is None
        for files in (None, stranger):
            # In TLS 1.3 it is said after the client's side is done.
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                await refused(
                    await asyncio.open_connection("127.0.0.1", port, ssl=authority.client(files)),
                    b"\x10\x0c",
                )
        assert broker.node.counters.connects == 1
        await served(
            await asyncio.open_connection("127.0.0.1", broker.ports["default"]), client_id="plain"
        )


async def test_a_handshake_that_failed_is_logged_and_counted(
    server_files: dict[str, str],
    authority: Authority,
    sensor: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who cannot come in has to find out why; a connection without a word is counted, and logged at
    debug."""
    caplog.set_level("DEBUG", "mqttree")
    async with running(tls=secure(server_files, require_certificate=True)) as broker:
        port = broker.ports["tls"]
        counters = broker.node.counters
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await refused(
                await asyncio.open_connection("127.0.0.1", port, ssl=authority.client(None)),
                b"\x10\x0c",
            )
        await eventually(lambda: counters.tls_failed == 1, "no certificate")
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT)
        await eventually(lambda: counters.tls_failed == 2, "no TLS")
        writer.close()
        (await asyncio.open_connection("127.0.0.1", port))[1].close()
        await eventually(lambda: counters.tls_failed == 3, "nothing said")
        await served(await asyncio.open_connection("127.0.0.1", port, ssl=authority.client(sensor)))
    told = [
        record for record in caplog.records if "no TLS at listener 'tls'" in record.getMessage()
    ]
    assert [record.levelname for record in told] == ["WARNING", "WARNING", "DEBUG"]
    assert "peer did not return a certificate; closed" in told[0].getMessage()
    assert "wrong version number; closed" in told[1].getMessage()


async def test_a_certificate_that_is_not_required_is_optional(
    authority: Authority, server_files: dict[str, str]
) -> None:
    async with running(tls=secure(server_files)) as broker:
        await served(
            await asyncio.open_connection("127.0.0.1", broker.ports["tls"], ssl=authority.client())
        )


async def test_the_name_in_the_certificate_is_the_user(
    authority: Authority, server_files: dict[str, str], sensor: tuple[Path, Path]
) -> None:
    options = secure(server_files, require_certificate=True, use_identity_as_username=True)
    async with running(tls=options) as broker:
        streams = await asyncio.open_connection(
            "127.0.0.1", broker.ports["tls"], ssl=authority.client(sensor)
        )
        await served(streams, username="admin", password=b"guess")
        assert broker.node.sessions["c"].username == "sensor-7"


async def test_tls_handshakes_that_never_end_are_harmless(
    authority: Authority, server_files: dict[str, str]
) -> None:
    async with running(tls=secure(server_files)) as broker:
        port = broker.ports["tls"]
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for _, writer in held[:25]:
            writer.write(b"\x16\x03\x01\x02\x00\x01")
        await refused(
            await asyncio.open_connection("127.0.0.1", port),
            b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
        )
        await served(await asyncio.open_connection("127.0.0.1", port, ssl=authority.client()))
        for _, writer in held:
            writer.close()


# -------------------------------------------------------------------- WebSocket


@pytest.mark.statement("MQTT-4.2.0-1", "3.1.1/MQTT-7.1.1-1")
@pytest.mark.parametrize("tls", [False, True])
async def test_websockets_are_served_with_and_without_tls(
    tls: bool, authority: Authority, server_files: dict[str, str]
) -> None:
    options = secure(server_files, type="ws") if tls else {"bind": "127.0.0.1:0", "type": "ws"}
    async with running(web=options) as broker:
        uri = f"{'wss' if tls else 'ws'}://127.0.0.1:{broker.ports['web']}/mqtt"
        context = authority.client() if tls else None
        async with ws_connect(uri, subprotocols=["mqtt"], ssl=context) as web:  # type: ignore[list-item]
            assert web.subprotocol == "mqtt"
            await web.send(encode_packet(connect_packet("web"), 5))
            answer = await asyncio.wait_for(web.recv(), PATIENCE)
            assert isinstance(answer, bytes) and answer[0] == 0x20


# -------------------------------------------------------------------- Unix sockets


@pytest.mark.statement("MQTT-4.2.0-1", "3.1.1/MQTT-7.1.1-1")
async def test_a_unix_socket_is_served_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    async with running(local={"bind": f"unix:{path}", "socket_mode": "0600"}) as broker:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await served(await asyncio.open_unix_connection(path))
        conn = broker.node.sessions["c"].conn
        assert conn is not None and conn.peer == "unix"
        assert "local" not in broker.ports
        with pytest.raises(
            BrokerError, match=rf"^listener 'local': cannot listen on unix:{path}: address in use$"
        ):
            async with running(local={"bind": f"unix:{path}"}):
                pass
        await served(await asyncio.open_unix_connection(path))  # the second one took nothing away
    assert not path.exists()


async def test_a_stale_unix_socket_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    async with running(local={"bind": f"unix:{path}"}):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        await served(await asyncio.open_unix_connection(path))
        os.rename(path, tmp_path / "moved")
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"
    with pytest.raises(BrokerError, match="there is a file that is not a socket"):
        async with running(local={"bind": f"unix:{path}"}):
            pass
    assert path.read_text() == "somebody else's"


async def test_a_unix_socket_in_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"cannot listen on unix:.*: No such file or directory$"):
        async with running(local={"bind": f"unix:{tmp_path}/none/broker.sock"}):
            pass


# -------------------------------------------------------------------- IPv6


async def test_an_ipv6_listener_is_served() -> None:
    async with running(six={"bind": "[::1]:0"}) as broker:
        await served(await asyncio.open_connection("::1", broker.ports["six"]))
        conn = broker.node.sessions["c"].conn
        assert conn is not None and conn.peer.startswith("[::1]:")
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", broker.ports["six"])


async def test_an_empty_host_listens_on_both_address_families(free_port: int) -> None:
    async with running(
        both={"bind": f":{free_port}"}, proxied={"bind": ":0", "proxy_protocol": True}
    ) as broker:
        for host in ("127.0.0.1", "::1"):
            await served(await asyncio.open_connection(host, free_port))
        assert len(broker._servers["proxied"].instance.sockets) == 2


# -------------------------------------------------------------------- behind a load balancer


def v2(peer: str = "192.0.2.7", port: int = 4711, rest: bytes = b"") -> bytes:
    body = (
        socket.inet_aton(peer)
        + socket.inet_aton("127.0.0.1")
        + struct.pack("!HH", port, 1883)
        + rest
    )
    return SIGNATURE + b"\x21\x11" + struct.pack("!H", len(body)) + body


def certificate_tlv(name: bytes) -> bytes:
    inner = b"\x07" + bytes(4) + b"\x22" + struct.pack("!H", len(name)) + name
    return b"\x20" + struct.pack("!H", len(inner)) + inner


LOCAL = SIGNATURE + b"\x20\x00\x00\x00"
PROXIED = {"bind": "127.0.0.1:0", "proxy_protocol": True}


async def test_the_proxy_header_gives_the_clients_address() -> None:
    async with running(lb=PROXIED, limited=PROXIED | {"max_connections": 10}) as broker:
        for name, header in (
            ("lb", v2()),
            ("limited", v2()),
            ("lb", b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 1883\r\n"),
        ):
            await served(await asyncio.open_connection("127.0.0.1", broker.ports[name]), header)
            conn = broker.node.sessions["c"].conn
            assert conn is not None and conn.peer == "192.0.2.7:4711"
            account = broker.sessions["c"][0]  # what plugins see
            assert (account.remote_address, account.remote_port) == ("192.0.2.7", 4711)


async def test_local_connections_have_their_own_address() -> None:
    async with running(lb=PROXIED) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports["lb"])
        await served((reader, writer), LOCAL)
        conn = broker.node.sessions["c"].conn
        assert conn is not None and conn.peer == "{}:{}".format(*writer.get_extra_info("sockname"))


async def test_a_proxy_header_may_come_byte_by_byte_and_with_packets() -> None:
    async with running(lb=PROXIED) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports["lb"])
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        header = v2()
        for at in range(len(header) - 1):
            writer.write(header[at : at + 1])
            await asyncio.sleep(0)
        await served((reader, writer), header[-1:])


async def test_tls_and_websockets_are_served_behind_a_balancer(
    authority: Authority, server_files: dict[str, str]
) -> None:
    web = secure(server_files, type="ws", proxy_protocol=True)
    loop = asyncio.get_running_loop()
    async with running(tls=secure(server_files, proxy_protocol=True), web=web) as broker:
        for name, port in (("tls", 1003), ("web", 1004)):
            sock = socket.create_connection(("127.0.0.1", broker.ports[name]))
            sock.setblocking(False)
            await loop.sock_sendall(sock, v2(port=port))
            tls: dict[str, Any] = {
                "sock": sock,
                "ssl": authority.client(),
                "server_hostname": "localhost",
            }
            if name == "tls":
                await served(await asyncio.open_connection(**tls), client_id=name)
            else:
                client = await ws_connect("wss://localhost/", subprotocols=["mqtt"], **tls)  # type: ignore[list-item]
                await client.send(encode_packet(connect_packet(name, 4), 4))
                assert await asyncio.wait_for(client.recv(), PATIENCE) == b"\x20\x02\x00\x00"
            conn = broker.node.sessions[name].conn
            assert conn is not None and conn.peer == f"192.0.2.7:{port}"


async def test_the_proxy_header_gives_the_name_of_the_certificate() -> None:
    async with running(lb=PROXIED | {"use_identity_as_username": True}) as broker:
        port = broker.ports["lb"]
        await served(
            await asyncio.open_connection("127.0.0.1", port), v2(rest=certificate_tlv(b"sensor-7"))
        )
        assert broker.node.sessions["c"].username == "sensor-7"
        streams = await asyncio.open_connection("127.0.0.1", port)
        await served(streams, v2(), "d", 5, username="sensor-7")


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        SIGNATURE + b"\x21\x11\xff\xff",
        SIGNATURE + b"\x31",
    ],
)
async def test_a_connection_without_proxy_header_is_refused(data: bytes) -> None:
    async with running(lb=PROXIED) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports["lb"])
        writer.write(data)
        if data.endswith(b"\x31"):
            writer.write(b"\x11\x00\x00")
        await refused((reader, writer))
        await eventually(lambda: broker.node.counters.proxy_garbage == 1, "the counter")
        await served(await asyncio.open_connection("127.0.0.1", broker.ports["lb"]), v2())


async def test_a_proxy_header_that_never_comes_ends_the_connection() -> None:
    async with running(limits=Limits(proxy_timeout_s=0.1), lb=PROXIED) as broker:
        held = [await asyncio.open_connection("127.0.0.1", broker.ports["lb"]) for _ in range(20)]
        for _, writer in held[:10]:
            writer.write(SIGNATURE[:5])
        for streams in held:
            await refused(streams)
        assert broker.node.counters.proxy_garbage == 20
        broker._servers["lb"].instance.header_timeout = PATIENCE
        gone = await asyncio.open_connection("127.0.0.1", broker.ports["lb"])
        gone[1].close()  # a health check: not an error
        server = broker._servers["lb"].instance
        await eventually(lambda: not server.heads, "the end of all")
        assert broker.node.counters.proxy_garbage == 20


async def test_a_stop_closes_connections_without_a_header() -> None:
    async with running(lb=PROXIED) as broker:
        reader, _ = await asyncio.open_connection("127.0.0.1", broker.ports["lb"])
        server = broker._servers["lb"].instance
        await eventually(lambda: server.heads, "the connection")
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""


# -------------------------------------------------------------------- links by TLS


def cluster(number: int, tls: TlsSettings | None, *seeds: int) -> FederationSettings:
    return FederationSettings(
        name=f"b{number}",
        id=bytes([number]) * 8,
        host="127.0.0.1",
        port=0,
        discovery="static",
        tls=tls,
        hello=0.1,
        discovery_time=0.1,
        seeds=tuple(("127.0.0.1", port) for port in seeds),
    )


def linked(broker: Broker) -> bool:
    return any(link.up for link in broker.node.cluster.links.values())


@pytest.mark.parametrize("mutual", [False, True])
async def test_brokers_dial_each_other_by_tls(
    mutual: bool, authority: Authority, server_files: dict[str, str]
) -> None:
    own = authority.issue("broker") if mutual else (None, None)
    tls = TlsSettings(authority.ca, own[0], own[1], check_hostname=True)
    options = {"default": secure(server_files, require_certificate=mutual)}
    async with running(cluster(1, tls), **options) as one:
        port = one.ports["default"]
        async with running(cluster(2, tls, port), **options) as two:
            await eventually(lambda: linked(one) and linked(two), "a link")


async def test_with_mutual_tls_brokers_link_by_that_listener_only(
    authority: Authority,
    server_files: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "mqttree")
    tls = TlsSettings(authority.ca, *authority.issue("broker"))
    # The default listener is plain.
    options = {"links": secure(server_files, require_certificate=True)}
    other = Authority(tmp_path, "other")
    async with running(cluster(1, tls), **options) as one:
        async with running(cluster(2, None, one.ports["default"])) as uninvited:
            await eventually(lambda: one.node.counters.malformed, "a refusal")
            assert not linked(one) and not linked(uninvited)
        async with running(
            cluster(3, TlsSettings(other.ca, *other.issue("evil")), one.ports["links"])
        ) as stranger:
            await eventually(
                lambda: any("certificate" in line for line in caplog.messages), "a refusal"
            )
            assert not linked(one) and not linked(stranger)
        async with running(cluster(4, tls, one.ports["links"]), **options) as invited:
            await eventually(lambda: linked(one) and linked(invited), "a link")


# -------------------------------------------------------------------- what configuration says


@pytest.mark.parametrize(
    ("entry", "key", "reason"),
    [
        ({"require_certificate": 1}, "require_certificate", "expected true or false"),
        ({"proxy-protocol": "yes"}, "proxy_protocol", "expected true or false"),
        ({"socket_mode": 660}, "socket_mode", "in quotes"),
        ({"socket_mode": "0999"}, "socket_mode", "in quotes"),
        ({"socket_mode": "7777"}, "socket_mode", "in quotes"),
        ({"require_certificate": True}, "require_certificate", "needs ssl"),
        ({"require_certificate": True, "ssl": True}, "require_certificate", "needs cafile"),
        (
            {"use_identity_as_username": True},
            "use_identity_as_username",
            "needs require_certificate",
        ),
    ],
)
def test_a_wrong_listener_option_is_named(entry: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as raised:
        rest, options = split_options({"default": entry})
        check_options(options["default"], ListenerConfig(**rest["default"]))
    assert raised.value.key == key


def test_other_listeners_inherit_options_of_the_default_one() -> None:
    rest, options = split_options(
        {
            "default": {"proxy_protocol": True, "bind": "1"},
            "b": {"proxy-protocol": False},
            "c": {"bind": "2"},
        }
    )
    assert rest == {"default": {"bind": "1"}, "b": {}, "c": {"bind": "2"}}
    assert options == {
        "default": ListenerOptions(proxy_protocol=True),
        "b": ListenerOptions(),
        "c": options["default"],
    }


@pytest.mark.parametrize(
    ("bind", "path"),
    [
        ("unix:/run/x.sock", "/run/x.sock"),
        ("unix:///run/x.sock", "/run/x.sock"),
        ("unix:x", "x"),
        ("127.0.0.1:1", None),
        (None, None),
    ],
)
def test_an_address_that_begins_with_unix_is_a_path(bind: str | None, path: str | None) -> None:
    assert unix_path(bind) == path


@pytest.mark.parametrize("bind", ["unix:", "unix://", "unix:" + "x" * 200, "unix:a\0b"])
def test_a_malformed_unix_path_is_refused(bind: str) -> None:
    with pytest.raises(ValueError, match="path"):
        unix_path(bind)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "listeners: {default: {bind: '1', require-certificate: true}}",
            "c.yaml:1: listeners.default.require-certificate: needs ssl",
        ),
        (
            "listeners: {default: {bind: 'unix:'}}",
            "c.yaml:1: listeners.default.bind: 'unix:' has no path",
        ),
        (
            "listeners: {default: {bind: '1'}, b: {socket_mode: 432}}",
            "c.yaml:1: listeners.b.socket_mode: 432 are no permissions",
        ),
        ("listeners: {default: {bind: '1', proxy_protcol: true}}", "did you mean 'proxy-protocol'"),
    ],
)
def test_a_configuration_error_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_listeners(ConfigFile.parse("c.yaml", text))
    assert line in str(raised.value)


def test_brokers_dial_the_listener_that_fits_their_tls_settings(
    server_files: dict[str, str],
) -> None:
    listeners = {
        "default": {"bind": "unix:/run/x"},
        "lb": {"bind": "127.0.0.1:1", "proxy_protocol": True},
        "plain": {"bind": "127.0.0.1:2"},
        "tls": secure(server_files, bind="127.0.0.1:3"),
        "mutual": secure(server_files, bind="127.0.0.1:4", require_certificate=True),
    }
    found = read_listeners(ConfigFile("c.yaml", {"listeners": listeners}, {}))
    ca = Path(server_files["cafile"])
    assert link_listener(found) == "plain"
    assert link_listener(found, TlsSettings(ca)) == "tls"
    assert link_listener(found, TlsSettings(ca, ca, ca)) == "mutual"
    assert (
        describe_listeners(found)
        == "unix:/run/x, 127.0.0.1:1, 127.0.0.1:2, tls 127.0.0.1:3, tls 127.0.0.1:4"
    )
    assert not exposed(found)
