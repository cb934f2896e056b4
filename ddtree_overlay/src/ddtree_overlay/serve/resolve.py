"""Command line, environment, file, profile and defaults merged into one plan; no look at the host.

What is given outranks what is not, in that order; `derive` then fills what depends on the host. The
level that a value is from is told by its source, so that a plan can be completed step by step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddtree_overlay.serve.catalogue import KEYS, NO_ALGORITHM, Key
from ddtree_overlay.serve.consistency import check
from ddtree_overlay.serve.errors import ConfigFileError, ConflictError
from ddtree_overlay.serve.given import Given
from ddtree_overlay.serve.plan import Flag, Plan, Value
from ddtree_overlay.serve.profiles import Profile, load_profile, profile_folder
from ddtree_overlay.serve.sglang_flags import flag_table
from ddtree_overlay.serve.sglang_yaml import SOURCE as YAML
from ddtree_overlay.serve.sglang_yaml import from_yaml
from ddtree_overlay.serve.sources import from_arguments, from_environment, from_file

CONFIG_FILE = "/etc/ddtree/config.toml"
DEFAULT = "default"
COMPUTED = "computed: "
# Equal to SGLang's own, so that saying them would only lengthen argv.
_UNSAID = frozenset({"pp", "dp", "nnodes", "node_rank"})


def resolve(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    config_file: Path | None = None,
    profiles: Path | None = None,
    need_model: bool = True,
) -> Plan:
    """The plan as far as it can be known without the host.

    config_file: read if it exists and no other is named; /etc/ddtree/config.toml.
    profiles: folder of mounted profiles; $DDTREE_PROFILE_DIR, else /etc/ddtree/profiles.
    need_model: False for `doctor`, which also runs without one.

    Raises EntryError: SettingError, UnknownSettingError, SecretError, ProfileError,
    ConfigFileError, ConflictError. Nothing is changed anywhere.
    """
    choices_open = environment.get("DDTREE_CPU_PROOF") == "1"
    levels = [
        from_arguments(arguments, choices_open=choices_open),
        from_environment(environment, choices_open=choices_open),
    ]
    file = _config_file(levels, config_file or Path(CONFIG_FILE))
    if file:
        levels.append(from_file(file, choices_open=choices_open))
    yaml = next((level.flags["config"] for level in levels if "config" in level.flags), None)
    if yaml:
        levels.append(from_yaml(yaml.values[0]))
    plan = _merge(levels)
    if yaml:
        _refuse_unsaid(plan, levels[-1])
    if plan.get("profile"):
        folder = profiles or profile_folder(environment)
        plan = apply_profile(plan, load_profile(plan.get("profile"), folder))
    check(plan, need_model=need_model)
    return plan


def level_is_given(source: str) -> bool:
    """Whether a source outranks profiles, computed values and defaults."""
    return source != DEFAULT and not source.startswith((COMPUTED, "profile "))


def _config_file(levels: Sequence[Given], default: Path) -> Path | None:
    """Raises ConfigFileError for a named file that does not exist."""
    named = next((level.keys["config"] for level in levels if "config" in level.keys), None)
    if named is None:
        return default if os.path.lexists(default) else None
    path = Path(named.value)
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises in a locked folder
        raise ConfigFileError(
            f"{path}: no such file ({named.source})", "check the path and the mount"
        )
    return path


def _refuse_unsaid(plan: Plan, yaml: Given) -> None:
    """Raises ConflictError for a switch that SGLang's own file sets: argv cannot take it back."""
    for name, said in yaml.keys.items():
        above = plan.settings[name]
        if said.value is True and above.value is False:
            raise ConflictError(
                f"{name} is off ({above.source}) and on in {said.source}, which SGLang obeys",
                f"remove {name} from one of the two",
            )


def _merge(levels: Sequence[Given]) -> Plan:
    """The highest level first."""
    settings = {key.name: Value(key.default, DEFAULT) for key in KEYS if not key.secret}
    merged = Given()
    for level in reversed(levels):
        settings.update(level.keys)
        for dest, flag in level.flags.items():
            merged.flags.pop(dest, None)
            merged.flags[dest] = flag
        merged.secrets.update(level.secrets)
        merged.environment.update(level.environment)
    plan = Plan(
        settings=settings,
        flags=(),
        environment=merged.environment,
        secrets=merged.secrets,
        profile="",
        notes=tuple(note for level in levels for note in level.notes),
    )
    plan = set_values(plan, {})
    # What the YAML file says is SGLang's to read; on argv it would only be said twice.
    for flag in merged.flags.values():
        if not flag.source.startswith(YAML):
            plan = put_flag(plan, flag)
    return plan


def set_values(plan: Plan, values: Mapping[str, Value]) -> Plan:
    """The plan with these settings, and with the flags of all settings brought in line."""
    settings = {**plan.settings, **values}
    algorithm = settings["algorithm"]
    if algorithm.value == NO_ALGORITHM:
        settings["algorithm"] = Value(None, algorithm.source)
    own = {key.flag for key in KEYS if key.flag}
    others = tuple(flag for flag in plan.flags if flag.name not in own)
    ours = [flag for key in KEYS if (flag := _flag_of(key, settings))]
    return replace(plan, settings=settings, flags=(*ours, *others))


def _flag_of(key: Key, settings: Mapping[str, Value]) -> Flag | None:
    if not key.flag or key.secret:
        return None
    value, source = settings[key.name].value, settings[key.name].source
    if value is None or value is False or source.startswith(YAML):
        return None
    if source == DEFAULT and key.name in _UNSAID:
        return None
    return Flag(key.flag, () if value is True else (str(value),), source)


def put_flag(plan: Plan, flag: Flag) -> Plan:
    """With this flag in the place of whatever sets the same field."""
    table = flag_table()
    wanted = table.get(flag.name)
    same = [
        old.name
        for old in plan.flags
        if wanted and (found := table.get(old.name)) and found.dest == wanted.dest
    ]
    if not same:
        return replace(plan, flags=(*plan.flags, flag))
    flags = [flag if old.name == same[0] else old for old in plan.flags if old.name not in same[1:]]
    return replace(plan, flags=tuple(flags))


def said_dests(plan: Plan) -> set[str]:
    """Fields of SGLang's arguments that argv or SGLang's own YAML file sets."""
    table = flag_table()
    said = {found.dest for flag in plan.flags if (found := table.get(flag.name))}
    path = plan.flag("--config")
    return said | (set(from_yaml(path).flags) if path else set())


def apply_profile(plan: Plan, profile: Profile, why: str = "") -> Plan:
    """The profile's values where nothing was given. `why`: it was not named, but chosen."""
    wanted = {
        name: value
        for name, value in profile.given.keys.items()
        if not level_is_given(plan.settings[name].source)
    }
    said = said_dests(plan)
    plan = set_values(replace(plan, profile=profile.name), wanted)
    for dest, flag in profile.given.flags.items():
        if dest not in said:
            plan = put_flag(plan, flag)
    environment = {**profile.given.environment, **plan.environment}
    settings = dict(plan.settings)
    if why:
        settings["profile"] = Value(profile.name, why)
    return replace(plan, environment=environment, settings=settings)
