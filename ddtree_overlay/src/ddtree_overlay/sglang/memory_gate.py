"""What a tree costs in device memory, and the refusal of one that does not fit.

Plain numbers in and out: neither torch nor SGLang is imported. With width = budget + 1 and `batch`
requests running at most, of `context` tokens at most:

    mask     batch x width x (context + width) bytes: every node's row over prefix and tree; and
             graph_batch x the same again, the buffer that decode CUDA graphs read
    indices  graph_batch x (width + block size) x context x 4 (flashinfer) or 8 (triton) bytes: both
             backends size their index buffer by tokens, the target's and the drafter's
    splits   graph_batch x width x heads x KV splits x (head size + 1) x 4 bytes (triton): partial
             results of its decode, sized by tokens too
    logits   batch x width x vocabulary x 4 bytes: fp32, every node of every request, on every rank
    sampler  at most 1 GiB (acceptance.SAMPLER_BYTES): what drawing for all nodes of some requests
             at once takes beside their logits
    KV       batch x 2 x max(width, block size) slots x bytes per token of target and drafter: what
             the scheduler holds ahead of each request (overlap scheduling keeps two rounds)

The last is taken out of the KV pool, the others are scratch beside weights and KV. The sampler's
is not counted against the device: SGLang's own sampler takes as much for a batch without a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ddtree_overlay.sglang.defaults import MAX_BUDGET
from ddtree_overlay.sglang.refusal import refusal

SCRATCH_FRACTION = 0.05
"""Of the device's memory: half of what SGLang leaves beside weights and KV pool on a large GPU (10
of 96 GiB); the other half is for activations and graphs."""
RESERVE_FRACTION = 0.20
"""Of the device's memory: KV slots that hold no accepted token yet."""
_INDEX_BYTES = {"flashinfer": 4, "triton": 8}
_MASK_LIMITS = {"flashinfer": 2**31, "triton": 2**31}
"""FlashInfer's offsets into the mask are int32, and `ddtree::place_tree` writes no larger one."""


@dataclass(frozen=True)
class MemoryInputs:
    """Per device. `graph_batch`: largest captured decode batch, 0 without graphs.
    `device_bytes`: None where it is not known. `kv_slots`: --max-total-tokens, None if unset."""

    block_size: int
    batch: int
    graph_batch: int
    context: int
    vocab_size: int
    backend: str
    kv_bytes_per_token: int
    device_bytes: int | None
    kv_slots: int | None = None
    split_bytes_per_token: int = 0


@dataclass(frozen=True)
class MemoryUse:
    """Bytes, except `slots`: KV slots per request."""

    mask: int
    indices: int
    splits: int
    logits: int
    reserve: int
    slots: int

    @property
    def scratch(self) -> int:
        return self.mask + self.indices + self.splits + self.logits


def memory_use(inputs: MemoryInputs, budget: int) -> MemoryUse:
    """What a tree of `budget` nodes costs."""
    width = budget + 1
    slots = 2 * max(width, inputs.block_size)
    captured = min(inputs.graph_batch, inputs.batch)
    per_index = _INDEX_BYTES.get(inputs.backend, 0)
    return MemoryUse(
        mask=mask_elements(inputs, budget) + captured * width * (inputs.context + width),
        indices=captured * (width + inputs.block_size) * inputs.context * per_index,
        splits=captured * width * inputs.split_bytes_per_token,
        logits=inputs.batch * width * inputs.vocab_size * 4,
        reserve=inputs.batch * slots * inputs.kv_bytes_per_token,
        slots=slots,
    )


def mask_elements(inputs: MemoryInputs, budget: int) -> int:
    """Of the mask of one round."""
    return inputs.batch * (budget + 1) * (inputs.context + budget + 1)


def fits(inputs: MemoryInputs, budget: int) -> bool:
    """Whether a tree of `budget` nodes fits; memory counts only where the device's is known."""
    use = memory_use(inputs, budget)
    if inputs.kv_slots is not None and use.slots >= inputs.kv_slots:
        return False
    limit = _MASK_LIMITS.get(inputs.backend)
    if limit is not None and mask_elements(inputs, budget) >= limit:
        return False
    if inputs.device_bytes is None:
        return True
    return (
        use.scratch <= SCRATCH_FRACTION * inputs.device_bytes
        and use.reserve <= RESERVE_FRACTION * inputs.device_bytes
    )


def largest_budget(inputs: MemoryInputs) -> int:
    """The largest budget that fits, 0 if none does."""
    return _largest(MAX_BUDGET, lambda budget: fits(inputs, budget))


def largest_batch(inputs: MemoryInputs, budget: int) -> int:
    """The most running requests at which `budget` fits, 0 if none."""
    return _largest(inputs.batch, lambda batch: fits(replace(inputs, batch=batch), budget))


def describe(inputs: MemoryInputs, budget: int) -> str:
    """One line with every number in bytes."""
    use = memory_use(inputs, budget)
    return (
        f"DDTREE memory at {inputs.batch} running requests of {inputs.context} tokens: mask "
        f"{use.mask} bytes, attention indices {use.indices} bytes, attention splits {use.splits} "
        f"bytes, verify logits {use.logits} bytes, {use.slots} KV slots per request held ahead "
        f"({use.reserve} bytes)."
    )


def check_memory(inputs: MemoryInputs, budget: int) -> None:
    """Raises ValueError where `budget` does not fit, with a budget and a batch that would."""
    if fits(inputs, budget):
        return
    use = memory_use(inputs, budget)
    if inputs.kv_slots is not None and use.slots >= inputs.kv_slots:
        raise refusal(
            "speculative_ddtree_budget",
            budget,
            f"holds {use.slots} KV slots per request ahead, and --max-total-tokens is "
            f"{inputs.kv_slots}",
            f"raise --max-total-tokens above {use.slots}, or lower the budget",
        )
    limit = _MASK_LIMITS.get(inputs.backend)
    if limit is not None and mask_elements(inputs, budget) >= limit:
        raise refusal(
            "speculative_ddtree_budget",
            budget,
            f"needs a mask of {mask_elements(inputs, budget)} elements at {inputs.batch} running "
            f"requests of {inputs.context} tokens, and {inputs.backend} counts only {limit - 1}",
            _remedy(inputs, budget),
        )
    device = inputs.device_bytes or 0
    raise refusal(
        "speculative_ddtree_budget",
        budget,
        f"needs {use.scratch} bytes of scratch at {inputs.batch} running requests of "
        f"{inputs.context} tokens (mask {use.mask}, attention indices {use.indices}, attention "
        f"splits {use.splits}, verify logits {use.logits}) of at most "
        f"{int(SCRATCH_FRACTION * device)} ({SCRATCH_FRACTION:.0%} of the device's {device}), "
        f"and {use.reserve} bytes of KV held ahead of at most {int(RESERVE_FRACTION * device)} "
        f"({RESERVE_FRACTION:.0%})",
        _remedy(inputs, budget),
    )


def _remedy(inputs: MemoryInputs, budget: int) -> str:
    ways = []
    smaller, fewer = largest_budget(inputs), largest_batch(inputs, budget)
    if smaller:
        ways.append(f"--speculative-ddtree-budget {smaller}")
    if fewer:
        ways.append(f"--max-running-requests {fewer}")
    ways.append("a shorter --context-length")
    return "use " + ", or ".join(ways)


def _largest(top: int, holds: Callable[[int], bool]) -> int:
    # Bytes grow with budget and with batch, so what fits is a prefix of 1..top.
    low, high = 0, top
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
