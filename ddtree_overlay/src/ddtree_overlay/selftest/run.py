"""The two servers: started together, asked one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ddtree_overlay.selftest import compare, verdict
from ddtree_overlay.selftest.client import Answer, Client, RequestError
from ddtree_overlay.selftest.configuration import Configuration
from ddtree_overlay.selftest.interrupts import Interrupts
from ddtree_overlay.selftest.model_files import Models
from ddtree_overlay.selftest.receipt import Receipt
from ddtree_overlay.selftest.server import Server, program, stop
from ddtree_overlay.selftest.workload import ask

METRICS_SECONDS = 5.0
Groups = Mapping[str, Mapping[str, Answer]]


@dataclass(frozen=True)
class Options:
    """deadline: of everything, as time.monotonic() has it."""

    device: str
    tp: int
    models: Models
    deadline: float


def run(
    options: Options,
    environment: Mapping[str, str],
    receipt: Receipt,
    folder: Path,
    interrupts: Interrupts,
    say: Callable[[str], None],
) -> None:
    """Start, ask, judge, stop; what was found is in `receipt`. Raises SelftestNotRunError.

    Both servers are there at the end, because the plain one is asked about the places where the
    other's tokens part. They are small: a few GiB of host memory, a few hundred MiB on a GPU.
    """
    configuration = Configuration(options.device, options.tp, options.models)
    inherited = configuration.environment(environment, folder)
    begin = program(environment)
    arguments = {"plain": configuration.plain(), "DDTREE": configuration.tree()}
    with ExitStack() as stack:
        began = time.monotonic()
        servers = {
            name: Server(name, [*begin, *argv], inherited, folder)
            for name, argv in arguments.items()
        }
        stack.callback(stop, tuple(servers.values()))
        for server in servers.values():
            with interrupts.held():
                server.start()
        say(f"two servers are starting on {options.device} ({' '.join(begin[1:])})")
        answers: dict[str, Groups] = {}
        starts: dict[str, float] = {}
        for name, server in servers.items():
            server.wait_ready(options.deadline, tuple(servers.values()))
            starts[name] = round(time.monotonic() - began, 1)
            say(f"{name}: ready after {starts[name]:.0f} s; asking")
            answers[name] = _ask(server, options, seeds=configuration.seeds)
        receipt.start_seconds = starts
        plain, tree = servers["plain"], servers["DDTREE"]
        try:
            metrics = _metrics(Client(tree.port, options.deadline))
            checks = verdict.judge(
                options.models,
                answers["plain"],
                answers["DDTREE"],
                metrics,
                client=Client(plain.port, options.deadline),
                tolerance=compare.CPU if options.device == "cpu" else compare.GPU,
                seeds=configuration.seeds,
            )
        except RequestError as error:
            raise _unanswered((plain, tree), error) from None
        say("stopping")
    receipt.checks = checks
    receipt.metrics = {name: metrics[name] for name in verdict.METRICS if name in metrics}
    receipt.requests = sum(len(group) for group in answers["plain"].values())
    greedy = [answers["plain"][group] for group in compare.GREEDY]
    receipt.tokens = sum(len(one.ids) for group in greedy for one in group.values())
    receipt.sha256 = compare.digest(answers["plain"])
    receipt.accept_length = compare.accept_length(answers["DDTREE"]["alone"])
    receipt.result = "pass" if all(check.passed for check in checks) else "fail"


def _ask(server: Server, options: Options, *, seeds: bool) -> Groups:
    try:
        return ask(Client(server.port, options.deadline), seeds=seeds)
    except RequestError as error:
        raise _unanswered((server,), error) from None


def _unanswered(servers: tuple[Server, ...], error: RequestError) -> Exception:
    """The likelier reason: a server that has ended, else what the request met."""
    time.sleep(0.5)  # a dying server closes its connections before it is gone
    for server in servers:
        server.check_alive()
    return servers[-1].failure(f"failed a request: {error}", "read the log (--keep-logs DIR)")


def _metrics(client: Client) -> dict[str, float]:
    """/metrics, once it has the trees: a process exports them after its round."""
    until = time.monotonic() + METRICS_SECONDS
    while True:
        found = client.metrics()
        if found.get(verdict.OFF_SPINE) or time.monotonic() > until:
            return found
        time.sleep(0.2)
