"""Checks of the model's and the drafter's files: standard library only, small reads only."""

from __future__ import annotations

from ddtree_overlay.doctor.model_checks import drafter, folder, hybrid, shapes, tokenizer, weights

CHECKS = (
    *folder.CHECKS,
    *tokenizer.CHECKS,
    *weights.CHECKS,
    *shapes.CHECKS,
    *drafter.CHECKS,
    *hybrid.CHECKS,
)
