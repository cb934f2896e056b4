"""The Docker engine that a build runs on: the one that answers, or a private one.

`acquire` is the way in; everything else of the package is its parts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from builder import console
from builder.engine.aptsources import AptUnavailableError
from builder.engine.disk import check_disk, check_existing
from builder.engine.existing import Found, find_existing, named_engine
from builder.engine.layout import layout_of
from builder.engine.model import Engine
from builder.engine.packages import obtain
from builder.engine.private import running
from builder.engine.support import engine_wants, why_not_private
from builder.engine.toolset import find_tools
from builder.engine.versions import check_engine, engine_versions, plugin_version
from builder.errors import EngineAbsentError
from builder.pins import SharedPins
from builder.project import Project

__all__ = ["Engine", "EngineMode", "acquire"]

EngineMode = Literal["auto", "existing", "private"]


@contextmanager
def acquire(
    project: Project,
    shared: SharedPins,
    mode: EngineMode,
    *,
    need_gib: int | None = None,
) -> Iterator[Engine]:
    """An engine for the time of a `with` block; a private one is stopped at its end.

    `need_gib`: room that the build needs on the engine's disk (default: engine.disk_gib).
    Raises EngineAbsentError, EngineTooOldError, EngineStartError, DiskSpaceError, ToolMissingError.
    """
    need = shared.engine.disk_gib if need_gib is None else need_gib
    found: Found | None = None
    if mode != "private":
        try:
            found = find_existing()
        except EngineAbsentError as absent:
            # An engine that the user named is the one they want: never another in its place.
            if mode == "existing" or named_engine():
                raise
            _check_private_possible(absent)
            console.info(f"{absent.what}; starting a private one, stopped at the end")
    if found is not None:
        with _existing(project, shared, found, need) as engine:
            yield engine
    else:
        _check_private_possible(None)
        with _private(project, shared, need) as engine:
            yield engine


def _check_private_possible(absent: EngineAbsentError | None) -> None:
    reason = why_not_private()
    if reason is None:
        return
    what = "a private Docker engine cannot be started here" if absent is None else absent.what
    joint = ": " if absent is None else "; none can be started here: "
    raise EngineAbsentError(
        f"{what}{joint}{reason.what}",
        f"{reason.remedy}; or install Docker Engine with buildx and start it, or set DOCKER_HOST",
    )


@contextmanager
def _existing(
    project: Project, shared: SharedPins, found: Found, need_gib: int
) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(prefix="ddtree-docker-") as scratch:
        try:
            versions = engine_versions(found.client)
            check_engine(versions, shared.engine)
            check_existing(str(found.client.info()["DockerRootDir"]), found.url, need_gib)
            tools = find_tools(project, shared.engine, Path(scratch))
            console.info(
                f"using the Docker engine at {found.url}: {versions['engine']}, "
                f"buildx {tools.versions['buildx']}"
            )
            yield Engine(
                kind="existing",
                client=found.client,
                versions={**versions, **tools.versions},
                env=tools.env,
                cli=tools.cli,
                packages=tools.packages,
            )
        finally:
            found.client.close()


@contextmanager
def _private(project: Project, shared: SharedPins, need_gib: int) -> Iterator[Engine]:
    place = layout_of(project)
    check_disk(
        place.data,
        need_gib,
        "free space there, drop old images with `build.py engine prune`, or set DDTREE_CACHE",
    )
    try:
        unpacked = obtain(project, engine_wants(shared.engine))
    except AptUnavailableError as exc:
        raise EngineAbsentError(
            f"the private Docker engine's packages cannot be had: {exc.what}",
            f"{exc.remedy}; or install Docker Engine with buildx",
        ) from None
    with running(place, unpacked, keep_gib=shared.engine.cache_gib) as started:
        versions = engine_versions(started.client)
        for name in ("buildx", "compose"):
            versions[name] = plugin_version(started.cli, name, started.env) or "absent"
        check_engine(versions, shared.engine)
        versions["packages"] = " ".join(f"{k}={v}" for k, v in unpacked.versions.items())
        console.info(
            f"private Docker engine {versions['engine']}, buildx {versions['buildx']}, "
            f"runc {versions.get('runc', 'unknown')} (Debian's packages, {place.data})"
        )
        yield Engine(
            kind="private",
            client=started.client,
            versions=versions,
            env=started.env,
            cli=started.cli,
            packages=dict(unpacked.versions),
            enter=started.enter,
        )
