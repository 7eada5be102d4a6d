"""Brokers whose clients have to prove who they are, and other brokers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mqttree.broker.auth.users_file import entries
from tests.kit.brokers import Cluster
from tests.kit.clients import Make
from tests.kit.waiting import until


def config(folder: Path, name: str, text: str) -> tuple[str, str]:
    """Write a configuration file with the access section and more; returns the flags."""
    (folder / "users").write_text("\n".join(entries("anna", "anna's", os.urandom)))
    (folder / name).write_text(f"access: {{users: {folder}/users}}\n{text}")
    return "-c", str(folder / name)


def test_with_users_and_without_a_secret_a_broker_says_that_it_stays_alone(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        guarded = cluster.add(*config(tmp_path, "guarded.yaml", "")).up()
        why = "clients are checked (users) and other brokers would not be"
        assert len(guarded.lines("WARNING", why, "--secret-file")) == 1
        assert guarded.lines("discovery off (does not federate)", "no anonymous access")


def test_a_broker_that_guards_less_than_it_seems_to_says_so(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("user anna\nallow all #\n")
    (tmp_path / "open.yaml").write_text(
        f"access: {{rules: {tmp_path}/rules}}\n"
        "federation: {allow-unauthenticated-brokers: true}\n"
    )
    with Cluster(tmp_path) as cluster:
        broker = cluster.add("-c", str(tmp_path / "open.yaml")).up()
        assert broker.lines("WARNING", "nothing checks passwords")
        assert broker.lines("WARNING", "any may join (allow-unauthenticated-brokers)")
        assert broker.lines("discovery multicast (no secret)")


def test_a_reload_that_adds_users_beside_unproven_brokers_is_refused(
    tmp_path: Path, make: Make
) -> None:
    with Cluster(tmp_path) as cluster:
        (tmp_path / "later.yaml").write_text("federation: {hello: 0.5}\n")
        broker = cluster.add("-c", str(tmp_path / "later.yaml")).up()
        config(tmp_path, "later.yaml", "federation: {hello: 0.5}\n")
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
        refused = (
            "ERROR",
            "cannot reload",
            "clients would be checked (users), other brokers are not",
        )
        until(lambda: broker.lines(*refused), "one line")
        make(broker.port).publish("t", b"as before", 1)
