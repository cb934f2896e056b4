"""What the caller of the build decides, read from the environment and checked before any work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


class SettingsError(Exception):
    """A build variable is missing or malformed."""


@dataclass(frozen=True)
class Settings:
    """The build's inputs.

    variant: "cu128", "cu130", or "cpu" (a torch without CUDA, for development).
    nvrtc: full version of the NVRTC distribution, such as "13.0.88".
    sass, ptx: architectures, such as ("sm_90", "sm_120") and "compute_120".
    """

    variant: str
    nvrtc: str
    sass: tuple[str, ...]
    ptx: str

    @property
    def cuda(self) -> str | None:
        """The variant's CUDA version, such as "13.0"; None for "cpu"."""
        return None if self.variant == "cpu" else f"{self.variant[2:-1]}.{self.variant[-1]}"


_RULES = {
    "DDTREE_VARIANT": (r"cu\d{3}|cpu", "cu130"),
    "DDTREE_NVRTC": (r"\d+\.\d+\.\d+", "13.0.88"),
    "DDTREE_SASS": (r"sm_\d+[af]?(,sm_\d+[af]?)*", "sm_90,sm_120"),
    "DDTREE_PTX": (r"compute_\d+[af]?", "compute_120"),
    "SOURCE_DATE_EPOCH": (r"\d+", "1788134400"),
}


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Raises SettingsError naming every variable that is missing or malformed."""
    faults = []
    for name, (pattern, example) in _RULES.items():
        value = environment.get(name, "")
        if not re.fullmatch(pattern, value):
            state = f"{value!r} is malformed" if value else "is not set"
            faults.append(f"{name} {state} (such as {name}={example})")
    if faults:
        raise SettingsError("; ".join(faults))
    sass = tuple(dict.fromkeys(environment["DDTREE_SASS"].split(",")))
    return Settings(
        environment["DDTREE_VARIANT"],
        environment["DDTREE_NVRTC"],
        sass,
        environment["DDTREE_PTX"],
    )
