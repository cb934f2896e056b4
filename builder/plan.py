"""`plan`: what would be built and from which inputs, without an engine or the network."""

from __future__ import annotations

import argparse
from typing import Any

from builder import console
from builder.files import sha256_file
from builder.lock import check_lock, parse_lock
from builder.patches.series import load_series
from builder.pins import Target
from builder.project import Project
from builder.render import check_render
from builder.target_options import add_target_options, chosen_targets

STAGES = (
    ("base", "Debian, by digest or bootstrapped"),
    ("system", "Debian packages needed at run time, the empty virtual environment"),
    ("dependencies", "the lock, installed with hashes and without resolving, then pruned"),
    ("overlay", "the DDTree wheel: C++ op with g++, kernels with NVRTC"),
    ("runtime", "the patched SGLang and the DDTree wheel on top of the dependencies"),
    ("audit", "the finished file system against the rules; a finding fails the build"),
    ("image", "the runtime with its manifest; labels from what the audit observed"),
)


def describe(project: Project, target: Target) -> dict[str, Any]:
    """The plan as data. Raises the drift errors when a generated file is not current."""
    check_render(project, target)
    check_lock(project, target, offline=True)
    shared = target.shared
    entries = parse_lock(target.lock_file(project).read_text())
    return {
        "target": target.name,
        "tag_prefix": f"{shared.project.image_name}:{shared.project.version}-{target.name}-",
        "stand_in": target.stand_in,
        "base": shared.base.image,
        "base_fallback": f"bootstrapped Debian {shared.base.suite}",
        "python": shared.python.version,
        "cuda": target.cuda.version,
        "driver_floor": target.cuda.driver_floor,
        "torch": target.torch.version,
        "sglang": {
            "version": shared.sglang.version,
            "wheel": shared.sglang.wheel,
            "sha256": shared.sglang.sha256,
            "base_tree": shared.sglang.base_tree,
            "patched_tree": shared.sglang.patched_tree,
            "patches": [
                {"name": p.name, "subject": p.subject} for p in load_series(project.patches)
            ],
        },
        "kernels": {
            "nvrtc": target.cubin.nvrtc,
            "sass": list(target.cubin.sass),
            "ptx": target.cubin.ptx,
        },
        "lock": {
            "file": str(target.lock_file(project).relative_to(project.root)),
            "sha256": sha256_file(target.lock_file(project)),
            "distributions": len(entries),
        },
        "other_sources": [
            {"name": s.name, "url": s.url, "sha256": s.sha256} for s in target.sources
        ],
        "toolchain": {"source": target.toolchain.source, **target.toolchain.components},
        "stages": [{"name": name, "does": does} for name, does in STAGES],
        "budget_gib": target.budget.image_gib,
    }


def as_text(plan: dict[str, Any]) -> str:
    """The plan for a person."""
    sglang, kernels, lock = plan["sglang"], plan["kernels"], plan["lock"]
    lines = [
        f"{plan['target']} -> {plan['tag_prefix']}<build id>",
        f"  base       {plan['base']}",
        f"             or {plan['base_fallback']} when no registry answers",
        f"  python     {plan['python']}",
        f"  cuda       {plan['cuda']} (driver >= {plan['driver_floor']})",
        f"  torch      {plan['torch']}",
        f"  sglang     {sglang['version']} sha256:{sglang['sha256'][:12]}",
        f"             tree {sglang['base_tree'][:12]} -> {sglang['patched_tree'][:12]}",
    ]
    lines += [f"             {p['name']}: {p['subject']}" for p in sglang["patches"]]
    lines += [
        f"  kernels    NVRTC {kernels['nvrtc']}: {', '.join(kernels['sass'])}, {kernels['ptx']}",
        f"  lock       {lock['file']}: {lock['distributions']} distributions, "
        f"sha256:{lock['sha256'][:12]}",
    ]
    for source in plan["other_sources"]:
        lines.append(f"  source     {source['name']}: {source['url']}")
        lines.append(f"             sha256:{source['sha256']}")
    lines.append(f"  budget     {plan['budget_gib']} GiB unpacked")
    lines.append("  stages")
    lines += [f"    {s['name']:<13}{s['does']}" for s in plan["stages"]]
    return "\n".join(lines)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="show what would be built and from which inputs",
        description="Print the inputs and stages of a build. Needs no engine and no network; "
        "fails when a committed lock or Dockerfile does not follow from the pins.",
    )
    add_target_options(parser)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(handler=_run)


def _run(args: argparse.Namespace, project: Project) -> int:
    (target,) = chosen_targets(args, project)
    plan = describe(project, target)
    if args.json:
        console.result_json(plan)
    else:
        print(as_text(plan))
    return 0
