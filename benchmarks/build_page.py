"""benchmarks/build.md from benchmarks/build.json: what was measured, where, and when.

The JSON holds the last measurement of each run with its own date and machine, so that a sitting
that leaves a run out does not lose it. Only measure_build.py writes either file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
LARGEST = 15
_MIB = 2**20
_GIB = 2**30

# Every run in the page's order: what it is called there, and the seconds that it should take.
RUNS = {
    "cold": ("build: cold, nothing cached", ""),
    "same": ("build: no change", "<= 5"),
    "edit": ("build: one-line edit of the overlay", "<= 90"),
    "export": ("export as an OCI layout", ""),
    "push": ("push, registry empty", ""),
    "pull": ("pull by digest, nothing there", ""),
    "update-export": ("after that edit: export", ""),
    "update-push": ("after that edit: push", ""),
    "update-pull": ("after that edit: pull by digest", ""),
}

_HEAD = """\
# Build times and sizes

Written by `python3 benchmarks/measure_build.py` (`--help` says what each step does and needs),
which keeps what it measured in build.json. Wall-clock seconds of the whole command: environment,
engine start and stop included for a build. Downloads come from whatever package mirror the machine
uses, so a cold build says as much about the network as about us. Registry and engine are on one
machine: push and pull seconds are those of compressing, hashing and unpacking; bytes are what a
network would carry. Bytes pushed are counted by the client, bytes pulled by the registry's own log.
"""


@dataclass(frozen=True)
class Place:
    """What numbers are true of. `date` as ISO 8601; `image` is a reference."""

    date: str
    commit: str
    machine: str
    engine: str
    image: str

    def text(self) -> str:
        """One line."""
        return f"{self.date}, commit {self.commit}; {self.machine}; {self.engine}; {self.image}"


@dataclass(frozen=True)
class Run:
    """One measurement. Sizes in bytes; None where nothing crosses a network."""

    seconds: float
    place: Place
    sent: int | None = None
    layers: int | None = None
    layers_of: int | None = None
    largest: int | None = None


@dataclass(frozen=True)
class State:
    """All that the page shows."""

    runs: Mapping[str, Run]
    sizes: Mapping[str, Any] | None = None
    """From `sizes_of`, with its `place`."""
    exported: Mapping[str, Any] | None = None
    """From `exported_layers`, with its `place`."""

    def save(self, path: Path) -> None:
        """As JSON."""
        document = {"format": FORMAT, **asdict(self)}
        path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def load(path: Path) -> State:
    """What was kept; empty where nothing was. Raises ValueError for another file."""
    if not path.exists():
        return State({})
    try:
        raw = json.loads(path.read_text())
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']}")
        runs = {
            name: Run(**{**run, "place": Place(**run["place"])})
            for name, run in raw["runs"].items()
        }
        unknown = sorted(runs.keys() - RUNS.keys())
        if unknown:
            raise ValueError(f"unknown runs: {', '.join(unknown)}")
        return State(runs, raw["sizes"], raw["exported"])
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise ValueError(f"{path} is not what measure_build.py keeps: {exc}") from None


def sizes_of(
    manifest: Mapping[str, Any], result: Mapping[str, Any], place: Place
) -> dict[str, Any]:
    """From the image's manifest.json and the result of `build.py --json`."""
    sizes, notes = manifest["sizes"], manifest["audit"]["notes"]
    return {
        "place": asdict(place),
        "total": sizes["total_bytes"],
        "budget_gib": manifest["pins"]["budget_gib"],
        "on_engine": result["size_bytes"],
        "packages": sizes["packages"],
        "parts": notes.get("size_by_layer", {}),
        "layers": [[layer["step"], layer["bytes"]] for layer in result["layers"]],
    }


def exported_layers(
    names: Sequence[str], sizes: Sequence[tuple[str, int]], place: Place
) -> dict[str, Any]:
    """`sizes`: (digest, compressed bytes) of each layer, base first. `with_update` completes it."""
    rows = [
        {"name": name, "digest": digest, "bytes": size, "changes": None}
        for name, (digest, size) in zip(names, sizes, strict=True)
    ]
    return {"place": asdict(place), "layers": rows}


def with_update(exported: Mapping[str, Any], after: Iterable[str]) -> dict[str, Any]:
    """Mark the layers that the updated image (digests `after`) has no more."""
    kept = set(after)
    rows = [{**row, "changes": row["digest"] not in kept} for row in exported["layers"]]
    return {**exported, "layers": rows}


def page(state: State) -> str:
    """The whole of build.md."""
    places: list[str] = []
    lines = [_HEAD, *_runs(state.runs, places)]
    if state.sizes is not None:
        lines += _sizes(state.sizes, places)
    if state.exported is not None:
        lines += _exported(state.exported, places)
    lines += ["", "Where and when:", ""]
    lines += [f"- [{number}] {text}" for number, text in enumerate(places, 1)]
    return "\n".join(lines) + "\n"


def _mark(places: list[str], place: Place) -> str:
    text = place.text()
    if text not in places:
        places.append(text)
    return f"[{places.index(text) + 1}]"


def _runs(runs: Mapping[str, Run], places: list[str]) -> list[str]:
    lines = [
        "| run | seconds | target | crossed | layers | largest layer | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (title, target) in RUNS.items():
        run = runs.get(name)
        if run is None:
            lines.append(f"| {title} | not measured | {target} | | | | |")
            continue
        layers = "" if run.layers is None else f"{run.layers} of {run.layers_of}"
        cells = [f"{run.seconds:.1f}", target, _size(run.sent), layers, _size(run.largest)]
        mark = f"{run.place.date} {_mark(places, run.place)}"
        lines.append(f"| {title} | {' | '.join(cells)} | {mark} |")
    return lines


def _sizes(sizes: Mapping[str, Any], places: list[str]) -> list[str]:
    budget = sizes["budget_gib"] * _GIB
    mark = _mark(places, Place(**sizes["place"]))
    lines = [
        "",
        "## Size of the image",
        "",
        f"{sizes['total'] / _GIB:.2f} GiB as the sum of unpacked file sizes, "
        f"{sizes['total'] / budget:.0%} of the budget of {sizes['budget_gib']} GiB; "
        f"{sizes['on_engine'] / _GIB:.2f} GiB as the engine counts its layers {mark}.",
    ]
    if sizes["parts"]:
        lines += ["", "| part | size | budget | used |", "|---|---|---|---|"]
        for name, part in sorted(sizes["parts"].items(), key=lambda item: -item[1]["bytes"]):
            limit = part["budget_mib"]
            used = f"{part['bytes'] / _MIB / limit:.0%}" if limit else ""
            allowed = f"{limit} MiB" if limit else "none"
            lines.append(f"| {name} | {_size(part['bytes'])} | {allowed} | {used} |")
    lines += ["", "| largest distributions | size | of the budget |", "|---|---|---|"]
    ranked = sorted(sizes["packages"].items(), key=lambda item: (-item[1], item[0]))[:LARGEST]
    lines += [f"| {name} | {_size(size)} | {size / budget:.1%} |" for name, size in ranked]
    lines += ["", "| layer on the engine, base first | size |", "|---|---|"]
    lines += [f"| {_cell(step)} | {_size(size)} |" for step, size in sizes["layers"]]
    return lines


def _exported(exported: Mapping[str, Any], places: list[str]) -> list[str]:
    rows = exported["layers"]
    total = sum(row["bytes"] for row in rows)
    said = {None: "not measured", True: "yes", False: ""}
    return [
        "",
        "## What a registry holds",
        "",
        f"{total / _GIB:.2f} GiB compressed in {len(rows)} layers "
        f"{_mark(places, Place(**exported['place']))}.",
        "",
        "| exported layer, base first | size | changed by the edit |",
        "|---|---|---|",
        *(f"| {_cell(r['name'])} | {_size(r['bytes'])} | {said[r['changes']]} |" for r in rows),
    ]


def _size(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / _MIB:.1f} MiB" if size >= _MIB else f"{size / 1024:.1f} KiB"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")[:90]
