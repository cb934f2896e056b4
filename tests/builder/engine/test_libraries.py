from __future__ import annotations

from pathlib import Path

import pytest

from builder.engine.libraries import link_libraries, missing_libraries
from builder.errors import EngineStartError

LDD = """\
\tlinux-vdso.so.1 (0x00007ffe)
\tlibnftnl.so.11 => not found
\tlibmnl.so.0 => /lib/libmnl.so.0 (0x00007f)
"""


def fake_ldd(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    ldd = folder / "ldd"
    ldd.write_text(f"#!/bin/sh\n{body}\n")
    ldd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_missing_libraries_are_those_the_loader_did_not_find() -> None:
    assert missing_libraries(LDD) == ["libnftnl.so.11"]


def test_only_what_the_host_lacks_is_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "root/usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for name in ("liba.so.1", "libpresent.so.1"):
        (folder / name).touch()
    into = tmp_path / "lib"
    into.mkdir()
    fake_ldd(
        tmp_path,
        monkeypatch,
        'if [ -e "$LD_LIBRARY_PATH/liba.so.1" ]; then echo "liba.so.1 => there"; '
        'else echo "  liba.so.1 => not found"; fi; echo "  libpresent.so.1 => /lib/p (0x0)"',
    )
    link_libraries([tmp_path / "program"], tmp_path / "root", into)
    assert [p.name for p in into.iterdir()] == ["liba.so.1"]


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("  libgone.so.7 => not found", "libgone.so.7"),
        ("p: /lib/libc.so.6: version `GLIBC_2.38' not found (required by p)", "newer glibc"),
    ],
)
def test_what_cannot_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, says: str
) -> None:
    (tmp_path / "root/usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    fake_ldd(tmp_path, monkeypatch, f'echo "{output.replace("`", chr(92) + "`")}"')
    with pytest.raises(EngineStartError, match=says):
        link_libraries([tmp_path / "program"], tmp_path / "root", tmp_path / "lib")
