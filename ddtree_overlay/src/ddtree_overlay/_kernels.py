"""Chooses the kernel files for a GPU, and refuses a GPU that none of them fits.

Imports neither torch nor CUDA. What runs where: CUDA C++ Programming Guide, "Compute Capabilities"
and "Family-specific and architecture-specific features".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "kernels"
SCHEMA = 2  # of kernels.json, as build_support/kernels.py writes it
REINSTALL = "reinstall the ddtree-overlay wheel"

Capability = tuple[int, int]
_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<suffix>[af]?)")
_PRECISION = {"": 0, "f": 1, "a": 2}


class KernelMissingError(ImportError):
    """No kernel of this wheel can run on the GPU."""


class KernelFileError(ImportError):
    """kernels.json is unusable, or a file is not the one that it describes."""


@dataclass(frozen=True)
class KernelFile:
    """One file of kernels.json: `arch` such as "sm_120" (a cubin) or "compute_120" (PTX)."""

    path: Path
    kernel: str
    arch: str
    sha256: str
    entries: tuple[str, ...]


@dataclass(frozen=True)
class KernelSet:
    """The files for one GPU, all of one architecture."""

    arch: str
    files: tuple[KernelFile, ...]

    @property
    def description(self) -> str:
        """Such as "sm_120 cubins" or "compute_120 PTX, compiled by the driver"."""
        if self.arch.startswith("sm_"):
            return f"{self.arch} cubins"
        return f"{self.arch} PTX, compiled by the driver"


def choose_architecture(capability: Capability, carried: Iterable[str]) -> str | None:
    """The architecture of `carried` for a GPU of compute capability (major, minor); None if none.

    A cubin runs on its own major with an equal or higher minor; the highest such minor is taken,
    and of one minor the more specific. Else PTX of the highest capability that is not above the
    GPU's. A suffix `a` runs on exactly its capability, `f` on its major from its minor on.
    """
    fitting = [arch for arch in carried if _fits(arch, capability)]
    return max(fitting, key=_preference, default=None)


def read_kernels(folder: Path = FOLDER) -> list[KernelFile]:
    """The files of kernels.json. Raises KernelFileError when it cannot be used."""
    path = folder / "kernels.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            raise KernelFileError(
                f"{path} has schema {raw['schema']}, {SCHEMA} is expected; {REINSTALL}"
            )
        return [
            KernelFile(
                path=folder / entry["file"],
                kernel=entry["kernel"],
                arch=entry["arch"],
                sha256=entry["sha256"],
                entries=tuple(entry["entries"]),
            )
            for entry in raw["files"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KernelFileError(f"{path} cannot be used ({error!r}); {REINSTALL}") from error


def select_kernels(name: str, capability: Capability, files: Iterable[KernelFile]) -> KernelSet:
    """The files for the GPU called `name`, not yet read.

    Raises KernelMissingError when no architecture fits, KernelFileError when one kernel lacks it.
    """
    files = list(files)
    carried = sorted({file.arch for file in files}, key=_preference)
    arch = choose_architecture(capability, carried)
    if arch is None:
        raise KernelMissingError(
            f"{name} has compute capability {capability[0]}.{capability[1]}, and the "
            f"ddtree-overlay wheel carries kernels for {', '.join(carried) or 'nothing'} only; add "
            "its architecture to cubin.sass in images/<variant>.toml and rebuild the image, or "
            "hide this GPU with CUDA_VISIBLE_DEVICES"
        )
    chosen = tuple(file for file in files if file.arch == arch)
    missing = {file.kernel for file in files} - {file.kernel for file in chosen}
    if missing:
        raise KernelFileError(
            f"kernels.json lists no {arch} file of {', '.join(sorted(missing))}; {REINSTALL}"
        )
    return KernelSet(arch, chosen)


def check_files(kernels: KernelSet) -> None:
    """Raises KernelFileError naming the file that is not what kernels.json says."""
    for file in kernels.files:
        try:
            found = hashlib.sha256(file.path.read_bytes()).hexdigest()
        except OSError as error:
            raise KernelFileError(
                f"kernel file {file.path} cannot be read ({error.strerror}); {REINSTALL}"
            ) from error
        if found != file.sha256:
            raise KernelFileError(
                f"kernel file {file.path} has sha256 {found}, kernels.json says {file.sha256}; "
                f"{REINSTALL}"
            )


def _parse(arch: str) -> tuple[bool, Capability, str]:
    """(is a cubin, capability, suffix). Raises KernelFileError."""
    match = _ARCHITECTURE.fullmatch(arch)
    if match is None:
        raise KernelFileError(f"kernels.json names an unknown architecture, {arch!r}; {REINSTALL}")
    return match["kind"] == "sm", (int(match["major"]), int(match["minor"])), match["suffix"]


def _fits(arch: str, capability: Capability) -> bool:
    cubin, built_for, suffix = _parse(arch)
    if suffix == "a":
        return built_for == capability
    if cubin or suffix == "f":
        return built_for[0] == capability[0] and built_for[1] <= capability[1]
    return built_for <= capability


def _preference(arch: str) -> tuple[bool, Capability, int]:
    cubin, built_for, suffix = _parse(arch)
    return cubin, built_for, _PRECISION[suffix]
