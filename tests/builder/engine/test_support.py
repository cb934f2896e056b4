from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.engine.aptsources import AptUnavailableError
from builder.engine.support import Machine, distribution, engine_wants, why_not_private
from builder.pins import SharedPins

GOOD = Machine(
    system="linux",
    architecture="x86_64",
    uid=0,
    distribution=frozenset({"debian"}),
    has_tun=True,
    has_program=lambda name: True,
    has_mirror=lambda: None,
)


def no_mirror() -> object:
    raise AptUnavailableError("no archive named", "set DDTREE_DEBIAN_MIRROR")


@pytest.mark.parametrize(
    ("change", "what", "remedy"),
    [
        ({"system": "darwin"}, "neither Debian nor Ubuntu", "Debian"),
        ({"distribution": frozenset({"fedora"})}, "neither Debian nor Ubuntu", "Debian"),
        ({"architecture": "aarch64"}, "aarch64", "x86_64"),
        ({"uid": 1000}, "root", "root"),
        ({"has_program": lambda name: name != "nsenter"}, "nsenter not found", "util-linux"),
        ({"has_tun": False}, "/dev/net/tun", "modprobe tun"),
        ({"has_mirror": no_mirror}, "no archive named", "DDTREE_DEBIAN_MIRROR"),
    ],
)
def test_each_obstacle_is_named_with_its_remedy(
    change: dict[str, Any], what: str, remedy: str
) -> None:
    reason = why_not_private(replace(GOOD, **change))
    assert reason is not None
    assert what in reason.what
    assert remedy in reason.remedy


@pytest.mark.parametrize("name", ["debian", "ubuntu"])
def test_debian_and_ubuntu_as_root_will_do(name: str) -> None:
    assert why_not_private(replace(GOOD, distribution=frozenset({name}))) is None


def test_a_derivative_counts_by_what_it_is_like(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text('NAME="Pop"\nID=pop\nID_LIKE="ubuntu debian"\n')
    assert distribution(release) == {"pop", "ubuntu", "debian"}
    assert distribution(tmp_path / "none") == frozenset()


def test_what_needs_an_old_glibc_comes_last_from_the_older_suite(shared: SharedPins) -> None:
    newer, older = engine_wants(shared.engine)
    assert (newer.suite, older.suite) == (shared.engine.suite, shared.engine.runc_suite)
    assert {"runc", "slirp4netns", "iptables"} <= set(older.packages)
    assert not set(newer.packages) & set(older.packages)
    assert older.libraries
