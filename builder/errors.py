"""One class per failure, each with its own exit code.

Every error carries two lines for the person at the terminal: what happened, and what to do.
Exit codes are part of the interface (scripts branch on them); docs/exit-codes.md lists them and
tests/builder/test_errors.py keeps that list and this module the same.
"""

from __future__ import annotations

from typing import ClassVar


class BuilderError(Exception):
    """Base of everything the builder reports to a user without a traceback."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


# -- 10..19: what is written in the repository (pins, lock, render) ---------------------------


class UnknownVariantError(BuilderError):
    """The variant named on the command line is not one that images/ describes."""

    exit_code = 10


class PinFileError(BuilderError):
    """A pin file is missing, is not TOML, or breaks the schema (unknown key, missing hash)."""

    exit_code = 11


class PinConflictError(BuilderError):
    """Each pin is well-formed but they do not fit each other (CUDA, torch, index, tag)."""

    exit_code = 12


class LockDriftError(BuilderError):
    """A committed lock does not follow from the pins."""

    exit_code = 13


class LockResolveError(BuilderError):
    """The resolver found no solution, or a resolved set breaks a rule of the variant."""

    exit_code = 14


class RenderDriftError(BuilderError):
    """A committed Dockerfile is not what the templates and pins render to."""

    exit_code = 15


class UnknownPinError(BuilderError):
    """`explain` was asked for a pin that does not exist."""

    exit_code = 16


# -- 20..29: sources ---------------------------------------------------------------------------


class SourceUnreachableError(BuilderError):
    """One or more pinned sources cannot be reached, found before anything is built."""

    exit_code = 20


class HashMismatchError(BuilderError):
    """A file arrived whole but is not the pinned one."""

    exit_code = 21


class TruncatedDownloadError(BuilderError):
    """A transfer ended before the announced or pinned size."""

    exit_code = 22


class WheelhouseError(BuilderError):
    """A wheelhouse lacks a file that the lock names."""

    exit_code = 23


class MirrorOptionError(BuilderError):
    """--mirror or DDTREE_MIRRORS is not PREFIX=URL."""

    exit_code = 24


# -- 30..39: the patched SGLang ----------------------------------------------------------------


class PatchDriftError(BuilderError):
    """A patch does not apply exactly (fuzz and offset count as failures)."""

    exit_code = 30


class TreeHashError(BuilderError):
    """The base or the patched file tree is not the pinned one."""

    exit_code = 31


class PatchSeriesError(BuilderError):
    """The series or a patch header is malformed, or a scratch tree cannot be exported."""

    exit_code = 32


# -- 40..49: the engine ------------------------------------------------------------------------


class EngineAbsentError(BuilderError):
    """No Docker engine answers and none may be started here."""

    exit_code = 40


class EngineTooOldError(BuilderError):
    """The engine, buildx or compose is older than what the build needs."""

    exit_code = 41


class DiskSpaceError(BuilderError):
    """Not enough room for the build, checked before it starts."""

    exit_code = 42


class EngineStartError(BuilderError):
    """The private engine was to be started and did not come up."""

    exit_code = 43


class BaseImageError(BuilderError):
    """The base image can neither be pulled nor bootstrapped."""

    exit_code = 44


class EngineFailedError(BuilderError):
    """The engine answered a call with an error that no step foresaw."""

    exit_code = 45


# -- 50..59: the build -------------------------------------------------------------------------


class BuildFailedError(BuilderError):
    """BuildKit reported a failed step."""

    exit_code = 50


class AuditFailedError(BuilderError):
    """The built file system breaks a rule of the audit."""

    exit_code = 51


class ProofFailedError(BuilderError):
    """The built image does not run as it must."""

    exit_code = 52


class ToolMissingError(BuilderError):
    """A host program that the verb needs is not installed."""

    exit_code = 53


class ChecksFailedError(BuilderError):
    """`build.py test`: a linter, a type check or a test failed."""

    exit_code = 54


class HostFileError(BuilderError):
    """A file or folder of the host cannot be read or written."""

    exit_code = 55


# -- 60..69: before the builder runs -----------------------------------------------------------
# 61 is "Python is too old", said by build.py itself before it can import this module.


class BuilderEnvironmentError(BuilderError):
    """The builder's own environment cannot be prepared."""

    exit_code = 60


# -- 70..89: what leaves this machine ------------------------------------------------------------


class ImageReferenceError(BuilderError):
    """A name of an image is malformed, moves (`latest`), or is not the one that this image has."""

    exit_code = 70


class RegistryUnreachableError(BuilderError):
    """The registry does not answer, or not as a registry does."""

    exit_code = 71


class RegistryRefusedError(BuilderError):
    """The registry refuses: no credentials, no right, or a request that it does not take."""

    exit_code = 72


class RegistryFullError(BuilderError):
    """The registry has no room, or the quota is used up."""

    exit_code = 73


class TagTakenError(BuilderError):
    """The immutable tag exists already and names another image."""

    exit_code = 74


class TransferFailedError(BuilderError):
    """A transfer broke off more often than it is retried; what arrived stays there."""

    exit_code = 75


class ImageAbsentError(BuilderError):
    """The image does not exist where it was looked for."""

    exit_code = 76


class UnsignedError(BuilderError):
    """No signature of the given key is on the image."""

    exit_code = 77


class TamperedError(BuilderError):
    """What arrived is not what its digest, its signature or its checksums say."""

    exit_code = 78


class EvidenceError(BuilderError):
    """An attestation (SBOM, provenance, receipt) is missing, or contradicts the image."""

    exit_code = 79


class SigningError(BuilderError):
    """cosign cannot sign: the key, its password, or cosign itself."""

    exit_code = 80


class NotReproducibleError(BuilderError):
    """Two builds of one commit are not one image."""

    exit_code = 81


class BundleError(BuilderError):
    """An offline bundle cannot be made, or is not whole."""

    exit_code = 82


def all_error_classes() -> list[type[BuilderError]]:
    """Every concrete failure, in exit-code order."""
    return sorted(BuilderError.__subclasses__(), key=lambda cls: cls.exit_code)
