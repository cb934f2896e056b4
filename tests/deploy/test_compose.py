"""compose.yaml as compose understands it: what eight GPUs need, and what a locked-down host wants."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from ddtree_overlay.serve.catalogue import BY_NAME, BY_VARIABLE
from tests.deploy.conftest import IMAGE

pytestmark = pytest.mark.network  # compose itself comes from Debian, once

Compose = Callable[..., "subprocess.CompletedProcess[str]"]
APPLIANCES = ("appliance", "appliance-a", "appliance-b")
OF_THE_IMAGE = (*APPLIANCES, "router")


def environment(
    ran: subprocess.CompletedProcess[str], service: str = "appliance"
) -> dict[str, str]:
    """What the container gets: a name without a value does not reach it."""
    assert ran.returncode == 0, ran.stderr
    given = json.loads(ran.stdout)["services"][service]["environment"]
    return {name: value for name, value in given.items() if value is not None}


def seconds(text: str) -> int:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(n) * units[u] for n, u in re.findall(r"(\d+)([hms])", text))


def test_without_a_profile_there_is_the_appliance_alone(compose: Compose) -> None:
    ran = compose(DDTREE_IMAGE=IMAGE)
    assert set(json.loads(ran.stdout)["services"]) == {"appliance"}


@pytest.mark.parametrize(
    ("profile", "adds"),
    [
        ("monitoring", {"prometheus", "grafana"}),
        ("router", {"appliance-a", "appliance-b", "router"}),
    ],
)
def test_profiles(compose: Compose, profile: str, adds: set[str]) -> None:
    ran = compose(profile, DDTREE_IMAGE=IMAGE)
    assert set(json.loads(ran.stdout)["services"]) == {"appliance", *adds}


@pytest.mark.parametrize("value", [{}, {"DDTREE_IMAGE": ""}])
def test_the_image_must_be_named(compose: Compose, value: dict[str, str]) -> None:
    ran = compose(**value)
    assert ran.returncode != 0
    assert "DDTREE_IMAGE" in ran.stderr


def gpus(service: dict[str, Any]) -> dict[str, Any]:
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    return dict(device)


def test_one_appliance_has_all_gpus_and_replicas_share_them(services: dict[str, Any]) -> None:
    assert gpus(services["appliance"])["count"] in (-1, "all")
    a, b = (gpus(services[name])["device_ids"] for name in ("appliance-a", "appliance-b"))
    assert sorted([*a, *b]) == [str(i) for i in range(8)]


@pytest.mark.parametrize("name", APPLIANCES)
def test_what_collectives_need(services: dict[str, Any], name: str) -> None:
    service = services[name]
    assert int(service["shm_size"]) >= 16 * 2**30
    assert service["ulimits"]["memlock"] == -1
    assert service["ulimits"]["stack"] >= 2**26
    assert service["ulimits"]["nofile"] >= 65536


@pytest.mark.parametrize("name", OF_THE_IMAGE)
def test_the_stop_outlasts_the_drain(services: dict[str, Any], name: str) -> None:
    bound = BY_NAME["drain_seconds"].default + BY_NAME["kill_seconds"].default
    assert seconds(services[name]["stop_grace_period"]) >= bound + 10


@pytest.mark.parametrize("name", APPLIANCES)
def test_the_health_check_is_the_images(services: dict[str, Any], name: str) -> None:
    check = services[name]["healthcheck"]
    assert check["test"] == ["CMD", "ddtree", "health"]
    assert seconds(check["timeout"]) >= 10
    assert seconds(check["start_period"]) >= BY_NAME["start_seconds"].default


@pytest.mark.parametrize("name", [*OF_THE_IMAGE, "prometheus", "grafana"])
def test_every_service_is_confined(services: dict[str, Any], name: str) -> None:
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")
    assert "user" not in service
    assert service["restart"].startswith("on-failure:")
    assert {"max-size", "max-file"} <= set(service["logging"]["options"])
    for port in service.get("ports", ()):
        assert port["host_ip"] == "127.0.0.1"


@pytest.mark.parametrize("name", APPLIANCES)
def test_volumes(services: dict[str, Any], name: str) -> None:
    mounts = {v["target"]: v for v in services[name]["volumes"]}
    assert set(mounts) == {"/models", "/etc/ddtree", "/var/cache/ddtree"}
    for target in ("/models", "/etc/ddtree"):
        assert mounts[target]["read_only"] is True
        # A path with a typing error is refused, not made.
        assert not mounts[target].get("bind", {}).get("create_host_path")
    assert mounts["/var/cache/ddtree"]["type"] == "volume"
    (tmp,) = services[name]["tmpfs"]
    assert "exec" in tmp.split(":")[1].split(",")


def test_what_is_not_set_does_not_reach_the_container(compose: Compose) -> None:
    assert environment(compose(DDTREE_IMAGE=IMAGE)) == {}


def test_settings_pass_through_under_their_own_names(compose: Compose) -> None:
    ran = compose(DDTREE_IMAGE=IMAGE, DDTREE_MODEL="/models/m", DDTREE_BUDGET="24")
    assert environment(ran) == {"DDTREE_MODEL": "/models/m", "DDTREE_BUDGET": "24"}


def test_every_name_passed_through_is_a_setting(services: dict[str, Any]) -> None:
    names = set(services["appliance"]["environment"])
    assert names <= set(BY_VARIABLE)
    # Ports inside stay as they are: the host's side is what compose publishes.
    assert not names & {"DDTREE_PORT", "DDTREE_PROBE_PORT", "DDTREE_HOST", "DDTREE_CACHE_DIR"}


@pytest.mark.parametrize("service", OF_THE_IMAGE)
@pytest.mark.parametrize("name", ["api_key", "admin_api_key"])
def test_a_key_comes_from_a_file_or_not_at_all(compose: Compose, service: str, name: str) -> None:
    if (service, name) == ("router", "admin_api_key"):
        return  # the router has no such key
    variable = f"DDTREE_{name.upper()}"
    without = compose("router", DDTREE_IMAGE=IMAGE)
    assert environment(without, service) == {}
    assert json.loads(without.stdout)["secrets"][name]["file"] == "/dev/null"

    given = compose("router", DDTREE_IMAGE=IMAGE, **{f"{variable}_FILE": "/etc/key"})
    assert environment(given, service) == {f"{variable}_FILE": f"/run/secrets/{name}"}
    content = json.loads(given.stdout)
    assert content["secrets"][name]["file"] == "/etc/key"
    assert name in [s["source"] for s in content["services"][service]["secrets"]]

    # Given as a value it must not be ignored: the server would then be open.
    plain = compose("router", DDTREE_IMAGE=IMAGE, **{variable: "k"})
    assert environment(plain, service) == {variable: "k"}


def test_the_router_reaches_the_replicas(services: dict[str, Any]) -> None:
    command = services["router"]["command"]
    assert command[:3] == ["python", "-m", "ddtree_overlay.serve.router"]
    assert {"http://appliance-a:30000", "http://appliance-b:30000"} <= set(command)
    for name in ("appliance-a", "appliance-b"):
        assert set(services[name]["networks"]) & set(services["router"]["networks"])
        assert "ports" not in services[name]


def test_images_are_named_exactly(compose: Compose, services: dict[str, Any]) -> None:
    for name in OF_THE_IMAGE:
        assert services[name]["image"] == IMAGE
    for name in ("prometheus", "grafana"):
        image = services[name]["image"]
        assert re.search(r":v?\d+\.\d+\.\d+$|@sha256:[0-9a-f]{64}$", image), image
        other = f"mirror.example/{name}@{IMAGE.split('@')[1]}"
        ran = compose("*", DDTREE_IMAGE=IMAGE, **{f"DDTREE_{name.upper()}_IMAGE": other})
        assert json.loads(ran.stdout)["services"][name]["image"] == other


def test_prometheus_keeps_a_bounded_time_and_size(services: dict[str, Any]) -> None:
    flags = [flag.partition("=")[0] for flag in services["prometheus"]["command"]]
    assert {"--storage.tsdb.retention.time", "--storage.tsdb.retention.size"} <= set(flags)


def test_nobody_can_log_in_to_grafana(services: dict[str, Any]) -> None:
    given = services["grafana"]["environment"]
    assert given["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert given["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert given["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
