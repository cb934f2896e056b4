"""The probes over HTTP, and what they say of GPUs."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_overlay.selftest.server import free_port
from ddtree_overlay.serve import metrics_text
from ddtree_overlay.serve import probes as module
from ddtree_overlay.serve.errors import ProbePortError
from ddtree_overlay.serve.metrics_text import (
    GpuMemory,
    GpuSampler,
    read_gpu_memory,
    render_metrics,
)
from ddtree_overlay.serve.poll import parse_answer
from ddtree_overlay.serve.probes import Probes
from ddtree_overlay.serve.status import Answer, Phase, Status
from tests.overlay.serve.appliance import until

PATHS = ["/livez", "/readyz", "/progressz", "/status", "/metrics"]


@pytest.fixture
def probes() -> Iterator[Probes]:
    with Probes("127.0.0.1", 0, build={"build_id": 'b"1\\'}) as probes:
        yield probes


def ask(
    probes: Probes, path: str, method: str = "GET"
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", probes.port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_from_the_first_second(probes: Probes) -> None:
    assert ask(probes, "/livez")[0] == 200
    assert ask(probes, "/readyz")[0] == 503
    assert ask(probes, "/progressz")[0] == 200
    assert json.loads(ask(probes, "/status")[2])["phase"] == "checking"
    assert b'ddtree_phase{phase="checking"} 1\n' in ask(probes, "/metrics")[2]


def test_ready_and_not_any_more(probes: Probes) -> None:
    probes.set_phase("ready")
    probes.status.heard(Answer(time.monotonic()))
    assert ask(probes, "/readyz")[::2] == (200, b"ready\n")
    probes.set_phase(Phase.DRAINING)
    assert ask(probes, "/readyz")[0] == 503


def test_an_unknown_phase_is_an_error(probes: Probes) -> None:
    with pytest.raises(ValueError, match="redy"):
        probes.set_phase("redy")


@pytest.mark.parametrize("path", [*PATHS, "/", "/livezz", "/livez?x=1"])
def test_head_is_get_without_a_body(probes: Probes, path: str) -> None:
    got, head = ask(probes, path), ask(probes, path, "HEAD")
    assert (head[0], head[2]) == (got[0], b"")
    assert head[1]["Content-Type"] == got[1]["Content-Type"]
    assert got[0] == (404 if path in ("/", "/livezz") else 503 if path == "/readyz" else 200)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(probes: Probes, method: str) -> None:
    status, headers, _ = ask(probes, "/livez", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_a_port_in_use_is_one_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ProbePortError) as caught:
        Probes("127.0.0.1", taken.getsockname()[1]).start()
    assert "DDTREE_PROBE_PORT" in caught.value.remedy


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("127.0.0.1", 70000)])
def test_an_address_that_cannot_be_bound_is_one_error(host: str, port: int) -> None:
    with pytest.raises(ProbePortError) as caught:
        Probes(host, port).start()
    assert "DDTREE_PROBE_HOST" in caught.value.remedy


def test_a_name_that_does_not_resolve_is_one_error() -> None:
    with pytest.raises(ProbePortError):
        Probes("no-such-host.invalid", 0).start()


@pytest.mark.parametrize("host", ["::", "::1"])
def test_ipv6(host: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:  # no IPv6 here: then it is one error, as any address that is not there
        with pytest.raises(ProbePortError):
            Probes(host if host == "::1" else "2001:db8::1", 0).start()
        return
    with Probes(host, 0) as probes:
        for address in ("::1", "127.0.0.1") if host == "::" else ("::1",):
            connection = http.client.HTTPConnection(address, probes.port, timeout=10)
            connection.request("GET", "/livez")
            assert connection.getresponse().status == 200
            connection.close()


def test_after_stop_nothing_listens_and_stop_is_harmless() -> None:
    port = free_port()
    probes = Probes("127.0.0.1", port)
    probes.stop()
    probes.start()
    probes.stop()
    probes.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=2)
    with Probes("127.0.0.1", port):  # and it can be had again
        pass


def test_clients_that_only_connect_do_not_shut_others_out(
    probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 0.3)
    held = [
        socket.create_connection(("127.0.0.1", probes.port), timeout=5)
        for _ in range(module.CONNECTIONS + 5)
    ]
    try:
        deadline = time.monotonic() + 15
        while True:
            try:
                assert ask(probes, "/livez")[0] == 200
                break
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < deadline, "shut out for good"
                time.sleep(0.05)
    finally:
        for connection in held:
            connection.close()


def test_whoever_holds_on_does_not_shut_out_the_next(probes: Probes) -> None:
    """Also not byte by byte, which no timeout of one read ends."""
    held = [
        socket.create_connection(("127.0.0.1", probes.port), timeout=5)
        for _ in range(module.CONNECTIONS)
    ]
    try:
        for _ in range(5):
            for connection in held:
                with suppress(OSError):
                    connection.sendall(b"G")
            # At once, and not when a handler has waited REQUEST_SECONDS for a request.
            began = time.monotonic()
            assert ask(probes, "/livez")[0] == 200
            assert time.monotonic() - began < module.REQUEST_SECONDS
    finally:
        for connection in held:
            connection.close()


def test_a_flood_piles_up_no_threads(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients whose handlers are too busy to notice that they gave way."""
    held: list[socket.socket] = []
    started, go_on = threading.Semaphore(0), threading.Event()

    def sample(*_: object) -> tuple[GpuMemory, ...]:
        started.release()
        go_on.wait(120)
        return ()

    monkeypatch.setattr(GpuSampler, "sample", sample)
    before = set(threading.enumerate())  # other tests' servers have such threads too
    allowed = 2 * module.CONNECTIONS
    try:
        for number in range(2 * allowed):
            held.append(socket.create_connection(("127.0.0.1", probes.port), timeout=5))
            with suppress(OSError):
                held[-1].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            if number < allowed:  # busy before the next one comes, however slow this machine is
                assert started.acquire(timeout=30)
            else:
                assert held[-1].recv(1) == b""  # turned away
        names = [thread.name for thread in set(threading.enumerate()) - before]
        assert sum("process_request_thread" in name for name in names) == allowed
    finally:
        go_on.set()
        for connection in held:
            connection.close()
    until(lambda: ask(probes, "/livez")[0] == 200, "an answer again")


# -- metrics -----------------------------------------------------------------------------------


def samples(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in found, f"twice: {name}"
            found[name] = float(value)
    return found


def test_metrics_of_a_busy_server() -> None:
    status = Status({"build_id": "b", "variant": "cu130"})
    status.set_phase(Phase.READY)
    status.heard(
        Answer(time.monotonic(), in_flight=4, last_output_age=1.5, waiting_age=9.0, tokens=3)
    )
    gpus = [GpuMemory(0, "GPU-a", "RTX PRO 6000", 90_123_456_789, 102_641_958_912)]
    found = samples(render_metrics(status, gpus))
    assert found["ddtree_up"] == found["ddtree_ready"] == found["ddtree_progress"] == 1
    assert found["ddtree_requests_in_flight"] == 4
    assert found["ddtree_last_output_age_seconds"] == 1.5
    assert sum(v for n, v in found.items() if n.startswith("ddtree_phase{")) == 1
    labels = '{gpu="0",uuid="GPU-a",name="RTX PRO 6000"}'
    assert found[f"ddtree_gpu_memory_used_bytes{labels}"] == 90_123_456_789
    assert found[f"ddtree_gpu_memory_total_bytes{labels}"] == 102_641_958_912
    assert found['ddtree_build_info{build_id="b",variant="cu130"}'] == 1


def test_labels_are_escaped(probes: Probes) -> None:
    assert rb'ddtree_build_info{build_id="b\"1\\"} 1' in ask(probes, "/metrics")[2]


def test_every_metric_has_help_and_a_type() -> None:
    text = render_metrics(Status(), [GpuMemory(0, "u", "n", 1, 2)])
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name.partition("{")[0] for name in samples(text)} == named


def nvml(**broken: Any) -> Any:
    """A pynvml of two GPUs; `broken` replaces functions of it."""
    return SimpleNamespace(
        **{
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(used=10 + h, total=100),
            "nvmlDeviceGetUUID": lambda h: f"GPU-{h}".encode(),
            "nvmlDeviceGetName": lambda h: "RTX",
            **broken,
        }
    )


def fails(*_: object) -> Any:
    raise RuntimeError("NVML says no")


def test_gpus_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    assert read_gpu_memory() == (
        GpuMemory(0, "GPU-0", "RTX", 10, 100),
        GpuMemory(1, "GPU-1", "RTX", 11, 100),
    )


@pytest.mark.parametrize("name", sorted(vars(nvml())))
def test_a_failing_nvml_gives_no_gpus(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**{name: fails}))
    assert read_gpu_memory() == ()


def test_no_nvml_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpu_memory() == ()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "true", '"1"', "[]", "null"])
def test_a_number_that_is_none_does_not_end_the_poller(value: str) -> None:
    body = f'{{"status": "Up", "in_flight": {value}, "waiting_age": {value}}}'
    answer = parse_answer(body.encode(), 1.0)
    assert (answer.in_flight, answer.waiting_age) == (None, None)


def test_many_readers_at_once_start_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(threading.Thread):
        def start(self) -> None:
            time.sleep(0.05)  # what a scheduler may do
            super().start()

    monkeypatch.setattr(
        metrics_text, "threading", SimpleNamespace(Thread=Late, Lock=threading.Lock)
    )
    calls: list[int] = []
    done: list[object] = []

    def read() -> tuple[GpuMemory, ...]:
        calls.append(1)
        time.sleep(0.3)
        return ()

    sampler = GpuSampler(read)
    readers = [threading.Thread(target=lambda: done.append(sampler.sample())) for _ in range(20)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert (len(calls), len(done)) == (1, len(readers))


def test_a_driver_that_hangs_holds_one_thread_and_no_reader() -> None:
    hang, calls = threading.Event(), []

    def read() -> tuple[GpuMemory, ...]:
        calls.append(1)
        if len(calls) > 1:
            hang.wait(30)
        return (GpuMemory(0, "u", "n", len(calls), 2),)

    sampler = GpuSampler(read)
    assert [gpu.used for gpu in sampler.sample(fresh=0, wait=10)] == [1]
    for _ in range(5):
        assert [gpu.used for gpu in sampler.sample(fresh=0, wait=0.05)] == [1]
    assert len(calls) == 2
    assert list(sampler.sample(fresh=0, wait=0.05, stale=0)) == []
    hang.set()
    assert all(gpu.used >= 2 for gpu in sampler.sample(fresh=0, wait=10))
