"""What `docker run IMAGE ...` does for each kind of argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.image.conftest import Ran

pytestmark = pytest.mark.docker


def test_version_prints_the_stack(run_image: Callable[..., Ran], manifest: dict[str, Any]) -> None:
    ran = run_image("version")
    assert ran.returncode == 0, ran.stderr
    found = manifest["observed"]
    for word in (manifest["variant"], found["torch"], found["sglang"], manifest["build_id"]):
        assert word in ran.stdout


def test_any_other_program_is_executed(run_image: Callable[..., Ran]) -> None:
    ran = run_image("python", "-c", "print('hello from python')")
    assert (ran.returncode, ran.stdout.strip()) == (0, "hello from python")


def test_unknown_program_is_one_clear_line(run_image: Callable[..., Ran]) -> None:
    ran = run_image("no-such-program")
    assert ran.returncode == 127
    assert "no-such-program" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_exit_status_of_the_program_is_the_containers(run_image: Callable[..., Ran]) -> None:
    assert run_image("sh", "-c", "exit 7").returncode == 7


def test_stand_in_refuses_a_gpu(
    run_image: Callable[..., Ran], manifest: dict[str, Any], bytecode: dict[str, Any]
) -> None:
    """A device node is what a GPU looks like to the check; a real variant gets past it."""
    devices = ["/dev/null:/dev/nvidiactl:rw"]
    ran = run_image(
        "serve", "--dry-run", "--device", "cpu", "--model", "m", devices=devices, **bytecode
    )
    if manifest["stand_in"]:
        assert ran.returncode == 65, ran.stderr
        assert "stand-in" in ran.stderr
        assert "Traceback" not in ran.stderr
    else:
        assert ran.returncode == 0, ran.stderr[-2000:]


def test_help_is_ours_and_then_sglangs(
    run_image: Callable[..., Ran], bytecode: dict[str, Any]
) -> None:
    ran = run_image("serve", "--help", **bytecode)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.index("--dry-run") < ran.stdout.index("--speculative-ddtree-budget")


def test_init_is_tini_and_the_form_is_exec(config: dict[str, Any], host: Any) -> None:
    assert config["Entrypoint"] == ["/usr/bin/tini", "--", "ddtree"]
    assert config["Cmd"] == ["serve"]
    assert config["StopSignal"] == "SIGTERM"
    assert "30000/tcp" in config["ExposedPorts"]
    assert host.file("/usr/bin/tini").mode & 0o111 == 0o111
    # The first process of a running container, and its only one beside ours.
    assert host.file("/proc/1/comm").content_string.strip() == "tini"
