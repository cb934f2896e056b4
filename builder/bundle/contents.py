"""What lies in a bundle: the image as an OCI layout, its evidence, and what serves it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zstandard

from builder.bundle.model import Entry
from builder.errors import BundleError, ImageReferenceError, TamperedError
from builder.files import CHUNK
from builder.oci.config import canonical_json
from builder.oci.layout import archive_manifest, index_document
from builder.oci.model import LAYER_ZSTD, Descriptor, ImageLayout
from builder.pins import Target
from builder.project import Project

FORMAT = 1  # of bundle.conf, known to import.sh

# From the repository: what one host needs to serve, and the operator's manual.
SERVE = (
    "compose.yaml",
    "deploy/README.md",
    "deploy/appliance.py",
    "deploy/config/config.toml.example",
    # The manual, and what it and deploy/README.md point to.
    "docs/serving.md",
    "docs/ddtree.md",
    "docs/exit-codes.md",
    "README.md",
    "LICENSE",
    "NOTICE",
)
_EXECUTABLE = {"deploy/appliance.py"}
# What import.sh takes from a checksum list.
_PATH = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+-]*(/[A-Za-z0-9_.][A-Za-z0-9_.+-]*)*")
# bundle.conf is read by hand with `. ./bundle.conf`: nothing in it may mean something to a shell.
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Announced:
    """Which image a bundle holds; digests as `sha256:...`."""

    name: str
    target: str
    build_id: str
    revision: str
    manifest: str
    config: str
    rootfs: str
    unpacked_bytes: int

    def document(self) -> bytes:
        """bundle.conf: `key=value` lines, which a shell reads without running them."""
        return (
            f"# Which image this is. Signed with the rest; read by import.sh.\n"
            f"format={FORMAT}\n"
            f"name={self.name}\n"
            f"target={self.target}\n"
            f"build_id={self.build_id}\n"
            f"revision={self.revision}\n"
            f"manifest={self.manifest}\n"
            f"config={self.config}\n"
            f"rootfs={self.rootfs}\n"
            f"unpacked_bytes={self.unpacked_bytes}\n"
        ).encode()

    def settings(self) -> bytes:
        """env.example, for compose.yaml beside it."""
        return (
            "# cp env.example .env, name your models, then: docker compose up -d --wait\n"
            "# compose.yaml lists the other settings.\n"
            "#\n"
            "# The image of this bundle. An engine with the containerd image store knows it by\n"
            "# the second ID; import.sh prints the one of your engine.\n"
            f"DDTREE_IMAGE={self.config}\n"
            f"#DDTREE_IMAGE={self.manifest}\n"
            "DDTREE_MODELS=/srv/models\n"
            "DDTREE_MODEL=/models/NAME\n"
            "DDTREE_DRAFT_MODEL=/models/NAME-DFlash\n"
        ).encode()


@dataclass(frozen=True)
class Named:
    """What an image's labels say of it. `reference` is its immutable name."""

    reference: str
    build_id: str
    revision: str


def read_labels(target: Target, labels: Mapping[str, str]) -> Named:
    """Raises ImageReferenceError for an image that is not one of the target."""
    pins = target.shared.project
    variant, stand_in, build_id = (
        labels.get(f"{pins.label_prefix}.{key}", "") for key in ("variant", "stand-in", "build-id")
    )
    version = labels.get("org.opencontainers.image.version", "")
    found = variant + ("-stand-in" if stand_in == "true" else "")
    if found != target.name or not re.fullmatch(r"[0-9a-f]{16}", build_id) or not version:
        raise ImageReferenceError(
            f"the image is not one of {target.name}: its labels say {found or 'nothing of ours'}",
            "name an image that build.py made for this --cuda",
        )
    revision = labels.get("org.opencontainers.image.revision", "unknown")
    for value in (version, revision):
        if not _WORD.fullmatch(value):
            raise ImageReferenceError(
                f"a label of the image is no version or revision: {value!r}",
                "build the image with build.py, which writes them",
            )
    return Named(
        reference=f"{pins.image_name}:{version}-{target.name}-{build_id}",
        build_id=build_id,
        revision=revision,
    )


def announce(target: Target, layout: ImageLayout) -> Announced:
    """What the layout and its labels say. Raises ImageReferenceError.

    Reads every layer once, for its unpacked size. Raises TamperedError, BundleError.
    """
    named = read_labels(target, layout.config().get("config", {}).get("Labels") or {})
    return Announced(
        name=named.reference,
        target=target.name,
        build_id=named.build_id,
        revision=named.revision,
        manifest=layout.manifest.digest,
        config=str(layout.document()["config"]["digest"]),
        rootfs=layout.rootfs,
        unpacked_bytes=sum(unpacked_size(layout, layer) for layer in layout.layers()),
    )


def unpacked_size(layout: ImageLayout, layer: Descriptor) -> int:
    """Bytes of a layer's tar. Raises BundleError, TamperedError."""
    if layer.media_type != LAYER_ZSTD:
        raise BundleError(
            f"a layer is {layer.media_type}, which a bundle does not hold",
            "export the image again (the cache's folder oci/ may be removed)",
        )
    size = 0
    try:
        with layout.blob(layer.digest).open("rb") as blob:
            reader = zstandard.ZstdDecompressor().stream_reader(blob, read_across_frames=True)
            while chunk := reader.read(CHUNK):
                size += len(chunk)
    except zstandard.ZstdError as exc:
        raise TamperedError(
            f"the layer {layer.digest} cannot be unpacked: {exc}",
            "remove the cache's folder oci/ and make the bundle again",
        ) from None
    return size


def contents(
    project: Project, announced: Announced, layout: ImageLayout, evidence: Mapping[str, Path]
) -> list[Entry]:
    """Every file but the checksums and their signature, sorted by path.

    `evidence`: name below `evidence/` -> file. Raises OSError, BundleError.
    """
    entries = [
        Entry.of_bytes("bundle.conf", announced.document()),
        Entry.of_bytes("serve/env.example", announced.settings()),
        *_image(layout),
        *(Entry.of_file(f"evidence/{name}", path) for name, path in evidence.items()),
        *(
            Entry.of_file(f"serve/{name}", project.root / name, executable=name in _EXECUTABLE)
            for name in SERVE
        ),
    ]
    for name in ("import.sh", "README.txt"):
        source = project.root / "deploy" / "bundle" / name
        entries.append(Entry.of_file(name, source, executable=name == "import.sh"))
    for entry in entries:
        if not _PATH.fullmatch(entry.path) or {".", ".."} & set(entry.path.split("/")):
            raise BundleError(
                f"a file has a name that import.sh does not take: {entry.path}", "rename it"
            )
    return sorted(entries, key=lambda entry: entry.path)


def _image(layout: ImageLayout) -> list[Entry]:
    """The layout with one image and no name: what a load gives is named after it was checked."""
    manifest = layout.document()
    # A layer may occur twice.
    blobs = {
        blob.digest: blob
        for blob in (layout.manifest, Descriptor.parse(manifest["config"]), *layout.layers())
    }
    return [
        Entry.of_bytes("image/oci-layout", canonical_json({"imageLayoutVersion": "1.0.0"})),
        # Engines with the containerd store read this one, ...
        Entry.of_bytes("image/index.json", index_document(layout.manifest, ())),
        # ... those with the classic store that one.
        Entry.of_bytes("image/manifest.json", archive_manifest(manifest, ())),
        *(_blob(layout, blob) for blob in blobs.values()),
    ]


def _blob(layout: ImageLayout, blob: Descriptor) -> Entry:
    # By its name, not by reading it: it is checked while it is copied.
    value = blob.digest.removeprefix("sha256:")
    return Entry(f"image/blobs/sha256/{value}", value, blob.size, layout.blob(blob.digest))
