"""`python -m ddtree_overlay.doctor.codes`: the table of codes as Markdown, for docs."""

from __future__ import annotations

from ddtree_overlay.doctor.registry import codes


def codes_table() -> str:
    """One row a code: id, severity, meaning, usual remedy, the checks that report it."""
    rows = ["| code | severity | meaning | remedy | check |", "|---|---|---|---|---|"]
    for code, check in codes():
        cells = (code.id, code.severity.value, code.meaning, code.remedy, f"`{check}`")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(codes_table())
