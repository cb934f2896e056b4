"""Fetching one blob into a file: resumed with Range, checked by size and digest."""

from __future__ import annotations

import re
from io import FileIO
from pathlib import Path

import requests
import urllib3.exceptions

from builder.errors import HostFileError, ImageAbsentError, TamperedError
from builder.files import CHUNK, sha256_file
from builder.oci.model import Descriptor
from builder.registry import failures
from builder.registry.failures import StoppedError, TransientError
from builder.registry.network import reason
from builder.registry.transport import Transport

_NUMBER = re.compile(r"[0-9]{1,18}")
_SPAN = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/(?:([0-9]{1,18})|\*)")


def fetch(transport: Transport, url: str, blob: Descriptor, path: Path) -> Path:
    """Bring a blob to `path`; what a broken run left in `path`.part is gone on with.

    Raises ImageAbsentError, TamperedError (`path` then does not exist), TransferFailedError and the
    registry errors.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and _is(path, blob):
        return path
    path.unlink(missing_ok=True)
    part = path.with_name(path.name + ".part")
    resumed = _size(part) > 0
    _bring(transport, url, blob, part)
    if resumed and not _is(part, blob):
        # What lay there may have been of another run or blob: once more from the first byte.
        part.unlink()
        _bring(transport, url, blob, part)
    if not _is(part, blob):
        part.unlink()
        raise TamperedError(
            f"{transport.where} gives other bytes for {blob.digest}",
            "do not use this registry's copy; push the image again from a good one",
        )
    return part.replace(path)


def _is(path: Path, blob: Descriptor) -> bool:
    return _size(path) == blob.size and f"sha256:{sha256_file(path)}" == blob.digest


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _bring(transport: Transport, url: str, blob: Descriptor, part: Path) -> None:
    """Bring `part` to the size of the blob, whatever its content."""
    doing = f"fetching {blob.digest[7:19]} ({blob.size / 1e6:.1f} MB)"
    fruitless = 0
    furthest = _size(part)
    if furthest > blob.size:
        part.unlink()
        furthest = 0
    if not blob.size:
        part.touch()
    while _size(part) < blob.size:
        try:
            _attempt(transport, url, blob, part)
        except TransientError as failure:
            have = _size(part)
            fruitless = 1 if have > furthest else fruitless + 1
            furthest = max(furthest, have)
            if fruitless >= transport.patience.attempts:
                raise failures.give_up(transport.where, doing, failure) from None
            transport.wait(fruitless, failure, doing)


def _attempt(transport: Transport, url: str, blob: Descriptor, part: Path) -> None:
    have = _size(part)
    headers = {"Range": f"bytes={have}-"} if have else {}
    response = transport.once("GET", url, headers=headers, stream=True)
    with response:
        if response.status_code == 404:
            raise ImageAbsentError(
                f"{transport.where} has no blob {blob.digest}",
                "the image there is not whole: push it again",
            )
        if response.status_code == 416:
            part.unlink()  # it has fewer bytes than we do: not the same blob
            raise TransientError("the registry cannot resume", status=416)
        if response.status_code not in (200, 206):
            raise failures.refused(response, transport.where, f"fetching {blob.digest}")
        _check_length(transport, response, blob)
        _write(transport, response, blob, part)
    if _size(part) < blob.size:
        raise TransientError(f"the transfer ended at {_size(part)} of {blob.size} bytes")


def _check_length(transport: Transport, response: requests.Response, blob: Descriptor) -> None:
    """A registry that has another number of bytes says so; asking again changes nothing."""
    if response.status_code == 206:
        span = _SPAN.fullmatch(response.headers.get("Content-Range", ""))
        stated = (span[2] or "") if span else ""
    else:
        stated = response.headers.get("Content-Length", "")
    if _NUMBER.fullmatch(stated) and int(stated) != blob.size:
        raise TamperedError(
            f"{transport.where} has {stated} bytes for {blob.digest}, whose descriptor says "
            f"{blob.size}",
            "do not use this registry's copy; push the image again from a good one",
        )


def _write(transport: Transport, response: requests.Response, blob: Descriptor, part: Path) -> None:
    span = _SPAN.fullmatch(response.headers.get("Content-Range", ""))
    start = int(span[1]) if response.status_code == 206 and span else 0
    if start > _size(part):
        raise TransientError("the registry answers with another range")
    with part.open("r+b" if part.exists() else "wb", buffering=0) as out:
        out.truncate(start)  # a server that ignores ranges starts over at 0
        out.seek(start)
        try:
            for block in response.raw.stream(CHUNK, decode_content=False):
                if transport.stop.is_set():
                    raise StoppedError
                _keep(out, block)
                if out.tell() > blob.size:
                    break  # more than asked for: the digest will differ
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise TransientError(reason(exc)) from None


def _keep(out: FileIO, block: bytes) -> None:
    """Write all of it. Raises HostFileError: a full disk of ours is not the registry's fault."""
    view = memoryview(block)
    while view:
        try:
            view = view[out.write(view) or 0 :]
        except OSError as exc:
            raise HostFileError(
                f"{out.name}: {exc.strerror or exc}",
                "free space there, or set TMPDIR or DDTREE_CACHE",
            ) from None
