"""What each source says, as one kind of record: command line, environment, file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.arguments import split
from ddtree_overlay.serve.catalogue import BY_FLAG, BY_NAME, BY_VARIABLE, KEYS, PREFIX
from ddtree_overlay.serve.errors import (
    ConfigFileError,
    ConflictError,
    EntryError,
    SettingError,
    UnknownSettingError,
)
from ddtree_overlay.serve.given import COMMAND_LINE, Given
from ddtree_overlay.serve.plan import Value
from ddtree_overlay.serve.redact import is_secret_name
from ddtree_overlay.serve.secret_files import secret_of
from ddtree_overlay.serve.sglang_flags import flag_table, nearest
from ddtree_overlay.serve.toml_file import flag_values, read_toml, refuse_unknown, table, variables

INTERNAL_NAMES = frozenset(
    {
        *("DDTREE_MANIFEST", "DDTREE_HOST_ROOT", "DDTREE_PROFILE_DIR", "DDTREE_SECRETS_FD"),
        *("DDTREE_CPU_PROOF", "DDTREE_CPU_PROOF_TRACE", "DDTREE_CPU_PROOF_NODES"),
    }
)
INTERNAL_PREFIXES = ("DDTREE_E2E_",)
_READABLE = "on the command line can be read by every user of the host in its list of processes"
_LINK_NAME = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://[^\s/]+:\d+")


def from_arguments(
    arguments: Sequence[str], source: str = COMMAND_LINE, *, choices_open: bool = False
) -> Given:
    """The command line. Of a repeated flag the last counts, as for argparse; of secrets none may
    be repeated. Raises EntryError."""
    given = Given()
    secrets: dict[str, list[tuple[str, bool]]] = {}
    for argument in split(arguments, source):
        if argument.key is None:
            assert argument.flag is not None
            given.add_flag(argument.flag, argument.values, source, choices_open=choices_open)
            if is_secret_name(argument.flag.name):
                given.notes.append(f"{argument.flag.name} {_READABLE}: do without")
        elif argument.key.secret:
            secrets.setdefault(argument.key.name, []).append((argument.values[0], argument.file))
        elif argument.key.name == "config" and argument.values[0].endswith((".yaml", ".yml")):
            _add_yaml_flag(given, argument.values[0], source)
        elif argument.key.name == "sglang_args":
            _nested(given, argument.values[0], f"{source}, --sglang-args", choices_open)
        else:
            given.add_key(argument.key, argument.values[0], source, choices_open=choices_open)
    for name, found in secrets.items():
        text = next((value for value, file in found if not file), None)
        file = next((value for value, file in found if file), None)
        secret = secret_of(BY_NAME[name], text, file, source, source)
        if secret and text is not None:
            given.notes.append(
                f"{BY_NAME[name].option} {_READABLE}: use {BY_NAME[name].variable}_FILE"
            )
        if secret:
            given.secrets[name] = secret
    return given


def _add_yaml_flag(given: Given, path: str, source: str) -> None:
    if "config" in given.flags:
        raise ConflictError(
            f"SGLang's --config is given twice ({source})", "SGLang takes one YAML file"
        )
    flag = flag_table().get("--config")
    assert flag is not None
    given.add_flag(flag, [path], source)


def _nested(given: Given, text: str, source: str, choices_open: bool) -> None:
    """`sglang_args`: flags in one string. Raises SettingError for a quote that does not close."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SettingError(f"sglang_args ({source}): {error}", "close every quote") from None
    inner = from_arguments(words, source, choices_open=choices_open)
    given.add_all(inner, later_wins=False)


def from_environment(environment: Mapping[str, str], *, choices_open: bool = False) -> Given:
    """Every DDTREE_* variable; an empty one counts as not given, as compose files pass them.

    Raises UnknownSettingError for a name that nobody reads, SecretError, SettingError.
    """
    files = {f"{key.variable}_FILE": key for key in KEYS if key.secret}
    given = Given()
    for name in sorted(environment):
        if not name.upper().startswith(PREFIX) or _is_internal(name):
            continue
        if _is_service_link(name, environment[name]):
            raise UnknownSettingError(
                f"{name} is set by Kubernetes for a Service whose name begins with ddtree",
                "set enableServiceLinks: false in the pod's spec, or rename the Service",
            )
        key, source = BY_VARIABLE.get(name), f"environment {name}"
        if key is None and name not in files:
            known = [*BY_VARIABLE, *files, "DDTREE_PROFILE_DIR"]
            raise UnknownSettingError(
                f"{name} is set and nobody reads it",
                nearest(name.upper(), known, "remove it; `ddtree explain` lists the settings"),
            )
        if key is None or key.secret or not environment[name].strip():
            continue
        if key.name == "config" and environment[name].endswith((".yaml", ".yml")):
            _add_yaml_flag(given, environment[name], source)
        elif key.name == "sglang_args":
            _nested(given, environment[name], source, choices_open)
        else:
            alone = Given()
            alone.add_key(key, environment[name], source, choices_open=choices_open)
            given.add_all(alone, later_wins=False)
    for key in files.values():
        variable = f"{key.variable}_FILE"
        secret = secret_of(
            *(key, environment.get(key.variable) or None, environment.get(variable) or None),
            *(f"environment {key.variable}", f"environment {variable}"),
        )
        if secret:
            given.secrets[key.name] = secret
    return given


def _is_internal(name: str) -> bool:
    return name in INTERNAL_NAMES or name.startswith(INTERNAL_PREFIXES)


def _is_service_link(name: str, value: str) -> bool:
    if name.endswith("_PORT") and _LINK_VALUE.fullmatch(value.strip()):
        return True
    return name not in BY_VARIABLE and bool(_LINK_NAME.search(name))


def from_file(path: Path, *, choices_open: bool = False) -> Given:
    """The TOML file: settings by name, [sglang] flags, [environment] of the server's process.

    Raises ConfigFileError, SettingError, SecretError, ConflictError.
    """
    document = read_toml(path, ConfigFileError)
    source, where = f"file {path}", str(path)
    plain = {key.name for key in KEYS} - {"config"}
    files = {f"{key.name}_file": key for key in KEYS if key.secret}
    refuse_unknown(document, {*plain, *files, "sglang", "environment"}, where, ConfigFileError)
    given = Given()
    for name in document:
        if name not in plain or BY_NAME[name].secret or name == "sglang_args":
            continue
        given.add_key(BY_NAME[name], document[name], source, choices_open=choices_open)
    if "sglang_args" in document:
        text = _text(document["sglang_args"], "sglang_args", source)
        _nested(given, text, f"{source}, sglang_args", choices_open)
    for file_name, key in files.items():
        texts = [
            None if name not in document else _text(document[name], name, source)
            for name in (key.name, file_name)
        ]
        secret = secret_of(key, texts[0], texts[1], source, source)
        if secret:
            given.secrets[key.name] = secret
    flags = table(document, "sglang", where, ConfigFileError)
    given.add_all(
        from_flag_table(flags, source, ConfigFileError, choices_open=choices_open), later_wins=False
    )
    for name, value in variables(
        table(document, "environment", where, ConfigFileError), where, ConfigFileError
    ).items():
        given.environment[name] = Value(value, source)
    return given


def _text(value: Any, name: str, source: str) -> str:
    if not isinstance(value, str):
        raise SettingError(f"{name} ({source}) is not a text", "put it in quotes")
    return value


def from_flag_table(
    flags: Mapping[str, Any],
    source: str,
    error: type[EntryError],
    *,
    where: str = "",
    choices_open: bool = False,
) -> Given:
    """An [sglang] table: names with or without dashes or underscores. A flag that a setting of ours
    stands for becomes that setting. `where`: the file, for messages, if `source` names none."""
    given, where = Given(), where or source
    for name, value in flags.items():
        spelled = "--" + name.lstrip("-").replace("_", "-")
        flag = flag_table().find(spelled, f"{source}, [sglang]")
        values = flag_values(value, f"{where}: [sglang] {name}", error)
        alone, key = Given(), BY_FLAG.get(flag.name)
        if flag.dest == "config":
            raise error(f"{where}: [sglang] has config", "give --config on the command line")
        if key and key.secret:
            raise error(f"{where}: [sglang] has {name}", f"use {key.name}_file")
        if key and key.type == "bool":
            alone.add_key(key, values is not None, source)
        elif values is None:
            continue
        elif key:
            if len(values) != 1:
                raise SettingError(f"{flag.name} ({source}) takes one value", "give one")
            alone.add_key(key, values[0], source, choices_open=choices_open)
        else:
            alone.add_flag(flag, values, source, choices_open=choices_open)
        given.add_all(alone, later_wins=False)
    return given
