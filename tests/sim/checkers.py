"""What must hold in every schedule. Each checker reports to `World.violation` under its own
name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import combinations, pairwise
from math import inf

from mqttree.broker import CORE
from mqttree.broker.base.sequence_set import MAX_GAPS
from mqttree.broker.cluster.delivery.forwarder import Forwarder
from mqttree.broker.cluster.delivery.replay_log import VOID
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.link.link_states import State
from mqttree.stp.priority_vector import RootVector, better_root
from tests.sim.clients import LASTING, Got, Interest, Ledger, Sent, SimClient, matches
from tests.sim.world import End, Host, World

Life = tuple[int, int]

ORDER = 5.0
"""s of a split up to which messages keep their order (README); it counts from the first look to the
last that saw it."""

LOOK = 0.1
"""virtual s between two looks."""

WAITED = 10.0
"""s for which a client waits for its session at most (README)."""

LARGE = 1_000_000
"""bytes of a message that keeps what is behind it waiting on a link."""

HEARD = 1.0
"""virtual s in one tree, after which a broker has heard where a client is."""

SETTLED = 3.0
"""virtual s in one tree, after which a message is everywhere, so that it survives its publisher's
broker."""


def watch_crossings(world: World) -> None:
    """No message crosses a broker twice: look at everything that a forwarder accepts. A compiled
    one lets nobody look: what it does is judged by what comes out of it, as all else is."""
    if CORE.running != "python":
        return

    def started(host: Host) -> None:
        relay = host.running.cluster.forwarder
        life = host.life
        seen: dict[bytes, set[int]] = defaultdict(set)
        accept: Callable[..., int] = relay.accept

        def watched(key: bytes, first: int, count: int, now: float, late: bool = True) -> int:
            taken = accept(key, first, count, now, late)
            if taken > 0:
                known = seen[key + (b"" if late else b" run")]
                for sequence in range(first, first + count):
                    if sequence in known:
                        world.violation(
                            "crossed twice",
                            f"message {key!r} {sequence} at b{life[0]} boot {life[1]}",
                        )
                    known.add(sequence)
            return taken

        relay.accept = watched  # type: ignore[method-assign]

    world.on_start.append(started)


class Splits:
    """Which brokers the world split, and for how long: by cuts, stops and deaths, whatever
    brokers say of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._looks: list[tuple[float, dict[Life, int]]] = []
        world.after(LOOK, self._look)

    def _look(self) -> None:
        groups = groups_of([h for h in self.world.alive() if not h.paused], self.world.connected)
        self._looks.append(
            (
                self.world.now,
                {self.world.who(host.life): n for n, group in enumerate(groups) for host in group},
            )
        )
        self.world.after(LOOK, self._look)

    def longer_than(self, seconds: float, a: Life, b: Life) -> float | None:
        """When (s) two incarnations had been split without a pause for so long; None: they never
        were."""
        a, b = self.world.who(a), self.world.who(b)
        if a == b:
            return None
        since: float | None = None
        for at, parts in self._looks:
            if a in parts and parts[a] == parts.get(b):
                since = None
            elif since is None:
                since = at - LOOK
            elif at - since >= seconds:
                return at
        return None


class Meetings:
    """Which lives of brokers have been in one working tree, looked at every tenth of a second.

    From then on they owe each other every message that is published after a SUBACK.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.met: dict[frozenset[Life], float] = {}
        self._together: set[frozenset[Life]] = set()
        self._runs: dict[frozenset[Life], list[list[float]]] = defaultdict(list)
        world.after(LOOK, self._look)

    def _look(self) -> None:
        together: set[frozenset[Life]] = set()
        world = self.world
        for group in live_groups([h for h in world.alive() if not h.paused], self._works):
            for a, b in combinations(group, 2):
                pair = frozenset((world.who(a.life), world.who(b.life)))
                together.add(pair)
                self.met.setdefault(pair, world.now)
                if pair not in self._together:
                    self._runs[pair].append([world.now, world.now])
                self._runs[pair][-1][1] = world.now
        self._together = together
        world.after(LOOK, self._look)

    def settled(self, a: Life, b: Life, at: float) -> bool:
        """Whether two lives were in one tree for long enough without a pause from some moment (s)
        on."""
        a, b = self.world.who(a), self.world.who(b)
        return a == b or any(
            end - max(begin, at) >= SETTLED for begin, end in self._runs[frozenset((a, b))]
        )

    def together(self, a: Life, b: Life, begin: float, end: float) -> bool:
        """Whether two lives were in one tree at every look from one moment (s) to another, and at
        the last one before."""
        a, b = self.world.who(a), self.world.who(b)
        runs = self._runs[frozenset((a, b))]
        return a == b or any(first <= begin and last + LOOK >= end for first, last in runs)

    def _works(self, link: Link) -> bool:
        end = link.conn.transport if link.layer is None else link.layer.under
        assert isinstance(end, End)
        return self.world.reaches(end, end.peer) and not end.stuck and not end.peer.stuck

    def since(self, a: Life, b: Life) -> float | None:
        """When these two were first in one tree (s), None for never."""
        a, b = self.world.who(a), self.world.who(b)
        return 0.0 if a == b else self.met.get(frozenset((a, b)))

    def first(self, a: int, b: int) -> float:
        """When two brokers were first in one tree, in whatever lives (s); infinity for never."""
        met = (at for pair, at in self.met.items() if {index for index, _ in pair} == {a, b})
        return 0.0 if a == b else min(met, default=inf)


def groups_of(hosts: list[Host], near: Callable[[Host, Host], bool]) -> list[list[Host]]:
    """Hosts that are next to each other, directly or over others."""
    groups = []
    left = list(hosts)
    while left:
        group = [left.pop(0)]
        for member in group:
            found = [host for host in left if near(member, host)]
            left = [host for host in left if host not in found]
            group += found
        groups.append(group)
    return groups


def live_groups(
    hosts: Iterable[Host], works: Callable[[Link], bool] = lambda link: True
) -> list[list[Host]]:
    """Brokers that are joined by links that work and are live at both ends."""
    by_id = {host.id: host for host in hosts}
    near: dict[int, list[Host]] = {host.index: [] for host in by_id.values()}
    for host in by_id.values():
        for link in host.running.forwarding:
            other = by_id.get(link.peer.id) if link.peer is not None else None
            if (
                other is not None
                and works(link)
                and any(
                    back.peer is not None and back.peer.id == host.id
                    for back in other.running.forwarding
                )
            ):
                near[host.index].append(other)
    return groups_of(list(by_id.values()), lambda a, b: b in near[a.index] or a in near[b.index])


# ---------------------------------------------------------------- after quiet


def tree_faults(world: World, group: list[Host]) -> list[tuple[str, str]]:
    """What is wrong with the tree of one component: root, roles, forwarding, membership, state."""
    faults: list[tuple[str, str]] = []
    best = group[0]
    for host in group[1:]:
        if better_root(_vector(host), _vector(best)):
            best = host
    edges: set[frozenset[int]] = set()
    by_id = {host.id: host for host in group}
    for host in group:
        cluster = host.running.cluster
        tree = cluster.tree
        if tree.root.id != best.id or tree.root.boot != best.running.config.boot:
            faults.append(("root", f"{host.name} follows {tree.root.address}, best is {best.name}"))
        if str(cluster.membership.state) != "runtime":
            faults.append(("state", f"{host.name} is in state {cluster.membership.state}"))
        for other in group:
            if other is host:
                continue
            if not cluster.membership.is_member(other.id):
                faults.append(("membership", f"{host.name} does not know {other.name}"))
            elif world.connected(host, other) and other.id not in cluster.links:
                faults.append(("link", f"{host.name} has no link to {other.name}"))
        for peer_id, port in tree.ports.items():
            other = by_id.get(peer_id)
            if other is None:
                faults.append(("port", f"{host.name} has a port to no broker"))
                continue
            twin = other.running.cluster.tree.ports.get(host.id)
            link = cluster.links.get(peer_id)
            if twin is None or link is None or not link.up:
                faults.append(
                    ("port", f"{host.name} has a port to {other.name} which has none back")
                )
                continue
            roles = {port.role.name, twin.role.name}
            if roles not in ({"ROOT", "DESIGNATED"}, {"DESIGNATED", "BLOCKED"}):
                faults.append(
                    ("roles", f"{host.name} - {other.name}: {port.role.name}, {twin.role.name}")
                )
            if port.forwarding != twin.forwarding or port.forwarding != link.live:
                text = (
                    f"{host.name} - {other.name}: {port.forwarding}, "
                    f"{twin.forwarding}, live {link.live}"
                )
                faults.append(("forwarding", text))
            if port.forwarding:
                edges.add(frozenset((host.index, other.index)))
    if len(edges) != len(group) - 1 or len(live_groups(group)) != 1:
        named = sorted(tuple(sorted(edge)) for edge in edges)
        faults.append(("tree", f"forwarding links {named} do not span {[h.name for h in group]}"))
    return faults


def _vector(host: Host) -> RootVector:
    cluster = host.running.cluster
    return RootVector.of(cluster.own, host.running.config.capability)


def bound_faults(hosts: Iterable[Host]) -> list[tuple[str, str]]:
    """Queues and tables that are larger than they should be once it is quiet."""
    faults = []
    for host in hosts:
        node = host.running
        relay: Forwarder = node.cluster.forwarder
        for conn in node.connections:
            if conn.backlog_bytes or conn.backlog or conn.outbox:
                faults.append(
                    ("bounds", f"{host.name}: {conn.backlog_bytes} bytes wait for {conn.peer}")
                )
        links = [conn.link for conn in node.connections if isinstance(conn.link, Link)]
        if len(links) > node.limits.max_links:
            faults.append(("bounds", f"{host.name}: {len(links)} links"))
        for key, window in relay.vector.items():
            if len(window.gaps) > MAX_GAPS:
                faults.append(("bounds", f"{host.name}: {len(window.gaps)} gaps of {key!r}"))
        if handshakes := node.cluster.link_registry.handshakes:
            faults.append(("bounds", f"{host.name}: {len(handshakes)} unfinished handshakes"))
        stale = [link for link in links if link.state is State.CLOSED]
        if stale:
            faults.append(("bounds", f"{host.name}: {len(stale)} closed links are kept"))
    return faults


def log_faults(hosts: Iterable[Host], ledger: Ledger) -> list[tuple[str, str]]:
    """Logs that keep a message twice, more than was published, or more bytes than they count."""
    most = sum(
        sent.copies if sent.qos == 1 or sent.doubted else 1
        for sent in ledger.sent
        if sent.qos or sent.retain
    )
    faults = []
    for host in hosts:
        log, limits = host.running.cluster.forwarder.log, host.running.limits
        entries = log._entries
        kept = sum(
            entry.count
            for entry in entries
            if not ((choice := entry.choice) and choice.passed) and VOID not in entry.topics()
        )
        if kept > most:
            faults.append(("bounds", f"{host.name} keeps {kept} messages of {most}"))
        twice = sum(e.count for e in entries) - len(
            {(e.key, e.sequence + n) for e in entries for n in range(e.count)}
        )
        if twice:
            faults.append(("bounds", f"{host.name} keeps {twice} messages twice"))
        size = sum(entry.size for entry in entries)
        recent = sum(
            more for at, _, more in log._large if at + limits.log_large_s + 1.0 > host.running.now
        )
        room = min(limits.log_bytes + recent, limits.away_logs * limits.log_bytes)
        if size != log._bytes or (size > room and len(entries) > 1):
            faults.append(
                ("bounds", f"{host.name} keeps {size} bytes of messages and counts {log._bytes}")
            )
    return faults


# ---------------------------------------------------------------- messages


class Messages:
    """Who received what, and who should have."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        clients: list[SimClient],
        meetings: Meetings,
        splits: Splits,
    ) -> None:
        self.world = world
        self.ledger = ledger
        self.clients = clients
        self.meetings = meetings
        self.splits = splits
        self._components = world.components()

    def joined(self, a: SimClient, b: SimClient) -> bool:
        """Whether these clients' brokers are in one component now."""
        return self._component(a.host) is self._component(b.host)

    def _component(self, host: Host) -> list[Host] | None:
        for group in self._components:
            if host in group:
                return group
        return None

    def check(self) -> None:
        """Everything about all messages of the run."""
        for client in self.clients:
            for error in client.errors:
                self.world.violation("client", f"{client.name}: {error}")
            self._duplicates(client)
            self._order(client)
            self._unwanted(client)
            for name in self.left_behind(client):
                self.world.violation(
                    "left behind", f"{name} did not reach {client.name} on {client.host.name}"
                )
        self._losses()

    def _duplicates(self, client: SimClient) -> None:
        """A QoS 2 message comes once, in whatever session; one of QoS 1 once in a connection.
        Retained copies aside."""
        seen: dict[int, Got] = {}
        for got in client.got:
            sent = self.ledger.sent[got.number]
            if got.retain or sent.doubted:
                continue
            old = seen.get(got.number)
            if old is not None:
                if (
                    got.qos == 2
                    and old.qos == 2
                    and not (
                        self._strayed(client, old.epoch, got.epoch)
                        or self._forgotten(client, sent, old, got)
                    )
                ):
                    self.world.violation(
                        "QoS 2 twice", f"{client.name} got {self._name(sent)} twice"
                    )
                elif old.epoch == got.epoch and (not sent.repeated or sent.qos == 2):
                    self.world.violation("duplicate", f"{client.name} got {self._name(sent)} twice")
            seen[got.number] = got

    def _forgotten(self, client: SimClient, sent: Sent, old: Got, got: Got) -> bool:
        """Whether a client had a message at the broker where it was published, which died before it
        acknowledged it: the publisher sent it again, and the client had begun a new session, as it
        always does (README)."""
        return (
            client.clean
            and sent.repeated
            and old.session != got.session
            and client.visits[old.epoch][0] == sent.life
        )

    def _strayed(self, client: SimClient, first: int, last: int) -> bool:
        """Whether a client has come, between two connections, to a broker that could not reach the
        one where it was before, or did not get its session from there in time: then it may have
        gone on with one that lacks what it has had (README). With clocks that differ the session
        that it left may count as the newer one until they have passed that."""
        since = client.visits[first][1] - 2 * self.world.skew
        visits = [visit for epoch, visit in sorted(client.visits.items()) if epoch <= last]
        for (there, _, up, _), (here, began, until, heard) in pairwise(visits):
            news = not heard and began < up + HEARD + self._held_up()
            late = until >= began + WAITED or (news and self._crowded())
            if began > since and (
                late or not self.meetings.together(there, here, max(up, began - HEARD), until)
            ):
                return True
        return False

    def _held_up(self) -> float:
        """Return how long (virtual s) the largest message takes on the slowest link: the
        announcement of where a client is waits behind it (README)."""
        sizes = [len(sent.packet.payload) for sent in self.ledger.sent if sent.packet is not None]
        rates = [line.rate for line in self.world.lines.values()]
        large = max(sizes, default=0)
        return large / min(rates) if rates and large >= LARGE else 0.0

    def _crowded(self) -> bool:
        """Whether links are slow for what is published, so that the announcement of where a client
        is may take a moment (README)."""
        large = (
            sent.packet is not None and len(sent.packet.payload) >= LARGE
            for sent in self.ledger.sent
        )
        return bool(self.world.lines) or any(large)

    def _order(self, client: SimClient) -> None:
        """Per publisher, connection of it, topic and connection here, QoS 1 and 2 come in the order
        of publishing. What was published before a session began, or before its broker met the
        publisher's, waited in an older one, or several, and comes when their brokers are back."""
        last: dict[tuple[int, int, str, int, int], int] = {}
        seen: set[int] = set()
        late: dict[Life, float] = {}
        met: dict[tuple[int, Life], float] = {}
        for got in client.got:
            sent = self.ledger.sent[got.number]
            if not sent.qos or got.retain or got.number in seen or sent.will or sent.repeated:
                continue
            if sent.life not in late:
                apart = [self.splits.longer_than(ORDER, sent.life, life) for life in client.holders]
                late[sent.life] = min((at for at in apart if at is not None), default=inf)
            if got.at > late[sent.life]:
                continue
            seen.add(got.number)
            if (got.session, sent.life) not in met:
                met[got.session, sent.life] = self._met(client, got.session, sent.life)
            if sent.at < max(client.begun[got.session], met[got.session, sent.life]):
                continue
            key = (id(sent.client), sent.epoch, sent.topic, got.session, sent.life[1])
            if last.get(key, -1) > got.number:
                before = self.ledger.sent[last[key]]
                self.world.violation(
                    "order", f"{client.name} got {self._name(sent)} after {self._name(before)}"
                )
            last[key] = max(last.get(key, -1), got.number)

    def _met(self, client: SimClient, session: int, origin: Life) -> float:
        """When an origin met the broker where a session began (s), infinity for never."""
        begun = client.begun[session]
        life = max((up, life) for life, _, up, _ in client.visits.values() if up <= begun)[1]
        at = self.meetings.since(origin, life)
        return inf if at is None else at

    def _unwanted(self, client: SimClient) -> None:
        for got in client.got:
            if not any(matches(f, got.topic) for f, _ in client.filters):
                self.world.violation("unwanted", f"{client.name} got {got.topic}")

    def _losses(self) -> None:
        """An acknowledged message reaches everybody who was there before it and stayed."""
        owed = [sent for sent in self.ledger.sent if self._owed(sent)]
        for client in self.clients:
            due = self._due(client)
            if not due:
                continue
            got = {got.number for got in client.got}
            begins: dict[Life, list[tuple[Interest, float]]] = {}
            for sent in owed:
                if sent.number in got:
                    continue
                if sent.life not in begins:
                    begins[sent.life] = self._begins(client, due, sent.life)
                if any(
                    begin < sent.at
                    and matches(interest.filter, sent.topic)
                    and not (interest.no_local and sent.client is client)
                    for interest, begin in begins[sent.life]
                ):
                    self._lost(client, sent)

    def _lost(self, client: SimClient, sent: Sent) -> None:
        """Report a message that was due, and did not come, if that is a loss."""
        lives = self._lives(sent.life)
        if not lives and not all(
            self.meetings.settled(sent.life, life, sent.at) for life in client.holders
        ):
            return
        if not lives or self._component(client.host) is self._component(
            self.world.hosts[sent.life[0]]
        ):
            self.world.violation(
                "lost", f"{self._name(sent)} did not reach {client.name} on {client.host.name}"
            )

    def _owed(self, sent: Sent) -> bool:
        """Whether a message is owed to who subscribes to it."""
        lasts = sent.expiry is None or sent.expiry >= LASTING
        return bool(sent.qos) and sent.acked is not None and lasts

    def _due(self, client: SimClient) -> list[Interest]:
        """Return a client's subscriptions that it has had ever since, in one session."""
        if client.state != "up" or not all(self._lives(life) for life in client.holders):
            return []
        return [
            interest
            for interest in client.interests
            if interest.qos
            and (
                interest.epoch == client.epoch
                or (not client.clean and interest.session == client.session)
            )
        ]

    def _begins(
        self, client: SimClient, due: list[Interest], origin: Life
    ) -> list[tuple[Interest, float]]:
        """From when on (s) what is published at a broker is due to these: all who had the session
        knew that broker."""
        found = []
        for interest in due:
            met = [self.meetings.since(origin, life) for life in (interest.life, *client.holders)]
            known = [since for since in met if since is not None]
            if len(known) == len(met):
                found.append((interest, max(interest.since, *known)))
        return found

    def left_behind(self, client: SimClient) -> list[str]:
        """What a client with a session never got although it subscribed before that was published,
        in whatever session, and all brokers that ever had one of its sessions are there: the queue
        of an older one comes with the newest. At QoS 1, as what was sent at QoS 2 is not sent
        again."""
        places = [self.world.hosts[index] for index, _ in client.places]
        here = self._component(client.host)
        if (
            client.clean
            or client.hasty
            or client.state != "up"
            or not all(map(self._lives, client.places))
        ):
            return []
        if here is None or not all(host in here for host in places):
            return []
        got = {g.number for g in client.got}
        lost = []
        for sent in self.ledger.sent:
            if not self._owed(sent) or sent.number in got or not self._lives(sent.life):
                continue
            if self.world.hosts[sent.life[0]] not in here:
                continue
            due = [i for i in client.ever if i.since < sent.at and matches(i.filter, sent.topic)]
            mine = any(i.no_local for i in due) and sent.client is client
            if not due or mine or min(sent.qos, max(i.qos for i in due)) != 1:
                continue
            met = [
                self.meetings.since(sent.life, life)
                for life in {*client.places, *(i.life for i in due)}
            ]
            if all(since is not None and since < sent.at for since in met):
                lost.append(self._name(sent))
        return lost

    def _lives(self, life: Life) -> bool:
        return self.world.lives(life)

    def _name(self, sent: Sent) -> str:
        kind = "will" if sent.will else "message"
        at = f"{sent.at - self.world.started:.4f}"
        return (
            f"{kind} {sent.number} "
            f"({sent.topic}, QoS {sent.qos}, by {sent.client.name} on b{sent.life[0]} at {at})"
        )

    def retained(self) -> None:
        """Brokers that were in one tree when the last retained message of a topic was published
        agree on it."""
        last: dict[str, Sent] = {}
        lives: dict[str, set[Life]] = defaultdict(set)
        again: set[str] = set()
        for sent in self.ledger.sent:
            if sent.retain and (sent.at or not sent.will):
                last[sent.topic] = sent
                lives[sent.topic].add(sent.life)
                if sent.copies > 1:
                    again.add(sent.topic)
        for topic, sent in last.items():
            if len(lives[topic]) > 1 or topic in again:
                # messages of several origins have no order, nor has what a client sends again
                continue
            if sent.acked is None or not sent.qos or not self._lives(sent.life):
                continue
            for host in self.world.alive():
                met = self.meetings.since(sent.life, host.life)
                if met is None or met >= sent.at:
                    continue
                if self._component(host) is not self._component(self.world.hosts[sent.life[0]]):
                    continue
                kept = [
                    message.payload
                    for message in host.running.retained.match(topic, self.world.now)
                ]
                if not kept or int(kept[0].partition(b"|")[0]) != sent.number:
                    self.world.violation(
                        "retained",
                        f"{host.name} keeps {kept[:1]} of {topic}, not {self._name(sent)}",
                    )

    def probes(
        self, first: int, expected: dict[int, set[SimClient]], *, rested: bool = True
    ) -> None:
        """Messages from number `first` on reached each of the expected clients exactly once, and no
        others. Not `rested`: a link has come to cost something else meanwhile, and messages changed
        their ways; QoS 0 may be lost then."""
        times: dict[int, dict[SimClient, int]] = defaultdict(lambda: defaultdict(int))
        for client in self.clients:
            for got in client.got:
                if got.number >= first and not got.retain:
                    times[got.number][client] += 1
        for number, clients in expected.items():
            sent = self.ledger.sent[number]
            for client in self.clients:
                count = times[number][client]
                if client in clients and count != 1 and (count or sent.qos or rested):
                    self.world.violation(
                        "probe", f"{client.name} got {self._name(sent)} {count} times"
                    )
                elif client not in clients and count:
                    self.world.violation("probe", f"{client.name} got {self._name(sent)}, unasked")


def directory_faults(world: World, group: list[Host]) -> list[tuple[str, str]]:
    """Every broker of a component knows all the others, and what they have posted."""
    faults: list[tuple[str, str]] = []
    for host in group:
        directory = host.running.cluster.directory.database
        expected = {
            other.id: other.running.cluster.directory.database.own.entries
            for other in group
            if other is not host
        }
        found = {listing.id: listing.entries for listing in directory.reachable()}
        if found != expected:
            who = [
                other.index
                for other in group
                if other is not host and found.get(other.id) != expected[other.id]
            ]
            faults.append(
                (
                    "directory",
                    (
                        f"b{host.index} does not know what {who} have posted, "
                        f"{len(found)} are reachable"
                    ),
                )
            )
    return faults


def moves(host: Host) -> bool:
    """Return whether a broker takes sessions, or adds older ones to newer ones, from brokers that
    can be reached."""
    cluster = host.running.cluster
    via, moving = cluster.directory.database.via, cluster.takeover
    return any(
        via(one.holder) is not None
        for one in (*moving._pending.values(), *cluster.session_merge._merges.values())
    )


def session_faults(world: World, group: list[Host]) -> list[tuple[str, str]]:
    """Every client id has one session in a component."""
    where: dict[str, list[str]] = defaultdict(list)
    for host in group:
        for client_id, session in host.running.sessions.items():
            where[client_id].append(
                f"{host.name} ({'connected' if session.conn is not None else 'away'}, "
                f"{session.stamp})"
            )
    return [
        ("sessions", f"{client_id} has several: {', '.join(found)}")
        for client_id, found in where.items()
        if len(found) > 1
    ]
