"""target.json: the pins as the builder hands them to a build stage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class TargetError(Exception):
    """target.json is missing, is not JSON, or lacks a key."""


@dataclass(frozen=True)
class Target:
    """What the image was to be made from. `raw` is the whole document, for the manifest."""

    raw: Mapping[str, Any]
    name: str
    variant: str
    stand_in: bool
    stand_in_reason: str
    version: str
    label_prefix: str
    source_date_epoch: int
    cuda: str  # major.minor
    driver_floor: str
    torch: str
    kernels: str
    nvrtc: str
    sass: tuple[str, ...]
    ptx: str
    toolchain_source: str  # wheels, archives, absent
    toolchain_home: str  # below site-packages, or absolute; empty when absent
    toolchain_reason: str
    components: Mapping[str, str]
    lock_sha256: str
    excluded: Mapping[str, str]  # distribution -> reason
    overridden: tuple[str, ...]  # requirement strings that replaced those of distributions
    budget_gib: float
    budget_layers_mib: Mapping[str, int]  # by layer (audit/size.py); empty in older descriptions

    @property
    def cuda_major(self) -> int:
        return int(self.cuda.split(".")[0])


def read_target(path: Path) -> Target:
    """Raises TargetError naming the file and the reason."""
    try:
        return parse_target(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as exc:
        raise TargetError(f"{path}: {exc}") from None
    except (KeyError, TypeError) as exc:
        raise TargetError(f"{path}: key {exc} is missing or malformed") from None


def parse_target(raw: Mapping[str, Any]) -> Target:
    """Raises KeyError or TypeError for a document that lacks something."""
    toolchain = raw["toolchain"]
    return Target(
        raw=raw,
        name=raw["name"],
        variant=raw["variant"],
        stand_in=raw["stand_in"],
        stand_in_reason=raw["stand_in_reason"],
        version=raw["version"],
        label_prefix=raw["label_prefix"],
        source_date_epoch=raw["source_date_epoch"],
        cuda=raw["cuda"]["version"],
        driver_floor=raw["cuda"]["driver_floor"],
        torch=raw["torch"]["version"],
        kernels=raw["kernels"]["version"],
        nvrtc=raw["cubin"]["nvrtc"],
        sass=tuple(raw["cubin"]["sass"]),
        ptx=raw["cubin"]["ptx"],
        toolchain_source=toolchain["source"],
        toolchain_home=toolchain["home"],
        toolchain_reason=toolchain.get("reason", ""),
        components=dict(toolchain["components"]),
        lock_sha256=raw["lock_sha256"],
        excluded={entry["distribution"]: entry["reason"] for entry in raw["excluded"]},
        overridden=tuple(raw.get("overridden", ())),
        budget_gib=raw["budget_gib"],
        budget_layers_mib=dict(raw.get("budget_layers_mib", {})),
    )


def target_of_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The same document out of an image's own manifest.json. Raises TargetError.

    Images built before a pin was recorded there lack it; parse_target knows which may be absent.
    """
    keys = ("name", "variant", "stand_in", "stand_in_reason", "version", "build_id")
    try:
        return {
            "label_prefix": "",
            **manifest["pins"],
            **{key: manifest[key] for key in (*keys, "source_date_epoch", "base", "sglang")},
        }
    except (KeyError, TypeError) as exc:
        raise TargetError(f"no manifest of an appliance: {exc} is missing") from None
