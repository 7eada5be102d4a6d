"""The container image: what its context has, and that a mounted file, variables and flags count in
the usual order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mqttree.broker.cli.main import make_parser
from mqttree.broker.config.listener_section import read_listeners
from mqttree.broker.config.options import OPTIONS, RunSettings, read_settings
from tests.kit.brokers import secret_file

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
DEFAULTS = ROOT / "deploy/container/mqttree.yaml"
PLACE = "/etc/mqttree/mqttree.yaml"


def test_all_that_the_image_copies_is_in_its_context() -> None:
    lines = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", DOCKERFILE)
    copied = {name for line in lines for name in line.split()}
    allowed = re.findall(r"(?m)^!(\S+)$", (ROOT / ".dockerignore").read_text())
    assert copied == set(allowed)
    assert all((ROOT / name).exists() for name in copied)


def of_image(file: Path, *flags: str, **variables: str) -> RunSettings:
    """What a broker of the image goes by where `file` is mounted; `flags` and `variables` are those
    of `docker run`."""
    (command,) = re.findall(r"(?m)^CMD (.*)$", DOCKERFILE)
    words = [str(file) if word == PLACE else word for word in json.loads(command)]
    own = dict(re.findall(r"\b(MQTTREE_[A-Z_]+)=(\S+)", DOCKERFILE))
    own = {name: str(file) if value == PLACE else value for name, value in own.items()}
    arguments = make_parser().parse_args([*words, *flags])
    return read_settings(vars(arguments), own | variables)


def test_the_image_has_its_defaults_in_a_file_alone() -> None:
    (command,) = re.findall(r"(?m)^CMD (.*)$", DOCKERFILE)
    assert json.loads(command) == ["run", "-c", PLACE]
    assert f"COPY {DEFAULTS.relative_to(ROOT)} {PLACE}\n" in DOCKERFILE
    # A variable of the image would win over a mounted file.
    variables = set(re.findall(r"\bMQTTREE_([A-Z_]+)=", DOCKERFILE.partition("\nFROM ")[2]))
    assert not {name.lower() for name in variables} & OPTIONS.keys()
    found = of_image(DEFAULTS)
    assert (str(found.data_dir), str(found.admin)) == ("/var/lib/mqttree", "0.0.0.0:8080")
    assert str(found.admin_token_file) == "/var/lib/mqttree/admin-token"
    assert read_listeners(found.file, found.listen).by_name["default"].bind == "0.0.0.0:1883"


@pytest.mark.parametrize(
    ("flags", "variables", "bind", "name"),
    [
        ((), {}, "0.0.0.0:8883", "filed"),
        ((), {"MQTTREE_LISTEN": ":1884", "MQTTREE_NAME": "told"}, ":1884", "told"),
        (("--listen", ":1885"), {"MQTTREE_LISTEN": ":1884"}, ":1885", "filed"),
    ],
)
def test_in_the_image_flags_win_over_variables_and_these_over_a_mounted_file(
    flags: tuple[str, ...], variables: dict[str, str], bind: str, name: str, tmp_path: Path
) -> None:
    pem = tmp_path / "pem"
    pem.touch()
    mounted = tmp_path / "mqttree.yaml"
    mounted.write_text(
        f"listeners: {{default: {{bind: '0.0.0.0:8883', ssl: true, certfile: {pem}, "
        f"keyfile: {pem}}}}}\nfederation: {{name: filed, data-dir: {tmp_path}}}\n"
    )
    found = of_image(mounted, *flags, **variables)
    default = read_listeners(found.file, found.listen).by_name["default"]
    assert (default.bind, default.ssl, found.name) == (bind, True, name)
    # The file replaces the image's as a whole.
    assert (found.data_dir, found.admin) == (tmp_path, None)


def test_commands_in_a_container_find_the_admin_port_in_the_mounted_file(tmp_path: Path) -> None:
    from mqttree.broker.cli.admin_client import admin_port

    token = secret_file(tmp_path, "token", "0123456789abcdef")
    file = tmp_path / "mqttree.yaml"
    file.write_text(f"federation: {{admin: '0.0.0.0:9000', admin-token-file: {token}}}\n")

    def found(*words: str, **variables: str) -> tuple[str, str]:
        with pytest.MonkeyPatch.context() as patch:
            for key, value in {"MQTTREE_CONFIG": str(file), **variables}.items():
                patch.setenv(key, value)
            port: Any = admin_port(make_parser().parse_args(["status", *words]))
        return str(port.where), port.credentials.token

    assert found() == ("127.0.0.1:9000", "0123456789abcdef")
    assert found(MQTTREE_ADMIN=":9001") == ("127.0.0.1:9001", "0123456789abcdef")
    # Another broker does not get this one's token.
    assert found("--admin", "127.0.0.1:9002") == ("127.0.0.1:9002", "")
