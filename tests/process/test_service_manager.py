"""What a broker tells systemd, over a real socket: it serves, it turns, it stops."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from mqttree.broker.io.service_manager import ServiceManager, _address, _period
from tests.kit.brokers import Broker
from tests.kit.waiting import PATIENCE


def listening(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(address)
    sock.settimeout(PATIENCE)
    return sock


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_of_start_life_and_end(
    tmp_path: Path, abstract: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"@mqttree-{os.getpid()}-notify" if abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with listening(path.replace("@", "\0")) as sock:
        broker = Broker(tmp_path, "watched", ["--discovery", "off"], cluster="watched").start()
        try:
            assert sock.recv(1000).decode().splitlines()[0] == "READY=1"
            assert broker.state() is not None
            assert [sock.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            assert broker.terminate() == 0
            rest = []
            sock.setblocking(False)
            while data := _came(sock):
                rest.append(data)
            assert any(data.startswith(b"STOPPING=1") for data in rest)
        finally:
            if broker.running:
                broker.end(signal.SIGKILL)


def _came(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1000)
    except BlockingIOError:
        return b""


def test_without_a_watchdog_only_start_and_end_are_told(tmp_path: Path) -> None:
    async def run() -> None:
        manager = ServiceManager(
            {"NOTIFY_SOCKET": str(tmp_path / "notify")}, asyncio.get_running_loop()
        )
        manager.ready("serves")
        manager.stopping()
        manager.close()
        manager.stopping()

    with listening(str(tmp_path / "notify")) as sock:
        asyncio.run(run())
        assert sock.recv(1000) == b"READY=1\nSTATUS=serves"
        assert sock.recv(1000) == b"STOPPING=1\nSTATUS=stopping"
        sock.setblocking(False)
        assert _came(sock) == b""


def test_a_manager_that_is_gone_does_not_end_the_broker(tmp_path: Path) -> None:
    async def run() -> None:
        nowhere = {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1000000"}
        manager = ServiceManager(nowhere, asyncio.get_running_loop())
        manager.ready("serves")
        manager.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "10000000"}, 10.0),
        ({"WATCHDOG_USEC": "x"}, 0.0),
        ({"WATCHDOG_USEC": "-5"}, 0.0),
        ({"WATCHDOG_USEC": "9" * 30}, 0.0),
        ({"WATCHDOG_USEC": "9" * 18}, 86_400.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}, 10.0),
    ],
)
def test_the_watchdog_is_for_this_process(variables: dict[str, str], seconds: float) -> None:
    assert _period(variables) == seconds


@pytest.mark.parametrize(
    ("text", "address"),
    [("", ""), ("/run/x", "/run/x"), ("@name", "\0name"), ("vsock:2:1234", ""), ("x", "")],
)
def test_an_address_is_a_path_or_a_name_of_the_kernel(text: str, address: str) -> None:
    assert _address(text) == address
