"""What one try of the all-reduce came to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """`problem`: a verb phrase ("hung: ..."), None when all was right; `wrong`: it is of values.
    `speed`: latency of the smallest size and bus bandwidth of the largest, in words."""

    problem: str | None
    wrong: bool = False
    speed: str = ""

    @property
    def right(self) -> bool:
        """Whether all ranks had right values in time."""
        return self.problem is None

    @classmethod
    def of(cls, world: int, seconds: dict[int, float]) -> Trial:
        """From the time of each size in bytes. Bus bandwidth as nccl-tests states it:
        2 (n - 1) / n times the bytes over the time."""
        small, large = min(seconds), max(seconds)
        bandwidth = large / seconds[large] * 2 * (world - 1) / world
        return cls(
            None,
            speed=f"{world} ranks, {seconds[small] * 1e6:.0f} us for {_size(small)}, bus bandwidth "
            f"{bandwidth / 1e9:.1f} GB/s at {_size(large)}",
        )


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
