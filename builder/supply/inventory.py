"""The inventory that a built image carries (builder/inside/inventory.py), read from an engine."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import docker.errors
import requests

from builder.engine import Engine
from builder.engine.images import look_up
from builder.errors import EngineFailedError, EvidenceError
from builder.inside.inventory import SCHEMA

PATH = "/opt/ddtree/inventory.json"
_REBUILD = "build the image again with this builder: `python3 build.py --cuda cu130`"


def read_inventory(engine: Engine, reference: str) -> dict[str, Any]:
    """The document at PATH. Nothing of the image is run: a container is created and removed.

    Raises:
        ImageReferenceError: that is no image's name.
        ImageAbsentError: the engine has no such image.
        EvidenceError: the image has no inventory, or one of another schema.
        EngineFailedError: the engine failed otherwise.
    """
    image = look_up(engine, reference)
    try:
        # A command, since an image may have none; it is never started.
        container = engine.client.containers.create(
            str(image.id), ["never-run"], network_mode="none"
        )
    except docker.errors.APIError as exc:
        raise EngineFailedError(
            f"the engine cannot create a container of {reference}: {exc.explanation or exc}",
            "read the engine's log",
        ) from None
    try:
        stream, _ = container.get_archive(PATH)
        content = _only_file(b"".join(stream))
    except docker.errors.NotFound:
        raise EvidenceError(f"{reference} holds no {PATH}", _REBUILD) from None
    except (docker.errors.APIError, requests.RequestException, tarfile.TarError) as exc:
        raise EngineFailedError(
            f"{PATH} cannot be read from {reference}: {exc}", "read the engine's log"
        ) from None
    finally:
        container.remove(force=True)
    return parse_inventory(content, reference)


def parse_inventory(content: bytes, where: str) -> dict[str, Any]:
    """Raises EvidenceError unless it is an inventory of the schema that this builder writes."""
    try:
        document = json.loads(content)
        schema = document["schema"]
    except (ValueError, TypeError, KeyError):
        raise EvidenceError(f"{where}: {PATH} is no inventory", _REBUILD) from None
    if schema != SCHEMA:
        raise EvidenceError(
            f"{where}: its inventory has schema {schema}, this builder reads {SCHEMA}", _REBUILD
        )
    return dict(document)


def _only_file(archive: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            handle = tar.extractfile(member) if member.isfile() else None
            if handle is not None:
                return handle.read()
    raise tarfile.TarError("the engine sent no file")
