"""Reading TOML whose every key is known, for the configuration file and for profiles."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.errors import EntryError
from ddtree_overlay.serve.redact import is_secret_name
from ddtree_overlay.serve.regular_file import MAX_CONFIGURATION, read_regular
from ddtree_overlay.serve.sglang_flags import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:  # a host that runs the tests
    import tomli as tomllib

SCHEMA = 1
"""Of both kinds of file; a file that states another is refused."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_toml(path: Path, error: type[EntryError]) -> dict[str, Any]:
    """Raises `error` for a file that is absent, unreadable, not TOML, or of another schema."""
    try:
        document = tomllib.loads(read_regular(path, MAX_CONFIGURATION).decode("utf-8-sig"))
    except OSError as failure:
        raise error(
            f"{path}: cannot be read: {failure.strerror}",
            "check the path, the mount, and that the container's user may read it",
        ) from None
    except UnicodeDecodeError:
        raise error(f"{path}: is not text in UTF-8", f"save {path} as UTF-8") from None
    except (ValueError, RecursionError) as failure:
        reason = "nested too deep" if isinstance(failure, RecursionError) else failure
        raise error(f"{path}: is not TOML: {reason}", f"mend {path}") from None
    schema = document.pop("schema", SCHEMA)
    if schema != SCHEMA or isinstance(schema, bool):
        raise error(f"{path}: schema is {schema!r}", f"this image reads schema = {SCHEMA}")
    return document


def refuse_unknown(
    names: Iterable[str], known: Iterable[str], where: str, error: type[EntryError]
) -> None:
    """Raises `error` for the first name that is not known, with the nearest that is."""
    allowed = list(known)
    for name in names:
        if name not in allowed:
            remedy = nearest(name, allowed, f"known are {', '.join(sorted(allowed))}")
            raise error(f"{where}: {name} is unknown", remedy)


def table(document: Mapping[str, Any], name: str, where: str, error: type[EntryError]) -> Any:
    """A sub-table, empty if absent. Raises `error` for what is not one."""
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise error(f"{where}: {name} is not a table", f"write [{name}]")
    return found


def variables(given: Mapping[str, Any], where: str, error: type[EntryError]) -> dict[str, str]:
    """The [environment] table: variables of the server's process.

    Raises `error` for a name that is none, that is ours, or whose value would be a secret.
    """
    for name, value in given.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(value, (str, int)):
            raise error(f"{where}: [environment] {name} is no variable", 'write NAME = "value"')
        if name.upper().startswith("DDTREE_"):
            raise error(
                f"{where}: [environment] {name} is a setting of the appliance",
                "set it by its own key",
            )
        if is_secret_name(name):
            raise error(
                f"{where}: [environment] {name} would hold a secret", "use api_key_file for keys"
            )
    return {
        name: str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }


def flag_values(value: Any, where: str, error: type[EntryError]) -> list[str] | None:
    """A TOML value as a flag's values in argv; None for false (the flag is not given)."""
    if isinstance(value, bool):
        return [] if value else None
    if isinstance(value, list):
        return [_scalar(part, where, error) for part in value]
    return [_scalar(value, where, error)]


def _scalar(value: Any, where: str, error: type[EntryError]) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise error(f"{where}: {value!r} is no value of a flag", "write a text or a number")
    return str(value)
