"""The base image: Debian by digest from a registry, or bootstrapped from Debian's own packages.

Either way the engine ends up with `ddtree-base:<suite>-<12 hex digits>`, which a bake file names
as `docker-image://`. The bootstrapped one is made by mmdebstrap with a fixed timestamp and loaded
with a configuration of our own, so the same package versions give the same image id everywhere.
It holds all that the image takes from Debian: bootstrapping anew brings Debian's updates.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import docker.errors
import requests

from builder import console, proc
from builder.bootstrap import Recipe, bootstrap, local_reference
from builder.engine import Engine
from builder.engine.aptsources import AptUnavailableError
from builder.engine.packages import drop_leftovers, locked
from builder.errors import BaseImageError
from builder.pins import SharedPins
from builder.project import Project

_REGISTRY_SECONDS = 10  # the engine's own patience with an unreachable registry is minutes

BasePreference = Literal["auto", "registry", "bootstrap"]


@dataclass(frozen=True)
class Base:
    """The base image as the bake file and the label need it."""

    kind: Literal["registry", "bootstrap"]
    reference: str
    detail: str


def ensure_base(
    project: Project,
    shared: SharedPins,
    engine: Engine,
    *,
    prefer: BasePreference = "auto",
    refresh: bool = False,
) -> Base:
    """The base image on the engine, pulled or bootstrapped. Raises BaseImageError.

    `auto` takes the registry if it answers within seconds; once bootstrapped it stays with that,
    so that the base does not change with the network. `refresh` asks again and bootstraps anew,
    for Debian's updates; what a registry holds by digest cannot change.
    """
    reason = ""
    settled = (
        prefer == "auto"
        and not refresh
        and _folder(project, _recipe(shared)).joinpath("base.json").is_file()
        and not _has(engine, shared.base.image)
    )
    if prefer != "bootstrap" and not settled:
        reason = _registry_refusal(engine, shared.base.image)
        try:
            if not reason:
                return _pull(shared, engine)
        except BaseImageError as exc:
            reason = exc.what
        if prefer == "registry":
            raise BaseImageError(
                f"{shared.base.image} cannot be pulled: {reason}",
                "check the registry and the engine's proxy settings, or use --base bootstrap",
            )
    try:
        folder, record = bootstrapped(project, shared, refresh=refresh, reason=reason)
    except AptUnavailableError as exc:
        tried = f"no registry gives the image ({reason}), and " if reason else ""
        raise BaseImageError(
            f"{tried}Debian {shared.base.suite} cannot be bootstrapped: {exc.what}", exc.remedy
        ) from None
    return _load(engine, shared.base.suite, folder, record)


# -- registry ----------------------------------------------------------------------------------


def _registry_reference(shared: SharedPins) -> str:
    return local_reference(shared.base.suite, shared.base.image.partition("@")[2])


def _registry_refusal(engine: Engine, image: str) -> str:
    """Empty if the image can be had, else why not. Asked through the engine, which will pull."""
    if _has(engine, image):
        return ""
    api = engine.client.api
    patience, api.timeout = api.timeout, _REGISTRY_SECONDS
    try:
        engine.client.images.get_registry_data(image)
    except requests.Timeout:
        return f"no answer within {_REGISTRY_SECONDS} s"
    except (docker.errors.DockerException, requests.RequestException) as exc:
        text = str(getattr(exc, "explanation", "") or exc)
        return text.strip().splitlines()[0][:200]
    finally:
        api.timeout = patience
    return ""


def _pull(shared: SharedPins, engine: Engine) -> Base:
    image = shared.base.image
    reference = _registry_reference(shared)
    if not _has(engine, image):
        with console.step(f"pulling the base image {image}"):
            proc.run(
                engine.docker("pull", "--quiet", "--platform", "linux/amd64", image),
                env=engine.env,
                capture=True,
                error=BaseImageError,
                what="docker pull failed",
            )
    name, _, tag = reference.rpartition(":")
    engine.client.images.get(image).tag(name, tag)
    return Base("registry", reference, image)


# -- bootstrap ---------------------------------------------------------------------------------


def _recipe(shared: SharedPins) -> Recipe:
    base = shared.base
    return Recipe(base.suite, tuple(base.runtime_packages), shared.source_date_epoch)


def _folder(project: Project, recipe: Recipe) -> Path:
    return project.cache / "base" / f"{recipe.suite}-{recipe.key()}"


def bootstrapped(
    project: Project, shared: SharedPins, *, refresh: bool = False, reason: str = ""
) -> tuple[Path, dict[str, Any]]:
    """The folder with image.tar and what base.json says of it, made unless it is there.

    `reason`: why no registry is used, for the progress line. Raises AptUnavailableError.
    """
    recipe = _recipe(shared)
    folder = _folder(project, recipe)
    with locked(project.cache / "base" / "lock"):
        drop_leftovers(folder.parent)
        if refresh or not (folder / "base.json").is_file():
            why = f" (no registry: {reason})" if reason else ""
            with console.step(f"bootstrapping Debian {recipe.suite}{why}"):
                bootstrap(project, shared, recipe, folder)
        record: dict[str, Any] = json.loads((folder / "base.json").read_text())
    return folder, record


def _load(engine: Engine, suite: str, folder: Path, record: dict[str, Any]) -> Base:
    reference = local_reference(suite, record["layer"])
    if not _has(engine, reference, record["image_id"]):
        with console.step(f"loading {reference}"):
            proc.run(
                engine.docker("load", "--quiet", "--input", str(folder / "image.tar")),
                env=engine.env,
                capture=True,
                error=BaseImageError,
                what="the bootstrapped base image cannot be loaded",
                remedy="use --refresh-base, or free space on the engine's disk",
            )
    detail = (
        f"{suite} mmdebstrap={record['mmdebstrap']} "
        f"packages-sha256={record['packages_sha256']} layer-sha256={record['layer']}"
    )
    return Base("bootstrap", reference, detail)


def _has(engine: Engine, reference: str, image_id: str = "") -> bool:
    try:
        found = engine.client.images.get(reference)
    except docker.errors.ImageNotFound:
        return False
    if not image_id:
        return True
    # The containerd store counts the manifest, not the configuration: there the tag decides.
    return found.id == image_id or "containerd" in json.dumps(engine.client.info()["DriverStatus"])
