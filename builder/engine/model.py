"""What the rest of the builder knows of an engine: how to reach it and what it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import docker


@dataclass(frozen=True)
class Engine:
    """A Docker engine that answers, with the command lines that reach it."""

    kind: str
    """`existing` or `private`."""
    client: docker.DockerClient
    versions: dict[str, str]
    """Observed, not assumed: engine, buildx, compose, containerd, runc."""
    env: dict[str, str]
    """Whole environment for subprocesses that talk to the engine."""
    cli: str
    """Absolute path of the docker CLI."""
    packages: dict[str, str] = field(default_factory=dict)
    """Debian packages that were unpacked for it, name to version; empty if none were."""
    enter: tuple[str, ...] = ()
    """What to put before a command so that it sees the ports the engine publishes."""

    def docker(self, *args: str) -> list[str]:
        """`docker ARGS`."""
        return [self.cli, *args]

    def buildx(self, *args: str) -> list[str]:
        """`docker buildx ARGS`."""
        return [self.cli, "buildx", *args]

    def compose(self, *args: str) -> list[str]:
        """`docker compose ARGS`."""
        return [self.cli, "compose", *args]

    def in_network(self, *args: str) -> list[str]:
        """Any command, run where the engine's published ports are (on 127.0.0.1)."""
        return [*self.enter, *args]
