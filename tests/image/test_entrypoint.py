"""What `docker run IMAGE ...` does for each kind of argument."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import docker
import pytest

from builder.pins import Target
from tests.image.conftest import Ran

pytestmark = pytest.mark.docker


def test_version_prints_the_stack(run_image: Callable[..., Ran], target: Target) -> None:
    ran = run_image("version")
    assert ran.returncode == 0, ran.stderr
    for word in (target.variant, target.torch.version, target.shared.sglang.version):
        assert word in ran.stdout


def test_version_json_is_machine_readable(run_image: Callable[..., Ran], target: Target) -> None:
    ran = run_image("version", "--json")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["variant"] == target.variant
    assert document["stand_in"] is target.stand_in


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


def test_runs_as_any_user_without_root(run_image: Callable[..., Ran]) -> None:
    for user in (None, "4711", "4711:0"):
        ran = run_image("python", "-c", "import os; print(os.getuid())", user=user)
        assert ran.returncode == 0, ran.stderr
        assert int(ran.stdout) == (4711 if user else 10001)


def test_version_works_on_a_read_only_root(run_image: Callable[..., Ran]) -> None:
    assert run_image("version", read_only=True).returncode == 0


def test_stand_in_refuses_a_gpu(
    run_image: Callable[..., Ran], target: Target, tmp_path: Any
) -> None:
    """A device node is what a GPU looks like to the check; a real variant gets past it."""
    devices = ["/dev/null:/dev/nvidiactl:rw"]
    ran = run_image("serve", "--dry-run", "--device", "cpu", "--model", "m", devices=devices)
    if target.stand_in:
        assert ran.returncode == 65, ran.stderr
        assert "stand-in" in ran.stderr
        assert "Traceback" not in ran.stderr
    else:
        assert ran.returncode == 0, ran.stderr[-2000:]


def test_help_is_ours_and_then_sglangs(run_image: Callable[..., Ran]) -> None:
    ran = run_image("serve", "--help")
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.index("--dry-run") < ran.stdout.index("--speculative-ddtree-budget")


def test_init_is_tini_and_the_form_is_exec(engine: docker.DockerClient, image: str) -> None:
    config = engine.images.get(image).attrs["Config"]
    assert config["Entrypoint"][0].endswith("tini")
    assert config["Cmd"] == ["serve"]
    assert config["User"] not in ("", "0", "root")


def test_nothing_of_the_build_host_is_in_the_history(
    engine: docker.DockerClient, image: str
) -> None:
    from builder.project import default_project

    text = json.dumps(engine.images.get(image).history())
    for word in (str(default_project().root), str(default_project().cache)):
        assert word not in text


def test_no_program_changes_its_user_and_nothing_is_open_to_all(run_in: Callable[..., Ran]) -> None:
    """Beside Debian's sticky folders; looked at as root, so that no folder is passed over."""
    for expression in ("-type f -perm /6000", "-perm -0002 ! -type l ! -perm -1000"):
        ran = run_in("sh", "-c", f"find / -xdev {expression}", user="0")
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_build_hosts_package_mirror_is_not_in_the_image(host: Any) -> None:
    document = json.loads(host.file("/opt/ddtree/manifest.json").content_string)
    if document["base"]["kind"] == "bootstrap":
        listed = host.check_output("cat /etc/apt/sources.list /etc/apt/sources.list.d/* || true")
        assert listed == ""
