"""May we write there, and is there room? An upload of nothing useful, started and cancelled."""

from __future__ import annotations

from contextlib import suppress

from builder.errors import BuilderError, RegistryFullError
from builder.registry import failures
from builder.registry.failures import TransientError
from builder.registry.transport import Transport

ROOM = 64 << 10  # bytes; a manifest and the small files around it


def probe(transport: Transport, start: str) -> None:
    """Raises RegistryRefusedError and RegistryFullError. `start`: where uploads begin.

    Asked before a manifest is stored, because docker-registry 2.8 on a full disk leaves an empty
    file in a manifest's place, which no later push can mend.
    """
    response = transport.request("POST", start, "asking for the right to push", body=b"")
    if response.status_code != 202 or "Location" not in response.headers:
        raise failures.refused(response, transport.where, "starting an upload")
    place = transport.absolute(response.headers["Location"], start)
    try:
        # What it answers matters only where there is no room: not every registry takes chunks.
        with suppress(TransientError):
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Range": f"0-{ROOM - 1}",
            }
            response = transport.once("PATCH", place, headers=headers, body=bytes(ROOM))
            place = transport.absolute(response.headers.get("Location", place), place)
    except RegistryFullError:
        _cancel(transport, place)
        raise
    _cancel(transport, place)


def _cancel(transport: Transport, place: str) -> None:
    with suppress(TransientError, BuilderError):  # the registry drops it in time
        transport.once("DELETE", place)
