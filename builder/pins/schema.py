"""What a pin file may contain: every key, its form, nothing else."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+_-]*$")]
Minor = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
ImageByDigest = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9./_-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}$")
]
HttpsUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$")]
Day = Annotated[
    str,
    StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$"),
    AfterValidator(lambda text: date.fromisoformat(text).isoformat()),
]
Text = Annotated[str, StringConstraints(min_length=1)]
Arch = Annotated[str, StringConstraints(pattern=r"^sm_[0-9]+a?$")]
Ptx = Annotated[str, StringConstraints(pattern=r"^compute_[0-9]+$")]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class ProjectPins(_Table):
    version: Version
    label_prefix: Text
    image_name: Text


class SglangPins(_Table):
    version: Version
    router: Version
    wheel: Text
    sha256: Sha256
    base_tree: Sha256
    patched_tree: Sha256


class PythonPins(_Table):
    version: Minor
    abi: Text
    wheel_platform: Text
    resolve_platform: Text


class BasePins(_Table):
    image: ImageByDigest
    suite: Text
    runtime_packages: tuple[Text, ...] = Field(strict=False)


class ToolPin(_Table):
    version: Version
    sha256: Sha256


class ToolPins(_Table):
    uv: ToolPin
    pyelftools: ToolPin


class EnginePins(_Table):
    minimum_engine: Version
    minimum_buildx: Version
    suite: Text
    packages: tuple[Text, ...] = Field(strict=False)
    runc_suite: Text
    runc_packages: tuple[Text, ...] = Field(strict=False)
    disk_gib: int = Field(gt=0)
    cache_gib: int = Field(gt=0)


class LayerBudgets(_Table):
    """MiB of unpacked files, by what they belong to (builder/inside/audit/size.py)."""

    system: int = Field(gt=0)
    dependencies: int = Field(gt=0)
    sglang: int = Field(gt=0)
    overlay: int = Field(gt=0)


class BudgetPins(_Table):
    image_gib: float = Field(gt=0, allow_inf_nan=False)
    layers_mib: LayerBudgets


class SharedPins(_Table):
    """images/pins.toml: what all variants have in common."""

    schema_version: Literal[1]
    resolve_before: Day
    source_date_epoch: int = Field(gt=0)
    project: ProjectPins
    sglang: SglangPins
    python: PythonPins
    base: BasePins
    tools: ToolPins
    engine: EnginePins


class CudaPins(_Table):
    version: Minor
    driver_floor: Version


class TorchPins(_Table):
    version: Version
    torchvision: Version
    torchaudio: Version
    triton: Version
    index: Literal["pypi", "pytorch"]


class KernelPins(_Table):
    distribution: Literal["sglang-kernel"]
    version: Version
    cuda: Minor
    source: Literal["pypi", "github"]


class CubinPins(_Table):
    """What NVRTC compiles the DDTree kernels to."""

    nvrtc_distribution: Text
    nvrtc: Version
    sass: tuple[Arch, ...] = Field(strict=False, min_length=1)
    ptx: Ptx


class ToolchainPins(_Table):
    """The CUDA toolkit that JIT compilation uses at run time."""

    source: Literal["wheels", "archives", "absent"]
    home: str  # empty where there is no toolkit
    components: dict[str, Version]
    reason: str = ""


class Excluded(_Table):
    distribution: Text
    reason: Text


class LockPins(_Table):
    constraints: tuple[Text, ...] = Field(strict=False, default=())
    overrides: tuple[Text, ...] = Field(strict=False, default=())
    exclude: tuple[Excluded, ...] = Field(strict=False, default=())


class SourcePin(_Table):
    """A file that is not on PyPI: fetched by URL, believed only by hash."""

    name: Text
    kind: Literal["wheel", "archive"]
    version: Version
    filename: Text
    url: HttpsUrl
    sha256: Sha256
    size: int | None = Field(default=None, gt=0)
    evidence: Text
    requires: tuple[Text, ...] = Field(strict=False, default=())


class StandInPins(_Table):
    reason: Text
    torch: TorchPins
    kernels: KernelPins
    toolchain: ToolchainPins
    lock: LockPins


class VariantPins(_Table):
    """images/<variant>.toml: only what differs by CUDA."""

    variant: Annotated[str, StringConstraints(pattern=r"^cu[0-9]{3}$")]
    cuda: CudaPins
    budget: BudgetPins
    torch: TorchPins
    kernels: KernelPins
    cubin: CubinPins
    toolchain: ToolchainPins
    lock: LockPins
    source: tuple[SourcePin, ...] = Field(strict=False, default=())
    stand_in: StandInPins | None = None
