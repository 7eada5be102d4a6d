"""What observations mean: the rules of `mqttree doctor`. Pure: no clock, no socket.

Each rule turns observations into findings, and each finding that is not good news has a remedy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from mqttree.broker.base.address import Address, is_loopback, parse_address
from mqttree.broker.cli.link_probe import Answer
from mqttree.broker.wire.constants import ReasonCode
from mqttree.discovery.announcement import Announcement

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"

CLOCK_WINDOW: Final = 60.0
"""s by which clocks may differ: announcements with a secret are refused beyond it."""

CLOCK_CLOSE: Final = 1.0
"""s; what clocks that are set by NTP never differ by."""

DOCTOR: Final = "mqttree-doctor-"
"""What the cluster names of the announcements begin with by which doctors hear each other."""


ALONE_S = 10.0
"""s without a standby after which that is told."""


class Finding(NamedTuple):
    """One line for people: what was checked, how it is, and what to do."""

    check: str
    level: str
    text: str
    remedy: str = ""


class Heard(NamedTuple):
    """A datagram in the discovery group: from which host, what was in it, or why it was refused,
    and how far its clock is ahead of this machine's (s)."""

    host: str
    announcement: Announcement | None
    kind: str = ""
    reason: str = ""
    ahead: float = 0.0


FORWARD = (
    "let its TCP port through: firewall, security group, or the published port of its container"
)
SECRET = "give both brokers the same --secret-file, byte by byte"
CLUSTER = "give both brokers the same --cluster"
RELEASE = "run the same release at both brokers"
CLOCKS = "set the clocks of both machines by NTP (chrony, systemd-timesyncd)"
MULTICAST = (
    "let UDP port {port} in, and 239.0.0.0/8 through: firewall, IGMP snooping with a querier, the "
    "access point's multicast; clouds and routed networks have none, there name one broker (--seed)"
)
ALONE = (
    "start it with --discovery multicast, static or dns; if its clients have to prove who they "
    "are, it federates with --secret-file only"
)
PLAIN = "use the same federation: {tls: ...} at both brokers"
MTU = (
    "let ICMP `fragmentation needed` (IPv6: `packet too big`) through, or set the MTU of the "
    "interface or tunnel to the smallest one on the way, or sysctl net.ipv4.tcp_mtu_probing=1"
)

COUNTED: Final[dict[str, tuple[str, str, str]]] = {
    "link_wrong_secret": ("secret", "links with a wrong cluster secret, or none", SECRET),
    "link_wrong_cluster": ("cluster", "links of brokers of another cluster", CLUSTER),
    "link_wrong_id": ("id", "links of brokers that did not prove their id", RELEASE),
    "links_refused": ("version", "links of another version or routing mode", RELEASE),
    "duplicate_id": (
        "id",
        "links of another broker with an id that is taken",
        "give each broker a data directory of its own; do not copy one",
    ),
    "link_tampered": ("secret", "links whose records were changed on the way", SECRET),
    "link_timeouts": (
        "port",
        "links that were silent for too long",
        "look for a broker that hangs, a full line, or a firewall that forgets connections",
    ),
    "discovery_wrong_secret": ("secret", "announcements with a wrong cluster secret", SECRET),
    "discovery_wrong_version": ("version", "announcements of another version", RELEASE),
    "discovery_wrong_clock": ("clock", "announcements whose clock differs too much", CLOCKS),
    "discovery_replayed": (
        "multicast",
        "announcements that were sent again by another host",
        "have no relay of multicast between networks: it changes the sender; use --seed",
    ),
    "retained_clock_ahead": ("clock", "messages of brokers whose clock is ahead", CLOCKS),
}
"""Counter -> what it is about, what was counted, what to do."""


def check_state(state: Mapping[str, Any], cluster: str, version: str) -> Iterable[Finding]:
    """Judge the `state` of this machine's broker (`/api/v1/federation`); `cluster`: what the
    options say; `version`: of this program."""
    up = [link for link in state["links"] if link.get("up")]
    title = f"{state.get('name')} ({state.get('listen')})"
    yield Finding("broker", OK, f"{title} runs, cluster {state.get('cluster')}, {len(up)} links up")
    if state.get("cluster") != cluster:
        text = f"it is of cluster {state.get('cluster')!r}; the options here say {cluster!r}"
        yield Finding("cluster", WARNING, text, "give doctor the options of the broker")
    if state.get("version") != version:
        text = f"it is release {state.get('version')}, this program {version}"
        yield Finding("version", WARNING, text, "start it again after an upgrade")
    if is_loopback(str(state.get("listen")).rpartition(":")[0].strip("[]")):
        text = f"others are told to link to {state.get('listen')}, which only this machine reaches"
        yield Finding("port", WARNING, text, "listen on 0.0.0.0, or say --advertise HOST:PORT")
    if state.get("id_conflict"):
        text = f"another broker has its id: {state['id_conflict']}"
        yield Finding("id", ERROR, text, "give each broker a data directory of its own")
    # A single broker can have no standby.
    if up and (standby := state.get("standby")) is not None:
        yield from check_standby(standby)
    yield from check_counters(state.get("counters", {}))


def check_standby(standby: Mapping[str, Any]) -> Iterable[Finding]:
    """Judge what a broker with neighbours says of its `standby`."""
    if standby.get("alone_s", 0.0) >= ALONE_S:
        text = f"no other broker has had its journal for {standby['alone_s']:.0f} s"
        yield Finding("standby", WARNING, text, "have another broker linked to it")
    standbys, wanted = standby.get("standbys", []), standby.get("wanted", 0)
    if 0 < len(standbys) < wanted:
        text = f"{len(standbys)} of {wanted} standbys have its journal"
        yield Finding("standby", WARNING, text, "have more brokers linked to it")
    for each in standbys:
        if each.get("same_host"):
            text = f"its standby, {each.get('name')}, is on its own host"
            yield Finding("standby", WARNING, text, "run a broker on another host")


def check_counters(counters: Mapping[str, int]) -> Iterable[Finding]:
    """Judge what a broker has refused since its start."""
    for name, (check, text, remedy) in COUNTED.items():
        if counters.get(name):
            yield Finding(
                check, WARNING, f"since its start, {counters[name]:,} {text} ({name})", remedy
            )


def check_probe(target: Address, small: Answer, large: Answer | None) -> Iterable[Finding]:
    """Judge attempts to link to a broker at `target`: with a `small` first packet, and with a
    `large` one if there was one."""
    if small.outcome == "unreachable":
        yield _unreachable(target, small.text)
        return
    mtu = f", path MTU {small.mtu}" if small.mtu else ""
    yield Finding("port", OK, f"{target} accepts connections, in {small.connect_ms:.1f} ms{mtu}")
    if large is not None and small.peer is not None and large.peer is None:
        if large.outcome in ("silent", "closed", "unreachable"):
            text = f"{target} answers short packets and no long ones"
            yield Finding("mtu", ERROR, text, MTU)
        else:
            text = f"{target} answers a long packet with: {large.text}"
            yield Finding("mtu", NOTE, text, MTU)
    elif large is not None and small.peer is not None:
        yield Finding("mtu", OK, f"packets of full size reach {target}")
    yield from _judged(target, small)


def _unreachable(target: Address, why: str) -> Finding:
    text = f"cannot connect to {target}: {why}"
    reason = why.lower()
    if "refused" in reason:
        remedy = "start a broker there, or name the port where it listens (not on 127.0.0.1 only)"
    elif "timed out" in reason:
        remedy = FORWARD
    elif "name or service" in reason or "temporary failure" in reason or "no address" in reason:
        remedy = "name an address, or make the name known to the DNS servers of this machine"
    else:
        remedy = "look at the routes of this machine (ip route get HOST)"
    return Finding("port", ERROR, text, remedy)


def _judged(target: Address, answer: Answer) -> Iterable[Finding]:
    peer = answer.peer
    match answer.outcome:
        case "proven" if peer is not None:
            proof = "proves the cluster secret" if answer.proof else "wants no cluster secret"
            about = f"link protocol {peer.protocol}, routing {peer.routing}"
            yield Finding("secret", OK, f"{peer.name or target} {proof}; {about}")
            if is_loopback(peer.host) and not is_loopback(target.host):
                text = f"it is told to others as {peer.host}:{peer.port}, which they do not reach"
                yield Finding("port", WARNING, text, "say --advertise HOST:PORT there")
        case "wrong-secret":
            yield Finding("secret", ERROR, f"{target} has another cluster secret", SECRET)
        case "wrong-id":
            yield Finding("id", ERROR, f"{target} does not prove its id", RELEASE)
        case "refused":
            yield _refused(target, answer)
        case "tls":
            text = f"{target} and this machine do not agree on TLS: {answer.text}"
            yield Finding("secret", ERROR, text, PLAIN)
        case "silent":
            text = f"{target} accepts a connection and answers nothing"
            remedy = "look whether that broker hangs (its log, its CPU), or what else listens there"
            yield Finding("broker", ERROR, text, remedy)
        case "closed":
            text = f"{target} ends the connection: {answer.text}"
            remedy = "look into the log of that broker: too many links, TLS, or another protocol"
            yield Finding("broker", ERROR, text, remedy)
        case _:
            text = f"{target} is no broker of mqttree: {answer.text}"
            yield Finding("broker", ERROR, text, "name the MQTT port of an mqttree broker")


def _refused(target: Address, answer: Answer) -> Finding:
    """Judge a refusal, by what the other broker says of this one (`your broker ...`)."""
    said = answer.text
    rules = (
        ("of cluster", "cluster", CLUSTER),
        ("link protocol", "version", RELEASE),
        ("routes by", "routing", "use routing modes that mix: flood, interest, topic"),
        ("no cluster secret", "secret", "give doctor, and this broker, that --secret-file"),
        ("requires a cluster secret", "secret", "give that broker the same --secret-file"),
        ("does not federate", "broker", ALONE),
        ("prove its id", "id", RELEASE),
    )
    for words, check, remedy in rules:
        if words in said:
            return Finding(check, ERROR, f"{target} refuses: {said}", remedy)
    text = f"{target} refuses: {said or hex(answer.code)}"
    if answer.code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION and not said:
        return Finding("broker", ERROR, text, "name the MQTT port of an mqttree broker")
    return Finding("broker", ERROR, text, "look into the log of that broker")


def check_heard(
    heard: Iterable[Heard], joined: list[str], echoed: Iterable[str], own: str, port: int
) -> Iterable[Finding]:
    """Judge what came in the discovery group.

    `heard`: datagrams, of the same host and kind once; `joined`: interfaces where the group was
    joined; `echoed`: those of them at which this machine heard itself; `own`: id of its broker, ""
    if it is not known; `port`: UDP port of the group.
    """
    if not joined:
        text = "the discovery group cannot be joined on any interface"
        yield Finding("multicast", ERROR, text, "bring an interface with an IPv4 address up")
        return
    deaf = [address for address in joined if address not in set(echoed)]
    if len(deaf) == len(joined):
        text = f"this machine does not hear itself on {', '.join(joined)}"
        yield Finding("multicast", ERROR, text, f"let UDP port {port} in: its firewall drops it")
    elif deaf:
        text = f"this machine does not hear itself on {', '.join(deaf)}"
        yield Finding("multicast", NOTE, text, "of no matter if no broker is on that side")
    others = False
    for each in heard:
        if each.announcement is not None and each.announcement.id.hex() == own:
            continue
        others = others or each.kind in ("", "secret", "version", "source", "doctor")
        yield _judge_datagram(each)
    if not others:
        text = f"no other broker was heard on {', '.join(joined)}"
        yield Finding("multicast", WARNING, text, MULTICAST.format(port=port))


def _judge_datagram(heard: Heard) -> Finding:
    found = heard.announcement
    if heard.kind == "doctor":
        return Finding("multicast", OK, f"heard another doctor at {heard.host}")
    if found is not None:
        name = f"heard {found.name or found.id.hex()} at {heard.host}"
        if abs(heard.ahead) > CLOCK_WINDOW:
            text = f"{name}, whose clock differs by {heard.ahead:+.0f} s: it is ignored"
            return Finding("clock", ERROR, text, CLOCKS)
        if abs(heard.ahead) > CLOCK_CLOSE:
            text = f"{name}, whose clock differs by {heard.ahead:+.1f} s"
            return Finding("clock", WARNING, text, CLOCKS)
        return Finding("multicast", OK, f"{name}, its clock differs by {heard.ahead:+.2f} s")
    text = f"from {heard.host}: {heard.reason}"
    remedies = {"secret": SECRET, "version": RELEASE, "source": COUNTED["discovery_replayed"][2]}
    if heard.kind == "cluster":
        return Finding("cluster", NOTE, text, CLUSTER)
    check = "multicast" if heard.kind == "source" else heard.kind
    if heard.kind in remedies:
        return Finding(check, ERROR, text, remedies[heard.kind])
    return Finding("multicast", NOTE, text, "find out what else sends to this group")


def check_other(
    own: Mapping[str, Any], other: Mapping[str, Any], ahead: float, within: float
) -> Iterable[Finding]:
    """Judge the states of two brokers beside each other.

    `own`, `other`: `/api/v1/federation` of both; `ahead`: s by which the other one's clock is
    ahead, give or take `within`.
    """
    title = str(other.get("name"))
    if abs(ahead) - within > CLOCK_WINDOW:
        text = f"the clock of {title} differs by {ahead:+.0f} s"
        yield Finding("clock", ERROR, text, CLOCKS)
    elif abs(ahead) - within > CLOCK_CLOSE:
        text = f"the clock of {title} differs by {ahead:+.1f} s"
        yield Finding("clock", WARNING, text, CLOCKS)
    else:
        text = f"the clock of {title} differs by {ahead:+.3f} s, give or take {within:.3f} s"
        yield Finding("clock", OK, text)
    for key, check, remedy in (
        ("cluster", "cluster", CLUSTER),
        ("version", "version", RELEASE),
        ("routing", "routing", "use one --routing at all brokers"),
    ):
        if own.get(key) != other.get(key):
            text = f"{key} is {own.get(key)!r} here and {other.get(key)!r} at {title}"
            yield Finding(check, WARNING if key != "cluster" else ERROR, text, remedy)
    yield from _check_link(own, other, title)
    yield from _check_link(other, own, str(own.get("name")), f"{title} ")


def _check_link(
    one: Mapping[str, Any], other: Mapping[str, Any], title: str, who: str = "this broker "
) -> Iterable[Finding]:
    links = {link.get("peer"): link for link in one.get("links", ())}
    known = {member.get("id") for member in one.get("members", ())}
    if links.get(other.get("id"), {}).get("up"):
        yield Finding("broker", OK, f"{who}has a link to {title}")
    elif other.get("id") in known:
        text = f"{who}knows {title} and has no link to it; of many brokers not all are linked"
        yield Finding("broker", NOTE, text, "look at the port and the secret above")
    else:
        text = f"{who}does not know {title}"
        yield Finding("multicast", ERROR, text, "name one of them to the other: --seed HOST:PORT")


def check_found(discovery: str, targets: int) -> Iterable[Finding]:
    """Judge how other brokers are looked for: `discovery` as the option says it, and how many
    `targets` there are to ask."""
    if discovery == "off":
        text = "discovery is off: this broker neither looks for others nor links to them"
        yield Finding("broker", WARNING, text, "start it with --discovery multicast, static or dns")
    elif discovery in ("static", "dns") and not targets:
        text = f"with --discovery {discovery} and without --seed no broker is looked for"
        yield Finding("broker", WARNING, text, "name one: --seed HOST:PORT")


def worst(findings: Iterable[Finding]) -> tuple[int, int]:
    """Return how many errors and warnings there are."""
    levels = [finding.level for finding in findings]
    return levels.count(ERROR), levels.count(WARNING)


def addresses_of(state: Mapping[str, Any]) -> list[Address]:
    """Return where the brokers listen that a broker knows and has no link to."""
    linked = {link.get("peer") for link in state.get("links", ()) if link.get("up")}
    return [
        address
        for member in state.get("members", ())
        if member.get("id") not in linked
        for text in member.get("addresses", ())[:1]
        for address in _read_address(text)
    ]


def own_address(state: Mapping[str, Any]) -> list[Address]:
    """Return where a broker says that it listens; nothing if that is no address."""
    return _read_address(state.get("listen"))


def _read_address(text: object) -> list[Address]:
    with contextlib.suppress(ValueError):
        return [parse_address(str(text))]
    return []
