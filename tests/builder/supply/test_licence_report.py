"""What is counted, what is pointed at, and that the table loses nothing of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builder.supply.evidence import image_components
from builder.supply.licence_report import LicenceReport, licence_report
from tests.builder.supply.parts import distribution, inventory, library, package, target

MANY = [f"GPL-{n}.0-only" for n in (1, 2, 3)] + [f"LGPL-{n}-only" for n in ("2.0", "2.1", "3.0")]


@pytest.fixture
def found() -> LicenceReport:
    return report()


def report(**changes: Any) -> LicenceReport:
    made = target()
    document = inventory(made, **changes)
    document["python"]["distributions"] += [
        distribution("nv", "1.2", licence={"name": "NVIDIA Proprietary Software"}),
        distribution("open", "3", licence={}, licence_files=[]),
        distribution("lesser", "4", licence={"expression": "LGPL-3.0-only"}),
    ]
    document["debian"]["packages"].append(package("long", "5:6-7", licences=["Expat", *MANY]))
    document["native"] += [library("nv/libnv.so", "python:nv"), library("open/o.so", "python:open")]
    return licence_report(image_components(made, document))


def refs(found: LicenceReport, kind: str) -> list[str]:
    return [part.ref for part in found.attention[kind]]


def test_each_kind_has_its_parts_and_no_other(found: LicenceReport) -> None:
    assert refs(found, "proprietary") == ["pypi:nv"], "what lies in it has the same licence"
    assert refs(found, "copyleft") == ["deb:libc6:amd64", "deb:long:amd64"]
    assert "pypi:lesser" in refs(found, "limited-copyleft")
    assert "pypi:open" in refs(found, "unknown")
    assert refs(found, "no-text") == [
        next(p.ref for p in found.parts if p.name == "libcuda.so"),
        "pypi:open",
    ]
    assert not any("torch" in ref for kind in found.attention for ref in refs(found, kind))


def test_every_part_is_counted_once(found: LicenceReport) -> None:
    assert sum(found.counts.values()) == len(found.parts)
    assert found.counts["LicenseRef-NVIDIA-Proprietary"] >= 2
    assert list(found.counts.values()) == sorted(found.counts.values(), reverse=True)


def test_the_document_describes_what_it_points_at(found: LicenceReport) -> None:
    document = json.loads(json.dumps(found.document()))
    described = {part["ref"]: part for part in document["parts"]}
    assert len(described) == len(found.parts)
    assert all(ref in described for named in document["attention"].values() for ref in named)
    assert described["pypi:nv"]["version"] == "1.2"
    assert described["pypi:nv"]["licence"]["expression"] == "LicenseRef-NVIDIA-Proprietary"
    assert described["pypi:nv"]["licence"]["texts"]
    assert described[refs(found, "no-text")[1]]["licence"]["texts"] == []
    (inside,) = [part for part in document["parts"] if part["name"] == "libnv.so"]
    assert inside["in"] == "pypi:nv"


def test_the_table_names_parts_and_versions_below_their_licence(found: LicenceReport) -> None:
    lines = list(found.lines())
    text = "\n".join(lines)
    start = lines.index("proprietary: 1 part (its terms say who may pass it on, and how)")
    assert lines[start + 1 : start + 3] == ["  LicenseRef-NVIDIA-Proprietary", "      nv 1.2"]
    assert "libgomp-e985bcbb.so.1.0.0 8.5.0-28.el8 (in numpy)" in text
    assert f"{found.counts['MIT']:>5}  MIT" in lines


def test_nothing_is_cut_and_a_name_stays_with_its_version() -> None:
    debian = inventory(target())["debian"]
    names = [f"{'p' * n}{n} {n}:{'9' * n}" for n in range(1, 30)]
    debian["packages"] += [package(*n.split(), licences=["Expat", *MANY]) for n in names]
    text = "\n".join(report(debian=debian).lines())
    assert max(map(len, text.splitlines())) <= 100
    assert " AND ".join([*MANY, "MIT"]) in " ".join(text.split())
    assert not [name for name in names if name not in text]


def test_names_from_an_image_cannot_write_on_the_terminal() -> None:
    document = inventory(target())["debian"]
    document["packages"].append(package("odd", "1\x1b[2J\n2", licences=["GPL-2"]))
    text = "\n".join(report(debian=document).lines())
    assert "odd 1 [2J 2" in text
    assert "\x1b" not in text


def test_an_image_without_parts() -> None:
    assert "proprietary: none" in "\n".join(licence_report([]).lines())
