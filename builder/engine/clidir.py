"""A DOCKER_CONFIG of the builder's own that still knows the user's credentials and contexts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# What the CLI reads there and never writes on our commands. buildx keeps its state in `buildx`,
# which stays in our folder.
_SHARED = ("config.json", "contexts", "trust")


def user_config() -> Path:
    """`$DOCKER_CONFIG`, else ~/.docker (docker's own rule)."""
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def make_docker_config(folder: Path, plugins: Mapping[str, Path | None]) -> Path:
    """Fill `folder` with links: `plugins` (name to program), the user's other plugins and files."""
    user = user_config()
    target = folder / "cli-plugins"
    target.mkdir(parents=True)
    folder.chmod(0o700)
    for name, program in plugins.items():
        if program is not None:
            (target / name).symlink_to(program)
    for path in sorted((user / "cli-plugins").glob("docker-*")):
        if not (target / path.name).is_symlink():
            (target / path.name).symlink_to(path)
    for name in _SHARED:
        if (user / name).exists():
            (folder / name).symlink_to((user / name).resolve())
    return folder
