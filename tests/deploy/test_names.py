"""Every DDTREE_* name in compose.yaml and deploy/ is a setting, or documented as the host's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddtree_overlay.serve.catalogue import BY_VARIABLE, KEYS
from tests.deploy.conftest import ROOT

HOST_SIDE = {
    "DDTREE_IMAGE",
    "DDTREE_PREVIOUS_IMAGE",
    "DDTREE_MODELS",
    "DDTREE_CONFIG_DIR",
    "DDTREE_PUBLISH_ADDRESS",
    "DDTREE_PUBLISH_PORT",
    "DDTREE_PROMETHEUS_IMAGE",
    "DDTREE_PROMETHEUS_PORT",
    "DDTREE_GRAFANA_IMAGE",
    "DDTREE_GRAFANA_PORT",
}
FILES = [
    ROOT / "compose.yaml",
    *sorted(p for p in (ROOT / "deploy").rglob("*") if p.is_file() and p.suffix != ".pyc"),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_are_known(path: Path) -> None:
    settings = set(BY_VARIABLE) | {f"{key.variable}_FILE" for key in KEYS if key.secret}
    found = set(re.findall(r"\bDDTREE_[A-Z0-9_]*[A-Z0-9]", path.read_text()))
    assert found <= settings | HOST_SIDE


def test_the_hosts_names_are_documented() -> None:
    text = (ROOT / "deploy/README.md").read_text()
    assert {name for name in HOST_SIDE if f"`{name}`" not in text} == set()


def test_the_hosts_names_are_no_settings() -> None:
    assert not HOST_SIDE & set(BY_VARIABLE)


def test_nothing_is_latest() -> None:
    for path in FILES:
        assert ":latest" not in path.read_text(), path
