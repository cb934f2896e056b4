#!/usr/bin/env python3
"""The ops' arithmetic, resources and times: what benchmarks/kernels.md is made of.

  python benchmarks/kernels.py --arithmetic       bytes, operations, floors (standard library only)
  python benchmarks/kernels.py --resources DIR    registers, shared memory, spills of an installed
                                                  wheel; DIR holds its kernels.json
  python benchmarks/kernels.py --heap             build_tree on the CPU against a heap in Python
  python benchmarks/kernels.py                    every op and the round, as CUDA graphs
  python benchmarks/kernels.py --device cpu       the same bodies on a CPU, to see that they run

Measuring needs torch and the overlay. --json FILE keeps all numbers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import kernels_arithmetic, kernels_resources


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arithmetic", action="store_true")
    parser.add_argument("--resources", type=Path, metavar="DIR")
    parser.add_argument("--heap", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batches", type=numbers, default=[1, 8, 16, 32], metavar="N,N")
    parser.add_argument("--budgets", type=numbers, default=[16, 64, 256], metavar="N,N")
    parser.add_argument("--replays", type=int, default=100, metavar="N")
    parser.add_argument("--vocabulary", type=int, default=kernels_arithmetic.VOCABULARY)
    parser.add_argument("--layers", type=int, default=kernels_arithmetic.LAYERS)
    parser.add_argument("--prefix", type=int, default=kernels_arithmetic.PREFIX)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    result: dict[str, Any]
    if options.arithmetic:
        print(kernels_arithmetic.tables(), end="")
        return 0
    if options.resources:
        if not (options.resources / "kernels.json").is_file():
            print(f"error: {options.resources} holds no kernels.json", file=sys.stderr)
            return 2
        shared = kernels_resources.dynamic_shared()
        print(kernels_resources.resource_table(options.resources, shared), end="")
        return 0
    if any(importlib.util.find_spec(name) is None for name in ("torch", "ddtree_overlay.ops")):
        print("error: measuring needs torch and an installed ddtree-overlay wheel", file=sys.stderr)
        return 2
    from benchmarks import kernels_measure

    if options.heap:
        result = kernels_measure.measure_heap(replays=options.replays)
        print(kernels_measure.heap_report(result), end="")
    else:
        if options.device == "cuda" and not kernels_measure.gpu_is_present():
            print("error: no NVIDIA GPU here (--device cpu runs the bodies)", file=sys.stderr)
            return 3
        result = kernels_measure.measure_rounds(options)
        print(kernels_measure.report(result), end="")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
