"""The models that ship with the wheel: there, small, as recorded, and refused in any other state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_overlay.selftest.command import selftest_command
from ddtree_overlay.selftest.model_files import FOLDER, load_models
from ddtree_overlay.selftest.workload import TEXTS, TOKENS
from ddtree_overlay.serve.errors import SelftestNotRunError
from tests.overlay.selftest.conftest import Bench

MEBIBYTE = 1 << 20


def test_the_shipped_models_are_as_recorded() -> None:
    made = load_models()
    assert set(made.answers) == set(TEXTS)
    assert all(0 < len(ids) <= TOKENS for ids in made.answers.values())
    # Ends by itself and by its length: both are served.
    assert {len(ids) == TOKENS for ids in made.answers.values()} == {True, False}
    record = json.loads((FOLDER / "models.json").read_text())
    assert made.accept_length > record["chain_accept_length"] > 1.5
    assert record["min_gap"] > 0.01
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < MEBIBYTE


def test_they_fit_what_serves_them() -> None:
    target, draft = (
        json.loads((FOLDER / part / "config.json").read_text()) for part in ("target", "draft")
    )
    for config in (target, draft):
        assert config["head_dim"] == 64  # FlashInfer's smallest
        assert config["num_attention_heads"] % 2 == config["num_key_value_heads"] % 2 == 0
    assert draft["architectures"] == ["DFlashDraftModel"]
    assert draft["vocab_size"] == target["vocab_size"]
    assert draft["num_target_layers"] == target["num_hidden_layers"]


def flip(folder: Path) -> None:
    path = folder / "draft/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(folder: Path) -> None:
    path = folder / "target/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def drop(folder: Path) -> None:
    (folder / "target/tokenizer.json").unlink()


def add(folder: Path) -> None:
    (folder / "draft/modeling.py").write_text("raise SystemExit\n")


def forget(folder: Path) -> None:
    record = json.loads((folder / "models.json").read_text())
    record["files"].pop("draft/config.json")
    (folder / "models.json").write_text(json.dumps(record))


def no_record(folder: Path) -> None:
    (folder / "models.json").unlink()


def list_record(folder: Path) -> None:
    (folder / "models.json").write_text("[]")


def empty_record(folder: Path) -> None:
    (folder / "models.json").write_text("{}")


@pytest.mark.parametrize(
    "damage", [flip, cut, drop, add, forget, no_record, list_record, empty_record]
)
def test_any_other_state_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = tmp_path / "models"
    shutil.copytree(FOLDER, folder, copy_function=shutil.copyfile)
    assert load_models(folder).budget == load_models().budget
    damage(folder)
    with pytest.raises(SelftestNotRunError) as raised:
        load_models(folder)
    assert str(folder) in raised.value.what
    assert raised.value.remedy


def test_nothing_is_started_with_a_damaged_model(bench: Bench) -> None:
    folder = bench.root / "models"
    shutil.copytree(FOLDER, folder, copy_function=shutil.copyfile)
    flip(folder)
    with pytest.raises(SelftestNotRunError, match="is damaged: sha256"):
        selftest_command([], bench.environment(), models=folder)
    assert list((bench.root / "stub").iterdir()) == []
