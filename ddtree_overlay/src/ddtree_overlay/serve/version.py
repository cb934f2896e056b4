"""`version`: the stack as it is installed, with what only the build could know from the manifest.

Nothing of the stack is imported, so that this still answers when the stack is broken.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.manifest import UNKNOWN, Manifest

PACKAGE = Path(__file__).resolve().parent.parent
Value = str | bool | list[str]


def collect(manifest: Manifest, package: Path = PACKAGE) -> dict[str, Value]:
    """Names to versions. What cannot be found is "unknown"; nothing raises."""
    torch_file = _torch_version_file()
    build = _read_json(package / "_build_info.json")
    return {
        "version": manifest.text("version"),
        "build_id": manifest.text("build_id"),
        "variant": _first(manifest.text("variant"), build.get("variant")),
        "stand_in": manifest.stand_in,
        "cuda": _assigned(torch_file, "cuda"),
        "torch": _assigned(torch_file, "__version__"),
        "sglang": _installed("sglang"),
        "sglang_base_tree": manifest.text("sglang", "base_tree"),
        "sglang_patched_tree": manifest.text("sglang", "patched_tree"),
        "sglang_kernel": _installed("sglang-kernel"),
        "triton": _installed("triton"),
        "flashinfer": _installed("flashinfer-python"),
        "overlay": _installed("ddtree-overlay"),
        "cubins": _kernel_architectures(package),
        "built_for_torch": _first(build.get("torch")),
        "nvrtc": _first(build.get("nvrtc")),
        "python": platform.python_version(),
        "base": _base(manifest),
    }


def render_text(values: dict[str, Value]) -> str:
    """One aligned `name  value` line each."""
    width = max(map(len, values))
    return "\n".join(f"{name:<{width}}  {_plain(value)}" for name, value in values.items())


def render_json(values: dict[str, Value]) -> str:
    """Sorted keys, one object."""
    return json.dumps(values, indent=2, sort_keys=True)


def _plain(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return value


def _first(*candidates: Any) -> str:
    return next((c for c in candidates if isinstance(c, str) and c != UNKNOWN), UNKNOWN)


def _base(manifest: Manifest) -> str:
    kind, detail = manifest.text("base", "kind"), manifest.text("base", "detail")
    return kind if detail == UNKNOWN else f"{kind}: {detail}"


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


def _torch_version_file() -> str:
    try:
        located = importlib.metadata.distribution("torch").locate_file("torch/version.py")
        return Path(str(located)).read_text(encoding="utf-8")
    except (importlib.metadata.PackageNotFoundError, OSError):
        return ""


def _assigned(source: str, name: str) -> str:
    """The value of `name = '...'` (annotated or not) in torch/version.py; "none" for None."""
    found = re.search(rf"^{name}\b[^=\n]*=\s*(?:(['\"])(.*?)\1|(None))", source, re.MULTILINE)
    if not found:
        return UNKNOWN
    return "none" if found.group(3) else found.group(2)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _kernel_architectures(package: Path) -> list[str]:
    """Architectures of the kernel files that are there, whatever kernels.json says."""
    names = [path.name.split(".") for path in (package / "kernels").glob("*.*.*")]
    return sorted({parts[1] for parts in names if parts[-1] in {"cubin", "ptx"}})
