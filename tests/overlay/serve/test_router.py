"""The router's key comes from a file, and the command line of no process shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_overlay.serve.errors import RouterMissingError, SecretError, UsageError
from ddtree_overlay.serve.router import with_key

FLAGS = ["--worker-urls", "http://a:1", "--port=2"]

STUB = """
import json, sys, time
def parse_router_args(arguments):
    return arguments
def launch_router(arguments):
    with open("/proc/self/cmdline") as file:
        shown = file.read()
    print(json.dumps({"given": arguments, "shown": shown}))
"""


def run(folder: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The module as the image runs it, with a stub of SGLang's router unless `folder` has none."""
    import ddtree_overlay

    source = str(Path(ddtree_overlay.__file__).parents[1])
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DDTREE_")}
    return subprocess.run(
        [sys.executable, "-m", "ddtree_overlay.serve.router", *flags],
        env={**kept, "PYTHONPATH": f"{folder}:{source}", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    package = tmp_path / "sglang_router"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_router.py").write_text(STUB)
    return tmp_path


def test_the_key_of_the_file_is_given_and_not_shown(stub: Path) -> None:
    key = stub / "key"
    key.write_text("sesame\n")
    ran = run(stub, *FLAGS, DDTREE_API_KEY_FILE=str(key))
    assert ran.returncode == 0, ran.stderr
    assert '"--api-key=sesame"' in ran.stdout
    assert "sesame" not in ran.stdout.split('"shown"')[1]
    assert "--worker-urls" in ran.stdout.split('"shown"')[1]
    assert ran.stderr == ""


def test_without_a_key_it_warns_and_serves(stub: Path) -> None:
    ran = run(stub, *FLAGS)
    assert ran.returncode == 0
    assert "--api-key" not in ran.stdout
    assert "warning: no API key" in ran.stderr


@pytest.mark.parametrize("content", ["", "\n", "two\nlines\n"])
def test_a_file_that_holds_no_key_is_refused(stub: Path, content: str) -> None:
    key = stub / "key"
    key.write_text(content)
    ran = run(stub, *FLAGS, DDTREE_API_KEY_FILE=str(key))
    assert ran.returncode == SecretError.exit_code
    assert ran.stdout == ""
    assert [line.split(":")[0] for line in ran.stderr.splitlines()] == ["error", "remedy"]


def test_value_and_file_at_once_are_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    both = {"DDTREE_API_KEY": "k", "DDTREE_API_KEY_FILE": str(tmp_path / "key")}
    with pytest.raises(SecretError):
        with_key(FLAGS, both)


@pytest.mark.parametrize("given", [["--api-key", "k"], ["--api-key=k"]])
def test_a_key_on_the_command_line_is_refused(given: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        with_key([*FLAGS, *given], {})
    assert "=k" not in caught.value.what


def test_an_image_without_a_router_says_so(tmp_path: Path) -> None:
    package = tmp_path / "sglang_router"  # hides one that is installed
    package.mkdir()
    (package / "__init__.py").touch()
    ran = run(tmp_path, *FLAGS)
    assert ran.returncode == RouterMissingError.exit_code
    assert "Traceback" not in ran.stderr
