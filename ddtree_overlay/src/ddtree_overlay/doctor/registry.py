"""All checks, in the order in which they run, and all codes."""

from __future__ import annotations

from ddtree_overlay.doctor import host_checks, image_checks, model_checks, run_codes
from ddtree_overlay.doctor.model import Check, Code

CHECKS: tuple[Check, ...] = (*host_checks.CHECKS, *model_checks.CHECKS, *image_checks.CHECKS)


def check_named(name: str) -> Check:
    """Raises KeyError for a name that no check has."""
    return {check.name: check for check in CHECKS}[name]


def codes() -> tuple[tuple[Code, str], ...]:
    """Every code, sorted, with the names of the checks that report it ("doctor": the run itself).

    Raises ValueError when one id has two definitions, or one name two checks.
    """
    table: dict[str, tuple[Code, list[str]]] = {
        code.id: (code, ["doctor"]) for code in run_codes.CODES
    }
    if len({check.name for check in CHECKS}) != len(CHECKS):
        raise ValueError("two checks have one name")
    for check in CHECKS:
        for code in check.codes:
            known, names = table.setdefault(code.id, (code, []))
            if known != code:
                raise ValueError(f"{code.id} has two definitions: of {names} and {check.name}")
            names.append(check.name)
    return tuple((table[key][0], ", ".join(table[key][1])) for key in sorted(table))
