"""One set of defaults: what a broker is given, what is worked out of it, and what its node is given
cannot differ."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from mqttree.broker.base.address import Address
from mqttree.broker.config.model import BrokerModel, ClusterModel, values
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.config.options import FederationSettings, RunSettings
from mqttree.discovery.effects import MembershipConfig
from mqttree.stp.config import TreeConfig

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = (
    *sorted((ROOT / "broker" / "config").glob("*.py")),
    ROOT / "stp" / "config.py",
    ROOT / "discovery" / "effects.py",
)


def written(source: str) -> dict[str, list[str]]:
    """The defaults of settings that are written as they are, by field; not those that mean that
    nothing was said."""
    found = defaultdict(list)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if (
                    isinstance(line, ast.AnnAssign)
                    and isinstance(line.target, ast.Name)
                    and isinstance(line.value, ast.Constant)
                    and line.value.value not in (None, "", False)
                ):
                    found[line.target.id].append(f"{node.name} = {line.value.value!r}")
    return found


def test_no_default_is_written_twice() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in SETTINGS:
        for name, where in written(path.read_text()).items():
            found[name] += where
    assert len(found) > 20
    assert not {name: where for name, where in found.items() if len(where) > 1}


def test_a_default_written_twice_is_found() -> None:
    assert len(written("class A:\n    td: float = 0.3\nclass B:\n    td: float = 0.4\n")["td"]) == 2


def test_the_defaults_of_all_are_those_of_the_model() -> None:
    model = values(BrokerModel(), BrokerModel)
    assert values(NodeConfig(), BrokerModel) == model
    assert values(FederationSettings(), BrokerModel) == model
    assert values(RunSettings(), ClusterModel) == values(ClusterModel(), ClusterModel)
    assert FederationSettings().node_config() == NodeConfig()
    config = NodeConfig()
    assert config.tree() == TreeConfig()
    assert (config.cluster, config.discovery_time) == (
        MembershipConfig().cluster,
        MembershipConfig().discovery_time,
    )


def test_every_setting_reaches_the_node() -> None:
    said = {
        name: 7.5 if kind == "float" else "x"
        for name, kind in ClusterModel.__annotations__.items()
        if kind in ("float", "str")
    }
    settings = RunSettings(**said)
    own = settings.federation(
        Address("10.0.0.1", 1884), id=b"i" * 8, boot=3, capability=2.0, own_host=lambda: ""
    )
    config = own.node_config()
    assert {name: getattr(config, name) for name in said} == said
    assert (config.host, config.port, config.boot) == ("10.0.0.1", 1884, 3)
