"""Wheels from the package index, through pip: its index, proxy and CA settings apply as they are.

Every wheel is named with its SHA-256, so that it does not matter which index or mirror serves it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from builder import console
from builder.errors import HashMismatchError, SourceUnreachableError, WheelhouseError
from builder.files import sha256_file
from builder.pins import PythonPins, SharedPins
from builder.proc import run
from builder.project import Project

# PEP 600 platform tags go down to glibc 2.5; pip expands none of them by itself.
_OLDEST_GLIBC = 5
_LEGACY = ("manylinux2014", "manylinux2010", "manylinux1")
_NOT_THE_HASH = "DO NOT MATCH THE HASHES"
_NO_ROUTE = re.compile(
    r"(Connection refused|Name or service not known|Temporary failure in name resolution"
    r"|Read timed out|timed out|ProxyError|SSLError|CERTIFICATE_VERIFY_FAILED"
    r"|Network is unreachable|\b[45]\d\d (?:Client|Server) Error)"
)


def wheel_platforms(python: PythonPins) -> list[str]:
    """Platform tags the image accepts, best first (`manylinux_2_36_x86_64` ... `manylinux1`)."""
    match = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", python.wheel_platform)
    if match is None:
        return [python.wheel_platform]
    newest, arch = int(match[1]), match[2]
    modern = [f"manylinux_2_{minor}_{arch}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
    return modern + [f"{name}_{arch}" for name in _LEGACY]


def _pip_environment(python: PythonPins) -> dict[str, str]:
    """The image's platform as pip's variables: 35 tags would bury the echoed command."""
    return {
        **os.environ,
        "PIP_IMPLEMENTATION": "cp",
        "PIP_PYTHON_VERSION": python.version,
        "PIP_ABI": f"{python.abi} abi3 none",
        "PIP_PLATFORM": " ".join(wheel_platforms(python)),
        # A host's constraints may cap a package that the lock pins; hashes decide here.
        "PIP_CONSTRAINT": os.devnull,
    }


def requirement(name: str, version: str, hashes: Iterable[str]) -> str:
    """One line of a hashed requirements file; `hashes` are hex SHA-256."""
    return f"{name}=={version} " + " ".join(f"--hash=sha256:{digest}" for digest in hashes)


def pip_download(requirements: list[str], dest: Path, python: PythonPins, *, what: str) -> None:
    """Fetch the named wheels for the image's platform (not the host's) into `dest`.

    Raises HashMismatchError when the index serves other bytes, SourceUnreachableError when it
    does not answer or has no such file. `what` names the set in messages.
    """
    dest.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ddtree-pip-") as scratch:
        listing = Path(scratch) / "requirements.txt"
        listing.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        done = run(
            [
                *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check"),
                *("--no-input", "--quiet", "--no-deps", "--require-hashes", "--retries", "2"),
                *("--only-binary", ":all:"),
                *("--dest", str(dest), "--requirement", str(listing)),
            ],
            env=_pip_environment(python),
            capture=True,
        )
    if done.returncode == 0:
        return
    said = done.stderr + done.stdout
    if _NOT_THE_HASH in said:
        raise HashMismatchError(
            f"{what}: the index serves other bytes than the pinned ones{_culprit(said)}",
            "compare the index or mirror that pip uses with the pinned hash; never relax the pin",
        )
    raise SourceUnreachableError(
        f"{what}: {_reason(said)}",
        "check pip's index, proxy and CA settings (`pip config list`), "
        "or build with --wheelhouse DIR filled elsewhere by `build.py fetch`",
    )


def _culprit(said: str) -> str:
    match = re.search(r"^\s+(\S+==\S+|\S+) from (\S+)", said, flags=re.MULTILINE)
    return f" ({match[1]})" if match else ""


def _reason(said: str) -> str:
    """The line of pip's output that says most: a network failure before its consequence."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for line in lines:
        if found := _NO_ROUTE.search(line):
            return f"the package index does not answer ({found[1]})"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return errors[-1] if errors else "pip failed without saying why"


def _kept(folder: Path, sha256: str) -> Path | None:
    """The cached wheel of that hash, unless it has rotted."""
    for wheel in sorted(folder.glob("*.whl")):
        if sha256_file(wheel) == sha256:
            return wheel
        wheel.unlink()
    return None


def _from_wheelhouse(wheelhouse: Path, name: str, version: str, sha256: str) -> Path:
    stem = re.sub(r"[-_.]+", "_", name)
    found = sorted(wheelhouse.glob(f"{stem}-{version}-*.whl"))
    for wheel in found:
        if sha256_file(wheel) == sha256:
            return wheel
    if found:
        raise HashMismatchError(
            f"{found[0]}: not the pinned {name} {version}",
            "delete it and run `build.py fetch` again",
        )
    raise WheelhouseError(
        f"{wheelhouse}: no wheel of {name} {version}", "fill it with `build.py fetch --to DIR`"
    )


def pinned_wheel(
    project: Project,
    python: PythonPins,
    *,
    name: str,
    version: str,
    sha256: str,
    wheelhouse: Path | None = None,
) -> Path:
    """One wheel by hash: from the wheelhouse, the cache (`wheels/<sha256>/`) or the index."""
    if wheelhouse is not None:
        return _from_wheelhouse(wheelhouse, name, version, sha256)
    folder = project.cache / "wheels" / sha256
    if (kept := _kept(folder, sha256)) is not None:
        return kept
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".part-") as scratch:
        line = requirement(name, version, [sha256])
        with console.step(f"fetching {name} {version} by hash"):
            pip_download([line], Path(scratch), python, what=f"{name} {version}")
        (arrived,) = Path(scratch).glob("*.whl")
        if sha256_file(arrived) != sha256:
            raise HashMismatchError(
                f"{arrived.name}: not the pinned {name} {version}", "check the index that pip uses"
            )
        folder.mkdir(exist_ok=True)
        return arrived.replace(folder / arrived.name)


def fetch_sglang_wheel(
    project: Project, shared: SharedPins, wheelhouse: Path | None = None
) -> Path:
    """The unpatched SGLang wheel. Raises HashMismatchError, SourceUnreachableError (index) or
    WheelhouseError (with `wheelhouse`, which is then the only place looked at)."""
    return pinned_wheel(
        project,
        shared.python,
        name="sglang",
        version=shared.sglang.version,
        sha256=shared.sglang.sha256,
        wheelhouse=wheelhouse,
    )


def builder_tools(
    project: Project, shared: SharedPins, wheelhouse: Path | None = None
) -> dict[str, Path]:
    """Wheels of the tools that run inside image stages: uv, pyelftools."""
    return {
        name: pinned_wheel(
            project,
            shared.python,
            name=name,
            version=version,
            sha256=sha256,
            wheelhouse=wheelhouse,
        )
        for name, version, sha256 in tool_pins(shared)
    }


def tool_pins(shared: SharedPins) -> list[tuple[str, str, str]]:
    """(name, version, SHA-256) of each tool pin."""
    tools = shared.tools
    pins = {"uv": tools.uv, "pyelftools": tools.pyelftools}
    return [(name, pin.version, pin.sha256) for name, pin in pins.items()]
