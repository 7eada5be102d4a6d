"""`mqttree doctor`: why brokers do not see each other. Looks and asks; `doctor_checks` judges.

It changes nothing: links that it begins do not come up, and brokers ignore its announcements, as
these are of another cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from mqttree.broker.base.address import Address, is_literal, parse_address
from mqttree.broker.base.link_keys import cluster_key
from mqttree.broker.base.log_format import json_text, printable
from mqttree.broker.base.version import VERSION
from mqttree.broker.cli import doctor_checks as checks
from mqttree.broker.cli.admin_client import (
    AdminPort,
    Credentials,
    StatusError,
    TokenError,
    credentials_of,
)
from mqttree.broker.cli.command_line import DEFAULT_ADMIN
from mqttree.broker.cli.doctor_checks import ERROR, NOTE, Finding, Heard
from mqttree.broker.cli.link_probe import PADDING, Answer, Prober, probe
from mqttree.broker.config.options import RunSettings, read_settings, split_bind
from mqttree.broker.config.yaml_file import ConfigError
from mqttree.broker.io.tls import describe_error, dial_context
from mqttree.discovery.announcement import Announcement, AnnouncementError, decode
from mqttree.discovery.drivers.multicast import Multicast, interfaces_for

MAX_TARGETS: Final = 32
"""brokers that are asked; what is wrong with all is seen at some."""

AT_ONCE: Final = 8
"""brokers that are asked at a time."""

INTERVAL: Final = 1.0
"""s between two announcements of its own."""


def doctor(arguments: argparse.Namespace) -> int:
    """Look, print what was found, and return the exit code: 1 if there is an error. Raises
    ConfigError, and TokenError if the broker of this machine wants another token."""
    settings = read_settings(vars(arguments), os.environ)
    found: list[Finding] = []
    for finding in Doctor(arguments, settings).findings():
        found.append(finding)
        if not arguments.json:
            _print(_lines(finding))
    errors, warnings = checks.worst(found)
    if arguments.json:
        rows = [finding._asdict() for finding in found]
        text = json_text({"findings": rows, "errors": errors, "warnings": warnings}, 2)
        _print([text])
    else:
        _print(["", _summary(errors, warnings)])
    return 1 if errors else 0


def _summary(errors: int, warnings: int) -> str:
    counts = [
        f"{number} {name}{'' if number == 1 else 's'}"
        for number, name in ((errors, "error"), (warnings, "warning"))
        if number
    ]
    return ", ".join(counts) or "nothing is wrong from here; run it at the other machine, too"


def _lines(finding: Finding) -> list[str]:
    lines = [f"{finding.level:<8} {finding.check:<10} {printable(finding.text)}"]
    if finding.remedy:
        lines.append(f"{'':<19} -> {printable(finding.remedy)}")
    return lines


def _print(lines: list[str]) -> None:
    if sys.stdout is not None:
        print("\n".join(lines), flush=True)


class Doctor:
    """All that is looked at, in order."""

    def __init__(self, arguments: argparse.Namespace, settings: RunSettings) -> None:
        """`arguments`: of the command line; `settings`: those that a broker with the same options
        would have. Raises ConfigError."""
        self._arguments = arguments
        self._settings = settings
        self._targets = [_address("HOST:PORT", text) for text in arguments.targets]
        self._other = None if arguments.other is None else _address("--other", arguments.other)
        if arguments.admin_token_file is None and settings.admin_token_file is not None:
            arguments.admin_token_file = str(settings.admin_token_file)
        self._credentials: Credentials = credentials_of(arguments)
        secret = settings.secret
        key = None if secret is None else cluster_key(secret, settings.cluster)
        try:
            context = None if settings.tls is None else dial_context(settings.tls)
        except (OSError, ValueError) as error:
            raise ConfigError(f"federation.tls: {describe_error(error)}") from None
        self._prober = Prober(settings.cluster, key, settings.routing, context)
        self._state: dict[str, Any] | None = None
        self._heard: list[Heard] = []

    def findings(self) -> Iterable[Finding]:
        """Return what is found, as it is found. Raises TokenError."""
        yield from self._own()
        if self._settings.discovery == "multicast":
            yield from self._listen()
        targets = self._all_targets()
        yield from checks.check_found(self._settings.discovery, len(targets))
        yield from self._probe(targets)
        if self._other is not None:
            yield from self._compare(AdminPort(self._other, self._credentials))

    def _own(self) -> Iterable[Finding]:
        """Look at the broker of this machine. Raises TokenError."""
        port = AdminPort(self._settings.admin or split_bind(DEFAULT_ADMIN), self._credentials)
        try:
            self._state = port.federation()
        except TokenError:
            raise
        except StatusError as error:
            remedy = "start the broker of this machine, or say where its admin port is (--admin)"
            # Whoever names another broker may ask from a machine without one.
            level = checks.WARNING if self._targets else ERROR
            yield Finding("broker", level, str(error), remedy)
            return
        yield from checks.check_state(self._state, self._settings.cluster, VERSION)

    # ---------------------------------------------------------------- multicast

    def _listen(self) -> Iterable[Finding]:
        settings = self._settings
        host = "" if settings.listen is None else split_bind(settings.listen).host
        interfaces = settings.interfaces or interfaces_for(host)
        listener = _Listener(settings, self._prober, interfaces)
        asyncio.run(listener.run(self._arguments.seconds))
        self._heard = list(listener.heard.values())
        own = "" if self._state is None else str(self._state["id"])
        if listener.why:
            yield Finding("multicast", ERROR, listener.why, "use --discovery static and --seed")
            return
        yield from checks.check_heard(
            self._heard, listener.joined, listener.echoed, own, settings.multicast_port
        )

    # ---------------------------------------------------------------- links

    def _all_targets(self) -> list[Address]:
        """Return the brokers to ask: those of the command line, seeds, those that were heard or are
        known, and the one of this machine, which has to take links as well."""
        found = [*self._targets, *self._settings.seed]
        for heard in self._heard:
            if heard.announcement is not None and not heard.kind:
                found.append(heard.announcement.address_from((heard.host, 0)))
        if self._state is not None:
            found += checks.addresses_of(self._state)
            found += checks.own_address(self._state)
        return list(dict.fromkeys(found))[:MAX_TARGETS]

    def _probe(self, targets: list[Address]) -> Iterable[Finding]:
        every: list[Address] = []
        for target in targets:
            try:
                every += self._resolve(target)
            except OSError as error:
                text = describe_error(error)
                yield from checks.check_probe(target, Answer("unreachable", text), None)
        every = list(dict.fromkeys(every))[:MAX_TARGETS]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for target, (small, large) in zip(every, pool.map(self._ask, every), strict=True):
                yield from checks.check_probe(target, small, large)

    def _resolve(self, target: Address) -> list[Address]:
        """Return all addresses behind a name; with certificates for names the name itself. Raises
        OSError."""
        tls = self._settings.tls
        if is_literal(target.host) or (tls is not None and tls.check_hostname):
            return [target]
        try:
            rows = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(str(error)) from None
        return [Address(str(row[4][0]), target.port) for row in rows]

    def _ask(self, target: Address) -> tuple[Answer, Answer | None]:
        """Begin two links, one with a packet that is larger than any on the way may be."""
        small = probe(target, self._prober)
        if small.peer is None:
            return small, None
        return small, probe(target, self._prober, padding=PADDING)

    # ---------------------------------------------------------------- the other broker

    def _compare(self, port: AdminPort) -> Iterable[Finding]:
        try:
            port.get("/summary")
            before = time.time()
            there = float(port.get("/summary")["time"])
            after = time.time()
            other = port.federation()
        except StatusError as error:
            remedy = "name its admin port; it asks for --admin-token-file, or is on loopback only"
            yield Finding("broker", ERROR, str(error), remedy)
            return
        if self._state is None:
            text = "without the broker of this machine nothing is compared"
            yield Finding("broker", NOTE, text, "say where its admin port is (--admin)")
            return
        ahead, within = there - (before + after) / 2, (after - before) / 2
        yield from checks.check_other(self._state, other, ahead, within)


class _Listener:
    """Hears the discovery group for a while, and sends to it, to hear itself."""

    def __init__(
        self, settings: RunSettings, prober: Prober, interfaces: Iterable[str] | None
    ) -> None:
        self._prober = prober
        self._id = os.urandom(8)
        self._sent: set[bytes] = set()
        self.heard: dict[tuple[str, str, bytes], Heard] = {}
        self.echoed: set[str] = set()
        self.joined: list[str] = []
        self.why = ""
        """Why the group cannot be used at all."""
        self._group = settings.multicast_group
        self._port = settings.multicast_port
        self._interfaces = interfaces

    async def run(self, seconds: float) -> None:
        """Hear for `seconds`."""
        multicast = Multicast(
            self._datagram,
            self._unavailable,
            group=self._group,
            port=self._port,
            interfaces=self._interfaces,
        )
        multicast.start()
        try:
            end = time.monotonic() + seconds
            number = 0
            while (left := end - time.monotonic()) > 0:
                number += 1
                data = self._announcement(number)
                self._sent.add(data)
                multicast.send(data)
                self.joined = multicast.joined
                await asyncio.sleep(min(INTERVAL, left))
        finally:
            multicast.close()

    def _announcement(self, number: int) -> bytes:
        cluster = f"{checks.DOCTOR}{self._id.hex()}"
        # It is dialled by no other broker: the cluster has no other.
        nowhere = Address("", 1)
        return Announcement(cluster, self._id, 1, number, time.time(), nowhere).encode(None)

    def _unavailable(self, why: str) -> None:
        self.why = why

    def _datagram(self, data: bytes, source: tuple[str, int]) -> None:
        host = source[0]
        if data in self._sent:
            self.echoed.add(host)
            return
        heard = self._read(data, host)
        who = b"" if heard.announcement is None else heard.announcement.id
        if len(self.heard) < 1024:
            self.heard.setdefault((host, heard.kind, who), heard)

    def _read(self, data: bytes, host: str) -> Heard:
        try:
            if decode(data, None).cluster.startswith(checks.DOCTOR):
                return Heard(host, None, "doctor")
        except AnnouncementError:
            pass
        try:
            found = decode(data, self._prober.key, self._prober.cluster, host)
        except AnnouncementError as error:
            return Heard(host, None, error.kind, str(error))
        return Heard(host, found, ahead=found.wall - time.time())


def _address(where: str, text: str) -> Address:
    try:
        return parse_address(text, 8080 if where == "--other" else 1883)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
