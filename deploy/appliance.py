#!/usr/bin/env python3
"""Change the image that serves, and go back: `upgrade NAME@sha256:...`, `rollback`, `status`.

`.env` beside compose.yaml holds the image that serves (DDTREE_IMAGE) and the one before
(DDTREE_PREVIOUS_IMAGE); both change in one rename. A new image that does not become healthy is
replaced by the old one at once. Needs Python 3.10 and `docker compose`.

Exit status: 0 it serves; 1 the new image did not become healthy and the old one serves again;
2 usage; 3 refused or failed before anything changed; 4 nothing healthy serves.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

IMAGE, PREVIOUS = "DDTREE_IMAGE", "DDTREE_PREVIOUS_IMAGE"
BACK, REFUSED, DOWN = 1, 3, 4
# In this order, one after the other: a replica serves while the next one is replaced.
SINGLE, REPLICAS = ("appliance",), ("appliance-a", "appliance-b", "router")
# A digest of a registry, or the ID that an image without one has.
_PINNED = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}|sha256:[0-9a-f]{64}")
_REFERENCE = re.compile(r"[a-z0-9][\w.:/-]*", re.ASCII)
# Longer than the appliance's own bound on a start (start_seconds, 1800), so that it speaks first.
WAIT_SECONDS = 2100
# What `up` does beside waiting: stop the old container (2 minutes of grace), create the new one.
SWITCH_SECONDS = 300


class RefusedError(Exception):
    """Nothing was changed; the text says why and what to do."""


class NotHealthyError(Exception):
    """The containers did not become healthy."""


@dataclass(frozen=True)
class Settings:
    """The `.env` file: a few of its lines are ours, the rest is kept byte for byte."""

    path: Path

    def get(self, name: str) -> str | None:
        """The last value given, without quotes; None if there is none or it is empty."""
        found = [m[1] for line in self._lines() if (m := _line_of(name).match(line))]
        return found[-1].strip().strip("\"'") or None if found else None

    def put(self, values: dict[str, str | None]) -> None:
        """Set values (None: remove) in one atomic replacement that keeps the file's mode."""
        lines = self._lines()
        for name, value in values.items():
            places = [i for i, line in enumerate(lines) if _line_of(name).match(line)]
            new = [] if value is None else [f"{name}={value}"]
            at = places[-1] if places else len(lines)  # the last one counts
            lines[at : at + 1] = new
            for place in reversed(places[:-1]):
                del lines[place]
        text = "\n".join(lines)
        target = self.path.resolve()  # a link stays a link
        handle, name = tempfile.mkstemp(prefix=".env-", dir=target.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text + "\n" if text else "")
                file.flush()
                os.fsync(file.fileno())
            if target.exists():  # mkstemp's 0600 otherwise: it may hold a key
                status = target.stat()
                Path(name).chmod(status.st_mode & 0o777)
                with contextlib.suppress(PermissionError):
                    os.chown(name, status.st_uid, status.st_gid)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []


def _line_of(name: str) -> re.Pattern[str]:
    return re.compile(rf"\s*(?:export\s+)?{name}\s*=(.*)$")


@dataclass(frozen=True)
class Host:
    """docker on this host, in the project's folder."""

    folder: Path
    services: tuple[str, ...]
    wait: int

    def compose(self, *arguments: str) -> list[str]:
        profile = ["--profile", "router"] if self.services == REPLICAS else []
        # The same .env that we edit, wherever this is called from.
        files = ["--project-directory", str(self.folder), "-f", str(self.folder / "compose.yaml")]
        return ["docker", "compose", *files, *profile, *arguments]

    def run(
        self,
        argv: Sequence[str],
        *,
        image: str | None = None,
        timeout: int | None = None,
        quiet: bool = False,
    ) -> int:
        """Echo and run a command; its exit status, 124 for one that ran past `timeout` seconds."""
        environment = {**os.environ, **({IMAGE: image} if image else {})}
        output = subprocess.DEVNULL if quiet else None
        if not quiet:
            print("+", " ".join(argv), file=sys.stderr, flush=True)
        try:
            return subprocess.run(
                argv, env=environment, timeout=timeout, check=False, stdout=output, stderr=output
            ).returncode
        except subprocess.TimeoutExpired:
            return 124
        except FileNotFoundError:
            raise RefusedError(f"{argv[0]} is not installed: install Docker with compose") from None

    def inspect(self, image: str, template: str) -> str:
        """A field of a local image; empty if the engine does not have it."""
        argv = ["docker", "image", "inspect", "--format", template, image]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise RefusedError("docker is not installed: install Docker with compose") from None
        return done.stdout.strip() if done.returncode == 0 else ""

    def bring_up(self, image: str) -> None:
        """Run the services on `image` until all are healthy. Raises NotHealthyError."""
        for service in self.services:
            up = ("up", "--detach", "--no-deps", "--wait", "--wait-timeout", str(self.wait))
            code = self.run(
                self.compose(*up, service), image=image, timeout=self.wait + SWITCH_SECONDS
            )
            if code != 0:
                self.run(self.compose("logs", "--no-color", "--tail", "20", service), image=image)
                raise NotHealthyError(f"{service} did not become healthy on {image}")


def switch(host: Host, settings: Settings, image: str) -> int:
    """Serve `image`; go back to what served if it does not become healthy."""
    current, before = settings.get(IMAGE), settings.get(PREVIOUS)
    try:
        _prepare(host, image)
        previous = before if current in (None, image) else _pin(host, current)
    except KeyboardInterrupt:
        raise RefusedError("interrupted; nothing was changed") from None
    try:
        if current != image:
            settings.put({IMAGE: image, PREVIOUS: previous})
        host.bring_up(image)
    except (NotHealthyError, KeyboardInterrupt) as failure:
        reason = str(failure) or "interrupted"
        if current == image:
            return _say(f"error: {reason}; it was the current image already", DOWN)
        settings.put({IMAGE: current, PREVIOUS: before})
        if current is None or previous is None:
            return _say(f"error: {reason}; no image served before, so none was put back", DOWN)
        print(f"error: {reason}; going back to {previous}", file=sys.stderr, flush=True)
        try:
            host.bring_up(previous)
        except NotHealthyError as second:
            return _say(f"error: {second} either: nothing healthy serves", DOWN)
        return _say(f"error: {reason}; {previous} serves again", BACK)
    return _say(f"{image} serves; before it: {previous or 'none'}", 0)


def _prepare(host: Host, image: str) -> None:
    """Everything that can fail before anything changes. Raises RefusedError."""
    # A digest's content cannot change; a tag's can, so it is asked for again.
    is_here = _PINNED.fullmatch(image) and host.inspect(image, "{{.Id}}")
    if not is_here and host.run(["docker", "pull", image]) != 0:
        raise RefusedError(f"{image} cannot be pulled; nothing was changed")
    if host.run(host.compose("config", "--quiet"), image=image) != 0:
        raise RefusedError("compose.yaml or .env is not valid, see above; nothing was changed")


def _pin(host: Host, image: str) -> str:
    """What `image` is now, by digest or ID if the engine has it: a tag may move meanwhile."""
    if _PINNED.fullmatch(image):
        return image
    digests = host.inspect(image, '{{join .RepoDigests " "}}').split()
    return digests[0] if digests else host.inspect(image, "{{.Id}}") or image


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr if code else sys.stdout, flush=True)
    return code


def check_reference(image: str, *, allow_tag: bool) -> None:
    """Raise RefusedError for what is not a digest, or with `allow_tag` not a reference at all."""
    if _PINNED.fullmatch(image):
        return
    if not _REFERENCE.fullmatch(image):
        raise RefusedError(f"{image!r} is not an image reference: name one as NAME@sha256:DIGEST")
    if not allow_tag:
        raise RefusedError(
            f"{image} is not pinned by digest, so nobody could say later what ran: "
            "name it as NAME@sha256:DIGEST, or add --allow-tag"
        )


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One change at a time; the lock ends with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RefusedError("another upgrade or rollback is running here: wait for it") from None
    else:
        yield
    finally:
        os.close(handle)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, and turn refusals into one line."""
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--router", action="store_true", help="the replicas and their router")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--wait-seconds", type=int, default=WAIT_SECONDS, metavar="N")
    verbs = parser.add_subparsers(dest="verb", required=True)
    upgrade = verbs.add_parser("upgrade", help="serve another image")
    upgrade.add_argument("image", metavar="NAME@sha256:DIGEST")
    upgrade.add_argument("--allow-tag", action="store_true", help="take a tag, which may move")
    verbs.add_parser("rollback", help="serve the image that served before")
    verbs.add_parser("status", help="what serves, and what served before")
    options = parser.parse_args(argv)
    services = REPLICAS if options.router else SINGLE
    host = Host(options.folder.resolve(), services, options.wait_seconds)
    settings = Settings(host.folder / ".env")
    # A stop of ours in the middle goes back as well, rather than leave something half changed.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if not (host.folder / "compose.yaml").is_file():
            raise RefusedError(f"there is no compose.yaml in {host.folder}: name it by --folder")
        if host.run(["docker", "compose", "version"], quiet=True) != 0:
            raise RefusedError("docker has no compose plugin: install docker-compose-plugin")
        if options.verb == "status":
            print(f"image:    {settings.get(IMAGE) or 'none'}")
            print(f"previous: {settings.get(PREVIOUS) or 'none'}", flush=True)
            shown = settings.get(IMAGE) or "none"
            if host.run(host.compose("ps", "--all", *services), image=shown) != 0:
                raise RefusedError("docker compose says nothing of the containers, see above")
            return 0
        if IMAGE in os.environ:
            raise RefusedError(f"{IMAGE} is set in the environment and would hide .env: unset it")
        with alone(host.folder):
            image = options.image if options.verb == "upgrade" else settings.get(PREVIOUS)
            if image is None:
                raise RefusedError(
                    "no image served before this one: there is nothing to go back to"
                )
            if options.verb == "upgrade":
                check_reference(image, allow_tag=options.allow_tag)
            return switch(host, settings, image)
    except RefusedError as error:
        return _say(f"error: {error}", REFUSED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"error: {where}{error.strerror or error}; see `status`", REFUSED)
    except KeyboardInterrupt:
        return _say("error: interrupted; see `status`", DOWN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
