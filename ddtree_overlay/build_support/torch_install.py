"""The installed torch, read from its files: importing it would load CUDA for three strings."""

from __future__ import annotations

import ast
import importlib.util
import mmap
from dataclasses import dataclass
from pathlib import Path


class TorchInstallError(Exception):
    """torch is absent, or is not the variant's."""


@dataclass(frozen=True)
class TorchInstall:
    """Where torch lies and what it was built as. `cuda` is None for a CPU-only build."""

    root: Path
    version: str
    cuda: str | None
    cxx11_abi: bool

    @property
    def include_dirs(self) -> list[str]:
        include = self.root / "include"
        return [str(include), str(include / "torch" / "csrc" / "api" / "include")]

    @property
    def library_dir(self) -> str:
        return str(self.root / "lib")


def find_torch() -> TorchInstall:
    """The torch that `import torch` would give. Raises TorchInstallError."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise TorchInstallError("torch is not installed where the overlay is built")
    root = Path(next(iter(spec.submodule_search_locations)))
    values = read_version_file(root / "version.py")
    version = values.get("__version__")
    if version is None:
        raise TorchInstallError(f"{root / 'version.py'} states no __version__")
    return TorchInstall(root, version, values.get("cuda"), _has_cxx11_abi(root))


def require_cuda(torch: TorchInstall, cuda: str | None, variant: str) -> None:
    """Raises TorchInstallError unless torch is the build of the variant's CUDA."""
    if torch.cuda != cuda:
        raise TorchInstallError(
            f"variant {variant} needs torch for CUDA {cuda or 'none'}, "
            f"but torch {torch.version} is for CUDA {torch.cuda or 'none'}"
        )


def read_version_file(path: Path) -> dict[str, str | None]:
    """Top-level names of torch/version.py that are strings or None."""
    values: dict[str, str | None] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target: ast.expr | None = None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        else:
            continue
        value = node.value
        if (
            isinstance(target, ast.Name)
            and isinstance(value, ast.Constant)
            and (value.value is None or isinstance(value.value, str))
        ):
            values[target.id] = value.value
    return values


def _has_cxx11_abi(root: Path) -> bool:
    """Whether libc10 speaks the C++11 string ABI: its symbol names say so."""
    library = root / "lib" / "libc10.so"
    with library.open("rb") as handle, mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ) as data:
        return data.find(b"NSt7__cxx1112basic_string") >= 0
