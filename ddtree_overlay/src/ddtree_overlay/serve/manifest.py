"""What the build recorded in the image, read leniently: a missing entry is "unknown"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.errors import ManifestError

DEFAULT_PATH = "/opt/ddtree/manifest.json"
PATH_VARIABLE = "DDTREE_MANIFEST"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Manifest:
    """The parsed manifest; empty when there is none."""

    raw: Mapping[str, Any]

    @property
    def stand_in(self) -> bool:
        """Built from substitutes for sources that could not be reached; never for a GPU."""
        return self.raw.get("stand_in") is True

    def text(self, *keys: str) -> str:
        """The string at a path of keys, else "unknown"."""
        value: Any = self.raw
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, str) and value else UNKNOWN


def read_manifest(environment: Mapping[str, str]) -> Manifest:
    """$DDTREE_MANIFEST, else the image's. Raises ManifestError for a file that is not JSON.

    A stand-in image is recognised by this file alone, so a damaged one is not overlooked.
    """
    path = Path(environment.get(PATH_VARIABLE) or DEFAULT_PATH)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Manifest({})
    except (OSError, ValueError) as error:
        raise ManifestError(
            f"{path} cannot be read: {error}", "use the image as it was built"
        ) from error
    if not isinstance(raw, dict):
        raise ManifestError(f"{path} is not a JSON object", "use the image as it was built")
    return Manifest(raw)
