"""Pins: images/pins.toml and images/<variant>.toml, parsed strictly, checked against each other.

The TOML edge is pydantic (frozen, strict, unknown keys forbidden). Everything behind it uses
`Target`, a frozen dataclass that says what one image is made from. A target is a variant, or a
variant's *stand-in*: the same code path from PyPI alone, for tests, never for a GPU.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from builder.errors import PinConflictError, PinFileError, UnknownVariantError
from builder.project import Project

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Clash = Callable[[str, str, str], PinConflictError]

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+_-]*$")]
Minor = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
ImageByDigest = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9./_-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}$")
]
HttpsUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$")]
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
    bootstrap_packages: tuple[Text, ...] = Field(strict=False)
    runtime_packages: tuple[Text, ...] = Field(strict=False)


class ToolPin(_Table):
    version: Version
    sha256: Sha256


class ToolPins(_Table):
    uv: ToolPin
    pyelftools: ToolPin
    setuptools: ToolPin


class EnginePins(_Table):
    minimum_engine: Version
    minimum_buildx: Version
    suite: Text
    packages: tuple[Text, ...] = Field(strict=False)
    runc_suite: Text
    runc_packages: tuple[Text, ...] = Field(strict=False)
    disk_gib: int = Field(gt=0)
    cache_gib: int = Field(gt=0)


class BudgetPins(_Table):
    image_gib: float = Field(gt=0)


class SharedPins(_Table):
    """images/pins.toml: what all variants have in common."""

    schema_version: Literal[1]
    resolve_before: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")]
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


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PinFileError(f"{path.name}: no such pin file", f"restore {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise PinFileError(f"{path.name}: not valid TOML: {exc}", f"mend {path}") from None


_REASONS = {
    "extra_forbidden": "unknown key",
    "missing": "required key is missing",
}


def _schema_error(path: Path, exc: ValidationError) -> PinFileError:
    first = exc.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    reason = _REASONS.get(first["type"], first["msg"])
    if first["type"] == "string_pattern_mismatch":
        reason = _pattern_reason(key, first.get("input"))
    more = exc.error_count() - 1
    also = f" (and {more} more)" if more else ""
    return PinFileError(
        f"{path.name}: {key}: {reason}{also}",
        f"mend {key} in {path}; CONTRIBUTING.md, 'Bump a pin', shows a whole entry",
    )


def _pattern_reason(key: str, value: object) -> str:
    if key == "base.image" and isinstance(value, str) and "@sha256:" not in value:
        return f"a tag without a digest ({value}): write NAME:TAG@sha256:DIGEST"
    if key.rsplit(".", 1)[-1] in {"sha256", "base_tree", "patched_tree"}:
        return f"not a SHA-256 of 64 lower-case hex digits: {value!r}"
    return f"malformed value {value!r}"


def load_shared(project: Project) -> SharedPins:
    """Parse images/pins.toml. Raises PinFileError naming file, key and reason."""
    path = project.images / "pins.toml"
    raw = _read_toml(path)
    try:
        return SharedPins.model_validate(raw)
    except ValidationError as exc:
        raise _schema_error(path, exc) from None


def known_variants(project: Project) -> list[str]:
    """Variants that have a pin file, sorted."""
    return sorted(p.stem for p in project.images.glob("cu*.toml"))


def load_variant(project: Project, variant: str) -> VariantPins:
    """Parse images/<variant>.toml. Raises UnknownVariantError or PinFileError."""
    known = known_variants(project)
    if variant not in known:
        raise UnknownVariantError(
            f"unknown CUDA variant {variant!r}", f"choose one of: {', '.join(known) or 'none'}"
        )
    path = project.images / f"{variant}.toml"
    raw = _read_toml(path)
    try:
        pins = VariantPins.model_validate(raw)
    except ValidationError as exc:
        raise _schema_error(path, exc) from None
    if pins.variant != variant:
        raise PinConflictError(
            f"{path.name}: variant: says {pins.variant!r}", f"write variant = {variant!r}"
        )
    return pins


def load_target(project: Project, variant: str, *, stand_in: bool = False) -> Target:
    """Both pin files, checked against each other. Raises the pin errors above."""
    pins = load_variant(project, variant)
    shared = load_shared(project)
    if stand_in and pins.stand_in is None:
        with_one = [v for v in known_variants(project) if load_variant(project, v).stand_in]
        raise UnknownVariantError(
            f"{variant} has no stand-in: everything it needs is on PyPI",
            f"drop --stand-in, or use it with: {', '.join(with_one)}",
        )
    swap = pins.stand_in if stand_in else None
    target = Target(
        variant=variant,
        stand_in=stand_in,
        shared=shared,
        cuda=pins.cuda,
        budget=pins.budget,
        torch=swap.torch if swap else pins.torch,
        kernels=swap.kernels if swap else pins.kernels,
        cubin=pins.cubin,
        toolchain=swap.toolchain if swap else pins.toolchain,
        lock=swap.lock if swap else pins.lock,
        sources=() if swap else pins.source,
        stand_in_reason=swap.reason if swap else "",
    )
    check_target(target)
    return target


def all_targets(project: Project) -> list[Target]:
    """Every target the repository describes, stand-ins last within their variant."""
    targets: list[Target] = []
    for variant in known_variants(project):
        targets.append(load_target(project, variant))
        if load_variant(project, variant).stand_in is not None:
            targets.append(load_target(project, variant, stand_in=True))
    return targets


# torch's PyPI builds carry one CUDA each; the local version says which one elsewhere.
_PYPI_TORCH_CUDA = {"2.9": "12.8", "2.10": "12.8", "2.11": "13.0"}


def check_target(target: Target) -> None:
    """Cross-pin rules. Raises PinConflictError with the two keys that disagree."""
    where = f"{target.variant}.toml"
    prefix = "stand_in." if target.stand_in else ""

    def clash(key: str, reason: str, remedy: str) -> PinConflictError:
        return PinConflictError(f"{where}: {prefix}{key}: {reason}", remedy)

    tag = "cu" + target.cuda.version.replace(".", "")
    if tag != target.variant:
        raise clash(
            "cuda.version",
            f"{target.cuda.version} is tag {tag}, the file is {target.variant}",
            "make cuda.version and the file name agree",
        )
    _check_torch(target, clash)
    if int(target.kernels.cuda.split(".")[0]) != target.cuda_major:
        raise clash(
            "kernels.cuda",
            f"kernels built with CUDA {target.kernels.cuda} cannot load beside CUDA "
            f"{target.cuda.version}",
            f"pin a sglang-kernel build of CUDA {target.cuda_major}",
        )
    if not target.cubin.nvrtc.startswith(target.cuda.version + "."):
        raise clash(
            "cubin.nvrtc",
            f"{target.cubin.nvrtc} is not CUDA {target.cuda.version}",
            "cubins are compiled by the variant's own NVRTC",
        )
    if "sm_120" not in target.cubin.sass:
        raise clash("cubin.sass", "sm_120 is missing", 'add "sm_120": the appliance runs on it')
    for component, version in target.toolchain.components.items():
        if not version.startswith(target.cuda.version + "."):
            raise clash(
                f"toolchain.components.{component}",
                f"{version} is not CUDA {target.cuda.version}",
                "pin the variant's own minor version of every JIT component",
            )
    if target.toolchain.source == "absent" and not (target.stand_in and target.toolchain.reason):
        raise clash("toolchain.source", "absent", "only a stand-in may lack it, with a reason")
    _check_sources(target, clash)


def _check_torch(target: Target, clash: Clash) -> None:
    base, _, local = target.torch.version.partition("+")
    minor = ".".join(base.split(".")[:2])
    if target.torch.index == "pytorch" and local != target.variant:
        raise clash(
            "torch.version",
            f"{target.torch.version} from the PyTorch index must end in +{target.variant}",
            f"write {base}+{target.variant}, or index = 'pypi'",
        )
    if target.torch.index == "pypi":
        if local:
            raise clash(
                "torch.version",
                f"{target.torch.version}: PyPI carries no local versions",
                "drop the +local part, or use index = 'pytorch'",
            )
        built = _PYPI_TORCH_CUDA.get(minor)
        if built != target.cuda.version:
            raise clash(
                "torch.version",
                f"PyPI's torch {base} is built for CUDA {built or 'unknown'}, not "
                f"{target.cuda.version}",
                "use index = 'pytorch' with a +cuXXX version, or another torch",
            )


def _check_sources(target: Target, clash: Clash) -> None:
    names = [s.name for s in target.sources]
    doubled = sorted({n for n in names if names.count(n) > 1})
    if doubled:
        raise clash("source.name", f"twice: {', '.join(doubled)}", "one entry for each file")
    pinned = {s.name: s for s in target.sources}
    wants: dict[str, str] = {}
    if target.torch.index == "pytorch":
        wants.update(
            torch=target.torch.version,
            torchvision=target.torch.torchvision,
            torchaudio=target.torch.torchaudio,
        )
    if target.kernels.source == "github":
        wants[target.kernels.distribution] = target.kernels.version
    if target.toolchain.source == "archives":
        wants.update(target.toolchain.components)
    for name, version in wants.items():
        source = pinned.get(name)
        if source is None:
            raise clash("source", f"no entry for {name}", f"add [[source]] name = '{name}'")
        if source.version != version:
            raise clash(
                "source.version",
                f"{name} is {source.version} there, {version} elsewhere",
                "make both the same",
            )
    for source in target.sources:
        basename = re.sub(r"%2B", "+", source.url.rsplit("/", 1)[-1], flags=re.IGNORECASE)
        if basename != source.filename:
            raise clash(
                "source.filename",
                f"{source.filename} is not the last part of its url",
                "copy the file name from the url",
            )
