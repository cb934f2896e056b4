"""One sitting: the builds and transfers of the chosen steps, in the order that needs least disk.

With an update: push the image, edit, build, push, and only then pull both, so that a pulled image
and the engine's temporary file of an export are never on the disk at once.
"""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import build_transfer
from benchmarks.build_page import Place, Run, State, exported_layers, sizes_of, with_update
from benchmarks.build_transfer import MeasureError, Transfer, digests
from benchmarks.machine import machine
from builder.engine import Engine, EngineMode, acquire
from builder.oci.model import ImageLayout
from builder.pins import Target, load_target
from builder.project import Project
from tests.builder.local_registry import LocalRegistry

EDITED = "ddtree_overlay/src/ddtree_overlay/tree/reference.py"
TOOLS = ("engine", "buildx", "containerd", "runc")


def place_of(root: Path, result: dict[str, Any]) -> Place:
    """Of a build's result, now."""
    head = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    return Place(
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        commit=commit,
        machine=machine(),
        engine=", ".join(f"{name} {result['engine'].get(name, 'unknown')}" for name in TOOLS),
        image=f"{result['reference']}, base {result['base'].split(':')[0]}",
    )


def crossing(transfer: Transfer, layout: ImageLayout, place: Place) -> Run:
    """A row of the page."""
    sizes = [layer.size for layer in layout.layers() if layer.digest in transfer.digests]
    return Run(
        seconds=transfer.seconds,
        place=place,
        sent=transfer.sent,
        layers=len(sizes),
        layers_of=len(layout.layers()),
        largest=max(sizes, default=0),
    )


@dataclass
class Transfers:
    """Pushes and pulls of one target's image, first as it is, then updated."""

    project: Project
    target: Target
    place: Place
    runs: dict[str, Run] = field(default_factory=dict)
    layouts: list[ImageLayout] = field(default_factory=list)

    def push(self, engine: Engine, registry: LocalRegistry) -> None:
        """Export and push the target's image as it is on the engine now."""
        prefix = "update-" if self.layouts else ""
        before = digests(self.layouts[-1]) if self.layouts else frozenset()
        seconds, layout = build_transfer.export(self.project, self.target, engine)
        self.runs[f"{prefix}export"] = Run(seconds, self.place)
        sent = build_transfer.push(self.project, self.target, engine, registry, layout, before)
        self.runs[f"{prefix}push"] = crossing(sent, layout, self.place)
        self.layouts.append(layout)

    def pull(self, engine: Engine, registry: LocalRegistry) -> None:
        """Pull all that was pushed, in that order, and remove it from the engine again.

        Raises MeasureError if the engine had some of the first image's layers.
        """
        name = f"{registry.host}/{self.target.shared.project.image_name}"
        references = [f"{name}@{layout.manifest.digest}" for layout in self.layouts]
        try:
            for run, reference, layout in zip(
                ("pull", "update-pull"), references, self.layouts, strict=False
            ):
                got = build_transfer.pull(engine, registry, reference, layout)
                if run == "pull" and got.digests != digests(layout):
                    raise MeasureError(
                        f"the engine fetched {len(got.digests)} of {len(digests(layout))} layers: "
                        "it had the others; remove the image that has them"
                    )
                self.runs[run] = crossing(got, layout, self.place)
        finally:
            engine.forget(*references)

    def exported(self) -> dict[str, Any]:
        """For the page: the first image's layers, and which of them the update changed."""
        first, *updates = self.layouts
        sizes = [(layer.digest, layer.size) for layer in first.layers()]
        names = build_transfer.layer_names(first.config())
        found = exported_layers(names, sizes, self.place)
        return with_update(found, digests(updates[0])) if updates else found


@dataclass(frozen=True)
class Session:
    """`project`: a clone that may be edited; its cache is that of DDTREE_CACHE.

    `kept`: cache and engine are somebody's, and get back what the edit changed.
    """

    project: Project
    cuda: str
    stand_in: bool
    mode: EngineMode
    kept: bool

    @property
    def target(self) -> Target:
        """Raises the pin errors."""
        return load_target(self.project, self.cuda, stand_in=self.stand_in)

    def build(self) -> tuple[float, dict[str, Any]]:
        """One `build.py` run: wall-clock seconds and its JSON result."""
        argv = [sys.executable, str(self.project.root / "build.py"), "--cuda", self.cuda]
        argv += ["--stand-in"] if self.stand_in else []
        begin = time.monotonic()
        result = build_transfer.run_json([*argv, "--engine", self.mode, "--json"])
        return time.monotonic() - begin, result

    def measure(self, steps: frozenset[str], scratch: Path, state: State) -> State:
        """`state` with what the steps measured.

        Raises CalledProcessError, MeasureError and the builder's errors.
        """
        first, result = self.build()
        place = place_of(self.project.root, result)
        runs = {"cold": Run(first, place)} if "cold" in steps else {}
        if "same" in steps:
            runs["same"] = Run(self.build()[0], place)
        sizes = sizes_of(self._manifest(result["build_id"]), result, place)
        transfers = Transfers(self.project, self.target, place)
        if "push" in steps:
            with self._reached(scratch) as (engine, registry):
                transfers.push(engine, registry)
                if "pull" in steps and "update" not in steps:
                    transfers.pull(engine, registry)
        if "edit" in steps:
            with self._unchanged(scratch, result, transfers):
                edited = self.project.root / EDITED
                edited.write_text(edited.read_text() + "# one line more\n")
                runs["edit"] = Run(self.build()[0], place)
                if "update" in steps:
                    with self._reached(scratch) as (engine, registry):
                        transfers.push(engine, registry)
                        transfers.pull(engine, registry)
        exported = transfers.exported() if transfers.layouts else state.exported
        return State({**state.runs, **runs, **transfers.runs}, sizes, exported)

    def _manifest(self, build_id: str) -> dict[str, Any]:
        """What that build observed in the image. Raises MeasureError if another one came later."""
        path = self.project.cache / "reports" / self.target.name / "manifest.json"
        document: dict[str, Any] = json.loads(path.read_text())
        if document["build_id"] != build_id:
            raise MeasureError(f"{path} is of another build: run `build.py --force` first")
        return document

    @contextmanager
    def _reached(self, scratch: Path) -> Iterator[tuple[Engine, LocalRegistry]]:
        with (
            acquire(self.project, self.target.shared, self.mode, need_gib=1) as engine,
            build_transfer.registry_near(engine, scratch / "registry") as registry,
        ):
            yield engine, registry

    @contextmanager
    def _unchanged(
        self, scratch: Path, result: dict[str, Any], transfers: Transfers
    ) -> Iterator[None]:
        """A kept cache and its engine get back names and reports of the image before the edit."""
        if not self.kept:
            yield
            return
        reports = self.project.cache / "reports" / self.target.name
        shutil.copytree(reports, scratch / "reports")
        try:
            yield
        finally:
            shutil.rmtree(reports, ignore_errors=True)
            shutil.copytree(scratch / "reports", reports)
            for layout in transfers.layouts[1:]:
                shutil.rmtree(layout.folder, ignore_errors=True)
            name = result["reference"].rpartition(":")[0]
            with acquire(self.project, self.target.shared, self.mode, need_gib=0) as engine:
                now = engine.client.images.get(f"{name}:{self.target.name}")
                if now.id != result["image_id"]:
                    engine.forget(*now.tags)
                    engine.client.images.get(result["reference"]).tag(name, self.target.name)
