"""What just-in-time compilation needs: FlashInfer, SGLang and Triton build kernels in service."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ddtree_overlay.doctor.child import child_environment
from ddtree_overlay.doctor.image_checks import codes
from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject
from ddtree_overlay.serve.manifest import UNKNOWN

SECONDS = 20.0
_RELEASE = re.compile(r"release (\d+\.\d+)")
_HEADERS = ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h")


def check_toolchain(subject: Subject) -> Iterable[Finding]:
    """g++, ninja, nvcc of the image's CUDA with headers and runtime, Triton's ptxas. Only warnings
    for a CPU, for which little is compiled."""
    for finding in _findings(subject):
        soften = subject.device != "cuda" and finding.severity is Severity.ERROR
        yield replace(finding, severity=Severity.WARNING) if soften else finding


def _findings(subject: Subject) -> Iterable[Finding]:
    path = subject.environment.get("PATH", os.defpath)
    compilers = [subject.environment.get("CXX") or "g++", "c++"]
    yield from _check_runs(codes.COMPILER, compilers, "g++", subject.environment)
    yield from _check_runs(codes.NINJA, ["ninja"], "ninja", subject.environment)
    if subject.manifest.text("pins", "toolchain", "source") == "absent":
        yield codes.STAND_IN.found("a stand-in image, without nvcc")
        return
    home = cuda_home(subject.environment)
    nvcc = shutil.which("nvcc", path=path)
    if home is not None and (home / "bin" / "nvcc").exists():
        nvcc = str(home / "bin" / "nvcc")
    if nvcc is None:
        yield codes.NVCC.found(f"no nvcc in CUDA_HOME ({home}) or on PATH")
    else:
        yield from _check_nvcc(nvcc, subject)
        yield from _check_headers(home or Path(nvcc).resolve().parent.parent)
    yield from check_ptxas(_triton(), subject.environment)


def cuda_home(environment: Mapping[str, str]) -> Path | None:
    """CUDA_HOME, else CUDA_PATH, as torch's and FlashInfer's builders look."""
    given = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    return Path(given) if given else None


def check_ptxas(triton: Path | None, environment: Mapping[str, str]) -> Iterable[Finding]:
    """Every ptxas in Triton's folder runs, or the one that TRITON_PTXAS_PATH names."""
    own = environment.get("TRITON_PTXAS_PATH")
    if own:
        found = [Path(own)]
    elif triton is None:
        return  # no Triton: the overlay check says what is missing
    else:
        found = sorted((triton / "backends" / "nvidia" / "bin").glob("ptxas*"))
    if not found:
        yield codes.TRITON_PTXAS.found(f"no ptxas below {triton}")
    for ptxas in found:
        problem = _run([str(ptxas), "--version"], environment)[1]
        if problem:
            yield codes.TRITON_PTXAS.found(f"{ptxas} {problem}")


def _check_runs(
    code: Code, names: list[str], wanted: str, environment: Mapping[str, str]
) -> Iterable[Finding]:
    path = environment.get("PATH", os.defpath)
    found = next(filter(None, (shutil.which(name, path=path) for name in names)), None)
    if found is None:
        yield code.found(f"no {wanted} on PATH ({path})")
        return
    problem = _run([found, "--version"], environment)[1]
    if problem:
        yield code.found(f"{found} {problem}")


def _check_nvcc(nvcc: str, subject: Subject) -> Iterable[Finding]:
    said, problem = _run([nvcc, "--version"], subject.environment)
    if problem:
        yield codes.NVCC.found(f"{nvcc} {problem}")
        return
    release = _RELEASE.search(said)
    pinned = subject.manifest.text("pins", "cuda", "version")
    if release is None:
        yield codes.NVCC.found(f"{nvcc} --version states no release")
    elif pinned != UNKNOWN and release[1] != pinned:
        yield codes.OTHER_NVCC.found(f"{nvcc} is of CUDA {release[1]}, the image of {pinned}")


def _check_headers(home: Path) -> Iterable[Finding]:
    folders = [home / "include", *(home / "targets").glob("*/include")]
    missing = [
        name for name in _HEADERS if not any((folder / name).is_file() for folder in folders)
    ]
    if missing:
        yield codes.HEADERS.found(f"{home} has no {', '.join(missing)}")
    libraries = [
        file for folder in ("lib", "lib64") for file in (home / folder).glob("libcudart*")
    ] + [*(home / "targets").glob("*/lib/libcudart*")]
    if not libraries:
        yield codes.HEADERS.found(f"{home} has no libcudart")


def _run(command: list[str], environment: Mapping[str, str]) -> tuple[str, str | None]:
    """(what it printed, what went wrong)."""
    try:
        ran = subprocess.run(
            command,
            env=child_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"gave no answer within {SECONDS:g} s"
    except OSError as error:
        return "", f"cannot be started ({error.strerror})"
    if ran.returncode:
        return "", f"ended with exit code {ran.returncode}"
    return ran.stdout.decode("utf-8", "replace"), None


def _triton() -> Path | None:
    try:
        spec = importlib.util.find_spec("triton")
    except (ImportError, ValueError):
        return None
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


CHECKS = (
    Check(
        "toolchain",
        "What compiles kernels at run time is there",
        (
            codes.COMPILER,
            codes.NINJA,
            codes.NVCC,
            codes.OTHER_NVCC,
            codes.HEADERS,
            codes.TRITON_PTXAS,
            codes.STAND_IN,
        ),
        check_toolchain,
        needs="image",
        seconds=6 * SECONDS,
    ),
)
