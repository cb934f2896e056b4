"""Showing a plan: every setting, flag and variable with its source, and nothing that is secret."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from ddtree_overlay.serve.catalogue import BY_NAME, KEYS
from ddtree_overlay.serve.plan import Flag, Plan
from ddtree_overlay.serve.profiles_command import profiles_command
from ddtree_overlay.serve.redact import (
    is_secret_name,
    redact_argv,
    redact_json,
    redact_text,
    redact_value,
)
from ddtree_overlay.serve.sglang_flags import flag_table

__all__ = ["explain_command", "plan_document", "print_plan", "profiles_command", "shown_command"]

HELP = """\
usage: ddtree explain [--json] [--all] [SETTINGS] [SGLANG FLAGS]

Prints every setting, every SGLang flag and every variable that `serve` would use on this host with
these arguments, with the source of each; nothing is started and no check is run. --all adds the
defaults of SGLang that stay. What is wrong with the configuration is said as `serve` says it.
"""
_UNSET = "-"


def explain_command(arguments: list[str], environment: Mapping[str, str]) -> int:
    """`explain`. Raises EntryError."""
    from ddtree_overlay.doctor.hardware import read_hardware
    from ddtree_overlay.doctor.model import Hardware
    from ddtree_overlay.serve.derive import derive
    from ddtree_overlay.serve.resolve import resolve

    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    own = {"--json", "--all", "--dry-run"}
    rest = [argument for argument in arguments if argument not in own]
    plan = resolve(rest, environment, need_model=False)
    hardware = read_hardware(environment) if plan.get("device") == "cuda" else Hardware()
    plan = derive(plan, hardware, environment=environment, need_model=False)
    print_plan(plan, as_json="--json" in arguments, everything="--all" in arguments)
    return 0


def print_plan(
    plan: Plan,
    *,
    as_json: bool = False,
    everything: bool = False,
    brief: bool = False,
    file: TextIO | None = None,
) -> None:
    """The plan in words or as one JSON object, without its secrets.

    everything: SGLang's defaults that stay, too.
    brief: for the log of a start: the profile, the notes and the server's argv only.
    """
    out = sys.stdout if file is None else file
    if as_json:
        print(json.dumps(plan_document(plan, everything=everything), indent=2), file=out)
        return
    lines = brief_lines(plan) if brief else plan_lines(plan, everything=everything)
    print("\n".join(lines), file=out)


def brief_lines(plan: Plan) -> list[str]:
    """Profile, notes, argv."""
    source = plan.settings["profile"].source.removeprefix("computed: ")
    notes = [note for note in plan.notes if not note.startswith(f"profile {plan.profile}:")]
    return [
        f"profile: {plan.profile or 'none'} ({_text(plan, source)})",
        *(f"note: {_text(plan, note)}" for note in notes),
        f"server: {shown_command(plan)}",
    ]


def plan_lines(plan: Plan, *, everything: bool = False) -> list[str]:
    """The whole plan as tables of name, value, source."""
    settings = [
        (name, _shown(name, value.value, plan), value.source)
        for name, value in plan.settings.items()
    ]
    secrets = [
        (key.name, "(set)" if key.name in plan.secrets else _UNSET, _secret_source(plan, key.name))
        for key in KEYS
        if key.secret
    ]
    flags = [(flag.name, _flag_value(flag, plan), flag.source) for flag in plan.flags]
    variables = [
        (name, _shown(name, value.value, plan), value.source)
        for name, value in sorted(plan.environment.items())
    ]
    lines = [*_table("settings", [*settings, *secrets], plan), "", *_table("SGLang", flags, plan)]
    lines += ["", *_table("environment of the server", variables, plan)]
    if everything:
        lines += ["", *_table("SGLang's defaults that stay", _defaults(plan), plan)]
    if plan.notes:
        lines += ["", "notes", *(f"  {_text(plan, note)}" for note in plan.notes)]
    return [*lines, "", "server", f"  {shown_command(plan)}"]


def plan_document(plan: Plan, *, everything: bool = False) -> dict[str, Any]:
    """The plan as JSON's types."""
    document: dict[str, Any] = {
        "profile": plan.profile,
        "settings": {
            name: {"value": _plain(value.value), "source": value.source}
            for name, value in plan.settings.items()
        },
        "secrets": {
            key.name: {"set": key.name in plan.secrets, "source": _secret_source(plan, key.name)}
            for key in KEYS
            if key.secret
        },
        "flags": [
            {"name": flag.name, "values": _shown_values(flag), "source": flag.source}
            for flag in plan.flags
        ],
        "environment": {
            name: {"value": redact_value(name, value.value), "source": value.source}
            for name, value in sorted(plan.environment.items())
        },
        "notes": list(plan.notes),
        "argv": shown_argv(plan),
    }
    if everything:
        document["defaults"] = {name: value for name, value, _ in _defaults(plan)}
    shown: dict[str, Any] = redact_json(document, _texts(plan))
    # By its place in the document: the names of the secrets themselves are no secret.
    shown["secrets"] = document["secrets"]
    return shown


def shown_argv(plan: Plan) -> list[str]:
    """SGLang's arguments as they may be shown."""
    return redact_argv(plan.argv(), _texts(plan))


def shown_command(plan: Plan) -> str:
    """The server's command as one line for a shell; secrets go to it by a pipe, not here."""
    return shlex.join(["python", "-m", "ddtree_overlay.sglang.http_server", *shown_argv(plan)])


def _texts(plan: Plan) -> tuple[str, ...]:
    return tuple(secret.text for secret in plan.secrets.values())


def _text(plan: Plan, text: str) -> str:
    return redact_text(text, _texts(plan))


def _secret_source(plan: Plan, name: str) -> str:
    secret = plan.secrets.get(name)
    return f"from {secret.source}" if secret else "default"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(name: str, value: Any, plan: Plan) -> str:
    if value is None or value == ():
        return _UNSET
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return _text(plan, ",".join(value))
    if name == "sglang_args":
        return shlex.join(redact_argv(shlex.split(str(value)), _texts(plan)))
    return redact_value(name, str(value), _texts(plan))


def _shown_values(flag: Flag) -> list[str]:
    if is_secret_name(flag.name):
        return redact_argv((flag.name, *flag.values))[1:]
    return list(flag.values)


def _flag_value(flag: Flag, plan: Plan) -> str:
    # Before quoting: that would take a key apart which has a quote in it.
    return shlex.join(_text(plan, value) for value in _shown_values(flag)) or "(on)"


def _defaults(plan: Plan) -> list[tuple[str, str, str]]:
    from ddtree_overlay.serve.resolve import said_dests

    said = said_dests(plan) | {BY_NAME[name].flag[2:].replace("-", "_") for name in plan.secrets}  # type: ignore[index]
    rows = []
    for flag in flag_table().flags:
        if flag.dest in said or flag.name == "--config":
            continue
        said.add(flag.dest)
        value = _UNSET if flag.default in (None, [], "") else str(flag.default)
        rows.append((flag.name, value, "SGLang's default"))
    return rows


def _table(title: str, rows: Sequence[tuple[str, str, str]], plan: Plan) -> list[str]:
    names = max((len(row[0]) for row in rows), default=0)
    # A long path must not push every source off the screen.
    values = min(40, max((len(row[1]) for row in rows), default=0))
    return [
        title,
        *(
            f"  {name:<{names}}  {value:<{values}}  {_text(plan, source)}"
            for name, value, source in rows
        ),
    ]
