"""Hosts and models for the tests of configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddtree_overlay.doctor.model import Gpu, Hardware, Link
from ddtree_overlay.serve.derive import derive
from ddtree_overlay.serve.plan import Plan
from ddtree_overlay.serve.resolve import resolve

GIB = 2**30
NOWHERE = Path("/nonexistent/ddtree")
DENSE = {"num_attention_heads": 64, "max_position_embeddings": 40960}
MOE = {**DENSE, "num_experts": 128, "num_experts_per_tok": 8}


def host(count: int, gib: float = 95.6, *, nvlink: bool = False) -> Hardware:
    """GPUs of one size, all linked the same way."""
    gpus = tuple(
        Gpu(
            index=n,
            uuid=f"GPU-{n}",
            name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
            pci_bus_id=f"0000:{n + 1:02x}:00.0",
            capability=(12, 0),
            memory_total=int(gib * GIB),
            memory_used=0,
        )
        for n in range(count)
    )
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    return Hardware(
        driver="580.95.05",
        cuda_driver=(13, 0),
        gpus=gpus,
        links={pair: Link("SYS", nvlink, "ok") for pair in pairs},
    )


def model(folder: Path, config: Mapping[str, Any], name: str = "model") -> str:
    """A folder with a config.json."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(config))
    return str(place)


def drafter(folder: Path, block_size: int | None = 16, heads: int = 32) -> str:
    config: dict[str, Any] = {"num_attention_heads": heads}
    if block_size:
        config["block_size"] = block_size
    return model(folder, config, "draft")


def resolved(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    profiles: Path = NOWHERE,
    need_model: bool = False,
) -> Plan:
    """`resolve` without what this machine may have in /etc."""
    return resolve(
        arguments,
        environment or {},
        config_file=file or NOWHERE,
        profiles=profiles,
        need_model=need_model,
    )


def derived(
    hardware: Hardware,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    profiles: Path = NOWHERE,
) -> Plan:
    """The whole plan for a host."""
    plan = resolved(*arguments, environment=environment, file=file, profiles=profiles)
    return derive(
        plan,
        hardware,
        environment=environment or {},
        build_id="b1",
        profiles=profiles,
        need_model=False,
    )
