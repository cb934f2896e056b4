"""Which image leaves the machine, and under what name: by its own labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder import qualification
from builder.engine import Engine
from builder.engine.images import look_up
from builder.errors import ImageReferenceError
from builder.pins import Target
from builder.registry.reference import Reference, parse_reference

_VERSION = "org.opencontainers.image.version"
_REVISION = "org.opencontainers.image.revision"


@dataclass(frozen=True)
class LocalImage:
    """An image to push or to bundle. `tag` is its immutable one: <version>-<target>-<build id>."""

    reference: str
    id: str
    tag: str
    build_id: str
    revision: str


def destination(text: str) -> Reference:
    """The repository to push to. Raises ImageReferenceError.

    A tag is taken if it can be an image's immutable one; `check_tag_of` compares it.
    """
    reference = parse_reference(text)
    if reference.digest:
        raise ImageReferenceError(
            f"{text} names a digest: which one it is follows from the image",
            f"name the repository: {reference.name}",
        )
    if reference.tag == "latest":
        raise ImageReferenceError(
            "`latest` is never pushed: a tag that moves says nothing of what it names",
            f"name the repository, {reference.name}: the image has its own tag",
        )
    return reference


def find_image(
    target: Target, engine: Engine, reference: str = "", *, allow_dirty: bool
) -> LocalImage:
    """The image that the last build of the target made, or the one of that name.

    Raises ImageAbsentError (with the command that builds it), ImageReferenceError (no name, no
    image of ours, or built from no commit) and EngineFailedError.
    """
    local = reference or f"{target.shared.project.image_name}:{target.name}"
    build = f"build it: {_build_command(target)}"
    listed = ", or name one that `docker images` lists" if reference else ""
    found = look_up(engine, local, build + listed)
    labels: Mapping[str, str] = found.labels or {}
    try:
        name, build_id = qualification.target_name(labels), qualification.build_id(labels)
        version, revision = labels[_VERSION], labels[_REVISION]
    except KeyError as exc:
        raise ImageReferenceError(
            f"{local} was not built by build.py: it has no label {exc}", build
        ) from None
    if name != target.name:
        raise ImageReferenceError(f"{local} is an image of {name}", build)
    if not (allow_dirty or qualification.names_a_commit(revision)):
        tree = "no git checkout" if revision == "unknown" else "a tree with uncommitted changes"
        raise ImageReferenceError(
            f"{local} was built from {tree} ({revision})",
            f"commit, then build again ({_build_command(target)}); or --allow-dirty: nobody else "
            "can then build this image again",
        )
    return LocalImage(local, str(found.id), f"{version}-{name}-{build_id}", build_id, revision)


def check_tag_of(image: LocalImage, reference: Reference) -> None:
    """Refuse a tag that is not the image's own. Raises ImageReferenceError."""
    if reference.tag not in ("", image.tag):
        raise ImageReferenceError(
            f"{image.reference} is not :{reference.tag}: its tag is :{image.tag}",
            f"name the repository alone ({reference.name}), or that tag",
        )


def _build_command(target: Target) -> str:
    stand_in = " --stand-in" if target.stand_in else ""
    return f"python3 build.py --cuda {target.variant}{stand_in}"
