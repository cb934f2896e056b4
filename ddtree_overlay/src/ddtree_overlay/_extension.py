"""Finds the compiled extension and refuses it for a torch that it was not built for.

A C++ extension loads into a neighbouring torch without a missing symbol and then misbehaves, so
the build stamps what it was compiled against and the stamp is compared before anything is loaded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
REMEDY = "install the ddtree-overlay wheel built for this torch, or the torch that it was built for"


class ExtensionMismatchError(ImportError):
    """The extension was built for another torch than the one that is running."""


class ExtensionLoadError(ImportError):
    """The extension is missing, is not one file, or the dynamic loader refuses it."""


@dataclass(frozen=True)
class BuildInfo:
    """The stamp of the wheel's build (`_build_info.json`)."""

    torch: str
    variant: str
    cxx11_abi: bool
    nvrtc: str
    sass: tuple[str, ...]
    ptx: str


def read_build_info(package: Path = PACKAGE) -> BuildInfo:
    """Raises ExtensionLoadError when the package holds no usable stamp (a source tree)."""
    path = package / "_build_info.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return BuildInfo(
            torch=raw["torch"],
            variant=raw["variant"],
            cxx11_abi=raw["cxx11_abi"],
            nvrtc=raw["nvrtc"],
            sass=tuple(raw["sass"]),
            ptx=raw["ptx"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExtensionLoadError(
            f"{path} cannot be read ({error!r}): this is not an installed ddtree-overlay wheel"
        ) from error


def check_build(info: BuildInfo, torch_version: str, cxx11_abi: bool) -> None:
    """Raises ExtensionMismatchError naming both sides."""
    if info.torch != torch_version:
        raise ExtensionMismatchError(
            f"ddtree-overlay was built for torch {info.torch} ({info.variant}), "
            f"but torch {torch_version} is running; {REMEDY}"
        )
    if info.cxx11_abi != cxx11_abi:
        raise ExtensionMismatchError(
            f"ddtree-overlay was built with _GLIBCXX_USE_CXX11_ABI={int(info.cxx11_abi)}, "
            f"but torch {torch_version} runs with {int(cxx11_abi)}; {REMEDY}"
        )


def find_extension(package: Path = PACKAGE) -> Path:
    """The one `_C*.so` of the package."""
    found = sorted(package.glob("_C*.so"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise ExtensionLoadError(f"one _C*.so is expected in {package}, found: {names}")
    return found[0]
