"""OCI labels, taken from the manifest's observations."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from builder.inside.target import Target

_OCI = "org.opencontainers.image"
TITLE = "DDTree appliance"
LICENSE = "Apache-2.0"  # of what is ours; the licences of the rest are in the image


def labels(manifest: dict[str, Any], target: Target) -> dict[str, str]:
    """All labels of the image, as strings."""
    observed = manifest["observed"]
    created = datetime.fromtimestamp(target.source_date_epoch, tz=timezone.utc)
    base = manifest["base"]
    sass = sorted(e["arch"] for e in observed["cubins"].values() if e["arch"].startswith("sm_"))
    ours = {
        "variant": manifest["variant"],
        "stand-in": "true" if manifest["stand_in"] else "false",
        "cuda": observed["torch_cuda"],
        "torch": observed["torch"],
        "sglang": observed["sglang"],
        "sglang.patched-tree": manifest["sglang"]["patched_tree"],
        "build-id": manifest["build_id"],
        "base": f"{base['kind']}: {base['detail']}",
        "driver-floor": target.driver_floor,
        "sass": ",".join(sorted(set(sass), key=_number)),
        "lock": f"sha256:{target.lock_sha256}",
    }
    found = {
        f"{_OCI}.title": TITLE,
        f"{_OCI}.description": _description(manifest, target),
        f"{_OCI}.licenses": LICENSE,
        f"{_OCI}.version": manifest["version"],
        f"{_OCI}.created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        **{f"{target.label_prefix}.{key}": value for key, value in ours.items()},
    }
    if manifest["stand_in"]:
        found[f"{target.label_prefix}.stand-in.reason"] = manifest["stand_in_reason"]
    digest = re.fullmatch(r"(?P<name>[^@\s]+)@(?P<digest>sha256:[0-9a-f]{64})", base["detail"])
    if base["kind"] == "registry" and digest:
        found[f"{_OCI}.base.name"] = digest["name"]
        found[f"{_OCI}.base.digest"] = digest["digest"]
    return dict(sorted(found.items()))


def _number(architecture: str) -> tuple[int, str]:
    match = re.match(r"sm_(\d+)(.*)", architecture)
    return (int(match.group(1)), match.group(2)) if match else (0, architecture)


def _description(manifest: dict[str, Any], target: Target) -> str:
    observed = manifest["observed"]
    text = (
        f"SGLang {observed['sglang']} with DDTree speculation, torch {observed['torch']}, "
        f"CUDA {observed['torch_cuda']}, NVIDIA driver {target.driver_floor} or newer"
    )
    return f"Stand-in, not for GPUs: {text}" if manifest["stand_in"] else text
