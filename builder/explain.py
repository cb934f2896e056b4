"""`explain`: a pin's way from the TOML line to the label on the image."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder import console
from builder.errors import UnknownPinError
from builder.lock import parse_lock
from builder.pins import Target, load_target
from builder.project import Project
from builder.render import render

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Pin -> (distribution in the lock, key in manifest.json, label below the project's prefix).
TRAILS: dict[str, tuple[str, str, str]] = {
    "torch.version": ("torch", "observed.torch", "torch"),
    "torch.torchvision": ("torchvision", "observed.distributions.torchvision", ""),
    "torch.torchaudio": ("torchaudio", "observed.distributions.torchaudio", ""),
    "torch.triton": ("triton", "observed.distributions.triton", ""),
    "kernels.version": ("sglang-kernel", "observed.sglang_kernel", ""),
    "cuda.version": ("", "observed.torch_cuda", "cuda"),
    "cuda.driver_floor": ("", "pins.cuda.driver_floor", "driver-floor"),
    "cubin.sass": ("", "observed.cubins", "sass"),
    "sglang.version": ("", "observed.sglang", "sglang"),
    "sglang.patched_tree": ("", "sglang.patched_tree", "sglang.patched-tree"),
    "base.image": ("", "base", "base"),
}


@dataclass(frozen=True)
class Step:
    """One station of a pin's way."""

    place: str
    shows: str


def pin_keys(project: Project, target: Target) -> dict[str, tuple[Path, Any]]:
    """Every dotted key of the two pin files -> (file, value)."""
    keys: dict[str, tuple[Path, Any]] = {}
    for path in (project.images / "pins.toml", project.images / f"{target.variant}.toml"):
        _flatten(tomllib.loads(path.read_text()), "", path, keys)
    return keys


def _flatten(value: Any, prefix: str, path: Path, into: dict[str, tuple[Path, Any]]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _flatten(item, f"{prefix}.{key}" if prefix else key, path, into)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for item in value:
            name = item.get("name") or item.get("distribution") or "?"
            _flatten(item, f"{prefix}.{name}", path, into)
    else:
        into[prefix] = (path, value)


def toml_line(path: Path, key: str) -> int:
    """Line number of a key in a TOML file (1-based), 0 when it cannot be told."""
    table, leaf = key.rpartition(".")[::2]
    current, unnamed = "", False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        header = re.match(r"^(\[+)([^\]]+)\]+", line)
        if header:
            current, unnamed = header.group(2), header.group(1) == "[["
        named = re.match(r'^(?:name|distribution)\s*=\s*"([^"]+)"', line)
        if named and unnamed:  # an array's entry is called by its name
            current, unnamed = f"{current}.{named.group(1)}", False
        if re.match(rf'^"?{re.escape(leaf)}"?\s*=', line) and current == table:
            return number
    return 0


def trail(project: Project, target: Target, key: str) -> list[Step]:
    """The stations of one pin. Raises UnknownPinError with near matches."""
    keys = pin_keys(project, target)
    if key.startswith("stand_in."):
        target = load_target(project, target.variant, stand_in=True)
    elif target.stand_in and f"stand_in.{key}" in keys:
        key = f"stand_in.{key}"
    if key not in keys:
        near = difflib.get_close_matches(key, keys, n=3, cutoff=0.6)
        raise UnknownPinError(
            f"no pin named {key!r} for {target.name}",
            f"near: {', '.join(near)}" if near else f"`explain {target.variant}` lists all pins",
        )
    path, value = keys[key]
    shown = value if isinstance(value, str) else str(value)
    line = toml_line(path, key)
    steps = [Step(f"{path.relative_to(project.root)}:{line}", f"{key} = {shown}")]
    distribution, manifest, label = TRAILS.get(key.removeprefix("stand_in."), ("", "", ""))
    if key.startswith("toolchain.components.nvidia-"):
        distribution = key.rsplit(".", 1)[-1]
    if distribution:
        steps.append(_lock_step(project, target, distribution))
    if not distribution:  # those reach the Dockerfile by way of the lock
        steps += _dockerfile_steps(project, target, value)
    origin = "as observed" if manifest.startswith("observed.") else "from the pins"
    if manifest:
        steps.append(Step("/opt/ddtree/manifest.json in the image", f"{manifest} ({origin})"))
    if label:
        prefix = target.shared.project.label_prefix
        steps.append(Step("label on the image", f"{prefix}.{label} ({origin})"))
    return steps


def _lock_step(project: Project, target: Target, distribution: str) -> Step:
    lock = target.lock_file(project)
    name = str(lock.relative_to(project.root))
    for number, text in enumerate(lock.read_text().splitlines(), 1):
        if text.startswith(f"{distribution}=="):
            entry = next(e for e in parse_lock(lock.read_text()) if e.name == distribution)
            return Step(
                f"{name}:{number}",
                f"{entry.name}=={entry.version} with {len(entry.hashes)} sha256 hash(es)",
            )
    return Step(name, f"{distribution} is not in the lock")


def _dockerfile_steps(project: Project, target: Target, value: Any) -> list[Step]:
    values = [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []
    words = [re.escape(str(v)) for v in values if len(str(v)) > 2]
    if not words:
        return []
    # A list's items stand alone (packages, one a line) or joined by commas.
    joined = re.escape(",".join(str(v) for v in values))
    alone = "|".join(words) if isinstance(value, str) else "(?!)"
    pattern = re.compile(
        rf"(?<![\w.])(?:{joined}|{alone})(?![\w.]*\w)|^ +(?:{'|'.join(words)})(?: \\)?$"
    )
    name = str(target.dockerfile(project).relative_to(project.root))
    return [
        Step(f"{name}:{number}", line.strip())
        for number, line in enumerate(render(project, target).splitlines(), 1)
        if pattern.search(line) and not line.startswith("#")
    ]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "explain",
        help="show a pin's way from TOML to label",
        description="Where a pin is written and every place it ends up in: lock, Dockerfile, "
        "manifest, label. Without KEY, list the pins.  Example: explain cu130 torch.version",
    )
    parser.add_argument("variant", metavar="VARIANT", help="cu128 or cu130")
    parser.add_argument("key", metavar="KEY", nargs="?", help="dotted name, such as torch.version")
    parser.add_argument("--stand-in", action="store_true", help="the variant's stand-in")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(handler=_run)


def _run(args: argparse.Namespace, project: Project) -> int:
    target = load_target(project, args.variant, stand_in=args.stand_in)
    if args.key is None:
        rows = {key: value for key, (_path, value) in sorted(pin_keys(project, target).items())}
        if args.json:
            console.result_json(rows)
        else:
            print("\n".join(f"{key} = {value}" for key, value in rows.items()))
        return 0
    steps = trail(project, target, args.key)
    if args.json:
        console.result_json([asdict(step) for step in steps])
    else:
        width = max(len(step.place) for step in steps)
        print("\n".join(f"{step.place:<{width}}  {step.shows}" for step in steps))
    return 0
