"""A real private engine: it runs containers, and leaves nothing, however it is ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.engine import Engine, acquire
from builder.engine.layout import layout_of
from builder.engine.lock import is_free
from builder.engine.private import log_line_that_matters
from builder.errors import EngineStartError
from builder.pins import SharedPins
from builder.project import Project


def test_the_log_line_that_matters_is_the_fatal_one() -> None:
    log = """
time="2026-01-01T00:00:00Z" level=info msg="Starting up"
time="2026-01-01T00:00:01Z" level=error msg="overlay2: \\"x\\" not supported" storage-driver=overlay2
failed to start daemon: error initializing graphdriver: driver not supported
time="2026-01-01T00:00:02Z" level=info msg="Processing signal 'terminated'"
"""
    assert log_line_that_matters(log).startswith("failed to start daemon: error initializing")
    assert log_line_that_matters('time="x" level=error msg="no room"') == "no room"
    assert log_line_that_matters("unshare: failed\n\n") == "unshare: failed"
    assert log_line_that_matters("") == "no output"


@dataclass(frozen=True)
class Host:
    """What an engine could leave behind."""

    interfaces: tuple[str, ...]
    mounts: tuple[str, ...]
    run: tuple[str, ...]
    processes: tuple[str, ...]
    groups: tuple[str, ...]
    forwarding: str
    resolver: str


def observe(project: Project) -> Host:
    place = layout_of(project)
    marks = (str(project.cache), place.name)
    groups = Path("/sys/fs/cgroup")
    return Host(
        interfaces=tuple(sorted(name for _, name in socket.if_nameindex())),
        mounts=tuple(
            line
            for line in Path("/proc/self/mounts").read_text().splitlines()
            if any(mark in line for mark in marks)
        ),
        run=tuple(sorted(p.name for p in Path("/run").iterdir() if place.name in p.name)),
        processes=tuple(
            sorted(
                text
                for path in Path("/proc").glob("[0-9]*/cmdline")
                if (text := _text(path)) and any(mark in text for mark in marks)
            )
        ),
        groups=tuple(str(p) for p in [*groups.glob(place.name), *groups.glob(f"*/{place.name}")]),
        forwarding=Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        resolver=_text(Path("/etc/resolv.conf")),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def settle(project: Project, before: Host, seconds: float = 20.0) -> Host:
    """The host once it looks as before, or as it looks when patience ends."""
    end = time.monotonic() + seconds
    while (now := observe(project)) != before and time.monotonic() < end:
        time.sleep(0.1)
    return now


@pytest.mark.docker
def test_an_engine_works_and_leaves_the_host_as_it_was(
    separate: Project, shared: SharedPins, base_tar: Path
) -> None:
    before = observe(separate)
    with acquire(separate, shared, "private", need_gib=1) as engine:
        assert observe(separate) != before  # else the comparison below proves nothing
        image = load(engine, base_tar)
        assert engine.client.info()["DriverStatus"]
        assert {"engine", "buildx", "compose", "containerd", "runc"} <= engine.versions.keys()
        assert engine.versions["runc"].startswith("1.1.")
        assert engine.packages["runc"] in engine.versions["packages"]
        uname = engine.client.containers.run(image, ["cat", "/etc/os-release"], remove=True)
        assert b"bookworm" in uname
        _publish(engine, image)
        left = engine.client.containers.create(image, ["sleep", "1000"])
        left.start()
    assert settle(separate, before) == before
    assert list((layout_of(separate).data / "containers").iterdir()) == []
    with acquire(separate, shared, "private", need_gib=1) as engine:
        assert [i.tags for i in engine.client.images.list()]  # images stay
        assert engine.client.containers.list(all=True) == []  # containers do not


def load(engine: Engine, tar: Path) -> str:
    subprocess.run(engine.docker("load", "-q", "-i", str(tar)), env=engine.env, check=True)
    return str(engine.client.images.list()[0].tags[0])


def _publish(engine: Engine, image: str) -> None:
    """A published port answers in the engine's network and only there."""
    # Bash's own /dev/tcp: the base image has no server, so perl (in minbase) listens.
    server = (
        "use IO::Socket; my $s = IO::Socket::INET->new(LocalPort => 8000, Listen => 1, "
        'ReuseAddr => 1) or die; while (my $c = $s->accept) { print $c "hello\\n"; close $c }'
    )
    container = engine.client.containers.run(
        image, ["perl", "-e", server], detach=True, ports={"8000/tcp": ("127.0.0.1", 0)}
    )
    container.reload()
    (published,) = container.ports["8000/tcp"] or []
    port = int(published["HostPort"])
    ask = f"import socket; print(socket.create_connection(('127.0.0.1', {port}), 5).recv(9))"
    inside = engine.in_network(sys.executable, "-c", ask)
    answer = b""
    for _ in range(50):  # until perl listens
        answer = subprocess.run(inside, capture_output=True, check=False).stdout
        if b"hello" in answer:
            break
        time.sleep(0.2)
    assert b"hello" in answer
    outside = subprocess.run([sys.executable, "-c", ask], capture_output=True, check=False)
    assert outside.returncode != 0


STARTER = """
import signal, subprocess, sys, time
from builder.engine import acquire
from builder.pins import load_shared
from builder.project import default_project
def terminated(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, terminated)
signal.signal(signal.SIGINT, signal.default_int_handler)
project = default_project()
try:
    with acquire(project, load_shared(project), "private", need_gib=1) as engine:
        subprocess.run(engine.docker("load", "-q", "-i", sys.argv[1]), env=engine.env, check=True,
                       stdout=subprocess.DEVNULL)
        image = engine.client.images.list()[0].tags[0]
        engine.client.containers.run(image, ["sleep", "1000"], detach=True)
        print("running", flush=True)
        time.sleep(1000)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.docker
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_builder_leaves_nothing(
    separate: Project, shared: SharedPins, base_tar: Path, number: signal.Signals
) -> None:
    before = observe(separate)
    child = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(base_tar)],
        cwd=separate.root,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(separate.root)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "running\n"
    assert not is_free(layout_of(separate).lock)
    child.send_signal(number)
    child.wait(timeout=60)
    child.stdout.close()
    if number == signal.SIGKILL:
        # Nobody was left to tidy up: all processes and mounts are gone by themselves, ...
        after = settle(separate, before, 5.0)
        assert after.processes == before.processes
        assert after.mounts == before.mounts
        # ... and the next engine removes the files and starts.
        with acquire(separate, shared, "private", need_gib=1) as engine:
            assert engine.client.containers.list(all=True) == []
    else:
        assert child.returncode == 130
    assert settle(separate, before) == before
    assert is_free(layout_of(separate).lock)


@pytest.mark.docker
def test_two_engines_run_side_by_side(
    separate: Project,
    shared: SharedPins,
    base_tar: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second neither waits for the first nor disturbs its network."""
    with acquire(separate, shared, "private", need_gib=1) as first:
        image = load(first, base_tar)
        other = tmp_path / "other"
        other.mkdir()
        (other / "engine").symlink_to(separate.cache / "engine")
        monkeypatch.setenv("DDTREE_CACHE", str(other))
        with acquire(separate, shared, "private", need_gib=1) as second:
            assert second.client.info()["ID"] != first.client.info()["ID"]
            assert second.client.images.list() == []
        _publish(first, image)


@pytest.mark.docker
def test_inside_an_engine_the_same_one_is_not_waited_for(
    separate: Project, shared: SharedPins, monkeypatch: pytest.MonkeyPatch
) -> None:
    with acquire(separate, shared, "private", need_gib=1) as outer:
        monkeypatch.setenv("DOCKER_HOST", outer.env["DOCKER_HOST"])
        monkeypatch.setenv("DOCKER_CONFIG", outer.env["DOCKER_CONFIG"])
        monkeypatch.setenv("PATH", outer.env["PATH"])
        monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
        with (
            pytest.raises(EngineStartError, match="already running"),
            acquire(separate, shared, "private", need_gib=1),
        ):
            pass
        with acquire(separate, shared, "auto", need_gib=1) as inner:
            assert inner.kind == "existing"
            assert inner.versions["engine"] == outer.versions["engine"]
            assert inner.versions["buildx"] == outer.versions["buildx"]


@pytest.mark.docker
def test_a_failed_start_names_the_cause_and_leaves_nothing(
    separate: Project, shared: SharedPins
) -> None:
    before = observe(separate)
    place = layout_of(separate)
    place.data.mkdir(parents=True)
    (place.data / "overlay2").write_text("a file where the engine needs a folder")
    with (
        pytest.raises(EngineStartError) as caught,
        acquire(separate, shared, "private", need_gib=1),
    ):
        pass
    assert "overlay2" in caught.value.what
    assert str(place.log) in caught.value.remedy
    assert settle(separate, before) == before


@pytest.mark.docker
def test_engine_exec_reaches_the_engine(separate: Project) -> None:
    argv = ["engine", "exec", "--engine", "private", "--"]
    code = "import docker, json; print(json.dumps(docker.from_env().version()['Version']))"
    done = subprocess.run(
        [sys.executable, "-c", RUN_CLI, *argv, sys.executable, "-c", code],
        cwd=separate.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


RUN_CLI = """
import argparse, sys
from builder.engine import cli
from builder.project import default_project
parser = argparse.ArgumentParser()
cli.add_parser(parser.add_subparsers())
args = parser.parse_args()
sys.exit(args.handler(args, default_project()))
"""
