"""README's table of images: what each is made from, and what its committed receipts show.

The receipts say which build they are of; the tree has mostly moved on since.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from builder.pins import Target, all_targets
from builder.project import Project
from builder.qualification import why_not_shown
from builder.receipts import Receipt, read_committed

NO = "**no**"
_SOURCES = {
    "download.pytorch.org": "the PyTorch index",
    "github.com": "GitHub",
    "developer.download.nvidia.com": "NVIDIA",
}
_HEAD = ("image", "torch", "CUDA", "from", "built", "CPU-verified", "GPU-qualified")


def images_table(project: Project) -> str:
    """Markdown, a row for each target. Raises EvidenceError for a damaged receipt."""
    rows = [_HEAD, ("---",) * len(_HEAD)]
    rows += [
        _row(target, read_committed(project, target.name))
        for target in sorted(all_targets(project), key=lambda t: (t.stand_in, t.name))
    ]
    return "\n".join(_line(row) for row in rows)


def _line(cells: tuple[str, ...]) -> str:
    if cells[0] == "---":
        return "|" + "|".join(cells) + "|"
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _row(target: Target, receipts: dict[str, Receipt]) -> tuple[str, ...]:
    return (
        f"`{target.name}`",
        target.torch.version,
        target.cuda.version
        if target.stand_in
        else f"{target.cuda.version}, driver >= {target.cuda.driver_floor}",
        _origin(target),
        _built(receipts.get("built")),
        _verified(receipts.get("cpu-verified")),
        "never: its `serve` refuses a GPU"
        if target.stand_in
        else _qualified(receipts.get("gpu-qualified")),
    )


def _origin(target: Target) -> str:
    hosts = [urlsplit(source.url).hostname or source.url for source in target.sources]
    return ", ".join(["PyPI", *dict.fromkeys(_SOURCES.get(host, host) for host in hosts)])


def _day(receipt: Receipt) -> str:
    return receipt.date.partition("T")[0]


def _built(receipt: Receipt | None) -> str:
    if receipt is None or why_not_shown(receipt):
        return NO
    commit, dirty, _ = receipt.revision.partition("-dirty")
    size = receipt.image.size_bytes / 2**30
    return (
        f"{_day(receipt)}: build `{receipt.build_id}` of `{commit[:10]}{dirty}`, {size:.2f} GiB, "
        f"{receipt.suites['audit'].passed} audit rules"
    )


def _verified(receipt: Receipt | None) -> str:
    if receipt is None or why_not_shown(receipt):
        return NO
    total = receipt.total
    return f"{_day(receipt)}: {total.passed} tests passed, {total.skipped} skipped"


def _qualified(receipt: Receipt | None) -> str:
    if receipt is None or why_not_shown(receipt):
        return NO
    gpus = receipt.machine["gpus"]
    names = ", ".join(dict.fromkeys(f"{g['name']} ({g['architecture']})" for g in gpus))
    return f"{_day(receipt)}: self-test on {receipt.machine['tp']} of {len(gpus)} x {names}"
