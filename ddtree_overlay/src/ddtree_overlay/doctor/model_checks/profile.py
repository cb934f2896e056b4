"""The profile in use against the kind of model for which its numbers were computed."""

from __future__ import annotations

from collections.abc import Iterable

from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject
from ddtree_overlay.doctor.model_checks.configuration import experts, text_config
from ddtree_overlay.doctor.model_checks.source import configured

OTHER_MODEL = Code(
    "PRF002",
    Severity.WARNING,
    "The profile is made for another kind of model: it may serve, and its numbers do not fit.",
    "name the profile that is made for this model (ddtree profiles), or name none: then one is "
    "chosen",
)


def check_model(subject: Subject) -> Iterable[Finding]:
    """Dense or a mixture of experts."""
    found = configured(subject).get("model")
    wanted = subject.requires.model
    if found is None or wanted == "any":
        return
    count = experts(text_config(found[1]))
    if (wanted == "moe") != bool(count):
        has = f"{count} experts" if count else "no experts"
        yield OTHER_MODEL.found(
            f"profile {subject.profile} is made for {wanted} models, and this one has {has}"
        )


CHECKS = (
    Check(
        "profile-model",
        "The profile is made for this kind of model",
        (OTHER_MODEL,),
        check_model,
        needs="model",
    ),
)
