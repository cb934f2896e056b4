"""The docker CLI, buildx and compose for an engine that answers: the host's, or Debian's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from builder import console
from builder.engine.aptsources import AptUnavailableError
from builder.engine.clidir import make_docker_config
from builder.engine.packages import Want, obtain
from builder.engine.versions import at_least, plugin_version
from builder.errors import EngineTooOldError, ToolMissingError
from builder.pins import EnginePins
from builder.project import Project

PACKAGES = ("docker-buildx", "docker-cli", "docker-compose")


@dataclass(frozen=True)
class Tools:
    """The CLI to call, with the environment that makes it find its plugins."""

    cli: str
    env: dict[str, str]
    versions: dict[str, str]
    packages: dict[str, str]


def lacks(
    cli: str | None, env: dict[str, str], pins: EnginePins
) -> tuple[list[str], dict[str, str]]:
    """What is missing or too old on the host, and the versions of what is there."""
    if cli is None:
        return ["docker CLI", "buildx", "compose"], {}
    versions = {
        name: found for name in ("buildx", "compose") if (found := plugin_version(cli, name, env))
    }
    missing = [name for name in ("buildx", "compose") if name not in versions]
    if "buildx" in versions and not at_least(versions["buildx"], pins.minimum_buildx):
        missing.append(f"buildx {pins.minimum_buildx} (there is {versions['buildx']})")
    return missing, versions


def host_tools(pins: EnginePins) -> tuple[dict[str, str], list[str]]:
    """Versions of the host's own tools, and what is missing or too old among them."""
    missing, versions = lacks(which("docker"), dict(os.environ), pins)
    return versions, missing


def find_tools(project: Project, pins: EnginePins, scratch: Path) -> Tools:
    """The host's tools if they do, else Debian's in the cache, found through `scratch`.

    Raises ToolMissingError or EngineTooOldError where Debian's cannot be had either.
    """
    env = dict(os.environ)
    cli = which("docker")
    missing, versions = lacks(cli, env, pins)
    if not missing:
        assert cli is not None
        return Tools(cli, env, versions, {})
    console.info(f"the host lacks {', '.join(missing)}: taking Debian's, into the cache only")
    try:
        unpacked = obtain(project, [Want(pins.suite, PACKAGES)])
    except AptUnavailableError as exc:
        if cli is not None and missing == ["compose"]:
            console.warn(f"no docker compose: {exc.what}")  # only the compose tests need it
            return Tools(cli, env, versions, {})
        kind = EngineTooOldError if versions.get("buildx") else ToolMissingError
        raise kind(
            f"the host lacks {', '.join(missing)}, and Debian's cannot be taken: {exc.what}",
            f"install docker-buildx and docker-compose (Docker's: docker-buildx-plugin, "
            f"docker-compose-plugin), or {exc.remedy}",
        ) from None
    config = make_docker_config(
        scratch / "config",
        {name: unpacked.program(name) for name in ("docker-buildx", "docker-compose")},
    )
    env["DOCKER_CONFIG"] = str(config)
    if cli is None:
        program = unpacked.program("docker")
        assert program is not None
        cli = str(program)
        env["PATH"] = f"{program.parent}:{env.get('PATH', os.defpath)}"
    for name in ("buildx", "compose"):
        found = plugin_version(cli, name, env)
        if found is None:
            raise ToolMissingError(
                f"Debian's docker-{name} does not run on this host",
                f"install docker-{name} yourself",
            )
        versions[name] = found
    return Tools(cli, env, versions, unpacked.versions)
