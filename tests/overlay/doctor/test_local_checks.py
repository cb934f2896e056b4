"""Single checks on made-up subjects; and that no code is without a test."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor import host_checks, procfs
from ddtree_overlay.doctor.host_checks import caches, shared_memory
from ddtree_overlay.doctor.model import Severity
from ddtree_overlay.doctor.registry import codes
from tests.overlay.doctor import host_cases, local_cases
from tests.overlay.doctor.fake_host import FakeHost
from tests.overlay.doctor.local_cases import LocalCase, host, subject


@pytest.mark.parametrize("case", local_cases.CASES, ids=lambda case: case.name)
def test_a_check_gives_exactly_its_codes(
    case: LocalCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = subject(host(tmp_path / "root"), tmp_path / "cache")
    (tmp_path / "files").mkdir()
    with monkeypatch.context() as patch:
        findings = list(case.produce(it, tmp_path / "files", patch))
    assert [finding.code for finding in findings] == list(case.codes)
    assert case.says in " / ".join(finding.what for finding in findings)


def test_every_code_of_the_host_is_produced_by_a_case() -> None:
    produced = {code for case in host_cases.CASES for code in case.codes}
    produced |= {code for case in local_cases.CASES for code in case.codes}
    defined = {code.id for check in host_checks.CHECKS for code in check.codes}
    assert produced == defined


def test_every_code_of_the_registry_is_in_a_test() -> None:
    folder = Path(__file__).parent
    said = {
        text
        for path in folder.glob("*.py")
        for text in re.findall(r'"([A-Z]{3}\d{3})"', path.read_text(encoding="utf-8"))
    }
    assert {code.id for code, _ in codes()} <= said


def test_every_check_names_the_codes_that_it_gives() -> None:
    seen = {check.name for check in host_checks.CHECKS}
    assert len(seen) == len(host_checks.CHECKS)
    assert all(check.codes and check.title for check in host_checks.CHECKS)


@pytest.mark.parametrize("free", [caches.LEAST_BYTES - 1, caches.LEAST_BYTES])
def test_space_below_the_least_is_an_error(
    free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = subject(host(tmp_path / "root"), tmp_path / "cache")
    with monkeypatch.context() as patch:
        (finding,) = local_cases.space(free)(it, tmp_path, patch)
    wanted = Severity.ERROR if free < caches.LEAST_BYTES else Severity.WARNING
    assert finding.severity is wanted


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, Severity.WARNING),
        ({"trust_remote_code": True}, Severity.ERROR),
        ({"environment": {}}, Severity.ERROR),
    ],
)
def test_a_hub_cache_that_is_only_read_refuses_nothing(
    changes: dict[str, Any],
    severity: Severity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, real = tmp_path / "hub", caches._try_file

    def try_file(folder: Path) -> bool:
        if folder == hub:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(folder)

    monkeypatch.setattr(caches, "_try_file", try_file)
    it = replace(subject(host(tmp_path / "root"), tmp_path / "cache"), cache_folders=(hub,))
    it = replace(it, environment={"HF_HOME": str(hub)})
    (finding,) = caches.check_write(replace(it, **changes))
    assert (finding.code, finding.severity) == ("CAC001", severity)


def test_counting_an_old_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"1234")
    assert caches._size([tmp_path]) == (4, True)
    monkeypatch.setattr(caches, "_COUNT_SECONDS", -1.0)
    assert caches._size([tmp_path]) == (0, False)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_shared_memory_bounds_follow_the_ranks(ranks: int) -> None:
    def codes(free: int) -> list[str]:
        return [finding.code for finding in shared_memory.judge(free, ranks)]

    least, comfortable = (
        ranks * shared_memory.LEAST_PER_GPU,
        ranks * shared_memory.COMFORTABLE_PER_GPU,
    )
    several = ranks > 1
    assert codes(least - 1) == (["SHM001"] if several else [])
    assert codes(least) == (["SHM002"] if several else [])
    assert codes(comfortable) == []


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("memory.max", "max", procfs.UNLIMITED),
        ("memory.max", "1048576", 1048576),
        ("memory/memory.limit_in_bytes", "9223372036854771712", procfs.UNLIMITED),
        ("memory/memory.limit_in_bytes", "2097152", 2097152),
    ],
)
def test_memory_limits_of_both_kinds_of_cgroup(
    name: str, text: str, limit: float, tmp_path: Path
) -> None:
    cgroup = "5:memory:/x\n0::/\n"
    root = FakeHost(cgroup=cgroup, cgroup_files=((name, text),)).build(tmp_path)
    assert procfs.cgroup_memory(root) == limit


def test_a_mount_point_with_a_blank_is_found(tmp_path: Path) -> None:
    lines = "x / ext4 rw 0 0\ny /a\\040b nfs rw 0 0\n"
    root = FakeHost(mounts=lines).build(tmp_path)
    found = procfs.mount_of(root, Path("/a b/c"))
    assert found is not None
    assert (found.point, found.kind) == ("/a b", "nfs")
