"""Finding processes that a server started, and noticing workers that are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_overlay.serve.process_tree import Process, ProcessTree, processes, title
from ddtree_overlay.serve.workers import WorkerWatch
from tests.overlay.serve.appliance import until

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def earlier() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as process:
        yield process
        process.kill()


def test_the_table_has_this_process() -> None:
    me = processes()[os.getpid()]
    assert (me.parent, me.session, me.state) == (os.getppid(), os.getsid(0), "R")
    assert sys.executable in title(os.getpid())


def test_a_name_with_blanks_and_parentheses_is_read_past() -> None:
    code = f"open('/proc/self/comm', 'w').write(') R 1 1 (') ; {SLEEP}"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            comm = Path(f"/proc/{process.pid}/comm")
            until(lambda: ") R" in comm.read_text(), "the name")
            assert processes()[process.pid].parent == os.getpid()
        finally:
            process.kill()


def test_earlier_children_are_left_alone(earlier: subprocess.Popen[bytes]) -> None:
    tree = ProcessTree()
    with subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True) as server:
        tree.add(server.pid)
        assert [process.pid for process in tree.alive()] == [server.pid]
        assert tree.usage()[0] > 0
        assert tree.signal(signal.SIGTERM, spare=server.pid) == []
        assert tree.signal(signal.SIGKILL) == [server.pid]
        server.wait()
    assert tree.alive() == []
    assert earlier.poll() is None


def test_an_ended_process_is_gone_for_the_tree() -> None:
    tree = ProcessTree()
    with subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) as server:
        tree.add(server.pid)
        until(lambda: processes()[server.pid].ended, "a zombie")
        assert tree.alive() == []
        assert [process.pid for process in tree.members()] == [server.pid]


SERVER = Process(10, 1, 10, "S", 100)
WORKER = Process(11, 10, 10, "S", 101)
HELPER = Process(12, 10, 10, "S", 102)
TITLES = {10: "python -m server", 11: "sglang::scheduler_TP0 x", 12: "ninja"}


def zombie(process: Process, exit_code: int = 0) -> Process:
    return Process(process.pid, process.parent, process.session, "Z", process.started, exit_code)


def watch() -> WorkerWatch:
    return WorkerWatch(20, lambda pid: TITLES[pid])


@pytest.mark.parametrize("after", [[SERVER], [SERVER, zombie(WORKER)], [SERVER, zombie(WORKER, 9)]])
def test_a_worker_is_lost_after_the_grace(after: list[Process]) -> None:
    watching = watch()
    assert watching.lost([SERVER, WORKER, HELPER], 10, 0) is None
    assert watching.lost(after, 10, 5) is None
    assert watching.lost(after, 10, 24) is None
    assert watching.lost(after, 10, 26) == "sglang::scheduler_TP0 (process 11)"


def test_helpers_come_and_go() -> None:
    watching = watch()
    watching.lost([SERVER, WORKER, HELPER], 10, 0)
    assert watching.lost([SERVER, WORKER], 10, 100) is None
    assert watching.lost([SERVER, WORKER, zombie(HELPER)], 10, 200) is None


def test_a_helper_that_failed_unasked_is_no_crash() -> None:
    watching = watch()
    failed = [SERVER, WORKER, zombie(HELPER, 1 << 8)]  # status 1
    assert watching.lost(failed, 10, 0) is None
    assert watching.lost(failed, 10, 100) is None


def test_a_child_that_crashed_unasked_is_lost_too() -> None:
    watching = watch()
    crashed = [SERVER, WORKER, zombie(HELPER, 11)]
    assert watching.lost(crashed, 10, 0) is None
    assert watching.lost(crashed, 10, 30) == "a child of the server (process 12)"


def test_a_new_process_with_an_old_id_is_another() -> None:
    watching = watch()
    watching.lost([SERVER, WORKER], 10, 0)
    again = Process(WORKER.pid, 10, 10, "S", WORKER.started + 50)
    watching.lost([SERVER, again], 10, 1)
    assert watching.lost([SERVER, again], 10, 30) == "sglang::scheduler_TP0 (process 11)"


def test_a_server_is_not_its_own_worker() -> None:
    watching = WorkerWatch(20, lambda pid: "sglang::server")
    watching.lost([SERVER], 10, 0)
    assert watching.lost([], 10, 100) is None


# What a fork looks like until it becomes a compiler or a prober, of a worker and of the server.
@pytest.mark.parametrize("parent", [WORKER, SERVER])
def test_a_fork_that_still_has_its_parents_title_is_no_worker(parent: Process) -> None:
    fork = Process(13, parent.pid, 10, "S", 103)
    titles = {10: "sglang::server", 11: "sglang::scheduler", 13: ""}
    titles[13] = titles[parent.pid]
    watching = WorkerWatch(20, lambda pid: titles[pid])
    assert watching.lost([SERVER, WORKER, fork], 10, 0) is None
    assert watching.lost([SERVER, WORKER], 10, 1) is None
    assert watching.lost([SERVER, WORKER], 10, 30) is None


def test_a_worker_that_another_worker_started_is_one() -> None:
    """SGLang's data-parallel controller starts the schedulers."""
    below = Process(13, 11, 10, "S", 103)
    titles = {10: "server", 11: "sglang::data_parallel_controller", 13: "sglang::scheduler_DP0"}
    watching = WorkerWatch(20, lambda pid: titles[pid])
    assert watching.lost([SERVER, WORKER, below], 10, 0) is None
    assert watching.lost([SERVER, WORKER], 10, 1) is None
    assert watching.lost([SERVER, WORKER], 10, 30) == "sglang::scheduler_DP0 (process 13)"
