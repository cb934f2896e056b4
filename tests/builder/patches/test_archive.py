from __future__ import annotations

import csv
import io
import os
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import TreeHashError
from builder.patches.archive import read_wheel, write_wheel
from builder.patches.treehash import TreeFile
from tests.builder.patches.conftest import EXECUTABLE, METADATA, PACKAGES, make_wheel, record_hash

NAME = "sglang-0.5.17-py3-none-any.whl"
EPOCH = 1788134400


def test_a_wheel_is_its_packages_and_apart_its_metadata(tmp_path: Path) -> None:
    wheel = read_wheel(make_wheel(tmp_path / NAME, PACKAGES))
    assert {name: file.data for name, file in wheel.packages.items()} == PACKAGES
    assert {name for name, file in wheel.packages.items() if file.executable} == EXECUTABLE
    assert {name: file.data for name, file in wheel.metadata.items()} == METADATA
    assert wheel.dist_info == "sglang-0.5.17.dist-info"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("tools/tag.py,sha256=", "tools/tag.py,sha256=x", "tools/tag.py is not what"),
        (f",{len(PACKAGES['sglang/a.py'])}\n", ",1\n", "sglang/a.py is not what"),
        ("tools/tag.py,", "tools/tog.py,", "tools/t"),
        (f"sglang/empty.txt,{record_hash(b'')},0\n", "", "sglang/empty.txt is in the wheel, not"),
        ("sglang/a.py,", "sglang/b.py,,\nsglang/a.py,", "sglang/b.py is in RECORD but not"),
    ],
)
def test_a_wheel_that_is_not_its_record_is_refused(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    path = make_wheel(tmp_path / NAME, PACKAGES, record=lambda text: text.replace(old, new))
    with pytest.raises(TreeHashError, match=says):
        read_wheel(path)


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "sglang/../../evil.py", "a\\..\\b.py"])
def test_a_member_that_leaves_the_tree_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TreeHashError, match="leaves the tree"):
        read_wheel(make_wheel(tmp_path / NAME, {**PACKAGES, name: b""}))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_doubles_links_and_other_files_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path / NAME, PACKAGES)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("sglang/a.py", "again")
    with pytest.raises(TreeHashError, match="twice"):
        read_wheel(path)
    link = zipfile.ZipInfo("sglang/link")
    link.external_attr = 0o120777 << 16
    path = make_wheel(tmp_path / NAME, PACKAGES)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "a.py")
    with pytest.raises(TreeHashError, match="not a plain file"):
        read_wheel(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TreeHashError, match="not a readable wheel"):
        read_wheel(path)


def test_a_written_wheel_reads_back_and_its_record_is_right(tmp_path: Path) -> None:
    wheel = read_wheel(make_wheel(tmp_path / NAME, PACKAGES))
    comma = replace(wheel, packages={**wheel.packages, "sglang/a,b.py": TreeFile(b"c")})
    written = write_wheel(comma, tmp_path / "out", EPOCH)
    assert read_wheel(written) == comma
    with zipfile.ZipFile(written) as archive:
        names = archive.namelist()
        record = names[-1]
        assert record == "sglang-0.5.17.dist-info/RECORD"
        assert names[:-1] == sorted(names[:-1])
        rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
        assert {row[0] for row in rows} == set(names)
        for name, digest, size in rows:
            if name != record:
                data = archive.read(name)
                assert (digest, size) == (record_hash(data), str(len(data)))
        for info in archive.infolist():
            assert info.date_time == time.gmtime(EPOCH)[:6]
            assert info.compress_type == zipfile.ZIP_STORED
            mode = 0o100755 if info.filename in EXECUTABLE else 0o100644
            assert info.external_attr >> 16 == mode


def test_the_bytes_depend_on_content_and_epoch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = read_wheel(make_wheel(tmp_path / NAME, PACKAGES))
    first = write_wheel(wheel, tmp_path / "one", EPOCH).read_bytes()
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    before = os.umask(0o077)
    try:
        shuffled = replace(wheel, packages=dict(reversed(list(wheel.packages.items()))))
        again = write_wheel(shuffled, tmp_path / "two", EPOCH)
    finally:
        os.umask(before)
        monkeypatch.undo()
        time.tzset()
    assert again.read_bytes() == first
    assert write_wheel(wheel, tmp_path / "three", EPOCH + 86400).read_bytes() != first


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = read_wheel(make_wheel(tmp_path / NAME, PACKAGES))

    def interrupted(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "writestr", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_wheel(wheel, tmp_path / "out", EPOCH)
    assert list((tmp_path / "out").iterdir()) == []
