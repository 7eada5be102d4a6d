"""A broker inside of a program: the package `mqttree`, as its users have it."""

from __future__ import annotations

import asyncio
import builtins
import gc
import inspect
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
import uvloop
from paho.mqtt.enums import CallbackAPIVersion

import mqttree
from mqttree import Broker, ConfigError, Limits
from mqttree.bench.lab.ports import free_ports
from mqttree.broker.persistence.frames import HEADER_SIZE
from tests.kit.waiting import PATIENCE, eventually

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "127.0.0.1:0"


async def message(client: aiomqtt.Client) -> tuple[str, bytes]:
    """The next message that a client gets."""
    async with asyncio.timeout(PATIENCE):
        found = await anext(aiter(client.messages))
    assert isinstance(found.payload, bytes)
    return str(found.topic), found.payload


def run(loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, None]) -> None:
    """Run a program in a loop of this kind."""
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main)


# ---------------------------------------------------------------- one broker


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_broker_runs_in_a_program_with_three_lines(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async with Broker(listen=LOOPBACK) as broker:
            assert broker.running
            assert broker.ports == {"default": broker.port}
            async with aiomqtt.Client("127.0.0.1", broker.port) as client:
                await client.subscribe("a/#", 1)
                await client.publish("a/b", b"hi", 1)
                assert await message(client) == ("a/b", b"hi")
        assert not broker.running

    run(loop, main())


async def test_a_client_of_another_thread_is_served() -> None:
    """paho's own thread, while the program's loop runs the broker."""
    got: list[bytes] = []
    async with Broker(listen=LOOPBACK) as broker:
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.on_connect = lambda *_: client.subscribe("t", 2)
        client.on_subscribe = lambda *_: client.publish("t", b"x", 2)
        client.on_message = lambda _, __, found: got.append(found.payload)
        await asyncio.to_thread(client.connect, "127.0.0.1", broker.port)
        client.loop_start()
        await eventually(lambda: got, lambda: "a message")
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)
    assert got == [b"x"]


async def test_options_are_those_of_the_command_line(tmp_path: Path) -> None:
    """A mapping or a file; arguments win over it."""
    text = "max-qos: 1\nfederation:\n  name: hall\n  admin: 127.0.0.1:0\nlisteners:\n"
    text += "  default: {bind: '127.0.0.1:0'}\n  web: {type: ws, bind: '127.0.0.1:0'}\n"
    path = tmp_path / "mqttree.yaml"
    path.write_text(text)
    listeners = {"default": {"bind": LOOPBACK}, "web": {"type": "ws", "bind": LOOPBACK}}
    federation = {"name": "hall", "admin": LOOPBACK}
    config = {"max_qos": 1, "federation": federation, "listeners": listeners}
    for given in (path, str(path), config):
        async with Broker(config=given) as broker:
            assert set(broker.ports) == {"default", "web"}
            assert broker.port == broker.ports["default"]
            assert broker.state()["name"] == "hall"
            url = f"http://127.0.0.1:{broker.admin_port}/readyz"
            answer = await asyncio.to_thread(urllib.request.urlopen, url, timeout=PATIENCE)
            assert answer.read() == b"ready\n"
        assert broker.admin_port is None
    async with Broker(config=config, name="cellar") as broker:
        assert broker.state()["name"] == "cellar"
    assert config["federation"] == {"name": "hall", "admin": LOOPBACK}  # nothing was changed


async def test_limits_apply_to_one_broker_alone() -> None:
    small = Limits(max_queued=3, max_connect_size=200)
    async with (
        Broker(listen=LOOPBACK, limits=small) as narrow,
        Broker(listen=LOOPBACK) as wide,
    ):
        for broker, expected in ((narrow, 3), (wide, 5)):
            options: dict[str, Any] = {"identifier": "c", "clean_session": False}
            async with aiomqtt.Client("127.0.0.1", broker.port, **options) as client:
                await client.subscribe("t", 1)
            async with aiomqtt.Client("127.0.0.1", broker.port) as publisher:
                for number in range(5):
                    await publisher.publish("t", b"%d" % number, 1)
            async with aiomqtt.Client("127.0.0.1", broker.port, **options) as client:
                await client.publish("end", b"", 1)
                await client.subscribe("end", 1)
                await client.publish("end", b"end", 1)
                got = []
                while (found := await message(client))[0] != "end":
                    got.append(found[1])
            assert got == [b"%d" % number for number in range(expected)]
        with pytest.raises(aiomqtt.MqttError):
            async with aiomqtt.Client("127.0.0.1", narrow.port, will=aiomqtt.Will("w", bytes(300))):
                pass
        async with aiomqtt.Client("127.0.0.1", wide.port, will=aiomqtt.Will("w", bytes(300))):
            pass


async def test_limits_apply_to_files_too(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("allow all a\nallow all b\n")
    config = {"access": {"rules": str(tmp_path / "rules"), "anonymous": True}}
    with pytest.raises(ConfigError, match="more than 1 rules"):
        await Broker(listen=LOOPBACK, config=config, limits=Limits(max_rules=1)).start()
    for limits, kept in ((Limits(journal_damaged=0), 0), (None, 1)):
        data = tmp_path / f"data{kept}"
        async with (
            Broker(listen=LOOPBACK, data_dir=data) as broker,
            aiomqtt.Client("127.0.0.1", broker.port) as client,
        ):
            await client.publish("t", b"x", 1, retain=True)
        (segment,) = (data / "journal").iterdir()
        whole = segment.read_bytes()
        segment.write_bytes(whole[:HEADER_SIZE] + b"?" * 9 + whole[HEADER_SIZE:])
        async with Broker(listen=LOOPBACK, data_dir=data, limits=limits):
            assert len(list((data / "journal").glob("*.damaged"))) == kept


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"listen": "x:y"}, "listen: address 'x:y': port 'y' is not a number from 0 to 65535"),
        ({"listen": 1.5}, "listen: expected a text, not the number 1.5; put it in quotes"),
        ({"discovery": "x"}, "discovery: 'x' is not one of multicast, static, dns, off"),
        ({"seeds": ["a:x"]}, "seeds: address 'a:x': port 'x' is not a number from 1 to 65535"),
        (
            {"seeds": ["a"], "discovery": "off"},
            "seeds: discovery is off (discovery), so no seed would be dialled",
        ),
        ({"durability": "sync"}, "durability: sync needs a data directory (data_dir)"),
        ({"lsten": "127.0.0.1:0"}, "lsten: unknown option; did you mean 'listen'?"),
        ({"limit": None}, "limit: unknown option; did you mean 'limits'?"),
        ({"port": 1883}, "port: unknown option"),
        ({"wait_for": 0}, "wait_for: 0 is not a number of brokers from 1 to 1000"),
        ({"secret_file": Path("none")}, "secret_file: cannot read none: No such file or directory"),
        ({"config": "none.yaml"}, "cannot read none.yaml: No such file or directory"),
        ({"config": []}, "config: expected a file name or a mapping, not a list"),
        (
            {"config": {"federation": {"sede": "a"}}},
            "config: federation.sede: unknown key; did you mean 'seed'?",
        ),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Broker(**options)
    assert str(caught.value) == line


def test_environment_variables_do_not_apply_to_an_embedded_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CONFIG", "DISCOVERY", "LISTEN", "ROUTING"):
        monkeypatch.setenv(f"MQTTREE_{name}", "none")
    Broker()


async def test_a_broker_that_does_not_run_has_no_ports_and_no_state() -> None:
    broker = Broker(listen=LOOPBACK)
    await broker.stop()
    assert not broker.running
    assert broker.admin_port is None
    for ask in (lambda: broker.port, lambda: broker.ports, broker.state):
        with pytest.raises(RuntimeError, match="the broker does not run"):
            ask()
    with pytest.raises(RuntimeError, match="does not run"):
        await broker.ready()
    async with broker:
        with pytest.raises(RuntimeError, match="runs already"):
            await broker.start()
        assert broker.running
        stops = [asyncio.create_task(broker.stop()) for _ in range(3)]
        await asyncio.gather(*stops)
    await broker.start()  # and once more
    assert broker.port
    await broker.stop()


# ---------------------------------------------------------------- what it leaves behind


class Traces:
    """What a process has of sockets, files, threads, tasks and timers, and its settings."""

    def __init__(self) -> None:
        folder = Path("/proc/self/fd")
        links = [os.readlink(path) for path in folder.iterdir() if path.is_symlink()]
        self.files = sorted(link for link in links if not link.startswith("/proc/"))
        # Threads that the event loop keeps for whatever it is asked to wait for are its own.
        names = [each.name for each in threading.enumerate()]
        self.threads = sorted(name for name in names if not name.startswith("asyncio_"))
        self.tasks = len(asyncio.all_tasks())
        loop: Any = asyncio.get_running_loop()
        self.timers = [each for each in loop._scheduled if not each.cancelled()]
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
        self.settings = (
            [signal.getsignal(number) for number in signals],
            gc.isenabled(),
            gc.get_threshold(),
            gc.get_freeze_count(),
            resource.getrlimit(resource.RLIMIT_NOFILE),
            logging.getLogger().handlers,
            logging.getLogger("amqtt").level,
            logging.raiseExceptions,
        )

    def keep(self, later: Traces) -> None:
        """Count files that modules keep which were imported by then; sockets and pipes do not."""
        news = Counter(later.files) - Counter(self.files)
        self.files += [each for each in news.elements() if each.startswith("/")]

    def beside(self, later: Traces) -> dict[str, Any]:
        """What there is more of by then, or is not the same."""
        theirs = vars(later)
        found = {name: (mine, theirs[name]) for name, mine in vars(self).items() if name != "files"}
        found["files"] = (Counter(), Counter(later.files) - Counter(self.files))
        return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def everything(folder: Path) -> Broker:
    """A broker that has one of everything: listeners, journal, admin, links, users."""
    users = folder / "users"
    if not users.exists():
        command = [sys.executable, "-m", "mqttree", "passwd", str(users), "anna"]
        subprocess.run(command, input=b"secret\n", cwd=ROOT, check=True, timeout=PATIENCE)
    listeners = {
        "default": {"bind": LOOPBACK},
        "web": {"type": "ws", "bind": LOOPBACK},
        "local": {"bind": f"unix:{folder}/socket"},
    }
    access = {"users": str(users), "anonymous": False}
    federation = {"allow-unauthenticated-brokers": True}
    return Broker(
        cluster="program",
        seeds=["localhost:1"],
        data_dir=folder / "data",
        admin=LOOPBACK,
        config={"listeners": listeners, "access": access, "federation": federation},
    )


async def test_a_stopped_broker_leaves_nothing_in_its_program(tmp_path: Path) -> None:
    async def once() -> None:
        async with everything(tmp_path) as broker:
            assert Traces().settings == before.settings
            login = {"username": "anna", "password": "secret"}
            async with aiomqtt.Client("127.0.0.1", broker.port, **login) as client:
                await client.subscribe("a", 1)
                await client.publish("a", b"hi", 1, retain=True)
                await message(client)
            _, silent = await asyncio.open_connection("127.0.0.1", broker.ports["web"])
            _, idle = await asyncio.open_connection("127.0.0.1", broker.admin_port)
            open_ones.extend((silent, idle))

    open_ones: list[asyncio.StreamWriter] = []
    before = Traces()
    await once()  # the first imports modules, and some of these keep files
    before.keep(Traces())
    for _ in range(2):
        await once()
        for each in open_ones:
            each.close()
        await eventually(lambda: not before.beside(Traces()), lambda: before.beside(Traces()))
    assert not (tmp_path / "socket").exists()


async def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    taken = free_ports(1)[0]
    address = f"127.0.0.1:{taken}"
    plugins = {"amqtt.plugins.nowhere.Plugin": {}}
    async with Broker(listen=address, data_dir=tmp_path / "a") as other:
        retained = aiomqtt.Client("127.0.0.1", other.port)
        async with retained:
            await retained.publish("a", b"hi", 1, retain=True)
        in_use = f"data directory {tmp_path / 'a'} is in use by another broker"
        cannot_listen = f"cannot listen on {address}: address in"
        tries = [
            (Broker(listen=LOOPBACK, data_dir=tmp_path / "a"), in_use),
            (
                Broker(listen=address, data_dir=tmp_path / "b"),
                f"listener 'default': {cannot_listen}",
            ),
            (Broker(listen=LOOPBACK, admin=address), "admin: cannot listen on"),
            (Broker(listen=LOOPBACK, config={"plugins": plugins}), "config: plugins."),
            (
                Broker(
                    config={"listeners": {"default": {"bind": LOOPBACK}, "x": {"bind": address}}}
                ),
                "listener 'x': cannot listen",
            ),
        ]
        for broker, _ in tries:  # the first time: modules are imported
            with pytest.raises(ConfigError):
                await broker.start()
        await eventually(lambda: len(asyncio.all_tasks()) == 1, asyncio.all_tasks)
        threads = Traces().threads, Traces().files
        for broker, line in tries:
            with pytest.raises(ConfigError) as caught:
                await broker.start()
            assert str(caught.value).startswith(line)
            assert not broker.running
            found = Traces()
            assert (found.threads, found.files) == threads
            assert found.tasks == 1
    # What was in the way has gone.
    for broker, _ in tries[:3]:
        async with broker:
            assert broker.port


async def test_a_start_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    before = Traces()
    async with everything(tmp_path):
        pass
    before.keep(Traces())
    for turns in range(100):
        broker = everything(tmp_path)
        starting = asyncio.create_task(broker.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        if not starting.cancel():  # it was quick enough
            assert turns > 1
            await broker.stop()
            break
        with pytest.raises(asyncio.CancelledError):
            await starting
        await eventually(lambda: not before.beside(Traces()), lambda: before.beside(Traces()))


# ---------------------------------------------------------------- several


async def test_two_brokers_in_one_loop_federate(tmp_path: Path) -> None:
    """Over a restart of one of them, with data directories and without names or ports given."""
    options: dict[str, Any] = {"listen": LOOPBACK, "cluster": "program-two", "wait_for": 2}
    first = Broker(seeds=[], data_dir=tmp_path / "first", **options)
    async with first:
        seeds = [f"127.0.0.1:{first.port}"]
        second = Broker(seeds=seeds, data_dir=tmp_path / "second", **options)
        async with second, asyncio.timeout(PATIENCE):
            await asyncio.gather(first.ready(), second.ready())
            ids = {each.state()["id"] for each in (first, second)}
            assert len(ids) == 2
            async with (
                aiomqtt.Client("127.0.0.1", first.port) as here,
                aiomqtt.Client("127.0.0.1", second.port) as there,
            ):
                await there.subscribe("a/#", 2)
                await here.publish("a/b", b"over", 2)
                assert await message(there) == ("a/b", b"over")
                await there.publish("kept", b"for good", 1, retain=True)
            await second.stop()
            await second.start()
            await second.ready()
            assert {each.state()["id"] for each in (first, second)} == ids
            async with aiomqtt.Client("127.0.0.1", second.port) as there:
                await there.subscribe("kept", 1)
                assert await message(there) == ("kept", b"for good")


async def test_an_embedded_broker_federates_only_if_told_to() -> None:
    """A broker that was given neither cluster nor seeds nor discovery lets no broker in."""
    alone = Broker(listen=LOOPBACK)
    async with alone:
        other = Broker(listen=LOOPBACK, seeds=[f"127.0.0.1:{alone.port}"])
        async with other:

            def refused() -> int:
                return int(alone.state()["counters"]["links_refused"])

            await eventually(refused, other.state)
            assert alone.state()["members"] == other.state()["members"] == []


# ---------------------------------------------------------------- the package


def test_the_module_can_be_run_as_the_command() -> None:
    def said(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return done.returncode, done.stdout, done.stderr

    assert said("mqttree", "--version") == said("mqttree.broker.cli", "--version")
    assert said("mqttree", "run", "--routing", "x") == (
        2,
        "",
        "mqttree: --routing: 'x' is not one of flood, interest, topic, srt, ort\n",
    )


def test_the_package_exports_its_public_names_alone() -> None:
    assert (
        dir(mqttree)
        == mqttree.__all__
        == [
            "Broker",
            "ConfigError",
            "ConnectionLostError",
            "Limits",
            "Message",
            "MultiClient",
            "SubscriptionRefusedError",
        ]
    )
    assert {getattr(mqttree, name).__module__ for name in mqttree.__all__} == {"mqttree"}
    assert issubclass(ConfigError, ValueError)


USER = """
import asyncio
from pathlib import Path
from typing import Any, assert_type

import mqttree
from mqttree import Broker, ConfigError, Limits


async def serve(folder: Path) -> int:
    config = {"max_qos": 1}
    async with Broker(listen="127.0.0.1:0", data_dir=folder, config=config) as broker:
        assert_type(broker, Broker)
        assert_type(broker.ports, dict[str, int])
        assert_type(broker.admin_port, int | None)
        assert_type(broker.state(), dict[str, Any])
        await broker.ready()
        return broker.port


try:
    assert asyncio.run(serve(Path("data"))) > 0
except ConfigError as error:
    assert_type(error, ConfigError)
try:
    Broker(discovery="pigeons")  # type: ignore[arg-type]
    Broker(port=1883)  # type: ignore[arg-type]
except ConfigError:
    print("from", mqttree.__file__)
"""


def test_the_wheel_is_typed_and_runs_a_users_program(tmp_path: Path) -> None:
    """What `pip install` brings has the types, and a user's program is checked and runs with it."""
    source, site, wheels = tmp_path / "source", tmp_path / "site", tmp_path / "wheels"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "mqttree", source / "mqttree", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)

    def run_python(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(site), "MYPYPATH": str(site)}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run_python(*pip, "--disable-pip-version-check", "--wheel-dir", str(wheels), str(source))
    [wheel] = wheels.iterdir()
    with zipfile.ZipFile(wheel) as packed:
        assert {"mqttree/py.typed", "mqttree/__main__.py"} <= set(packed.namelist())
        assert all(name.startswith(("mqttree/", "mqttree-")) for name in packed.namelist())
        packed.extractall(site)
    (tmp_path / "user.py").write_text(USER)
    # Files of the user's, beside the program.
    (tmp_path / "bench").mkdir()
    for name in ("broker.py", "routing.py", "bench/__init__.py"):
        (tmp_path / name).write_text("raise SystemExit(__name__)\n")
    mypy = ["-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent"]
    run_python(*mypy, "--cache-dir", str(tmp_path / "cache"), "user.py")
    assert run_python("user.py") == f"from {site / 'mqttree' / '__init__.py'}\n"


def test_what_the_public_classes_raise_and_yield_can_be_imported() -> None:
    """From `mqttree` itself, or it is Python's own."""
    named = set[str]()
    for kind in (mqttree.Broker, mqttree.MultiClient):
        public = [each for name, each in vars(kind).items() if not re.match("_[^_]", name)]
        for member in [kind, *public]:
            said = inspect.getdoc(member) or ""
            named |= set(re.findall(r"\b[A-Z]\w+Error\b", said))
            for hint in getattr(member, "__annotations__", {}).values():
                named |= set(re.findall(r"\b(?:Message|Arrival|Connection|Limits)\b", str(hint)))
    assert {"Message", "ConnectionLostError", "SubscriptionRefusedError"} <= named
    assert {name for name in named if not hasattr(builtins, name)} <= set(mqttree.__all__)
