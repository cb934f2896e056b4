"""The overlay as it will run: it loads, its ops equal their reference, SGLang knows DDTREE.

In a child process, since a broken torch takes its process with it, and with a bound in time.
Importing SGLang costs about 15 s on two cores, so everything is tried in one process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddtree_overlay.doctor.child import child_environment, run_child
from ddtree_overlay.doctor.image_checks import codes
from ddtree_overlay.doctor.model import Check, Code, Finding, Subject
from ddtree_overlay.doctor.model_checks.configuration import architecture
from ddtree_overlay.doctor.model_checks.source import configured
from ddtree_overlay.serve.manifest import UNKNOWN

MODULE = "ddtree_overlay.doctor.image_checks.overlay_child"
SECONDS = 240.0
"""Against a hang. Cold page cache on a slow disk: torch and SGLang are 4 GiB of files."""
KINDS: dict[str, Code] = {
    "torch": codes.EXTENSION,
    "extension": codes.EXTENSION,
    "wrong": codes.WRONG_RESULT,
    "op": codes.WRONG_RESULT,
    "registered": codes.NOT_REGISTERED,
    "sgl_kernel": codes.SGLANG_KERNELS,
    "plugin": codes.PLUGIN,
    "gpu": codes.NO_TORCH_GPU,
    "capture": codes.NO_CAPTURE,
}


def check_overlay(subject: Subject, seconds: float = SECONDS) -> Iterable[Finding]:
    """Everything about the overlay that needs torch."""
    model = configured(subject).get("model")
    command = [subject.python, "-m", MODULE, "--device", subject.device]
    command += ["--algorithm", subject.algorithm or ""]
    command += ["--architecture", (architecture(model[1]) if model else None) or ""]
    changes = {} if subject.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    said = run_child(command, child_environment(subject.environment, changes), seconds)
    message = said.messages[-1] if said.messages else None
    problems = _problems(message)
    if problems is None or message is None:
        yield codes.PROBE_FAILED.found(
            f"the trial of the overlay {said.problem or 'printed something else'}"
        )
        return
    for kind, text in problems:
        yield KINDS[kind].found(_line(kind, text))
    if said.problem is not None and not problems:
        # It had its result and then crashed, as a driver's clean-up does.
        yield codes.PROBE_FAILED.found(f"the trial of the overlay {said.problem} after its result")
    yield from _check_pins(subject, message)


def _problems(message: dict[str, Any] | None) -> list[tuple[str, str]] | None:
    """None for what is not our child's."""
    listed = message.get("problems") if message else None
    if not isinstance(listed, list):
        return None
    pairs = []
    for entry in listed:
        if not isinstance(entry, list) or len(entry) != 2 or entry[0] not in KINDS:
            return None
        pairs.append((str(entry[0]), " ".join(str(entry[1]).split())))
    return pairs


def _line(kind: str, text: str) -> str:
    opening = {
        "torch": "torch cannot be imported",
        "extension": "ddtree_overlay.ops cannot be imported",
        "registered": "DDTREE in SGLang",
        "sgl_kernel": "sgl_kernel cannot be imported",
        "plugin": "plugin",
        "op": "an op of the overlay fails",
        "gpu": "torch sees no usable GPU",
    }.get(kind)
    return f"{opening}: {text}" if opening else text


def _check_pins(subject: Subject, message: dict[str, Any]) -> Iterable[Finding]:
    for name, said, pinned in (
        ("CUDA", message.get("cuda"), subject.manifest.text("observed", "torch_cuda")),
        ("version", message.get("torch"), subject.manifest.text("observed", "torch")),
    ):
        if said is not None and pinned not in (UNKNOWN, said):
            yield codes.OTHER_CUDA.found(f"torch's {name} is {said}, the manifest says {pinned}")


CHECKS = (
    Check(
        "overlay",
        "The overlay loads, computes right, and SGLang knows DDTREE",
        (
            codes.PROBE_FAILED,
            codes.EXTENSION,
            codes.WRONG_RESULT,
            codes.NOT_REGISTERED,
            codes.OTHER_CUDA,
            codes.SGLANG_KERNELS,
            codes.PLUGIN,
            codes.NO_TORCH_GPU,
            codes.NO_CAPTURE,
        ),
        check_overlay,
        needs="image",
        slow=True,
    ),
)
