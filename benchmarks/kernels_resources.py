"""What the compiled kernels of an installed wheel use, against sm_120's limits.

kernels.json gives what ptxas reported; dynamic shared memory follows from the launch and is taken
from the same headers that the launches use, compiled here with g++.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

CSRC = Path(__file__).resolve().parent.parent / "ddtree_overlay" / "csrc"
SHARED_LIMIT = 99 * 1024  # bytes a block on sm_120
# Of each entry that takes dynamic shared memory: the header, and the bytes at the largest shape
# that DDTREE lets through: blocks of 64, a top-k of 64, budgets of 1024.
SHARED = {
    "ddtree_build_tree": ("tree_core.h", "Workspace::bytes(63, 64, 1024)"),
    "ddtree_walk_tree": ("walk_core.h", "WalkArgs::bytes(1025, 64)"),
    "ddtree_walk_greedy": ("walk_core.h", "kWalkShared"),
    "ddtree_argmax_rows": ("walk_core.h", "kRowShared"),
    "ddtree_rank_shard": ("rank_core.h", "sizeof(RankShared)"),
    "ddtree_merge_shards": ("rank_core.h", "sizeof(MergeShared)"),
}


def dynamic_shared(csrc: Path = CSRC) -> dict[str, int]:
    """Bytes by entry. Raises subprocess.CalledProcessError where g++ refuses the headers."""
    headers = sorted({header for header, _ in SHARED.values()})
    prints = [
        f'  std::printf("{entry} %ld\\n", static_cast<long>({value}));'
        for entry, (_, value) in SHARED.items()
    ]
    program = [
        *("#include <cstdio>", *(f'#include "{header}"' for header in headers)),
        *("using namespace ddtree;", "int main() {", *prints, "}", ""),
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "shared.cpp", Path(folder) / "shared"
        source.write_text("\n".join(program))
        subprocess.run(
            ["g++", "-std=c++20", "-w", f"-I{csrc}", str(source), "-o", str(binary)], check=True
        )
        ran = subprocess.run([str(binary)], check=True, capture_output=True, text=True)
    return {name: int(size) for name, size in map(str.split, ran.stdout.splitlines())}


def resource_table(kernels: Path, shared: dict[str, int]) -> str:
    """Markdown of every entry of every cubin that `kernels`/kernels.json describes."""
    description = json.loads((kernels / "kernels.json").read_text())
    lines = [
        f"NVRTC {description['nvrtc']}, {' '.join(description['options'])}.",
        "",
        "| entry | architecture | registers | static shared | dynamic shared | spills, stack |",
        "|---|---|---:|---:|---:|---:|",
    ]
    rows = []
    for file in description["files"]:
        for entry, used in file["entries"].items():
            if used is None:  # PTX: not compiled yet
                continue
            local = used["spill_stores"] + used["spill_loads"] + used["stack"]
            total = used["static_shared"] + shared.get(entry, 0)
            if total > SHARED_LIMIT:
                raise ValueError(f"{entry} takes {total} bytes of shared memory a block")
            cells = (used["registers"], used["static_shared"], shared.get(entry, 0), local)
            rows.append((entry, int(file["arch"].removeprefix("sm_")), cells))
    for entry, arch, cells in sorted(rows):
        lines.append(f"| {entry} | sm_{arch} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    return "\n".join(lines) + "\n"
