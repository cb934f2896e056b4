"""deploy/appliance.py with a stub `docker` that records its calls: nothing is lost, whatever fails."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddtree_overlay.serve.catalogue import BY_NAME
from deploy import appliance
from tests.deploy.conftest import ROOT, clean

SCRIPT = ROOT / "deploy/appliance.py"
OLD = "registry.example/ddtree@sha256:" + "a" * 64
NEW = "registry.example/ddtree@sha256:" + "b" * 64
OLDER = "registry.example/ddtree@sha256:" + "c" * 64

# Fails for what the variables name; `sick` is a list of images that never become healthy.
STUB = """\
#!{python}
import json, os, sys, time
words, image = sys.argv[1:], os.environ.get("DDTREE_IMAGE")
with open(os.environ["STUB_CALLS"], "a") as file:
    file.write(json.dumps([words, image]) + "\\n")
sick = os.environ.get("STUB_SICK", "").split()
if words == ["compose", "version"]:
    sys.exit("STUB_NO_COMPOSE" in os.environ)
if words[0] == "pull":
    time.sleep(60 if "STUB_SLOW_PULL" in os.environ else 0)
    sys.exit("STUB_NO_PULL" in os.environ)
if words[:2] == ["image", "inspect"]:
    known = json.loads(os.environ.get("STUB_IMAGES", "{{}}")).get(words[-1])
    if known is None:
        sys.exit(1)
    print(known["digests" if "RepoDigests" in words[3] else "id"])
    sys.exit(0)
if "config" in words:
    sys.exit("STUB_BAD_CONFIG" in os.environ)
if "up" in words:
    if "STUB_SLOW" in os.environ and image == os.environ["STUB_SLOW"]:
        time.sleep(60)
    sys.exit(image in sick)
"""


@dataclass
class Place:
    """A folder with compose.yaml and .env, and a docker of its own on PATH."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> Path:
        return self.folder / ".env"

    def argv(self, *arguments: str) -> list[str]:
        options = ("--folder", str(self.folder), "--wait-seconds", "5")
        return [sys.executable, str(SCRIPT), *options, *arguments]

    def variables(self, **extra: str) -> dict[str, str]:
        return clean(
            {
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "STUB_CALLS": str(self.folder / "calls"),
                **extra,
            }
        )

    def run(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*arguments),
            env=self.variables(**extra),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def calls(self) -> list[tuple[list[str], str | None]]:
        """What docker was called with, but for the question whether compose is there."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [(words, image) for words, image in found if words != ["compose", "version"]]

    def ups(self) -> list[tuple[str, str | None]]:
        """Service and image of each `docker compose up`."""
        return [(words[-1], image) for words, image in self.calls() if "up" in words]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin/docker"
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(0o755)
    (tmp_path / "compose.yaml").touch()
    made = Place(tmp_path)
    made.env.write_text(
        f"# ours\nDDTREE_IMAGE={OLD}\nDDTREE_MODELS=/m # spaces\nDDTREE_PREVIOUS_IMAGE={OLDER}\n"
    )
    made.env.chmod(0o640)
    return made


def test_upgrade_serves_the_new_image_and_remembers_the_old(place: Place) -> None:
    ran = place.run("upgrade", NEW)
    assert ran.returncode == 0, ran.stderr
    assert place.env.read_text() == (
        f"# ours\nDDTREE_IMAGE={NEW}\nDDTREE_MODELS=/m # spaces\nDDTREE_PREVIOUS_IMAGE={OLD}\n"
    )
    assert place.env.stat().st_mode & 0o777 == 0o640
    assert place.ups() == [("appliance", NEW)]
    words = [words for words, _ in place.calls()]
    assert ["pull", NEW] in words
    up = next(w for w in words if "up" in w)
    assert {"--detach", "--wait", "--wait-timeout", "--no-deps"} <= set(up)
    assert words.index(["pull", NEW]) < words.index(up)
    assert NEW in ran.stdout
    assert OLD in ran.stdout


def test_an_image_that_is_here_by_digest_is_not_pulled(place: Place) -> None:
    known = json.dumps({NEW: {"id": "sha256:1", "digests": NEW}})
    assert place.run("upgrade", NEW, STUB_IMAGES=known).returncode == 0
    assert "pull" not in [words[0] for words, _ in place.calls()]


def test_rollback_and_back_again(place: Place) -> None:
    place.env.write_text(f"DDTREE_IMAGE={NEW}\nDDTREE_PREVIOUS_IMAGE={OLD}\n")
    assert place.run("rollback").returncode == 0
    assert place.env.read_text() == f"DDTREE_IMAGE={OLD}\nDDTREE_PREVIOUS_IMAGE={NEW}\n"
    assert place.run("rollback").returncode == 0
    assert place.env.read_text() == f"DDTREE_IMAGE={NEW}\nDDTREE_PREVIOUS_IMAGE={OLD}\n"


def test_a_sick_image_is_replaced_by_the_old_one(place: Place) -> None:
    before = place.env.read_text()
    ran = place.run("upgrade", NEW, STUB_SICK=NEW)
    assert ran.returncode == appliance.BACK
    assert place.ups() == [("appliance", NEW), ("appliance", OLD)]
    assert place.env.read_text() == before
    assert f"{OLD} serves again" in ran.stderr
    # What the new one said is shown before its container is gone.
    order = [w[-1] if "up" in w else "logs" for w, _ in place.calls() if {"up", "logs"} & set(w)]
    assert order == ["appliance", "logs", "appliance"]


def test_a_sick_rollback_comes_back_too(place: Place) -> None:
    assert place.run("rollback", STUB_SICK=OLDER).returncode == appliance.BACK
    assert place.ups() == [("appliance", OLDER), ("appliance", OLD)]


def test_nothing_healthy_is_said(place: Place) -> None:
    before = place.env.read_text()
    ran = place.run("upgrade", NEW, STUB_SICK=f"{NEW} {OLD}")
    assert ran.returncode == appliance.DOWN
    assert "nothing healthy serves" in ran.stderr
    assert place.env.read_text() == before


@pytest.mark.parametrize("content", [None, "", "DDTREE_MODELS=/m\n", "DDTREE_IMAGE=\n"])
def test_a_first_install(place: Place, content: str | None) -> None:
    place.env.unlink()
    if content is not None:
        place.env.write_text(content)
    assert place.run("upgrade", NEW).returncode == 0
    assert f"DDTREE_IMAGE={NEW}" in place.env.read_text()
    assert "PREVIOUS" not in place.env.read_text()
    if content is None:  # it may come to hold a key
        assert place.env.stat().st_mode & 0o777 == 0o600
    assert place.run("rollback").returncode == appliance.REFUSED


def test_a_first_install_that_fails_leaves_no_image_behind(place: Place) -> None:
    place.env.write_text("DDTREE_MODELS=/m\n")
    assert place.run("upgrade", NEW, STUB_SICK=NEW).returncode == appliance.DOWN
    assert place.env.read_text() == "DDTREE_MODELS=/m\n"


@pytest.mark.parametrize(
    "image",
    [
        "name:tag",
        "name",
        "name@sha256:12",
        "NAME@sha256:" + "g" * 64,
        "-x",
        "",
        "a b@sha256:" + "a" * 64,
    ],
)
def test_what_is_no_digest_is_refused_before_anything(place: Place, image: str) -> None:
    before = place.env.read_bytes()
    ran = place.run("upgrade", "--", image)
    assert ran.returncode == appliance.REFUSED, ran.stderr
    assert place.calls() == []
    assert place.env.read_bytes() == before
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("upgrade", NEW), {"STUB_NO_PULL": "1"}),
        (("upgrade", NEW), {"STUB_BAD_CONFIG": "1"}),
        (("upgrade", NEW), {"DDTREE_IMAGE": OLD}),
        (("rollback",), {"DDTREE_IMAGE": OLD}),
        (("rollback",), {"STUB_NO_PULL": "1"}),
        (("upgrade", NEW), {"STUB_NO_COMPOSE": "1"}),
        (("status",), {"STUB_NO_COMPOSE": "1"}),
        (("--folder", "/nowhere", "upgrade", NEW), {}),
        (("--folder", "/nowhere", "status"), {}),
    ],
)
def test_a_refusal_changes_nothing(
    place: Place, arguments: tuple[str, ...], extra: dict[str, str]
) -> None:
    before = place.env.read_bytes()
    variables = {**place.variables(), **extra}
    ran = subprocess.run(
        place.argv(*arguments),
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert ran.returncode == appliance.REFUSED
    assert place.ups() == []
    assert place.env.read_bytes() == before
    assert "Traceback" not in ran.stderr


def test_docker_that_is_missing_is_named(place: Place) -> None:
    variables = {**place.variables(), "PATH": "/nowhere"}
    ran = subprocess.run(
        place.argv("upgrade", NEW), env=variables, capture_output=True, text=True, check=False
    )
    assert ran.returncode == appliance.REFUSED
    assert "docker is not installed" in ran.stderr


@pytest.mark.parametrize(
    ("known", "kept"),
    [
        ({"id": "sha256:" + "1" * 64, "digests": OLDER}, OLDER),
        ({"id": "sha256:" + "1" * 64, "digests": ""}, "sha256:" + "1" * 64),
        (None, "name:tag"),
    ],
)
def test_a_tag_that_served_is_remembered_by_what_it_was(
    place: Place, known: dict[str, str] | None, kept: str
) -> None:
    place.env.write_text("DDTREE_IMAGE=name:tag\n")
    images = json.dumps({"name:tag": known} if known else {})
    assert place.run("upgrade", NEW, STUB_IMAGES=images).returncode == 0
    assert f"DDTREE_PREVIOUS_IMAGE={kept}\n" in place.env.read_text()


def test_a_tag_is_taken_when_asked_for(place: Place) -> None:
    known = json.dumps({"name:tag": {"id": "sha256:1", "digests": ""}})
    ran = place.run("upgrade", "--allow-tag", "name:tag", STUB_IMAGES=known)
    assert ran.returncode == 0, ran.stderr
    assert ["pull", "name:tag"] in [words for words, _ in place.calls()]


def test_the_current_image_again_keeps_the_previous_one(place: Place) -> None:
    before = place.env.read_bytes()
    assert place.run("upgrade", OLD).returncode == 0
    assert place.env.read_bytes() == before
    assert place.ups() == [("appliance", OLD)]


def test_replicas_are_replaced_one_after_the_other(place: Place) -> None:
    assert place.run("--router", "upgrade", NEW).returncode == 0
    assert place.ups() == [("appliance-a", NEW), ("appliance-b", NEW), ("router", NEW)]
    assert all("router" in words for words, _ in place.calls() if words[0] == "compose")


def test_a_stop_before_anything_changed_changes_nothing(place: Place) -> None:
    before = place.env.read_text()
    running = subprocess.Popen(
        place.argv("upgrade", NEW),
        env=place.variables(STUB_SLOW_PULL="1"),
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 20
    while not place.calls() and time.monotonic() < end:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == appliance.REFUSED, errors
    assert "nothing was changed" in errors
    assert place.env.read_text() == before and place.ups() == []


def test_a_stop_in_the_middle_goes_back(place: Place) -> None:
    before = place.env.read_text()
    running = subprocess.Popen(
        place.argv("upgrade", NEW),
        env=place.variables(STUB_SLOW=NEW),
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 20
    while not place.ups() and time.monotonic() < end:
        time.sleep(0.05)
    assert f"DDTREE_IMAGE={NEW}" in place.env.read_text()
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == appliance.BACK, errors
    assert place.ups()[-1] == ("appliance", OLD)
    assert place.env.read_text() == before


def test_two_at_once_are_refused(place: Place) -> None:
    handle = os.open(place.folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)  # only an exclusive lock respects it
        ran = place.run("upgrade", NEW)
    finally:
        os.close(handle)
    assert ran.returncode == appliance.REFUSED
    assert place.ups() == []


def test_a_link_stays_a_link(place: Place) -> None:
    real = place.folder / "elsewhere.env"
    place.env.rename(real)
    place.env.symlink_to(real)
    assert place.run("upgrade", NEW).returncode == 0
    assert place.env.is_symlink()
    assert f"DDTREE_IMAGE={NEW}" in real.read_text()


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (f"DDTREE_IMAGE={OLD}", OLD),
        (f'DDTREE_IMAGE="{OLD}"', OLD),
        (f"export DDTREE_IMAGE='{OLD}'", OLD),
        (f"DDTREE_IMAGE={NEW}\nDDTREE_IMAGE = {OLD} ", OLD),
        (f"#DDTREE_IMAGE={OLD}", None),
        (f"MY_DDTREE_IMAGE={OLD}", None),
        ("DDTREE_IMAGE=", None),
    ],
)
def test_ways_to_write_a_line(tmp_path: Path, line: str, value: str | None) -> None:
    settings = appliance.Settings(tmp_path / ".env")
    settings.path.write_text(line + "\n")
    assert settings.get("DDTREE_IMAGE") == value
    settings.put({"DDTREE_IMAGE": "x"})
    assert settings.get("DDTREE_IMAGE") == "x"
    assert settings.path.read_text().count("\nDDTREE_IMAGE") <= 1


def test_a_replacement_that_fails_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = appliance.Settings(tmp_path / ".env")
    settings.path.write_text("A=1\n")

    def full(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        settings.put({"DDTREE_IMAGE": "x"})
    assert [p.name for p in tmp_path.iterdir()] == [".env"]
    assert settings.path.read_text() == "A=1\n"


def test_status_says_both(place: Place) -> None:
    ran = place.run("status")
    assert ran.returncode == 0
    assert OLD in ran.stdout
    assert OLDER in ran.stdout


def test_the_wait_outlasts_the_appliances_own_bound() -> None:
    assert BY_NAME["start_seconds"].default < appliance.WAIT_SECONDS
