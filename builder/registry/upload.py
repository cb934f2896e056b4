"""Sending one blob: in chunks, resumed at the offset that the registry reports.

OCI distribution specification 1.1, "Pushing a blob in chunks". How far a registry can resume is its
own: distribution 3 goes on in the middle of a chunk; distribution 2.8 forgets an upload whose
connection broke inside one (it answers 404), and its blob starts anew. Then layers of moderate size
are what bounds the loss.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import requests

from builder.errors import (
    BuilderError,
    RegistryFullError,
    RegistryRefusedError,
    TamperedError,
)
from builder.files import sha256_file
from builder.oci.model import Descriptor
from builder.registry import failures
from builder.registry.body import Meter, Part
from builder.registry.failures import StoppedError, TransientError
from builder.registry.sessions import Session
from builder.registry.transport import Transport

CHUNK = 16 << 20
SMALL = 4 << 20  # up to here one request without chunks
_SMALLEST_CHUNK = 512 << 10
_OFFSET = re.compile(r"(?:bytes[= ])?0-([0-9]{1,18})")
_NUMBER = re.compile(r"[0-9]{1,18}")
# What a registry that takes no chunks answers to the first one.
_NO_CHUNKS = (400, 404, 405, 416, 501)
_TOO_LARGE = 413


class _LostError(Exception):
    """The registry does not know the upload any more."""


class _NoChunksError(Exception):
    """The registry does not take chunks."""


class Upload:
    """One blob on its way; `run` returns when the registry has it."""

    def __init__(
        self,
        transport: Transport,
        repository: str,
        path: Path,
        blob: Descriptor,
        *,
        present: Callable[[Descriptor], bool],
        meter: Meter,
        session: Session | None = None,
        whole: bool = False,
        chunk: int = CHUNK,
    ) -> None:
        self._transport = transport
        self._start = f"/v2/{repository}/blobs/uploads/"
        self._path = path
        self._blob = blob
        self._present = present
        self._meter = meter
        self._wanted_chunk = self._chunk = chunk
        self._session = session or Session(None, "")
        self._location = ""
        self._offset = 0
        self._furthest = 0
        self._fruitless = 0
        self.whole = whole or blob.size <= min(SMALL, chunk)
        self._doing = f"sending {blob.digest[7:19]} ({blob.size / 1e6:.1f} MB)"

    def run(self) -> None:
        """Raises RegistryFullError, RegistryRefusedError, TransferFailedError, TamperedError."""
        done = False
        if not self.whole:
            self._recall()
        try:
            done = self._try()
        except RegistryFullError:
            self._cancel()
            done = True
            raise
        finally:
            self._session.close(done=done)

    def _recall(self) -> None:
        """Where an earlier run was, if that is an address that this registry may be asked at."""
        with suppress(RegistryRefusedError, ValueError):
            kept = self._session.location()
            self._location = self._transport.absolute(kept, self._base()) if kept else ""

    def _try(self) -> bool:
        while True:
            try:
                self._go_on()
                return True
            except _NoChunksError:
                self._location = ""
                self.whole = True
            except _LostError:
                self._location = ""
                self._failed(TransientError("the registry lost what had arrived of it"))
            except TransientError as failure:
                self._failed(failure)

    def _go_on(self) -> None:
        """From wherever it is to the end, or an exception."""
        if not (self._location and self._resume()):
            if self._fruitless and self._present(self._blob):
                return  # the answer to its last request was what got lost
            self._begin()
        while not self.whole and self._offset < self._blob.size:
            self._send_chunk()
        self._finish()

    def _failed(self, failure: TransientError) -> None:
        """Count a failure and pause; progress since the one before makes up for it."""
        if self._offset > self._furthest:
            self._furthest = self._offset
            self._fruitless = 0
        self._fruitless += 1
        if self._fruitless >= self._transport.patience.attempts:
            raise failures.give_up(
                self._transport.where, self._doing, failure, begun=self._furthest > 0
            )
        self._transport.wait(self._fruitless, failure, self._doing)

    def _begin(self) -> None:
        response = self._ask("POST", self._base(), headers={}, body=b"")
        if response.status_code != 202 or "Location" not in response.headers:
            raise failures.refused(response, self._transport.where, "starting an upload")
        least = response.headers.get("OCI-Chunk-Min-Length", "")
        self._chunk = max(self._wanted_chunk, int(least) if _NUMBER.fullmatch(least) else 0)
        self._offset = 0
        self._location = ""
        self._moved(response)

    def _resume(self) -> bool:
        """Ask how much has arrived, to go on from there; False if it starts anew."""
        if self.whole:
            return False  # one request that broke has left nothing to go on from
        response = self._transport.once("GET", self._location)
        offset = _reported(response) if response.status_code in (200, 204) else None
        if offset is None or offset > self._blob.size:
            return False
        self._offset = offset
        self._moved(response)
        return True

    def _send_chunk(self) -> None:
        first = self._offset
        size = min(self._chunk, self._blob.size - first)
        response = self._ask(
            "PATCH",
            self._location,
            headers={
                "Content-Type": "application/octet-stream",
                "Content-Range": f"{first}-{first + size - 1}",
            },
            body=lambda: self._part(first, size),
        )
        status = response.status_code
        if status == _TOO_LARGE:
            if size <= _SMALLEST_CHUNK:
                raise failures.too_large(self._transport.where)
            self._wanted_chunk = self._chunk = max(_SMALLEST_CHUNK, size // 4)
            return
        if status not in (200, 201, 202, 204):
            if self._furthest == 0 and first == 0 and status in _NO_CHUNKS:
                raise _NoChunksError
            if status == 416:
                raise TransientError("the registry has another offset", status=status)
            if status in (400, 404, 410):
                raise _LostError
            raise failures.refused(response, self._transport.where, self._doing)
        arrived = _reported(response)
        self._offset = first + size if arrived is None else min(arrived, self._blob.size)
        self._moved(response)
        if self._offset <= first:
            raise TransientError("the registry kept nothing of a chunk")

    def _finish(self) -> None:
        mark = "&" if urlsplit(self._location).query else "?"
        url = self._location + mark + urlencode({"digest": self._blob.digest})
        rest = self._blob.size if self.whole else 0
        response = self._ask(
            "PUT",
            url,
            headers={"Content-Type": "application/octet-stream"},
            body=(lambda: self._part(0, rest)) if rest else b"",
        )
        if response.status_code == _TOO_LARGE:
            raise failures.too_large(self._transport.where)
        if response.status_code in (201, 202, 204):
            return
        if "DIGEST" in failures.said(response):
            self._check_file()
            raise _LostError  # the file is good: what arrived is not what was sent
        if response.status_code in (404, 410, 416):
            raise _LostError
        raise failures.refused(response, self._transport.where, self._doing)

    def _check_file(self) -> None:
        if f"sha256:{sha256_file(self._path)}" != self._blob.digest:
            raise TamperedError(
                f"{self._path} is not {self._blob.digest}",
                "the file is damaged: delete it, then run the command again",
            )

    def _part(self, first: int, size: int) -> Part:
        return Part(self._path, first, size, self._meter, self._transport.stop.is_set)

    def _ask(self, method: str, url: str, **options: object) -> requests.Response:
        return self._transport.once(method, url, **options)  # type: ignore[arg-type]

    def _moved(self, response: requests.Response) -> None:
        """Each answer may name another place for the next request."""
        asked = self._location or self._base()
        self._location = self._transport.absolute(response.headers.get("Location", asked), asked)
        if not self.whole:
            self._session.save(self._location)

    def _base(self) -> str:
        return self._transport.url(self._start)

    def _cancel(self) -> None:
        """Give the room back, where the registry still knows the upload."""
        if not self._location:
            return
        try:
            self._transport.once("DELETE", self._location)
        except (TransientError, StoppedError, BuilderError):
            return


def _reported(response: requests.Response) -> int | None:
    """Bytes that have arrived, by the Range header; None without one.

    `0-0` is what registries say of an empty upload as well as of one byte: taken as nothing.
    """
    found = _OFFSET.fullmatch(response.headers.get("Range", "").strip())
    if found is None:
        return None
    return int(found[1]) + 1 if int(found[1]) else 0
