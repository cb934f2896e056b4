"""What one source says: settings, SGLang flags, secrets, variables, each with its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ddtree_overlay.serve.catalogue import Key
from ddtree_overlay.serve.errors import ConflictError, SecretError
from ddtree_overlay.serve.plan import Flag, Secret, Value
from ddtree_overlay.serve.redact import is_secret_name
from ddtree_overlay.serve.sglang_flags import SglangFlag, check_values, flag_table

COMMAND_LINE = "command line"


@dataclass
class Given:
    """What one source says. `flags` by the field of SGLang's arguments that they set."""

    keys: dict[str, Value] = field(default_factory=dict)
    flags: dict[str, Flag] = field(default_factory=dict)
    secrets: dict[str, Secret] = field(default_factory=dict)
    environment: dict[str, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_key(self, key: Key, given: Any, source: str, *, choices_open: bool = False) -> None:
        """Raises SettingError for a value that the key cannot have."""
        value = key.parse(given, source)
        theirs = flag_table().get(key.flag) if key.flag else None
        if theirs and theirs.choices:
            check_values(theirs, [str(value)], source, open_choices=choices_open)
        self.keys[key.name] = Value(value, source)

    def add_flag(
        self, flag: SglangFlag, values: Sequence[str], source: str, *, choices_open: bool = False
    ) -> None:
        """Raises SettingError for values that the flag cannot have."""
        if is_secret_name(flag.name) and values and not source.startswith(COMMAND_LINE):
            # From a file or the environment it would get into argv, which every user can read.
            raise SecretError(
                f"{flag.name} ({source}) would be in the server's list of arguments",
                f"remove it; a file that only the server can read needs no {flag.name}",
            )
        open_here = choices_open and flag.dest.endswith("attention_backend")
        check_values(flag, values, source, open_choices=open_here)
        self.flags.pop(flag.dest, None)
        self.flags[flag.dest] = Flag(flag.name, tuple(values), source)

    def add_all(self, other: Given, *, later_wins: bool) -> None:
        """Another part of the same source. Raises ConflictError where both say something else."""
        _merge(self.keys, other.keys, later_wins)
        _merge(self.flags, other.flags, later_wins)
        _merge(self.secrets, other.secrets, later_wins)
        self.notes += other.notes


_Said = TypeVar("_Said", Value, Flag, Secret)


def _merge(mine: dict[str, _Said], theirs: Mapping[str, _Said], later_wins: bool) -> None:
    for name, new in theirs.items():
        old = mine.get(name)
        if old is not None and not later_wins and _said(old) != _said(new):
            raise ConflictError(
                f"{name} is given twice: by {old.source} and by {new.source}",
                "remove one of the two",
            )
        mine[name] = new


def _said(given: Value | Flag | Secret) -> object:
    if isinstance(given, Value):
        return given.value
    return given.values if isinstance(given, Flag) else given.text
