"""Whole hosts through `ddtree doctor`: exactly the codes that the host deserves."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_overlay.doctor import host_checks
from ddtree_overlay.doctor.model import Severity
from ddtree_overlay.doctor.registry import codes
from tests.overlay.doctor.host_cases import CASES, HostCase
from tests.overlay.doctor.nvml import doctor, environment_of

# These ask the file system that this test runs on: test_local_checks.py.
ASK_THE_DISK = {"shared-memory", "cache-disk"}
NAMES = ",".join(c.name for c in host_checks.CHECKS if c.name not in ASK_THE_DISK)
# Ports that nothing else of this machine uses; 0 asks the kernel for a free one and is not valid.
PORTS = (
    "--port",
    "31987",
    "--probe-port",
    "31988",
    "--host",
    "127.0.0.1",
    "--probe-host",
    "127.0.0.1",
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_host_has_exactly_its_codes(case: HostCase, nvml: Path, tmp_path: Path) -> None:
    environment = environment_of(case.host, nvml, tmp_path, **case.variables)
    run = doctor(environment, "--only", NAMES, *PORTS, *case.arguments)
    assert run.out, run.err
    assert sorted(set(run.codes)) == sorted(case.codes), run.out
    if case.exit_code is not None:
        assert run.code == case.exit_code
    said = " / ".join(f["what"] for f in run.document["findings"])
    for text in case.says:
        assert text in said
    severities = {f["severity"] for f in run.document["findings"]}
    assert run.code == (74 if Severity.ERROR.value in severities else 0)
    if case.peer_to_peer is not None:
        assert run.document["peer_to_peer"]["on"] is case.peer_to_peer
    known = {code.id for code, _ in codes()}
    assert set(run.codes) <= known
    assert all(f["remedy"] and "\n" not in f["what"] for f in run.document["findings"])


def test_a_healthy_host_ran_every_check(nvml: Path, tmp_path: Path) -> None:
    run = doctor(
        environment_of(CASES[0].host, nvml, tmp_path), "--only", NAMES, *PORTS, "--tp", "8"
    )
    states = {c["name"]: c["state"] for c in run.document["checks"]}
    assert {states[name] for name in NAMES.split(",")} == {"passed"}


def test_a_driver_that_does_not_answer_is_left(nvml: Path, tmp_path: Path) -> None:
    from tests.overlay.doctor.nvml import run

    environment = environment_of(CASES[0].host, nvml, tmp_path)
    environment["NVML_STUB"] += "\nhang 60"
    program = (
        "import os; from ddtree_overlay.doctor.hardware import read_hardware; "
        "h = read_hardware(os.environ, seconds=0.5); print(h.error_kind, len(h.gpus))"
    )
    assert run(["-c", program], environment, seconds=30).out.split() == ["hung", "0"]
