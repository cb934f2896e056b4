"""`build`: from pins to a proven image, one step after the other."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker.errors

from builder import console
from builder.bake import BakeTarget, NoCache, run_bake
from builder.base import Base, BasePreference, ensure_base
from builder.context import Context, describe_target, stage
from builder.engine import Engine
from builder.engine.disk import check_existing
from builder.errors import BuildFailedError
from builder.layers import disk_need, remember_layers
from builder.lock import check_lock
from builder.patches.wheel import PatchedWheel, build_patched_wheel
from builder.pins import Target
from builder.project import Project
from builder.proof import prove
from builder.qualification import built
from builder.receipts import ImageId, write_receipt
from builder.render import check_render
from builder.result import BuildResult, layers
from builder.sources.artifacts import check_sources, fetch_artifacts
from builder.sources.index import builder_tools, fetch_sglang_wheel
from builder.sources.wheelhouse import verify


@dataclass(frozen=True)
class BuildOptions:
    """What the command line may choose."""

    mirrors: dict[str, str]
    wheelhouse: Path | None
    prefer_base: BasePreference
    refresh_base: bool
    force: bool
    no_cache: NoCache
    name: str = ""
    """Of the image, in place of the pins': a second build beside the first one."""


def references(target: Target, build_id: str, name: str = "") -> tuple[str, str]:
    """The immutable tag `NAME:<version>-<target>-<build id>` and the local one `NAME:<target>`."""
    pins = target.shared.project
    name = name or pins.image_name
    return f"{name}:{pins.version}-{target.name}-{build_id}", f"{name}:{target.name}"


def preflight(project: Project, target: Target, options: BuildOptions) -> None:
    """Everything that can be refused before an engine is started or a byte is built."""
    check_render(project, target)
    check_lock(project, target, offline=True)
    if options.wheelhouse is not None:
        verify(project, target, options.wheelhouse)
    elif target.sources:
        check_sources(target, options.mirrors, project=project)
    patched_sglang(project, target, options)


def build(project: Project, target: Target, engine: Engine, options: BuildOptions) -> BuildResult:
    """Build, audit, label and prove one image. Raises the builder's errors."""
    begin = time.monotonic()
    base = ensure_base(
        project, target.shared, engine, prefer=options.prefer_base, refresh=options.refresh_base
    )
    context = _stage(project, target, base, options)
    reference, local = references(target, context.build_id, options.name)
    existing = _find(engine, reference)
    if existing and not (options.force or options.no_cache):
        console.info(f"{reference} is up to date: no input changed")
        _tag(engine, reference, local)
        return _result(target, engine, context, base, reference, begin, {}, up_to_date=True)
    check_existing(
        str(engine.client.info()["DockerRootDir"]),
        engine.env.get("DOCKER_HOST", ""),
        disk_need(project, target, engine, no_cache=options.no_cache == "all"),
    )
    bake = _bake_target(project, target, context, base, options)
    log = project.cache / "logs" / f"{target.name}.log"
    log.unlink(missing_ok=True)
    labels = _report(project, target, engine, bake, log)
    # A name of its own until the image has proven itself: a failed proof must not leave a good name
    # on a bad image.
    candidate = f"{local.partition(':')[0]}:candidate-{context.build_id}"
    try:
        with console.step("writing the image"):
            run_bake(
                engine,
                BakeTarget(
                    stage="image",
                    output="type=docker",
                    tags=(candidate,),
                    labels=labels,
                    context=context.folder,
                    named_contexts=bake.named_contexts,
                ),
                log,
            )
        with console.step("proving the image by running it"):
            proof = prove(engine, target, candidate, context.build_id)
        _tag(engine, candidate, reference)
        _tag(engine, candidate, local)
        if not options.name:  # a second build is compared with the first, and takes nothing of it
            _keep_receipt(project, target, engine, reference, labels, proof)
        remember_layers(project, target, engine)
    finally:
        # It may not exist yet; and whatever stands in the way must not hide the real failure.
        with suppress(docker.errors.APIError):
            engine.client.images.remove(candidate, force=True, noprune=True)
    return _result(target, engine, context, base, reference, begin, proof, up_to_date=False)


def patched_sglang(project: Project, target: Target, options: BuildOptions) -> PatchedWheel:
    """The repacked wheel, from the cache when nothing of it changed."""
    shared = target.shared
    upstream = (
        options.wheelhouse / shared.sglang.wheel
        if options.wheelhouse
        else fetch_sglang_wheel(project, shared)
    )
    return build_patched_wheel(project, shared, upstream, project.cache / "sglang")


def _stage(project: Project, target: Target, base: Base, options: BuildOptions) -> Context:
    shared = target.shared
    patched = patched_sglang(project, target, options)
    description = describe_target(
        project,
        target,
        sglang={
            "version": patched.version,
            "base_tree": patched.base_tree,
            "patched_tree": patched.patched_tree,
            "wheel_sha256": shared.sglang.sha256,
        },
        base={"kind": base.kind, "detail": base.detail},
    )
    return stage(
        project,
        target,
        sglang_wheel=patched.path,
        tools=builder_tools(project, shared, options.wheelhouse),
        description=description,
    )


def _bake_target(
    project: Project, target: Target, context: Context, base: Base, options: BuildOptions
) -> BakeTarget:
    empty = project.cache / "context" / "empty"
    empty.mkdir(parents=True, exist_ok=True)
    artifacts = empty
    if target.sources and options.wheelhouse is None:
        artifacts = fetch_artifacts(project, target, options.mirrors)
    elif target.sources and options.wheelhouse is not None:
        artifacts = options.wheelhouse
    return BakeTarget(
        stage="report",
        context=context.folder,
        named_contexts={
            "base": f"docker-image://{base.reference}",
            "artifacts": str(artifacts),
            "wheelhouse": str(options.wheelhouse or empty),
        },
        output="",
        no_cache=options.no_cache,
    )


def _report(
    project: Project, target: Target, engine: Engine, bake: BakeTarget, log: Path
) -> dict[str, str]:
    """Build up to the audit and read the labels it observed in the file system."""
    out = project.cache / "reports" / target.name
    shutil.rmtree(out, ignore_errors=True)
    with console.step("building and auditing"):
        run_bake(
            engine,
            BakeTarget(
                stage="report",
                context=bake.context,
                named_contexts=bake.named_contexts,
                output=f"type=local,dest={out}",
                no_cache=bake.no_cache,
            ),
            log,
        )
    labels: dict[str, str] = json.loads((out / "labels.json").read_text())
    labels["org.opencontainers.image.revision"] = revision(project)
    return labels


def _keep_receipt(
    project: Project,
    target: Target,
    engine: Engine,
    reference: str,
    labels: dict[str, str],
    proof: dict[str, Any],
) -> None:
    """That this very image was audited and run."""
    image = engine.client.images.get(reference)
    identity = ImageId(str(image.id), reference, int(image.attrs["Size"]))
    report = json.loads((project.cache / "reports" / target.name / "audit.json").read_text())
    write_receipt(project, built(identity, labels, report, proof, engine.versions))


def revision(project: Project) -> str:
    """The commit being built, `-dirty` when the tree differs from it, else `unknown`."""
    try:
        head = subprocess.run(
            ["git", "-C", str(project.root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "-C", str(project.root), "status", "--porcelain"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # a source archive without git
    return f"{head}-dirty" if changed else head


def _find(engine: Engine, reference: str) -> bool:
    try:
        engine.client.images.get(reference)
    except docker.errors.ImageNotFound:
        return False
    return True


def _tag(engine: Engine, source: str, reference: str) -> None:
    name, _, tag = reference.rpartition(":")
    if not engine.client.images.get(source).tag(name, tag):
        raise BuildFailedError(f"the engine refused the tag {reference}", "check the engine's log")


def _result(
    target: Target,
    engine: Engine,
    context: Context,
    base: Base,
    reference: str,
    begin: float,
    proof: dict[str, Any],
    *,
    up_to_date: bool,
) -> BuildResult:
    image = engine.client.images.get(reference)
    return BuildResult(
        target=target.name,
        reference=reference,
        image_id=str(image.id),
        build_id=context.build_id,
        up_to_date=up_to_date,
        seconds=round(time.monotonic() - begin, 1),
        size_bytes=int(image.attrs["Size"]),
        layers=layers(image.history()),
        base=f"{base.kind}: {base.detail}",
        engine=dict(engine.versions),
        proof=proof,
    )
