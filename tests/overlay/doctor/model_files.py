"""Models as small files, and the subject that a check of them is given."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddtree_overlay.doctor.model import Finding, Gpu, Hardware, Subject
from ddtree_overlay.serve.manifest import Manifest

TARGET: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "head_dim": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
    "vocab_size": 256,
}
DRAFTER: dict[str, Any] = {
    **TARGET,
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 1,
    "num_target_layers": 4,
    "block_size": 8,
    "dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 255},
}
TENSORS = {"model.embed.weight": ("BF16", [4, 8]), "lm_head.weight": ("F32", [3])}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
_ITEM = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


def subject(**changes: Any) -> Subject:
    """A host without GPUs and an empty environment, changed so."""
    base = Subject(Path("/"), {}, Manifest({}), Hardware(), serving=True)
    return replace(base, **changes)


def gpus(count: int, gib: float = 96.0) -> Hardware:
    """That many healthy GPUs."""
    return Hardware(
        driver="580.65.06",
        gpus=tuple(
            Gpu(i, f"GPU-{i}", "RTX PRO 6000", f"0000:{i:02x}:00.0", (12, 0), int(gib * 2**30), 0)
            for i in range(count)
        ),
    )


def header(tensors: Mapping[str, tuple[str, list[int]]]) -> tuple[dict[str, Any], int]:
    """A safetensors header whose offsets are in order, and the bytes of data."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = _ITEM[dtype]
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return entries, end


def write_raw(path: Path, entries: Any, data: int) -> Path:
    """A safetensors file with this header and that many bytes behind it."""
    raw = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + data)
    return path


def write_shard(path: Path, tensors: Mapping[str, tuple[str, list[int]]] | None = None) -> Path:
    """A sound safetensors file."""
    return write_raw(path, *header(TENSORS if tensors is None else tensors))


def write_model(folder: Path, config: Mapping[str, Any] = TARGET, **changes: Any) -> Path:
    """A whole model: configuration, tokenizer with a template, one shard. A change to None drops
    the key."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {key: value for key, value in {**config, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(merged))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE"}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    write_shard(folder / "model.safetensors")
    return folder


def shard(folder: Path, count: int = 3, **index: Any) -> list[str]:
    """Replace the one shard by `count` of them and an index; returns their names."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    weight_map = {}
    for i, name in enumerate(names):
        write_shard(folder / name, {f"layer.{i}.weight": ("BF16", [8, 8])})
        weight_map[f"layer.{i}.weight"] = name
    content = {"metadata": {"total_size": 128 * count}, "weight_map": weight_map, **index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    return names


def ids(findings: Iterable[Finding]) -> list[str]:
    """The codes, in order."""
    return [finding.code for finding in findings]


def stub(path: Path, body: str) -> str:
    """An executable Python script; returns its path."""
    import sys

    path.write_text(f"#!{sys.executable} -S\n{body}")
    path.chmod(0o755)
    return str(path)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


PATH = os.environ.get("PATH", os.defpath)
