"""Checks of an image in a registry that need no key: manifest, config, labels, tag, layers."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from builder import console
from builder.errors import EvidenceError, ImageAbsentError, ImageReferenceError, TamperedError
from builder.files import CHUNK
from builder.oci.model import ROOTFS_ANNOTATION, Descriptor
from builder.registry.client import Registry
from builder.registry.documents import parse_json
from builder.registry.reference import is_digest
from builder.supply.report import Row, failed, one_line, passed, skipped

_SHA256 = r"sha256:[0-9a-f]{64}"
_VERSION = r"[0-9][0-9A-Za-z.+_-]*"
_OCI = "org.opencontainers.image"
_LARGEST_CONFIG = 4 << 20
_OURS = {
    "variant": r"cu[0-9]{3}",
    "stand-in": r"true|false",
    "cuda": r"[0-9]+\.[0-9]+",
    "torch": _VERSION,
    "sglang": _VERSION,
    "sglang.patched-tree": r"[0-9a-f]{64}",
    "build-id": r"[0-9a-f]{16}",
    "driver-floor": _VERSION,
    "sass": r"sm_[0-9]+a?(?:,sm_[0-9]+a?)*",
    "lock": _SHA256,
}
_STANDARD = {
    "version": _VERSION,
    "revision": r"[0-9a-f]{40}(?:-dirty)?|unknown",
    "created": r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z",
}


def required_labels(prefix: str) -> dict[str, str]:
    """Label name to the form of its value (builder/inside/labels.py writes them)."""
    return {
        **{f"{prefix}.{name}": form for name, form in _OURS.items()},
        **{f"{_OCI}.{name}": form for name, form in _STANDARD.items()},
    }


def _naming(prefix: str) -> tuple[str, ...]:
    """The labels that give an image its tag."""
    return (f"{_OCI}.version", *(f"{prefix}.{n}" for n in ("variant", "stand-in", "build-id")))


class Image:
    """A manifest as it was read, with what the configuration says."""

    def __init__(self, manifest: Descriptor, content: bytes, prefix: str) -> None:
        """Raises TamperedError for what is no image manifest."""
        self.manifest = manifest
        self.prefix = prefix
        try:
            document = parse_json(content)
            if "manifests" in document:  # readers differ on which half of such a one counts
                raise ValueError("both an image and an index")
            self.config_blob = _descriptor(document["config"])
            self.layers = tuple(_descriptor(raw) for raw in document["layers"])
            self.rootfs = str(document.get("annotations", {}).get(ROOTFS_ANNOTATION, ""))
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise TamperedError(
                f"{manifest.digest} is not an image manifest: {type(exc).__name__}",
                "push the image again",
            ) from None
        self.labels: Mapping[str, str] = {}
        self.diff_ids: tuple[str, ...] = ()

    def label(self, name: str) -> str:
        """One of our labels; empty if the image has it not."""
        return self.labels.get(f"{self.prefix}.{name}", "")

    @property
    def revision(self) -> str:
        """The commit of the label."""
        return self.labels.get(f"{_OCI}.revision", "")

    @property
    def target(self) -> str:
        """As pins name it: the variant, with `-stand-in` for one."""
        return self.label("variant") + ("-stand-in" if self.label("stand-in") == "true" else "")

    @property
    def tag(self) -> str:
        """The immutable tag that the labels give."""
        version = self.labels.get(f"{_OCI}.version", "")
        return f"{version}-{self.target}-{self.label('build-id')}"


def _descriptor(raw: Any) -> Descriptor:
    found = Descriptor.parse(raw)
    # The digest becomes part of an address; sizes are added up.
    if not is_digest(found.digest) or not 0 <= found.size < 1 << 63:
        raise ValueError(found.digest)
    return found


def check_manifest(image: Image) -> Row:
    """Its bytes were compared with the digest when they were read; is it one of ours?"""
    what = f"{image.manifest.digest}, {len(image.layers)} layers"
    if not is_digest(image.rootfs):
        return failed("manifest", f"{what}; no annotation {ROOTFS_ANNOTATION}", EvidenceError)
    return passed("manifest", f"{what}, {sum(b.size for b in image.layers) / 1e9:.2f} GB")


def check_config(image: Image, registry: Registry) -> Row:
    """Read the configuration into `image`; its bytes are those of its digest, and it fits."""
    blob = image.config_blob
    if blob.size > _LARGEST_CONFIG:
        return failed("config", f"{blob.size} bytes: no image configuration", TamperedError)
    try:
        config = parse_json(registry.read_blob(blob))
        image.diff_ids = tuple(str(value) for value in config["rootfs"]["diff_ids"])
        labels = config.get("config", {}).get("Labels") or {}
        image.labels = {str(name): str(value) for name, value in labels.items()}
        platform = f"{config['os']}/{config['architecture']}"
    except (TamperedError, ImageAbsentError) as exc:
        return failed("config", one_line(exc.what), type(exc))
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        return failed("config", f"not an image configuration: {type(exc).__name__}", TamperedError)
    if len(image.diff_ids) != len(image.layers):
        return failed(
            "config",
            f"{len(image.diff_ids)} diff ids for {len(image.layers)} layers",
            TamperedError,
        )
    return passed("config", f"{blob.digest}, {platform}")


def check_labels(image: Image) -> Row:
    """All there and in their form."""
    if not image.labels:
        return failed("labels", "the image has none: build.py did not build it", EvidenceError)
    bad = []
    for name, form in required_labels(image.prefix).items():
        value = image.labels.get(name)
        if value is None:
            bad.append(f"{name} is missing")
        elif not re.fullmatch(form, value):
            bad.append(f"{name} is {one_line(value, 40)!r}")
    if bad:
        return failed("labels", "; ".join(bad), EvidenceError)
    return passed(
        "labels",
        f"{image.target}, build {image.label('build-id')}, revision {image.revision[:12]}, "
        f"{image.label('sass')}, driver {image.label('driver-floor')} or newer",
    )


def check_tag(image: Image, tag: str) -> Row:
    """A tag that was asked for is the image's own. The labels say which that is."""
    if not all(image.labels.get(name) for name in _naming(image.prefix)):
        return skipped("tag", "not judged: the image lacks the labels that give its own")
    if not tag:
        return skipped("tag", f"asked for by digest; the labels give {one_line(image.tag)}")
    if tag != image.tag:
        return failed(
            "tag",
            f"{tag} names an image whose own tag is {one_line(image.tag)}: it was moved",
            ImageReferenceError,
        )
    return passed("tag", f"{tag} is what the labels give")


def check_layers_present(image: Image, registry: Registry) -> Row:
    """The registry has each blob, in its size; contents are not read."""
    for number, blob in enumerate(image.layers, 1):
        if not registry.has_blob(blob):
            return failed(
                "layers",
                f"layer {number} of {len(image.layers)}, {blob.digest}, is not there in its size",
                ImageAbsentError,
            )
    return skipped("layers", "all there in their sizes; contents not read (--layers reads them)")


def check_layers(image: Image, registry: Registry, scratch: Path) -> Row:
    """Download each layer: its digest, and the diff id of what it unpacks to.

    Needs room for the largest layer below `scratch`.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        for number, blob in enumerate(image.layers, 1):
            name = f"layer {number} of {len(image.layers)}"
            console.info(f"{name}: {blob.size / 1e6:.1f} MB")
            path = Path(folder) / "layer"
            try:
                registry.fetch_blob(blob, path)
            except (TamperedError, ImageAbsentError) as exc:
                return failed("layers", f"{name}: {one_line(exc.what)}", type(exc))
            expected = image.diff_ids[number - 1] if number <= len(image.diff_ids) else "none"
            try:
                found = diff_id(path, blob.media_type)
            except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError) as exc:
                return failed("layers", f"{name} cannot be unpacked: {exc}", TamperedError)
            if found != expected:
                return failed(
                    "layers", f"{name} unpacks to {found}, not to {expected}", TamperedError
                )
            path.unlink()
    total = sum(blob.size for blob in image.layers)
    return passed("layers", f"{len(image.layers)} layers, {total / 1e6:.1f} MB, read and hashed")


def diff_id(path: Path, media_type: str) -> str:
    """`sha256:` of a layer's tar, unpacked as a stream (OCI image specification, config.md)."""
    digest = hashlib.sha256()
    with path.open("rb") as raw:
        stream: Any = _unpacked(raw, media_type)
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _unpacked(raw: BinaryIO, media_type: str) -> BinaryIO | io.RawIOBase | gzip.GzipFile:
    if media_type.endswith(("+zstd", ".zstd")):
        # Long windows are allowed: a layer may be packed with one.
        tool = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        return tool.stream_reader(raw, read_across_frames=True)
    if media_type.endswith(("+gzip", ".gzip")):
        return gzip.GzipFile(fileobj=raw)
    return raw
