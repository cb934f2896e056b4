"""A Docker engine of the builder's own: started, used, stopped; nothing of the host changes.

It lives in its own network, mount and process namespaces. So a second engine on the host keeps its
firewall rules, /run and mounts to itself, and when the first process of the process namespace ends
the kernel ends everything in it: containers, shims and mounts cannot be left behind, not even by
`kill -9` of the builder (each process on the way down asks for a signal at its parent's death).
Only the network namespace is entered from outside, with `nsenter --net`; `ip netns exec` would
mount another /sys, which hides the cgroups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.errors
import requests

from builder import console
from builder.engine import layout
from builder.engine.layout import Layout
from builder.engine.lock import exclusive
from builder.engine.namespaces import contained, has_own_network
from builder.engine.network import resolv_conf, start_slirp
from builder.engine.packages import Unpacked
from builder.errors import EngineStartError

_START_SECONDS = 90.0
_STOP_SECONDS = 30.0
# Large images take minutes to load or remove.
_CALL_SECONDS = 900

# PID 1 of the namespace. It waits for its network, puts a private /run (in which our own run folder
# keeps its path) and resolv.conf in place, starts the engine, and reaps what its children leave.
_INIT = """
set -e
engine=
trap 'if [ -n "$engine" ]; then kill -TERM $engine 2>/dev/null || :; else exit 0; fi' TERM
read -r _
mount --bind "$DDTREE_RUN" "$DDTREE_RUN/run/${DDTREE_RUN##*/}"
mount --rbind "$DDTREE_RUN/run" /run
if [ -n "$DDTREE_RESOLV" ]; then mount --bind /run/resolv.conf "$DDTREE_RESOLV"; fi
"$@" &
engine=$!
set +e
while kill -0 $engine 2>/dev/null; do wait $engine; done
"""


@dataclass(frozen=True)
class Running:
    """A private engine that answers."""

    client: docker.DockerClient
    env: dict[str, str]
    cli: str
    enter: tuple[str, ...]


@contextmanager
def running(place: Layout, unpacked: Unpacked, *, keep_gib: int) -> Iterator[Running]:
    """Start the engine, yield it, stop it. Raises EngineStartError.

    `keep_gib`: build cache above this is dropped by BuildKit, oldest first.
    """
    if os.environ.get("DOCKER_HOST") == place.url:
        raise EngineStartError(
            "the private engine is already running around this command",
            "inside `build.py engine exec` use --engine existing",
        )
    with exclusive(place.lock) as lock, ExitStack() as cleanup:
        place.remove_run()  # what a killed builder left; the lock says that nobody uses it
        cleanup.callback(place.remove_run)
        programs = layout.prepare(place, unpacked, keep_gib=keep_gib)
        init = _spawn(place, programs, lock)
        cleanup.callback(_stop, init)
        if not has_own_network(init.pid):
            raise EngineStartError(
                f"no namespaces for the private engine: {log_line_that_matters(_read(place.log))}",
                "this needs CAP_SYS_ADMIN: run on the machine itself or in a privileged container",
            )
        slirp, exit_descriptor = start_slirp(
            programs.slirp4netns, init.pid, programs.env, place.logs / "slirp4netns.log"
        )
        cleanup.callback(_stop_slirp, slirp, exit_descriptor)
        assert init.stdin is not None
        init.stdin.write("go\n")
        init.stdin.close()
        client = _connect(place, init)
        cleanup.callback(client.close)
        # Containers last as long as the engine; these are of a builder that was killed.
        _remove_containers(client)
        cleanup.callback(_remove_containers, client)
        yield Running(
            client=client,
            env=programs.client_env,
            cli=str(programs.cli),
            enter=("nsenter", f"--net=/proc/{init.pid}/ns/net", "--"),
        )
        console.info("stopping the private engine")


def _spawn(place: Layout, programs: layout.Programs, lock: int) -> subprocess.Popen[str]:
    resolv = Path(os.path.realpath("/etc/resolv.conf"))
    hidden = place.write_resolv(resolv, resolv_conf(_read(resolv)))
    env = {
        **programs.env,
        "DDTREE_RUN": str(place.run),
        "DDTREE_RESOLV": "" if hidden else str(resolv),
    }
    argv = [*contained("--net"), "sh", "-c", _INIT, "ddtree-engine"]
    argv += [str(programs.dockerd), "--config-file", str(place.config)]
    with place.log.open("w") as log:
        return subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            pass_fds=(lock,),
            start_new_session=True,
        )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def log_line_that_matters(text: str) -> str:
    """The last fatal or error line of dockerd's log, without its prefix; else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for mark in ("failed to start daemon", "level=fatal", "level=error", "rror:"):
        for line in reversed(lines):
            if mark in line:
                message = line.partition('msg="')[2].rpartition('"')[0]
                return message or line
    return lines[-1] if lines else "no output"


def _connect(place: Layout, init: subprocess.Popen[str]) -> docker.DockerClient:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if init.poll() is not None:
            break
        if place.socket.exists():
            try:
                client = docker.DockerClient(base_url=place.url, timeout=_CALL_SECONDS)
                client.ping()
                return client
            except (docker.errors.DockerException, requests.RequestException):
                pass
        time.sleep(0.1)
    state = "did not answer in time" if init.poll() is None else "ended while starting"
    raise EngineStartError(
        f"the private engine {state}: {log_line_that_matters(_read(place.log))}",
        f"see {place.log}; the data root must be on a file system that overlay2 knows (ext4, xfs), "
        "DDTREE_CACHE moves it",
    )


def _remove_containers(client: docker.DockerClient) -> None:
    with _uninterrupted(), contextlib.suppress(docker.errors.DockerException, OSError):
        for container in client.containers.list(all=True, ignore_removed=True):
            container.remove(force=True, v=True)


def _stop(init: subprocess.Popen[str]) -> None:
    """TERM to the namespace's first process, which passes it on; KILL after a while."""
    with _uninterrupted():
        if init.poll() is None:
            for child in _children(init.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGTERM)
            if init.stdin is not None and not init.stdin.closed:
                init.stdin.close()  # still waiting for its network: it ends at end of file
            try:
                init.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                init.kill()
                init.wait()


def _children(pid: int) -> list[int]:
    try:
        return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _stop_slirp(child: subprocess.Popen[str], exit_descriptor: int) -> None:
    with _uninterrupted():
        os.close(exit_descriptor)
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not cut the stop short."""
    try:
        before = {
            number: signal.signal(number, signal.SIG_IGN)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
    except ValueError:  # not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
