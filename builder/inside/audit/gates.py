"""ABI: cuDNN and NCCL are what torch was built with, or newer within the same major.

torch refuses a cuDNN that is older than the one it was built with, and fails in NCCL calls that an
older library has not. Its metadata pins both; an override of the pins may only go up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.inside.audit.model import Context, Finding
from builder.inside.distributions import Distribution

_NCCL_SAYS = re.compile(rb"NCCL version ([0-9.]+)\+cuda([0-9]+)\.")
_CUDNN_SAYS = re.compile(r"^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) (\d+)", re.MULTILINE)
_REMEDY = "lock what torch's metadata asks for, or a newer release of the same major"


def cudnn(context: Context) -> Iterator[Finding]:
    """ABI005: what torch requires against the package, and the package against its own header."""
    installed, findings = _gate(context, "ABI005", "cudnn")
    yield from findings
    if installed is None:
        return
    folder = context.files.site_path / "nvidia/cudnn/include"
    # cudnn_version.h may only include the one of its major.
    texts = [path.read_text("utf-8", "replace") for path in folder.glob("cudnn_version*.h")]
    numbers = dict(pair for text in texts for pair in _CUDNN_SAYS.findall(text))
    said = ".".join(numbers.get(key, "?") for key in ("MAJOR", "MINOR", "PATCHLEVEL"))
    if not f"{installed.version}.".startswith(f"{said}."):
        name = f"{context.files.site}/nvidia/cudnn/include/cudnn_version.h"
        text = f"says {said}, the package is {installed.version}"
        yield Finding("ABI005", name, text, "install cuDNN again")


def nccl(context: Context) -> Iterator[Finding]:
    """ABI006: the same for NCCL, whose library says its version and its CUDA."""
    installed, findings = _gate(context, "ABI006", "nccl")
    yield from findings
    if installed is None:
        return
    name = f"{context.files.site}/nvidia/nccl/lib/libnccl.so.2"
    path = context.files.root / name
    said = _NCCL_SAYS.search(path.read_bytes()) if path.is_file() else None
    if said is None:
        yield Finding("ABI006", name, "does not say its version", "install NCCL again")
        return
    version, major = said.group(1).decode(), int(said.group(2))
    if version != installed.version:
        text = f"says {version}, the package is {installed.version}"
        yield Finding("ABI006", name, text, "install NCCL again")
    if major != context.target.cuda_major:
        text = f"is built for CUDA {major}, the image is CUDA {context.target.cuda_major}"
        yield Finding("ABI006", name, text, _REMEDY)


def _gate(context: Context, code: str, library: str) -> tuple[Distribution | None, list[Finding]]:
    """The installed package, and what is wrong with its version."""
    context.count(code)
    torch = context.files.distribution("torch")
    pinned = re.compile(rf"(nvidia-{library}-cu\d+)\s*(?:==|>=)\s*([0-9.]+)")
    asked = (
        next((m for text in torch.requires if (m := pinned.match(text))), None) if torch else None
    )
    if asked is None:
        text = f"torch's metadata asks for no {library}: nothing can be compared"
        return None, [
            Finding(code, "torch", text, "look how this torch pins it, and mend the rule")
        ]
    name, wanted = asked.groups()
    installed = context.files.distribution(name)
    if installed is None:
        return None, [Finding(code, name, f"is not installed, torch needs {wanted}", _REMEDY)]
    context.notes.setdefault("gates", {})[library] = {
        "torch_requires": wanted,
        "installed": installed.version,
    }
    have, want = _numbers(installed.version), _numbers(wanted)
    if have[0] != want[0]:
        text = f"{installed.version} is of another major than {wanted}, which torch needs"
        return installed, [Finding(code, name, text, _REMEDY)]
    if have < want:
        text = f"{installed.version} is older than {wanted}, with which torch was built"
        return installed, [Finding(code, name, text, _REMEDY)]
    return installed, []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
