"""What the CPU proof path replaces in SGLang, and that nothing is replaced by half.

Runs where torch and SGLang are: inside the image. Needs nothing but pytest beside them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.overlay import gate_models as models

for _module in ("torch", "sglang"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed here; the image has it", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
import xgrammar  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from sglang.srt.plugins import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    hook_registry,
)

import ddtree_overlay  # noqa: E402
from ddtree_overlay.sglang.cpu_proof import hooks, matmul, shims  # noqa: E402
from ddtree_overlay.sglang.cpu_proof.errors import CpuProofError  # noqa: E402
from ddtree_overlay.sglang.cpu_proof.rotary import rotary_embedding  # noqa: E402

ACTIVE = """
import json, pkgutil, sys
# Names bound before the plugin runs are to follow it too.
from sglang.srt.speculative import spec_utils
early = [spec_utils.assign_req_to_token_pool_func]  # in a list, where no hook reaches it
from sglang.srt.plugins import load_plugins
from ddtree_overlay.sglang.cpu_proof import activate
from ddtree_overlay.sglang.cpu_proof.shims import SHIMS
load_plugins()
activate()  # as the entry point does where the wheel has it; once more is nothing
from sglang.srt.plugins.hook_registry import HookRegistry
import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative import dflash_worker_v2, draft_worker_common
from vllm._custom_ops import rotary_embedding
stream = torch.get_device_module("cpu").current_stream()
torch.zeros(1).record_stream(stream)
def asked(*flags):
    args = prepare_server_args(
        ["--model-path", sys.argv[1], "--skip-tokenizer-init", "--load-format", "dummy",
         "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", sys.argv[2], *flags])
    return args.device, args.attention_backend, args.speculative_draft_attention_backend
print(json.dumps({
    "replaced": [s.target for s in SHIMS if hasattr(pkgutil.resolve_name(s.target), "__wrapped__")],
    "layers": [len(HookRegistry._hooks[s.target]) for s in SHIMS],
    "followed": spec_utils.assign_req_to_token_pool_func.__wrapped__ is early[0]
        and dflash_worker_v2.assign_req_to_token_pool_func.__wrapped__ is early[0],
    "registered": "ddtree_cpu" in ATTENTION_BACKENDS,
    "draft": draft_worker_common._SUPPORTED_DRAFT_BACKENDS.count("ddtree_cpu"),
    "rotary": rotary_embedding.__module__,
    "cuda": torch.cuda.is_initialized(),
    "ours": asked("--device", "cpu", "--attention-backend", "ddtree_cpu"),
    "triton": asked("--device", "cpu", "--attention-backend", "triton"),
}))
"""


def test_activation_reaches_every_target_and_the_command_line(tmp_path: Path) -> None:
    paths = [models.write_model(tmp_path / "target", models.TARGET),
             models.write_model(tmp_path / "drafter", models.DRAFTER)]  # fmt: skip
    source = str(Path(ddtree_overlay.__file__).parents[1])
    search = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ACTIVE, *map(str, paths)],
        env=os.environ
        | {"DDTREE_CPU_PROOF": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found == {
        "replaced": [shim.target for shim in shims.SHIMS],
        "layers": [1] * len(shims.SHIMS),
        "followed": True,
        "registered": True,
        "draft": 1,
        "rotary": "ddtree_overlay.sglang.cpu_proof.rotary",
        "cuda": False,
        "ours": ["cpu", "ddtree_cpu", "ddtree_cpu"],
        "triton": ["cpu", "triton", "triton"],
    }


@pytest.mark.parametrize("shim", shims.SHIMS, ids=lambda shim: shim.target.rsplit(".", 1)[1])
def test_one_missing_target_stops_all(shim: hooks.Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks.find(shim.target, shim.parameters)
    monkeypatch.delattr(shim.target)
    before = {target: list(kept) for target, kept in hook_registry.HookRegistry._hooks.items()}
    with pytest.raises(CpuProofError, match=f"has no {shim.target} to replace"):
        hooks.apply(shims.SHIMS)
    assert hook_registry.HookRegistry._hooks == before


@pytest.fixture
def victim(monkeypatch: pytest.MonkeyPatch) -> hooks.Shim:
    """A function of a module `victim`, also bound by name in `user`."""

    def double(number: int) -> int:
        return 2 * number

    for name in ("victim", "user"):
        module = types.ModuleType(name)
        module.double = double  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(hook_registry.HookRegistry, "_hooks", hooks_like())
    monkeypatch.setattr(hook_registry.HookRegistry, "_patched", set())
    # The closure of this fixture is no module, so only the two above hold the original.
    return hooks.Shim("victim.double", ("number",), lambda original, n: original(n) + 1)


def hooks_like() -> Any:
    return type(hook_registry.HookRegistry._hooks)(list)


def test_a_replacement_is_used_where_the_name_was_imported(victim: hooks.Shim) -> None:
    hooks.apply([victim])
    assert sys.modules["victim"].double(4) == sys.modules["user"].double(4) == 9


def test_a_hook_that_sglang_only_logs_is_an_error(
    victim: hooks.Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_registry.HookRegistry, "apply_hooks", lambda: None)
    with pytest.raises(CpuProofError, match=r"did not replace victim\.double"):
        hooks.apply([victim])


def test_a_name_that_keeps_the_original_is_an_error(
    victim: hooks.Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_registry, "_propagate_patch", lambda *_: 0)
    with pytest.raises(CpuProofError, match=r"user\.double still holds the original"):
        hooks.apply([victim])


def test_only_a_cpu_passes_the_device_gates() -> None:
    seen = []
    arguments = SimpleNamespace(device="cpu")
    shims.dflash_arguments(lambda args: seen.append(args.device), arguments)
    assert (seen, arguments.device) == (["cuda"], "cpu")
    shims.ddtree_device(None, arguments)

    def fail(_: Any) -> None:
        raise ValueError("a rule of DFLASH")

    with pytest.raises(ValueError, match="a rule of DFLASH"):
        shims.dflash_arguments(fail, arguments)
    assert arguments.device == "cpu"
    arguments.device = "cuda"
    for gate in (shims.dflash_arguments, shims.ddtree_device):
        with pytest.raises(ValueError, match=r"--device \(got cuda\) must be cpu"):
            gate(fail, arguments)


def test_kv_slots_go_to_each_requests_span_and_come_back() -> None:
    table = torch.zeros((4, 12), dtype=torch.int32)
    rows = torch.tensor([2, 0, 3])
    starts, ends = torch.tensor([3, 0, 5]), torch.tensor([5, 4, 5])
    shims.assign_req_to_token_pool(None, rows, table, starts, ends, torch.arange(10, 16), 3)
    assert table[2].tolist() == [0, 0, 0, 10, 11] + 7 * [0]
    assert table[0].tolist() == [12, 13, 14, 15] + 8 * [0]
    assert not table[[1, 3]].any()
    table = torch.arange(48, dtype=torch.int32).view(4, 12)
    got = shims.assign_extend_cache_locs(None, rows, table, starts, starts + 2, 3, 2, "cpu")
    assert got.tolist() == [27, 28, 0, 1, 41, 42]
    assert got.dtype == torch.int64
    with pytest.raises(ValueError, match="6 KV slots were read for 3 requests of 4"):
        shims.assign_extend_cache_locs(None, rows, table, starts, starts + 2, 3, 4, "cpu")


def test_embeddings_keep_the_models_dtype() -> None:
    exact = torch.tensor([1.0 + 2**-20])
    batch = SimpleNamespace(input_embeds=exact, replace_embeds=None)

    def upstream(_runner: Any, fb: Any, _proxy: Any) -> dict[str, Any]:
        return {"input_embeds": fb.input_embeds.bfloat16(), "get_embedding": True}

    kept = shims.extend_forward_kwargs(upstream, SimpleNamespace(dtype=torch.float32), batch, None)
    assert torch.equal(kept["input_embeds"], exact)
    assert kept["get_embedding"] is True
    half = SimpleNamespace(dtype=torch.bfloat16)
    assert shims.extend_forward_kwargs(upstream, half, batch, None)["input_embeds"].item() == 1.0
    batch.input_embeds = None
    assert shims.extend_forward_kwargs(lambda *_: {}, half, batch, None) == {}


@pytest.mark.parametrize("vocabulary", [31, 32, 258])
def test_the_grammar_mask_is_xgrammars(vocabulary: int) -> None:
    mask = shims.allocate_token_bitmask(None, vocabulary, 3)
    assert mask.shape == xgrammar.get_bitmask_shape(3, vocabulary)
    assert mask.dtype == xgrammar.bitmask_dtype
    logits = torch.randn(3, vocabulary)
    untouched = logits.clone()
    shims.apply_vocab_mask(None, None, logits, mask)
    assert torch.equal(logits, untouched)
    mask.random_(-(2**31), 2**31 - 1, generator=torch.Generator().manual_seed(vocabulary))
    expected = logits.clone()
    xgrammar.apply_token_bitmask_inplace(expected, mask)
    shims.apply_vocab_mask(None, None, logits, mask)
    assert torch.equal(logits, expected)
    assert logits.isinf().any() and logits.isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_product_does_not_depend_on_the_other_rows(dtype: Any) -> None:
    states, weight = torch.randn(130, 256).to(dtype), torch.randn(300, 256).to(dtype)
    bias = torch.randn(300).to(dtype)
    whole = matmul.linear(states, weight, bias)
    for rows in (1, 2, 3, 5, 17, 65):
        parts = [matmul.linear(part, weight, bias) for part in states.split(rows)]
        assert torch.equal(torch.cat(parts), whole)
    exact = states.double() @ weight.double().T + bias.double()
    assert torch.equal(whole, exact.to(dtype)) and whole.dtype == dtype


def test_a_head_of_another_kind_is_left_to_sglang() -> None:
    processor = SimpleNamespace(use_fp32_lm_head=False, rl_on_policy_target=None)
    head = SimpleNamespace(weight=torch.randn(20, 8))
    states = torch.randn(3, 8)

    def upstream(*_: Any) -> str:
        return "upstream"

    logits = matmul.lm_head_logits(upstream, processor, states, head)
    assert torch.equal(logits, (states.double() @ head.weight.double().T).float())
    processor.use_fp32_lm_head = True
    assert matmul.lm_head_logits(upstream, processor, states, head) == "upstream"
    processor.use_fp32_lm_head = False
    assert matmul.lm_head_logits(upstream, processor, states, SimpleNamespace()) == "upstream"


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rotary", [16, 8])
def test_rotary_embedding_turns_pairs(neox: bool, rotary: int) -> None:
    tokens, head = 5, 16
    positions = torch.tensor([0, 3, 1, 7, 7])
    angles = torch.rand(8, rotary // 2) * 6
    cache = torch.cat((angles.cos(), angles.sin()), dim=1)
    query, key = torch.randn(tokens, 3 * head), torch.randn(tokens, 1, head)
    given = query.clone(), key.clone()
    rotary_embedding(positions, query, key, head, cache, neox)
    for before, after in zip(given, (query, key), strict=True):
        old, new = before.view(tokens, -1, head), after.view(tokens, -1, head)
        assert torch.equal(old[..., rotary:], new[..., rotary:])
        for pair in range(rotary // 2):
            left, right = (pair, pair + rotary // 2) if neox else (2 * pair, 2 * pair + 1)
            turn = torch.polar(torch.ones(tokens), angles[positions, pair])[:, None]
            turned = torch.complex(old[..., left], old[..., right]) * turn
            torch.testing.assert_close(new[..., left], turned.real)
            torch.testing.assert_close(new[..., right], turned.imag)
