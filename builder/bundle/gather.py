"""What a bundle is made from: an engine's image, exported, and the evidence about it."""

from __future__ import annotations

import json
from pathlib import Path

from builder import console
from builder.engine import Engine
from builder.local_image import find_image
from builder.oci.export import export_image
from builder.oci.model import ImageLayout
from builder.pins import Target
from builder.project import Project
from builder.receipts import receipts_of_export, to_predicate
from builder.supply.evidence import write_evidence
from builder.supply.inventory import read_inventory


def gather(
    project: Project,
    target: Target,
    engine: Engine,
    reference: str,
    folder: Path,
    *,
    allow_dirty: bool,
) -> tuple[ImageLayout, dict[str, Path]]:
    """The exported image, and evidence written to `folder` by its name in the bundle.

    Raises ImageAbsentError, ImageReferenceError (another target's, or built from a tree with
    uncommitted changes), EvidenceError and what an export raises.
    """
    image = find_image(target, engine, reference, allow_dirty=allow_dirty)
    # Before the minutes of an export: an image that cannot be described is found at once.
    inventory = read_inventory(engine, image.id)
    # By id: the name may move to another build meanwhile.
    layout = export_image(project, engine, image.id, epoch=target.shared.source_date_epoch)
    with console.step("writing SBOMs and provenance"):
        made = write_evidence(project, target, inventory, layout, folder)
    evidence = {path.name: path for path in (made.spdx, made.cyclonedx, made.provenance)}
    receipts = receipts_of_export(project, image.build_id, image.id, layout)
    for receipt in receipts:
        path = folder / f"receipt-{receipt.level}.json"
        path.write_text(json.dumps(to_predicate(receipt), indent=2, sort_keys=True) + "\n")
        evidence[f"receipts/{receipt.level}.json"] = path
    console.info(f"receipts: {', '.join(r.level for r in receipts) or 'none of this image'}")
    return layout, evidence
