"""docs/reference/options.md has every key of the file, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from mqttree.broker.config import listener_options, mqtt_options
from mqttree.broker.config.leg_options import LEG_OPTIONS
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.config.options import (
    ACCESS,
    OPTIONS,
    RunSettings,
    TlsSettings,
)

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "options.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> dict[str, str]:
    """Key -> the rest of its row."""
    return dict(re.findall(r"^\| `([a-z-]+)` \|(.*)$", section(title), re.M))


def test_the_page_has_every_federation_key_and_no_other() -> None:
    keys = {name.replace("_", "-") for name, option in OPTIONS.items() if not option.top}
    assert rows("`federation:`").keys() == keys
    assert rows("At the top").keys() == {name for name, option in OPTIONS.items() if option.top}


def test_the_page_has_every_flag_and_variable() -> None:
    found = rows("Flags and variables")
    for name, option in OPTIONS.items():
        key = name.replace("_", "-")
        shown = re.findall(r"`(--[a-z-]+)` \| `(MQTTREE_[A-Z_]+)`", found.get(key, ""))
        assert shown == ([(f"--{key}", f"MQTTREE_{name.upper()}")] if option.flag else []), key


def test_the_page_has_the_defaults_of_all_options() -> None:
    settings, found = RunSettings(), rows("`federation:`")
    shown = {key: row.split("|")[0].strip().strip("`") for key, row in found.items()}
    for name, option in OPTIONS.items():
        key, value = name.replace("_", "-"), getattr(settings, option.field or name)
        if value is True or value is False:
            assert shown[key] == str(value).lower(), key
        elif isinstance(value, str):
            assert shown[key] == value, key
        elif isinstance(value, int | float):
            assert float(shown[key]) == value, key
    offered = NodeConfig()
    table = re.findall(r"^\| `([a-z_]+)` \| (\w+) \|", section("`mqtt:`"), re.M)
    for key, default in table:
        value = getattr(offered, mqtt_options.OPTIONS[key][0])
        if default in ("yes", "no"):
            assert value is (default == "yes"), key
        elif default.isdigit():
            assert value == int(default), key


def test_the_page_has_the_keys_of_the_other_sections() -> None:
    assert rows("`access:`").keys() == ACCESS.keys()
    keys = re.findall(r"^\| `([a-z_]+)` \|", section("`mqtt:`"), re.M)
    assert sorted(keys) == sorted(mqtt_options.OPTIONS)
    assert set(re.findall(r"`([a-z_]+)`", section("Of a listener"))) == set(
        listener_options.OPTIONS
    )
    assert all(f"`{name}`" in PAGE for name in TlsSettings.FIELDS)


def test_the_page_has_every_key_of_a_leg_and_no_other() -> None:
    keys = set(
        re.findall(r"`([a-z-]+)`", "".join(re.findall(r"(?m)^\| (`.*?) \|", section("`legs:`"))))
    )
    assert keys == {name.replace("_", "-") for name in LEG_OPTIONS}
