"""The all-reduce's path with a stub for its ranks: hang, wrong values, death, and the verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor import collective
from ddtree_overlay.doctor.child import MARK
from ddtree_overlay.doctor.collective import all_reduce
from ddtree_overlay.doctor.model import Severity
from ddtree_overlay.doctor.trial import Trial
from tests.overlay.doctor.model_files import PATH, alive, ids, stub, subject

# STUB is what to do, as WHAT@WHEN: always, p2p (only while peer-to-peer is on), and rank 1 alone.
RANK = f"""
import json, os, sys, time
arguments = dict(zip(sys.argv[3::2], sys.argv[4::2]))
rank = int(arguments["--rank"])
with open(os.environ["LOG"], "a") as file:
    file.write(json.dumps([rank, os.getpid(), sys.argv[1:], dict(os.environ)]) + "\\n")
def say(**message):
    print({MARK!r} + json.dumps(message), flush=True)
what, _, when = os.environ.get("STUB", "").partition("@")
on = os.environ.get("NCCL_P2P_DISABLE") != "1"
active = when == "always" or (when == "p2p" and on)
say(stage="import torch")
print("rank", rank, "speaks", file=sys.stderr, flush=True)
say(stage="all-reduce of 8192 bytes")
if active and what == "hang": time.sleep(120)
if active and what == "hang1" and rank == 1: time.sleep(120)
if active and what == "die1" and rank == 1: os.kill(os.getpid(), 11)
if active and what == "die1" and rank != 1: time.sleep(120)
if active and what == "lost" and rank == 1: os.kill(os.getpid(), 9)
if active and what == "lost" and rank != 1: time.sleep(0.3); sys.exit(1)
if active and what == "exit": sys.exit(5)
if active and what == "mute": sys.exit(0)
if active and what == "uneven" and rank == 1: sys.exit(0)
wrong = 7 if active and what == "wrong" and rank == 1 else 0
for size in (8192, 64 * 2**20):
    say(bytes=size, seconds=size / 1e9 * (rank + 1), wrong=wrong)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "GRACE_SECONDS", 0.5)


def _run(tmp_path: Path, what: str, seconds: float = 20, **given: Any) -> Any:
    python = stub(tmp_path / "python", RANK)
    environment = {"PATH": PATH, "LOG": str(tmp_path / "log"), "STUB": what}
    environment |= given.pop("environment", {})
    base = {"python": python, "gpus_needed": 3, "collective_seconds": seconds}
    return all_reduce(subject(**{**base, "environment": environment, **given}))


def _log(tmp_path: Path) -> list[Any]:
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def test_right_with_peer_to_peer(tmp_path: Path) -> None:
    decided = _run(tmp_path, "")
    assert decided.findings == ()
    assert decided.verdict.peer_to_peer is True
    # The slowest rank takes 3 s a GB: 64 MiB over 3 ranks, 4/3 of it on the bus.
    assert "3 ranks, 25 us for 8 KiB, bus bandwidth 0.4 GB/s at 64 MiB" in decided.verdict.why
    ranks = _log(tmp_path)
    assert sorted(entry[0] for entry in ranks) == [0, 1, 2]
    assert all("NCCL_P2P_DISABLE" not in entry[3] for entry in ranks)
    assert all(entry[2][entry[2].index("--backend") + 1] == "nccl" for entry in ranks)


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("hang@p2p", "COL001", "hung: all ranks did not finish within 5 s"),
        ("hang1@p2p", "COL001", "hung: rank 1 did not finish"),
        ("die1@p2p", "COL001", "rank 1 was ended by SIGSEGV"),
        ("lost@p2p", "COL001", "rank 1 was ended by SIGKILL"),
        ("exit@p2p", "COL001", "ended with exit code 5"),
        ("wrong@p2p", "COL002", "rank 1 7 wrong values of 8192 bytes"),
    ],
)
def test_wrong_only_over_peer_to_peer(tmp_path: Path, what: str, code: str, says: str) -> None:
    decided = _run(tmp_path, what, seconds=5)
    (finding,) = decided.findings
    assert (finding.code, finding.severity) == (code, Severity.WARNING)
    assert says in finding.what and "without it is right" in finding.what
    assert "\n" not in finding.what
    assert decided.verdict.peer_to_peer is False
    tries = [entry[3].get("NCCL_P2P_DISABLE") for entry in _log(tmp_path)]
    assert sorted(map(str, tries)) == ["1", "1", "1", "None", "None", "None"]
    assert not any(alive(entry[1]) for entry in _log(tmp_path))


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("hang@always", "COL003", "(at: all-reduce of 8192 bytes); last words: rank 0 speaks"),
        ("die1@always", "COL003", "SIGSEGV (at: all-reduce of 8192 bytes)"),
        ("mute@always", "COL003", "ended without a result"),
        ("uneven@always", "COL003", "ended without a result"),
        ("wrong@always", "COL004", "7 wrong values"),
    ],
)
def test_wrong_either_way(tmp_path: Path, what: str, code: str, says: str) -> None:
    decided = _run(tmp_path, what, seconds=5)
    (finding,) = decided.findings
    assert (finding.code, finding.severity) == (code, Severity.ERROR)
    assert says in finding.what and "with peer-to-peer it" in finding.what
    assert decided.verdict.peer_to_peer is False
    assert len(_log(tmp_path)) == 6


def test_switched_off_it_is_tried_without_alone(tmp_path: Path) -> None:
    decided = _run(tmp_path, "wrong@p2p", peer_to_peer="off")
    assert decided.findings == () and decided.verdict.peer_to_peer is False
    assert "DDTREE_PEER_TO_PEER=off" in decided.verdict.why
    assert [entry[3]["NCCL_P2P_DISABLE"] for entry in _log(tmp_path)] == ["1"] * 3


@pytest.mark.parametrize(
    ("what", "code"), [("hang@p2p", "COL003"), ("wrong@p2p", "COL004"), ("", None)]
)
def test_forced_on_there_is_no_second_try(tmp_path: Path, what: str, code: str | None) -> None:
    decided = _run(tmp_path, what, seconds=5, peer_to_peer="on")
    assert ids(decided.findings) == ([code] if code else [])
    assert decided.verdict.peer_to_peer is True
    assert len(_log(tmp_path)) == 3


def test_the_trial_runs_in_the_servers_environment(tmp_path: Path) -> None:
    own = {"NCCL_P2P_LEVEL": "PHB", "NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "eth7"}
    secrets = {"DDTREE_API_KEY": "hidden", "HF_TOKEN": "hidden", "OPENAI_API_KEY": "hidden"}
    _run(tmp_path, "", environment=own | secrets)
    for _, _, _, seen in _log(tmp_path):
        assert own.items() <= seen.items() and "NCCL_P2P_DISABLE" not in seen
        assert "hidden" not in seen.values()


def test_the_users_own_switch_is_the_verdict_for_all_libraries(tmp_path: Path) -> None:
    decided = _run(tmp_path, "hang@p2p", environment={"NCCL_P2P_DISABLE": "1"})
    assert not decided.findings and not decided.verdict.peer_to_peer
    assert len(_log(tmp_path)) == 3
    assert "NCCL_P2P_DISABLE=1" in decided.verdict.why


def test_ranks_take_the_gpus_that_the_server_will(tmp_path: Path) -> None:
    _run(tmp_path, "", first_gpu=4, gpu_step=2)
    for _, _, argv, _ in _log(tmp_path):
        assert argv[argv.index("--first-gpu") :][:4] == ["--first-gpu", "4", "--gpu-step", "2"]


def test_a_signal_leaves_no_rank(tmp_path: Path) -> None:
    """As `serve` and Ctrl-C end a trial: by an exception out of a signal's handler. The ranks do
    not heed TERM."""
    body = RANK + "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)\n"
    python = stub(tmp_path / "python", body)
    program = (
        "import signal, sys\n"
        "def stop(number, frame): raise SystemExit(128 + number)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "from ddtree_overlay.doctor.collective import CHECKS\n"
        "from ddtree_overlay.doctor.model import Hardware\n"
        "from ddtree_overlay.doctor.runner import run_checks\n"
        "from tests.overlay.doctor.model_files import gpus, subject\n"
        f"it = subject(python={python!r}, gpus_needed=2, hardware=gpus(2),\n"
        f"    environment={{'PATH': {PATH!r}, 'LOG': {str(tmp_path / 'log')!r}}})\n"
        "run_checks(it, checks=CHECKS)\n"
    )
    environment = {"PATH": PATH, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (
            (tmp_path / "log").exists() and len(_log(tmp_path)) == 2
        ):
            time.sleep(0.05)
        pids = [pid for _, pid, _, _ in _log(tmp_path)]
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
        assert len(pids) == 2 and not any(map(alive, pids))
    finally:
        process.kill()
        process.wait(10)


def test_small_shared_memory_is_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    monkeypatch.setattr(collective, "_LITTLE_SHM", 2**62)
    decided = _run(tmp_path, "hang@always", seconds=5, root=tmp_path)
    assert "--shm-size" in decided.findings[0].remedy


def test_a_python_that_cannot_be_started(tmp_path: Path) -> None:
    decided = all_reduce(subject(python=str(tmp_path / "none"), gpus_needed=2))
    assert ids(decided.findings) == ["COL003"] and "cannot start" in decided.findings[0].what


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    _run(tmp_path, "hang@p2p", seconds=5)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_bus_bandwidth_is_as_nccl_tests_state_it() -> None:
    trial = Trial.of(8, {8192: 30e-6, 2**26: 2**26 / 20e9})
    assert trial.right and "8 ranks, 30 us for 8 KiB, bus bandwidth 35.0 GB/s" in trial.speed
