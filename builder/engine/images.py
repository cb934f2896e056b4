"""An image of the engine by its name; where there is none, an error of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import docker.errors
from docker.models.images import Image

from builder.errors import (
    BuilderError,
    EngineFailedError,
    ImageAbsentError,
    ImageReferenceError,
)

if TYPE_CHECKING:
    from builder.engine import Engine

_NAMES = "NAME:TAG, NAME@sha256:DIGEST or an image's id"
_LISTED = "build it, or name one that `docker images` lists"


def look_up(engine: Engine, reference: str, remedy: str = _LISTED) -> Image:
    """The image. `remedy` is what to do where there is none of that name.

    Raises ImageAbsentError, ImageReferenceError (no name of an image), EngineFailedError.
    """
    try:
        return engine.client.images.get(reference)
    except docker.errors.ImageNotFound:
        raise ImageAbsentError(f"the engine has no image {reference}", remedy) from None
    except docker.errors.NullResource:
        raise ImageReferenceError("the image has no name", _NAMES) from None
    except docker.errors.APIError as exc:
        raise refused(exc, reference) from None


def refused(exc: docker.errors.APIError, reference: str) -> BuilderError:
    """The error for what the engine answers about an image that is not simply absent."""
    said = exc.explanation or exc
    if exc.status_code == 400:
        return ImageReferenceError(f"{reference}: {said}", _NAMES)
    return EngineFailedError(f"the engine says of {reference}: {said}", "read the engine's log")
