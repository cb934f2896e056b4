"""A bounded record of the verify forwards, for end-to-end tests to read."""

from __future__ import annotations

import json
import os
from pathlib import Path

TRACE = "DDTREE_CPU_PROOF_TRACE"
LIMIT_BYTES = 16 << 20


class VerifyTrace:
    """Appends JSON lines to the file that DDTREE_CPU_PROOF_TRACE names, up to LIMIT_BYTES.

    One line per verify forward of the target: `batch` (requests), `width` (queries per request),
    `masked` (a tree mask was given), `branching_requests` and `branching_rows` (requests and rows
    whose mask is not a chain's). The last line of a full file is {"truncated": true}.
    """

    def __init__(self, path: Path | None, limit: int = LIMIT_BYTES) -> None:
        self._path = path
        self._left = limit

    @classmethod
    def from_environment(cls) -> VerifyTrace:
        """Off unless the environment names a file."""
        name = os.environ.get(TRACE)
        return cls(Path(name) if name else None)

    @property
    def on(self) -> bool:
        """Whether another record would be written."""
        return self._path is not None

    def write(self, *, batch: int, width: int, masked: bool, branching_rows: list[int]) -> None:
        """Append the record of one verify forward; `branching_rows` is per request."""
        if self._path is None:
            return
        record: dict[str, int | bool] = {
            "batch": batch,
            "width": width,
            "masked": masked,
            "branching_requests": sum(rows > 0 for rows in branching_rows),
            "branching_rows": sum(branching_rows),
        }
        line = json.dumps(record) + "\n"
        full = len(line) > self._left
        if full:
            line = json.dumps({"truncated": True}) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
        self._left -= len(line)
        if full:
            self._path = None
