"""Checks of what the image holds, and of the GPUs as its libraries use them."""

from __future__ import annotations

from ddtree_overlay.doctor import collective
from ddtree_overlay.doctor.image_checks import overlay, toolchain

CHECKS = (*toolchain.CHECKS, *overlay.CHECKS, *collective.CHECKS)
