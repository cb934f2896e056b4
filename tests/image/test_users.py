"""Who runs in the container, under any UID, and what it may write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.image.conftest import Ran

pytestmark = pytest.mark.docker

CACHE = "/var/cache/ddtree"
ANYBODY = "4711:0"  # as OpenShift starts it: a UID that the image does not know, in group 0


def test_the_images_user_is_a_number_and_not_root(config: dict[str, Any]) -> None:
    """A number, because Kubernetes refuses runAsNonRoot for a name."""
    user, _, group = config["User"].partition(":")
    assert user.isdigit() and int(user) >= 10000
    assert group == "0"


def test_the_user_of_the_idle_container_is_the_images(host: Any, config: dict[str, Any]) -> None:
    assert host.check_output("echo $(id -u):$(id -g)") == config["User"]


def test_no_account_of_the_image_can_log_in(run_in: Callable[..., Ran]) -> None:
    ran = run_in("cat", "/etc/shadow", user="0")
    assert ran.returncode == 0, ran.stderr
    passwords = {line.split(":")[0]: line.split(":")[1] for line in ran.stdout.splitlines()}
    assert "root" in passwords
    assert not [name for name, word in passwords.items() if word[:1] not in ("*", "!")]


@pytest.mark.parametrize("user", ["", "4711", ANYBODY])
def test_runs_as_any_user(run_in: Callable[..., Ran], user: str) -> None:
    """The entry point, and what asks for a name that such a user does not have."""
    code = "import getpass, os, pathlib; print(os.getuid(), getpass.getuser(), pathlib.Path.home())"
    ran = run_in("ddtree", "python", "-c", code, user=user)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [user.split(":", maxsplit=1)[0] or "10001", "ddtree", CACHE]


def test_folders_to_write_to_are_group_0s_and_where_volumes_go(
    host: Any, run_in: Callable[..., Ran]
) -> None:
    for path in (CACHE, "/models"):
        folder = host.file(path)
        assert (folder.user, folder.group, folder.mode) == ("root", "root", 0o2775)
    writable = "find / -xdev -type d -writable ! -path '/proc*' ! -path '/bytecode*' 2>/dev/null"
    ran = run_in("sh", "-c", f"{writable}; touch {CACHE}/probe && rm {CACHE}/probe", user=ANYBODY)
    assert ran.returncode == 0, ran.stderr
    found = {line for line in ran.stdout.split() if not line.startswith((CACHE + "/", "/tmp/"))}
    assert found - {"/tmp", "/var/tmp", "/run/lock"} == {CACHE, "/models"}


def test_another_group_may_write_nothing_of_ours(run_in: Callable[..., Ran]) -> None:
    ran = run_in("sh", "-c", f"touch {CACHE}/probe; touch /opt/ddtree/probe", user="4711:4711")
    assert ran.returncode != 0
    assert ran.stderr.count("Permission denied") == 2


def test_version_works_on_a_read_only_root_as_anybody(run_image: Callable[..., Ran]) -> None:
    ran = run_image("version", read_only=True, user=ANYBODY, cap_drop=["ALL"])
    assert ran.returncode == 0, ran.stderr
