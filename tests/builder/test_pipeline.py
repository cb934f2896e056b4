"""`build` step by step, with a fake engine: what is skipped, what is named, what is left behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from builder import layers, pipeline
from builder.bake import BakeTarget
from builder.base import Base
from builder.errors import AuditFailedError, LockDriftError, ProofFailedError, RenderDriftError
from builder.pins import Target, load_target
from builder.pipeline import BuildOptions, build, preflight, references, revision
from builder.project import Project
from builder.receipts import Count, read_receipts
from tests.builder.conftest import edit

OPTIONS = BuildOptions(
    mirrors={}, wheelhouse=None, prefer_base="auto", refresh_base=False, force=False, no_cache=""
)

LABELS = {
    "dev.ddtree.torch": "observed",
    "dev.ddtree.variant": "cu130",
    "dev.ddtree.stand-in": "false",
}
AUDIT = {"passed": True, "rules": [{"code": "A", "ran": True}, {"code": "B", "ran": False}]}


class FakeImages:
    """The engine's image store: reference -> id."""

    def __init__(self) -> None:
        self.store: dict[str, str] = {}

    def get(self, reference: str) -> Any:
        if reference not in self.store:
            raise docker.errors.ImageNotFound(reference)

        def tag(name: str, tag: str) -> bool:
            self.store[f"{name}:{tag}"] = self.store[reference]
            return True

        return SimpleNamespace(id=self.store[reference], attrs={"Size": 1}, tag=tag, history=list)

    def remove(self, reference: str, **_options: Any) -> None:
        del self.store[reference]


@pytest.fixture
def world(scratch: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Everything outside the pipeline replaced; `bakes` records what BuildKit was asked for."""
    wheel = tmp_path / "sglang.whl"
    wheel.write_bytes(b"wheel")
    images = FakeImages()
    client = SimpleNamespace(
        images=images, info=lambda: {"ID": "one", "DockerRootDir": str(tmp_path)}
    )
    engine: Any = SimpleNamespace(
        kind="fake",
        versions={"engine": "0"},
        env={"DOCKER_HOST": "unix:///fake"},
        client=client,
    )
    monkeypatch.setattr(pipeline, "check_existing", lambda *_a: None)
    bakes: list[BakeTarget] = []

    def run_bake(_engine: Any, target: BakeTarget, _log: Path) -> None:
        bakes.append(target)
        if target.stage == "report":
            out = Path(target.output.split("dest=")[1])
            out.mkdir(parents=True)
            staged = json.loads((target.context / "target.json").read_text())
            labels = {**LABELS, "dev.ddtree.build-id": staged["build_id"]}
            (out / "labels.json").write_text(json.dumps(labels))
            (out / "audit.json").write_text(json.dumps(AUDIT))
        else:
            images.store[target.tags[0]] = f"sha256:{len(bakes)}"

    patched = SimpleNamespace(path=wheel, version="1+ddtree", base_tree="a", patched_tree="b")
    base = Base("bootstrap", "ddtree-base:x", "x")
    monkeypatch.setattr(pipeline, "ensure_base", lambda *_a, **_k: base)
    monkeypatch.setattr(pipeline, "fetch_sglang_wheel", lambda *_a, **_k: wheel)
    monkeypatch.setattr(pipeline, "build_patched_wheel", lambda *_a, **_k: patched)
    monkeypatch.setattr(pipeline, "builder_tools", lambda *_a, **_k: {"uv": wheel})
    monkeypatch.setattr(pipeline, "run_bake", run_bake)
    monkeypatch.setattr(pipeline, "prove", lambda *_a, **_k: {"proved": True})
    target: Target = load_target(scratch, "cu130")
    return SimpleNamespace(
        project=scratch, target=target, engine=engine, images=images, bakes=bakes
    )


def test_a_build_audits_first_and_labels_what_was_observed(world: SimpleNamespace) -> None:
    result = build(world.project, world.target, world.engine, OPTIONS)
    assert [bake.stage for bake in world.bakes] == ["report", "image"]
    assert world.bakes[1].labels["dev.ddtree.torch"] == "observed"
    assert result.proof == {"proved": True}
    immutable, local = references(world.target, result.build_id)
    assert set(world.images.store) == {immutable, local}
    assert immutable.endswith(f"0.1.0-cu130-{result.build_id}")


def test_a_second_name_stands_beside_the_first(world: SimpleNamespace) -> None:
    first = build(world.project, world.target, world.engine, OPTIONS)
    second = build(world.project, world.target, world.engine, replace(OPTIONS, name="twice"))
    assert second.build_id == first.build_id
    assert not second.up_to_date
    assert set(world.images.store) == {
        *references(world.target, first.build_id),
        *references(world.target, first.build_id, "twice"),
    }


def test_a_proven_image_has_a_receipt_and_a_second_build_does_not_replace_it(
    world: SimpleNamespace,
) -> None:
    result = build(world.project, world.target, world.engine, OPTIONS)
    (receipt,) = read_receipts(world.project, result.build_id)
    assert (receipt.level, receipt.image.id) == ("built", result.image_id)
    assert receipt.image.reference == result.reference
    assert receipt.suites == {"audit": Count(1, 0, 1), "proof": Count(1, 0, 0)}
    again = build(world.project, world.target, world.engine, replace(OPTIONS, name="second"))
    assert again.image_id != result.image_id and again.build_id == result.build_id
    assert read_receipts(world.project, result.build_id) == [receipt]


def test_no_change_builds_nothing(world: SimpleNamespace) -> None:
    first = build(world.project, world.target, world.engine, OPTIONS)
    again = build(world.project, world.target, world.engine, OPTIONS)
    assert len(world.bakes) == 2
    assert again.up_to_date
    assert again.image_id == first.image_id


def test_a_changed_input_builds_again(world: SimpleNamespace) -> None:
    build(world.project, world.target, world.engine, OPTIONS)
    edit(world.project.root / "builder/inside/unpack.py", "UNPACK_FAILED = 57", "UNPACK_FAILED = 1")
    again = build(world.project, world.target, world.engine, OPTIONS)
    assert not again.up_to_date
    assert len(world.bakes) == 4


def test_a_failed_proof_leaves_no_name_behind(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: Any) -> dict[str, Any]:
        raise ProofFailedError("no", "look")

    monkeypatch.setattr(pipeline, "prove", fails)
    with pytest.raises(ProofFailedError):
        build(world.project, world.target, world.engine, OPTIONS)
    assert world.images.store == {}
    assert not (world.project.cache / "receipts").exists()


def test_a_failed_audit_writes_no_image(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: Any) -> None:
        raise AuditFailedError("finding", "mend")

    monkeypatch.setattr(pipeline, "run_bake", fails)
    with pytest.raises(AuditFailedError):
        build(world.project, world.target, world.engine, OPTIONS)
    assert world.images.store == {}


def test_drift_is_refused_before_an_engine_is_touched(scratch: Project) -> None:
    target = load_target(scratch, "cu130")
    preflight(scratch, target, OPTIONS)
    edit(target.dockerfile(scratch), "EXPOSE 30000", "EXPOSE 1")
    with pytest.raises(RenderDriftError):
        preflight(scratch, target, OPTIONS)


def test_a_hand_edited_lock_is_refused(scratch: Project) -> None:
    target = load_target(scratch, "cu130")
    lock = target.lock_file(scratch)
    lock.write_text(lock.read_text().replace("triton==3.6.0", "triton==3.6.1"))
    with pytest.raises(LockDriftError):
        preflight(scratch, target, OPTIONS)


def test_the_disk_need_is_small_only_where_the_large_layers_are(world: SimpleNamespace) -> None:
    """Not on another engine, not without the cache, not after it was dropped or its inputs moved."""
    whole = world.target.shared.engine.disk_gib

    def need(*, no_cache: bool = False) -> int:
        return layers.disk_need(world.project, world.target, world.engine, no_cache=no_cache)

    assert need() == whole
    build(world.project, world.target, world.engine, OPTIONS)
    assert need() == layers.REBUILD_GIB
    assert need(no_cache=True) == whole
    world.engine.client.info = lambda: {"ID": "another"}
    assert need() == whole
    world.engine.client.info = lambda: {"ID": "one"}
    edit(world.project.images / "prune.toml", "# What sm_120 can never use", "# What sm_120")
    assert need() == whole
    edit(world.project.images / "prune.toml", "# What sm_120", "# What sm_120 can never use")
    layers.forget_layers(world.project)
    assert need() == whole


def test_an_interrupted_proof_stays_an_interrupt(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the engine says to the clean-up must not take the interrupt's place."""

    def interrupted(*_arguments: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    def refuses(*_arguments: Any, **_options: Any) -> None:
        raise docker.errors.APIError("409: in use")

    monkeypatch.setattr(pipeline, "prove", interrupted)
    monkeypatch.setattr(world.images, "remove", refuses)
    with pytest.raises(KeyboardInterrupt):
        build(world.project, world.target, world.engine, OPTIONS)


def test_a_tree_without_git_has_an_unknown_revision(scratch: Project) -> None:
    assert revision(scratch) == "unknown"
