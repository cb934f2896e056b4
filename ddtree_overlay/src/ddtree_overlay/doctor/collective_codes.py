"""Every kind of finding about GPUs that compute together."""

from __future__ import annotations

from ddtree_overlay.doctor.model import Code, Severity

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING

HUNG_PEER = Code(
    "COL001",
    _WARNING,
    "All-reduce hangs or fails over peer-to-peer and works without it.",
    "serve without (done now); for the speed: disable ACS redirect and IOMMU on the host, set "
    "DDTREE_PEER_TO_PEER=off to skip the trial with it",
)
WRONG_PEER = Code(
    "COL002",
    _WARNING,
    "All-reduce gives wrong values over peer-to-peer and right ones without it.",
    "serve without (done now), and disable ACS redirect and IOMMU on the host",
)
COLLECTIVE = Code(
    "COL003",
    _ERROR,
    "The GPUs cannot reduce together.",
    "look at dmesg on the host for Xid errors; try fewer GPUs, or --shm-size 16g",
)
COLLECTIVE_WRONG = Code(
    "COL004",
    _ERROR,
    "All-reduce gives wrong values: every output would be wrong.",
    "do not serve on these GPUs together; look at dmesg on the host for Xid errors",
)
