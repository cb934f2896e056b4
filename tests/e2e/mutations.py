"""Apply each breakage to a copy of the overlay and require that its test sees it.

  mutations.py MODELS PROOF.json OUT.json

Runs inside the image (with pytest and hypothesis on PYTHONPATH). A copy of the installed package
shadows it, first unchanged: then every named test must pass. With a breakage, the test named for it
must fail; a test that cannot run does not count as failed. Exit status 1 where that is not so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.e2e.breakages import BREAKAGES, Breakage  # noqa: E402

FIRST_PORT, PARALLEL = 31380, 2
PYTEST_SECONDS, QUICK_SECONDS = 300, 500
QUICK = "quick:"


def apply(breakage: Breakage, package: Path) -> None:
    """Change the file. Raises ValueError unless `old` occurs exactly once."""
    path = package / breakage.file
    text = path.read_text("utf-8")
    if text.count(breakage.old) != 1:
        raise ValueError(
            f"{breakage.name}: {breakage.old!r} occurs {text.count(breakage.old)} times in "
            f"{breakage.file}, not once: adapt tests/e2e/breakages.py to the code"
        )
    path.write_text(text.replace(breakage.old, breakage.new), "utf-8")


def installed_package() -> Path:
    spec = importlib.util.find_spec("ddtree_overlay")
    assert spec is not None and spec.origin is not None, "the ddtree-overlay wheel is not installed"
    return Path(spec.origin).parent


class Runner:
    """Runs named tests against a copy of the package."""

    def __init__(self, models: Path, proof: Path, work: Path) -> None:
        self._models, self._proof, self._work = models, proof, work
        self._ports: SimpleQueue[int] = SimpleQueue()
        for number in range(PARALLEL):
            self._ports.put(FIRST_PORT + number)

    def copy(self, name: str) -> Path:
        """A folder to put on PYTHONPATH."""
        folder = self._work / "".join(c if c.isalnum() else "-" for c in name)
        shutil.copytree(
            installed_package(),
            folder / "ddtree_overlay",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        return folder

    def pytest(self, folder: Path, *nodes: str) -> tuple[set[str], str]:
        """Of the named tests those that failed (a parameter of theirs is enough), and the output.

        Raises RuntimeError where pytest could not run them.
        """
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"),
                *("-p", "tests.e2e.unshrunk", "--assert=plain"),
                *("-rf", "-c", os.devnull, "--rootdir", str(ROOT)),
                *(str(ROOT / node) for node in nodes),
            ],
            env=self._environment(folder),
            capture_output=True,
            text=True,
            timeout=PYTEST_SECONDS,
            check=False,
            cwd=self._work,
        )
        if done.returncode not in (0, 1) or " skipped" in done.stdout.splitlines()[-1]:
            raise RuntimeError(f"{nodes} could not run:\n{done.stdout[-1500:]}{done.stderr[-500:]}")
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
        seen = {node for node in nodes if any(node.split("/")[-1] in line for line in failed)}
        return seen, done.stdout[-1500:]

    def quick(self, folder: Path, accept: float) -> dict[str, object]:
        """quick.py's result."""
        port = self._ports.get()
        out = folder / "quick.json"
        try:
            subprocess.run(
                [
                    *(sys.executable, str(ROOT / "tests/e2e/quick.py"), str(self._models)),
                    *(str(self._proof), str(out), "--accept", str(accept), "--port", str(port)),
                ],
                env=self._environment(folder),
                capture_output=True,
                timeout=QUICK_SECONDS,
                check=False,
            )
        finally:
            self._ports.put(port)
        result: dict[str, object] = json.loads(out.read_text("utf-8"))
        return result

    @staticmethod
    def _environment(folder: Path) -> dict[str, str]:
        paths = [str(folder), os.environ.get("PYTHONPATH", ""), str(ROOT)]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def judge(self, breakage: Breakage, accept: float) -> dict[str, object]:
        """Whether the breakage is seen by its test, and what was seen."""
        began = time.monotonic()
        folder = self.copy(breakage.name)
        apply(breakage, folder / "ddtree_overlay")
        notes: object
        if breakage.test.startswith(QUICK):
            result = self.quick(folder, accept)
            seen, notes = result["failed"], result["notes"]
            assert isinstance(seen, list)
            caught = breakage.test.removeprefix(QUICK) in seen
        else:
            failed, notes = self.pytest(folder, breakage.test)
            caught = breakage.test in failed
        return {
            "name": breakage.name,
            "test": breakage.test,
            "caught": caught,
            "seconds": round(time.monotonic() - began, 1),
            "notes": "" if caught else notes,
        }


def main() -> int:
    models, proof, out = map(Path, sys.argv[1:4])
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(PARALLEL) as pool:
        runner = Runner(models, proof, Path(work))
        unchanged = runner.copy("unchanged")
        nodes = sorted({b.test for b in BREAKAGES if not b.test.startswith(QUICK)})
        quick = pool.submit(runner.quick, unchanged, 0.0)
        failed, output = pool.submit(runner.pytest, unchanged, *nodes).result()
        healthy = quick.result()
        if failed or healthy["failed"]:
            print(f"unchanged, these fail: {failed} {healthy}\n{output}")
            return 1
        accept = healthy["accept"]
        assert isinstance(accept, float)
        # Servers first: they take longest.
        order = sorted(BREAKAGES, key=lambda b: not b.test.startswith(QUICK))
        found = list(pool.map(lambda b: runner.judge(b, accept), order))
    out.write_text(json.dumps({"accept": accept, "breakages": found}), "utf-8")
    for one in found:
        print(json.dumps(one))
    return 0 if all(one["caught"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
