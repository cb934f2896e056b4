"""The verify input: its mask has the length that a backend reads, in eager and in padded batches."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # noqa: E402
from sglang.srt.layers.attention.verify_mask import VerifyMask  # noqa: E402
from sglang.srt.speculative import dflash_info  # noqa: E402
from sglang.srt.speculative.eagle_utils import TreeMaskMode  # noqa: E402

from ddtree_overlay.sglang.rounds import build_draft_tree  # noqa: E402
from ddtree_overlay.sglang.verify import (  # noqa: E402
    DDTreeVerifyInput,
    VerifyMaskLengthError,
    graph_padding,
    host_prefix_sum,
    tree_verify_input,
)
from ddtree_overlay.tree.mask import full_mask, mask_numel  # noqa: E402

BUDGET, WIDTH = 6, 7
PREFIXES = [5, 0, 9]
# As upstream's decode graph runner: buckets, and the length that padded requests pretend to have.
RUNNER = SimpleNamespace(
    max_bs=8,
    capture_bs=[1, 2, 4, 8],
    seq_len_fill_value=1,
    _pad_to_bucket=lambda count, buckets: min(b for b in buckets if b >= count),
)


def verify_input(prefix_sum: int, padding: int = 0, own: Any = None) -> DDTreeVerifyInput:
    generator = torch.Generator().manual_seed(0)
    top = torch.log_softmax(torch.randn(3, 4, 20, generator=generator), -1).topk(5, -1)
    tree = build_draft_tree(top.values, top.indices, BUDGET, torch.tensor([1, 2, 3]))
    lengths = torch.tensor(PREFIXES)
    return tree_verify_input(tree, lengths, prefix_sum, padding, own)


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Upstream's two methods replaced by what was called."""
    called: list[str] = []
    for name in ("prepare_for_verify", "generate_attn_arg_prefill"):
        monkeypatch.setattr(
            dflash_info.DFlashVerifyInput, name, lambda *_, name=name: called.append(name)
        )
    return called


def ask(given: DDTreeVerifyInput, batch: int, prefix_sum: int) -> None:
    """As FlashInfer does when it plans."""
    given.generate_attn_arg_prefill(
        torch.zeros(batch, dtype=torch.int64), torch.zeros(batch), prefix_sum, torch.zeros(1, 1)
    )


def scheduled(prefix_sum: int, count: int = 3) -> Any:
    return SimpleNamespace(seq_lens=torch.zeros(count), seq_lens_sum=prefix_sum)


def test_mask_and_positions_are_the_trees() -> None:
    generator = torch.Generator().manual_seed(0)
    top = torch.log_softmax(torch.randn(3, 4, 20, generator=generator), -1).topk(5, -1)
    tree = build_draft_tree(top.values, top.indices, BUDGET, torch.tensor([1, 2, 3]))
    lengths = torch.tensor(PREFIXES)
    given = tree_verify_input(tree, lengths, sum(PREFIXES) + 4, 9)
    assert torch.equal(given.positions, (lengths[:, None] + tree.depths).flatten())
    assert torch.equal(given.draft_token, tree.tokens.flatten())
    numel = mask_numel(sum(PREFIXES) + 4, 3, WIDTH) + 9
    assert torch.equal(given.custom_mask, full_mask(tree.ancestors, lengths, numel))


def own_mask(numel: int, **changed: Any) -> VerifyMask:
    given: dict[str, Any] = {"mode": TreeMaskMode.FULL_MASK, "max_bs": 8, "dtype": torch.uint8}
    given |= changed
    buffer = torch.full((numel,), 7, dtype=given.pop("dtype"))
    return VerifyMask(buffer=buffer, **given)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_the_mask_is_written_where_captured_graphs_read_it(dtype: Any) -> None:
    elsewhere = verify_input(sum(PREFIXES)).custom_mask
    own = own_mask(elsewhere.numel() + 5, dtype=dtype)
    given = verify_input(sum(PREFIXES), own=own)
    assert given.custom_mask.data_ptr() == own.buffer.data_ptr()
    assert given.custom_mask.dtype == dtype
    assert torch.equal(given.custom_mask.bool(), elsewhere)
    # As the backend does before a replay.
    own.buffer[: given.custom_mask.shape[0]] = given.custom_mask
    assert torch.equal(own.buffer[: elsewhere.numel()].bool(), elsewhere)
    assert own.buffer[elsewhere.numel() :].tolist() == [7 if dtype == torch.uint8 else 1] * 5


@pytest.mark.parametrize(
    "changed",
    [{"mode": TreeMaskMode.QLEN_ONLY}, {"is_read": False}, {"dtype": torch.float32}, {"short": 1}],
)
def test_a_buffer_that_graphs_do_not_read_so_is_left_alone(changed: dict[str, Any]) -> None:
    elsewhere = verify_input(sum(PREFIXES)).custom_mask
    own = own_mask(elsewhere.numel() - changed.pop("short", 0), **changed)
    given = verify_input(sum(PREFIXES), own=own)
    assert torch.equal(given.custom_mask, elsewhere)
    assert (own.buffer == 7).all()


@pytest.mark.parametrize("slack", [0, 11])
def test_an_eager_batch(upstream: list[str], slack: int) -> None:
    total = sum(PREFIXES) + slack
    given = verify_input(total)
    given.prepare_for_verify(scheduled(total), None)
    ask(given, 3, total)
    assert upstream == ["prepare_for_verify", "generate_attn_arg_prefill"]
    assert given.draft_token_num == given.num_tokens_per_req == WIDTH


def test_a_padded_graph_batch_reads_a_mask_of_its_own_length(upstream: list[str]) -> None:
    total = sum(PREFIXES)
    padding = graph_padding(RUNNER, 3, WIDTH)
    given = verify_input(total, padding)
    # Upstream pads 3 requests to the bucket of 4; the one added has a prefix of the fill value.
    padded_sum = total + RUNNER.seq_len_fill_value
    assert given.custom_mask.numel() == mask_numel(padded_sum, 4, WIDTH)
    given.prepare_for_verify(scheduled(total), None)
    ask(given, 4, padded_sum)
    # The same input run without a graph: the elements for padding are not read.
    ask(given, 3, total)
    assert len(upstream) == 3
    # What padded requests read shows them something, or their softmax would be NaN.
    assert given.custom_mask[-padding:].all()


@pytest.mark.parametrize("off", [-1, 1, WIDTH])
def test_a_mask_of_another_length_is_an_error_for_every_backend(
    upstream: list[str], off: int
) -> None:
    total = sum(PREFIXES)
    given = verify_input(total)
    mask = given.custom_mask
    given.custom_mask = mask[:off] if off < 0 else torch.cat([mask, mask[:off]])
    with pytest.raises(VerifyMaskLengthError, match=f"must have {mask.numel()} "):
        given.prepare_for_verify(scheduled(total), None)
    with pytest.raises(VerifyMaskLengthError, match="--speculative-algorithm DFLASH"):
        ask(given, 3, total)
    assert not upstream


def test_no_mask_is_an_error_too(upstream: list[str]) -> None:
    given = verify_input(sum(PREFIXES))
    given.custom_mask = None
    with pytest.raises(VerifyMaskLengthError):
        given.prepare_for_verify(scheduled(sum(PREFIXES)), None)
    assert not upstream


def test_no_padding_without_graphs_or_beyond_the_largest() -> None:
    assert graph_padding(None, 3, WIDTH) == 0
    assert graph_padding(RUNNER, 9, WIDTH) == 0
    assert graph_padding(RUNNER, 4, WIDTH) == 0
    assert graph_padding(RUNNER, 5, WIDTH) == 3 * WIDTH * (1 + WIDTH)


def test_what_the_host_knows_of_the_lengths() -> None:
    lengths = torch.tensor(PREFIXES)
    reserved = SimpleNamespace(reserved_seq_lens_cpu=lengths + 40, reserved_seq_lens_sum=134)
    unknown = SimpleNamespace(reserved_seq_lens_cpu=None, reserved_seq_lens_sum=None)
    known = SimpleNamespace(seq_lens=lengths, seq_lens_cpu=lengths)
    overlapped = SimpleNamespace(seq_lens=lengths, seq_lens_cpu=None)
    assert host_prefix_sum(known, reserved, 512) == 14
    assert host_prefix_sum(overlapped, reserved, 512) == 134
    assert host_prefix_sum(overlapped, unknown, 512) == 14
    assert host_prefix_sum(overlapped, reserved, 16) == 48
