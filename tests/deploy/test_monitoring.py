"""Dashboard, rules and provisioning ask for what exists and lead to each other."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import ddtree_overlay
from ddtree_overlay.serve.metrics_text import GpuMemory, render_metrics
from ddtree_overlay.serve.status import Answer, Status
from tests.deploy.metrics import (
    DASHBOARD,
    MONITORING,
    RULES,
    expressions,
    metric_names_used,
    names_in,
    not_exported,
)

PROVISIONING = MONITORING / "grafana/provisioning"
OVERLAY = Path(ddtree_overlay.__file__).parent / "sglang/metrics.py"


def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text()))


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("ddtree_ready == 0 and max_over_time(ddtree_ready[1h]) == 1", {"ddtree_ready"}),
        (
            'sum by (le, instance) (rate(a:b_bucket{instance=~"$i"}[$__rate_interval]))',
            {"a:b_bucket"},
        ),
        ('up{job="x y"} == 0 and on (instance) b_c == 1', {"up", "b_c"}),
        ("rate(x[5m]) > 0.1 * rate(y[5m]) unless z offset 5m", {"x", "y", "z"}),
        ("max by (gpu) (m) - min by (gpu) (n) > 16 * 1024", {"m", "n"}),
        ("histogram_quantile(0.99, x_bucket)", {"x_bucket"}),
    ],
)
def test_names_of_an_expression(expression: str, names: set[str]) -> None:
    assert names_in(expression) == names


def test_the_supervisors_metrics_exist() -> None:
    status = Status(build={"build_id": "b", "variant": "v"})
    status.heard(Answer(at=0.0, in_flight=1, last_output_age=0.5, tokens=3))
    text = render_metrics(status, [GpuMemory(0, "GPU-0", "name", 1, 2)])
    wanted = {name for name in metric_names_used() if name.startswith("ddtree_")}
    assert len(wanted) > 5
    assert not_exported(wanted, text) == set()


def overlay_metrics() -> set[str]:
    """What the overlay exports, read from its source: importing it needs torch."""
    tree = ast.parse(OVERLAY.read_text())
    counters = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COUNTERS"
    )
    gauges = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Gauge"
        if isinstance(node.args[0], ast.Constant)
    }
    # prometheus_client appends _total to a counter's name.
    return {f"{name}_total" for name, _, _ in counters} | {str(name) for name in gauges}


def test_the_overlays_metrics_exist_and_all_are_shown() -> None:
    used = {name for name in metric_names_used() if name.startswith("sglang:ddtree_")}
    assert used == overlay_metrics()


def test_no_other_kind_of_name_is_asked_for() -> None:
    """sglang: and smg_ names are held against the image (tests/image/test_metric_names.py)."""
    known = ("ddtree_", "sglang:", "smg_")
    assert {name for name in metric_names_used() if not name.startswith(known)} == {"up"}


def test_what_the_issue_names_is_on_the_dashboard() -> None:
    shown = {
        name
        for place, text in expressions()
        if place.startswith("panel")
        for name in names_in(text)
    }
    assert shown >= {
        "sglang:spec_accept_length",
        "sglang:ddtree_budget",
        "sglang:generation_tokens_total",
        "sglang:time_to_first_token_seconds_bucket",
        "sglang:num_queue_reqs",
        "ddtree_gpu_memory_used_bytes",
        "ddtree_ready",
    }


def test_counters_are_asked_for_as_rates() -> None:
    for place, expression in expressions():
        for name in names_in(expression):
            if name.endswith(("_total", "_bucket")):
                call = rf"\b(rate|increase|resets)\({re.escape(name)}[{{\[]"
                assert re.search(call, expression), place


def test_panels_are_distinct_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_every_panel_asks_the_provisioned_source() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    board = dashboard()
    asked = [panel["datasource"] for panel in board["panels"] if panel["type"] != "row"]
    asked += [variable["datasource"] for variable in board["templating"]["list"]]
    assert {(a["type"], a["uid"]) for a in asked} == {("prometheus", source["uid"])}


def test_grafana_finds_its_files(services: dict[str, Any]) -> None:
    mounts = {v["target"]: v["source"] for v in services["grafana"]["volumes"]}
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards/ddtree.yaml").read_text())["providers"]
    assert mounts[provider["options"]["path"]] == str(DASHBOARD.parent)
    assert mounts["/etc/grafana/provisioning"] == str(PROVISIONING)
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{DASHBOARD.name}"


def test_prometheus_scrapes_services_that_exist(services: dict[str, Any]) -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert config["rule_files"] == [RULES.name]
    listening = {"sglang": 30000, "ddtree": 30080, "router": 29000}
    for job in config["scrape_configs"]:
        (found,) = job["dns_sd_configs"]
        assert found["port"] == listening[job["job_name"]]
        for name in found["names"]:
            assert set(services[name]["networks"]) & set(services["prometheus"]["networks"])


def test_every_alert_says_what_and_what_to_do() -> None:
    seen = set()
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["alert"] not in seen
            seen.add(rule["alert"])
            assert rule["labels"]["severity"] in {"critical", "warning", "info"}
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["description"]
