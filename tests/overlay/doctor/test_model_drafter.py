"""Whether a drafter fits: the server's rules, on configurations alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.model import Severity
from ddtree_overlay.doctor.model_checks.drafter import check_fitness
from ddtree_overlay.sglang.drafter_fields import as_object, parse
from tests.overlay.doctor.model_files import DRAFTER, TARGET, ids, subject, write_model


def _with(**own: Any) -> dict[str, Any]:
    merged = {**DRAFTER["dflash_config"], **own}
    return {"dflash_config": {key: value for key, value in merged.items() if value is not None}}


def _pair(tmp_path: Path, changes: dict[str, Any], **given: Any) -> Any:
    target = write_model(tmp_path / "target")
    draft = write_model(tmp_path / "draft", DRAFTER, **changes)
    return subject(
        **{"model": str(target), "draft_model": str(draft), "algorithm": "DDTREE", **given}
    )


def test_a_fitting_drafter(tmp_path: Path) -> None:
    assert ids(check_fitness(_pair(tmp_path, {}, tp=8, block_size=8))) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "is not a DFlash drafter"),
        ({"architectures": None}, "is not a DFlash drafter"),
        ({"dflash_config": None}, "has no dflash_config"),
        ({"dflash_config": {}}, "has no dflash_config"),
        (_with(projector_type="domino"), "another family"),
        (_with(markov_order=2), "another family"),
        ({"block_size": None}, "states no block_size"),
        ({"block_size": 1}, "nothing to draft"),
        ({"block_size": 65}, "above the 64"),
        ({"block_size": 0}, "must be positive"),
        ({"block_size": "many"}, "block_size is 'many'"),
        ({"num_target_layers": 5}, "num_target_layers 5"),
        (_with(target_layer_ids=None), "states no target_layer_ids"),
        (_with(target_layer_ids=[]), "target_layer_ids"),
        (_with(target_layer_ids=[1, 3]), "cannot capture"),
        (_with(target_layer_ids=[2, 1]), "ascending order"),
        (_with(target_layer_ids=["a"]), "target_layer_ids"),
        ({"vocab_size": 300}, "vocab_size 300"),
        (_with(draft_vocab_size=100), "draft_vocab_size 100"),
        (_with(mask_token_id=None), "states no mask_token_id"),
        (_with(mask_token_id=256), "outside the target's vocabulary"),
        (_with(mask_token_id=-1), "mask_token_id is -1"),
        (_with(mask_token_id=True), "mask_token_id is True"),
        (_with(mask_token=""), "mask_token is ''"),
        ({"hidden_size": 32}, "hidden_size 32"),
        ({"hidden_size": None}, "incomplete"),
        ({"num_hidden_layers": None}, "incomplete"),
        ({"num_attention_heads": None}, "incomplete"),
        ({"num_attention_heads": 12}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"dflash_config": "text"}, "incomplete"),
    ],
)
def test_a_drafter_that_does_not_fit(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    (finding,) = check_fitness(_pair(tmp_path, changes, tp=8))
    assert (finding.code, finding.severity) == ("DRF001", Severity.ERROR)
    assert says in finding.what and "DDTREE: " not in finding.what
    assert finding.remedy and "\n" not in finding.what


def test_the_block_size_flag(tmp_path: Path) -> None:
    (finding,) = check_fitness(_pair(tmp_path, {}, block_size=16))
    assert "trained with (8)" in finding.what and "remove it" in finding.remedy


def test_dflash_itself_is_only_warned(tmp_path: Path) -> None:
    (finding,) = check_fitness(_pair(tmp_path, _with(markov_order=2), algorithm="DFLASH"))
    assert (finding.code, finding.severity) == ("DRF001", Severity.WARNING)


@pytest.mark.parametrize(
    ("algorithm", "draft", "codes"),
    [
        ("DDTREE", None, ["DRF002"]),
        ("DFLASH", None, ["DRF002"]),
        ("EAGLE3", None, ["DRF002"]),
        ("EAGLE", None, []),
        ("NGRAM", None, []),
        (None, None, []),
        (None, "draft", ["DRF003"]),
        ("NGRAM", "draft", ["DRF003"]),
        ("EAGLE3", "draft", []),
    ],
)
def test_algorithm_and_drafter_go_together(
    tmp_path: Path, algorithm: str | None, draft: str | None, codes: list[str]
) -> None:
    given = _pair(tmp_path, {}, algorithm=algorithm)
    if draft is None:
        given = subject(model=given.model, algorithm=algorithm)
    assert ids(check_fitness(given)) == codes


def test_a_nested_configuration(tmp_path: Path) -> None:
    text = {key: DRAFTER[key] for key in TARGET if key not in ("architectures", "model_type")}
    config = {key: value for key, value in DRAFTER.items() if key not in text}
    fields = parse(as_object({**config, "text_config": text}))
    assert (fields.block_size, fields.target_layer_ids, fields.mask_token_id) == (8, [1, 2], 255)


def test_a_target_that_cannot_be_read_is_others_to_report(tmp_path: Path) -> None:
    given = _pair(tmp_path, {"vocab_size": 300})
    (tmp_path / "target" / "config.json").write_text("{")
    assert ids(check_fitness(given)) == []


def test_neither_torch_nor_sglang_is_imported() -> None:
    code = (
        "import sys; import ddtree_overlay.doctor.model_checks; "
        "print(sorted({'torch', 'sglang', 'transformers', 'pynvml'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout.strip() == "[]"
