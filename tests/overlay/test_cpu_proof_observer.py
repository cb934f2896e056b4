"""The record of verified trees. Runs inside the image (needs torch and the wheel)."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]

from ddtree_overlay.sglang.cpu_proof import observer
from ddtree_overlay.sglang.cpu_proof.errors import CpuProofError

VOCABULARY = 3


def one_round(known: list[int]) -> tuple[Any, ...]:
    """Logits, tree, batch, positions and walk of one request with a tree of two nodes and one
    of padding, whose prefix is [5, 6] and whose root is 7."""
    logits = torch.arange(4 * VOCABULARY, dtype=torch.float32).view(1, 4, VOCABULARY)
    tree = SimpleNamespace(
        tokens=torch.tensor([[7, 1, 2, 0]]),
        parents=torch.tensor([[-1, 0, 0, -1]]),
        counts=torch.tensor([2]),
    )
    request = SimpleNamespace(rid="r", origin_input_ids=known[:1], output_ids=known[1:])
    batch = SimpleNamespace(has_grammar=False, sampling_info=None, reqs=[request])
    walk = SimpleNamespace(path=torch.tensor([[0, 2, 2]]), accepted=torch.tensor([1]))
    return logits, tree, batch, torch.tensor([[2, 3, 3, 2]]), walk


def test_a_round_is_written_without_its_padding(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    observer.NodeRecord(file).add(*one_round([5, 6, 7]))
    (line,) = file.read_text().splitlines()
    found = json.loads(line)
    values = torch.frombuffer(bytearray(base64.b64decode(found.pop("logits"))), dtype=torch.float32)
    assert values.tolist() == list(range(3 * VOCABULARY))
    assert found == {"context": [5, 6], "tokens": [7, 1, 2], "parents": [-1, 0, 0], "path": [0, 2]}


def test_it_ends_at_its_limit(tmp_path: Path) -> None:
    record = observer.NodeRecord(tmp_path / "nodes", limit=2)
    for _ in range(4):
        record.add(*one_round([5, 6, 7]))
    assert len((tmp_path / "nodes").read_text().splitlines()) == 2


def test_constrained_rounds_are_left_out(tmp_path: Path) -> None:
    logits, tree, batch, positions, walk = one_round([5, 6, 7])
    record = observer.NodeRecord(tmp_path / "nodes")
    batch.has_grammar = True
    record.add(logits, tree, batch, positions, walk)
    batch.has_grammar, batch.sampling_info = False, SimpleNamespace(logit_bias=torch.zeros(1))
    record.add(logits, tree, batch, positions, walk)
    assert not (tmp_path / "nodes").exists()


def test_tokens_that_lag_behind_the_round_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="--disable-overlap-schedule"):
        observer.NodeRecord(tmp_path / "nodes").add(*one_round([5, 6]))


def test_off_unless_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(observer.NODES, raising=False)
    assert observer.shims() == ()
    monkeypatch.setenv(observer.NODES, str(tmp_path / "nodes"))
    (shim,) = observer.shims()
    assert shim.target.endswith("create_worker")


def test_only_ddtrees_worker_is_observed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(observer.NODES, str(tmp_path / "nodes"))
    given = one_round([5, 6, 7])

    class Worker:
        def _walk(self, logits: Any, *_: Any) -> Any:
            logits.zero_()
            return given[-1]

    def made(is_ddtree: bool) -> Any:
        algorithm = SimpleNamespace(is_ddtree=lambda: is_ddtree)
        return observer.create_observed_worker(lambda *_: Worker, algorithm, None)

    assert made(False) is Worker
    observed = made(True)
    assert observed is not Worker and issubclass(observed, Worker)
    assert observed()._walk(*given[:-1]) is given[-1]
    # What a sampled walk does to the logits comes after the record.
    found = json.loads((tmp_path / "nodes").read_text())
    assert any(base64.b64decode(found["logits"]))


def test_a_worker_without_the_observed_method_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(observer.NODES, str(tmp_path / "nodes"))
    algorithm = SimpleNamespace(is_ddtree=lambda: True)
    with pytest.raises(CpuProofError, match="_walk"):
        observer.create_observed_worker(lambda *_: type("Renamed", (), {}), algorithm, None)
