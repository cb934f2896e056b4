"""Runs the server: reports how it loads, lets it drain, ends all of it, and says how it ended.

The supervisor is tini's child and the server's parent. Whatever happens, it returns only when no
process of the server is left (or one is that even SIGKILL does not end, which it says).
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from ddtree_overlay.serve.endings import (
    Ending,
    ExitCode,
    describe,
    hint,
    out_of_memory_kills,
)
from ddtree_overlay.serve.errors import SecretPipeError, UnsupportedServerError
from ddtree_overlay.serve.launch_spec import Launch
from ddtree_overlay.serve.poll import Poller
from ddtree_overlay.serve.probes import Probes
from ddtree_overlay.serve.server_process import ServerProcess
from ddtree_overlay.serve.signals import StopSignals
from ddtree_overlay.serve.status import Phase
from ddtree_overlay.serve.workers import WorkerWatch

__all__ = ["Launch", "say", "supervise"]

TICK_SECONDS = 0.25
REPORT_SECONDS = 15.0
DRAIN_POLL_SECONDS = 0.2
# SGLang gives its schedulers 15 s to release what they hold, after the last answer.
AFTER_DRAIN_SECONDS = 20.0
# Errors that the launcher inside the server has already explained.
_EXPLAINED = {UnsupportedServerError.exit_code, SecretPipeError.exit_code}


def supervise(launch: Launch, probes: Probes | None = None) -> int:
    """Run the server to its end; the exit code (serve/endings.py) tells how that was.

    `probes`: already started, and left running for the caller to stop; without them it makes its
    own. Must be called in the main thread; until it returns, signals and the reaping of children
    are its own. Raises EntryError for what fails before the server exists.
    """
    if probes is None:
        with Probes(launch.probe_host, launch.probe_port) as own:
            return supervise(launch, own)
    status = probes.status
    status.progress_seconds, status.node_rank = launch.progress_seconds, launch.node_rank
    status.address = launch.address
    with StopSignals() as signals:
        return _Supervisor(launch, probes, signals).run()


def say(line: str) -> None:
    """One line on stderr."""
    with suppress(OSError):  # nobody may read it any more; that must not keep us from ending
        print(line, file=sys.stderr, flush=True)


class _Supervisor:
    def __init__(self, launch: Launch, probes: Probes, signals: StopSignals) -> None:
        self._launch, self._signals = launch, signals
        self._status, self._probes = probes.status, probes
        self._workers = WorkerWatch(launch.worker_grace_seconds)
        self._drain_began = self._drained_at = 0.0

    def run(self) -> int:
        """From the server's start to its end."""
        self._memory_kills = out_of_memory_kills()
        self._began = self._reported = time.monotonic()
        self._server = ServerProcess(self._launch)
        try:
            ending = self._watch()
        except BaseException:
            self._server.end(self._signals, 0)  # a bug of ours must leave no orphan either
            raise
        return self._finish(ending)

    def _watch(self) -> Ending:
        self._status.server_pid = self._server.pid
        self._probes.set_phase(Phase.LOADING)
        self._poller = Poller(
            self._status,
            self._launch.host,
            self._launch.port,
            tls=self._launch.tls,
            node_rank=self._launch.node_rank,
        )
        self._poller.start()
        steps: dict[Phase, Callable[[], Ending | None]] = {
            Phase.LOADING: self._load,
            Phase.READY: self._serve,
            Phase.DRAINING: self._drain,
        }
        try:
            while (ending := steps[self._status.phase]()) is None:
                self._signals.wait(TICK_SECONDS)
                self._status.beat()
                self._server.look()
        finally:
            self._poller.stop()
        return ending

    # -- phases: each returns how it ended, or None to go on ------------------------------------

    def _load(self) -> Ending | None:
        now = time.monotonic()
        seconds = now - self._began
        if self._server.exit is not None:
            return self._died("while loading")
        if self._signals.stops:
            return Ending(ExitCode.STOPPED, f"{self._signals.latest} while loading: ended at once")
        if (lost := self._workers.lost(self._server.members, self._server.pid, now)) is not None:
            return self._worker_died(lost)
        answer = self._status.answer
        if answer is not None and answer.status == "Up":
            self._probes.set_phase(Phase.READY)
            say(f"ddtree: ready after {seconds:.0f} s: {self._launch.address}")
            return None
        bound = self._launch.start_seconds
        if bound and seconds > bound:
            return Ending(
                ExitCode.NOT_READY,
                f"the model did not answer within {bound:.0f} s",
                "see the server's lines above; a slow disk needs a larger DDTREE_START_SECONDS",
            )
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            resident, read = (size / 2**30 for size in self._server.usage())
            say(
                f"ddtree: loading for {seconds:.0f} s: {resident:.1f} GiB resident,"
                f" {read:.1f} GiB read"
            )
        return None

    def _serve(self) -> Ending | None:
        if self._server.exit is not None:
            return self._died("while serving")
        if self._signals.stops:
            self._begin_drain()
            return None
        lost = self._workers.lost(self._server.members, self._server.pid, time.monotonic())
        if lost is not None:
            return self._worker_died(lost)
        progress = self._status.progress()
        if self._launch.end_when_stalled and not progress.yes:
            return Ending(ExitCode.STALLED, progress.why, "see the server's lines above")
        return None

    def _begin_drain(self) -> None:
        self._probes.set_phase(Phase.DRAINING)
        self._drain_began = time.monotonic()
        self._poller.interval = DRAIN_POLL_SECONDS
        bound = f"at most {self._launch.drain_seconds:.0f} s"
        if self._launch.node_rank == 0:
            say(f"ddtree: {self._signals.latest}: no new requests; draining, {bound}")
            self._server.terminate()
        else:
            # The requests are rank 0's. When it has drained it ends the workers here too; ending
            # them earlier would cut what it still answers.
            say(f"ddtree: {self._signals.latest}: waiting for rank 0 to drain, {bound}")

    def _drain(self) -> Ending | None:
        now, answer = time.monotonic(), self._status.answer
        in_flight = answer.in_flight if answer is not None else None
        # Only what the server says once it refuses new requests is final. When the answer came is
        # no proof: it may have been written before the signal and have arrived after it.
        known = answer is not None and answer.draining
        if self._server.exit is not None:
            return self._ended_draining(in_flight if in_flight or known else None)
        self._drained_at = (self._drained_at or now) if known and in_flight == 0 else 0.0
        again = self._signals.stops > 1
        over = now - self._drain_began > self._launch.drain_seconds
        patience = AFTER_DRAIN_SECONDS + self._launch.kill_seconds
        if not again and not over and not (self._drained_at and now - self._drained_at > patience):
            return None
        why = f"a second {self._signals.latest}" if again else "the drain's bound"
        if in_flight:
            return Ending(
                ExitCode.REQUESTS_CUT,
                f"{in_flight} requests were cut at {why}, after {now - self._drain_began:.0f} s",
                "raise DDTREE_DRAIN_SECONDS, and the grace of whatever stops the container with it",
            )
        return Ending(ExitCode.STOPPED, f"ended at {why}")

    def _ended_draining(self, in_flight: int | None) -> Ending:
        # The launcher's word, or ours: SGLang's own end after a clean drain is SIGKILL to itself.
        # Requests are rank 0's alone.
        clean = (-signal.SIGTERM, -signal.SIGKILL)
        answered = in_flight == 0 or self._launch.node_rank > 0
        if self._server.exit == 0 or (self._server.exit in clean and answered):
            seconds = time.monotonic() - self._drain_began
            return Ending(ExitCode.STOPPED, f"drained in {seconds:.0f} s; every request answered")
        return self._died(f"while draining, with {in_flight or 'an unknown number of'} requests")

    def _died(self, when: str) -> Ending:
        assert self._server.exit is not None
        if self._server.exit in _EXPLAINED:
            return Ending(
                self._server.exit, f"the server refused to start {describe(self._server.exit)}"
            )
        if self._server.exit == 0 and self._launch.node_rank > 0:
            return Ending(ExitCode.STOPPED, "rank 0 ended the service")
        return Ending(
            ExitCode.SERVER_DIED,
            f"the server ended {when}, {describe(self._server.exit)}",
            hint(
                self._server.exit,
                loading=self._status.phase is Phase.LOADING,
                out_of_memory=out_of_memory_kills() > self._memory_kills,
            ),
        )

    def _worker_died(self, lost: str) -> Ending:
        seconds = self._launch.worker_grace_seconds
        return Ending(
            ExitCode.WORKER_DIED,
            f"{lost} ended, and the server went on without it for {seconds:.0f} s",
            "see the server's lines above; look for Xid in the host's kernel log",
        )

    # -- the end --------------------------------------------------------------------------------

    def _finish(self, ending: Ending) -> int:
        stopped = ending.code in (ExitCode.STOPPED, ExitCode.REQUESTS_CUT)
        self._probes.set_phase(Phase.STOPPING if stopped else Phase.FAILED)
        outlived = self._server.exit is None
        left = self._server.end(self._signals, self._launch.kill_seconds, self._status.beat)
        if ending.code == ExitCode.STOPPED and outlived and self._server.exit == -signal.SIGKILL:
            ending = Ending(
                ExitCode.SERVER_KILLED,
                f"{ending.what}; the server did not end by itself and was killed",
                "no request was lost if it had drained; report it if it happens at every stop",
            )
        if left:
            names = ", ".join(f"{process.pid} (state {process.state})" for process in left)
            for line in ending.lines():
                say(line)
            ending = Ending(
                ExitCode.UNKILLABLE,
                f"processes are left that SIGKILL does not end: {names}",
                "the GPU driver holds them: look for Xid in the host's kernel log, reset the GPU",
            )
        for line in ending.lines():
            say(line)
        return int(ending.code)
