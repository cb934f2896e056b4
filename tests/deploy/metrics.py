"""Names of the metrics that the dashboard and the alert rules ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

MONITORING = Path(__file__).parents[2] / "deploy/monitoring"
DASHBOARD = MONITORING / "grafana/dashboards/ddtree.json"
RULES = MONITORING / "rules.yml"

# Counters that SGLang exports from their first event on: a server that has just done well lacks them.
ONLY_AFTER_AN_EVENT = {"sglang:num_aborted_requests_total", "sglang:num_retracted_requests_total"}

_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\(|[a-zA-Z0-9_:])")
_OPERATORS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


def names_in(expression: str) -> set[str]:
    """Metric names of a PromQL expression: words that are no function, label, string or number."""
    text = re.sub(r'"(?:\\.|[^"\\])*"', "", expression)
    text = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", " ", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*(\([^()]*\))?", " ", text)
    text = re.sub(r"(?<![\w:])\d[\w.]*", " ", text)
    return {word for word in _WORD.findall(text) if word.lower() not in _OPERATORS}


def expressions() -> Iterator[tuple[str, str]]:
    """Where each expression is, and the expression."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]


def metric_names_used() -> set[str]:
    """Every metric that the dashboard and the rules ask for, as Prometheus stores it."""
    return {name for _, expression in expressions() for name in names_in(expression)}


def server_metric_names() -> set[str]:
    """Those of them that an appliance without a router and with GPUs exports once it has served."""
    names = {n for n in metric_names_used() if n.startswith(("sglang:", "ddtree_"))}
    return names - ONLY_AFTER_AN_EVENT


def not_exported(names: set[str], exposition: str) -> set[str]:
    """Those of `names` that a /metrics text has no sample of."""
    present = {re.split(r"[{ ]", line, maxsplit=1)[0] for line in exposition.splitlines()}
    return names - present
