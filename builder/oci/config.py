"""The image configuration and manifest as functions of the files (OCI image specification 1.1)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from builder.oci.model import CONFIG, MANIFEST, ROOTFS_ANNOTATION, Descriptor

# What a container is started with. The rest that engines write (Hostname, Image, Tty, ...) is about
# the container that a step of the build ran in.
_KEPT = (
    "ArgsEscaped",
    "Cmd",
    "Entrypoint",
    "Env",
    "ExposedPorts",
    "Healthcheck",
    "Labels",
    "OnBuild",
    "Shell",
    "StopSignal",
    "User",
    "Volumes",
    "WorkingDir",
)
_PLATFORM = ("architecture", "os", "variant", "os.version", "os.features")


@dataclass(frozen=True)
class LayerName:
    """From which layer of the engine's image a layer comes (base first), and which part of it."""

    origin: int
    part: str


def canonical_json(document: Any) -> bytes:
    """One spelling: sorted keys, no blanks."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def image_config(
    saved: Mapping[str, Any], layers: Sequence[LayerName], diff_ids: Sequence[str], epoch: int
) -> dict[str, Any]:
    """The exported image's configuration, from the one that the engine saved."""
    created = datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    raw = saved.get("config") or {}
    return {
        **{key: saved[key] for key in _PLATFORM if saved.get(key)},
        "created": created,
        "config": {key: raw[key] for key in _KEPT if raw.get(key)},
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": _history(saved, layers, created),
    }


def _history(
    saved: Mapping[str, Any], layers: Sequence[LayerName], created: str
) -> list[dict[str, Any]]:
    """As the build's, in which a layer that was cut has an entry for each part, and one of which
    nothing is left is marked empty."""
    parts: dict[int, list[str]] = {}
    for layer in layers:
        parts.setdefault(layer.origin, []).append(layer.part)
    found = []
    origin = 0
    count = len((saved.get("rootfs") or {}).get("diff_ids") or ())
    for entry in saved.get("history") or []:
        made = {key: entry[key] for key in ("created_by", "comment") if entry.get(key)}
        if entry.get("empty_layer"):
            found.append({"created": created, **made, "empty_layer": True})
            continue
        found += _entries(parts.get(origin, []), made, created)
        origin += 1
    for missing in range(origin, count):  # tools that write no history
        found += _entries(parts.get(missing, []), {}, created)
    return found


def _entries(parts: list[str], made: dict[str, Any], created: str) -> list[dict[str, Any]]:
    if not parts:
        return [{"created": created, **made, "empty_layer": True}]
    return [
        {"created": created, **made, **({"comment": f"part {part}"} if part else {})}
        for part in parts
    ]


def image_manifest(config: bytes, layers: Sequence[Descriptor], rootfs: str) -> bytes:
    """The manifest's bytes."""
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": describe(config, CONFIG).document(),
            "layers": [layer.document() for layer in layers],
            "annotations": {ROOTFS_ANNOTATION: rootfs},
        }
    )


def describe(data: bytes, media_type: str) -> Descriptor:
    """The descriptor of a small blob."""
    return Descriptor(media_type, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
