"""`ddtree serve` as the container runs it: a process, on hosts that are folders and a stub of NVML.

`python` on PATH is a recorder: what it was started with, in which environment and where.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.selftest.server import free_port
from ddtree_overlay.serve.cli import COMMANDS
from tests.overlay.compiler import require_compiler
from tests.overlay.doctor.fake_host import FakeGpu, FakeHost, gpus
from tests.overlay.doctor.model_files import DRAFTER, TARGET, write_model
from tests.overlay.doctor.nvml import Run, compile_stub, environment_of, run
from tests.overlay.serve.appliance import until

# One of them, by somebody else.
OCCUPIED = (*gpus(7), FakeGpu(7, used_mib=90_000))
KEY = "sk-a-key-that-must-not-be-seen"
# Needs torch; here `python` is the recorder.
SKIPPED = "all-reduce"
RECORDER = f"""#!{sys.executable}
import json, os, sys
fd = os.environ.get("DDTREE_SECRETS_FD")
with open(os.environ["RECORD"], "w") as file:
    json.dump({{
        "argv": sys.argv[1:], "environment": dict(os.environ), "cwd": os.getcwd(),
        "secrets": json.loads(os.fdopen(int(fd)).read()) if fd else None,
    }}, file)
sys.exit(int(os.environ.get("RECORDED_EXIT", "41")))
"""


# `serve` whose checks take long: what a GPU in error or a slow disk makes of them.
SLOW_CHECK = """
import os, pathlib, sys, time
from ddtree_overlay.serve import cli, command

def slow(*_args, **_kwargs):
    (pathlib.Path(os.environ["RECORD"]).parent / "checking").touch()
    time.sleep(60)

command.run_checks = slow
sys.exit(cli.main(["serve"]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_compiler()
    return compile_stub(tmp_path_factory.mktemp("nvml"))


@dataclass
class Container:
    """A folder that stands for a container on a host."""

    folder: Path
    environment: dict[str, str]

    def serve(self, *arguments: str, **variables: str) -> Run:
        environment = {**self.environment, **variables}
        return run(["-m", "ddtree_overlay.serve.cli", *arguments], environment)

    @property
    def record(self) -> dict[str, Any] | None:
        path = self.folder / "record.json"
        return json.loads(path.read_text()) if path.exists() else None


def container(folder: Path, library: Path, host: FakeHost) -> Container:
    recorder = folder / "bin" / "python"
    recorder.parent.mkdir()
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    models = {
        "DDTREE_MODEL": str(write_model(folder / "target", TARGET)),
        "DDTREE_DRAFT_MODEL": str(write_model(folder / "draft", DRAFTER)),
    }
    environment = environment_of(
        host,
        library,
        folder,
        **models,
        RECORD=str(folder / "record.json"),
        DDTREE_PORT=str(free_port()),
        DDTREE_PROBE_PORT=str(free_port()),
        DDTREE_SKIP_CHECKS=SKIPPED,
    )
    environment["PATH"] = f"{recorder.parent}:{environment['PATH']}"
    return Container(folder, environment)


def test_eight_healthy_gpus_are_served_with_what_was_resolved(
    tmp_path: Path, library: Path
) -> None:
    here = container(tmp_path, library, FakeHost())
    (tmp_path / "key").write_text(KEY + "\n")
    ran = here.serve("--tool-call-parser", "qwen", DDTREE_API_KEY_FILE=str(tmp_path / "key"))
    record = here.record
    assert record is not None, ran.err
    argv = record["argv"]
    assert argv[:2] == ["-m", "ddtree_overlay.sglang.http_server"]
    given = dict(zip(argv, [*argv[1:], ""], strict=True))
    assert given["--tp-size"] == "8"
    assert given["--speculative-algorithm"] == "DDTREE"
    assert given["--speculative-ddtree-budget"] == "16"
    assert given["--attention-backend"] == "flashinfer"
    assert given["--page-size"] == "1"
    assert given["--tool-call-parser"] == "qwen"
    assert "--disable-custom-all-reduce" in argv
    assert record["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert record["environment"]["TRITON_CACHE_DIR"].startswith(str(tmp_path / "cache"))
    assert record["secrets"] == {"api_key": KEY}
    assert KEY not in json.dumps([argv, record["environment"]]) + ran.err + ran.out
    # The recorder ended before it was ready: that is a crash, said in one line.
    assert ran.code == 82
    assert len([line for line in ran.err.splitlines() if line.startswith("error: ")]) == 1
    assert f"skipped (--skip-checks): {SKIPPED}" in ran.err


@pytest.mark.parametrize(
    ("host", "code"),
    [
        (FakeHost(gpus=(), library=False), "DRV"),
        (FakeHost(driver="535.104.05", module="535.104.05", cuda=12020), "DRV"),
        (FakeHost(gpus=OCCUPIED), "GPU"),
        (FakeHost(gpus=gpus(mig=1)), "GPU"),
    ],
    ids=["no driver", "old driver", "occupied", "MIG"],
)
def test_a_host_that_cannot_serve_is_told_before_anything_starts(
    tmp_path: Path, library: Path, host: FakeHost, code: str
) -> None:
    here = container(tmp_path, library, host)
    ran = here.serve("serve", "--tp", "8")
    assert ran.code == 74, ran.err
    found = [line for line in ran.err.splitlines() if line.startswith(f"ERROR {code}")]
    assert found, ran.err
    assert here.record is None
    assert "Traceback" not in ran.err


def test_skipped_checks_let_it_start(tmp_path: Path, library: Path) -> None:
    here = container(tmp_path, library, FakeHost(gpus=OCCUPIED))
    ran = here.serve(DDTREE_SKIP_CHECKS=f"{SKIPPED},gpu-memory")
    assert here.record is not None, ran.err
    assert "gpu-memory" in ran.err


def test_dry_run_shows_and_starts_nothing(tmp_path: Path, library: Path) -> None:
    here = container(tmp_path, library, FakeHost())
    ran = here.serve("serve", "--dry-run", "--json", "--max-running-requests", "64")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["settings"]["max_running_requests"]["source"] == "command line"
    # Above the last concurrency at which a tree pays, the profile falls back to the chain.
    assert document["settings"]["algorithm"]["value"] == "DFLASH"
    assert here.record is None


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "says"),
    [
        (["--max-runing-requests", "4"], {}, 69, "--max-running-requests"),
        ([], {"DDTREE_BUGET": "4"}, 69, "DDTREE_BUDGET"),
        ([], {"DDTREE_SERVICE_HOST": "10.0.0.1"}, 69, "enableServiceLinks"),
        (["--budget", "many"], {}, 68, "budget"),
        (["--json"], {}, 64, "--dry-run"),
        (["--profile", "dense-9gpu"], {}, 71, "dense-8gpu"),
    ],
)
def test_wrong_words_are_two_lines_before_the_host_is_looked_at(
    tmp_path: Path,
    library: Path,
    arguments: list[str],
    variables: dict[str, str],
    code: int,
    says: str,
) -> None:
    here = container(tmp_path, library, FakeHost(gpus=(), library=False))
    ran = here.serve("serve", *arguments, **variables)
    assert (ran.code, ran.err.count("\n")) == (code, 2), ran.err
    assert says in ran.err
    assert here.record is None


def test_help_teaches_and_hands_over_to_sglangs(tmp_path: Path, library: Path) -> None:
    here = container(tmp_path, library, FakeHost())
    ran = here.serve("serve", "--help")
    assert ran.code == 41
    assert "--draft-model" in ran.out and "--dry-run" in ran.out
    assert here.record is not None
    assert here.record["argv"] == ["-m", "ddtree_overlay.sglang.http_server", "--help"]


def test_its_probe_port_taken_is_one_error(tmp_path: Path, library: Path) -> None:
    import socket

    here = container(tmp_path, library, FakeHost())
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", int(here.environment["DDTREE_PROBE_PORT"])))
        taken.listen()
        ran = here.serve()
    assert ran.code == 88, ran.err
    assert ran.err.count("\n") == 2


def test_dry_run_shows_sglangs_defaults_on_demand(tmp_path: Path, library: Path) -> None:
    here = container(tmp_path, library, FakeHost())
    brief, whole = (here.serve("--dry-run", *more) for more in ([], ["--all"]))
    assert (brief.code, whole.code) == (0, 0)
    assert "--schedule-policy" in whole.out and "--schedule-policy" not in brief.out
    assert here.serve("--all").code == 64


@pytest.mark.parametrize("count", [1, 2, 8])
def test_what_is_shown_is_what_the_server_gets(tmp_path: Path, library: Path, count: int) -> None:
    here = container(tmp_path, library, FakeHost(gpus=gpus(count=count)))
    shown = json.loads(here.serve("--dry-run", "--json", PYTHONDONTWRITEBYTECODE="1").out)
    ran = here.serve(PYTHONDONTWRITEBYTECODE="1", DDTREE_PEER_TO_PEER="auto")
    record = here.record
    assert record is not None, ran.err
    assert record["argv"][2:] == shown["argv"]
    had = {name: value["value"] for name, value in shown["environment"].items()}
    assert {name: record["environment"][name] for name in had} == had
    assert had["PYTHONDONTWRITEBYTECODE"] == ""
    assert had["PYTHONPYCACHEPREFIX"].startswith(str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_stop_during_the_checks_starts_nothing(tmp_path: Path, library: Path, name: str) -> None:
    here = container(tmp_path, library, FakeHost())
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW_CHECK)
    process = subprocess.Popen(
        [sys.executable, str(slow)], env=here.environment, stderr=subprocess.PIPE, text=True
    )
    try:
        until((tmp_path / "checking").exists, "the checks run")
        process.send_signal(signal.Signals[name])
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert said.splitlines()[-1] == f"ddtree: {name} during the checks: nothing was started"
    assert here.record is None


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(tmp_path: Path, library: Path, command: str) -> None:
    here = container(tmp_path, library, FakeHost())
    ran = here.serve(command, "--help")
    assert ran.code in (0, 41), ran.err  # 41: handed over to SGLang's
    assert f"ddtree {command}" in ran.out
