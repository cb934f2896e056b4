"""Weight files: each way in which a download breaks, and what does not fit a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.model import Severity
from ddtree_overlay.doctor.model_checks.safetensors import LARGEST_HEADER, read_shard
from ddtree_overlay.doctor.model_checks.source import Unusable
from ddtree_overlay.doctor.model_checks.weights import INDEX, check_weights
from ddtree_overlay.doctor.model_checks.weights_memory import check_memory
from tests.overlay.doctor.model_files import (
    LFS,
    TENSORS,
    gpus,
    header,
    ids,
    shard,
    subject,
    write_model,
    write_raw,
    write_shard,
)


def _broken(path: Path) -> str:
    with pytest.raises(Unusable) as caught:
        read_shard(path)
    assert str(path) in caught.value.finding.what
    assert "\n" not in caught.value.finding.what
    return caught.value.finding.code


def test_a_sound_file(tmp_path: Path) -> None:
    found = read_shard(write_shard(tmp_path / "a.safetensors"))
    assert found.tensors == frozenset(TENSORS)
    assert found.data_bytes == 4 * 8 * 2 + 3 * 4


def test_a_file_without_tensors_is_sound(tmp_path: Path) -> None:
    assert read_shard(write_shard(tmp_path / "a.safetensors", {})).data_bytes == 0


@pytest.mark.parametrize("missing", [1, 12, 76])
def test_a_file_cut_within_its_data(tmp_path: Path, missing: int) -> None:
    path = write_shard(tmp_path / "a.safetensors")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - missing)
    assert _broken(path) == "WGT003"


@pytest.mark.parametrize("length", [0, 3, 8, 20])
def test_a_file_cut_within_its_header(tmp_path: Path, length: int) -> None:
    path = write_shard(tmp_path / "a.safetensors")
    with path.open("r+b") as file:
        file.truncate(length)
    assert _broken(path) == "WGT003"


def test_a_file_with_more_than_its_header_says(tmp_path: Path) -> None:
    entries, end = header(TENSORS)
    assert _broken(write_raw(tmp_path / "a.safetensors", entries, end + 1)) == "WGT003"


def _entry(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(entries: dict[str, Any]) -> None:
        entry = entries["lm_head.weight"]
        entry.update(changes)
        for key in [key for key, value in entry.items() if value is None]:
            del entry[key]

    return change


@pytest.mark.parametrize(
    "change",
    [
        _entry(dtype="Q4_K"),
        _entry(dtype=None),
        _entry(dtype=7),
        _entry(shape=None),
        _entry(shape=["x"]),
        _entry(shape=[4]),
        _entry(shape=[-3]),
        _entry(shape=[-1, -3]),
        _entry(data_offsets=None),
        _entry(data_offsets=[64]),
        _entry(data_offsets=[64, "76"]),
        _entry(data_offsets=[76, 64]),
        _entry(data_offsets=[60, 72]),
        _entry(data_offsets=[68, 80]),
        _entry(data_offsets=[-12, 0]),
        lambda entries: entries.update({"lm_head.weight": "text"}),
        lambda entries: entries.update({"lm_head.weight": None}),
    ],
)
def test_an_entry_that_cannot_be(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    entries, end = header(TENSORS)
    change(entries)
    assert _broken(write_raw(tmp_path / "a.safetensors", entries, end + 8)) == "WGT004"


@pytest.mark.parametrize("raw", [b"not json", b"[]", b"{", b"\xff\xff"])
def test_a_header_that_is_no_object(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw)
    assert _broken(path) == "WGT004"


def test_a_length_that_nobody_would_write(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes((LARGEST_HEADER + 1).to_bytes(8, "little") + b"{}")
    assert _broken(path) == "WGT004"


def test_a_pointer_instead_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(LFS)
    assert _broken(path) == "WGT002"


def test_the_data_is_not_read(tmp_path: Path) -> None:
    """A sparse file of 512 GiB: it takes no time, and no memory."""
    size = 2**38
    path = write_shard(tmp_path / "a.safetensors", {"w": ("BF16", [size])})
    assert read_shard(path).data_bytes == 2 * size


@pytest.mark.parametrize("shards", [1, 3])
def test_a_whole_model_has_no_findings(tmp_path: Path, shards: int) -> None:
    folder = write_model(tmp_path / "model")
    if shards > 1:
        shard(folder, shards)
    assert ids(check_weights(subject(model=str(folder), draft_model=str(folder)))) == []


def _index(folder: Path, content: Any) -> None:
    shard(folder)
    (folder / INDEX).write_text(content if isinstance(content, str) else json.dumps(content))


def _named(folder: Path, **weight_map: str) -> None:
    names = shard(folder)
    mapping = {f"layer.{i}.weight": name for i, name in enumerate(names)} | weight_map
    (folder / INDEX).write_text(json.dumps({"weight_map": mapping}))


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def _without(folder: Path) -> Path:
    """The folder, its one shard removed."""
    (folder / "model.safetensors").unlink()
    return folder


def _only(folder: Path, *names: str) -> None:
    (folder / "model.safetensors").unlink()
    for name in names:
        write_shard(folder / name)


def _shards(folder: Path, then: Callable[[list[Path]], Any]) -> None:
    then([folder / name for name in shard(folder)])


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (lambda f: (f / "model.safetensors").unlink(), ["WGT001"]),
        (lambda f: (f / "model.safetensors").write_bytes(LFS), ["WGT002"]),
        (lambda f: _shards(f, lambda s: s[1].unlink()), ["WGT005"]),
        (lambda f: _shards(f, lambda s: _remove(s[::2])), ["WGT005", "WGT005"]),
        (lambda f: _shards(f, lambda s: s[1].write_bytes(b"")), ["WGT003"]),
        (lambda f: _shards(f, lambda s: s[1].write_bytes(b"\x01" + bytes(40))), ["WGT004"]),
        (lambda f: _shards(f, lambda s: write_shard(s[1])), ["WGT006"]),
        (lambda f: _named(f, extra="model-00001-of-00003.safetensors"), ["WGT006"]),
        (lambda f: _named(f, extra="gone.safetensors"), ["WGT005"]),
        (lambda f: _named(f, extra="../outside.safetensors"), ["WGT007"]),
        (lambda f: _named(f, extra="/etc/passwd"), ["WGT007"]),
        (lambda f: _index(f, "{"), ["WGT007"]),
        (lambda f: _index(f, {}), ["WGT007"]),
        (lambda f: _index(f, {"weight_map": {}}), ["WGT007"]),
        (lambda f: _index(f, {"weight_map": {"a": 1}}), ["WGT007"]),
        (lambda f: shard(f, metadata={"total_size": 10**6}), ["WGT008"]),
        (lambda f: shard(f, metadata={"total_size": 1}), []),
        (lambda f: _shards(f, lambda _: write_shard(f / "consolidated.safetensors")), []),
        (lambda f: _shards(f, lambda _: write_shard(f / "other.safetensors")), ["WGT008"]),
        (lambda f: _only(f, "model-00001-of-00002.safetensors"), ["WGT005"]),
        (lambda f: _only(f, *(f"m-0000{i}-of-00002.safetensors" for i in (0, 1))), []),
        (lambda f: (_without(f) / "pytorch_model.bin").write_bytes(b"PK"), ["WGT009"]),
        (lambda f: (_without(f) / "training_args.bin").write_bytes(b"PK"), ["WGT001"]),
        (lambda f: (_without(f) / "model.safetensors").mkdir(), ["MOD002"]),
    ],
)
def test_a_model_with_a_fault(
    tmp_path: Path, change: Callable[[Path], Any], codes: list[str]
) -> None:
    folder = write_model(tmp_path / "model")
    change(folder)
    findings = list(check_weights(subject(model=str(folder))))
    assert ids(findings) == codes
    assert all(str(folder) in finding.what for finding in findings)


@pytest.mark.parametrize(
    ("extra", "severity"),
    [
        ("lm_head.weight", Severity.WARNING),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", Severity.WARNING),
        ("model.layers.0.mlp.up_proj.weight", Severity.ERROR),
    ],
)
def test_tensors_that_writers_drop_refuse_nothing(
    tmp_path: Path, extra: str, severity: Severity
) -> None:
    folder = write_model(tmp_path / "model")
    names = shard(folder)
    weight_map = {f"layer.{i}.weight": name for i, name in enumerate(names)} | {extra: names[0]}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (finding,) = check_weights(subject(model=str(folder)))
    assert (finding.code, finding.severity) == ("WGT006", severity)


def test_dummy_weights_are_not_looked_for(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    given = subject(model=str(folder), hardware=gpus(1), dummy_weights=True)
    assert not list(check_weights(given)) and not list(check_memory(given))


@pytest.mark.parametrize("shrinks", [False, True])
def test_weights_that_shrink_refuse_nothing(tmp_path: Path, shrinks: bool) -> None:
    folder = write_model(tmp_path / "model")
    write_shard(folder / "model.safetensors", {"x": ("F8_E4M3", [2 * 2**30])})
    given = subject(model=str(folder), hardware=gpus(1, gib=1.0), shrinks_weights=shrinks)
    (finding,) = check_memory(given)
    assert finding.code == "WGT010"
    assert finding.severity is (Severity.WARNING if shrinks else Severity.ERROR)


def test_the_drafters_files_are_checked_too(tmp_path: Path) -> None:
    target, draft = write_model(tmp_path / "target"), write_model(tmp_path / "draft")
    (draft / "model.safetensors").write_bytes(LFS)
    found = list(check_weights(subject(model=str(target), draft_model=str(draft))))
    assert ids(found) == ["WGT002"] and str(draft) in found[0].what


@pytest.mark.parametrize(
    ("gib", "tp", "memory", "fraction", "codes"),
    [
        (64, 1, 96, 0.88, []),
        (64, 1, 48, 0.88, ["WGT010"]),
        (64, 2, 48, 0.88, []),
        (80, 1, 96, 0.88, ["WGT011"]),
        (80, 1, 96, 0.8, ["WGT010"]),
        (640, 8, 96, 0.88, ["WGT011"]),
        (700, 8, 96, 0.88, ["WGT010"]),
    ],
)
def test_weights_against_memory(
    tmp_path: Path, gib: int, tp: int, memory: int, fraction: float, codes: list[str]
) -> None:
    folder = write_model(tmp_path / "model")
    write_shard(folder / "model.safetensors", {"w": ("F8_E4M3", [gib * 2**30])})
    found = list(
        check_memory(
            subject(
                model=str(folder),
                tp=tp,
                gpus_needed=tp,
                memory_fraction=fraction,
                hardware=gpus(8, memory),
            )
        )
    )
    assert ids(found) == codes
    assert all(f"{gib}.0 GiB" in finding.what for finding in found)


def test_the_drafter_counts(tmp_path: Path) -> None:
    target, draft = write_model(tmp_path / "target"), write_model(tmp_path / "draft")
    for folder in (target, draft):
        write_shard(folder / "model.safetensors", {"w": ("F8_E4M3", [50 * 2**30])})
    given = {"hardware": gpus(1), "memory_fraction": 0.88}
    assert ids(check_memory(subject(model=str(target), **given))) == []
    both = subject(model=str(target), draft_model=str(draft), **given)
    (finding,) = check_memory(both)
    assert (finding.code, finding.severity) == ("WGT010", Severity.ERROR)
    assert "draft model 50.0 GiB" in finding.what


def test_pipeline_ranks_share_the_target(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    write_shard(folder / "model.safetensors", {"w": ("F8_E4M3", [120 * 2**30])})
    given = {"model": str(folder), "hardware": gpus(2), "memory_fraction": 0.88}
    assert ids(check_memory(subject(**given))) == ["WGT010"]
    assert ids(check_memory(subject(pp=2, **given))) == []


def test_without_a_gpu_nothing_is_compared(tmp_path: Path) -> None:
    assert ids(check_memory(subject(model=str(write_model(tmp_path / "model"))))) == []
