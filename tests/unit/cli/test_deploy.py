"""Files for production: what they name exists, in this program, in its metrics and in the image."""

from __future__ import annotations

import json
import re
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqttree.broker.cli.main import make_parser
from mqttree.broker.cli.run import SHUTDOWN_TIMEOUT
from mqttree.broker.config.listener_section import read_listeners
from mqttree.broker.config.options import OPTIONS, split_bind
from mqttree.broker.config.yaml_file import ConfigFile
from mqttree.broker.io.admin_http import OPEN
from mqttree.broker.io.metric_help import COUNTER_HELP, GAUGE_HELP, LEG_HELP, REASON_HELP
from tests.text.test_metrics_page import LABELS

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"

METRICS = {f"mqttree_{name}" for name in GAUGE_HELP}
METRICS |= {f"mqttree_{name}_total" for name in COUNTER_HELP | REASON_HELP}
METRICS |= {f"mqttree_leg_{name}_total" for name in LEG_HELP}
KNOWN_LABELS = {"job", "instance"} | {label for labels in LABELS.values() for label in labels}


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana/mqttree.json").read_text())[
        "panels"
    ]
    return found


def expressions() -> list[str]:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    return asked + [rule["expr"] for rule in alerts()]


@pytest.mark.parametrize("expression", expressions())
def test_alerts_and_dashboard_ask_for_metrics_that_exist(expression: str) -> None:
    named = set(re.findall(r"\bmqttree_\w+", re.sub(r'"[^"]*"', "", expression)))
    assert named <= METRICS
    assert named or "up{" in expression
    labels = set(re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", expression))
    for names in re.findall(r"\b(?:by|on|group_left) \(([\w, ]+)\)", expression):
        labels |= set(names.split(", "))
    assert labels <= KNOWN_LABELS
    for one, other in ("()", "[]", "{}"):
        assert expression.count(one) == expression.count(other)
    # A rate is of a counter, and a counter without one says nothing.
    counters = set(re.findall(r"(?:rate|increase)\((mqttree_\w+)", expression))
    assert counters == {name for name in named if name.endswith("_total")}


def test_each_alert_says_what_to_do_and_is_named_once() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def manifests() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for each in yaml.safe_load_all((DEPLOY / "kubernetes/mqttree.yaml").read_text()):
        found.setdefault(each["kind"], []).append(each)
    return found


def pod() -> dict[str, Any]:
    (workload,) = manifests()["StatefulSet"]
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def user_of_image() -> int:
    (user,) = re.findall(r"^USER (\d+):\d+$", (ROOT / "Dockerfile").read_text(), re.M)
    return int(user)


def test_kubernetes_mounts_a_file_in_place_of_the_images() -> None:
    (container,) = pod()["containers"]
    # The image's own, which reads the file.
    assert not {"args", "command"} & container.keys()
    (config,) = manifests()["ConfigMap"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (volume,) = [volume for volume in pod()["volumes"] if "configMap" in volume]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    (name,) = config["data"]
    assert f"{mounted[volume['name']]}/{name}" == "/etc/mqttree/mqttree.yaml"
    file = ConfigFile.parse(name, config["data"][name])
    said = file.section(("federation",), OPTIONS)
    assert said["discovery"] == "dns"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert split_bind(read_listeners(file).by_name["default"].bind or "").port == ports["mqtt"]
    assert said["admin"].endswith(f":{ports['admin']}")
    headless, clients = manifests()["Service"]
    assert said["seed"] == f"{headless['metadata']['name']}:{ports['mqtt']}"
    assert headless["spec"]["clusterIP"] == "None"
    # Brokers that are not ready yet have to be found, as they wait for each other.
    assert headless["spec"]["publishNotReadyAddresses"] is True
    (workload,) = manifests()["StatefulSet"]
    (budget,) = manifests()["PodDisruptionBudget"]
    assert workload["spec"]["serviceName"] == headless["metadata"]["name"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    selectors = [workload["spec"]["selector"]["matchLabels"], headless["spec"]["selector"]]
    selectors += [clients["spec"]["selector"], budget["spec"]["selector"]["matchLabels"]]
    assert all(selector == labels for selector in selectors)
    for variable in container["env"]:
        name = variable["name"].removeprefix("MQTTREE_").lower()
        assert OPTIONS[name].flag
    for key in ("secret_file", "admin_token_file", "data_dir"):
        assert any(said[key].startswith(path) for path in mounted.values())


def test_kubernetes_asks_for_health_and_drains_in_time() -> None:
    (container,) = pod()["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in OPEN
        assert asked["port"] == "admin"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    program, *words = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "mqttree"
    drain = make_parser().parse_args(words)
    assert drain.command == "drain"
    assert pod()["terminationGracePeriodSeconds"] > float(drain.within) + SHUTDOWN_TIMEOUT


def test_kubernetes_and_the_image_have_no_root() -> None:
    context = pod()["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["fsGroup"] == user_of_image()
    (container,) = pod()["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (secret,) = [volume for volume in pod()["volumes"] if volume["name"] == "secret"]
    assert secret["secret"]["defaultMode"] == 0o400


def test_compose_keeps_state_and_a_secret_and_writes_nowhere_else() -> None:
    file = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services = file["services"]
    assert len(services) == 4
    # A stranger waits for no compiler.
    assert all(
        service["build"]["args"]["COMPILE"] == "${COMPILE:-0}" for service in services.values()
    )
    for name, service in services.items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        volumes = {volume.split(":")[0]: volume.split(":")[1] for volume in service["volumes"]}
        assert volumes.keys() <= file["volumes"].keys()
        assert volumes["secret"] == "/var/lib/mqttree-secret"
        if name != "secret":
            assert volumes[name] == "/var/lib/mqttree"
            assert service["environment"]["MQTTREE_SECRET_FILE"].startswith(volumes["secret"])
            assert all(
                OPTIONS[key.removeprefix("MQTTREE_").lower()].flag for key in service["environment"]
            )
            assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_secret_of_compose_is_drawn_once_and_for_its_user(tmp_path: Path) -> None:
    file = yaml.safe_load((ROOT / "compose.yaml").read_text())
    (code,) = file["services"]["secret"]["command"]
    path = tmp_path / "cluster"
    code = code.replace("/var/lib/mqttree-secret/cluster", str(path))
    exec(code, {})
    drawn = OPTIONS["secret_file"].read(str(path))
    with pytest.raises(SystemExit, match="0"):
        exec(code, {})
    assert OPTIONS["secret_file"].read(str(path)) == drawn
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_unit_of_systemd_starts_a_command_line_that_exists() -> None:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd/mqttree.service")
    service = unit["Service"]
    program, *words = service["ExecStart"].split()
    assert program == "/opt/mqttree/bin/mqttree"
    assert make_parser().parse_args(words).command == "run"
    assert (service["Type"], service["RestartPreventExitStatus"]) == ("notify", "2")
    assert int(service["TimeoutStopSec"]) > SHUTDOWN_TIMEOUT
    assert float(service["WatchdogSec"]) > 0
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
