"""What it takes to send an image to a registry and to fetch it again: seconds, bytes, layers.

Any image that `build.py push` takes, on any engine of the builder; the registry is a real one on
127.0.0.1, in the network in which that engine publishes its ports.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker.errors

from builder.engine import Engine
from builder.oci.export import export_image
from builder.oci.model import ImageLayout
from builder.pins import Target
from builder.project import Project
from builder.result import layers as named_layers
from tests.builder.local_registry import LocalRegistry, serve_registry

# The registry's access log is in Apache's combined format (distribution 2.8).
_SERVED = re.compile(r'"GET (\S+) HTTP/[\d.]+" (\d{3}) (\d+) ')
_END_SECONDS = 60.0
_BLOB = re.compile(r"/blobs/(sha256:[0-9a-f]{64})$")


class MeasureError(Exception):
    """What was measured is not what the page would say of it."""


@dataclass(frozen=True)
class Transfer:
    """`seconds` of the whole command; `sent` in bytes; `digests` of the layers that crossed."""

    seconds: float
    sent: int
    digests: frozenset[str]


@dataclass(frozen=True)
class Served:
    """Answers that carried content: bytes of their bodies, blobs among them."""

    sent: int
    blobs: frozenset[str]


def run_json(argv: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A command's result on stdout. Raises CalledProcessError.

    Interrupted, it gets the time that a builder needs to stop its engine; `subprocess.run` would
    kill it after a moment, and leave the engine's run folder behind.
    """
    child = subprocess.Popen(list(argv), env=env, stdout=subprocess.PIPE, text=True)
    try:
        out, _ = child.communicate()
    except BaseException:
        child.terminate()
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(argv))
    result: dict[str, Any] = json.loads(out)
    return result


def served(log: str) -> Served:
    """From the registry's access log. Other lines, refusals and HEAD requests count nothing."""
    sent, blobs = 0, set()
    for path, status, size in _SERVED.findall(log):
        if status not in ("200", "206"):
            continue
        sent += int(size)
        blob = _BLOB.search(path)
        if blob:
            blobs.add(blob[1])
    return Served(sent, frozenset(blobs))


def layer_names(config: dict[str, Any]) -> list[str]:
    """One for each layer of an exported image, base first: the part's name, else the step."""
    history = [entry for entry in config["history"] if not entry.get("empty_layer")]
    steps = [{"Size": 1, "CreatedBy": entry.get("created_by", "")} for entry in history]
    names = []
    for entry, layer in zip(history, named_layers(steps[::-1]), strict=True):
        comment = str(entry.get("comment", ""))
        names.append(comment if comment.startswith("part ") else str(layer["step"]))
    return names


@contextmanager
def registry_near(engine: Engine, folder: Path) -> Iterator[LocalRegistry]:
    """A registry that the engine reaches; what `folder` holds from an earlier one is there."""
    with serve_registry(folder, prefix=engine.enter, elsewhere=bool(engine.enter)) as registry:
        yield registry


def export(project: Project, target: Target, engine: Engine) -> tuple[float, ImageLayout]:
    """Seconds, and the layout, kept in the cache: the push that follows finds it there."""
    image = engine.client.images.get(f"{target.shared.project.image_name}:{target.name}")
    # One that is there already (named so by builder/oci/export.py) would be taken, in no time.
    kept = project.cache / "oci" / str(image.id).removeprefix("sha256:")[:16]
    shutil.rmtree(kept, ignore_errors=True)
    begin = time.monotonic()
    layout = export_image(project, engine, str(image.id), epoch=target.shared.source_date_epoch)
    return time.monotonic() - begin, layout


def push(
    project: Project,
    target: Target,
    engine: Engine,
    registry: LocalRegistry,
    layout: ImageLayout,
    before: frozenset[str] = frozenset(),
) -> Transfer:
    """What `build.py push` of the target's exported image took.

    `before`: digests of layers that the registry has. Raises CalledProcessError, and MeasureError
    if another image went out.
    """
    options = ["--cuda", target.variant, *(["--stand-in"] if target.stand_in else [])]
    argv = [sys.executable, str(project.root / "build.py"), "push"]
    argv += [f"{registry.host}/{target.shared.project.image_name}", *options]
    argv += ["--unsigned", "--allow-dirty", "--engine", "existing", "--json"]
    env = {**engine.env, "DDTREE_CACHE": str(project.cache)}
    begin = time.monotonic()
    result = run_json(engine.in_network(*argv), env)
    seconds = time.monotonic() - begin
    if result["digest"] != layout.manifest.digest:
        raise MeasureError(f"pushed {result['digest']}, exported {layout.manifest.digest}")
    return Transfer(seconds, int(result["bytes_sent"]), digests(layout) - before)


def pull(engine: Engine, registry: LocalRegistry, reference: str, layout: ImageLayout) -> Transfer:
    """`docker pull` of a reference by digest; bytes and layers from the registry's log.

    The engine must not have the image. A layer below which another one changed is fetched again
    by engines of the classic store, so this can be more than the manifests' difference.
    """
    with suppress(docker.errors.ImageNotFound):
        engine.client.images.get(reference)
        raise MeasureError(f"{reference} is on the engine already: remove it first")
    start = registry.log.stat().st_size
    begin = time.monotonic()
    subprocess.run(
        engine.in_network(*engine.docker("pull", "--quiet", reference)),
        env=engine.env,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    seconds = time.monotonic() - begin
    with registry.log.open("rb") as log:
        log.seek(start)
        seen = served(log.read().decode(errors="replace"))
    return Transfer(seconds, seen.sent, seen.blobs & digests(layout))


def digests(layout: ImageLayout) -> frozenset[str]:
    """Of its layers."""
    return frozenset(layer.digest for layer in layout.layers())
