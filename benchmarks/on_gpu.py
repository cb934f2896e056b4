#!/usr/bin/env python3
"""Everything that only a GPU shows, in one command and less than ten minutes.

  python3 benchmarks/on_gpu.py [--results DIR]

From the repository's root, on a machine with an NVIDIA GPU and a python3 that has the variant's
torch, NVRTC, setuptools, pip, pytest and hypothesis; with g++, without a network. Builds the
overlay's wheel for this GPU in a temporary folder (the tree stays as it is), runs the ops' tests,
measures, runs compute-sanitizer where there is one, and leaves logs, the numbers and summary.txt in
DIR (default: results-gpu). Exit status: 0 all is well, 1 something is not, 3 no GPU here.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
NO_GPU = 3
TOTAL = 570.0  # seconds of everything
SHIPPED = ("sm_90", "sm_120")
NVRTC = {"12": "nvidia-cuda-nvrtc-cu12", "13": "nvidia-cuda-nvrtc"}
TESTS = ("tests/gpu/test_ops.py", "tests/gpu/test_graph.py")
TOOLKIT = "/usr/local/cuda/bin"
SANITIZERS = ("memcheck", "racecheck", "synccheck")
# One case of each kernel: a sanitizer is slow.
SANITIZED = (
    "test_equals_the_cpu and cuda and (fp16 or shard or build_tree_out or place_tree or"
    " walk_tree or all or visited or count_round or gather_path or (compact_kv and not three))"
)


@dataclass
class Run:
    """The steps of a run: their logs in `results`, their lines in the summary."""

    results: Path
    begin: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)
    failed: bool = False

    def say(self, line: str, *, failed: bool = False) -> None:
        self.failed = self.failed or failed
        self.lines.append(line)
        print(line, flush=True)

    def step(
        self, name: str, command: list[str], limit: float, env: dict[str, str] | None = None
    ) -> bool:
        """Whether `command` succeeded within `limit` seconds and what is left of TOTAL."""
        left = min(limit, TOTAL - (time.monotonic() - self.begin))
        if left <= 1:
            self.say(f"{name}: no time left", failed=True)
            return False
        begin = time.monotonic()
        with (self.results / f"{name}.log").open("w") as log:
            status = _run(command, left, {**os.environ, **(env or {})}, log)
        took = time.monotonic() - begin
        verdict = "ok" if status == 0 else f"FAILED ({status}), see {name}.log"
        self.say(f"{name}: {verdict}, {took:.0f} s", failed=status != 0)
        return status == 0


def _run(command: list[str], limit: float, env: dict[str, str], log: IO[str]) -> int | str:
    """The exit status, or why there is none. What runs too long ends with all that it started."""
    try:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return str(error)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"stopped after {limit:.0f} s"


def find_gpu() -> tuple[str, str] | None:
    """Name and architecture of the first GPU, such as ("NVIDIA H200", "sm_90")."""
    try:
        ran = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader", "--id=0"],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    name, _, capability = ran.stdout.strip().rpartition(", ")
    if ran.returncode != 0 or not name:
        return None
    return name, f"sm_{capability.replace('.', '')}"


def build_environment(arch: str) -> dict[str, str]:
    """The wheel's settings for the installed torch and its NVRTC, with `arch` among the cubins."""
    ran = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.version.cuda)"],
        check=True,
        capture_output=True,
        text=True,
    )
    cuda = ran.stdout.strip()
    return {
        "DDTREE_VARIANT": f"cu{cuda.replace('.', '')}",
        "DDTREE_NVRTC": importlib.metadata.version(NVRTC[cuda.split(".")[0]]),
        "DDTREE_SASS": ",".join(dict.fromkeys((*SHIPPED, arch))),
        "DDTREE_PTX": "compute_120",
        "SOURCE_DATE_EPOCH": "1700000000",
    }


def install_wheel(run: Run, work: Path, environment: dict[str, str]) -> Path | None:
    """The folder in which the freshly built wheel is installed."""
    source, wheels, site = work / "ddtree_overlay", work / "wheels", work / "site"
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT / "ddtree_overlay", source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    build = [*pip, "wheel", *offline, "--no-build-isolation", "-w", str(wheels), str(source)]
    if not run.step("build", build, 300, environment):
        return None
    (wheel,) = wheels.glob("*.whl")
    install = [*pip, "install", *offline, "--target", str(site), str(wheel)]
    return site if run.step("install", install, 60) else None


def count_tests(report: Path) -> tuple[int, int, int]:
    """(run on the GPU and passed, failed on any device, skipped for want of a GPU)."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it here
        on_gpu = "cuda" in case.get("name", "")
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None:
            skipped += on_gpu
        else:
            passed += on_gpu
    return passed, failed, skipped


def run_tests(run: Run, env: dict[str, str]) -> None:
    report = run.results / "tests.xml"
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    options = ["--continue-on-collection-errors", f"--junitxml={report}"]
    run.step("tests", [*pytest, *TESTS, *options], 240, env)
    if not report.is_file():
        return
    passed, failed, skipped = count_tests(report)
    bad = failed > 0 or skipped > 0 or passed == 0
    run.say(f"tests on the GPU: {passed} passed, {skipped} skipped; {failed} failed", failed=bad)


def run_sanitizers(run: Run, env: dict[str, str]) -> None:
    program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=TOOLKIT)
    if program is None:
        run.say(f"compute-sanitizer: neither on the PATH nor in {TOOLKIT}, NOT RUN")
        return
    # Every tensor gets an allocation of its own, so that a step beyond one is seen.
    env = {**env, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS[0]]
    for tool in SANITIZERS:
        # Not what torch or the driver asks for and is refused: our launcher checks its own calls.
        options = ["--error-exitcode", "9", "--report-api-errors", "no"]
        command = [program, "--tool", tool, *options, *pytest, "-k", SANITIZED]
        run.step(tool, command, 100, env)


def measure(run: Run, site: Path, env: dict[str, str]) -> None:
    program = [sys.executable, str(ROOT / "benchmarks/kernels.py")]
    kernels = str(site / "ddtree_overlay/kernels")
    run.step("resources", [*program, "--resources", kernels], 60, env)
    run.step("heap", [*program, "--heap", "--json", str(run.results / "heap.json")], 60, env)
    run.step("kernels", [*program, "--json", str(run.results / "kernels.json")], 180, env)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("results-gpu"), metavar="DIR")
    options = parser.parse_args(arguments)
    gpu = find_gpu()
    if gpu is None:
        print("no NVIDIA GPU here: nothing was run")
        return NO_GPU
    results = options.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    run = Run(results)
    run.say(f"{gpu[0]}, {gpu[1]}")
    with tempfile.TemporaryDirectory() as folder:
        site = install_wheel(run, Path(folder), build_environment(gpu[1]))
        if site is not None:
            path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
            env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
            run_tests(run, env)
            measure(run, site, env)
            run_sanitizers(run, env)
    run.say("something FAILED" if run.failed else "all that ran is well")
    (results / "summary.txt").write_text("\n".join(run.lines) + "\n")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
