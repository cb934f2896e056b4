"""Versions as the engine and its command line report them, compared with the pinned minimum."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

import docker

from builder.errors import EngineTooOldError
from builder.pins import EnginePins

_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: `v0.13.1+ds1` is (0, 13, 1). Empty if there are none."""
    match = _NUMBERS.match(version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def at_least(version: str, minimum: str) -> bool:
    """True if `version` is `minimum` or newer; 23 and 23.0 are the same."""
    have, need = numbers(version), numbers(minimum)
    width = max(len(have), len(need))
    return bool(have) and have + (0,) * (width - len(have)) >= need + (0,) * (width - len(need))


def plugin_version(cli: str, plugin: str, env: Mapping[str, str]) -> str | None:
    """`docker PLUGIN version`, its number, or None if the plugin is not there."""
    try:
        done = subprocess.run(
            [cli, plugin, "version"], env=dict(env), capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    if done.returncode != 0:
        return None
    # "github.com/docker/buildx v0.13.1 abc", "Docker Compose version v2.26.1"
    found = re.search(r"\bv?(\d+\.\d+[0-9A-Za-z.+~-]*)", done.stdout)
    return found[1] if found else None


def engine_versions(client: docker.DockerClient) -> dict[str, str]:
    """What the engine says of itself and its parts."""
    reply = client.version()
    found = {"engine": str(reply["Version"])}
    for part in reply.get("Components", []):
        if part["Name"] in {"containerd", "runc", "Podman Engine"}:
            found[part["Name"]] = str(part["Version"])
    return found


def check_engine(versions: Mapping[str, str], pins: EnginePins) -> None:
    """Raises EngineTooOldError if the engine is not a Docker of the pinned minimum or newer."""
    if "Podman Engine" in versions:
        raise EngineTooOldError(
            f"what answers is Podman {versions['Podman Engine']}, which has no BuildKit",
            f"use Docker Engine {pins.minimum_engine} or newer, or --engine private",
        )
    if not at_least(versions["engine"], pins.minimum_engine):
        raise EngineTooOldError(
            f"the Docker engine is {versions['engine']}, the build needs {pins.minimum_engine}",
            f"update it to {pins.minimum_engine} or newer, or use --engine private",
        )
