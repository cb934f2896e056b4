"""The documents' tables of profiles, settings and exit codes, as Markdown.

python -m ddtree_overlay.serve.tables profiles|settings|exit-codes
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable

import ddtree_overlay.doctor.errors  # noqa: F401 - its failures have exit codes too
from ddtree_overlay.serve import errors
from ddtree_overlay.serve.catalogue import KEYS
from ddtree_overlay.serve.endings import ExitCode
from ddtree_overlay.serve.profiles import BUILT_IN, Profile, load_profile, profile_files
from ddtree_overlay.serve.tiers import DRAFTED, Tier

OF_NO_CLASS = {
    67: "`DDTREE_CPU_PROOF` is set and its path cannot be put in place: a CUDA device is visible, "
    "or SGLang is not the one it was made for.",
    74: "`serve` or `doctor`: a check found an error, or no check ran.",
    141: "Nobody reads the output any more.",
}
"""Codes that no exception carries."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    cells = [list(head), *map(list, rows)]
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])


def profiles() -> str:
    """What the image's own profiles are for, and up to which concurrency which draft is used."""
    found = [load_profile(name, BUILT_IN) for name in sorted(profile_files(BUILT_IN))]
    return table(
        ("profile", "for", "GPUs", "requests at once: draft"),
        ((f"`{p.name}`", p.summary, _gpus(p), _tiers(p)) for p in found),
    )


def _gpus(profile: Profile) -> str:
    requires = profile.requires
    count = str(requires.gpus) if requires.gpus else "any"
    if requires.capability is None:
        return count
    return f"{count} x sm_{requires.capability[0]}{requires.capability[1]}"


def _tiers(profile: Profile) -> str:
    return "; ".join(f"up to {t.max_running_requests}: {_draft(t)}" for t in profile.tiers) or "-"


def _draft(tier: Tier) -> str:
    if tier.algorithm != "DDTREE":
        return tier.algorithm
    return f"DDTREE, {tier.budget or DRAFTED} nodes"


def settings() -> str:
    """Every setting: its variable, the SGLang flag that it sets, its default."""
    return table(
        ("setting", "variable", "SGLang flag", "default", ""),
        (
            (
                f"`--{key.option.removeprefix('--')}`",
                f"`{key.variable}`" + (f", `{key.variable}_FILE`" if key.secret else ""),
                f"`{key.flag}`" if key.flag else "",
                "" if key.default in (None, ()) else f"`{str(key.default).lower()}`",
                key.help,
            )
            for key in KEYS
        ),
    )


def exit_codes() -> str:
    """Every exit code of the entry point that is ours."""
    rows = {cls.exit_code: _first_paragraph(cls) for cls in error_classes()}
    rows |= {int(code): f"`serve`: {code.meaning}." for code in ExitCode} | OF_NO_CLASS
    return table(("code", "failure"), ((str(code), rows[code]) for code in sorted(rows)))


def error_classes() -> list[type[errors.EntryError]]:
    """Every failure that is an exception, by exit code."""
    found: list[type[errors.EntryError]] = []
    waiting: list[type[errors.EntryError]] = [errors.EntryError]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if "exit_code" in vars(cls):
            found.append(cls)
    return sorted(found, key=lambda cls: cls.exit_code)


def _first_paragraph(cls: type[errors.EntryError]) -> str:
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


TABLES: dict[str, Callable[[], str]] = {
    "profiles": profiles,
    "settings": settings,
    "exit-codes": exit_codes,
}


if __name__ == "__main__":
    print(TABLES[sys.argv[1]]())
