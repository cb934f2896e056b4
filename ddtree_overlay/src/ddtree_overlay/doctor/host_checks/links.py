"""How the GPUs reach one another: topology, peer-to-peer, IOMMU, ACS, PCIe width."""

from __future__ import annotations

from collections.abc import Iterator

from ddtree_overlay.doctor import pci
from ddtree_overlay.doctor.iommu import translating
from ddtree_overlay.doctor.model import UNKNOWN_PEER, Check, Code, Finding, Severity, Subject
from ddtree_overlay.doctor.peer_to_peer import refused_pairs

_WARNING, _INFO = Severity.WARNING, Severity.INFO
ACROSS_SOCKETS = Code(
    "LNK001",
    _INFO,
    "GPUs hang on different CPU sockets: all-reduce crosses the link between them.",
    "nothing to do; for two replicas rather than one, put each on the GPUs of one socket",
)
NO_PEER_TO_PEER = Code(
    "LNK002",
    _WARNING,
    "The driver refuses peer-to-peer traffic between GPUs, so it goes through host memory.",
    "works, slower; if the GPUs should support it, update the driver and enable large BARs and "
    "Above 4G decoding in the firmware",
)
FORCED = Code(
    "LNK003",
    Severity.ERROR,
    "peer_to_peer is set to on and the driver refuses it.",
    "set peer_to_peer to auto",
)
IOMMU = Code(
    "LNK004",
    _WARNING,
    "An IOMMU translates the GPUs' traffic: peer-to-peer is slow, or hangs.",
    "boot the host with iommu=pt (or switch the IOMMU off in the firmware)",
)
ACS = Code(
    "LNK005",
    _WARNING,
    "A PCIe bridge above a GPU redirects peer-to-peer traffic to the CPU (ACS).",
    "on the host clear its ACS control (setpci -s ADDRESS ECAP_ACS+0x6.w=0000) or switch ACS off "
    "in the firmware",
)
ACS_UNKNOWN = Code(
    "LNK006",
    _INFO,
    "Whether PCIe bridges redirect peer-to-peer traffic (ACS) cannot be read without root.",
    "nothing to do: the timed all-reduce tries it; to read it run the doctor once with --user 0",
)
NARROW = Code(
    "LNK007",
    _WARNING,
    "A GPU's PCIe link has fewer lanes than it could.",
    "reseat the GPU or its riser, and look at the slot's bifurcation in the firmware",
)


def check_topology(subject: Subject) -> Iterator[Finding]:
    """NVML's SYS between GPUs without NVLink."""
    far = [p for p, link in subject.hardware.links.items() if link.ancestor == "SYS"]
    far = [pair for pair in far if not subject.hardware.links[pair].nvlink]
    if far:
        yield ACROSS_SOCKETS.found(
            f"{len(far)} of {len(subject.hardware.links)} pairs of GPUs cross CPU sockets, "
            f"such as {far[0][0]} and {far[0][1]}"
        )


def check_peer_to_peer(subject: Subject) -> Iterator[Finding]:
    """What the driver says of each pair, against what is configured."""
    refused = refused_pairs(subject)
    if not refused or subject.peer_to_peer == "off":
        return
    known = {pair: why for pair, why in refused.items() if why != UNKNOWN_PEER}
    (one, other), reason = next(iter((known or refused).items()))
    code = FORCED if known and subject.peer_to_peer == "on" else NO_PEER_TO_PEER
    yield code.found(
        f"no peer-to-peer for {len(refused)} of {len(subject.hardware.links)} pairs of GPUs, "
        f"such as {one} and {other}: {reason}"
    )


def check_iommu(subject: Subject) -> Iterator[Finding]:
    """Groups' types, or the command line of kernels that do not tell them."""
    how = translating(subject.root, [gpu.pci_bus_id for gpu in subject.hardware.gpus])
    if how:
        yield IOMMU.found(how)


def check_acs(subject: Subject) -> Iterator[Finding]:
    """Every bridge above every GPU; unknown is reported, not passed."""
    states: dict[str, pci.AcsState] = {}
    blind = []
    for gpu in subject.hardware.gpus:
        path = pci.acs_of_path(subject.root, gpu.pci_bus_id)
        if not path and not pci.device_folder(subject.root, gpu.pci_bus_id).exists():
            blind.append(gpu.pci_bus_id)
        states.update(path)
    redirecting = sorted(a for a, state in states.items() if state is pci.AcsState.REDIRECTS)
    unknown = sorted(a for a, state in states.items() if state is pci.AcsState.UNKNOWN)
    if redirecting:
        yield ACS.found(f"ACS redirects at {_some(redirecting)}")
    elif unknown:
        yield ACS_UNKNOWN.found(f"ACS of {_some(unknown)} is unknown")
    elif blind:
        yield ACS_UNKNOWN.found(f"sysfs does not show {_some(blind)}")


def check_width(subject: Subject) -> Iterator[Finding]:
    """Lanes only: the speed of an idle link is low on purpose."""
    narrow = []
    for gpu in subject.hardware.gpus:
        width = pci.link_width(subject.root, gpu.pci_bus_id)
        if width is not None and 0 < width[0] < width[1]:
            narrow.append(f"{gpu.pci_bus_id} x{width[0]} of x{width[1]}")
    if narrow:
        yield NARROW.found(f"narrow PCIe links: {_some(narrow)}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


CHECKS = (
    Check("topology", "topology of the GPUs", (ACROSS_SOCKETS,), check_topology, "gpus"),
    Check("peer-to-peer", "peer-to-peer", (NO_PEER_TO_PEER, FORCED), check_peer_to_peer, "gpus"),
    Check("iommu", "IOMMU does not translate", (IOMMU,), check_iommu, "gpus"),
    Check("acs", "PCIe bridges do not redirect", (ACS, ACS_UNKNOWN), check_acs, "gpus"),
    Check("pcie-width", "PCIe lanes", (NARROW,), check_width, "gpu"),
)
