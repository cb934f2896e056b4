"""`ddtree health` against running probes, in processes of their own as HEALTHCHECK runs it."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_overlay.selftest.server import free_port
from ddtree_overlay.serve import state_file
from ddtree_overlay.serve.errors import UsageError
from ddtree_overlay.serve.health import health_command
from ddtree_overlay.serve.probes import Probes
from ddtree_overlay.serve.state_file import State, read_state, remove_state, write_state
from ddtree_overlay.serve.status import Answer

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """State files of this test alone, in two folders."""
    found = [tmp_path / name / "ddtree-1.json" for name in ("shm", "tmp")]
    for path in found:
        path.parent.mkdir()
    monkeypatch.setattr(state_file, "candidates", lambda: found)
    return found


@pytest.fixture
def probes() -> Iterator[Probes]:
    with Probes("127.0.0.1", 0) as probes:
        yield probes


def make_ready(probes: Probes, **answer: int | float) -> None:
    probes.set_phase("ready")
    probes.status.heard(Answer(time.monotonic(), **answer))  # type: ignore[arg-type]


def test_a_loading_appliance_is_live_and_not_healthy(probes: Probes, capsys: Output) -> None:
    probes.set_phase("loading")
    assert health_command(["--live"], {}) == 0
    assert capsys.readouterr().out == "live (loading)\n"
    assert health_command([], {}) == 1
    assert capsys.readouterr().out.startswith("not ready: loading for")
    assert health_command(["--ready"], {}) == 1


def test_a_ready_appliance_is_healthy_by_the_port_it_has(probes: Probes, capsys: Output) -> None:
    make_ready(probes, in_flight=3)
    # The port is the kernel's choice; the environment is another container's.
    assert health_command([], {"DDTREE_PROBE_PORT": str(free_port())}) == 0
    assert capsys.readouterr().out == "ready, 3 requests in flight\n"


def test_the_check_follows_a_changed_port(capsys: Output) -> None:
    for _ in range(2):
        with Probes("127.0.0.1", free_port()) as probes:
            make_ready(probes)
            assert health_command([], {}) == 0
    assert health_command([], {"DDTREE_PROBE_PORT": str(free_port())}) == 1


def test_requests_that_wait_in_vain_are_unhealthy(probes: Probes, capsys: Output) -> None:
    make_ready(probes, in_flight=1, last_output_age=500.0, waiting_age=500.0)
    assert health_command(["--ready"], {}) == 0
    assert health_command(["--live"], {}) == 0
    capsys.readouterr()
    for arguments in (["--progress"], []):
        assert health_command(arguments, {}) == 1
        assert capsys.readouterr().out.startswith("not progress: requests wait")


@pytest.mark.parametrize("phase", ["draining", "stopping", "failed"])
def test_an_ending_appliance_is_unhealthy(probes: Probes, phase: str) -> None:
    make_ready(probes)
    probes.set_phase(phase)
    assert health_command([], {}) == 1


@pytest.mark.parametrize("arguments", [[], ["--live"], ["--json"]])
def test_nothing_running(arguments: list[str], capsys: Output) -> None:
    port = free_port()
    assert health_command(arguments, {"DDTREE_PROBE_PORT": str(port)}) == 1
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1 and str(port) in printed


@pytest.mark.parametrize("port", ["", "x", "0", "99999", "tcp://10.0.0.1:30000", "²"])
def test_a_port_that_is_none_falls_back(port: str, capsys: Output) -> None:
    health_command([], {"DDTREE_PROBE_PORT": port, "DDTREE_PROBE_HOST": "127.0.0.1"})
    assert "30080" in capsys.readouterr().out


def test_json_is_the_status(probes: Probes, capsys: Output) -> None:
    make_ready(probes)
    assert health_command(["--json"], {}) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["healthy"], shown["phase"], shown["pid"]) == (True, "ready", os.getpid())


@pytest.mark.parametrize("arguments", [["--alive"], ["--live", "--ready"], ["now"]])
def test_other_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        health_command(arguments, {})


def test_another_server_on_the_port_is_not_the_appliance(
    places: list[Path], capsys: Output
) -> None:
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n[]")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        write_state(State(1, "127.0.0.1", other.getsockname()[1]))
        assert health_command(["--live"], {}) == 1


# -- the state file ----------------------------------------------------------------------------


def test_it_is_private_and_goes_with_the_probes(places: list[Path]) -> None:
    with Probes("127.0.0.1", 0) as probes:
        assert stat.S_IMODE(places[0].stat().st_mode) == 0o600
        assert read_state() == State(os.getpid(), "127.0.0.1", probes.port)
    assert [list(path.parent.iterdir()) for path in places] == [[], []]


def test_a_folder_that_is_missing_is_passed_over(places: list[Path]) -> None:
    places[0].parent.rmdir()
    state = State(5, "0.0.0.0", 6)
    assert write_state(state) == places[1]
    assert read_state() == state


def test_no_folder_at_all_is_no_error(places: list[Path]) -> None:
    for path in places:
        path.parent.rmdir()
    assert write_state(State(5, "", 6)) is None
    remove_state(None)
    with Probes("127.0.0.1", 0):
        assert read_state() is None


def test_a_later_appliances_file_is_not_removed(places: list[Path]) -> None:
    path = write_state(State(os.getpid() + 1, "", 6))
    remove_state(path)
    assert places[0].exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"pid": 1}',
        '{"pid": 1, "host": "x", "port": "3"}',
        '{"pid": 1, "host": "x", "port": 0}',
        '{"pid": 1, "host": 3, "port": 30080}',
    ],
)
def test_a_damaged_file_is_none(places: list[Path], text: str) -> None:
    places[0].write_text(text)
    assert read_state() is None


def test_a_link_is_not_followed(places: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text('{"pid": 1, "host": "", "port": 30080}')
    places[0].symlink_to(target)
    assert read_state() is None


def test_the_name_is_of_this_pid_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    inode = Path("/proc/self/ns/pid").stat().st_ino
    assert state_file.candidates()[0] == Path(f"/dev/shm/ddtree-{inode}.json")
