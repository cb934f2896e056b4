"""What the resolver is asked, derived from the pins alone, and the digest of it."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.pins import SourcePin, Target


@dataclass(frozen=True)
class StubWheel:
    """Metadata of a wheel whose index the resolver need not reach."""

    filename: str
    name: str
    version: str
    sha256: str
    size: int | None
    requires: tuple[str, ...]


@dataclass(frozen=True)
class ResolveInputs:
    """One resolve, whole: the same inputs on the same index give the same lock."""

    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    overrides: tuple[str, ...]
    python: str
    platform: str
    uploaded_before: str  # RFC 3339: a bare date would mean the end of that day, local time
    stubs: tuple[StubWheel, ...]
    sglang_sha256: str

    def digest(self) -> str:
        """Hex SHA-256 over all of it; the lock's header carries it."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def pinned_versions(target: Target) -> dict[str, str]:
    """Distributions whose version the pins state, not the resolver."""
    pinned = {
        "torch": target.torch.version,
        "torchvision": target.torch.torchvision,
        "torchaudio": target.torch.torchaudio,
        "triton": target.torch.triton,
        "sglang-router": target.shared.sglang.router,
        target.kernels.distribution: target.kernels.version,
        target.cubin.nvrtc_distribution: target.cubin.nvrtc,
    }
    if target.toolchain.source == "wheels":
        pinned.update(target.toolchain.components)
    return pinned


def _stub(source: SourcePin) -> StubWheel:
    return StubWheel(
        source.filename, source.name, source.version, source.sha256, source.size, source.requires
    )


def resolve_inputs(target: Target) -> ResolveInputs:
    """The resolver's question for one target."""
    shared = target.shared
    asked = {"sglang": shared.sglang.version, **pinned_versions(target)}
    # An impossible marker is how uv is told to leave a distribution out.
    dropped = [f'{e.distribution} ; python_version < "3"' for e in target.lock.exclude]
    return ResolveInputs(
        requirements=tuple(f"{name}=={version}" for name, version in sorted(asked.items())),
        constraints=target.lock.constraints,
        overrides=(*target.lock.overrides, *dropped),
        python=shared.python.version,
        platform=shared.python.resolve_platform,
        uploaded_before=f"{shared.resolve_before}T00:00:00Z",
        stubs=tuple(_stub(s) for s in target.sources if s.kind == "wheel"),
        sglang_sha256=shared.sglang.sha256,
    )


def write_stub(stub: StubWheel, folder: Path) -> Path:
    """A wheel of metadata only, under the real wheel's file name."""
    base, version, tags = stub.filename.removesuffix(".whl").split("-", 2)
    info = f"{base}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {stub.name}", f"Version: {stub.version}"]
    metadata += [f"Requires-Dist: {line}" for line in stub.requires]
    wheel = ["Wheel-Version: 1.0", "Generator: builder.lock", "Root-Is-Purelib: false"]
    wheel.append(f"Tag: {tags}")
    path = folder / stub.filename
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        archive.writestr(f"{info}/WHEEL", "\n".join(wheel) + "\n")
        archive.writestr(f"{info}/RECORD", "")
    return path
