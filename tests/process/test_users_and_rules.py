"""Users, rules and certificates as files of a running broker: who gets in, what is reloaded, and
that no client is dropped."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqttree.bench.lab.ports import free_ports
from mqttree.broker.auth.users_file import entries
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack, Connect
from tests.kit.brokers import Broker, Cluster, secret_file
from tests.kit.clients import Make
from tests.kit.command import mqttree
from tests.kit.raw_client import RawClient
from tests.kit.waiting import PATIENCE, until
from tests.process.certificates import Authority, self_signed
from tests.text.test_architecture import read
from tests.text.test_code_blocks import blocks

CONFIG = """
listeners:
  default: {{bind: "127.0.0.1:{port}"}}
  open: {{bind: "127.0.0.1:{open}"}}
  secure:
    bind: 127.0.0.1:{tls}
    ssl: on
    certfile: {folder}/cert.pem
    keyfile: {folder}/key.pem
access:
  users: {folder}/users
  rules: {folder}/rules
  anonymous: {{open: yes}}
"""

RULES = """
user anna
allow all home/#
allow subscribe #
user *
allow all user/%u/#
listener open
anonymous
allow publish open/#
"""


class Guarded:
    """A broker with users and rules."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder = folder
        self.broker = broker
        self.open, self.tls = free_ports(2)
        self.users("anna", "bert")
        self.rules(RULES)
        self_signed(folder, "first")
        (folder / "config.yaml").write_text(
            CONFIG.format(port=broker.port, open=self.open, tls=self.tls, folder=folder)
        )

    def users(self, *names: str) -> None:
        lines = [line for name in names for line in entries(name, f"{name}'s", os.urandom)]
        (self.folder / "users").write_text("\n".join(lines))

    def rules(self, text: str) -> None:
        (self.folder / "rules").write_text(text)

    def reload(self, *words: str) -> str:
        """Reload, and return the line that says how that went."""
        before = len(self.broker.lines(*words))
        assert self.broker.process is not None
        self.broker.process.send_signal(signal.SIGHUP)
        return str(until(lambda: self.broker.lines(*words)[before:], f"{words} in the log")[0])


def handshake(port: int) -> tuple[ssl.SSLSocket, bytes]:
    """A TLS connection, and the certificate that was shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = context.wrap_socket(socket.create_connection(("127.0.0.1", port), PATIENCE))
    shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return connection, shown


def answer(port: int, user: str | None, password: bytes | None = None, version: int = 5) -> int:
    """The code that a CONNECT is answered with."""
    with RawClient(port, version=version) as client:
        connack = client.ask(Connect("MQTT", version, True, 0, "", user, password))
    assert isinstance(connack, Connack)
    return connack.code


@contextmanager
def guarded(folder: Path, *flags: str) -> Iterator[Guarded]:
    with Cluster(folder) as cluster:
        config = folder / "config.yaml"
        broker = cluster.add(
            "--discovery", "off", "--config", str(config), *flags, listen=False, start=False
        )
        found = Guarded(folder, broker)
        broker.start().up()
        yield found
        assert broker.running
        assert broker.terminate() == 0
        assert "Traceback" not in broker.log()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path) as found:
        yield found


def test_passwords_and_rules_decide_who_may_do_what(one: Guarded, make: Make) -> None:
    port = one.broker.port
    assert one.broker.lines("anonymous access on listener open only")
    for _ in range(2):  # the second time what was right is known
        assert answer(port, "anna", b"anna's") == 0
        assert answer(port, "anna", b"bert's") == 0x86
    assert answer(port, "anna", b"wrong", version=4) == 4
    assert answer(port, "anna") == 0x86
    assert answer(port, "nobody", b"x") == 0x86
    assert answer(port, None) == 0x87
    assert answer(one.open, None) == 0
    assert answer(one.open, "nobody", b"x") == 0x86
    anna = make(port, user=("anna", "anna's"))
    bert = make(port, user=("bert", "bert's"))
    assert anna.subscribe("#") == [0]
    assert bert.subscribe("#") == [0x87]
    assert bert.subscribe("user/bert/#") == [0]
    anybody = make(one.open)
    anybody.publish("home/x", b"no", qos=1)
    anybody.done(anybody.publish("open/x", b"yes", qos=1))
    bert.publish("user/anna/x", b"no", qos=1)
    bert.done(bert.publish("user/bert/x", b"mine", qos=1))
    anna.done(anna.publish("home/x", b"end", qos=1))
    until(lambda: b"end" in [m.payload for m in anna.messages], "what anna may receive")
    assert sorted(m.payload for m in anna.messages) == [b"end", b"mine", b"yes"]
    assert bert.got(1) == [b"mine"]
    assert one.broker.counter("publish_refused") == 2
    assert one.broker.lines("INFO", "bert", "may not subscribe to", "no rule allows it")


def test_a_reload_changes_permissions_and_drops_no_client(one: Guarded, make: Make) -> None:
    port = one.broker.port
    anna, bert = make(port, user=("anna", "anna's")), make(port, user=("bert", "bert's"))
    anna.subscribe("#")
    bert.done(bert.publish("user/bert/1", b"1", qos=1))
    until(lambda: len(anna.messages) == 1, "the message before")
    one.rules(
        RULES.replace("user anna", "user anna\ndeny receive user/bert/now/x").replace(
            "%u", "%u/now"
        )
    )
    assert (
        "users 2, rules 5, certificates of secure, anonymous access on listener open only"
        in one.reload("INFO", "reloaded:")
    )
    bert.publish("user/bert/1", b"not any more", qos=1)
    bert.done(bert.publish("user/bert/now/x", b"not for anna", qos=1))
    bert.done(bert.publish("user/bert/now", b"2", qos=1))
    until(lambda: len(anna.messages) == 2, "the message behind")
    assert [m.payload for m in anna.messages] == [b"1", b"2"]
    one.rules("user anna\nallow nothing #")
    line = one.reload("ERROR", "cannot reload")
    why = f"{one.folder}/rules:2: 'nothing' is none of publish, subscribe, receive, all"
    assert line.endswith(f"everything stays as it was: {why}")
    (one.folder / "users").write_text("anna")
    assert one.reload("ERROR", "cannot reload").endswith("users:1: expected USER:HASH")
    bert.done(bert.publish("user/bert/now", b"3", qos=1))
    until(lambda: len(anna.messages) == 3, "the message by the rules before")
    one.rules(RULES)
    one.users("bert")  # anna is out, but not thrown out
    one.reload("INFO", "reloaded: users 1,")
    assert answer(port, "anna", b"anna's") == 0x86
    bert.done(bert.publish("user/bert/4", b"4", qos=1))
    assert anna.subscribe("home/x") == [0x87]
    assert len(anna.messages) == 3
    assert not anna.lost.is_set()
    assert not bert.lost.is_set()


def test_a_reload_takes_new_certificates(one: Guarded) -> None:
    old, first = handshake(one.tls)
    self_signed(one.folder, "second")
    (one.folder / "key.pem").rename(one.folder / "kept")
    (one.folder / "key.pem").write_text("no key")
    assert "listener 'secure': cannot use" in one.reload("ERROR", "cannot reload")
    again, shown = handshake(one.tls)
    assert shown == first
    (one.folder / "kept").rename(one.folder / "key.pem")
    one.reload("INFO", "reloaded:")
    new, second = handshake(one.tls)
    assert second != first
    for connection in (old, again, new):
        connection.sendall(
            encode_packet(Connect("MQTT", 4, True, 0, "", "anna", b"anna's", None, None), 4)
        )
        assert connection.recv(4) == b"\x20\x02\x00\x00"
        connection.close()


def test_a_reload_reads_the_access_section_again(one: Guarded) -> None:
    config = one.folder / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("{open: yes}", "{opne: yes}"))
    assert "config.yaml:13: access.anonymous: there is no listener 'opne'" in one.reload(
        "ERROR", "cannot reload"
    )
    config.write_text(text.replace("{open: yes}", "no"))
    one.reload("INFO", "reloaded:", "no anonymous access")
    assert answer(one.open, None) == 0x87
    config.write_text(text.partition("access:")[0])
    one.reload("INFO", "reloaded: certificates of secure, anonymous access allowed")
    assert answer(one.open, None) == 0


def test_the_file_of_the_page_about_containers_does_what_the_page_says(
    tmp_path: Path, make: Make
) -> None:
    found = [block for _, block in blocks(read("docs/guides/containers.md"))]
    (config,) = [block for block in found if block.startswith("listeners:")]
    (rules,) = [block for block in found if block.startswith("user *")]
    authority = Authority(tmp_path / "issuer")
    certificate, key = authority.issue("broker")
    for name, text in {
        "broker.pem": certificate.read_text(),
        "broker.key": key.read_text(),
        "rules": rules,
        "users": "\n".join(entries("anna", "secret", os.urandom)),
    }.items():
        (tmp_path / name).write_text(text)
    secret_file(tmp_path, "secret", "0123456789abcdef")
    plain, tls, web, admin = free_ports(4)
    ports = {1883: plain, 8883: tls, 9001: web, 8080: admin}
    for default, port in ports.items():
        config = config.replace(f"0.0.0.0:{default}", f"127.0.0.1:{port}")
    config = config.replace("/etc/mqttree", str(tmp_path))
    config = config.replace("/var/lib/mqttree", str(tmp_path / "data"))
    (tmp_path / "mqttree.yaml").write_text(config)

    broker = Broker(tmp_path, "b", [], cluster="c")
    broker.flags, broker.admin = ["-c", str(tmp_path / "mqttree.yaml")], admin
    with Cluster(tmp_path) as cluster:
        cluster.brokers.append(broker.start())
        status = {"MQTTREE_CONFIG": str(tmp_path / "mqttree.yaml")}
        until(lambda: mqttree("status", **status).returncode == 0, "the broker")
        anna = ("anna", "secret")
        device = make(tls, user=anna, ca=authority.ca, client_id="device")
        page = make(web, user=anna, ca=authority.ca, transport="websockets")
        page.subscribe("user/anna/#", 1)
        device.publish("user/anna/x", b"in", 1)
        device.publish("public/x", b"not allowed", 1)
        device.publish("user/anna/y", b"kept", 1, retain=True)
        assert page.got(2) == [b"in", b"kept"]
        with pytest.raises(AssertionError, match="Not authorized"):
            make(plain)
        broker.kill()
        broker.start()
        until(lambda: mqttree("status", **status).returncode == 0, "the broker")
        again = make(plain, user=anna).subscribed("user/anna/#", 1)
        assert again.got(1) == [b"kept"]
