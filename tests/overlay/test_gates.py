"""What DDTREE fills in at a start, and which backends and numbers it refuses.

Runs where torch, the patched SGLang and the overlay are: inside the image."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from pathlib import Path

import pytest

for _module in ("torch", "sglang"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed here; the image has it", allow_module_level=True)

from sglang.srt.server_args import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    ServerArgs,
)

from ddtree_overlay.sglang import backend_gate, gates  # noqa: E402
from tests.overlay import gate_start  # noqa: E402
from tests.overlay.gate_start import Start, refused  # noqa: E402

start, logged = gate_start.start, gate_start.logged


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
    assert re.search(r"mask \d+ bytes.* indices \d+ bytes.* splits \d+ bytes.* logits \d+ ", memory)
    assert f"verify logits {48 * 17 * 256 * 4} bytes" in memory
    # Keys and values of 4 target layers and 1 drafter layer, 2 heads of 16, 2 bytes each.
    assert f"34 KV slots per request held ahead ({48 * 34 * 5 * 2 * 2 * 16 * 2} bytes)" in memory


def test_what_flags_set_is_kept(start: Start) -> None:
    args = start("--speculative-ddtree-budget", "5", "--speculative-ddtree-topk", "3")
    assert (args.speculative_ddtree_budget, args.speculative_ddtree_topk) == (5, 3)
    assert args.speculative_num_draft_tokens == 6
    assert args.speculative_dflash_block_size == 8


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


# Budget, top-k and memory


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--speculative-ddtree-budget", "1025"), "1..1024"),
        (("--speculative-ddtree-topk", "17"), "above the budget of 16"),
        (
            ("--speculative-ddtree-budget", "512", "--speculative-ddtree-topk", "65"),
            "above 64, the candidates per position",
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
    wide = ("--speculative-ddtree-budget", "1024", "--speculative-ddtree-topk", "64")
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


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_an_fp8_cache_is_refused_where_verify_reads_it_unquantised(
    start: Start, dtype: str
) -> None:
    said = refused(start, "--kv-cache-dtype", dtype)
    assert f"--kv-cache-dtype (got {dtype})" in said and "flashinfer" in said
    start("--kv-cache-dtype", dtype, backend=("--attention-backend", "flashinfer"))
