"""What decides an image's digest, hashed without compressing or writing anything.

A digest is a function of the headers and contents of each layer, in order, and of the
configuration. Two images with one fingerprint therefore have one digest; finding the fingerprint
takes one reading of the image, the digest takes two and the compression of all of it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from builder.oci.config import LayerName, canonical_json, image_config
from builder.oci.plan import PlannedLayer, plan
from builder.oci.produce import scan
from builder.oci.rootfs import Fields, listing
from builder.oci.writer import item_header


def examine(stream: Any, *, epoch: int) -> tuple[str, dict[str, Fields], dict[str, Any]]:
    """(fingerprint, files, configuration without diff_ids) of one `docker save`.

    Raises TamperedError for what is no image.
    """
    saved, tree = scan(stream)
    planned = plan(tree)
    names = [LayerName(layer.origin, layer.part) for layer in planned]
    config = image_config(saved.config, names, [], epoch)
    return _fingerprint(planned, config, epoch), listing(tree), config


def _fingerprint(planned: tuple[PlannedLayer, ...], config: dict[str, Any], epoch: int) -> str:
    digest = hashlib.sha256(canonical_json(config))
    for layer in planned:
        digest.update(f"\0{layer.part}\0".encode())
        for item in layer.items:
            digest.update(item_header(item, epoch))
            digest.update(item.entry.digest.encode() if item.source is not None else b"-")
    return f"inputs-sha256:{digest.hexdigest()}"
