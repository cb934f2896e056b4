"""A small image with all that `verify` asks of one, made by hand; evidence and receipts for it."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zstandard

from builder.oci.model import (
    CONFIG,
    INDEX,
    LAYER_ZSTD,
    MANIFEST,
    ROOTFS_ANNOTATION,
    Descriptor,
    ImageLayout,
)
from builder.receipts import Count, ImageId, Receipt
from tests.builder.registry.layouts import add_blob, digest_of

PREFIX = "dev.ddtree"
REVISION = "1234567890abcdef1234567890abcdef12345678"
LOCK = "ab" * 32
TAG = "0.1.0-cu130-0123456789abcdef"
LABELS = {
    f"{PREFIX}.variant": "cu130",
    f"{PREFIX}.stand-in": "false",
    f"{PREFIX}.cuda": "13.0",
    f"{PREFIX}.torch": "2.11.0+cu130",
    f"{PREFIX}.sglang": "0.5.17+ddtree.1a2b3c4d",
    f"{PREFIX}.sglang.patched-tree": "cd" * 32,
    f"{PREFIX}.build-id": "0123456789abcdef",
    f"{PREFIX}.driver-floor": "580.65.06",
    f"{PREFIX}.sass": "sm_90,sm_120",
    f"{PREFIX}.lock": f"sha256:{LOCK}",
    "org.opencontainers.image.version": "0.1.0",
    "org.opencontainers.image.revision": REVISION,
    "org.opencontainers.image.created": "2026-11-01T00:00:00Z",
}


@dataclass(frozen=True)
class Evidence:
    """As builder/supply/evidence.py names its files."""

    spdx: Path
    cyclonedx: Path
    provenance: Path


def layer(name: str, content: bytes) -> bytes:
    """A tar of one file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def make_image(
    folder: Path,
    *,
    labels: dict[str, str] | None = None,
    diff_ids: list[str] | None = None,
    rootfs: str = f"sha256:{'5a' * 32}",
) -> ImageLayout:
    """Two layers and a configuration with LABELS, `labels` over them (an empty value: left out)."""
    tars = [layer("one", b"1" * 5000), layer("two", b"2" * 5000)]
    blobs = [add_blob(folder, zstandard.compress(tar), LAYER_ZSTD) for tar in tars]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": {k: v for k, v in {**LABELS, **(labels or {})}.items() if v}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids or [digest_of(tar) for tar in tars]},
    }
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": add_blob(folder, json.dumps(config).encode(), CONFIG).document(),
        "layers": [blob.document() for blob in blobs],
        "annotations": {ROOTFS_ANNOTATION: rootfs},
    }
    manifest: Descriptor = add_blob(folder, json.dumps(document).encode(), MANIFEST)
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest.document()]}
    (folder / "index.json").write_text(json.dumps(index))
    return ImageLayout(folder, manifest)


def spdx() -> dict[str, Any]:
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": "image",
        "documentNamespace": "https://example.com/spdx/1",
        "creationInfo": {"created": "2026-11-01T00:00:00Z", "creators": ["Tool: test"]},
        "packages": [
            {
                "SPDXID": "SPDXRef-torch",
                "name": "torch",
                "versionInfo": "2.11.0",
                "downloadLocation": "NOASSERTION",
                "filesAnalyzed": False,
            }
        ],
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": "SPDXRef-torch",
            }
        ],
    }


def cyclonedx() -> dict[str, Any]:
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [{"type": "library", "name": "torch", "version": "2.11.0"}],
    }


def provenance(
    revision: str = REVISION,
    lock: str = LOCK,
    build: str = "0123456789abcdef",
    target: str = "cu130",
) -> dict[str, Any]:
    return {
        "buildDefinition": {
            "buildType": "https://example.com/build/v1",
            "externalParameters": {"target": target},
            "internalParameters": {"buildId": build},
            "resolvedDependencies": [
                {"uri": "git+https://example.com/project", "digest": {"gitCommit": revision}},
                {"name": "requirements.lock", "digest": {"sha256": lock}},
            ],
        },
        "runDetails": {"builder": {"id": "https://example.com/builder"}},
    }


def write_evidence(folder: Path, **other: dict[str, Any]) -> Evidence:
    """The three files; `other` replaces documents by name."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {"spdx": spdx(), "cyclonedx": cyclonedx(), "provenance": provenance(), **other}
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return Evidence(*(folder / f"{name}.json" for name in ("spdx", "cyclonedx", "provenance")))


def receipt(level: str = "cpu-verified", **changes: Any) -> Receipt:
    """Of the image that `make_image` makes by default, not yet bound to a digest."""
    made = Receipt(
        level=level,
        image=ImageId(
            id=f"sha256:{'1d' * 32}",
            reference="ddtree-appliance:cu130",
            size_bytes=10000,
            rootfs=f"sha256:{'5a' * 32}",
        ),
        target="cu130",
        build_id="0123456789abcdef",
        revision=REVISION,
        date="2026-11-02T03:04:05Z",
        machine={"cpu": "test", "gpus": []},
        suites={"image/abi": Count(3, 0, 0), "image/users": Count(2, 0, 1)},
    )
    return replace(made, **changes)
