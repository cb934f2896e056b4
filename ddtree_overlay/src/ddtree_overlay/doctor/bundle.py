"""The support bundle: what a stranger needs to understand a host, and no secret.

Secrets are hidden twice: by the name they go under (serve/redact.py) and by their text, wherever it
turns up: the values of secret settings and variables, and what `*_FILE` variables point at.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ddtree_overlay.doctor import pci, procfs
from ddtree_overlay.doctor.child import kill, start
from ddtree_overlay.doctor.errors import BundleError
from ddtree_overlay.doctor.model import Subject
from ddtree_overlay.doctor.report import document, hardware_document
from ddtree_overlay.doctor.runner import Report
from ddtree_overlay.serve.explain import print_plan
from ddtree_overlay.serve.plan import Plan
from ddtree_overlay.serve.redact import is_secret_name, redact_environment, redact_text
from ddtree_overlay.serve.version import collect

FOLDER = "ddtree-support"
IMAGE_FILES = Path("/opt/ddtree")
_PROC = ("version", "cmdline", "meminfo", "loadavg", "driver/nvidia/version")
_PROC_SELF = ("mounts", "limits", "status", "cgroup")
# Shorter texts ("1", "true") turn up everywhere; under their own name they are hidden all the same.
_SHORTEST = 6
_LARGEST_FILE = 1 << 20
_SMI_SECONDS = 20.0
NOT_SHOWN = "(not shown)"
_SHOWN_VARIABLES = (
    *("DDTREE_", "SGLANG_", "SGL_", "NVIDIA_", "CUDA_", "NCCL_", "GLOO_", "UCX_", "NIXL_"),
    *("TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "TVM_", "TILELANG_", "QUACK_", "NUMBA_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "OUTLINES_", "XDG_", "OMP_", "MKL_"),
    *("PYTHON", "PATH", "LD_", "HOME", "USER", "HOSTNAME", "LANG", "LC_", "TZ", "TMPDIR", "CXX"),
)
_SHOWN_WORD = re.compile(r"iommu|pci|nvidia|numa|hugepage|mitigations|isolcpus|cgroup|^ro$|^rw$")


def write_bundle(path: Path, report: Report, subject: Subject, plan: Plan) -> None:
    """A tar.gz at `path`, readable by its owner only. Raises BundleError; then nothing is left."""
    secrets = secret_texts(plan, subject.environment)
    temporary: Path | None = None
    try:
        # mkstemp's files are their owner's only.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with (
            os.fdopen(handle, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for entry, text in _documents(report, subject, plan, secrets):
                _add(archive, entry, redact_text(text, secrets))
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise BundleError(
            f"{path} cannot be written: {error.strerror or error}",
            "name a file in a folder that this user may write, such as /tmp/support.tar.gz",
        ) from error


def secret_texts(plan: Plan, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Every text that must not appear."""
    found = {secret.text for secret in plan.secrets.values()}
    for name, value in environment.items():
        if is_secret_name(name):
            found.add(value)
        elif name.endswith("_FILE") and is_secret_name(name.removesuffix("_FILE")):
            text = procfs.read_text(Path(value)) or ""
            found.update({text, text.strip()})
    return tuple(text for text in found if len(text) >= _SHORTEST)


def _documents(
    report: Report, subject: Subject, plan: Plan, secrets: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    explained = io.StringIO()
    print_plan(plan, everything=True, file=explained)
    yield "explain.txt", explained.getvalue()
    yield "report.json", _json(document(report, subject.hardware))
    yield "hardware.json", _json(hardware_document(subject.hardware))
    yield "environment.json", _json(environment_document(subject.environment, secrets))
    yield "version.json", _json(collect(subject.manifest))
    yield "pci.txt", pci_listing(subject.root)
    for name in _PROC:
        text = procfs.read_text(subject.root / "proc" / name) or ""
        yield f"proc/{name}", kernel_words(text) if name == "cmdline" else text
    for name in _PROC_SELF:
        yield f"proc/self/{name}", procfs.read_text(subject.root / "proc/self" / name) or ""
    processors = procfs.read_text(subject.root / "proc/cpuinfo") or ""
    yield "proc/cpuinfo", processors.partition("\n\n")[0] + "\n"
    for path in sorted(IMAGE_FILES.glob("*.json")):
        if path.stat().st_size <= _LARGEST_FILE:
            yield f"image/{path.name}", procfs.read_text(path) or ""
    hung = subject.hardware.error_kind == "hung"
    yield "nvidia-smi.txt", "not asked: NVML does not answer\n" if hung else _nvidia_smi()


def environment_document(
    environment: Mapping[str, str], secrets: tuple[str, ...]
) -> dict[str, str]:
    """All names; values only of variables that somebody who helps may need: what else an operator
    passes in may hold a secret under a name of his own."""
    shown = redact_environment(environment, secrets)
    return {
        name: value if name.startswith(_SHOWN_VARIABLES) else NOT_SHOWN
        for name, value in shown.items()
    }


def kernel_words(command_line: str) -> str:
    """The kernel's command line, with values of what concerns PCIe, IOMMU, memory and drivers."""
    words = []
    for word in command_line.split():
        name, equals, _ = word.partition("=")
        words.append(word if not equals or _SHOWN_WORD.search(name) else f"{name}={NOT_SHOWN}")
    return " ".join(words) + "\n"


def pci_listing(root: Path) -> str:
    """NVIDIA devices and the bridges above them, a line each: class, ids, NUMA node, link, ACS."""
    lines = []
    for gpu in pci.nvidia_gpus(root):
        for address in [*reversed(pci.bridges_above(root, gpu)), gpu]:
            folder = pci.device_folder(root, address)
            facts = [
                f"{name}={(procfs.read_text(folder / name) or '?').strip()}"
                for name in (
                    *("class", "vendor", "device", "numa_node", "current_link_speed"),
                    *("current_link_width", "max_link_width"),
                )
            ]
            acs = "" if address == gpu else f" acs={pci.acs_state(root, address).value}"
            lines.append(f"{address} {' '.join(facts)}{acs}")
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _nvidia_smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "nvidia-smi is not here\n"
    with tempfile.TemporaryFile() as out:
        try:
            process = start([program, "-q"], os.environ, out, out)
        except OSError as error:
            return f"nvidia-smi cannot be started: {error}\n"
        ended = ""
        try:
            process.wait(_SMI_SECONDS)
        except subprocess.TimeoutExpired:
            ended = f"\nnvidia-smi gave no answer within {_SMI_SECONDS:g} s\n"
        finally:
            kill(process)
        out.seek(0)
        return out.read().decode("utf-8", "replace") + ended


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode("utf-8")
    entry = tarfile.TarInfo(f"{FOLDER}/{name}")
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))
