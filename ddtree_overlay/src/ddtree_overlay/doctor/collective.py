"""A functional all-reduce over the GPUs that will serve: right, bounded in time, and measured.

NVML and the driver call peer-to-peer traffic "OK" on hosts where it hangs or, behind an IOMMU,
moves wrong bytes (NVIDIA/nccl issue 1999). So it is tried, and tried again without it if that
fails, and one verdict goes to all libraries.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from ddtree_overlay.doctor import collective_codes as codes
from ddtree_overlay.doctor.child import (
    child_environment,
    ending,
    kill,
    last_line,
    read_messages,
    start,
    with_last,
)
from ddtree_overlay.doctor.model import Check, Decided, Subject, Verdict
from ddtree_overlay.doctor.trial import Trial

MODULE = "ddtree_overlay.doctor.collective_child"
GRACE_SECONDS = 3.0
"""After a rank died: the others' own words, before they are killed."""
_POLL_SECONDS = 0.02
_LITTLE_SHM = 1 << 30
_NO_PEER = {"NCCL_P2P_DISABLE": "1"}
_SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")


def all_reduce(subject: Subject) -> Decided:
    """Findings, and the verdict. Starts `subject.gpus_needed` processes, twice at most; each try is
    bounded by `subject.collective_seconds`."""
    if subject.peer_to_peer == "off":
        return _without(subject, "DDTREE_PEER_TO_PEER=off", first=None)
    if subject.peer_to_peer == "auto" and subject.environment.get("NCCL_P2P_DISABLE") == "1":
        return _without(subject, "NCCL_P2P_DISABLE=1", first=None)
    trial = run_trial(subject, _switches(subject.environment, off=False))
    if trial.right:
        return Decided((), Verdict(True, f"all-reduce over peer-to-peer is right: {trial.speed}"))
    if subject.peer_to_peer == "on":
        code = codes.COLLECTIVE_WRONG if trial.wrong else codes.COLLECTIVE
        finding = code.found(
            f"with DDTREE_PEER_TO_PEER=on, all-reduce {trial.problem}",
            remedy="set DDTREE_PEER_TO_PEER=auto, and disable ACS redirect and IOMMU on the host",
        )
        return Decided((finding,), Verdict(True, "DDTREE_PEER_TO_PEER=on"))
    return _without(subject, "", first=trial)


def _without(subject: Subject, why: str, first: Trial | None) -> Decided:
    trial = run_trial(subject, _switches(subject.environment, off=True))
    if trial.right:
        if first is None:
            return Decided((), Verdict(False, f"{why}; all-reduce without is right: {trial.speed}"))
        code = codes.WRONG_PEER if first.wrong else codes.HUNG_PEER
        what = f"with peer-to-peer all-reduce {first.problem}; without it is right: {trial.speed}"
        return Decided((code.found(what),), Verdict(False, what))
    also = f"; with peer-to-peer it {first.problem}" if first is not None else ""
    code = codes.COLLECTIVE_WRONG if trial.wrong else codes.COLLECTIVE
    finding = code.found(
        f"all-reduce over {subject.gpus_needed} GPUs without peer-to-peer {trial.problem}{also}",
        remedy=_memory_hint(subject.root),
    )
    return Decided((finding,), Verdict(False, "all-reduce works neither with nor without it"))


def run_trial(subject: Subject, switches: Mapping[str, str]) -> Trial:
    """One try with these NCCL settings."""
    world = subject.gpus_needed
    given = subject.environment
    environment = child_environment(
        {key: value for key, value in given.items() if key not in _SWITCHES},
        {
            **switches,
            # One host: no name is resolved and no other interface is asked for, but what the
            # server itself will be told.
            "GLOO_SOCKET_IFNAME": given.get("GLOO_SOCKET_IFNAME") or "lo",
            "NCCL_SOCKET_IFNAME": given.get("NCCL_SOCKET_IFNAME") or "lo",
            # NCCL's own words, of errors alone, on stderr: the last of them is reported.
            "NCCL_DEBUG": given.get("NCCL_DEBUG", "WARN"),
        },
    )
    with TemporaryDirectory(prefix="ddtree-all-reduce-") as folder:
        command = [
            *(subject.python, "-m", MODULE, "--world", str(world)),
            *("--rendezvous", str(Path(folder) / "store")),
            *("--backend", "nccl" if subject.device == "cuda" else "gloo"),
            *("--seconds", f"{subject.collective_seconds:g}"),
            *("--first-gpu", str(subject.first_gpu), "--gpu-step", str(subject.gpu_step)),
        ]
        return _run_ranks(command, environment, world, subject.collective_seconds)


def _run_ranks(
    command: list[str], environment: Mapping[str, str], world: int, seconds: float
) -> Trial:
    outs = [TemporaryFile() for _ in range(world)]  # noqa: SIM115 - closed below
    errs = [TemporaryFile() for _ in range(world)]  # noqa: SIM115
    processes: list[Any] = []
    try:
        for rank in range(world):
            try:
                processes.append(
                    start([*command, "--rank", str(rank)], environment, outs[rank], errs[rank])
                )
            except OSError as error:
                return Trial(f"cannot start {command[0]} ({error.strerror})")
        exits, first = _wait(processes, seconds)
        kill(*processes)
        messages = [read_messages(out) for out in outs]
        lines = [last_line(err) for err in errs]
        return _judge(exits, first, messages, lines, seconds)
    finally:
        kill(*processes)
        for file in (*outs, *errs):
            file.close()


def _wait(processes: list[Any], seconds: float) -> tuple[list[int | None], int | None]:
    """Exit codes, None for those that still ran at the bound, which a death brings nearer; and the
    rank that died first. The codes are taken before anything is killed."""
    deadline = time.monotonic() + seconds
    first: int | None = None
    while True:
        exits = [process.poll() for process in processes]
        dead = [(rank, code) for rank, code in enumerate(exits) if code]
        if dead and first is None:
            # The others lose their partner and end with an error of their own a little later.
            # Seen together, a signal is rather the cause.
            first = min(dead, key=lambda pair: (pair[1] > 0, pair[0]))[0]
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if None not in exits or time.monotonic() >= deadline:
            return exits, first
        time.sleep(_POLL_SECONDS)


def _judge(
    exits: list[int | None],
    first: int | None,
    messages: list[tuple[dict[str, Any], ...]],
    lines: list[str],
    seconds: float,
) -> Trial:
    if first is not None:
        died = ending(exits[first] or 0)
        what = f"failed: rank {first} {died} ({_stage(messages[first])})"
        return Trial(with_last(what, lines[first]))
    hung = [rank for rank, code in enumerate(exits) if code is None]
    if hung:
        line = next((lines[rank] for rank in hung if lines[rank]), "")
        ranks = "all ranks" if len(hung) == len(exits) else f"rank {', '.join(map(str, hung))}"
        what = f"hung: {ranks} did not finish within {seconds:g} s ({_stage(messages[hung[0]])})"
        return Trial(with_last(what, line))
    results = [[m for m in said if "bytes" in m] for said in messages]
    try:
        return _measured(results)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return Trial(with_last("ended without a result", next(filter(None, lines), "")))


def _measured(results: list[list[dict[str, Any]]]) -> Trial:
    """The slowest rank of each size; raises for messages that are not our child's."""
    sizes = [int(result["bytes"]) for result in results[0]]
    if not sizes or any([int(r["bytes"]) for r in said] != sizes for said in results):
        raise ValueError
    for rank, said in enumerate(results):
        for result in said:
            if int(result["wrong"]):
                return Trial(
                    f"gave rank {rank} {result['wrong']} wrong values of {result['bytes']} bytes",
                    wrong=True,
                )
    slowest = [max(float(said[i]["seconds"]) for said in results) for i in range(len(sizes))]
    return Trial.of(len(results), dict(zip(sizes, slowest, strict=True)))


def _stage(messages: tuple[dict[str, Any], ...]) -> str:
    stages = [str(message["stage"]) for message in messages if "stage" in message]
    return f"at: {stages[-1]}" if stages else "before its first line"


def _switches(environment: Mapping[str, str], *, off: bool) -> dict[str, str]:
    """With peer-to-peer NCCL decides by topology, unless the level was set on purpose."""
    if off:
        return dict(_NO_PEER)
    level = environment.get("NCCL_P2P_LEVEL")
    return {"NCCL_P2P_LEVEL": level} if level else {}


def _memory_hint(root: Path) -> str | None:
    """Without peer-to-peer the data goes through /dev/shm."""
    try:
        space = os.statvfs(root / "dev" / "shm")
    except OSError:
        return None
    size = space.f_blocks * space.f_frsize
    if size >= _LITTLE_SHM:
        return None
    return f"/dev/shm has {size >> 20} MiB: run with --shm-size 16g or --ipc host"  # noqa: S108


CHECKS = (
    Check(
        "all-reduce",
        "The GPUs reduce together, and over peer-to-peer or not",
        (codes.HUNG_PEER, codes.WRONG_PEER, codes.COLLECTIVE, codes.COLLECTIVE_WRONG),
        all_reduce,
        needs="gpus",
        slow=True,
    ),
)
