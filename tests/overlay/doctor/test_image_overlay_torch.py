"""The real trial of the overlay. Runs where torch, SGLang and the wheel are: inside the image."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.image_checks import overlay_child
from ddtree_overlay.doctor.image_checks.overlay import check_overlay
from tests.overlay.doctor.model_files import ids, subject, write_model

for _module in ("torch", "sglang"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed here; the image has it", allow_module_level=True)


def _subject(**changes: Any) -> Any:
    given = subject(python=sys.executable, device="cpu", environment=dict(os.environ))
    return replace(given, **{"algorithm": "DDTREE", **changes})


def test_the_installed_stack_passes(tmp_path: Path) -> None:
    assert ids(check_overlay(_subject(model=str(write_model(tmp_path / "model"))))) == []


def test_a_target_whose_class_hands_no_layers_over(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", architectures=["BaichuanForCausalLM"])
    (finding,) = check_overlay(_subject(model=str(folder)))
    assert finding.code == "OVL009" and "BaichuanForCausalLM" in finding.what


def _wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The op's second output is one off."""
    from ddtree_overlay import ops

    real = getattr(ops, name)

    def broken(*arguments: Any) -> Any:
        outputs = list(real(*arguments))
        outputs[1] = outputs[1] + 1
        return tuple(outputs)

    monkeypatch.setattr(ops, name, broken)
    return list(overlay_child._ops("cpu"))


def test_the_ops_equal_their_reference() -> None:
    assert list(overlay_child._ops("cpu")) == []


@pytest.mark.parametrize("name", ["build_tree", "walk_tree"])
def test_a_wrong_op_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = _wrong(name, monkeypatch)
    assert found[0] == "wrong" and name in found[1]


def test_a_wrong_mask_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddtree_overlay import ops

    real = ops.place_tree

    def broken(*arguments: Any) -> None:
        real(*arguments)
        arguments[3][9] ^= True

    monkeypatch.setattr(ops, "place_tree", broken)
    (found,) = overlay_child._ops("cpu")
    assert "place_tree" in found[1]


def test_the_walk_of_the_trial_goes_all_the_way() -> None:
    """A walk that stopped at the root would compare next to nothing."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    from ddtree_overlay.tree.reference import build_tree

    logprobs, ids_ = overlay_child._draft(torch)
    tree = build_tree(logprobs[0].tolist(), ids_[0].tolist(), overlay_child.BUDGET)
    assert tree.count == overlay_child.BUDGET
    assert tree.depths[tree.count] >= 2


def test_a_plugin_that_raises(tmp_path: Path) -> None:
    folder = tmp_path / "broken-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[sglang.srt.plugins]\nbad = no_such_module:run\n")
    environment = dict(os.environ)
    environment["PYTHONPATH"] = f"{tmp_path}:{environment.get('PYTHONPATH', '')}"
    (finding,) = check_overlay(_subject(environment=environment))
    assert finding.code == "OVL007" and "no_such_module" in finding.what
