"""The gate by plain ASGI calls, around an application and a manager of the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_overlay.sglang.gate import HEALTH_PATH, Gate

Message = MutableMapping[str, Any]


class ServerStatus(Enum):
    """As SGLang's."""

    UP = "Up"
    STARTING = "Starting"
    UNHEALTHY = "UnHealthy"


class Client:
    """One request, held open until `finish`."""

    def __init__(
        self, gate: Gate, method: str, path: str, kind: str = "http", **scope: Any
    ) -> None:
        self.sent: list[Message] = []
        self.scope = {"type": kind, "method": method, "path": path, "headers": [], **scope}
        self._call = gate(self.scope, self._receive, self._send)

    async def _receive(self) -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def start(self) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._call)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        await self._call
        headers = {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in self.sent[1:])
        return self.sent[0]["status"], headers, json.loads(body) if body else None


def gate(manager: Any = None, release: asyncio.Event | None = None) -> Gate:
    """Around an application that streams two parts, the second when released."""

    async def app(
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["path"] == "/fails":
            raise RuntimeError("the application failed")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"[1", "more_body": True})
        if release is not None:
            await release.wait()
        await send({"type": "http.response.body", "body": b"]", "more_body": False})

    made = Gate()
    made.app, made.manager = app, manager
    return made


def manager(status: ServerStatus = ServerStatus.UP, **fields: Any) -> Any:
    return SimpleNamespace(
        **{"server_status": status, "rid_to_state": {}, "gracefully_exit": False, **fields}
    )


async def health(made: Gate, **scope: Any) -> Any:
    status, headers, body = await Client(made, "GET", HEALTH_PATH, **scope).answer()
    assert (status, headers["content-type"]) == (200, "application/json")
    return body


def test_before_there_is_a_manager() -> None:
    assert asyncio.run(health(gate())) == {
        "status": "Starting",
        "draining": False,
        "in_flight": 0,
        "last_output_age": None,
        "waiting_age": None,
        "tokens": 0,
    }


@pytest.mark.parametrize("status", list(ServerStatus))
def test_the_servers_own_word(status: ServerStatus) -> None:
    assert asyncio.run(health(gate(manager(status))))["status"] == status.value


@pytest.mark.parametrize(("root_path", "path"), [("", HEALTH_PATH), ("/api", "/api" + HEALTH_PATH)])
def test_health_under_a_root_path(root_path: str, path: str) -> None:
    client = Client(gate(manager()), "GET", path, root_path=root_path)
    assert asyncio.run(client.answer())[2]["status"] == "Up"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/health"), ("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", HEALTH_PATH)],
)
def test_everything_else_passes_untouched(method: str, path: str) -> None:
    made = gate(manager())
    client = Client(made, method, path)
    status, _, body = asyncio.run(client.answer())
    assert (status, body) == (200, [1])
    assert [message.get("more_body") for message in client.sent] == [None, True, False]


@pytest.mark.parametrize("path", ["/v1/completions", "/fails"])
def test_in_flight_lasts_from_the_first_to_the_last_byte(path: str) -> None:
    async def play() -> None:
        release = asyncio.Event()
        made = gate(manager(), release)
        client = Client(made, "POST", path)
        task = client.start()
        await asyncio.sleep(0.01)
        if path != "/fails":
            body = await health(made)
            assert body["in_flight"] == 1
        release.set()
        await asyncio.gather(task, return_exceptions=True)
        body = await health(made)
        assert (body["in_flight"], body["waiting_age"]) == (0, None)

    asyncio.run(play())


def test_the_oldest_request_that_the_model_has_counts_as_waiting() -> None:
    rids = {"a": object()}
    made = gate(manager(rid_to_state=rids))

    async def play() -> None:
        await health(made)
        await asyncio.sleep(0.2)
        rids["b"] = object()
        assert (await health(made))["waiting_age"] >= 0.2
        del rids["a"]
        assert (await health(made))["waiting_age"] < 0.2
        rids.clear()
        assert (await health(made))["waiting_age"] is None

    asyncio.run(play())


def test_a_slow_client_keeps_the_model_from_nothing() -> None:
    """It holds a drain, and is no stall: its body has not come, or its answer is not read."""

    async def play() -> None:
        release = asyncio.Event()
        made = gate(manager(), release)
        task = Client(made, "POST", "/generate").start()
        await asyncio.sleep(0.1)
        body = await health(made)
        assert (body["in_flight"], body["waiting_age"]) == (1, None)
        release.set()
        await task

    asyncio.run(play())


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_client_that_goes_away_is_not_in_flight_for_good(kind: str) -> None:
    async def play() -> None:
        made = gate(manager(), asyncio.Event())
        task = Client(made, "POST", "/generate", kind=kind).start()
        await asyncio.sleep(0.01)
        assert made.in_flight() == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert made.in_flight() == 0

    asyncio.run(play())


def test_a_request_that_only_sglang_still_knows_is_in_flight() -> None:
    made = gate(manager(rid_to_state={"background": object(), "other": object()}))
    assert asyncio.run(health(made))["in_flight"] == 2


def test_output_is_counted_and_timed() -> None:
    made = gate(manager())
    made.saw_output(3)
    made.saw_output(4)
    body = asyncio.run(health(made))
    assert body["tokens"] == 7 and 0 <= body["last_output_age"] < 5


def drained_by_us(made: Gate) -> None:
    made.begin_drain()


def drained_by_sglang(made: Gate) -> None:
    made.manager.gracefully_exit = True


@pytest.mark.parametrize("drain", [drained_by_us, drained_by_sglang])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_new_requests_are_refused_while_draining(
    drain: Callable[[Gate], None], method: str
) -> None:
    made = gate(manager())
    drain(made)
    status, headers, body = asyncio.run(Client(made, method, "/v1/completions").answer())
    assert status == 503
    assert int(headers["retry-after"]) > 0
    assert headers["connection"] == "close"
    assert headers["content-length"] == str(len(json.dumps(body)))
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert asyncio.run(health(made))["draining"] is True


def test_requests_in_flight_and_lookers_are_not() -> None:
    async def play() -> None:
        release = asyncio.Event()
        made = gate(manager(), release)
        client = Client(made, "POST", "/v1/completions")
        task = client.start()
        await asyncio.sleep(0.01)
        made.begin_drain()
        looker = Client(made, "GET", "/metrics")
        looking = looker.start()
        release.set()
        await asyncio.gather(task, looking)
        assert client.sent[0]["status"] == looker.sent[0]["status"] == 200
        assert client.sent[-1] == {"type": "http.response.body", "body": b"]", "more_body": False}

    asyncio.run(play())


def test_a_websocket_is_refused_while_draining() -> None:
    made = gate(manager())
    made.begin_drain()
    client = Client(made, "GET", "/v1/realtime", kind="websocket")
    asyncio.run(_whole(client))
    assert client.sent == [{"type": "websocket.close", "code": 1012}]


async def _whole(client: Client) -> None:
    await client.start()


def test_the_lifespan_calls_the_hook_in_the_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    made = gate()
    made.on_startup = lambda: loops.append(asyncio.get_running_loop())
    asyncio.run(_whole(Client(made, "", "", kind="lifespan")))
    assert len(loops) == 1
