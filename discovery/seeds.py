"""Seeds: addresses written in the configuration, for networks without multicast."""

from __future__ import annotations

from collections.abc import Iterable

from mqttree.broker.base.address import (
    DEFAULT_PORT,
    Address,
    is_literal,
    is_wildcard,
    parse_address,
)

MAX_SEEDS = 1024
"""As many as there can be members: more seeds than brokers are a mistake in a configuration."""


def parse_seed(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Return one seed: "HOST:PORT", "HOST", "[v6]:port". Raises ValueError with one line."""
    try:
        address = parse_address(text, default_port)
    except ValueError as error:
        raise ValueError(f"seed: {error}") from None
    if is_wildcard(address.host):
        raise ValueError(f"seed: address {text!r}: a seed has to name one host")
    return address


def parse_seeds(texts: Iterable[str], default_port: int = DEFAULT_PORT) -> list[Address]:
    """Return seeds, each text one seed or several with commas between, in order and without
    repeats. Raises ValueError with one line for the first that is wrong."""
    seeds: dict[Address, None] = {}
    for text in texts:
        for part in text.split(","):
            if part.strip() or "," not in text:
                seeds[parse_seed(part, default_port)] = None
    if len(seeds) > MAX_SEEDS:
        raise ValueError(f"seed: {len(seeds)} seeds are more than {MAX_SEEDS}")
    return list(seeds)


def split_seeds(seeds: Iterable[Address]) -> tuple[list[Address], list[Address]]:
    """Return the seeds as IP addresses, usable as they are, and names, to be resolved."""
    literals: list[Address] = []
    names: list[Address] = []
    for seed in seeds:
        (literals if is_literal(seed.host) else names).append(seed)
    return literals, names
