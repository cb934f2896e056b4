"""One class per failure of the entry point: what happened, what to do, and an exit code.

64 and up, so that they are not mistaken for the server's own codes; 126 and 127 are the shell's.
"""

from __future__ import annotations

from typing import ClassVar


class EntryError(Exception):
    """Base of what the entry point reports without a traceback."""

    exit_code: ClassVar[int]

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def lines(self) -> list[str]:
        """What stderr gets."""
        return [f"error: {self.what}", f"remedy: {self.remedy}"]


class UsageError(EntryError):
    """A command of ours was given arguments that it does not take."""

    exit_code = 64


class StandInGpuError(EntryError):
    """A stand-in image was asked to serve where a GPU is visible."""

    exit_code = 65


class ManifestError(EntryError):
    """The manifest exists and is not a JSON object."""

    exit_code = 66


class ProgramNotExecutableError(EntryError):
    """The program exists and cannot be executed."""

    exit_code = 126


class ProgramNotFoundError(EntryError):
    """Neither a command of ours nor a program on PATH."""

    exit_code = 127

    def lines(self) -> list[str]:
        """One line, as a shell would."""
        return [f"error: {self.what}; {self.remedy}"]
