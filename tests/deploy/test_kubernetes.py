"""The manifests, rendered by kustomize and held against Kubernetes' schemas and our own needs."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddtree_overlay.serve.catalogue import BY_NAME, BY_VARIABLE
from ddtree_overlay.serve.sources import from_file
from tests.deploy.conftest import DIGEST, ROOT

pytestmark = pytest.mark.network  # kubectl comes from Debian, once

KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
# The oldest that is still in use, and the newest whose schemas there are.
VERSIONS = ("1.30", "1.37")
LWS = json.loads((Path(__file__).parent / "lws.schema.json").read_text())

Resource = dict[str, Any]


@pytest.fixture(scope="session")
def rendered(kustomize: Callable[[Path], list[Resource]]) -> dict[str, list[Resource]]:
    return {name: kustomize(KUBERNETES / "overlays" / name) for name in OVERLAYS}


def one(resources: list[Resource], kind: str, name: str = "") -> Resource:
    (found,) = (r for r in resources if r["kind"] == kind and name in ("", r["metadata"]["name"]))
    return found


def templates(resources: list[Resource]) -> Iterator[tuple[str, Resource]]:
    """Name and pod template of all that makes pods."""
    for resource in resources:
        if resource["kind"] == "Deployment":
            yield resource["metadata"]["name"], resource["spec"]["template"]
        if resource["kind"] == "LeaderWorkerSet":
            yield (
                resource["metadata"]["name"],
                resource["spec"]["leaderWorkerTemplate"]["workerTemplate"],
            )


def appliance(resources: list[Resource]) -> Resource:
    """The pod specification of the appliance."""
    (found,) = (t["spec"] for name, t in templates(resources) if name != "llm-router")
    return dict(found)


def validate(resource: Resource, version: str) -> None:
    """Raises for a field that Kubernetes does not know, lacks, or types otherwise."""
    if resource["kind"] == "LeaderWorkerSet":
        importlib.import_module("jsonschema").validate(resource, LWS)
        template = resource["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        resource = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "x"},
            "template": template,
        }
    importlib.import_module("kubernetes_validate").validate(resource, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OVERLAYS)
def test_every_resource_is_valid(
    rendered: dict[str, list[Resource]], name: str, version: str
) -> None:
    assert rendered[name]
    for resource in rendered[name]:
        validate(resource, version)


@pytest.mark.parametrize(
    ("overlay", "kind", "path", "value"),
    [
        ("single", "Deployment", ("spec", "template", "spec", "enableServiceLink"), False),
        ("single", "Deployment", ("spec", "replicas"), "two"),
        ("single", "Service", ("spec", "port"), 1),
        ("multi-host", "LeaderWorkerSet", ("spec", "leaderWorkerTemplate", "sizes"), 2),
        ("multi-host", "LeaderWorkerSet", ("spec", "startupPolicy"), "Never"),
    ],
)
def test_the_validation_sees_a_mistake(
    rendered: dict[str, list[Resource]],
    overlay: str,
    kind: str,
    path: tuple[str, ...],
    value: object,
) -> None:
    resource = json.loads(json.dumps(one(rendered[overlay], kind)))
    place = resource
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(Exception, match=f"{value}|{path[-1]}"):
        validate(resource, VERSIONS[-1])


@pytest.mark.parametrize("name", OVERLAYS)
def test_images_are_named_by_digest(rendered: dict[str, list[Resource]], name: str) -> None:
    images = [c["image"] for _, t in templates(rendered[name]) for c in t["spec"]["containers"]]
    assert images
    assert set(images) == {f"registry.example/ddtree-appliance@{DIGEST}"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_are_restricted(rendered: dict[str, list[Resource]], name: str) -> None:
    """What the `restricted` pod security standard asks, and a read-only root besides."""
    for _, template in templates(rendered[name]):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
        assert spec["enableServiceLinks"] is False
        assert not any("hostPath" in volume for volume in spec["volumes"])


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_service_sets_our_variables(rendered: dict[str, list[Resource]], name: str) -> None:
    """A Service's name begins the variables that it puts into every pod of its namespace."""
    names = [r["metadata"]["name"] for r in rendered[name] if r["kind"] == "Service"]
    # The LeaderWorkerSet controller makes one of its own name.
    names += [r["metadata"]["name"] for r in rendered[name] if r["kind"] == "LeaderWorkerSet"]
    assert len(set(names)) == len(names) > 0
    assert not [n for n in names if n.upper().startswith("DDTREE")]


@pytest.mark.parametrize("name", OVERLAYS)
def test_probes_fit_what_the_appliance_says(rendered: dict[str, list[Resource]], name: str) -> None:
    (container,) = appliance(rendered[name])["containers"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports == {"http": BY_NAME["port"].default, "probes": BY_NAME["probe_port"].default}
    paths = {k: container[f"{k}Probe"]["httpGet"] for k in ("startup", "liveness", "readiness")}
    assert {p["port"] for p in paths.values()} == {"probes"}
    assert paths["startup"]["path"] == "/livez"
    assert paths["liveness"]["path"] == "/livez"
    assert paths["readiness"]["path"] == "/readyz"
    for kind in ("startup", "liveness", "readiness"):
        assert container[f"{kind}Probe"]["timeoutSeconds"] >= 5


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_grace_period_outlasts_the_drain(
    rendered: dict[str, list[Resource]], name: str
) -> None:
    spec = appliance(rendered[name])
    (container,) = spec["containers"]
    wait = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = BY_NAME["drain_seconds"].default + BY_NAME["kill_seconds"].default
    assert spec["terminationGracePeriodSeconds"] >= wait + drain + 10


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_the_appliance_needs_is_mounted(
    rendered: dict[str, list[Resource]], name: str
) -> None:
    spec = appliance(rendered[name])
    (container,) = spec["containers"]
    volumes = {v["name"]: v for v in spec["volumes"]}
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    assert mounts["/models"]["readOnly"] is True
    assert mounts[BY_NAME["cache_dir"].default]["name"] == "cache"
    shm = volumes[mounts["/dev/shm"]["name"]]["emptyDir"]
    assert shm == {"medium": "Memory", "sizeLimit": "32Gi"}
    environment = {e["name"]: e for e in container["env"]}
    key = Path(environment["DDTREE_API_KEY_FILE"]["value"])
    assert "secret" in volumes[mounts[str(key.parent)]["name"]]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    config = one(rendered[name], "ConfigMap")["metadata"]["name"]
    assert volumes[mounts["/etc/ddtree"]["name"]]["configMap"]["name"] == config


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_configuration_is_one_that_the_appliance_takes(
    rendered: dict[str, list[Resource]], name: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(one(rendered[name], "ConfigMap")["data"]["config.toml"])
    given = from_file(file)
    assert {"model", "draft_model"} <= set(given.keys)
    (container,) = appliance(rendered[name])["containers"]
    for variable in container["env"]:
        assert variable["name"].removesuffix("_FILE") in BY_VARIABLE


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_selects_pods_finds_them(rendered: dict[str, list[Resource]], name: str) -> None:
    pods = [template["metadata"]["labels"] for _, template in templates(rendered[name])]
    # The LeaderWorkerSet controller adds this one.
    pods = [{**p, "leaderworkerset.sigs.k8s.io/worker-index": "0"} for p in pods]
    for resource in rendered[name]:
        spec = resource.get("spec", {})
        wanted = {
            "Service": lambda s: s["selector"],
            "NetworkPolicy": lambda s: s["podSelector"]["matchLabels"],
            "PodDisruptionBudget": lambda s: s["selector"]["matchLabels"],
        }.get(resource["kind"])
        if wanted:
            found = [p for p in pods if wanted(spec).items() <= p.items()]
            assert len(found) == 1, resource["metadata"]["name"]


def test_hosts_of_one_model_know_their_place(rendered: dict[str, list[Resource]]) -> None:
    lws = one(rendered["multi-host"], "LeaderWorkerSet")
    (container,) = appliance(rendered["multi-host"])["containers"]
    environment = {e["name"]: e.get("value") for e in container["env"]}
    assert environment["DDTREE_NNODES"] == "$(LWS_GROUP_SIZE)"
    assert environment["DDTREE_NODE_RANK"] == "$(LWS_WORKER_INDEX)"
    assert environment["DDTREE_DIST_INIT_ADDR"].startswith("$(LWS_LEADER_ADDRESS):")
    assert lws["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    given = from_file(KUBERNETES / "overlays/multi-host/config.toml")
    size = lws["spec"]["leaderWorkerTemplate"]["size"]
    assert given.keys["tp"].value == size * container["resources"]["limits"]["nvidia.com/gpu"]


def test_the_pod_of_many_hosts_is_that_of_one(rendered: dict[str, list[Resource]]) -> None:
    """But for who it is among them, and its cache."""
    one_host, many = (
        json.loads(json.dumps(appliance(rendered[n]))) for n in ("single", "multi-host")
    )
    for spec in (one_host, many):
        spec["volumes"] = [
            {**v, "configMap": None} if "configMap" in v else v
            for v in spec["volumes"]
            if v["name"] != "cache"
        ]
        spec["containers"][0]["env"] = [
            e for e in spec["containers"][0]["env"] if e["name"] == "DDTREE_API_KEY_FILE"
        ]
    assert one_host == many


def test_replicas_do_not_share_what_one_node_holds(rendered: dict[str, list[Resource]]) -> None:
    resources = rendered["replicas"]
    deployment = one(resources, "Deployment", "ddtree-appliance")
    assert deployment["spec"]["replicas"] > 1
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
    cache = next(v for v in appliance(resources)["volumes"] if v["name"] == "cache")
    assert set(cache) == {"name", "emptyDir"}
    assert "PersistentVolumeClaim" not in {r["kind"] for r in resources}


def test_the_router_finds_the_replicas(rendered: dict[str, list[Resource]]) -> None:
    resources = rendered["replicas"]
    template = one(resources, "Deployment", "llm-router")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    args = container["args"]
    start = args.index("--selector") + 1
    selector = dict(word.split("=") for word in args[start : start + 2])
    labels = one(resources, "Deployment", "ddtree-appliance")["spec"]["template"]["metadata"][
        "labels"
    ]
    assert selector.items() <= labels.items()
    assert not selector.items() <= template["metadata"]["labels"].items()
    assert f"--service-discovery-port={BY_NAME['port'].default}" in args
    role = one(resources, "Role")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    assert (
        one(resources, "RoleBinding")["subjects"][0]["name"]
        == template["spec"]["serviceAccountName"]
    )


def test_the_operators_monitor_finds_both_ports(rendered: dict[str, list[Resource]]) -> None:
    monitor = yaml.safe_load(
        (KUBERNETES / "components/service-monitor/service-monitor.yaml").read_text()
    )
    service = one(rendered["single"], "Service")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    ports = {p["name"] for p in service["spec"]["ports"]}
    assert {e["port"] for e in monitor["spec"]["endpoints"]} == ports
