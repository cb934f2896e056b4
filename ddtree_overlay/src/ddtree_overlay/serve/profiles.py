"""Profiles: TOML files of values for a kind of host and model, built in and mounted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.catalogue import BY_NAME, KEYS, NOT_IN_FILES
from ddtree_overlay.serve.errors import ConflictError, ProfileError
from ddtree_overlay.serve.given import Given
from ddtree_overlay.serve.plan import Value
from ddtree_overlay.serve.regular_file import MAX_CONFIGURATION, read_regular
from ddtree_overlay.serve.sglang_flags import nearest
from ddtree_overlay.serve.sources import from_flag_table
from ddtree_overlay.serve.tiers import Tier, read_tiers
from ddtree_overlay.serve.toml_file import read_toml, refuse_unknown, table, variables

BUILT_IN = Path(__file__).resolve().parent.parent / "profiles"
MOUNTED = "/etc/ddtree/profiles"
FOLDER_VARIABLE = "DDTREE_PROFILE_DIR"
MODELS = ("any", "dense", "moe")
_TOP = {"summary", "basis", "requires", "settings", "sglang", "environment", "tree"}
# What a profile cannot know: which model, who may ask, and where in a group this host stands.
_HOSTS_OWN = {
    *("model", "draft_model", "served_model_name", "node_rank", "dist_init_addr", "skip_checks"),
    *("cache_dir", "host", "port", "probe_host", "probe_port"),
}


@dataclass(frozen=True)
class Requires:
    """For what a profile is made. `memory_gib` is per GPU; `model` one of MODELS; `capability` None
    for any."""

    gpus: int = 0
    capability: tuple[int, int] | None = None
    memory_gib: float = 0.0
    model: str = "any"


@dataclass(frozen=True)
class Profile:
    """One profile as read. `summary`: one line; `basis`: from what its numbers follow."""

    name: str
    path: Path
    text: str
    summary: str
    basis: str
    requires: Requires
    given: Given
    tiers: tuple[Tier, ...]

    @property
    def source(self) -> str:
        return f"profile {self.name}"

    @property
    def mounted(self) -> bool:
        return self.path.parent != BUILT_IN


def profile_folder(environment: Mapping[str, str]) -> Path:
    """Where mounted profiles are: $DDTREE_PROFILE_DIR, else /etc/ddtree/profiles, which need not
    exist. Raises ProfileError for a variable that names no folder."""
    named = environment.get(FOLDER_VARIABLE)
    if named and not os.path.isdir(named):  # noqa: PTH112 - Path.is_dir raises in a locked folder
        raise ProfileError(
            f"{named}: no such folder (environment {FOLDER_VARIABLE})",
            "check the path and the mount",
        )
    return Path(named or MOUNTED)


def profile_files(folder: Path) -> dict[str, Path]:
    """Names to files; one in `folder` takes the place of a built-in one of the same name.

    Raises ProfileError for a folder that exists and cannot be listed.
    """
    try:
        mounted = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    except OSError as error:
        raise ProfileError(
            f"{folder}: cannot be read: {error.strerror}", "let the container's user read it"
        ) from None
    built_in = {path.stem: path for path in sorted(BUILT_IN.glob("*.toml"))}
    return built_in | {path.stem: path for path in mounted}


def load_profile(name: str, folder: Path) -> Profile:
    """Raises ProfileError for an unknown name and for a file that breaks the schema, and
    SettingError or UnknownSettingError for a value or a flag in it."""
    files = profile_files(folder)
    if name not in files:
        raise ProfileError(
            f"profile {name!r} exists neither in the image nor in {folder}",
            nearest(name, list(files), f"profiles are {', '.join(sorted(files))}"),
        )
    return read_profile(name, files[name])


def read_profile(name: str, path: Path) -> Profile:
    """One file. Raises as load_profile."""
    document, where = read_toml(path, ProfileError), str(path)
    refuse_unknown(document, _TOP, where, ProfileError)
    for key in ("summary", "basis"):
        if not isinstance(document.get(key), str) or not document[key].strip():
            raise ProfileError(f"{where}: {key} is missing or empty", f'write {key} = "..."')
    given = _settings(table(document, "settings", where, ProfileError), name, where)
    try:
        flags = table(document, "sglang", where, ProfileError)
        given.add_all(
            from_flag_table(flags, f"profile {name}", ProfileError, where=where), later_wins=False
        )
    except ConflictError as error:
        raise ProfileError(f"{where}: {error.what}", error.remedy) from None
    given.environment.update(_environment(document, name, where))
    return Profile(
        name=name,
        path=path,
        text=read_regular(path, MAX_CONFIGURATION).decode("utf-8"),
        summary=" ".join(document["summary"].split()),
        basis=" ".join(document["basis"].split()),
        requires=_requires(table(document, "requires", where, ProfileError), where),
        given=given,
        tiers=read_tiers(table(document, "tree", where, ProfileError), where),
    )


def _settings(settings: Mapping[str, Any], name: str, where: str) -> Given:
    secrets = {key.name for key in KEYS if key.secret}
    allowed = set(BY_NAME) - NOT_IN_FILES - _HOSTS_OWN - secrets
    refuse_unknown(settings, allowed, f"{where}: [settings]", ProfileError)
    given = Given()
    for key, value in settings.items():
        given.add_key(BY_NAME[key], value, f"profile {name}")
    return given


def _environment(document: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    found = table(document, "environment", where, ProfileError)
    return {
        variable: Value(value, f"profile {name}")
        for variable, value in variables(found, where, ProfileError).items()
    }


def _requires(given: Mapping[str, Any], where: str) -> Requires:
    known = ("gpus", "capability", "memory_gib", "model")
    refuse_unknown(given, known, f"{where}: [requires]", ProfileError)

    def wrong(key: str, wanted: str) -> ProfileError:
        return ProfileError(f"{where}: [requires] {key} is {given[key]!r}", f"write {wanted}")

    gpus, memory = given.get("gpus", 0), given.get("memory_gib", 0)
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0:
        raise wrong("gpus", "a whole number")
    if not isinstance(memory, (int, float)) or isinstance(memory, bool) or memory < 0:
        raise wrong("memory_gib", "a number")
    if given.get("model", "any") not in MODELS:
        raise wrong("model", f"one of {', '.join(MODELS)}")
    capability = given.get("capability")
    if capability is not None:
        parts = str(capability).split(".")
        if not isinstance(capability, str) or len(parts) != 2 or not all(map(str.isdigit, parts)):
            raise wrong("capability", 'a text such as "12.0"')
        capability = (int(parts[0]), int(parts[1]))
    return Requires(gpus, capability, float(memory), given.get("model", "any"))
