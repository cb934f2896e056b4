"""Arguments split as argparse would split them: every one is a setting of ours or a flag of SGLang.

Used for the command line and for `sglang_args`, with the names of both; nothing is guessed: what
argparse would not take is refused, with the nearest name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddtree_overlay.serve.catalogue import BY_FLAG, BY_OPTION, Key
from ddtree_overlay.serve.errors import SettingError, UnknownSettingError
from ddtree_overlay.serve.redact import HIDDEN, is_secret_name, redact_text
from ddtree_overlay.serve.sglang_flags import SglangFlag, first_few, flag_table, unknown_flag

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_BOOLEANS = {"true", "false", "yes", "no", "on", "off"}


@dataclass(frozen=True)
class Argument:
    """One flag with its values, as given. Exactly one of `key`, `flag` is set; `file`: the value is
    the name of the file that holds the secret."""

    values: tuple[str, ...]
    key: Key | None = None
    flag: SglangFlag | None = None
    file: bool = False


def split(arguments: Sequence[str], source: str) -> Iterator[Argument]:
    """Raises UnknownSettingError or SettingError with the argument and the source."""
    rest, after_secret = list(arguments), False
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            # What follows a key may be the rest of it.
            shown = HIDDEN if after_secret else redact_text(repr(word))
            raise UnknownSettingError(
                f"{shown} ({source}) belongs to no flag",
                "every argument is --flag or its value; one that begins with - is --flag=-VALUE",
            )
        name, equals, attached = word.partition("=")
        after_secret = is_secret_name(name)
        target = _target(name, source)
        if isinstance(target, _Negated):
            if equals:
                raise SettingError(f"{name} ({source}) takes no value", f"write {name} alone")
            yield Argument(("false",), key=target.key)
            continue
        values = [attached] if equals else _take(target, rest)
        if isinstance(target, SglangFlag):
            yield Argument(tuple(values), flag=target)
            continue
        if not values:
            raise SettingError(f"{name} ({source}) needs a value", f"give one after {name}")
        yield Argument(tuple(values), key=target.key, file=target.file)


@dataclass(frozen=True)
class _Ours:
    key: Key
    file: bool = False


@dataclass(frozen=True)
class _Negated:
    key: Key


_Target = _Ours | _Negated | SglangFlag


def _own_options() -> dict[str, _Ours | _Negated]:
    own: dict[str, _Ours | _Negated] = {name: _Ours(key) for name, key in BY_OPTION.items()}
    for key in BY_OPTION.values():
        if key.secret:
            own[f"{key.option}-file"] = _Ours(key, file=True)
        if key.type == "bool":
            own[f"--no-{key.option[2:]}"] = _Negated(key)
    return own


OWN = _own_options()


def _target(name: str, source: str) -> _Target:
    """Exact names first, ours before SGLang's; then beginnings, as argparse takes them."""
    table = flag_table()
    if name in OWN:
        return OWN[name]
    exact = table.get(name)
    if exact is None:
        ours = {option for option in OWN if option.startswith(name)}
        theirs = {flag.name for flag in table.beginning_with(name)}
        # A setting of ours and the flag that it sets are one thing.
        ours -= {key.option for key in BY_FLAG.values() if key.flag in theirs}
        if len(ours) == 1 and not theirs:
            return OWN[ours.pop()]
        if not ours and not theirs:
            raise unknown_flag(name, source, [*OWN, *table.names])
        if len(ours) + len(theirs) > 1:
            raise UnknownSettingError(
                f"{name} ({source}) could be {first_few(sorted(ours | theirs))}",
                "write the flag out",
            )
        exact = table.find(name, source)
    key = BY_FLAG.get(exact.name)
    return _Ours(key) if key else exact


def _take(target: _Ours | SglangFlag, rest: list[str]) -> list[str]:
    """The values that follow, by the rule of the flag; taken out of `rest`."""
    if isinstance(target, _Ours):
        if target.key.type == "bool":
            given = bool(rest) and rest[0].lower() in _BOOLEANS
            return [rest.pop(0)] if given else ["true"]
        if target.key.name == "sglang_args" and rest:
            return [rest.pop(0)]  # its value is flags
        most = 1
    else:
        most = {"switch": 0, "one": 1, "maybe": 1}.get(target.kind, len(rest))
    values: list[str] = []
    while rest and len(values) < most and not _is_option(rest[0]):
        values.append(rest.pop(0))
    return values


def _is_option(word: str) -> bool:
    if not word.startswith("-") or word == "-" or _NEGATIVE.fullmatch(word):
        return False
    return " " not in word
