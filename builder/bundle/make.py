"""`bundle`, step by step: the image's layout, its evidence, a signature, and one rename."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from builder import console
from builder.bundle.contents import Announced, announce, contents
from builder.bundle.model import CHECKSUMS, SIGNATURE, Entry, checksums
from builder.bundle.write import check_destination, check_room, write_bundle
from builder.engine.lock import exclusive
from builder.oci.model import ImageLayout
from builder.pins import Target
from builder.project import Project

Signer = Callable[[Path], bytes]
"""From a file to the text of its signature, as `cosign sign-blob` prints it (base64)."""


@dataclass(frozen=True)
class BundleResult:
    """What was made; sizes in bytes."""

    destination: Path
    announced: Announced
    signed: bool
    files: int
    size_bytes: int
    largest_bytes: int
    evidence: tuple[str, ...]


def make_bundle(
    project: Project,
    target: Target,
    layout: ImageLayout,
    evidence: Mapping[str, Path],
    destination: Path,
    sign: Signer | None,
) -> BundleResult:
    """A bundle of `layout` at `destination`, whole or not at all.

    `evidence`: name in the bundle's folder of that name -> file. `sign` None: unsigned.
    Raises ImageReferenceError, BundleError, DiskSpaceError, TamperedError, SigningError, OSError.
    """
    check_destination(destination)
    check_room(destination, sum(layer.size for layer in layout.layers()))
    with console.step("reading the image's layers"):
        announced = announce(target, layout)
    entries = contents(project, announced, layout, evidence)
    listed = Entry.of_bytes(CHECKSUMS, checksums(entries))
    entries.append(listed)
    if sign is not None:
        # Before the long part: a key that cannot sign is found early.
        entries.append(Entry.of_bytes(SIGNATURE, _signature(listed, sign)))
    size = sum(entry.size for entry in entries)
    with (
        _alone(project, destination),
        console.step(f"writing {len(entries)} files, {size / 2**30:.2f} GiB, to {destination}"),
    ):
        write_bundle(
            entries,
            destination,
            top=announced.name.replace(":", "-"),
            epoch=target.shared.source_date_epoch,
        )
    return BundleResult(
        destination=destination,
        announced=announced,
        signed=sign is not None,
        files=len(entries),
        size_bytes=size,
        largest_bytes=max(entry.size for entry in entries),
        evidence=tuple(sorted(evidence)),
    )


def _signature(listed: Entry, sign: Signer) -> bytes:
    assert isinstance(listed.source, bytes)
    with tempfile.TemporaryDirectory(prefix="ddtree-bundle-") as scratch:
        path = Path(scratch) / CHECKSUMS
        path.write_bytes(listed.source)
        return sign(path).strip() + b"\n"


def _alone(project: Project, destination: Path) -> AbstractContextManager[int]:
    name = hashlib.sha256(bytes(destination.resolve())).hexdigest()[:12]
    return exclusive(project.cache / "locks" / f"bundle-{name}", f"the bundle {destination.name}")
