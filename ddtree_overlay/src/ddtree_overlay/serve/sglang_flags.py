"""Every flag of the patched SGLang's own parser, as a committed data file.

The parser itself takes seconds to import and needs a working torch; a mistyped flag is to be
refused at once and also when torch is broken. The file is made from the parser and compared with it
in the image's tests:

    python -m ddtree_overlay.serve.sglang_flags --write FILE | --check
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.errors import SettingError, UnknownSettingError

FILE = Path(__file__).with_name("sglang_flags.json")
_NUMBER_SUFFIX = re.compile(r"\d+(\.\d+)?(k|M|G|T)|\d+(Ki|Mi|Gi|Ti)")


@dataclass(frozen=True)
class SglangFlag:
    """One flag. `names[0]` is the canonical one; `dest` is the field that it sets.

    kind: "switch" (no value), "one", "maybe" (one or none), "many" (one or
    more), "any" (none or more).
    type: "str", "int", "float", "json" or "size" (an integer, or one with k, M, Ki ...).
    """

    names: tuple[str, ...]
    dest: str
    kind: str
    type: str
    default: Any
    choices: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.names[0]


class FlagTable:
    """Look-up by any spelling that argparse takes: exact, or an unambiguous beginning."""

    def __init__(self, flags: Sequence[SglangFlag]) -> None:
        self.flags = tuple(flags)
        self._by_name = {name: flag for flag in flags for name in flag.names}
        self._by_dest: dict[str, SglangFlag] = {}
        for flag in flags:
            self._by_dest.setdefault(flag.dest, flag)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def get(self, name: str) -> SglangFlag | None:
        """The flag of that exact name."""
        return self._by_name.get(name)

    def of_dest(self, dest: str) -> SglangFlag | None:
        """The flag that sets a field: the one that is not deprecated, if there are several."""
        return self._by_dest.get(dest)

    def beginning_with(self, prefix: str) -> tuple[SglangFlag, ...]:
        """The flags of which a name begins so, each once."""
        found = {flag.name: flag for name, flag in self._by_name.items() if name.startswith(prefix)}
        return tuple(found.values())

    def find(self, name: str, source: str) -> SglangFlag:
        """Raises UnknownSettingError, with the nearest name, for what argparse would refuse."""
        exact = self.get(name)
        if exact:
            return exact
        found = self.beginning_with(name) if len(name) > len("--") else ()
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownSettingError(
                f"{name} ({source}) could be {first_few([flag.name for flag in found])}",
                "write the flag out",
            )
        raise unknown_flag(name, source, self.names)


def unknown_flag(name: str, source: str, names: Sequence[str]) -> UnknownSettingError:
    """The refusal, with the nearest of `names`."""
    return UnknownSettingError(
        f"{name} ({source}) is neither a setting of this appliance nor a flag of SGLang",
        nearest(name, names, "`ddtree explain --all` lists all that there are"),
    )


def first_few(names: Sequence[str], most: int = 5) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def nearest(word: str, words: Sequence[str], otherwise: str) -> str:
    """ "did you mean X?", or `otherwise` where nothing is near."""
    close = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {close[0]}?" if close else otherwise


def check_values(
    flag: SglangFlag, values: Sequence[str], source: str, *, open_choices: bool = False
) -> None:
    """Raises SettingError for a number of values, a type or a choice that SGLang would refuse.

    `open_choices`: a choice may exist that the file does not know (a plugin's), so none is refused.
    """
    if flag.kind == "switch" and values:
        raise SettingError(f"{flag.name} ({source}) takes no value", f"write {flag.name} alone")
    if flag.kind in {"one", "many"} and not values:
        raise SettingError(f"{flag.name} ({source}) needs a value", f"give one after {flag.name}")
    if flag.kind in {"one", "maybe"} and len(values) > 1:
        raise SettingError(f"{flag.name} ({source}) takes one value", "remove the others")
    for value in values:
        _check_value(flag, value, source, open_choices)


def _check_value(flag: SglangFlag, value: str, source: str, open_choices: bool) -> None:
    wrong = f"{flag.name} ({source}) is {value!r}"
    try:
        if flag.type == "int":
            int(value)
        elif flag.type == "float":
            float(value)
        elif flag.type == "json":
            json.loads(value)
        elif flag.type == "size" and not _NUMBER_SUFFIX.fullmatch(value.strip()):
            int(value)
    except ValueError:
        wanted = {
            "int": "a whole number",
            "float": "a number",
            "json": "JSON",
            "size": "a whole number, or one with k, M, G, Ki, Mi or Gi",
        }[flag.type]
        raise SettingError(
            f"{wrong}, which is not {wanted}", f"give {flag.name} {wanted}"
        ) from None
    if flag.choices and value not in flag.choices and not open_choices:
        raise SettingError(
            f"{wrong}, which SGLang does not know",
            nearest(value, flag.choices, f"one of {', '.join(flag.choices)}"),
        )


@cache
def flag_table() -> FlagTable:
    """The flags of the image's SGLang, from the committed file."""
    return table_of(json.loads(FILE.read_text(encoding="utf-8")))


def table_of(document: Mapping[str, Any]) -> FlagTable:
    """A table from the file's document."""
    return FlagTable(
        [
            SglangFlag(
                names=tuple(entry["names"]),
                dest=entry["dest"],
                kind=entry["kind"],
                type=entry.get("type", "str"),
                default=entry.get("default"),
                choices=tuple(entry.get("choices", ())),
            )
            for entry in document["flags"]
        ]
    )


def main(arguments: Sequence[str]) -> int:
    """Write the file, or compare it with the parser: 1 if they differ."""
    from ddtree_overlay.serve.sglang_parser import document_text

    if len(arguments) == 2 and arguments[0] == "--write":
        Path(arguments[1]).write_text(document_text(), encoding="utf-8")
        return 0
    if list(arguments) == ["--check"]:
        if document_text() == FILE.read_text(encoding="utf-8"):
            print(f"{FILE.name} has the flags of the installed SGLang")
            return 0
        print(f"{FILE.name} differs from the installed SGLang's parser: write it again")
        return 1
    print("usage: python -m ddtree_overlay.serve.sglang_flags --write FILE | --check")
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
