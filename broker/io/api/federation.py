"""The federation as this broker sees it: every broker and every link, from the link-state database,
the tree, discovery and its own links. It asks no other broker: one that hangs delays nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mqttree.broker.cluster.directory.link_state_directory import (
    CLIENTS_AT,
    DRAINING,
    LINK,
    NAME,
    ROUTING,
    STANDBY,
    decode_posted,
)
from mqttree.broker.cluster.placement.traffic_entry import (
    COUNTS,
    TRAFFIC,
    read_counts,
    read_traffic,
)
from mqttree.broker.io.api.link_rates import TRAFFIC_OF_LINK, LinkRates

if TYPE_CHECKING:
    from mqttree.broker.node import Node
    from mqttree.routing.listing import Listing

RATES = ("published_per_s", "delivered_per_s", "link_in_per_s", "link_out_per_s")


def topology(node: Node, now: float, rates: LinkRates) -> dict[str, Any]:
    """Return all brokers and links. `node`: this broker; `now`: s; `rates`: of its links."""
    tree, config = node.cluster.tree, node.config
    return {
        "cluster": config.cluster,
        "here": config.id.hex(),
        "root": tree.root.id.hex(),
        "epoch": tree.epoch,
        "brokers": brokers(node, now),
        "links": links(node, rates),
    }


def brokers(node: Node, now: float) -> list[dict[str, Any]]:
    """Return all brokers that are known, by name, without their earlier ids; `now`: s."""
    membership, database = node.cluster.membership, node.cluster.database
    root = node.cluster.tree.root.id
    known = {
        broker_id: (boot, addresses, alive)
        for broker_id, boot, addresses, alive in membership.members(now)
    }
    found = [_own(node)]
    silent: list[tuple[int, dict[str, Any]]] = []
    # Listings of brokers that are gone stay for a while, those that no member has are not shown.
    for broker_id in known.keys() | {listing.id for listing in database.reachable()}:
        boot, addresses, alive = known.get(broker_id, (0, (), True))
        row = {
            "id": broker_id.hex(),
            "name": membership.name_of(broker_id),
            "address": str(addresses[0]) if addresses else "",
            "here": False,
            "root": broker_id == root,
            "alive": alive,
            **_posted(database.listings.get(broker_id)),
        }
        if alive:
            found.append(row)
        else:
            silent.append((boot, row))
    return sorted(
        found + _without_earlier_ids(found, silent),
        key=lambda broker: (str(broker["name"]), str(broker["id"])),
    )


def _without_earlier_ids(
    there: Iterable[dict[str, Any]], silent: Iterable[tuple[int, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the brokers that are silent, each with its last id. One without a data directory has a
    new id with each start, and an id that only others have heard may have no name.

    `there`: brokers that are not silent; `silent`: boot number and row of the others.
    """
    names = {"", *[row[key] for row in there for key in ("name", "address")]}
    found = []
    for _, row in sorted(silent, key=lambda each: -each[0]):
        if (title := row["name"] or row["address"]) not in names:
            names.add(title)
            found.append(row)
    return found


def _own(node: Node) -> dict[str, Any]:
    tree, config = node.cluster.tree, node.config
    meter = node.traffic
    sums = None if meter is None else meter.sums
    rates: tuple[float | None, ...] = (None,) * 4 if sums is None else tuple(sums)
    if sums is not None and not node.cluster.database.reachable():
        # Averages are of the last minute; who was there then is not there now.
        rates = (sums.published, sums.delivered, 0.0, 0.0)
    return {
        "id": config.id.hex(),
        "name": config.name,
        "address": f"{config.host}:{config.port}",
        "here": True,
        "root": tree.is_root,
        "reachable": True,
        "alive": True,
        "draining": node.drain is not None,
        "standbys": _standbys(node.cluster.database.own_entry(STANDBY)),
        "via": None,
        "routing": node.config.routing,
        "capability": tree.capability,
        **dict(zip(RATES, map(_rounded, rates), strict=True)),
        "clients": node.clients.connected,
        "sessions": len(node.sessions),
    }


def _posted(listing: Listing | None) -> dict[str, Any]:
    """Return what a broker says of itself in the link-state database, or last said; it has no rates
    once it cannot be reached."""
    entries = {} if listing is None else listing.entries
    traffic, counts = read_traffic(entries.get(TRAFFIC)), read_counts(entries.get(COUNTS))
    via = None if listing is None else listing.via
    rates: tuple[float | None, ...] = (None,) * 4
    if traffic is not None and via is not None:
        rates = tuple(traffic)[:4]
    found: dict[str, Any] = {
        "reachable": via is not None,
        "draining": DRAINING in entries,
        "standbys": _standbys(entries.get(STANDBY)),
        "via": None if via is None else via.hex(),
        "routing": entries[ROUTING][4:].decode(errors="replace") if ROUTING in entries else None,
        "capability": None if traffic is None else traffic.capability,
        **dict(zip(RATES, map(_rounded, rates), strict=True)),
        "clients": None if counts is None else counts.connected,
        "sessions": None if counts is None else counts.sessions,
    }
    if NAME in entries:
        found["name"] = entries[NAME].decode(errors="replace")
    if CLIENTS_AT in entries:
        found["address"] = entries[CLIENTS_AT].decode(errors="replace")
    return found


def _standbys(entry: bytes | None) -> list[str]:
    return [standby.id.hex() for standby in decode_posted(entry)[1]]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def links(node: Node, rates: LinkRates) -> list[dict[str, Any]]:
    """Return all links that are known, each once, by their ends; `rates`: of those here."""
    own, strategy = node.config.id, node.cluster.strategy
    found: dict[tuple[bytes, bytes], dict[str, Any]] = {}
    listings = (node.cluster.database.own, *node.cluster.database.reachable())
    tree = spanning_tree(listings)
    for listing in listings:
        for peer in listing.up:
            _link(found, listing.id, peer)["tree"] = (
                min(listing.id, peer),
                max(listing.id, peer),
            ) in tree
        # A listing may have a million entries of clients and filters: it is asked for each broker.
        for other in listings:
            value = listing.entries.get(LINK + other.id)
            if value is not None:
                link = _link(found, listing.id, other.id)
                cost = int.from_bytes(value, "big") / 1000
                link["cost_ms"] = max(cost, link["cost_ms"] or 0.0)
    ports = node.cluster.tree.ports
    for peer_id, each in node.cluster.links.items():
        port = ports.get(peer_id)
        _link(found, own, peer_id).update(
            up=each.up,
            tree=each.live,
            here=True,
            rtt_ms=_rounded(each.rtt_ms),
            role=port.role.name.lower() if port is not None else "blocked",
            carries=each.live or strategy.uses(each),
            **rates.of(peer_id),
        )
    return [found[ends] for ends in sorted(found)]


def _link(
    found: dict[tuple[bytes, bytes], dict[str, Any]], one: bytes, other: bytes
) -> dict[str, Any]:
    """Return the entry of a link, made if there is none; `found`: those that there are, `one` and
    `other`: its ends."""
    ends = (one, other) if one < other else (other, one)
    return found.setdefault(
        ends,
        {
            "a": ends[0].hex(),
            "b": ends[1].hex(),
            "up": True,
            "tree": False,
            "here": False,
            "cost_ms": None,
            "rtt_ms": None,
            "role": None,
            "carries": None,
            **dict.fromkeys(TRAFFIC_OF_LINK),
        },
    )


def shape(node: Node) -> tuple[bytes, frozenset[bytes], frozenset[tuple[bytes, bytes]]]:
    """Return what changes of the topology are noticed by: the root, the brokers that can be
    reached, and the links of the tree, each with its lower end first."""
    reachable = node.cluster.database.reachable()
    there = frozenset([node.config.id, *[listing.id for listing in reachable]])
    return node.cluster.tree.root.id, there, spanning_tree((node.cluster.database.own, *reachable))


def spanning_tree(listings: Iterable[Listing]) -> frozenset[tuple[bytes, bytes]]:
    """Return the links of the tree, which both ends name; `listings`: of all brokers that can be
    reached."""
    named = {(each.id, peer) for each in listings for peer in each.up}
    return frozenset([(a, b) for a, b in named if a < b and (b, a) in named])
