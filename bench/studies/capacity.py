"""What a lab of namespaces can carry here: `mqttree bench capacity [TOPOLOGY]`.

Datagrams on every link, alone, show its delay against what was asked for; then a TCP stream on
every link in both directions shows the rate that it gets, and how late the network process is
meanwhile.
"""

from __future__ import annotations

import select
import socket
import statistics
import sys
import time
from collections.abc import Sequence

from mqttree.bench import checked
from mqttree.bench.lab import topology as topologies
from mqttree.bench.lab.brokers import KINDS
from mqttree.bench.lab.lab import Lab, LabError
from mqttree.broker.cli.command_line import Parser
from mqttree.broker.config.yaml_file import ConfigError

PORT = 7000
_CHUNK = bytes(65536)


def delays(lab: Lab, pairs: list[tuple[str, str]], count: int) -> list[tuple[float, float]]:
    """Return (asked, measured) one-way delays in ms for each of the `pairs` of hosts of `lab`: the
    median of `count` datagrams."""
    addresses = {host: f"10.77.0.{number}" for number, host in enumerate(lab.topology.hosts, 1)}
    sockets = {}
    for host in lab.topology.hosts:
        with lab.inside(host):
            sockets[host] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sockets[host].bind((addresses[host], PORT))
        sockets[host].settimeout(5)
    found = []
    for one, other in pairs:
        wire = lab.topology.wire(one, other)
        assert wire is not None
        took = []
        for number in range(count):
            began = time.monotonic()
            sockets[one].sendto(b"%d" % number, (addresses[other], PORT))
            try:
                sockets[other].recv(100)
            except TimeoutError:  # lost, as the link may ask for
                continue
            took.append((time.monotonic() - began) * 1000)
        if took:
            found.append((wire.delay_ms, statistics.median(took)))
    for sock in sockets.values():
        sock.close()
    return found


def stream(lab: Lab, pairs: list[tuple[str, str]], seconds: float) -> list[float]:
    """Return the Mbit/s that arrived on each of the `pairs` of hosts of `lab`, from the first to
    the second, all of them busy at once for so many `seconds`."""
    addresses = {host: f"10.77.0.{number}" for number, host in enumerate(lab.topology.hosts, 1)}
    listeners, senders = {}, []
    readers: dict[int, tuple[socket.socket, int]] = {}
    for host in lab.topology.hosts:
        with lab.inside(host):
            listeners[host] = socket.create_server((addresses[host], PORT))
    for number, (one, other) in enumerate(pairs):
        with lab.inside(one):
            sender = socket.socket()
        sender.settimeout(10)
        sender.connect((addresses[other], PORT))
        reader = listeners[other].accept()[0]
        for sock in (sender, reader):
            sock.setblocking(False)
        senders.append(sender)
        readers[reader.fileno()] = (reader, number)
    epoll = select.epoll()
    for sender in senders:
        epoll.register(sender.fileno(), select.EPOLLOUT)
    for descriptor in readers:
        epoll.register(descriptor, select.EPOLLIN)
    writing = {sender.fileno(): sender for sender in senders}
    came = [0] * len(pairs)
    began = time.monotonic()
    middle = began + seconds / 3  # what TCP needs to find the rate
    end = began + seconds
    while (now := time.monotonic()) < end:
        for descriptor, _ in epoll.poll(0.05):
            if descriptor in writing:
                writing[descriptor].send(_CHUNK)
            else:
                reader, number = readers[descriptor]
                size = len(reader.recv(1 << 18))
                if now > middle:
                    came[number] += size
    for sock in (*senders, *(reader for reader, _ in readers.values()), *listeners.values()):
        sock.close()
    return [size * 8 / (end - middle) / 1e6 for size in came]


def main(argv: Sequence[str]) -> int:
    """Parse the command line, measure, print."""
    parser = Parser(prog="mqttree bench capacity", description=__doc__.split("\n", 1)[0])
    parser.add_argument("topology", nargs="?", default="mesh5")
    parser.add_argument(
        "--seconds", type=checked.positive, default=6.0, metavar="S", help="of full load (6)"
    )
    options = parser.parse_args(argv)
    try:
        place = topologies.load(options.topology).drawn(1)
        with Lab(place, KINDS["mqttree-flood"], on=(), way="namespaces") as lab:
            pairs = [pair for pair in place.pairs() if place.wire(*pair) is not None]
            lab.order({"do": "fresh"})
            found = delays(lab, pairs, 20)
            late = lab.order({"do": "totals"})["late_ms"]
            added = [measured - asked for asked, measured in found]
            print(
                f"{len(found)} links: "
                f"{statistics.median(added):.3f} ms more than asked for (median), ",
                end="",
            )
            print(
                f"{max(added):.3f} ms at most; "
                f"late by p50 {late['p50']:.3f}, p99 {late['p99']:.3f} ms"
            )
            lab.order({"do": "fresh"})
            rates = stream(lab, pairs + [(b, a) for a, b in pairs], options.seconds)
            totals = lab.order({"do": "totals"})
            late = totals["late_ms"]
            print(
                f"{len(rates)} TCP streams: {min(rates):.2f} to {max(rates):.2f} Mbit/s, "
                f"{sum(rates):.0f} together; ",
                end="",
            )
            print(
                f"late by p50 {late['p50']:.3f}, p99 {late['p99']:.3f}, "
                f"max {late['max']:.3f} ms ({totals['moved']:,} packets)"
            )
    except (ConfigError, LabError) as error:
        print(f"mqttree bench capacity: {error}", file=sys.stderr)
        return 2
    return 0
