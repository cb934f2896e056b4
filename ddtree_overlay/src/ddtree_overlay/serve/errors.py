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
        return [f"error: {_on_one_line(self.what)}", f"remedy: {_on_one_line(self.remedy)}"]


def _on_one_line(text: str) -> str:
    """What somebody gave may hold line ends and a terminal's control characters."""
    return "".join(
        part if part.isprintable() else repr(part)[1:-1] for part in text.replace("\n", " ")
    )


class UsageError(EntryError):
    """A command of ours was given arguments that it does not take."""

    exit_code = 64


class StandInGpuError(EntryError):
    """A stand-in image was asked to serve where a GPU is visible."""

    exit_code = 65


class ManifestError(EntryError):
    """The manifest exists and is not a JSON object."""

    exit_code = 66


class SettingError(EntryError):
    """A value has the wrong type, is out of range, or is missing after its flag."""

    exit_code = 68


class UnknownSettingError(EntryError):
    """A flag, a key of a file or a DDTREE_* variable that nobody knows."""

    exit_code = 69


class SecretError(EntryError):
    """A secret is given twice, or its file cannot be read, is empty or has several lines."""

    exit_code = 70


class ProfileError(EntryError):
    """A profile does not exist or its file breaks the schema."""

    exit_code = 71


class ConfigFileError(EntryError):
    """The configuration file cannot be read, is not TOML, or has a table that nobody knows."""

    exit_code = 72


class ConflictError(EntryError):
    """Settings that are right one by one contradict each other, or one needs another."""

    exit_code = 73


class SelftestFailedError(EntryError):
    """The self-test ran, and something that it checks is not so."""

    exit_code = 77


class SelftestNotRunError(EntryError):
    """The self-test could not be carried out: a damaged model, a server that did not come up."""

    exit_code = 78


class RouterMissingError(EntryError):
    """The image carries no router."""

    exit_code = 79


class ProgramNotExecutableError(EntryError):
    """The program exists and cannot be executed."""

    exit_code = 126


class ProgramNotFoundError(EntryError):
    """Neither a command of ours nor a program on PATH."""

    exit_code = 127

    def lines(self) -> list[str]:
        """One line, as a shell would."""
        return [f"error: {self.what}; {self.remedy}"]


class UnsupportedServerError(EntryError):
    """A mode of SGLang whose requests the appliance could neither watch, drain nor guard."""

    exit_code = 86


class ProbePortError(EntryError):
    """The probes' address cannot be bound."""

    exit_code = 88


class SecretPipeError(EntryError):
    """The secrets cannot be handed to the server, or did not reach it."""

    exit_code = 89
