"""`Target`: what one image is made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.pins.schema import (
    BudgetPins,
    CubinPins,
    CudaPins,
    KernelPins,
    LockPins,
    SharedPins,
    SourcePin,
    ToolchainPins,
    TorchPins,
)
from builder.project import Project


@dataclass(frozen=True)
class Target:
    """One image: every value that goes into it, already resolved from the two pin files."""

    variant: str
    stand_in: bool
    shared: SharedPins
    cuda: CudaPins
    budget: BudgetPins
    torch: TorchPins
    kernels: KernelPins
    cubin: CubinPins
    toolchain: ToolchainPins
    lock: LockPins
    sources: tuple[SourcePin, ...]
    stand_in_reason: str

    @property
    def name(self) -> str:
        """`cu130`, `cu128` or `cu128-stand-in`: used in tags, folders and messages."""
        return f"{self.variant}-stand-in" if self.stand_in else self.variant

    @property
    def cuda_major(self) -> int:
        return int(self.cuda.version.split(".")[0])

    def folder(self, project: Project) -> Path:
        """Where this target's generated files are committed."""
        base = project.images / self.variant
        return base / "stand-in" if self.stand_in else base

    def lock_file(self, project: Project) -> Path:
        return self.folder(project) / "requirements.lock"

    def dockerfile(self, project: Project) -> Path:
        return self.folder(project) / "Dockerfile"
