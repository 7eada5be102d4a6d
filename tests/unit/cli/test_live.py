"""`mqttree.broker.cli.live`: what it says when brokers end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mqttree.broker.cli.live import Child, Live


@pytest.mark.parametrize("looks", range(4))
def test_a_broker_that_does_not_start_is_reported_whenever_it_ends(
    looks: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code is seen after any number of looks, also between two of the same turn."""
    monkeypatch.setattr(Child, "look", lambda child: None)
    codes = iter([None] * looks)
    child: Any = SimpleNamespace(
        process=SimpleNamespace(poll=lambda: next(codes, 2)),
        answered=False,
        last_words=lambda: "federation.cluster: it is empty",
        seen=lambda: None,
        port=1883,
    )
    live = Live([1883], "")
    live.children.append(child)
    monkeypatch.setattr(live.stopping, "wait", lambda timeout=None: False)
    assert live._watch() == 2
    assert "it is empty" in capsys.readouterr().err
