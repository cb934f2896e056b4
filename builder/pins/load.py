"""Reading the pin files; every refusal names file, key and reason."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import ValidationError

from builder.errors import PinConflictError, PinFileError, UnknownVariantError
from builder.pins.rules import check_target
from builder.pins.schema import SharedPins, VariantPins
from builder.pins.target import Target
from builder.project import Project

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


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
    # A misspelt key shows up twice, as missing and as unknown: the spelling is what to mend.
    errors = exc.errors()
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
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
