"""The command line with real processes: what is refused and how, how a broker begins and ends, and
the live view."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session

from mqttree.bench.lab.ports import free_ports, ports_in_a_row
from mqttree.broker.base.address import Address
from mqttree.broker.cli.admin_client import AdminPort, StatusError
from tests.kit.command import mqttree, surroundings
from tests.kit.waiting import PATIENCE, until


@contextlib.contextmanager
def started(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command that runs; killed with everything that it started if the test leaves it alive."""
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": surroundings(),
    } | options
    process = subprocess.Popen([sys.executable, "-m", *words], text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
            process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait(PATIENCE)


def answer(port: int) -> dict[str, Any] | None:
    try:
        return AdminPort(Address("127.0.0.1", port)).federation(PATIENCE)
    except StatusError:
        return None


def running(port: int, admin: int, *words: str) -> tuple[str, ...]:
    listen, at = f"127.0.0.1:{port}", f"127.0.0.1:{admin}"
    return (
        "mqttree.broker.cli",
        "run",
        "--listen",
        listen,
        "--admin",
        at,
        "--discovery",
        "off",
        *words,
    )


# ---------------------------------------------------------------- refusals


def one_line(found: subprocess.CompletedProcess[str], code: int = 2) -> str:
    assert found.returncode == code, found
    assert "Traceback" not in found.stderr
    assert found.stdout == ""
    lines = found.stderr.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["rnu"], "mqttree: argument COMMAND: invalid choice: 'rnu'"),
        (
            ["run", "--bogus"],
            "mqttree: unrecognized arguments: --bogus (see mqttree run --help)",
        ),
        (
            ["run", "--sed=h:1"],
            "mqttree: unrecognized arguments: --sed=h:1; did you mean --seed? (see mqttree run",
        ),
        (["-V"], "mqttree: unrecognized arguments: -V (see mqttree --help)"),
        (["run", "--lis", "127.0.0.1:1"], "mqttree: unrecognized arguments: --lis"),
        (["run", "--listen"], "mqttree: argument --listen: expected one argument"),
        (
            ["run", "-c", "nowhere.yaml"],
            "mqttree: cannot read nowhere.yaml: No such file or directory",
        ),
        (["status", "--admin", "x:y"], "mqttree: --admin: address 'x:y': port 'y' is not a number"),
        (
            ["status", "--admin", "http://127.0.0.1:8081"],
            "mqttree: --admin: address 'http://127.0.0.1:8081': expected HOST:PORT, without http://",
        ),
        (["status", "--admin", ""], "mqttree: --admin: expected HOST:PORT, not an empty text"),
        (["run", "--listen", ""], "mqttree: --listen: expected HOST:PORT, not an empty text"),
        (["alarms", "--admin", "h:0"], "mqttree: --admin: address 'h:0' has no port to ask"),
        (
            ["status", "--admin-cafile", "no-such"],
            "mqttree: --admin-cafile: cannot use no-such: No such file or directory",
        ),
        (["status", "--admin-cert", "c"], "mqttree: --admin-cert: needs --admin-cafile"),
        (["top", "--admin-key", "k"], "mqttree: --admin-key: needs --admin-cert"),
        (
            ["federate", "--broker", "mqtt://h", "--no-data-dir", "--data-dir", "d"],
            "mqttree: --no-data-dir: there is one, d",
        ),
        (["federate", "--protocol"], "mqttree: argument --protocol: expected one argument"),
    ],
)
def test_a_wrong_command_line_is_answered_by_one_line(words: list[str], line: str) -> None:
    assert one_line(mqttree(*words)).startswith(line)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["staus"], "status"),
        (["federat", "--broker", "x"], "federate"),
        (["drain", "--withn", "3"], "--within"),
        (["live", "--prt", "2000"], "--port"),
        (["bench", "lod"], "load"),
        (["bench", "run", "local", "--shrt"], "--short"),
        (["completion", "bsh"], "bash"),
        (["--verison"], "--version"),
        (["--verison", "run"], "--version"),
    ],
)
def test_a_misspelt_command_or_flag_is_answered_by_the_one_that_was_meant(
    words: list[str], meant: str
) -> None:
    assert f"; did you mean {meant}? (see mqttree" in one_line(mqttree(*words))


def test_mqttree_alone_prints_what_there_is() -> None:
    found = mqttree()
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("usage: mqttree ")
    assert "alarms" in found.stdout


def test_a_misspelt_protocol_is_named_whatever_package_is_missing(tmp_path: Path) -> None:
    (tmp_path / "paho.py").write_text("raise ModuleNotFoundError('no', name='paho')")
    words = ["--id", "1", "--broker", "mqtt://h"]
    found = mqttree("federate", "--protocol", "spon", *words, PYTHONPATH=str(tmp_path))
    assert "invalid choice: 'spon'" in one_line(found)
    found = mqttree("federate", "--protocol", "spohn", *words, PYTHONPATH=str(tmp_path))
    line = "mqttree: federate: paho is missing; pip install 'mqttree[client]'"
    assert one_line(found) == line


def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError('no', name='uvloop')")
    found = mqttree("run", "--listen", "127.0.0.1:0", PYTHONPATH=str(tmp_path))
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1] == "mqttree: uvloop is missing: pip install uvloop"
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "access:\n  users: nosuch\n",
            ":2: access.users: cannot read nosuch: No such file or directory",
        ),
        ("access:\n  rules: /\n", ":2: access.rules: cannot read /: Is a directory"),
        ("plugins:\n  no.such.Plugin: {}\n", ":2: plugins.no.such.Plugin: Plugin import failed"),
        (
            "plugins:\n  amqtt.plugins.authentication.FileAuthPlugin:\n    password-file: x\n",
            ":2: plugins.amqtt.plugins.authentication.FileAuthPlugin: can not match",
        ),
    ],
)
def test_a_wrong_configuration_file_is_answered_by_one_line(
    tmp_path: Path, text: str, line: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    port, admin = free_ports(2)
    where = ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
    found = mqttree("run", "-c", str(path), *where, "--discovery", "off")
    assert one_line(found).startswith(f"mqttree: {path}{line}")


def test_a_port_or_folder_of_another_broker_is_named(tmp_path: Path) -> None:
    port, admin, other = free_ports(3)
    with started(*running(port, admin, "--data-dir", str(tmp_path))):
        until(lambda: answer(admin), "the broker answers")
        line = one_line(mqttree(*running(port, other)[1:]))
        assert re.search(rf"cannot listen on 127\.0\.0\.1:{port}: address (already )?in use", line)
        assert f"cannot listen on 127.0.0.1:{admin}: address already in use" in one_line(
            mqttree(*running(other, admin)[1:])
        )
        assert "is in use by another broker" in one_line(
            mqttree(*running(other, other, "--data-dir", str(tmp_path))[1:])
        )
        assert answer(admin) is not None


def test_status_says_when_something_else_answers() -> None:
    port, admin = free_ports(2)
    with started(*running(port, admin)):
        until(lambda: answer(admin), "the broker answers")
        found = mqttree("status", "--admin", f"127.0.0.1:{port}")
        assert one_line(found, code=1).endswith(
            f"127.0.0.1:{port} does not answer as a broker's admin port does"
        )


# ---------------------------------------------------------------- a broker


def test_version_is_printed() -> None:
    found = mqttree("--version")
    assert found.returncode == 0
    assert re.fullmatch(r"mqttree \d+\.\d+.*, core (compiled|python)\n", found.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_broker_cleanly(number: signal.Signals) -> None:
    port, admin = free_ports(2)
    with started(*running(port, admin, "--name", "x")) as process:
        until(lambda: answer(admin), "the broker answers")
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    first, last = said.splitlines()
    assert f"x listens on 127.0.0.1:{port}, admin 127.0.0.1:{admin}, id " in first
    assert first.endswith("cluster mqttree, discovery off, anonymous access allowed")
    assert last.endswith("INFO stopping")


def test_a_variable_that_is_none_is_one_warning_line() -> None:
    port, admin = free_ports(2)
    with started(*running(port, admin), env=surroundings(MQTTREE_LISTN="x")) as process:
        until(lambda: answer(admin), "the broker answers")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    [line] = [line for line in said.splitlines() if "WARNING" in line]
    assert line.endswith("MQTTREE_LISTN is no variable of mqttree; did you mean 'MQTTREE_LISTEN'?")


PLUGINS = {
    "everybody": "amqtt.plugins.authentication.AnonymousAuthPlugin: {allow_anonymous: true}",
    "named": "amqtt.plugins.authentication.AnonymousAuthPlugin: {allow_anonymous: false}",
    "file": "amqtt.plugins.authentication.FileAuthPlugin: {password_file: PASSWORDS}",
    "own": "tests.process.test_cli.Oracle: {}",
}


@pytest.mark.parametrize(
    ("plugins", "more", "line", "lets_in"),
    [
        ([], "auth: {allow-anonymous: true}", "anonymous access allowed", True),
        (["everybody", "file"], "", "anonymous access allowed", True),
        (["named", "file"], "", "no anonymous access", False),
        (["named"], "", "no anonymous access, but any user name without a password", False),
        (["own"], "", "plugins decide who comes in", True),
        (["everybody"], "access: {anonymous: no}", "no anonymous access", False),
    ],
)
def test_the_first_log_lines_say_which_clients_may_connect(
    tmp_path: Path, plugins: list[str], more: str, line: str, lets_in: bool
) -> None:
    """And a client without a name finds that it is true."""
    passwords, config = tmp_path / "passwords", tmp_path / "config.yaml"
    passwords.write_text("anna:$6$x$y\n")
    chosen = f"plugins: {{{', '.join(PLUGINS[name] for name in plugins)}}}\n" if plugins else ""
    config.write_text(chosen.replace("PASSWORDS", str(passwords)) + more + "\n")
    port, admin = free_ports(2)
    with started(*running(port, admin, "-c", str(config))) as process:
        until(lambda: answer(admin), "the broker answers")
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
            client.sendall(bytes.fromhex("100d00044d5154540402003c000163"))
            connack = client.recv(4)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    first = next(each for each in said.splitlines() if " listens on " in each)
    assert first.endswith(f", {line}")
    assert (connack == b"\x20\x02\x00\x00") is lets_in


class Oracle(BaseAuthPlugin):
    """A user's own plugin."""

    async def authenticate(self, *, session: Session) -> bool | None:
        return True


def test_a_broker_keeps_its_id_over_a_restart(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        port, admin = free_ports(2)
        with started(*running(port, admin, "--name", "x", "--data-dir", str(tmp_path))) as process:
            state = until(lambda at=admin: answer(at), "the broker answers")
            found = mqttree("status", "--json", MQTTREE_ADMIN=f"127.0.0.1:{admin}")
            assert found.returncode == 0
            assert json.loads(found.stdout).keys() == state.keys()
            found = mqttree("status", "--admin", f"127.0.0.1:{admin}")
            assert found.stdout.startswith(f"broker   x (127.0.0.1:{port})  id {state['id']}\n")
            assert "root     this broker" in found.stdout
            process.terminate()
            assert process.wait(PATIENCE) == 0
            seen.append((state["id"], state["boot"]))
    assert seen[0][0] == seen[1][0]
    assert seen[0][1] < seen[1][1]


def test_broken_pipes_do_not_end_a_broker() -> None:
    port, admin = free_ports(2)
    with started(*running(port, admin, "--log-level", "debug")) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        process.stderr.close()
        process.stdout.close()
        until(lambda: answer(admin), "the broker answers")
        with socket.create_connection(("127.0.0.1", port)) as garbage:
            garbage.sendall(b"\xff" * 100)
            garbage.recv(100)
        assert answer(admin) is not None
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_a_broker_runs_with_all_standard_streams_closed() -> None:
    port, admin = free_ports(2)
    command = 'exec "$0" -m "$@" >&- 2>&- <&-'
    words = ["sh", "-c", command, sys.executable, *running(port, admin)]
    process = subprocess.Popen(words, env=surroundings())
    try:
        until(lambda: answer(admin), "the broker answers")
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait(PATIENCE)


# ---------------------------------------------------------------- the live view


def brokers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a program that the view ran has ended
            if "mqttree.broker.cli" in child.cmdline():
                found.append(child)
    return found


def admin_of(broker: psutil.Process) -> int:
    words = broker.cmdline()
    return int(words[words.index("--admin") + 1].rpartition(":")[2])


def agreed(brokers: list[psutil.Process]) -> bool:
    states = [answer(admin_of(broker)) for broker in brokers]
    roots = {state["root"] for state in states if state is not None}
    ids = {state["id"] for state in states if state is not None}
    return (
        None not in states
        and len(roots) == 1
        and roots <= ids
        and all(state["links"] for state in states if state)
    )


def gone(brokers: list[psutil.Process]) -> bool:
    for broker in brokers:
        with contextlib.suppress(psutil.NoSuchProcess):
            if broker.is_running() and broker.status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def live(port: int, cluster: str) -> tuple[str, ...]:
    return ("mqttree.broker.cli.live", "--brokers", "3", "--port", str(port), "--cluster", cluster)


ROOT = re.compile(
    (
        r"3 of 3 brokers answer, cluster \S+, the root is (\d+)\n.*\n"
        r"  kill -9 (\d+)    # the root: (\d+)\n"
    ),
    re.DOTALL,
)


def pictures(drawn: bytes) -> list[str]:
    """What the view has drawn, each picture whole: one that is still being written is left out."""
    return [each.decode() for each in drawn.split(b"Ctrl-C stops all of it.")[:-1]]


def test_live_shows_a_tree_and_its_repair_and_ends_its_brokers(tmp_path: Path) -> None:
    port = ports_in_a_row(3)[0]
    drawn = tmp_path / "pictures"

    def seen() -> list[str]:
        return pictures(drawn.read_bytes())

    with drawn.open("w") as out, started(*live(port, f"live-{port}"), stdout=out) as process:
        until(lambda: len(brokers_of(process)) == 3, "three brokers are started")
        brokers = brokers_of(process)
        until(lambda: agreed(brokers), "three brokers agree")
        # a picture before this one may know fewer brokers, and name no root to kill
        picture = until(
            lambda: next(filter(ROOT.search, seen()), None), "the view names the root of three"
        )
        assert f"mosquitto_sub -p {port + 1} -t 'demo/#' -v\n" in picture
        assert f"mosquitto_pub -p {port} -t demo/hello -m hi\n" in picture
        # Whatever port was free: the command that it names finds the broker.
        [(words, page)] = re.findall(r"  mqttree (status.*)    # dashboard: (http://\S+)", picture)
        assert mqttree(*words.split()).returncode == 0
        with urllib.request.urlopen(page, timeout=PATIENCE) as answer:
            assert b"<title>" in answer.read()
        assert 8883 > int(page.rstrip("/").rpartition(":")[2]) >= 8080
        named, pid, again = (int(number) for number in ROOT.findall(picture)[0])
        assert named == again
        assert named in range(port, port + 3)
        root = next(broker for broker in brokers if broker.pid == pid)
        root.kill()
        rest = [broker for broker in brokers if broker.pid != pid]
        until(lambda: agreed(rest), "two brokers agree")
        until(
            lambda: any("dead (killed by SIGKILL)" in each for each in seen()),
            "the view shows the death",
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        assert gone(brokers)
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_live_on_a_terminal_redraws() -> None:
    port = ports_in_a_row(3)[0]
    ours, theirs = pty.openpty()
    terminal = surroundings(TERM="xterm", COLUMNS="120", LINES="40")
    try:
        with started(*live(port, f"live-{port}"), stdout=theirs, env=terminal) as process:
            os.close(theirs)
            seen = b""

            def shown() -> bool:
                nonlocal seen
                if select.select([ours], [], [], 0.1)[0]:
                    seen += os.read(ours, 65536)
                whole = pictures(seen)
                return len(whole) > 2 and any(
                    "the root is " in each and "in 0/s out " in each for each in whole
                )

            until(shown, "pictures that name the root")
            assert b"\x1b[K" in seen
            assert re.search(rb"\x1b\[\d+F", seen)  # up, over the picture before
            brokers = brokers_of(process)
            process.terminate()
            with contextlib.suppress(OSError):  # the other end is closed
                while os.read(ours, 65536):
                    pass
            assert process.wait(PATIENCE) == 0
            assert gone(brokers)
    finally:
        os.close(ours)


def test_a_killed_live_view_leaves_no_broker_behind() -> None:
    port = ports_in_a_row(3)[0]
    with started(*live(port, f"live-{port}"), stdout=subprocess.DEVNULL) as process:
        until(lambda: len(brokers_of(process)) == 3, "three brokers are started")
        brokers = brokers_of(process)
        process.kill()
        process.wait(PATIENCE)
        until(lambda: gone(brokers), "the brokers end too")


def test_live_refuses_a_busy_port() -> None:
    port = ports_in_a_row(3)[0]
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", port + 2))
        busy.listen()
        command = [sys.executable, "-m", *live(port, "x")]
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert (
            one_line(found)
            == f"mqttree live: cannot listen on 127.0.0.1:{port + 2}: address already in use"
        )


@pytest.mark.parametrize(
    "words", [["--brokers", "0"], ["--brokers", "x"], ["--port", "65535"], ["--cluster", ""]]
)
def test_live_refuses_bad_input(words: list[str]) -> None:
    command = [sys.executable, "-m", "mqttree.broker.cli.live", *words]
    if words[0] == "--cluster":
        command += ["--port", str(ports_in_a_row(3)[0])]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    one_line(found)
