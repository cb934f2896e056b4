from __future__ import annotations

import csv
from pathlib import Path

import pytest

from builder.inside.settle import SETTLE_FAILED, main, settle
from tests.builder.inside.tree import SITE, Tree


def installed(root: Path, noted: str) -> Path:
    tree = Tree(root)
    tree.install("pkg", "1", extra={"pkg/a.py": "a", "pkg-1.dist-info/uv_cache.json": noted})
    tree.install("other", "1", extra={"other/b.py": "b"})
    return root / SITE


def everything(site: Path) -> dict[str, bytes]:
    return {str(p.relative_to(site)): p.read_bytes() for p in site.rglob("*") if p.is_file()}


def test_two_installations_at_different_times_become_the_same(tmp_path: Path) -> None:
    first = installed(tmp_path / "1", '{"timestamp": 1}')
    second = installed(tmp_path / "2", '{"timestamp": 22}')
    assert everything(first) != everything(second)
    assert settle(first) == settle(second) == ["pkg-1.dist-info"]
    assert everything(first) == everything(second)


def test_record_forgets_the_note_and_nothing_else(tmp_path: Path) -> None:
    site = installed(tmp_path, "{}")
    record = site / "pkg-1.dist-info/RECORD"
    before = list(csv.reader(record.read_text().splitlines()))
    settle(site)
    after = list(csv.reader(record.read_text().splitlines()))
    assert after == [row for row in before if not row[0].endswith("uv_cache.json")]
    assert len(after) == len(before) - 1
    assert settle(site) == []


def test_a_distribution_without_record_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = installed(tmp_path, "{}")
    (site / "pkg-1.dist-info/RECORD").unlink()
    assert main(["--site", str(site)]) == SETTLE_FAILED
    assert "RECORD" in capsys.readouterr().err
    assert (site / "pkg-1.dist-info/uv_cache.json").exists()


@pytest.mark.parametrize("content", [b"pkg/\xff.py,,\n", b'"' + b"x" * (1 << 18) + b'",,\n'])
def test_a_record_that_cannot_be_read_is_named_and_nothing_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    site = installed(tmp_path, "{}")
    (site / "pkg-1.dist-info/RECORD").write_bytes(content)
    before = everything(site)
    assert main(["--site", str(site)]) == SETTLE_FAILED
    assert "pkg-1.dist-info/RECORD" in capsys.readouterr().err
    assert everything(site) == before


def test_a_name_with_a_line_separator_stays_one_row(tmp_path: Path) -> None:
    site = installed(tmp_path, "{}")
    record = site / "pkg-1.dist-info/RECORD"
    odd = 'pkg/a\u2028b.py,sha256=x,1\n"pkg/c\nd.py",sha256=y,2\n'
    record.write_text(record.read_text() + odd, "utf-8")
    settle(site)
    assert record.read_text("utf-8").endswith(odd)
