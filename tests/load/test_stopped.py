"""A broker is stopped for seconds while its clients go elsewhere, and then goes on: what came for
them meanwhile is not lost with connections that have ended, and no session is taken back by a
connection that was given up."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from mqttree.broker.wire import Connect, Property, encode_packet
from tests.kit.brokers import Cluster
from tests.kit.clients import Client, clients, repeated
from tests.kit.waiting import until

SECONDS = 5.0
"""s for which the broker is stopped: its neighbours give it up."""
RATE = 100
"""messages a second."""
TOPIC, NAME = "stopped/x", "roamer"


class Feed(threading.Thread):
    """A publisher at QoS 2."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.sent: list[bytes] = []
        self.over = threading.Event()
        self.held = threading.Lock()

    def run(self) -> None:
        """Publish until the end of the test."""
        mids = []
        while not self.over.wait(1 / RATE):
            with self.held:
                self.sent.append(b"%d" % len(self.sent))
                mids.append(self.client.publish(TOPIC, self.sent[-1], 2))
        self.client.done(*mids)

    def seconds(self, seconds: float) -> None:
        """Return when it has published for so long."""
        wanted = len(self.sent) + int(seconds * RATE)
        until(lambda: len(self.sent) >= wanted, f"{wanted} messages")


def give_up(port: int) -> None:
    """Connect as clients do that try one broker after the other: there is no answer."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        properties = {Property.SESSION_EXPIRY_INTERVAL: 600}
        sock.sendall(
            encode_packet(Connect("MQTT", 5, False, 60, NAME, None, None, None, properties), 5)
        )


@pytest.mark.parametrize("tries", [False, True])
@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
def test_a_client_keeps_its_session_while_its_broker_is_stopped(
    tmp_path: Path, routing: str, tries: bool
) -> None:
    with Cluster(tmp_path, "--routing", routing) as cluster, clients() as make:
        for _ in range(3):
            cluster.add()
        cluster.agree()
        old, new, publishers = cluster.brokers
        first = make(old.port, client_id=NAME, clean=False, expiry=600)
        first.subscribe(TOPIC, 2)
        feed = Feed(make(publishers.port))
        feed.start()
        first.got(RATE)
        # What its client has received, and is not asked to release any more, is not sent again.
        with feed.held:
            first.got(len(feed.sent))
            old.pause()
        feed.seconds(1.0)
        first.break_off()
        if tries:
            give_up(old.port)
        second = make(new.port, client_id=NAME, clean=False, expiry=600)
        second.subscribe(TOPIC, 2)
        feed.seconds(SECONDS)
        old.resume()
        feed.seconds(2.0)
        feed.over.set()
        feed.join()
        until(
            lambda: set(first.payloads() + second.payloads()) >= set(feed.sent),
            "all that was published",
        )
        assert not repeated(first.payloads() + second.payloads())
        assert not second.lost.is_set()
