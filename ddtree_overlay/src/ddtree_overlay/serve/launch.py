"""`serve`: the SGLang server's argv, and the one thing that is refused before it starts."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddtree_overlay.serve.errors import StandInGpuError
from ddtree_overlay.serve.manifest import Manifest

# A container that listens on loopback cannot be reached, so SGLang's own default host is no use.
DEFAULTS = {"host": "0.0.0.0", "port": "30000"}  # noqa: S104
HOST_ROOT_VARIABLE = "DDTREE_HOST_ROOT"
_GPU_NODES = ("nvidiactl", "nvidia[0-9]*", "dxg")


def server_argv(arguments: Sequence[str]) -> list[str]:
    """`python -m sglang.launch_server` with DEFAULTS where the user (or a --config file) is silent.

    The defaults come first: of a repeated option argparse takes the last, the user's.
    """
    chosen = _given_options(arguments) | _config_keys(arguments)
    defaults = [
        part
        for name, value in DEFAULTS.items()
        if name not in chosen
        for part in (f"--{name}", value)
    ]
    return [sys.executable, "-m", "sglang.launch_server", *defaults, *arguments]


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


def _given_options(arguments: Sequence[str]) -> set[str]:
    return {part[2:].split("=", 1)[0] for part in arguments if part.startswith("--")}


def _config_keys(arguments: Sequence[str]) -> set[str]:
    """Top-level keys of SGLang's --config file, whose values a default on argv would override.

    An unreadable file gives none: the server itself reports it.
    """
    for option, value in itertools.pairwise(arguments):
        if option == "--config":
            try:
                text = Path(value).read_text(encoding="utf-8", errors="replace")
            except OSError:
                return set()
            return set(re.findall(r"^([\w-]+)\s*:", text, re.MULTILINE))
    return set()
