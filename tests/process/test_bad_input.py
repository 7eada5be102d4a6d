"""A copied data directory: one clear line, a counter, nothing lost, no other client disturbed."""

from __future__ import annotations

import http.client
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

from mqttree.broker.wire import Connect, encode_packet
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Make
from tests.kit.raw_client import RawClient
from tests.kit.waiting import PATIENCE, until


class Undisturbed:
    """A publisher at one broker and a subscriber at another, who notice nothing; and a tree that
    stays as it is."""

    def __init__(self, cluster: Cluster, make: Make) -> None:
        self.cluster = cluster
        one, other = cluster.two_hops()
        self.publisher, self.subscriber = make(one.port), make(other.port)
        self.subscriber.subscribe("undisturbed", 2)
        self.sent = 0
        self.facts = self._facts()
        self.check()

    def _facts(self) -> list[Any]:
        views = [broker.view() for broker in self.cluster.brokers]
        return [
            (v["root"], v["counters"]["links_closed"], sorted(link["peer"] for link in v["links"]))
            for v in views
        ]

    def check(self) -> None:
        """Publish, see it arrive, and look at the tree."""
        self.publisher.publish("undisturbed", str(self.sent), 2)
        self.sent += 1
        assert self.subscriber.got(self.sent) == [str(n).encode() for n in range(self.sent)]
        assert not self.publisher.lost.is_set()
        assert not self.subscriber.lost.is_set()
        assert self._facts() == self.facts


def health(broker: Broker) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin, timeout=PATIENCE)
    with closing(connection):
        connection.request("GET", "/readyz", headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_second_broker_of_one_id_is_named_and_disturbs_nobody(tmp_path: Path, make: Make) -> None:
    with Cluster(tmp_path, link_timeout=10.0) as cluster:
        trio = [cluster.add() for _ in range(3)]
        cluster.agree()
        original = trio[0]
        watch = Undisturbed(cluster, make)
        double = cluster.add(start=False)
        cluster.brokers.remove(double)  # of this cluster, and yet not
        shutil.copytree(original.data_dir, double.data_dir)
        try:
            double.start().up()
            assert double.view()["id"] == original.view()["id"]
            # Both say so; each hears the other's announcements or gets a refusal from those that it
            # dials.
            until(lambda: original.counter("discovery_duplicate_id") >= 2, "the original counts")
            until(
                lambda: double.counter("links_refused") + double.counter("discovery_duplicate_id"),
                "the double counts",
            )
            until(lambda: original.lines("WARNING", "one id"), "the original says so")
            until(lambda: double.lines("WARNING", " id "), "the double says so")
            watch.check()
            # The copy, which came later, serves no client and says so; nothing is acknowledged and
            # then lost.
            until(lambda: double.view()["id_conflict"] == original.address, "the double yields")
            assert len(double.lines("ERROR", "a copied data directory?")) == 1
            assert health(double) == (503, "another broker has this one's id\n")
            assert health(original) == (200, "ready\n")
            with RawClient(
                double.port, first=encode_packet(Connect("MQTT", 5, True, 0, "raw"), 5)
            ) as raw:
                assert raw.rest()[3:4] == b"\x88"
            assert original.view()["id_conflict"] is None
            make(original.port).publish("through", b"the original goes on", 1)
            watch.check()
            for broker in trio:
                assert len(broker.lines("WARNING")) <= 3 * cluster.minutes(), broker.lines(
                    "WARNING"
                )
        finally:
            if double.running:
                double.kill()
            print(double.log())
        watch.check()
        cluster.agree(trio)
        # Without the original the copy is that broker.
        original.kill()
        double.start().up()
        make(double.port).subscribe("own/clients/are/served")
        until(lambda: len(double.view()["links"]) == 2, "the others link with it")
        double.kill()
