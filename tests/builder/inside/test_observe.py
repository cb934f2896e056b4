"""Manifest and labels: what is on disk, not what was asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.inside.audit.__main__ import main as audit
from builder.inside.filesystem import outputs
from builder.inside.observe import OBSERVE_FAILED, main
from tests.builder.inside.tree import SITE, Tree, cubin, raw_target

Observe = Callable[..., int]
PRUNED = {"variant": "cu130", "bytes": 5, "files": 1, "rules": []}
PREFIX = "dev.example"
DOCUMENTS = ("manifest.json", "labels.json", "inventory.json")


@pytest.fixture
def observe(tree: Tree, tmp_path: Path) -> Observe:
    def run(*, audited: bool = True, **changes: Any) -> int:
        target = tmp_path / "target.json"
        target.write_text(json.dumps(raw_target(**changes)))
        (tmp_path / "prune.json").write_text(json.dumps(PRUNED))
        common = ["--root", str(tree.root), "--target", str(target)]
        if audited:
            audit([*common, "--report", str(tmp_path / "audit.json")])
        return main(
            [
                *common,
                *("--audit", str(tmp_path / "audit.json")),
                *("--prune", str(tmp_path / "prune.json")),
                *("--out", str(tmp_path / "manifest.json")),
                *("--labels", str(tmp_path / "labels.json")),
                *("--inventory", str(tmp_path / "inventory.json")),
            ]
        )

    return run


def _read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_the_manifest_holds_pins_and_observations(
    observe: Observe, tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert observe() == 0
    document = _read(tmp_path / "manifest.json")
    assert document["pins"]["lock_sha256"] == "1" * 64
    assert document["sglang"]["patched_tree"] == "c" * 64
    assert document["base"] == {"kind": "bootstrap", "detail": "bookworm"}
    seen = document["observed"]
    assert (seen["torch"], seen["torch_cuda"]) == ("2.11.0+cu130", "13.0")
    assert seen["distributions"]["triton"] == "3.6.0"
    assert seen["python"] == "3.11"
    code = (tree.root / f"{SITE}/ddtree_overlay/kernels/build_tree.sm_120.cubin").read_bytes()
    assert seen["cubins"]["build_tree.sm_120.cubin"] == {
        "arch": "sm_120",
        "sha256": hashlib.sha256(code).hexdigest(),
    }
    assert seen["debian"]["version"] == "12.11"
    assert seen["debian"]["packages"] == 1
    line = b"g++=4:12.2.0-3:amd64\n"
    assert seen["debian"]["packages_sha256"] == hashlib.sha256(line).hexdigest()
    assert document["audit"]["elf_files"] > 0
    assert "in all" in capsys.readouterr().out


def test_sizes_add_up(observe: Observe, tmp_path: Path) -> None:
    observe()
    sizes = _read(tmp_path / "manifest.json")["sizes"]
    assert sizes["total_bytes"] == sum(sizes["folders"].values())
    assert sizes["total_bytes"] >= sum(sizes["packages"].values())
    assert sizes["packages"]["torch"] > 0


def test_labels_come_from_the_file_system(observe: Observe, tmp_path: Path) -> None:
    assert observe() == 0
    labels = _read(tmp_path / "labels.json")
    assert labels[f"{PREFIX}.torch"] == "2.11.0+cu130"  # pinned without the local version
    assert labels[f"{PREFIX}.cuda"] == "13.0"
    assert labels[f"{PREFIX}.sass"] == "sm_90,sm_120"
    assert labels[f"{PREFIX}.sglang"] == "0.5.17+ddtree.abcdef01"
    assert labels[f"{PREFIX}.stand-in"] == "false"
    assert labels[f"{PREFIX}.lock"] == "sha256:" + "1" * 64
    assert labels["org.opencontainers.image.created"] == "2026-08-31T00:00:00Z"
    assert "org.opencontainers.image.base.digest" not in labels
    assert "org.opencontainers.image.revision" not in labels
    assert all(isinstance(value, str) and value for value in labels.values())


def test_a_base_by_digest_is_labelled(observe: Observe, tmp_path: Path) -> None:
    detail = "debian:bookworm-slim@sha256:" + "a" * 64
    assert observe(base={"kind": "registry", "detail": detail}) == 0
    labels = _read(tmp_path / "labels.json")
    assert labels["org.opencontainers.image.base.name"] == "debian:bookworm-slim"
    assert labels["org.opencontainers.image.base.digest"] == "sha256:" + "a" * 64


def test_a_stand_in_says_so(observe: Observe, tmp_path: Path) -> None:
    absent = {"source": "absent", "home": "", "components": {}, "reason": "not published"}
    changes = {"name": "cu130-stand-in", "stand_in": True, "stand_in_reason": "for tests"}
    assert observe(toolchain=absent, **changes) == 0
    labels = _read(tmp_path / "labels.json")
    assert labels[f"{PREFIX}.stand-in"] == "true"
    assert labels[f"{PREFIX}.stand-in.reason"] == "for tests"
    assert "not for GPUs" in labels["org.opencontainers.image.description"]


def test_the_same_tree_gives_the_same_bytes(observe: Observe, tmp_path: Path) -> None:
    observe()
    first = [(tmp_path / name).read_bytes() for name in DOCUMENTS]
    observe()
    assert [(tmp_path / n).read_bytes() for n in DOCUMENTS] == first


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"kernels": {"version": "0.4.6"}}, "sglang-kernel"),
        ({"sglang": {"version": "0.5.18"}}, "sglang"),
        (
            {
                "torch": {
                    "version": "2.11.0",
                    "torchvision": "0.26.0",
                    "torchaudio": "2.11.0",
                    "triton": "3.7.0",
                }
            },
            "triton",
        ),
    ],
)
def test_a_pin_that_is_not_what_is_there_is_an_error(
    observe: Observe,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    name: str,
) -> None:
    assert observe(**changes) == OBSERVE_FAILED
    assert f"observe: {name}: the image holds" in capsys.readouterr().err
    assert not (tmp_path / "manifest.json").exists()


def test_kernels_are_observed_again_after_the_audit(
    observe: Observe, tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    assert observe() == 0
    tree.write(f"{SITE}/ddtree_overlay/kernels/build_tree.sm_120.cubin", cubin("sm_121"))
    assert observe(audited=False) == OBSERVE_FAILED
    assert "sm_121" in capsys.readouterr().err


def test_an_image_that_failed_its_audit_gets_no_manifest(
    observe: Observe, tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.library("x/libcublas.so.12")
    assert observe() == OBSERVE_FAILED
    assert "did not pass" in capsys.readouterr().err
    assert not (tmp_path / "labels.json").exists()


def test_the_inventory_names_the_documents_beside_it(observe: Observe, tmp_path: Path) -> None:
    assert observe() == 0
    found = _read(tmp_path / "inventory.json")
    assert found["build_id"] == "0123456789abcdef"
    assert set(found["documents"]) == {"audit.json", "manifest.json", "prune.json"}
    data = (tmp_path / "manifest.json").read_bytes()
    assert found["documents"]["manifest.json"] == hashlib.sha256(data).hexdigest()


def test_what_the_stage_writes_is_not_in_the_image(tree: Tree, tmp_path: Path) -> None:
    assert outputs(tree.root, [tree.root / "out/a.json", tmp_path / "b.json"]) == {"out"}
    assert outputs(tree.root, [tree.root / "a.json"]) == frozenset()
