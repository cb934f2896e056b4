"""What the run of the checks itself can find."""

from __future__ import annotations

from ddtree_overlay.doctor.model import Code, Severity

BROKEN = Code(
    "DOC001",
    Severity.ERROR,
    "A check itself failed: nothing is known of what it looks at.",
    "report it with a support bundle (ddtree doctor --bundle FILE.tar.gz); go on without this "
    "check by --skip-checks NAME",
)
NOTHING_RAN = Code(
    "DOC002",
    Severity.ERROR,
    "No check ran, so nothing is known of this host.",
    "skip fewer checks, or name ones that apply here (ddtree doctor --list)",
)
HUNG = Code(
    "DOC003",
    Severity.ERROR,
    "A check did not finish within its bound: a file system or a driver call does not answer.",
    "look for a network file system that does not answer or a GPU in error (host: dmesg); go on "
    "without this check by --skip-checks NAME",
)
CODES = (BROKEN, NOTHING_RAN, HUNG)
