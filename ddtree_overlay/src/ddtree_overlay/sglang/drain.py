"""SIGTERM: refuse what is new, answer what is in flight to its last byte, then end with status 0.

SGLang's own way looks every 5 s whether its scheduler has ended every request, and then kills the
process, also under an answer that a client is still reading; and until the first request has come,
SIGTERM means what uvicorn makes of it. This replaces both.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from typing import Any

from ddtree_overlay.sglang.gate import Gate

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
# As SGLang's own drain: schedulers give back what they hold (graphs, shared memory, NCCL).
SCHEDULER_SECONDS = 15.0
# For the last bytes of answers, and for requests that only look (they may wait for a scheduler).
FLUSH_SECONDS = 10


class Drain:
    """One drain of one server; `done` once everything was answered."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._task: asyncio.Task[None] | None = None
        self._server: Any = None
        self.done = False

    def install(self) -> None:
        """In uvicorn's event loop, in the main thread, once uvicorn has set its own handler."""
        handler = signal.getsignal(signal.SIGTERM)
        self._server = getattr(handler, "__self__", None)
        if not hasattr(self._server, "should_exit"):
            raise RuntimeError(f"SIGTERM is handled by {handler!r}, not by uvicorn's server")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.begin)

    def begin(self) -> None:
        """What SIGTERM does. A further one changes nothing."""
        if self._task is not None:
            return
        self._gate.begin_drain()
        if self._gate.manager is not None:
            self._gate.manager.gracefully_exit = True
        logger.warning("SIGTERM: no new requests; %d in flight", self._gate.in_flight())
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._gate.in_flight():
                await asyncio.sleep(POLL_SECONDS)
            self.done = True
            await _release_schedulers(self._gate.manager)
        except Exception:
            logger.exception("the drain failed; ending all the same")
        self._server.config.timeout_graceful_shutdown = FLUSH_SECONDS
        self._server.should_exit = True


async def _release_schedulers(manager: Any) -> None:
    """As the end of SGLang's sigterm_watchdog, but for its SIGKILL."""
    from sglang.srt.managers.io_struct import ShutdownReq
    from sglang.srt.utils.cudacore_pyspy_dump_utils import collect_scheduler_processes

    watchdog = manager._subprocess_watchdog
    if watchdog is not None:
        # Its children's ends are no crash now. It joins a thread, for up to 2 s.
        await asyncio.to_thread(watchdog.stop)
    manager._dispatch_to_scheduler(ShutdownReq())
    deadline = time.monotonic() + SCHEDULER_SECONDS
    while time.monotonic() < deadline and collect_scheduler_processes():
        await asyncio.sleep(POLL_SECONDS)
