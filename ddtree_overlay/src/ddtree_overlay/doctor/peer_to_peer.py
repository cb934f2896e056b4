"""The verdict on peer-to-peer traffic as far as it can be given without trying it.

There is one verdict for all libraries (NCCL, SGLang's custom all-reduce, NIXL): libraries that
decide alone disagree on hosts where the driver says yes and the PCIe fabric no (vLLM issue 51513).
A wrong "off" costs bandwidth and a wrong "on" hangs the server, so "on" needs every sign to agree.
"""

from __future__ import annotations

from ddtree_overlay.doctor.iommu import translating
from ddtree_overlay.doctor.model import Subject, Verdict
from ddtree_overlay.doctor.pci import AcsState, acs_of_path


def static_verdict(subject: Subject) -> Verdict:
    """The configured value, or for "auto" what driver, IOMMU and PCIe switches say."""
    if subject.peer_to_peer in {"on", "off"}:
        on = subject.peer_to_peer == "on"
        return Verdict(on, f"peer_to_peer is set to {subject.peer_to_peer}")
    if subject.environment.get("NCCL_P2P_DISABLE") == "1":
        return Verdict(False, "NCCL_P2P_DISABLE is 1")
    doubt = _doubt(subject)
    if doubt is not None:
        return Verdict(False, doubt)
    if all(link.nvlink for link in subject.hardware.links.values()):
        return Verdict(True, "all GPUs are joined by NVLink")
    doubt = _fabric_doubt(subject)
    if doubt is not None:
        return Verdict(False, doubt)
    return Verdict(True, "the driver allows it, the IOMMU does not translate, no bridge redirects")


def _doubt(subject: Subject) -> str | None:
    gpus = subject.hardware.gpus
    if subject.device != "cuda" or len(gpus) < 2 or subject.gpus_needed < 2:
        return "fewer than two GPUs are used"
    refused = refused_pairs(subject)
    if refused:
        pair, reason = next(iter(refused.items()))
        return f"the driver refuses it between GPU {pair[0]} and {pair[1]}: {reason}"
    if len(subject.hardware.links) < len(gpus) * (len(gpus) - 1) // 2:
        return "the driver does not say whether all pairs of GPUs can"
    return None


def _fabric_doubt(subject: Subject) -> str | None:
    gpus = [gpu.pci_bus_id for gpu in subject.hardware.gpus]
    iommu = translating(subject.root, gpus)
    if iommu:
        return f"the IOMMU translates the GPUs' traffic ({iommu})"
    states = {state for gpu in gpus for _, state in acs_of_path(subject.root, gpu)}
    if AcsState.REDIRECTS in states:
        return "a PCIe bridge redirects peer-to-peer traffic (ACS)"
    if AcsState.UNKNOWN in states or not states:
        return "whether PCIe bridges redirect it (ACS) cannot be read, and it was not tried"
    return None


def refused_pairs(subject: Subject) -> dict[tuple[int, int], str]:
    """Pairs of GPUs without NVLink between which the driver refuses peer-to-peer, with why."""
    return {
        pair: link.peer_to_peer
        for pair, link in subject.hardware.links.items()
        if link.peer_to_peer != "ok" and not link.nvlink
    }
