"""compose.yaml is what `docker compose` understands, and asks for what eight GPUs need."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import docker
import pytest

from builder.project import default_project

pytestmark = pytest.mark.docker


def config(**env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "compose", "-f", "compose.yaml", "config", "--format", "json"],
        cwd=default_project().root,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_compose_file_is_valid_and_reserves_the_gpus(engine: docker.DockerClient) -> None:
    ran = config(DDTREE_IMAGE="name@sha256:" + "0" * 64, DDTREE_MODEL="m")
    assert ran.returncode == 0, ran.stderr
    service: dict[str, Any] = json.loads(ran.stdout)["services"]["appliance"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert int(service["shm_size"]) >= 16 * 2**30
    assert {v["target"]: v.get("read_only") for v in service["volumes"]}["/models"] is True
    assert service["ports"][0]["host_ip"] == "127.0.0.1"


@pytest.mark.parametrize("missing", ["DDTREE_IMAGE", "DDTREE_MODEL"])
def test_a_missing_setting_is_named(engine: docker.DockerClient, missing: str) -> None:
    ran = config(**{"DDTREE_IMAGE": "name", "DDTREE_MODEL": "m", missing: ""})
    assert ran.returncode != 0
    assert missing in ran.stderr
