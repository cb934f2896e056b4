"""The document of sglang_flags.json, from the installed SGLang's own parser.

SGLang is imported inside functions only: this is for the file's making and for its test.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

_TYPES = {
    "int": "int",
    "float": "float",
    "human_readable_int": "size",
    "loads": "json",
    "json_list_type": "json",
}
_KINDS = {0: "switch", "?": "maybe", "+": "many", "*": "any", None: "one"}


def document_text() -> str:
    """The file's text: one flag a line, in the parser's order, so that a diff is readable."""
    flags = _flags(_parser()._actions)
    lines = ",\n".join("  " + json.dumps(flag, sort_keys=True) for flag in flags)
    return '{"flags": [\n' + lines + "\n]}\n"


def _parser() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def _flags(actions: list[argparse.Action]) -> list[dict[str, Any]]:
    """A deprecated flag that stores its value where another does is a further name of that one;
    the names of a pair --x, --no-x are two switches."""
    from sglang.srt.arg_groups.argparse_actions import DeprecatedAliasStoreAction

    known: dict[str, dict[str, Any]] = {}
    flags: list[dict[str, Any]] = []
    for action in actions:
        if "--help" in action.option_strings or not action.option_strings:
            continue
        if isinstance(action, argparse.BooleanOptionalAction):
            flags += [
                {"names": [name], "dest": action.dest, "kind": "switch", "default": action.default}
                for name in action.option_strings
            ]
            continue
        entry = _entry(action)
        twin = known.get(action.dest)
        if (
            isinstance(action, DeprecatedAliasStoreAction)
            and twin
            and twin["kind"] == entry["kind"]
        ):
            twin["names"] += entry["names"]
            continue
        known.setdefault(action.dest, entry)
        flags.append(entry)
    return flags


def _entry(action: argparse.Action) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "names": list(action.option_strings),
        "dest": action.dest,
        "kind": _KINDS[action.nargs if isinstance(action.nargs, (int, str)) else None],
    }
    kind = _TYPES.get(getattr(action.type, "__name__", "str"))
    if kind:
        entry["type"] = kind
    elif getattr(action.type, "__name__", "").startswith("parse_"):
        entry["type"] = "json"
    if action.choices is not None:
        # Sorted: SGLang makes one of them from a set, whose order differs between processes.
        entry["choices"] = sorted(str(choice) for choice in action.choices)
    if action.default is not None and action.default is not argparse.SUPPRESS:
        entry["default"] = action.default
    return entry
