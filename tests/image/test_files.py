"""What lies in the image: counted and hashed anew, and nothing that does not belong there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import docker
import pytest

from builder.project import default_project
from tests.image.conftest import Ran

pytestmark = pytest.mark.docker


def test_sizes_are_the_manifests(recount: dict[str, Any], manifest: dict[str, Any]) -> None:
    """To the byte, in all and by top-level folder."""
    for key in ("total_bytes", "files", "folders"):
        assert recount["sizes"][key] == manifest["sizes"][key], key


def test_the_image_is_within_its_budget(manifest: dict[str, Any]) -> None:
    assert 0 < manifest["sizes"]["total_bytes"] <= manifest["pins"]["budget_gib"] * 2**30


def test_the_engines_size_is_that_of_the_files(
    engine: docker.DockerClient, image: str, manifest: dict[str, Any]
) -> None:
    """Nothing lies deleted in a lower layer: that would be pulled and never used. An engine with
    the containerd store counts the compressed form as well, and is not compared."""
    if any("containerd" in part for row in engine.info()["DriverStatus"] or [] for part in row):
        pytest.skip("this engine's size is not that of the files alone")
    size = engine.images.get(image).attrs["Size"]
    assert size - manifest["sizes"]["total_bytes"] < 0.01 * size


def test_every_kernel_file_is_the_one_that_was_audited(
    recount: dict[str, Any], manifest: dict[str, Any]
) -> None:
    assert recount["kernels"] == manifest["observed"]["cubins"]


def test_our_distributions_are_what_their_records_say(recount: dict[str, Any]) -> None:
    assert recount["records"]["wrong"] == []
    assert recount["records"]["checked"] > 1000


def test_what_was_pruned_is_gone(host: Any, manifest: dict[str, Any], run_in: Any) -> None:
    patterns = [path for rule in manifest["pruned"]["rules"] for path in rule["paths"]]
    assert patterns
    code = (
        "import json, pathlib, sys\n"
        "(site,) = pathlib.Path('/opt/ddtree/venv/lib').glob('python3.*/site-packages')\n"
        "left = [p for p in json.loads(sys.argv[1]) if any(f.is_file() for f in site.glob(p))]\n"
        "print(json.dumps(left))"
    )
    ran = run_in("python", "-c", code, json.dumps(patterns))
    assert ran.returncode == 0, ran.stderr
    linked = {p for r in manifest["pruned"]["rules"] if r["linked_to"] for p in r["paths"]}
    assert set(json.loads(ran.stdout)) <= linked


@pytest.mark.parametrize("name", ["manifest", "audit", "prune"])
def test_the_evidence_is_there_and_nobodys_to_change(host: Any, name: str) -> None:
    file = host.file(f"/opt/ddtree/{name}.json")
    assert file.is_file and json.loads(file.content_string)
    assert (file.user, file.mode) == ("root", 0o644)


def test_no_program_changes_its_user_and_nothing_is_open_to_all(run_in: Callable[..., Ran]) -> None:
    """Beside Debian's sticky folders; looked at as root, so that no folder is passed over."""
    expression = r"\( -type f -perm /6000 -o -perm -0002 ! -type l ! -perm -1000 \)"
    ran = run_in("sh", "-c", f"find / -xdev {expression}", user="0")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_no_bytecode_was_written_and_no_cache_is_shipped(run_in: Callable[..., Ran]) -> None:
    """Bytecode carries times; a cache is the build host's. What a wheel brings along is its own."""
    ran = run_in(
        *("find", "/opt", "/root", "-xdev", "(", "-name", "*.pyc"),
        *("-o", "-name", ".cache", "-o", "-name", ".git", ")"),
        user="0",
    )
    assert ran.returncode == 0, ran.stderr
    found = {line.partition("/site-packages/")[2] or line for line in ran.stdout.split()}
    records = run_in("sh", "-c", "cat /opt/ddtree/venv/lib/python3.*/site-packages/*/RECORD")
    assert found - {line.split(",")[0] for line in records.stdout.splitlines()} == set()


def test_nothing_of_the_build_host_is_in_the_history(
    engine: docker.DockerClient, image: str
) -> None:
    text = json.dumps(engine.images.get(image).history())
    for word in (str(default_project().root), str(default_project().cache)):
        assert word not in text


def test_the_build_hosts_package_mirror_is_not_in_the_image(
    host: Any, manifest: dict[str, Any]
) -> None:
    if manifest["base"]["kind"] == "bootstrap":
        listed = host.check_output("cat /etc/apt/sources.list /etc/apt/sources.list.d/* || true")
        assert listed == ""
