"""The command against stub servers: what passes, what fails, what cannot run, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddtree_overlay.selftest.workload import CHATS, TEXTS
from tests.overlay.selftest.conftest import Bench, set_up


def receipt(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(done.stdout)
    return found


def failed(done: subprocess.CompletedProcess[str]) -> set[str]:
    checks = receipt(done)["checks"]
    assert isinstance(checks, list)
    return {check["name"] for check in checks if not check["passed"]}


def test_two_servers_that_agree_pass(bench: Bench) -> None:
    done = bench.run("--json", "--receipt", "receipt.json")
    assert done.returncode == 0, done.stderr
    found = receipt(done)
    assert found == json.loads((bench.root / "receipt.json").read_text())
    assert found["result"] == "pass" and found["error"] is None
    assert str(found["claim"]).startswith("CPU-verified")
    assert any("GPU" in one for one in found["not_proven"])  # type: ignore[attr-defined]
    assert found["image"]["build_id"] == "b-123"  # type: ignore[index]
    assert found["requests_per_server"] == 2 * len(TEXTS) + len(CHATS) + 2 + 6 + 4
    assert len(str(found["greedy_tokens_sha256"])) == 64
    assert not failed(done)
    assert bench.left() == []
    assert list((bench.root / "tmp").iterdir()) == []


FAULTS = {
    "token": {"alone", "together", "grammar"},
    "ends": {"alone", "together", "grammar"},
    "finish": {"alone", "together", "grammar"},
    "stream": {"streamed"},
    "chat": {"chat"},
    "grammar": {"grammar"},
    "sampled": {"sampled"},
    "both": {"recorded"},
    "one-piece": {"stream"},
    "no-grammar": {"constrained"},
    "no-trees": {"trees", "off-spine"},
    "chains": {"trees", "off-spine"},
    "fall-backs": {"trees"},
    "slow": {"accept length"},
    "no-metric": {"metrics"},
}
# Each run mostly waits for its servers.
TOGETHER = 4


@pytest.fixture(scope="module")
def faulty(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, tuple[Bench, subprocess.CompletedProcess[str]]]]:
    """A run of each fault."""
    benches = {fault: set_up(tmp_path_factory.mktemp("bench")) for fault in FAULTS}

    def run(fault: str) -> subprocess.CompletedProcess[str]:
        return benches[fault].run("--json", "--receipt", "receipt.json", fault=fault)

    try:
        with ThreadPoolExecutor(TOGETHER) as pool:
            done = dict(zip(FAULTS, pool.map(run, FAULTS), strict=True))
        yield {fault: (benches[fault], done[fault]) for fault in FAULTS}
    finally:
        for bench in benches.values():
            for pid in bench.left():
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("fault", "checks"), FAULTS.items())
def test_each_kind_of_fault_fails_its_check_alone(
    faulty: dict[str, tuple[Bench, subprocess.CompletedProcess[str]]],
    fault: str,
    checks: set[str],
) -> None:
    bench, done = faulty[fault]
    assert done.returncode == 77, done.stderr
    assert failed(done) - {"grammar"} == checks - {"grammar"}
    assert ("grammar" in failed(done)) == ("grammar" in checks)
    found = json.loads((bench.root / "receipt.json").read_text())
    assert found["result"] == "fail"
    assert found["claim"].startswith("nothing")
    assert bench.left() == []


def test_a_mismatch_is_shown_with_prompt_and_position(bench: Bench) -> None:
    done = bench.run(fault="token")
    assert done.returncode == 77
    error = done.stderr.splitlines()[-2]
    assert error.startswith("error: ") and "alone/class, position 3: token 7777 instead of" in error
    assert "FAIL  alone" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("FAIL: nothing")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("dies", "the drafter is another target's"),
        ("dies-asked", "illegal memory access"),
        ("refuses", "regex is not supported"),
        ("takes-back", "took back tokens"),
    ],
)
def test_a_server_that_fails_cannot_be_tested(bench: Bench, fault: str, says: str) -> None:
    done = bench.run("--json", fault=fault)
    assert done.returncode == 78, done.stderr
    assert says in done.stderr and "the DDTREE server" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("remedy: ")
    assert "Traceback" not in done.stderr
    assert receipt(done)["result"] == "error" and says in str(receipt(done)["error"])
    assert bench.left() == []


@pytest.mark.parametrize("fault", ["never-ready", "hangs"])
def test_a_hang_ends(bench: Bench, fault: str) -> None:
    began = time.monotonic()
    done = bench.run("--timeout", "4", fault=fault)
    assert done.returncode == 78, done.stderr
    assert time.monotonic() - began < 60
    assert "time" in done.stderr
    assert bench.left() == []


def test_logs_are_kept_where_asked(bench: Bench) -> None:
    done = bench.run("--keep-logs", "logs/here", fault="dies")
    assert done.returncode == 78
    assert "another target" in (bench.root / "logs/here/DDTREE.log").read_text()
    assert (bench.root / "logs/here/plain.log").exists()


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        ("never-ready", signal.SIGTERM),
        ("never-ready", signal.SIGINT),
        ("hangs", signal.SIGHUP),
        ("stubborn-hangs", signal.SIGTERM),
    ],
)
def test_a_signal_leaves_nothing(bench: Bench, number: signal.Signals, fault: str) -> None:
    more = {"STUB_STUBBORN": "1"} if fault.startswith("stubborn") else {}
    process = bench.start(fault=fault.removeprefix("stubborn-"), **more)
    deadline = time.monotonic() + 60
    while not (bench.root / "stub/tree.child").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    assert bench.left()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert bench.left() == []
    assert list((bench.root / "tmp").iterdir()) == []


def test_the_servers_are_started_for_a_cpu(bench: Bench) -> None:
    more = {
        "DDTREE_MODEL": "/models/x",
        "DDTREE_API_KEY": "secret",
        "HOME": str(bench.root / "manifest.json/home"),
    }
    assert bench.run("--json", **more).returncode == 0
    for name in ("plain", "tree"):
        started = bench.started(name)
        argv, environment = started["argv"], started["environment"]
        assert argv[argv.index("--host") + 1] == "127.0.0.1"
        assert argv[argv.index("--device") + 1] == "cpu"
        assert ("--speculative-algorithm" in argv) == (name == "tree")
        assert environment["DDTREE_CPU_PROOF"] == "1"
        assert environment["CUDA_VISIBLE_DEVICES"] == ""
        assert environment["HF_HUB_OFFLINE"] == "1"
        assert not {"DDTREE_MODEL", "DDTREE_API_KEY"} & set(environment)
        # An unwritable home is replaced, and the working folder is not the user's.
        assert environment["HOME"].startswith(str(bench.root / "tmp"))
        assert started["cwd"].startswith(str(bench.root / "tmp"))
        assert environment["TMPDIR"].startswith(str(bench.root / "tmp"))
    assert "DDTREE_CPU_PROOF" not in os.environ


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tp", "3"], "two heads"),
        (["--tp", "0"], "two heads"),
        (["--timeout", "0"], "no bound"),
        (["--timeout", "nan"], "no bound"),
        (["--device", "tpu"], "invalid choice"),
        (["--recei", "x"], "unrecognized"),
        (["x"], "unrecognized"),
    ],
)
def test_wrong_arguments_are_refused_at_once(bench: Bench, arguments: list[str], says: str) -> None:
    done = bench.run(*arguments)
    assert done.returncode == 64
    assert says in done.stderr and "usage" not in done.stderr
    assert list((bench.root / "stub").iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [["--receipt", "none/receipt.json"], ["--receipt", "tmp"], ["--keep-logs", "manifest.json"]],
)
def test_what_cannot_be_written_is_refused_before_anything_starts(
    bench: Bench, arguments: list[str]
) -> None:
    done = bench.run(*arguments)
    assert done.returncode == 78, done.stderr
    assert "cannot be written" in done.stderr
    assert list((bench.root / "stub").iterdir()) == []


def test_help_is_on_stdout(bench: Bench) -> None:
    done = bench.run("--help")
    assert done.returncode == 0
    assert "--keep-logs" in done.stdout


def test_a_stand_in_image_refuses_a_gpu_as_serve_does(bench: Bench) -> None:
    (bench.root / "manifest.json").write_text(json.dumps({"stand_in": True}))
    assert bench.run("--json").returncode == 0
    bench.gpu()
    for device in ("auto", "cpu", "cuda"):
        done = bench.run("--device", device)
        assert done.returncode == 65
        assert "stand-in" in done.stderr


def test_no_program_to_start(bench: Bench) -> None:
    python = bench.root / "bin/python"
    python.write_text("#!/does/not/exist\n")
    done = bench.run()
    assert done.returncode == 78
    assert "cannot be started" in done.stderr


def test_no_place_for_temporary_files(bench: Bench, tmp_path: Path) -> None:
    done = bench.run(TMPDIR=str(tmp_path / "none"))
    assert done.returncode == 78
    assert "--tmpfs /tmp" in done.stderr
