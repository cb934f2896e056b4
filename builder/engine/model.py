"""What the rest of the builder knows of an engine: how to reach it and what it is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import docker
import docker.errors


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

    def forget(self, *names: str) -> None:
        """Take names from the engine; an image goes with its last one. Absent ones are no failure.

        `NAME:TAG` or `NAME@DIGEST`, never an id: that takes all names of an image, and two builds
        of one commit are one image.
        """
        for name in names:
            with suppress(docker.errors.ImageNotFound):
                self.client.images.remove(name, force=True)

    def names(self, repository: str) -> list[str]:
        """`NAME:TAG` of every image here whose NAME is `repository`."""
        images = self.client.images.list(name=repository)
        found = {str(tag) for image in images for tag in image.tags}
        return sorted(tag for tag in found if tag.rpartition(":")[0] == repository)
