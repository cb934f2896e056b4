"""Whether a tree can be verified on the target: the hybrid gate, before anything loads."""

from __future__ import annotations

from collections.abc import Iterable

from ddtree_overlay.doctor.model import Check, Finding, Subject
from ddtree_overlay.doctor.model_checks import codes
from ddtree_overlay.doctor.model_checks.configuration import Config, architecture
from ddtree_overlay.doctor.model_checks.kinds import kind_of
from ddtree_overlay.doctor.model_checks.source import configured


def check_target(subject: Subject) -> Iterable[Finding]:
    """Nothing unless the algorithm is DDTREE."""
    found = configured(subject).get("model")
    if subject.algorithm != "DDTREE" or found is None:
        return
    yield from target_findings(
        found[0].name, found[1], subject.allow_hybrid_unsafe, subject.attention_backend
    )


def target_findings(
    name: str, config: Config, allowed: bool, backend: str | None
) -> Iterable[Finding]:
    """The same of a configuration."""
    kind = kind_of(config)
    target = f"{name} ({architecture(config)})"
    if kind.final is not None:
        yield codes.WRONG_KIND.found(f"{target} {kind.final}")
        return
    for found in filter(None, (kind.recurrent, kind.local)):
        if allowed:
            yield codes.HYBRID_ALLOWED.found(f"{target} has {found}, and the refusal is lifted")
        else:
            yield codes.HYBRID.found(
                f"{target} has {found}, for which tree verification is not proven"
            )
    if allowed and kind.local is not None and backend == "flashinfer":
        yield codes.WINDOW_BACKEND.found(f"{target} has {kind.local}, with the flashinfer backend")


CHECKS = (
    Check(
        "target-kind",
        "A tree can be verified on the target",
        (codes.WRONG_KIND, codes.HYBRID, codes.HYBRID_ALLOWED, codes.WINDOW_BACKEND),
        check_target,
        needs="model",
    ),
)
