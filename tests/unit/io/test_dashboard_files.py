"""The files of the dashboard: small, of this host alone, without a way for texts to become HTML."""

from __future__ import annotations

from pathlib import Path

from mqttree.broker.io.admin_access import AdminAccess
from mqttree.broker.io.dashboard import FILES, HEADERS, read_file
from tests.kit.admin_server import AdminServer


def test_the_files_are_small_and_ask_no_other_host() -> None:
    texts = {path: read_file(path)[1] for path in FILES}
    assert sum(len(text.encode()) for text in texts.values()) < 400_000
    for path, text in texts.items():
        for word in ("https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval("):
            assert word not in text, (path, word)
        assert text.count("http://") == text.count("http://www.w3.org/2000/svg"), path
    folder = Path(__file__).parents[3] / "broker" / "io" / "dashboard"
    served = {name for name, _ in FILES.values()}
    assert {
        path.name for path in folder.iterdir() if path.suffix in (".html", ".css", ".js")
    } == served


async def test_every_file_has_a_policy_and_needs_no_token(tmp_path: Path) -> None:
    async with AdminServer(AdminAccess(tmp_path / "token")) as server:
        for path, (_, kind) in FILES.items():
            status, head, body = await server.answer(f"GET {path}")
            assert status == 200
            assert f"Content-Type: {kind}; charset=utf-8\r\n" in head
            assert HEADERS in f"{head}\r\n"
            assert body == read_file(path)[1]
