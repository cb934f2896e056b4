"""The pinned files that no package index carries: can they be reached, and fetching them."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder import console
from builder.errors import SourceUnreachableError
from builder.pins import SourcePin, Target
from builder.project import Project
from builder.sources.download import Wanted, download
from builder.sources.http import HttpError, probe
from builder.sources.mirrors import ENVIRONMENT, mirrored

TOTAL_SECONDS = 8.0


@dataclass(frozen=True)
class SourceStatus:
    """Where a pinned file would come from, and why it cannot (`reason` is empty when it can)."""

    name: str
    url: str
    reason: str
    kept: bool = False  # already in the cache or the wheelhouse

    @property
    def ok(self) -> bool:
        return not self.reason


def artifact_path(project: Project, source: SourcePin) -> Path:
    """Where a fetched artifact is cached."""
    return project.cache / "artifacts" / source.sha256 / source.filename


def check_sources(
    target: Target,
    mirrors: Mapping[str, str],
    wheelhouse: Path | None = None,
    *,
    project: Project | None = None,
    seconds: float = TOTAL_SECONDS,
) -> list[SourceStatus]:
    """Ask every pinned source at once for its first byte; done after `seconds` at the latest.

    Files that lie in `wheelhouse` or, with `project`, in its cache, are not asked for. Raises
    SourceUnreachableError with one line per source that does not answer, and the ways out.
    """
    places = [_kept(source, wheelhouse, project) for source in target.sources]
    asked = [s for s, place in zip(target.sources, places, strict=True) if place is None]
    reasons = _probe_all(asked, mirrors, seconds)
    statuses = [
        SourceStatus(source.name, str(place), "", kept=True)
        if place is not None
        else SourceStatus(source.name, mirrored(source.url, mirrors), reasons[source.name])
        for source, place in zip(target.sources, places, strict=True)
    ]
    if failed := [status for status in statuses if not status.ok]:
        raise _unreachable(target, failed, len(statuses))
    return statuses


def _kept(source: SourcePin, wheelhouse: Path | None, project: Project | None) -> Path | None:
    folders = [wheelhouse / source.filename] if wheelhouse else []
    if project is not None:
        folders.append(artifact_path(project, source))
    return next((path for path in folders if path.is_file()), None)


def _probe_all(
    sources: list[SourcePin], mirrors: Mapping[str, str], seconds: float
) -> dict[str, str]:
    """Why each source does not serve its file; empty for those that do."""
    # A resolver or a server that trickles bytes can outlast any socket timeout: whoever has not
    # answered at the deadline is left behind in its daemon thread.
    reasons = {source.name: f"no answer within {seconds:.0f} s" for source in sources}

    def ask(source: SourcePin) -> None:
        try:
            size = probe(mirrored(source.url, mirrors))
        except HttpError as exc:
            reasons[source.name] = exc.reason
            return
        wrong = size is not None and source.size is not None and size != source.size
        reasons[source.name] = f"is {size} bytes, pinned are {source.size}" if wrong else ""

    threads = [threading.Thread(target=ask, args=(source,), daemon=True) for source in sources]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(reasons)


def _unreachable(target: Target, failed: list[SourceStatus], of: int) -> SourceUnreachableError:
    width = max(len(status.name) for status in failed)
    lines = [f"  {s.name:<{width}}  {s.url}  {s.reason}" for s in failed]
    ways = [
        f"a mirror: --mirror PREFIX=URL (or {ENVIRONMENT})",
        f"a wheelhouse: `python3 build.py fetch --cuda {target.variant} --to DIR` on a connected "
        "machine, then --wheelhouse DIR here",
        "the stand-in from PyPI alone, for tests: --stand-in",
    ]
    return SourceUnreachableError(
        f"{len(failed)} of {of} sources of {target.name} cannot be reached:\n" + "\n".join(lines),
        "; or ".join(ways),
    )


def wanted_artifact(source: SourcePin, mirrors: Mapping[str, str]) -> Wanted:
    """The pin as a download."""
    return Wanted(source.name, mirrored(source.url, mirrors), source.sha256, source.size)


def fetch_artifacts(project: Project, target: Target, mirrors: Mapping[str, str]) -> Path:
    """Download what is not cached yet; a folder with exactly the target's artifacts.

    Raises SourceUnreachableError, TruncatedDownloadError or HashMismatchError.
    """
    folder = project.cache / "artifacts" / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for source in target.sources:
        cached = artifact_path(project, source)
        with console.step(f"fetching {source.filename}"):
            download(wanted_artifact(source, mirrors), cached)
        link_or_copy(cached, folder / source.filename)
    names = {source.filename for source in target.sources}
    for stale in folder.iterdir():
        if stale.name not in names:
            stale.unlink()
    return folder


def link_or_copy(source: Path, dest: Path) -> None:
    """`dest` becomes the same file, atomically; a copy where the file system forbids links."""
    if dest.exists() and dest.samefile(source):
        return
    scratch = dest.with_name(f".{dest.name}.new")
    scratch.unlink(missing_ok=True)
    try:
        os.link(source, scratch)
    except OSError:
        shutil.copyfile(source, scratch)
    scratch.replace(dest)
