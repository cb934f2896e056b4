"""How the supervisor ends, for each way that a server can behave: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.serve.endings import ExitCode, describe, hint
from tests.overlay.serve.appliance import Appliance, tagged, until

# A child, one in a session of its own and an orphan of a double fork; the last two ignore SIGTERM.
# All at once: what is left is named by the fixture.
ALL_LEAKS = {"leaks": True, "leaks_session": True, "leaks_orphan": True}
LEAKS: dict[str, dict[str, Any]] = {"no leak": {}, "every leak": ALL_LEAKS}
each_leak = pytest.mark.parametrize("leak", LEAKS.values(), ids=list(LEAKS))


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    """Whatever a test does, nothing of it may be left once the supervisor has ended by itself."""
    appliance = Appliance(tmp_path)
    yield appliance
    by_itself = appliance.process is not None and appliance.process.poll() is not None
    left = appliance.clean()
    assert by_itself, f"the supervisor still ran\n{appliance.output()}"
    assert not left, f"left alive: {left}\n{appliance.output()}"


@pytest.mark.parametrize(
    ("number", "leak"),
    [(signal.SIGTERM, ALL_LEAKS), (signal.SIGTERM, {}), (signal.SIGINT, {}), (signal.SIGHUP, {})],
)
def test_a_stop_without_requests(
    appliance: Appliance, number: signal.Signals, leak: dict[str, Any]
) -> None:
    appliance.start(leak).ready().send(number)
    assert appliance.ended() == ExitCode.STOPPED, appliance.output()
    assert (appliance.folder / "got_term").exists()
    assert "every request answered" in appliance.output()


# SGLang's own clean end is SIGKILL to itself.
@pytest.mark.parametrize("drained_status", [0, -9])
def test_a_drain_waits_for_the_requests_in_flight(
    appliance: Appliance, drained_status: int
) -> None:
    stub: dict[str, Any] = {"in_flight": 2}
    if drained_status:
        stub["lingers"] = True
    appliance.start(stub).ready()
    until(lambda: appliance.status()["in_flight"] == 2, "two in flight")
    appliance.stop()
    code, why = appliance.probe("/readyz")
    assert (code, why.split()[0]) == (503, "draining")
    assert appliance.probe("/livez")[0] == 200
    assert appliance.process is not None and appliance.process.poll() is None
    appliance.set_in_flight(0)
    if drained_status:
        until(lambda: appliance.status().get("in_flight") == 0, "none in flight")
        os.kill(appliance.server()["pid"], signal.SIGKILL)
    assert appliance.ended() == ExitCode.STOPPED, appliance.output()


@each_leak
def test_requests_that_outlast_the_drain_are_cut_and_counted(
    appliance: Appliance, leak: dict[str, Any]
) -> None:
    appliance.start({"in_flight": 3, **leak}, drain_seconds=1).ready().send(signal.SIGTERM)
    assert appliance.ended() == ExitCode.REQUESTS_CUT
    assert "3 requests were cut at the drain's bound" in appliance.output()
    assert "remedy: raise DDTREE_DRAIN_SECONDS" in appliance.output()


def test_a_second_signal_ends_the_drain_at_once(appliance: Appliance) -> None:
    appliance.start({"in_flight": 1}, drain_seconds=3600).ready().stop()
    appliance.send(signal.SIGINT)
    assert appliance.ended() == ExitCode.REQUESTS_CUT
    assert "1 requests were cut at a second SIGINT" in appliance.output()


@each_leak
def test_a_server_that_ignores_sigterm_is_killed(
    appliance: Appliance, leak: dict[str, Any]
) -> None:
    appliance.start({"ignores_term": True, **leak}, drain_seconds=1).ready().send(signal.SIGTERM)
    assert appliance.ended() == ExitCode.SERVER_KILLED, appliance.output()


def test_a_third_signal_does_not_wait_for_the_kill_bound(appliance: Appliance) -> None:
    appliance.start({"ignores_term": True}, drain_seconds=3600, kill_seconds=3600).ready().stop()
    appliance.send(signal.SIGTERM)
    until(lambda: appliance.status().get("phase") == "stopping", "stopping")
    appliance.send(signal.SIGTERM)
    assert appliance.ended() == ExitCode.SERVER_KILLED


@pytest.mark.parametrize(("ignores_term", "leak"), [(False, ALL_LEAKS), (True, {})])
def test_a_stop_while_loading_waits_for_nothing(
    appliance: Appliance, ignores_term: bool, leak: dict[str, Any]
) -> None:
    appliance.start(
        {"load_seconds": 3600, "ignores_term": ignores_term, **leak}, drain_seconds=3600
    )
    appliance.server()
    until(lambda: appliance.probe("/readyz")[1].startswith("loading"), "loading")
    appliance.send(signal.SIGTERM)
    expected = ExitCode.SERVER_KILLED if ignores_term else ExitCode.STOPPED
    assert appliance.ended() == expected, appliance.output()


@pytest.mark.parametrize("phase", ["loading", "serving"])
@pytest.mark.parametrize(
    ("status", "leak"),
    [(0, {}), (41, {}), (1, ALL_LEAKS)],
)
def test_a_server_that_ends_by_itself(
    appliance: Appliance, phase: str, status: int, leak: dict[str, Any]
) -> None:
    if phase == "loading":
        appliance.start({"load_status": status, **leak})
    else:
        appliance.start({"serve_status": status, **leak}).ready()
        (appliance.folder / "end").touch()
    assert appliance.ended() == ExitCode.SERVER_DIED
    assert f"the server ended while {phase}, with status {status}" in appliance.output()
    assert "remedy: " in appliance.output()


def test_a_server_that_a_signal_ends_is_named_so(appliance: Appliance) -> None:
    appliance.start({"load_signal": int(signal.SIGSEGV)})
    assert appliance.ended() == ExitCode.SERVER_DIED
    assert "by signal 11 (SIGSEGV)" in appliance.output()


def test_a_kill_that_nothing_told_of_is_no_clean_drain(appliance: Appliance) -> None:
    """The last answer is from before the drain: what came since, nobody knows."""
    appliance.start({"lingers": True, "silent_draining": True}).ready().stop()
    until((appliance.folder / "got_term").exists, "SIGTERM at the server")
    os.kill(appliance.server()["pid"], signal.SIGKILL)
    assert appliance.ended() == ExitCode.SERVER_DIED
    assert "while draining, with an unknown number of requests" in appliance.output()


def test_an_answer_under_way_at_the_signal_is_no_word_of_the_drain(appliance: Appliance) -> None:
    """Asked before SIGTERM, heard after it: it says "nothing in flight" of a server that still
    took requests."""
    stub = {"lingers": True, "silent_draining": True, "answer_seconds": 0.5}
    appliance.start(stub).ready()
    time.sleep(0.2)  # the next question is on its way
    appliance.stop()
    until((appliance.folder / "got_term").exists, "SIGTERM at the server")
    time.sleep(1.0)  # whatever was under way has been heard
    os.kill(appliance.server()["pid"], signal.SIGKILL)
    assert appliance.ended() == ExitCode.SERVER_DIED
    assert "while draining, with an unknown number of requests" in appliance.output()


def test_a_server_that_is_killed_under_requests_in_a_drain(appliance: Appliance) -> None:
    appliance.start({"in_flight": 2}).ready().stop()
    until(lambda: appliance.status().get("in_flight") == 2, "two in flight")
    os.kill(appliance.server()["pid"], signal.SIGKILL)
    assert appliance.ended() == ExitCode.SERVER_DIED
    assert "while draining, with 2 requests" in appliance.output()


# The launcher inside the server has already said what is wrong.
@pytest.mark.parametrize("status", [86, 89])
def test_a_refusal_of_the_launcher_keeps_its_code(appliance: Appliance, status: int) -> None:
    appliance.start({"load_status": status})
    assert appliance.ended() == status


@pytest.mark.parametrize("when", ["loading", "serving"])
def test_a_dead_worker_ends_a_server_that_goes_on(appliance: Appliance, when: str) -> None:
    appliance.start({"worker": True, "load_seconds": 3600 if when == "loading" else 0})
    if when == "serving":
        appliance.ready()
    path = appliance.folder / "worker"
    worker = int(until(lambda: path.exists() and path.read_text(), "the worker's start"))
    title = Path(f"/proc/{worker}/cmdline")
    until(lambda: title.read_bytes().startswith(b"sglang::"), "the worker's title")
    # The supervisor must have seen it alive.
    up = appliance.status()["up_seconds"]
    until(lambda: appliance.status()["up_seconds"] > up + 0.8, "a look at the processes")
    os.kill(worker, signal.SIGKILL)
    assert appliance.ended() == ExitCode.WORKER_DIED, appliance.output()
    assert f"sglang::scheduler_TP0 (process {worker}) ended" in appliance.output()


def test_a_living_worker_does_not(appliance: Appliance) -> None:
    appliance.start({"worker": True, "leaks": True}).ready()
    up = appliance.status()["up_seconds"]
    until(lambda: appliance.status()["up_seconds"] > up + 1.5, "more than the grace")
    assert appliance.probe("/readyz")[0] == 200
    appliance.send(signal.SIGTERM)
    assert appliance.ended() == ExitCode.STOPPED


@pytest.mark.parametrize("stub", [{"load_seconds": 3600}, {"status": "Starting"}, {"paths": []}])
def test_a_model_that_never_answers(appliance: Appliance, stub: dict[str, Any]) -> None:
    appliance.start(stub, start_seconds=1)
    assert appliance.ended() == ExitCode.NOT_READY
    assert "the model did not answer within 1 s" in appliance.output()


def test_no_bound_on_the_start(appliance: Appliance) -> None:
    appliance.start({"load_seconds": 1}, start_seconds=0).ready().send(signal.SIGTERM)
    assert appliance.ended() == ExitCode.STOPPED


@pytest.mark.parametrize("end_when_stalled", [False, True])
def test_requests_without_output(appliance: Appliance, end_when_stalled: bool) -> None:
    appliance.start(
        {"in_flight": 1, "last_output_age": 500, "waiting_age": 400},
        end_when_stalled=end_when_stalled,
    ).ready()
    if end_when_stalled:
        assert appliance.ended() == ExitCode.STALLED
        return
    code, why = until(
        lambda: (a := appliance.probe("/progressz"))[0] == 503 and a, "/progressz to say so"
    )
    assert "requests wait and nothing came out" in why
    assert (code, appliance.probe("/readyz")[0], appliance.probe("/livez")[0]) == (503, 200, 200)
    appliance.set_in_flight(0)
    until(lambda: appliance.probe("/progressz")[0] == 200, "progress again")
    appliance.send(signal.SIGTERM)
    assert appliance.ended() == ExitCode.STOPPED


def test_a_server_that_answers_slowly_stays_ready(appliance: Appliance) -> None:
    appliance.start({"answer_seconds": 1.0}).ready()
    up = appliance.status()["up_seconds"]
    until(lambda: appliance.status()["up_seconds"] > up + 2.5, "some polls")
    assert appliance.probe("/readyz")[0] == 200
    appliance.send(signal.SIGTERM)
    assert appliance.ended() == ExitCode.STOPPED


def test_a_node_of_higher_rank_waits_for_rank_0_to_end_it(appliance: Appliance) -> None:
    # What is in flight keeps the stub from ending at a SIGTERM that it should not get.
    appliance.start({"paths": ["/health"], "in_flight": 1}, node_rank=1).ready().stop()
    until(lambda: appliance.status()["phase_seconds"] > 1, "a second of draining")
    assert not (appliance.folder / "got_term").exists()
    assert appliance.process is not None and appliance.process.poll() is None
    # As SGLang's schedulers end when rank 0 has drained.
    appliance.set_in_flight(0)
    os.kill(appliance.server()["pid"], signal.SIGTERM)
    assert appliance.ended() == ExitCode.STOPPED, appliance.output()


def test_a_node_of_higher_rank_ends_well_with_rank_0(appliance: Appliance) -> None:
    appliance.start({"paths": ["/health"], "serve_status": 0}, node_rank=1).ready()
    (appliance.folder / "end").touch()
    assert appliance.ended() == ExitCode.STOPPED
    assert "rank 0 ended the service" in appliance.output()


def test_what_the_server_is_given(appliance: Appliance) -> None:
    secrets = {"api_key": "sk-one", "admin_api_key": "sk-two"}
    folder = appliance.folder / "work"
    folder.mkdir()
    appliance.start(secrets=secrets, cwd=str(folder)).ready().send(signal.SIGTERM)
    assert appliance.ended() == ExitCode.STOPPED
    assert json.loads((appliance.folder / "secrets").read_text()) == secrets
    server = appliance.server()
    shown = json.dumps(server) + appliance.output()
    for secret in (*secrets.values(), "never-this"):  # the last: DDTREE_API_KEY of its environment
        assert secret not in shown
    assert server["session"] == server["pid"]
    assert server["cwd"] == str(folder)
    assert server["environ"]["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"
    assert server["environ"]["SGLANG_PYSPY_DUMP_BEFORE_CRASH"] == "0"
    assert server["environ"]["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"] == "0"


def test_the_users_choice_of_diagnostics_stays(appliance: Appliance) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "1",
        "DDTREE_TEST_TAG": appliance.tag,
    }
    appliance.start(environment=environment).ready().send(signal.SIGTERM)
    assert appliance.ended() == ExitCode.STOPPED
    assert appliance.server()["environ"]["SGLANG_PYSPY_DUMP_BEFORE_CRASH"] == "1"


@pytest.mark.parametrize(
    ("argv", "code"), [(["/no/such/python"], 127), ([str(Path(__file__).parent)], 126)]
)
def test_a_program_that_cannot_be_started(appliance: Appliance, argv: list[str], code: int) -> None:
    appliance.start(argv=argv)
    assert appliance.ended() == code
    assert "Traceback" not in appliance.output()


def test_a_probe_port_in_use(appliance: Appliance) -> None:
    appliance.probe_port = appliance.port
    import socket

    with socket.create_server(("127.0.0.1", appliance.port)):
        appliance.start()
        assert appliance.ended() == 88
    assert "remedy: another process has the port: set DDTREE_PROBE_PORT" in appliance.output()
    assert not (appliance.folder / "server").exists()


def test_secrets_too_long_for_the_pipe_are_refused(appliance: Appliance) -> None:
    appliance.start(secrets={"api_key": "k" * 5000})
    assert appliance.ended() == 89
    assert "kkkk" not in appliance.output()


def test_loading_is_reported(appliance: Appliance) -> None:
    appliance.start({"load_seconds": 3600})
    appliance.server()
    until(lambda: "ddtree: loading for 1 s:" in appliance.output(), "a line")
    assert "GiB resident" in appliance.output() and "GiB read" in appliance.output()
    appliance.send(signal.SIGTERM)
    assert appliance.ended() == ExitCode.STOPPED


@pytest.mark.parametrize("name", ["Poller.start", "Probes.set_phase"])
def test_a_bug_of_ours_leaves_no_orphan(appliance: Appliance, name: str) -> None:
    """Or no thread to be had: whatever fails between the server's start and its end."""
    appliance.start({"load_seconds": 3600, **ALL_LEAKS}, fails=name)
    assert appliance.ended() == 1
    assert "RuntimeError: the test's" in appliance.output()


def test_the_finder_of_leaks_finds_one(appliance: Appliance) -> None:
    """The fixture's own judgement, on a supervisor that is killed and so can end nothing."""
    appliance.start({"leaks_session": True}).ready()
    assert appliance.process is not None
    appliance.process.kill()
    appliance.process.wait()
    assert len(tagged(appliance.tag)) == 2
    for pid in tagged(appliance.tag):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not tagged(appliance.tag), "their end")


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "with status 0"), (3, "with status 3"), (-9, "by signal 9 (SIGKILL)")],
)
def test_exit_statuses_in_words(status: int, words: str) -> None:
    assert describe(status) == words


def test_hints_name_the_likely_cause() -> None:
    assert "shm" in hint(-signal.SIGBUS, loading=True, out_of_memory=False)
    assert "Xid" in hint(-signal.SIGSEGV, loading=False, out_of_memory=False)
    assert "host memory" in hint(-signal.SIGKILL, loading=True, out_of_memory=True)
    assert "doctor" in hint(1, loading=True, out_of_memory=False)
