"""The optimiser of both tiny models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]


class Muon:
    """Momentum made orthogonal, for the matrices between the layers (Jordan et al., 2024).

    Each update is the nearest semi-orthogonal matrix to the momentum, by five Newton-Schulz steps:
    about half the steps of AdamW for the same loss on models this small.
    """

    MOMENTUM = 0.95
    COEFFICIENTS = (3.4445, -4.7750, 2.0315)

    def __init__(self, matrices: list[Any], rate: float) -> None:
        self.rate = rate
        by_shape: dict[tuple[int, ...], list[Any]] = {}
        for matrix in matrices:
            by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
        self.groups = [(group, torch.zeros_like(torch.stack(group))) for group in by_shape.values()]

    def step(self, factor: float) -> None:
        """Update in place at `factor` times the rate."""
        for group, momentum in self.groups:
            gradient = torch.stack([matrix.grad for matrix in group])
            momentum.lerp_(gradient, 1 - self.MOMENTUM)
            update = self._orthogonal(gradient.lerp(momentum, self.MOMENTUM))
            rows, columns = group[0].shape
            size = self.rate * factor * max(1.0, rows / columns) ** 0.5
            for matrix, change in zip(group, update, strict=True):
                matrix.data.mul_(1 - 0.1 * self.rate * factor).add_(change, alpha=-size)

    def _orthogonal(self, x: Any) -> Any:
        a, b, c = self.COEFFICIENTS
        tall = x.shape[1] > x.shape[2]
        if tall:
            x = x.transpose(1, 2)
        x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
        for _ in range(5):
            square = x @ x.transpose(1, 2)
            x = a * x + (b * square + c * square @ square) @ x
        return x.transpose(1, 2) if tall else x


def optimise(module: Any, steps: int, loss_of: Callable[[int], Any], report: str) -> None:
    """Train `module` in place on `loss_of(step)`, a scalar loss; one step per call.

    Muon for the layers' matrices, AdamW for the rest; a warm-up, then linearly to zero.
    """
    module.train()
    layers = [p for n, p in module.named_parameters() if p.ndim > 1 and "layers." in n]
    others = [p for n, p in module.named_parameters() if not (p.ndim > 1 and "layers." in n)]
    muon = Muon(layers, rate=0.02)
    adam = torch.optim.AdamW(others, lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0)
    warm_up = max(1, steps // 25)
    smooth = math.nan
    for step in range(steps):
        factor = min((step + 1) / warm_up, (steps - step) / (steps - warm_up))
        for group in adam.param_groups:
            group["lr"] = 5e-3 * factor
        loss = loss_of(step)
        module.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        muon.step(factor)
        adam.step()
        value = float(loss.detach())
        smooth = value if math.isnan(smooth) else 0.95 * smooth + 0.05 * value
        if step % max(1, steps // 8) == 0 or step == steps - 1:
            print(f"{report}: step {step} of {steps}, loss {smooth:.3f}", flush=True)
    module.eval()
