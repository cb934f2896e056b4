"""What DDTREE refuses at start, through SGLang's own command line: configurations without weights.

Runs where torch, the patched SGLang and the overlay are: inside the image."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.overlay import gate_models as models

for _module in ("torch", "sglang"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed here; the image has it", allow_module_level=True)

from sglang.srt.arg_groups import ddtree_hook  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from sglang.srt.server_args import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    ServerArgs,
    prepare_server_args,
)

from ddtree_overlay.sglang import backend_gate, drafter_gate, gates, server_gate  # noqa: E402

UNSAFE = "--speculative-ddtree-allow-hybrid-unsafe"
NO_BUFFER = ("--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule")
Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Parse a command line up to where weights would load, on a machine without a GPU."""
    monkeypatch.setattr(ddtree_hook, "_check_ddtree_device", lambda _: None)
    monkeypatch.setattr(gates, "_device_megabytes", lambda _: 96 * 1024)
    monkeypatch.chdir(tmp_path)

    def run(
        *flags: str,
        target: dict[str, Any] = models.TARGET,
        drafter: dict[str, Any] | str = models.DRAFTER,
        backend: tuple[str, ...] = ("--attention-backend", "triton"),
    ) -> Any:
        models.write_model(tmp_path / "target", target)
        path = drafter
        if not isinstance(drafter, str):
            path = str(models.write_model(tmp_path / "drafter", drafter))
        # fmt: off
        return prepare_server_args([
            "--model-path", str(tmp_path / "target"), "--device", "cpu", "--skip-tokenizer-init",
            "--load-format", "dummy", *backend, "--speculative-algorithm", "DDTREE",
            "--speculative-draft-model-path", str(path), *flags,
        ])
        # fmt: on

    return run


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger, handler = logging.getLogger("ddtree_overlay"), Keep()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(before)


def refused(start: Start, *flags: str, **models_: Any) -> str:
    """The refusal, checked for its form."""
    with pytest.raises(ValueError, match="DDTREE") as caught:
        start(*flags, **models_)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith("DDTREE: ") and "(got " in said and said.endswith(".")
    return said


def drafter(**changes: Any) -> dict[str, Any]:
    """The fitting drafter with top-level changes; None drops a key."""
    return {key: value for key, value in {**models.DRAFTER, **changes}.items() if value is not None}


def own(**changes: Any) -> dict[str, Any]:
    """The fitting drafter with changes in its dflash_config; None drops a key."""
    merged = {**models.DRAFTER["dflash_config"], **changes}
    return drafter(dflash_config={k: v for k, v in merged.items() if v is not None})


def test_a_fitting_pair_starts_and_says_what_it_chose(
    start: Start, logged: list[logging.LogRecord]
) -> None:
    args = start()
    assert args.speculative_dflash_block_size == 8
    assert (args.speculative_ddtree_budget, args.speculative_ddtree_topk) == (16, 16)
    assert args.speculative_num_draft_tokens == 17
    said = [record.getMessage() for record in logged if record.levelno == logging.INFO]
    (line,) = [text for text in said if text.startswith("DDTREE tree: budget 16 (chosen")]
    assert "override with --speculative-ddtree-budget" in line and "\n" not in line
    (memory,) = [text for text in said if text.startswith("DDTREE memory at 48 running")]
    assert f"mask {48 * 17 * (512 + 17)} bytes" in memory
    assert f"verify logits {48 * 17 * 256 * 4} bytes" in memory
    # Keys and values of 4 target layers and 1 drafter layer, 2 heads of 16, 2 bytes each.
    assert f"34 KV slots per request held ahead ({48 * 34 * 5 * 2 * 2 * 16 * 2} bytes)" in memory


def test_what_flags_set_is_kept(start: Start) -> None:
    args = start("--speculative-ddtree-budget", "5", "--speculative-ddtree-topk", "3")
    assert (args.speculative_ddtree_budget, args.speculative_ddtree_topk) == (5, 3)
    assert args.speculative_num_draft_tokens == 6
    assert args.speculative_dflash_block_size == 8


# Targets


@pytest.mark.parametrize(
    ("target", "flags", "says"),
    [
        (models.HYBRID_GDN, NO_BUFFER, "recurrent layers (Mamba, GDN or linear attention)"),
        (models.HYBRID_MAMBA, NO_BUFFER, "recurrent layers (Mamba, GDN or linear attention)"),
        (models.SLIDING, (), "sliding_attention"),
        (models.HYBRID_SWA, (), "sliding-window layers"),
        (models.HYBRID_SWA, ("--disable-hybrid-swa-memory",), "sliding-window layers"),
        (models.WINDOWED, (), "a sliding window of 128 tokens"),
        ({**models.TARGET, "layers_block_type": ["rwkv"]}, (), "layers of type rwkv"),
        ({**models.TARGET, "attention_chunk_size": 64}, (), "attention_chunk_size 64"),
    ],
    ids=["gdn", "mamba", "sliding", "swa", "swa-memory-off", "windowed", "new", "chunked"],
)
def test_a_hybrid_target_is_refused_and_the_unsafe_flag_only_warns(
    start: Start,
    logged: list[logging.LogRecord],
    target: dict[str, Any],
    flags: tuple[str, ...],
    says: str,
) -> None:
    said = refused(start, *flags, target=target)
    assert "--model-path" in said and target["architectures"][0] in said
    assert says in said and UNSAFE in said
    logged.clear()
    target = {**target, "initializer_range": 0.5}
    _forget_configurations()
    assert start(*flags, UNSAFE, target=target).speculative_ddtree_budget == 16
    (warning,) = [r.getMessage() for r in logged if r.levelno == logging.WARNING]
    assert "WRONG, not slow" in warning and says in warning and UNSAFE in warning


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (models.MLA, "uses MLA"),
        ({**models.TARGET, "use_ngram_embedding": True}, "n-grams"),
    ],
    ids=["mla", "ngram"],
)
def test_other_targets_are_refused_with_or_without_the_unsafe_flag(
    start: Start, target: dict[str, Any], says: str
) -> None:
    assert says in refused(start, target=target)
    said = refused(start, UNSAFE, target=target)
    assert says in said and UNSAFE not in said


def test_an_embedding_model_is_refused(start: Start) -> None:
    assert "decodes nothing" in refused(start, "--is-embedding")


def test_m_rope_is_let_through(start: Start) -> None:
    assert start(target=models.M_ROPE).get_model_config().model_is_mrope


def test_a_window_that_the_model_does_not_use_is_let_through(start: Start) -> None:
    target = {**models.TARGET, "sliding_window": 64, "use_sliding_window": False}
    assert start(target=target).speculative_ddtree_budget == 16


# Attention backends


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        (("--attention-backend", "torch_native"), "--attention-backend (got torch_native)"),
        (("--attention-backend", "ddtree_cpu"), None),
        (
            ("--attention-backend", "triton", "--prefill-attention-backend", "torch_native"),
            "--prefill-attention-backend (got torch_native)",
        ),
        (
            (
                *("--attention-backend", "triton", "--decode-attention-backend", "torch_native"),
                *("--speculative-attention-mode", "decode"),
            ),
            "--decode-attention-backend (got torch_native)",
        ),
    ],
    ids=["whole", "cpu proof", "prefill", "decode"],
)
def test_a_backend_without_a_tree_mask_is_refused(
    start: Start, backend: tuple[str, ...], says: str | None
) -> None:
    if says is None:
        # Known to the command line only while the CPU proof path is active.
        with pytest.raises(SystemExit):
            start(backend=backend)
        return
    said = refused(start, backend=backend)
    assert says in said and "flashinfer or triton" in said


def test_only_the_backend_that_verifies_has_to_take_a_mask(start: Start) -> None:
    other = ("--attention-backend", "triton", "--decode-attention-backend", "torch_native")
    assert start(backend=other).speculative_ddtree_budget == 16
    mode = ("--speculative-attention-mode", "decode")
    both = ("--attention-backend", "triton", "--prefill-attention-backend", "torch_native")
    assert start(*mode, backend=both).speculative_ddtree_budget == 16


def test_the_cpu_proof_backend_counts_where_it_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sglang.srt import server_args

    choices = [c for c in server_args.ATTENTION_BACKEND_CHOICES if c != "ddtree_cpu"]
    monkeypatch.setattr(server_args, "ATTENTION_BACKEND_CHOICES", choices)
    assert backend_gate._supported() == ("flashinfer", "triton")
    monkeypatch.setattr(server_args, "ATTENTION_BACKEND_CHOICES", [*choices, "ddtree_cpu"])
    assert backend_gate._supported() == ("flashinfer", "triton", "ddtree_cpu")


def test_an_unset_backend_becomes_one_with_a_mask(
    start: Start, monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord]
) -> None:
    monkeypatch.setattr(ServerArgs, "_handle_cpu_backends", lambda _: None)
    monkeypatch.setattr(ServerArgs, "_get_default_attn_backend", lambda *_: "fa3")  # as on sm_90
    args = start(backend=())
    assert args.attention_backend in backend_gate.TREE_MASK_BACKENDS
    assert any("instead of the default fa3" in record.getMessage() for record in logged)


# Drafters


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (drafter(architectures=["LlamaForCausalLMEagle3"]), "LlamaForCausalLMEagle3"),
        (drafter(architectures=["DFlash2DraftModel"]), "DFlash2DraftModel"),
        (drafter(architectures=["DSparkDraftModel"]), "DSparkDraftModel"),
        (drafter(dflash_config=None), "no dflash_config"),
        (own(projector_type="domino"), "projector_type=domino"),
        (own(markov_rank=256), "markov_rank"),
        (own(selector_rank=64), "selector_rank"),
        (own(shift_label=True), "shift_label"),
        (own(target_layer_ids=None), "no target_layer_ids"),
        (own(target_layer_ids=[]), "target_layer_ids must be non-empty"),
        (own(target_layer_ids=[1, 4]), "(it can from 0..2)"),
        (own(target_layer_ids=[1, 3]), "(it can from 0..2)"),
        (own(target_layer_ids=[-1, 2]), "(it can from 0..2)"),
        (own(target_layer_ids=[2, 1]), "ascending order"),
        (own(mask_token_id=None), "no mask_token_id"),
        (own(mask_token_id=256), "outside the target's vocabulary of 256"),
        (own(mask_token_id=-1), "non-negative"),
        (own(draft_vocab_size=128), "draft_vocab_size 128"),
        (drafter(num_target_layers=36), "num_target_layers 36"),
        (drafter(hidden_size=128), "hidden_size 128"),
        (drafter(vocab_size=512), "vocab_size 512"),
        (drafter(block_size=1), "block_size 1"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(
    start: Start, changed: dict[str, Any], says: str
) -> None:
    said = refused(start, drafter=changed)
    assert "--speculative-draft-model-path" in said and says in said


@pytest.mark.parametrize(
    "changed",
    [
        own(projector_type="dflash", shift_label=False),
        own(mask_token_id=0, draft_vocab_size=256),
        own(target_layer_ids=[0, 2]),
        drafter(num_target_layers=None),
        drafter(is_causal=True),
        drafter(layer_types=["sliding_attention"], sliding_window=32, use_sliding_window=True),
    ],
    ids=["plain projector", "first token", "edge layers", "layers unsaid", "causal", "sliding"],
)
def test_a_drafter_that_fits_in_another_way_is_let_through(
    start: Start, changed: dict[str, Any]
) -> None:
    assert start(drafter=changed).speculative_dflash_block_size == 8


def test_the_block_size_is_the_drafters(start: Start) -> None:
    said = refused(start, "--speculative-dflash-block-size", "4")
    assert "--speculative-dflash-block-size (got 4)" in said and "(8)" in said
    assert start("--speculative-dflash-block-size", "8").speculative_dflash_block_size == 8


def test_a_drafter_without_a_block_size_needs_the_flag(start: Start) -> None:
    changed = drafter(block_size=None)
    said = refused(start, drafter=changed)
    assert "--speculative-dflash-block-size (got None)" in said
    args = start("--speculative-dflash-block-size", "4", drafter=changed)
    assert args.speculative_dflash_block_size == 4


def test_a_drafter_that_ranks_cannot_share_is_refused(start: Start) -> None:
    # 3 KV heads: neither divisible by 2 ranks nor replicated over them.
    changed = drafter(num_attention_heads=6, num_key_value_heads=3)
    said = refused(start, "--tp-size", "2", drafter=changed)
    assert "--tp-size (got 2)" in said and "num_key_value_heads" in said


def test_the_known_architectures_are_upstreams() -> None:
    from sglang.srt.models.dflash import (  # type: ignore[import-not-found, unused-ignore]
        EntryClass,
    )

    assert {entry.__name__ for entry in EntryClass} == drafter_gate.ARCHITECTURES


def test_an_unreadable_drafter_is_named_before_sglang_reads_it(
    start: Start, tmp_path: Path
) -> None:
    said = refused(start, drafter=str(tmp_path / "nowhere"))
    assert "nowhere" in said and "does not exist" in said
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refused(start, drafter=str(tmp_path / "empty"))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"block_size": 8,', encoding="utf-8")
    said = refused(start, drafter=str(broken))
    assert "cannot be read" in said and "Traceback" not in said
    (broken / "config.json").write_text("[]", encoding="utf-8")
    assert "without an object" in refused(start, drafter=str(broken))


def test_a_draft_window_below_the_block_is_refused(start: Start) -> None:
    said = refused(start, "--speculative-draft-window-size", "7")
    assert "--speculative-draft-window-size (got 7)" in said
    assert start("--speculative-draft-window-size", "8").speculative_draft_window_size == 8


# Budget, top-k and memory


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--speculative-ddtree-budget", "1025"), "1..1024"),
        (("--speculative-ddtree-topk", "17"), "above the budget of 16"),
        (
            ("--speculative-ddtree-budget", "512", "--speculative-ddtree-topk", "257"),
            "1..256, the vocabulary",
        ),
        (
            ("--speculative-ddtree-budget", "16", "--max-total-tokens", "34"),
            "holds 34 KV slots per request ahead",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(start: Start, flags: tuple[str, ...], says: str) -> None:
    assert says in refused(start, *flags)


def test_the_edges_of_the_ranges_are_let_through(start: Start) -> None:
    wide = ("--speculative-ddtree-budget", "1024", "--speculative-ddtree-topk", "256")
    assert start(*wide, "--max-running-requests", "1").speculative_num_draft_tokens == 1025
    # More nodes than can exist: 7 positions of one candidate each.
    args = start("--speculative-ddtree-budget", "64", "--speculative-ddtree-topk", "1")
    assert args.speculative_ddtree_budget == 64
    assert start("--max-total-tokens", "35").speculative_ddtree_budget == 16


def test_a_budget_beyond_memory_is_refused_with_one_that_fits(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "_device_megabytes", lambda _: 200)
    flags = ("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled")
    said = refused(start, *flags, "--speculative-ddtree-budget", "1024")
    mask, logits = 48 * 1025 * (512 + 1025), 48 * 1025 * 256 * 4
    assert f"mask {mask}" in said and f"verify logits {logits}" in said
    words = said.replace(",", "").split()
    budget = int(words[words.index("--speculative-ddtree-budget", 3) + 1])
    requests = int(words[words.index("--max-running-requests") + 1].rstrip("."))
    assert 0 < budget < 1024 and 0 < requests < 48
    assert start(*flags, "--speculative-ddtree-budget", str(budget))
    fewer = ("--max-running-requests", str(requests))
    assert start(*flags, "--speculative-ddtree-budget", "1024", *fewer)
    refused(start, *flags, "--speculative-ddtree-budget", str(budget + 1))
    refused(
        start,
        *flags,
        *("--speculative-ddtree-budget", "1024", "--max-running-requests", str(requests + 1)),
    )


# Other server arguments


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--disaggregation-mode", "decode"), "--disaggregation-mode (got decode)"),
        (("--enable-lora", "--max-lora-rank", "8"), "--enable-lora (got True)"),
        (("--lora-paths", "a=b"), "--lora-paths"),
        (("--speculative-adaptive",), "--speculative-adaptive (got True)"),
        (("--speculative-use-rejection-sampling",), "--speculative-use-rejection-sampling"),
        (
            ("--speculative-accept-threshold-single", "0.5"),
            "--speculative-accept-threshold-single (got 0.5)",
        ),
        (("--speculative-accept-threshold-acc", "0.5"), "--speculative-accept-threshold-acc"),
        (("--speculative-token-map", "x"), "--speculative-token-map"),
        (("--enable-return-hidden-states",), "--enable-return-hidden-states"),
        (("--return-hidden-states-mode", "last"), "--enable-return-hidden-states"),
        (("--enable-return-routed-experts",), "--enable-return-routed-experts"),
        (("--kv-cache-dtype", "fp4_e2m1"), "--kv-cache-dtype"),
        (("--speculative-dspark-block-size", "4"), "--speculative-dspark-block-size"),
        (
            ("--preferred-sampling-params", json.dumps({"presence_penalty": 0.5})),
            "presence_penalty=0.5",
        ),
    ],
)
def test_a_contradicting_argument_is_refused(
    start: Start, flags: tuple[str, ...], names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # fp4 is refused by SGLang itself on a machine without CUDA.
    monkeypatch.setattr(ServerArgs, "_handle_kv4_compatibility", lambda _: None)
    assert names in refused(start, *flags)


def test_every_contradiction_is_a_server_argument_whose_default_is_accepted(start: Start) -> None:
    args = start("--preferred-sampling-params", json.dumps({"min_p": 0.1, "top_k": 5}))
    for contradiction in server_gate.CONTRADICTIONS:
        value = getattr(args, contradiction.field)
        assert not contradiction.clashes(value), contradiction.field


def test_a_simulated_accept_length_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "4")
    assert "SGLANG_SIMULATE_ACC_LEN (got 4.0)" in refused(start)


def test_a_generation_config_with_a_penalty_is_warned_of(
    start: Start, tmp_path: Path, logged: list[logging.LogRecord]
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "generation_config.json").write_text(
        json.dumps({"repetition_penalty": 1.05}), encoding="utf-8"
    )
    start()
    (warning,) = [r.getMessage() for r in logged if r.levelno == logging.WARNING]
    assert "repetition_penalty=1.05" in warning and "--sampling-defaults openai" in warning
    logged.clear()
    start("--sampling-defaults", "openai")
    assert not [r for r in logged if r.levelno == logging.WARNING]


def _forget_configurations() -> None:
    from sglang.srt.utils.hf_transformers_utils import get_config

    getattr(get_config, "cache_clear", lambda: None)()


@pytest.fixture(autouse=True)
def _fresh_configurations() -> None:
    _forget_configurations()
