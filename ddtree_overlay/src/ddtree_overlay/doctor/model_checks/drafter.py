"""Whether the drafter fits the target: the rules of the server's gate, before torch is loaded."""

from __future__ import annotations

from collections.abc import Iterable

from ddtree_overlay.doctor.model import Check, Finding, Severity, Subject
from ddtree_overlay.doctor.model_checks import codes
from ddtree_overlay.doctor.model_checks.configuration import Config, number, text_config
from ddtree_overlay.doctor.model_checks.source import configured
from ddtree_overlay.sglang.drafter_fields import as_object, parse
from ddtree_overlay.sglang.drafter_gate import TargetShape, check_drafter
from ddtree_overlay.sglang.refusal import RefusalError

DFLASH_LIKE = frozenset({"DDTREE", "DFLASH"})
_WITH_DRAFTER = DFLASH_LIKE | {"EAGLE", "EAGLE3", "DSPARK", "STANDALONE", "NEXTN"}
_OWN_HEADS = frozenset({"EAGLE", "NEXTN"})
"""May draft with layers of the target itself."""


def check_fitness(subject: Subject) -> Iterable[Finding]:
    """A drafter where one is needed, and DFlash's rules for DDTREE and DFLASH."""
    algorithm = subject.algorithm
    if not subject.draft_model:
        if algorithm in _WITH_DRAFTER - _OWN_HEADS:
            yield codes.NO_DRAFTER.found(f"--speculative-algorithm {algorithm} without a drafter")
        return
    if algorithm not in _WITH_DRAFTER:
        yield codes.IDLE_DRAFTER.found(
            f"the drafter {subject.draft_model} with "
            + (f"--speculative-algorithm {algorithm}" if algorithm else "no speculative algorithm")
        )
        return
    found = configured(subject)
    if algorithm not in DFLASH_LIKE or {"model", "draft model"} - set(found):
        return
    target, draft = found["model"][1], found["draft model"][1]
    for finding in fitness_findings(
        subject.draft_model, draft, target, subject.tp, subject.block_size
    ):
        if algorithm == "DDTREE":
            yield finding
        else:
            # SGLang's own algorithm refuses less, and what it refuses is its own to say.
            yield codes.UNFIT.found(finding.what, remedy=finding.remedy, severity=Severity.WARNING)


def fitness_findings(
    path: str, draft: Config, target: Config, tp: int, block_size: int | None
) -> Iterable[Finding]:
    """The first rule that the pair breaks."""
    text = text_config(target)
    sizes = [number(text, key) for key in ("hidden_size", "vocab_size", "num_hidden_layers")]
    hidden, vocabulary, layers = sizes
    if hidden is None or vocabulary is None or layers is None:
        return  # what a class's defaults fill in is the server's to compare
    try:
        check_drafter(
            as_object(draft), path, block_size, TargetShape(hidden, vocabulary, layers, tp), parse
        )
    except RefusalError as refused:
        yield codes.UNFIT.found(refused.what, remedy=refused.remedy)
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        yield codes.UNFIT.found(f"the drafter {path} has an incomplete config.json ({error})")


CHECKS = (
    Check(
        "drafter",
        "The drafter fits the target",
        (codes.UNFIT, codes.NO_DRAFTER, codes.IDLE_DRAFTER),
        check_fitness,
        needs="model",
    ),
)
