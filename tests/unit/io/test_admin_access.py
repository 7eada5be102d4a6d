"""Who may use the admin port: files of tokens, certificates, addresses, origins."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from mqttree.broker.base.address import Address
from mqttree.broker.config.options import RunSettings, read_settings
from mqttree.broker.config.yaml_file import ConfigError
from mqttree.broker.io.admin_access import MIN_TOKEN, AdminAccess, read_token
from mqttree.broker.service.assembly import admin_access, open_admin

TOKEN = "0123456789abcdef"


def token_file(folder: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_file_that_is_missing_is_made_with_a_random_token(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    assert AdminAccess(first).made
    AdminAccess(second)
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert len(read_token(first)) >= 2 * MIN_TOKEN
    assert read_token(first) != read_token(second)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    again = AdminAccess(first)
    assert not again.made
    assert again.admits(f"Bearer {first.read_text().strip()}")


@pytest.mark.parametrize(
    ("field", "admitted"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN} ", True),
        (f"Basic {TOKEN}", False),
        (TOKEN, False),
        (f"Bearer {TOKEN}x", False),
        (f"Bearer {TOKEN[:-1]}", False),
        ("Bearer \xff", False),
        ("Bearer ", False),
        ("", False),
    ],
)
def test_only_the_token_is_admitted(tmp_path: Path, field: str, admitted: bool) -> None:
    assert AdminAccess(token_file(tmp_path)).admits(field) is admitted


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (TOKEN, 0o644, "others may read"),
        ("short", 0o600, "needs 16 at least"),
        ("", 0o600, "is empty"),
        ("sixteen bytes or more", 0o600, "letters, digits"),
        (f"{TOKEN}\n{TOKEN}", 0o600, "letters, digits"),
    ],
)
def test_a_token_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, text: str, mode: int, why: str
) -> None:
    settings = RunSettings(admin_token_file=token_file(tmp_path, text, mode))
    with pytest.raises(ConfigError, match=f"^admin-token-file: [^\n]*{why}[^\n]*$"):
        admin_access(settings)
    settings.admin_token_file = tmp_path / "missing" / "token"
    with pytest.raises(ConfigError, match=r"^admin-token-file: cannot make .*: No such file"):
        admin_access(settings)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_reach_needs_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=r"^admin: .* needs admin-token-file, or admin-tls"):
        open_admin(Address(host, 0), AdminAccess())
    open_admin(Address(host, 0), AdminAccess(token_file(tmp_path))).close()
    for here in ("127.0.0.1", "localhost"):
        open_admin(Address(here, 0), AdminAccess()).close()


@pytest.mark.parametrize(
    ("origin", "authority", "same"),
    [
        ("", "localhost:8080", True),
        ("http://localhost:8080", "localhost:8080", True),
        ("http://LOCALHOST:8080", "localhost:8080", True),
        ("http://broker", "broker:80", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("https://localhost:8080", "localhost:8080", False),
        ("http://localhost:8081", "localhost:8080", False),
        ("http://127.0.0.1:8080", "localhost:8080", False),
        ("http://localhost:8080.evil.example", "localhost:8080", False),
        ("http://evil.example", "localhost:8080", False),
        ("null", "localhost:8080", False),
        ("http://", "", False),
        ("file://", "localhost:8080", False),
    ],
)
def test_only_pages_of_the_port_itself_may_ask(origin: str, authority: str, same: bool) -> None:
    assert AdminAccess().same_origin(origin, authority) is same


def test_a_new_token_holds_from_the_reload_on(tmp_path: Path) -> None:
    access = AdminAccess(token_file(tmp_path))
    token_file(tmp_path, TOKEN[::-1])
    found = access.read()
    assert access.admits(f"Bearer {TOKEN}"), "not before all else could be read"
    access.renew(found)
    assert access.admits(f"Bearer {TOKEN[::-1]}")
    assert not access.admits(f"Bearer {TOKEN}")
    token_file(tmp_path, "short")
    with pytest.raises(ValueError, match="16 at least"):
        access.read()
    assert access.admits(f"Bearer {TOKEN[::-1]}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yes", "expected certfile, keyfile, cafile"),
        ("{certfile: a}", "certfile: cannot read a"),
        ("{verify: yes}", "verify: unknown key"),
        ("{}", "needs certfile and keyfile"),
    ],
)
def test_tls_of_the_admin_port_is_checked(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"federation:\n  admin-tls: {text}\n")
    with pytest.raises(
        ConfigError, match=r"config.yaml:2: federation.admin-tls: " + re.escape(why)
    ):
        read_settings({"config": str(file)}, {})
