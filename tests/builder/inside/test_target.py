from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.context import describe_target
from builder.inside.target import TargetError, parse_target, read_target
from builder.pins import all_targets
from builder.project import default_project
from tests.builder.inside.tree import raw_target


def test_what_the_builder_writes_is_what_the_stage_reads() -> None:
    project = default_project()
    for pinned in all_targets(project):
        described = describe_target(
            project, pinned, sglang={"version": "1"}, base={"kind": "bootstrap", "detail": "d"}
        )
        target = parse_target(json.loads(json.dumps(described)))
        assert target.name == pinned.name
        assert target.cuda == pinned.cuda.version
        assert target.cuda_major == pinned.cuda_major
        assert target.sass == pinned.cubin.sass
        assert target.toolchain_source == pinned.toolchain.source


@pytest.mark.parametrize("key", ["name", "cuda", "toolchain", "excluded", "budget_gib"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    path = tmp_path / "target.json"
    raw = raw_target()
    del raw[key]
    path.write_text(json.dumps(raw))
    with pytest.raises(TargetError, match=key):
        read_target(path)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_no_file_or_no_object_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "target.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TargetError, match=r"target\.json"):
        read_target(path)
