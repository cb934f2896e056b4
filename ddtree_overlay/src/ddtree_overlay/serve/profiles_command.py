"""`profiles`: which there are, what each is for, and one as it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.errors import EntryError, UsageError
from ddtree_overlay.serve.profiles import Profile, load_profile, profile_files, profile_folder

HELP = """\
usage: ddtree profiles [list | show NAME] [--json]

Lists the profiles of the image and those mounted at /etc/ddtree/profiles (or where
DDTREE_PROFILE_DIR says), or prints one as it is written. `ddtree explain` says which one would be
chosen here, and why.
"""


def profiles_command(arguments: list[str], environment: Mapping[str, str]) -> int:
    """`profiles`: list them, or print one. Raises UsageError, ProfileError."""
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    as_json = "--json" in arguments
    rest = [argument for argument in arguments if argument != "--json"]
    folder = profile_folder(environment)
    if rest in ([], ["list"]):
        found, broken = _readable(folder)
        if as_json:
            print(json.dumps([profile_document(profile) for profile in found], indent=2))
        else:
            width = max((len(profile.name) for profile in found), default=0)
            for profile in found:
                mark = f" [{profile.path}]" if profile.mounted else ""
                print(f"{profile.name:<{width}}  {profile.summary}{mark}")
        if broken:
            raise broken
        return 0
    if len(rest) == 2 and rest[0] == "show":
        profile = load_profile(rest[1], folder)
        if as_json:
            print(json.dumps(profile_document(profile), indent=2))
        else:
            print(f"# {profile.path}{' (mounted)' if profile.mounted else ' (of the image)'}")
            print(profile.text, end="" if profile.text.endswith("\n") else "\n")
        return 0
    raise UsageError(
        f"profiles does not take {' '.join(rest)}", "profiles [list | show NAME] [--json]"
    )


def _readable(folder: Path) -> tuple[list[Profile], EntryError | None]:
    """Those that can be read, and the first failure: one broken file does not hide the others."""
    found: list[Profile] = []
    broken: EntryError | None = None
    for name in sorted(profile_files(folder)):
        try:
            found.append(load_profile(name, folder))
        except EntryError as error:
            broken = broken or error
    return found, broken


def profile_document(profile: Profile) -> dict[str, Any]:
    """A profile as JSON's types."""
    capability = profile.requires.capability
    return {
        "name": profile.name,
        "summary": profile.summary,
        "basis": profile.basis,
        "file": str(profile.path),
        "mounted": profile.mounted,
        "requires": {
            **asdict(profile.requires),
            "capability": "{}.{}".format(*capability) if capability else None,
        },
        "settings": {name: value.value for name, value in profile.given.keys.items()},
        "sglang": {flag.name: list(flag.values) for flag in profile.given.flags.values()},
        "environment": {name: value.value for name, value in profile.given.environment.items()},
        "tiers": [asdict(tier) for tier in profile.tiers],
    }
