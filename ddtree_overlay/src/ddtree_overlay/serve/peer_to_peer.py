"""One verdict on peer-to-peer for every library that would use it.

NCCL reads it from its environment. In SGLang 0.5.17 the custom all-reduce (both versions) is on
unless --disable-custom-all-reduce; it takes peer-to-peer for granted unless --enable-p2p-check.
FlashInfer's fused all-reduce switches itself on for sm_90 and sm_100. mscclpp, torch's symmetric
memory, NCCL's symmetric memory and NVLS are off unless their flag is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ddtree_overlay.serve.errors import ConflictError
from ddtree_overlay.serve.plan import Flag, Plan, Value
from ddtree_overlay.serve.resolve import COMPUTED, level_is_given, put_flag, said_dests

if TYPE_CHECKING:
    from ddtree_overlay.doctor.model import Hardware, Verdict

SWITCHED_OFF = (
    "--disable-custom-all-reduce",
    "--enforce-disable-flashinfer-allreduce-fusion",
)
NEED_PEERS = (
    *("--enable-mscclpp", "--enable-torch-symm-mem", "--enable-symm-mem", "--enable-nccl-nvls"),
    *("--flashinfer-allreduce-fusion-backend", "--enable-p2p-check"),
)
"""Flags that make no sense without; --enable-p2p-check only asks, and is dropped silently."""
NCCL_SWITCH = "NCCL_P2P_DISABLE"
NCCL_LEVEL = "NCCL_P2P_LEVEL"


def adopt_nccl_switch(plan: Plan, environment: Mapping[str, str]) -> Plan:
    """Whoever switches peer-to-peer off for NCCL means all libraries.

    Raises ConflictError where NCCL's switch and a peer_to_peer that was given say the opposite.
    """
    setting, given = plan.settings["peer_to_peer"], environment.get(NCCL_SWITCH, "").strip()
    source = f"environment {NCCL_SWITCH}"
    if not given and NCCL_SWITCH in plan.environment:
        said = plan.environment[NCCL_SWITCH]
        given, source = str(said.value).strip(), f"{said.source}, {NCCL_SWITCH}"
    if not given:
        return plan
    off = given not in ("0", "false")
    if setting.value == ("on" if off else "off"):
        raise ConflictError(
            f"peer_to_peer is {setting.value} ({setting.source}) and {NCCL_SWITCH} {given!r} "
            f"({source})",
            f"remove {NCCL_SWITCH}: it follows from peer_to_peer",
        )
    if not off or setting.value != "auto":
        return plan
    settings = {**plan.settings, "peer_to_peer": Value("off", source)}
    return replace(plan, settings=settings)


def without_nvlink(plan: Plan, hardware: Hardware) -> Plan:
    """The custom all-reduce off where more than two GPUs have no NVLink, checked where two have
    none; and what the setting peer_to_peer asks for."""
    count = len(hardware.gpus)
    if count > 1 and plan.get("tp") > 1:
        linked = bool(hardware.links) and all(link.nvlink for link in hardware.links.values())
        said = said_dests(plan)
        if (
            not linked
            and min(count, plan.get("tp")) > 2
            and "disable_custom_all_reduce" not in said
        ):
            why = COMPUTED + f"{count} GPUs without NVLink: it fails in captured graphs"
            plan = put_flag(plan, Flag("--disable-custom-all-reduce", (), why))
        elif not linked and not said & {"disable_custom_all_reduce", "enable_p2p_check"}:
            why = COMPUTED + "two GPUs without NVLink: it must not take peer-to-peer for granted"
            plan = put_flag(plan, Flag("--enable-p2p-check", (), why))
    setting = plan.settings["peer_to_peer"]
    if setting.value == "off":
        return _switch_off(plan, f"peer_to_peer is off ({setting.source})")
    if setting.value == "on":
        why = f"{COMPUTED}peer_to_peer is on ({setting.source}): also across CPU sockets"
        environment = {**plan.environment, NCCL_LEVEL: Value("SYS", why)}
        return replace(plan, environment=environment)
    return plan


def apply_verdict(plan: Plan, verdict: Verdict) -> Plan:
    """The plan under the verdict. A good one changes nothing: what was tested is what runs.

    Raises ConflictError for a flag, given by somebody, of a library that needs peer-to-peer.
    """
    setting = plan.settings["peer_to_peer"]
    if verdict.peer_to_peer or setting.value == "off":
        return plan
    if setting.value == "on":
        note = f"peer-to-peer stays on ({setting.source}) though the test says: {verdict.why}"
        return replace(plan, notes=(*plan.notes, note))
    return _switch_off(plan, verdict.why)


def _switch_off(plan: Plan, why: str) -> Plan:
    for flag in plan.flags:
        if flag.name in NEED_PEERS[:-1] and level_is_given(flag.source):
            raise ConflictError(
                f"{flag.name} ({flag.source}) needs peer-to-peer, which is off: {why}",
                f"remove {flag.name}, or mend peer-to-peer (see `ddtree doctor`)",
            )
    kept = tuple(flag for flag in plan.flags if flag.name not in NEED_PEERS)
    plan, source = replace(plan, flags=kept), COMPUTED + why
    said = said_dests(plan)
    for name in SWITCHED_OFF:
        if name[2:].replace("-", "_") not in said:
            plan = put_flag(plan, Flag(name, (), source))
    environment = {name: v for name, v in plan.environment.items() if name != NCCL_LEVEL}
    environment[NCCL_SWITCH] = Value("1", source)
    note = f"no peer-to-peer between GPUs: {why}"
    notes = plan.notes if note in plan.notes else (*plan.notes, note)
    return replace(plan, environment=environment, notes=notes)
