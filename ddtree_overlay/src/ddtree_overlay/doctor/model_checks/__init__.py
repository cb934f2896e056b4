"""Checks of the model's and the drafter's files: standard library only, small reads only."""

from __future__ import annotations

from ddtree_overlay.doctor.model_checks import (
    drafter,
    folder,
    hybrid,
    profile,
    shapes,
    tokenizer,
    weights,
    weights_memory,
)

CHECKS = (
    *folder.CHECKS,
    *tokenizer.CHECKS,
    *weights.CHECKS,
    *weights_memory.CHECKS,
    *shapes.CHECKS,
    *drafter.CHECKS,
    *hybrid.CHECKS,
    *profile.CHECKS,
)
