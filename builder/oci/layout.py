"""An image layout on disk: written, checked, loaded into an engine.

Beside what image-layout.md asks for lies a `manifest.json`, so that a tar of the folder is a
docker-archive too and engines with either image store can load it.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import docker.errors

from builder.engine import Engine
from builder.errors import EngineFailedError, TamperedError
from builder.files import sha256_file, write_atomically
from builder.oci.config import canonical_json
from builder.oci.entries import CHUNK, Entry
from builder.oci.model import INDEX, MANIFEST, Descriptor, ImageLayout
from builder.oci.tarformat import END, header, padding

REF_NAME = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME = "io.containerd.image.name"
_ID = re.compile(r"(sha256:)?[0-9a-f]+")
_MARKER = b'{"imageLayoutVersion":"1.0.0"}'


def index_document(manifest: Descriptor, names: Sequence[str]) -> bytes:
    """`index.json`: the manifest under each name (or once, without one)."""
    entries = [
        Descriptor(
            MANIFEST,
            manifest.digest,
            manifest.size,
            {REF_NAME: name, _CONTAINERD_NAME: _familiar(name)},
        ).document()
        for name in names
    ]
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": entries
            or [Descriptor(MANIFEST, manifest.digest, manifest.size).document()],
        }
    )


def _familiar(name: str) -> str:
    """`ddtree:1` -> `docker.io/library/ddtree:1`, as the containerd store keeps it."""
    first, slash, _ = name.partition("/")
    if not slash:
        return f"docker.io/library/{name}"
    return name if "." in first or ":" in first or first == "localhost" else f"docker.io/{name}"


def archive_manifest(layout_document: dict[str, Any], names: Sequence[str]) -> bytes:
    """`manifest.json` of a docker-archive over the same blobs."""
    return canonical_json(
        [
            {
                "Config": _place(layout_document["config"]["digest"]),
                "RepoTags": list(names),
                "Layers": [_place(layer["digest"]) for layer in layout_document["layers"]],
            }
        ]
    )


def _place(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/", 1)


def names_of(reference: str) -> list[str]:
    """The name under which an image is kept that was asked for by `reference`: none for an ID (also
    a short one) and for a digest, which no engine takes as a name."""
    if "@" in reference or _ID.fullmatch(reference):
        return []
    return [reference if ":" in reference.rpartition("/")[2] else f"{reference}:latest"]


def write_names(folder: Path, manifest: Descriptor, names: Sequence[str]) -> None:
    """The three small files that say what the blobs are; replaced whole."""
    document = json.loads((folder / _place(manifest.digest)).read_bytes())
    write_atomically(folder / "oci-layout", _MARKER)
    write_atomically(folder / "manifest.json", archive_manifest(document, names))
    write_atomically(folder / "index.json", index_document(manifest, names))


def open_layout(folder: Path) -> ImageLayout:
    """The one image of a layout, unchecked but for its form. Raises TamperedError."""
    try:
        index = json.loads((folder / "index.json").read_bytes())
        json.loads((folder / "oci-layout").read_bytes())["imageLayoutVersion"]
        found = {Descriptor.parse(raw).digest: Descriptor.parse(raw) for raw in index["manifests"]}
        (manifest,) = found.values()
        _check_digest(manifest.digest)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise TamperedError(
            f"{folder} is no image layout with one image: {exc}", "export or fetch it anew"
        ) from None
    return ImageLayout(folder, Descriptor(manifest.media_type, manifest.digest, manifest.size))


def verify_layout(folder: Path) -> ImageLayout:
    """Hash every blob that the image consists of. Raises TamperedError naming the first bad one."""
    layout = open_layout(folder)
    _check(layout, layout.manifest)
    try:
        config = Descriptor.parse(layout.document()["config"])
        blobs = [config, *layout.layers()]
        layout.rootfs  # noqa: B018  an image of ours says what its files are
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise TamperedError(
            f"{folder}: the manifest is no image manifest of this builder ({exc!r})",
            "export or fetch it anew",
        ) from None
    for blob in blobs:
        _check(layout, blob)
    return layout


def _check_digest(digest: str) -> None:
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise ValueError(f"{digest!r} is no SHA-256 digest")


def _check(layout: ImageLayout, blob: Descriptor) -> None:
    try:
        _check_digest(blob.digest)
        path = layout.blob(blob.digest)
        size = path.stat().st_size
        same = size == blob.size and f"sha256:{sha256_file(path)}" == blob.digest
    except (OSError, ValueError) as exc:
        raise TamperedError(f"{layout.folder}: {exc}", "export or fetch it anew") from None
    if not same:
        raise TamperedError(
            f"{path} is not what its digest says ({size} bytes, {blob.size} expected)",
            "export or fetch it anew",
        )


def load_layout(engine: Engine, layout: ImageLayout, tags: Sequence[str]) -> str:
    """`docker load` under these names; returns the id that the engine gives it.

    That is the configuration's digest in the classic store, the manifest's in containerd's. Raises
    EngineFailedError, TamperedError if the engine made another image of it.
    """
    if not tags:
        raise ValueError("an image is loaded under a name")
    try:
        for line in _load(engine, archive(layout, tags)):
            if line.get("error"):
                raise EngineFailedError(
                    f"the engine cannot load the image: {line['error']}",
                    "free space on the engine's disk, or read its log",
                )
        image_id = str(engine.client.images.get(tags[0]).id)
    except docker.errors.APIError as exc:
        raise EngineFailedError(
            f"the engine cannot load the image: {exc.explanation or exc}",
            "free space on the engine's disk, or read its log",
        ) from None
    if image_id not in (layout.document()["config"]["digest"], layout.manifest.digest):
        raise TamperedError(
            f"the engine made {image_id} of the image {layout.manifest.digest}",
            "remove it, and load it into another engine",
        )
    return image_id


def _load(engine: Engine, chunks: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The engine's progress; the chunks go out as they come, with no length before them."""
    load: Any = engine.client.api.load_image
    yield from load(chunks, quiet=True)


def archive(layout: ImageLayout, names: Sequence[str]) -> Iterator[bytes]:
    """A tar of the layout as `docker load` takes it, under these names; always the same bytes."""
    document = layout.document()
    small = {
        "oci-layout": _MARKER,
        "manifest.json": archive_manifest(document, names),
        "index.json": index_document(layout.manifest, names),
    }
    for name, data in small.items():
        yield from _member(name, len(data), io.BytesIO(data))
    digests = [layout.manifest.digest, document["config"]["digest"]]
    digests += [layer.digest for layer in layout.layers()]
    for digest in dict.fromkeys(digests):
        path = layout.blob(digest)
        with path.open("rb") as handle:
            yield from _member(_place(digest), path.stat().st_size, handle)
    yield END


def _member(name: str, size: int, handle: Any) -> Iterator[bytes]:
    entry = Entry(name, "0", mode=0o644, size=size)
    yield header(entry, path=name, kind="0", target="", mtime=0)
    while chunk := handle.read(CHUNK):
        yield chunk
    yield bytes(padding(size))
