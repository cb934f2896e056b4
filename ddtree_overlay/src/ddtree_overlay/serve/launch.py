"""What `serve` starts, and the one thing that is refused before anything else is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddtree_overlay.serve.catalogue import BY_NAME
from ddtree_overlay.serve.errors import StandInGpuError
from ddtree_overlay.serve.launch_spec import Launch
from ddtree_overlay.serve.manifest import Manifest
from ddtree_overlay.serve.plan import Plan

SERVER_PROGRAM = ("python", "-m", "ddtree_overlay.sglang.http_server")
HOST_ROOT_VARIABLE = "DDTREE_HOST_ROOT"
_SGLANG_ARGS = BY_NAME["sglang_args"].variable
_GPU_NODES = ("nvidiactl", "nvidia[0-9]*", "dxg")


def launch_of(plan: Plan, environment: Mapping[str, str]) -> Launch:
    """The server's process for a plan that has passed the checks.

    environment: the container's own; the plan's variables outrank it.
    """
    ours = {name: str(value.value) for name, value in plan.environment.items()}
    return Launch(
        argv=(*SERVER_PROGRAM, *plan.argv()),
        environment={**_without_flags(environment), **ours},
        secrets={name: secret.text for name, secret in plan.secrets.items()},
        host=plan.get("host"),
        port=plan.get("port"),
        probe_host=plan.get("probe_host"),
        probe_port=plan.get("probe_port"),
        drain_seconds=plan.get("drain_seconds"),
        kill_seconds=plan.get("kill_seconds"),
        start_seconds=plan.get("start_seconds"),
        progress_seconds=plan.get("progress_seconds"),
        node_rank=plan.get("node_rank"),
        tls=plan.flag("--ssl-certfile") is not None,
    )


def _without_flags(environment: Mapping[str, str]) -> dict[str, str]:
    # What it says is in argv, and a key among it is in the pipe.
    return {name: value for name, value in environment.items() if name != _SGLANG_ARGS}


def refuse_stand_in_on_gpu(manifest: Manifest, environment: Mapping[str, str]) -> None:
    """Raises StandInGpuError when a stand-in image sees an NVIDIA device node."""
    if not manifest.stand_in:
        return
    dev = Path(environment.get(HOST_ROOT_VARIABLE) or "/") / "dev"
    nodes = sorted({node.name for pattern in _GPU_NODES for node in dev.glob(pattern)})
    if nodes:
        raise StandInGpuError(
            f"this is a stand-in image, built from substitutes, and a GPU is visible "
            f"(/dev/{nodes[0]}): it would serve an untested stack",
            "use an image built without --stand-in, or run this one without GPUs (for CPU tests)",
        )
