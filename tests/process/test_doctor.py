"""`mqttree doctor` with real brokers, and with what is wrong between them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttree.bench.lab.ports import free_ports
from tests.kit.brokers import Broker, Cluster, secret_file
from tests.kit.command import mqttree
from tests.kit.waiting import PATIENCE, until
from tests.process.certificates import Authority


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    return mqttree("doctor", *words)


def found(*words: str) -> list[dict[str, str]]:
    """What it finds, with these options."""
    answer = doctor("--json", *words)
    assert answer.stderr == "", answer
    report = json.loads(answer.stdout)
    findings: list[dict[str, str]] = report["findings"]
    levels = [finding["level"] for finding in findings]
    assert (report["errors"], report["warnings"]) == (
        levels.count("error"),
        levels.count("warning"),
    )
    assert answer.returncode == (1 if report["errors"] else 0)
    assert all(finding["remedy"] for finding in findings if finding["level"] != "ok")
    return findings


def errors(findings: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(each["check"], each["text"]) for each in findings if each["level"] == "error"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers with a secret that find each other by multicast."""
    folder = tmp_path_factory.mktemp("doctor")
    with Cluster(
        folder, "--secret-file", secret_file(folder, "secret", "0123456789abcdef")
    ) as cluster:
        for _ in range(2):
            cluster.add()
        cluster.settle()
        yield cluster


def options(broker: Broker, cluster: Cluster, *more: str) -> list[str]:
    """Those of a broker, for its doctor."""
    said = ["--listen", broker.address, "--admin", f"127.0.0.1:{broker.admin}"]
    return [*said, "--cluster", cluster.cluster, *cluster.flags, *more]


def asked(cluster: Cluster, *more: str) -> list[str]:
    """To ask without a broker of this machine, and without multicast."""
    (port,) = free_ports(1)
    said = ["--cluster", cluster.cluster, "--discovery", "static", "--admin", f"127.0.0.1:{port}"]
    return [*said, *more]


def test_between_brokers_that_see_each_other_nothing_is_wrong(two: Cluster) -> None:
    one, other = two.brokers
    before, lines = two.tree(), len(one.lines("WARNING")) + len(other.lines("WARNING"))
    findings = found(
        *options(one, two, other.address, "--other", f"127.0.0.1:{other.admin}", "--seconds", "6.5")
    )
    assert errors(findings) == []
    said = {(each["check"], each["level"]) for each in findings}
    assert {("port", "ok"), ("mtu", "ok"), ("secret", "ok"), ("clock", "ok")} <= said
    text = "\n".join(each["text"] for each in findings)
    assert f"heard {other.name} at 127.0.0.1" in text
    assert f"this broker has a link to {other.name}" in text
    assert f"{other.name} has a link to {one.name}" in text
    # It has left no trace: no link, no warning, no change of the tree.
    assert two.tree() == before
    assert len(one.lines("WARNING")) + len(other.lines("WARNING")) == lines
    assert [len(broker.view()["links"]) for broker in two.brokers] == [1, 1]


def test_people_get_lines_with_remedies_and_a_summary(two: Cluster, tmp_path: Path) -> None:
    wrong = secret_file(tmp_path, "wrong", "fedcba9876543210")
    answer = doctor(*asked(two, "--secret-file", wrong, two.brokers[0].address))
    assert answer.returncode == 1
    assert f"error    secret     {two.brokers[0].address} has another cluster" in answer.stdout
    assert "-> give both brokers the same --secret-file" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "1 error, 1 warning"


def test_what_keeps_two_brokers_apart_is_named(two: Cluster, tmp_path: Path) -> None:
    at = two.brokers[0].address
    right = two.flags
    wrong = secret_file(tmp_path, "wrong", "fedcba9876543210")
    (port,) = free_ports(1)
    cases = [
        ([at, "--secret-file", wrong], "secret", "has another cluster secret"),
        ([at], "secret", "refuses: your broker has no cluster secret"),
        ([at, *right, "--cluster", "elsewhere"], "cluster", "is of cluster 'elsewhere', not"),
        ([at, *right, "--routing", "srt"], "routing", "routes by srt"),
        ([f"127.0.0.1:{port}", *right], "port", "Connection refused"),
        (["no-such-name.invalid:1883", *right], "port", "cannot connect to no-such-name"),
    ]
    for words, check, text in cases:
        result = errors(found(*asked(two, *words)))
        assert [each[0] for each in result] == [check], (words, result)
        assert text in result[0][1]


def test_a_broker_that_does_not_federate_says_so(tmp_path: Path) -> None:
    with Cluster(tmp_path, "--discovery", "off") as cluster:
        broker = cluster.add().up()
        result = found(*asked(cluster, broker.address))
        assert [each[0] for each in errors(result)] == ["broker"]
        assert "dials a broker that does not federate" in errors(result)[0][1]
        # Asked about itself, with its own options.
        result = found("--admin", f"127.0.0.1:{broker.admin}", "--discovery", "off")
        assert any("discovery is off" in each["text"] for each in result)


def serve(sock: socket.socket, act: Callable[[socket.socket], Any]) -> None:
    with contextlib.suppress(OSError):
        while True:
            conn, _ = sock.accept()
            threading.Thread(target=act, args=(conn,), daemon=True).start()


@contextlib.contextmanager
def port_that(act: Callable[[socket.socket], Any]) -> Iterator[str]:
    """A TCP port of this process that treats connections so."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        threading.Thread(target=serve, args=(sock, act), daemon=True).start()
        yield f"127.0.0.1:{sock.getsockname()[1]}"
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def passes_short_packets(target: str) -> Callable[[socket.socket], None]:
    """As a path on which long packets are lost, and no router says so."""
    host, _, port = target.rpartition(":")

    def act(conn: socket.socket) -> None:
        with conn, contextlib.suppress(OSError):
            data = conn.recv(65536)
            if len(data) > 1400:
                while conn.recv(65536):
                    pass
                return
            with socket.create_connection((host, int(port)), PATIENCE) as far:
                far.sendall(data)
                while data := far.recv(65536):
                    conn.sendall(data)

    return act


def test_a_path_that_loses_long_packets_is_a_matter_of_mtu(two: Cluster) -> None:
    with port_that(passes_short_packets(two.brokers[0].address)) as at:
        result = errors(found(*asked(two, *two.flags, at)))
    assert result == [("mtu", f"{at} answers short packets and no long ones")]


def answers_http(conn: socket.socket) -> None:
    with conn, contextlib.suppress(OSError):
        conn.recv(65536)
        conn.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def closes(conn: socket.socket) -> None:
    conn.close()


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (answers_http, "is no broker of mqttree"),
        (closes, "ends the connection"),
        (lambda conn: None, "accepts a connection and answers nothing"),
    ],
)
def test_what_is_no_broker_is_called_so(
    two: Cluster, act: Callable[[socket.socket], Any], text: str
) -> None:
    held: list[socket.socket] = []

    def keep(conn: socket.socket) -> None:
        held.append(conn)
        act(conn)

    with port_that(keep) as at:
        result = errors(found(*asked(two, *two.flags, at)))
    for conn in held:
        conn.close()
    assert [each[0] for each in result] == ["broker"]
    assert text in result[0][1]


def test_tls_on_one_side_only_is_found_from_either_side(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("broker")
    tls = f"tls: {{cafile: {authority.ca}, certfile: {certificate}, keyfile: {key}}}"
    (port,) = free_ports(1)
    listener = f"bind: '127.0.0.1:{port}', ssl: true, certfile: {certificate}, keyfile: {key}"
    mutual = f"cafile: {authority.ca}, require_certificate: true"
    (tmp_path / "tls.yaml").write_text(
        f"listeners: {{default: {{{listener}, {mutual}}}}}\n"
        f"federation: {{{tls}, discovery: static}}\n"
    )
    with Cluster(tmp_path / "brokers") as cluster:
        secured = cluster.add("-c", str(tmp_path / "tls.yaml"), listen=False).up()
        plain = cluster.add("--discovery", "static").up()
        at = f"127.0.0.1:{port}"
        result = errors(found(*asked(cluster, at)))
        assert [each[0] for each in result] in (["secret"], ["broker"])
        admin = ["--admin", f"127.0.0.1:{free_ports(1)[0]}", "--cluster", cluster.cluster]
        both = ["-c", str(tmp_path / "tls.yaml"), *admin]
        result = errors(found(*both, plain.address))
        assert [each[0] for each in result] == ["secret"]
        assert "do not agree on TLS" in result[0][1]
        assert errors(found(*both, at)) == []
        assert secured.running


def test_no_answer_of_the_broker_of_this_machine_or_of_the_other_one_is_an_error(
    two: Cluster,
) -> None:
    port, other = free_ports(2)
    nobody, dead = f"127.0.0.1:{port}", f"127.0.0.1:{other}"
    alone = ["--discovery", "static", "--seed", two.brokers[0].address, *two.flags]
    common = ["--cluster", two.cluster, "--admin", nobody, *alone]
    [(check, text)] = errors(found(*common))
    assert (check, f"no broker answers at {nobody}" in text) == ("broker", True)
    assert any(dead in text for _, text in errors(found(*common, "--other", dead)))
    # Asked about another broker, that is what counts.
    assert errors(found(*common, two.brokers[0].address)) == []
    assert errors(found(*common, two.brokers[0].address, "--other", dead)) != []


def test_a_doctor_without_the_token_of_its_broker_says_so(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        token = str(tmp_path / "token")
        broker = cluster.add("--admin-token-file", token, start=False)
        broker.start()
        its = options(broker, cluster, "--discovery", "off")
        until(lambda: doctor(*its, "--admin-token-file", token).returncode == 0, "an answer")
        answer = doctor(*its)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert answer.stderr.endswith(" wants a token (--admin-token-file)\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["x y"], "HOST:PORT: address 'x y'"),
        (["--other", ":::"], "--other: "),
        (["--seconds", "0"], "argument --seconds: "),
        (["--secret-file", "/no/such/file"], "--secret-file: "),
        (["--discovery", "luck"], "--discovery: 'luck' is not one of"),
    ],
)
def test_bad_input_of_a_doctor_is_one_line(words: list[str], line: str) -> None:
    answer = doctor(*words)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"mqttree: {line}"), answer.stderr
    assert answer.stderr.count("\n") == 1
