"""What tests with brokers as processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.clients import Make, clients


@pytest.fixture
def make() -> Iterator[Make]:
    """A maker of clients, which are closed at the end."""
    with clients() as maker:
        yield maker
