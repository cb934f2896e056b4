"""From an image on an engine to canonical layers, configuration and manifest.

The engine is asked twice: the first answer is only looked at (what is there in the end, how large
it is), the second one is written as it passes. So nothing of the image lies unpacked on our disk.
The classic image store gathers the whole image below its data root for each answer (7 GB for the
appliance) and drops it at the end; where there is room, spool.py keeps the first answer instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import docker.errors
import requests

from builder import console
from builder.engine import Engine
from builder.engine.images import look_up
from builder.errors import EngineFailedError, TamperedError
from builder.oci.compress import LayerSink, default_threads
from builder.oci.config import LayerName, canonical_json, describe, image_config, image_manifest
from builder.oci.entries import Entry, read_entry
from builder.oci.model import CONFIG, LAYER_ZSTD, MANIFEST, Descriptor
from builder.oci.plan import PlannedLayer, plan
from builder.oci.rootfs import Fields, listing, rootfs_hash
from builder.oci.saved import SavedImage, members, read_saved
from builder.oci.tree import Tree
from builder.oci.writer import LayerWriter

PART_ANNOTATION = "dev.ddtree.layer"


@dataclass(frozen=True)
class Produced:
    """The image in canonical form. `files` as rootfs.listing; sizes in bytes."""

    manifest: Descriptor
    manifest_bytes: bytes
    config_bytes: bytes
    config: dict[str, Any]
    layers: tuple[Descriptor, ...]
    plain_sizes: tuple[int, ...]
    rootfs: str
    files: dict[str, Fields]


def find_image(engine: Engine, reference: str) -> tuple[str, int]:
    """Id and size in bytes of an image on the engine. Raises what `look_up` does."""
    image = look_up(engine, reference, "build it first, or pull it")
    return str(image.id), int(image.attrs["Size"])


class SavedStream:
    """`docker save` of one image, as often as it is asked for."""

    def __init__(self, engine: Engine, image_id: str) -> None:
        self._engine = engine
        self._image = image_id

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._engine.client.api.get_image(self._image, chunk_size=1 << 20)
        except (docker.errors.APIError, requests.RequestException) as exc:
            text = str(getattr(exc, "explanation", "") or exc)
            raise EngineFailedError(
                f"the engine cannot save the image: {text}",
                "free space on the engine's disk (it needs the image's size), or read its log",
            ) from None


def produce(
    stream: SavedStream | Any,
    *,
    epoch: int,
    scratch: Path,
    blobs: Path | None = None,
    threads: int | None = None,
) -> Produced:
    """Read `stream` twice; with `blobs`, write all blobs there under the hex of their digests.

    `stream` gives the chunks of one `docker save` each time it is iterated; `scratch` is an empty
    folder of the caller's. Raises TamperedError for what is no image.
    """
    with console.step("reading the image's files"):
        saved, tree = scan(stream)
        planned = plan(tree)
        files = listing(tree)
        rootfs = rootfs_hash(files.items())
    with console.step(f"writing {len(planned)} layers"):
        sinks = _write(stream, saved, planned, epoch, scratch, blobs, threads or default_threads())
    names = [LayerName(layer.origin, layer.part) for layer in planned]
    config = image_config(saved.config, names, [sink.diff_id for sink in sinks], epoch)
    config_bytes = canonical_json(config)
    layers = tuple(
        Descriptor(
            LAYER_ZSTD, sink.digest, sink.size, {PART_ANNOTATION: name.part} if name.part else {}
        )
        for name, sink in zip(names, sinks, strict=True)
    )
    document = image_manifest(config_bytes, layers, rootfs)
    manifest = describe(document, MANIFEST)
    if blobs is not None:
        for data in (document, config_bytes):
            _blob(blobs, describe(data, CONFIG).digest).write_bytes(data)
    return Produced(
        manifest,
        document,
        config_bytes,
        config,
        layers,
        tuple(sink.plain_size for sink in sinks),
        rootfs,
        files,
    )


def scan(stream: Any) -> tuple[SavedImage, Tree]:
    """Read a `docker save` once: what is in it in the end. Raises TamperedError."""
    found: dict[str, list[Entry]] = {}

    def on_layer(name: str, tar: BinaryIO) -> None:
        found[name] = [
            read_entry(member, cast("BinaryIO | None", source.extractfile(member)))
            if member.isreg()
            else read_entry(member, None)
            for member, source in members(tar)
        ]

    saved = read_saved(stream, on_layer)
    tree = Tree()
    try:
        for number, name in enumerate(saved.layers):
            tree.apply(number, found[name])
    except KeyError as exc:
        raise TamperedError(f"the saved image lacks its layer {exc}", "save it anew") from None
    except ValueError as exc:
        raise TamperedError(f"the image's layers do not fit: {exc}", "build it anew") from None
    return saved, tree


def _write(
    stream: Any,
    saved: SavedImage,
    planned: tuple[PlannedLayer, ...],
    epoch: int,
    scratch: Path,
    blobs: Path | None,
    threads: int,
) -> list[LayerSink]:
    with ExitStack() as stack:
        writers = []
        for number, layer in enumerate(planned):
            part = blobs / f".part-{number}" if blobs is not None else None
            sink = LayerSink(part, threads)
            writers.append(LayerWriter(layer, sink, scratch / f"parked-{number}", epoch))
            stack.callback(writers[-1].abandon)
        wanted = {
            (saved.layers[item.source[0]], item.source[1]): (writer, item.source)
            for writer in writers
            for item in writer.layer.items
            if item.source is not None
        }
        pending = set(range(len(writers)))

        def on_layer(name: str, tar: BinaryIO) -> None:
            for number, (member, source) in enumerate(members(tar)):
                found = wanted.get((name, number))
                if found is not None:
                    writer, place = found
                    content = cast(BinaryIO, source.extractfile(member))
                    writer.offer(place, member.size, content)
            for index in sorted(pending):
                if saved.layers[planned[index].origin] == name:
                    writers[index].finish()
                    pending.discard(index)

        read_saved(stream, on_layer)
        for index in sorted(pending):
            writers[index].finish()
        if blobs is not None:
            for number, writer in enumerate(writers):
                (blobs / f".part-{number}").replace(_blob(blobs, writer.sink.digest))
    return [writer.sink for writer in writers]


def _blob(blobs: Path, digest: str) -> Path:
    return blobs / digest.removeprefix("sha256:")
