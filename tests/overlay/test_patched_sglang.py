"""The hunks of ddtree_overlay/patches in SGLang's own functions, and DFLASH left as it is.

Each test calls a patched function as SGLang does, with small stand-ins around it, once for DDTREE
and once for DFLASH: a hunk that is lost while a patch is rebased fails here by its name, where a
whole server could still give plausible text.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

for _module in ("torch", "sglang"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed here; the image has it", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.managers import scheduler as scheduler_module  # noqa: E402
from sglang.srt.managers.scheduler_components import metrics_reporter  # noqa: E402
from sglang.srt.mem_cache import allocation_sizing as sizing  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import (  # noqa: E402
    DecodeCudaGraphRunner,
)
from sglang.srt.runtime_context import get_context  # noqa: E402
from sglang.srt.speculative import dflash_info_v2, dflash_worker_v2  # noqa: E402
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2  # noqa: E402
from sglang.srt.speculative.spec_info import (  # noqa: E402
    SpeculativeAlgorithm,
    create_dummy_verify_input,
)

from ddtree_overlay.sglang import requests  # noqa: E402
from ddtree_overlay.sglang.worker import DDTreeWorker  # noqa: E402

BLOCK = 16
NARROW, WIDE = 9, 65  # verify widths (budget + 1) below and above the block
MASK = torch.ones(4, dtype=torch.bool)
Publish = Callable[..., Any]


class Reached(Exception):  # noqa: N818
    """Raised by a stand-in to end a long function at the point under test."""


def stop(*args: Any) -> None:
    raise Reached(*args)


@pytest.fixture
def publish() -> Iterator[Publish]:
    """publish(algorithm, width, page_size=1): real ServerArgs in SGLang's global context."""
    with ExitStack() as stack:

        def install(algorithm: str, width: int, page_size: int = 1) -> Any:
            return stack.enter_context(
                get_context().override_server_args(
                    speculative_algorithm=algorithm,
                    speculative_num_draft_tokens=width,
                    speculative_dflash_block_size=BLOCK,
                    speculative_num_steps=1,
                    speculative_eagle_topk=1,
                    page_size=page_size,
                )
            )

        yield install


# The mask and the widths that CUDA graphs are captured with.


@pytest.mark.parametrize("backend", ["TritonAttnBackend", "FlashInferAttnBackend"])
@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("algorithm", [SpeculativeAlgorithm.DDTREE, SpeculativeAlgorithm.DFLASH])
def test_only_a_trees_verify_is_captured_with_the_mask_buffer(
    backend: str, algorithm: Any, draft: bool
) -> None:
    runner = SimpleNamespace(
        model_runner=SimpleNamespace(
            spec_algorithm=algorithm, is_draft_worker=draft, attn_backend=type(backend, (), {})()
        ),
        buffers=SimpleNamespace(custom_mask=MASK),
        captured_req_width=WIDE,
        _capture_ragged_verify_layout=lambda num_tokens: None,
    )
    spec_info = DecodeCudaGraphRunner.get_spec_info(runner, 2 * WIDE)
    masked = algorithm.is_ddtree() and not draft
    assert spec_info.custom_mask is (MASK if masked else None)
    assert spec_info.draft_token_num == WIDE


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("algorithm", [SpeculativeAlgorithm.DDTREE, SpeculativeAlgorithm.DFLASH])
def test_a_dummy_verify_has_the_runners_width_and_a_trees_mask(algorithm: Any, draft: bool) -> None:
    args = SimpleNamespace(speculative_num_draft_tokens=NARROW)
    spec_info = create_dummy_verify_input(algorithm, args, MASK, WIDE, draft)
    tree = algorithm.is_ddtree()
    assert spec_info.draft_token_num == (WIDE if tree else NARROW)
    assert spec_info.custom_mask is (MASK if tree and not draft else None)


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("algorithm", ["DDTREE", "DFLASH"])
def test_a_draft_worker_of_a_tree_keeps_the_blocks_width(
    publish: Publish, algorithm: str, width: int
) -> None:
    publish(algorithm, width)
    parsed = SpeculativeAlgorithm.from_string(algorithm)
    width_of = parsed.get_num_tokens_per_req_for_target_verify
    assert width_of(width, is_draft_worker=False) == width
    drafts = BLOCK if algorithm == "DDTREE" else width
    assert width_of(width, is_draft_worker=True) == drafts


# KV slots and the row of a request.


@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_a_trees_reserve_is_that_of_the_wider_half_and_fits_the_row(
    publish: Publish, width: int, page_size: int
) -> None:
    args = publish("DDTREE", width, page_size)
    slots = max(width, BLOCK)
    assert args.max_speculative_num_draft_tokens == slots
    assert sizing.get_alloc_len_per_decode() == slots
    assert sizing.get_alloc_reserve_per_decode() == 2 * slots
    extra = sizing.get_req_to_token_extra_context_len(args)
    assert extra >= sizing.get_alloc_reserve_per_decode() + page_size - 1


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_dflashs_slots_and_row_are_those_of_sglang(publish: Publish, width: int) -> None:
    args = publish("DFLASH", width)
    assert args.max_speculative_num_draft_tokens == width
    assert sizing.get_alloc_len_per_decode() == width
    assert sizing.get_req_to_token_extra_context_len(args) == 4 + width


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("algorithm", ["DDTREE", "DFLASH"])
def test_a_decode_reserves_two_rounds_of_the_wider_half(
    publish: Publish, monkeypatch: pytest.MonkeyPatch, algorithm: str, width: int
) -> None:
    publish(algorithm, width)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        dflash_info_v2, "alloc_for_spec_decode", lambda *args, **kwargs: asked.update(kwargs)
    )
    committed, allocated = (100, 7, 20), (101, 7, 1000)
    batch = SimpleNamespace(
        device="cpu",
        batch_size=lambda: len(committed),
        reqs=[
            SimpleNamespace(
                kv_committed_len=length,
                kv=SimpleNamespace(kv_allocated_len=held),
                sampling_params=SimpleNamespace(top_k=1),
            )
            for length, held in zip(committed, allocated, strict=True)
        ],
        tree_cache=None,
        token_to_kv_pool_allocator=SimpleNamespace(page_size=1),
        req_to_token_pool=None,
        req_pool_indices=None,
    )
    dflash_info_v2.DFlashDraftInputV2.create_idle_input("cpu").prepare_for_decode(batch)
    reserve = 2 * (max(width, BLOCK) if algorithm == "DDTREE" else width)
    assert asked["nxt_kv_lens_cpu"].tolist() == [100 + reserve, 7 + reserve, 1000]
    assert asked["num_needed_tokens"] == 2 * reserve - 1


# The worker's round in two halves.


@pytest.mark.parametrize(("worker", "block"), [(DFlashWorkerV2, NARROW), (DDTreeWorker, BLOCK)])
def test_each_worker_drafts_blocks_of_the_size_that_its_flag_gives(
    monkeypatch: pytest.MonkeyPatch, worker: Any, block: int
) -> None:
    monkeypatch.setattr(dflash_worker_v2, "build_draft_tp_worker", MagicMock())
    config = MagicMock(block_size=block)
    monkeypatch.setattr(dflash_worker_v2, "parse_dflash_draft_config", lambda **_: config)
    monkeypatch.setattr(dflash_worker_v2, "replace", MagicMock())
    # The block size is settled just before the mask token is looked up.
    probe = type("Probe", (worker,), {"_resolve_mask_token_id": lambda self, **_: stop(self)})
    args = SimpleNamespace(
        page_size=1,
        speculative_draft_window_size=None,
        speculative_num_draft_tokens=NARROW,
        speculative_dflash_block_size=BLOCK,
    )
    with pytest.raises(Reached) as reached:
        probe(args, 0, MagicMock(), 0, MagicMock())
    assert reached.value.args[0].block_size == block


def test_a_decode_round_is_handed_to_the_workers_own_half() -> None:
    probe = type(
        "Probe",
        (DFlashWorkerV2,),
        {
            "_decode_batch": lambda self, *args: ("round", *args),
            "_validate_phase1_sampling_support": lambda self, batch: None,
        },
    )
    worker: Any = object.__new__(probe)
    worker.device = "cpu"
    draft_input = dflash_info_v2.DFlashDraftInputV2.create_idle_input("cpu")
    batch = SimpleNamespace(
        forward_mode=ForwardMode.DECODE,
        is_extend_in_batch=False,
        spec_info=draft_input,
        seq_lens=SimpleNamespace(record_stream=lambda stream: None),
    )
    result = worker.forward_batch_generation(batch, "publish", "barrier")
    assert result[0] == "round"
    assert result[1] is batch and result[2] is draft_input
    assert result[3:] == ("publish", "barrier")


@pytest.mark.parametrize("worker", [DFlashWorkerV2, DDTreeWorker])
def test_both_workers_draft_with_dflashs_half(worker: Any) -> None:
    assert worker._draft_block is DFlashWorkerV2._draft_block
    probe = type("Probe", (worker,), {"_draft_block": lambda self, *args: stop(*args)})
    batch, draft_input = MagicMock(), object()
    with pytest.raises(Reached) as reached:
        object.__new__(probe)._decode_batch(batch, draft_input, None, None)
    assert reached.value.args == (batch, draft_input)


# Requests and the log line.


@pytest.mark.parametrize("algorithm", ["DDTREE", "DFLASH"])
def test_a_request_is_judged_by_its_algorithms_rules(
    monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setattr(requests, "refuse_request", lambda req: ("DDTREE", req))
    monkeypatch.setattr(
        scheduler_module, "validate_dflash_request", lambda req, overlap: ("DFLASH", req)
    )
    req = MagicMock(finished_reason=None)
    # A request of a session is the short way through the function to the check.
    session = SimpleNamespace(close_on_finish=False, create_req=lambda *_, **__: req)
    scheduler = MagicMock(
        spec_algorithm=SpeculativeAlgorithm.from_string(algorithm),
        session_controller={"session": session},
        enable_session_radix_cache=False,
    )
    received = MagicMock(session_id=None, session_params=SimpleNamespace(id="session"))
    scheduler_module.Scheduler.handle_generate_request(scheduler, received)
    req.set_finish_with_abort.assert_called_once_with((algorithm, req))
    scheduler._add_request_to_queue.assert_called_once_with(req)


@pytest.mark.parametrize("metrics", [False, True])
@pytest.mark.parametrize("algorithm", ["DDTREE", "DFLASH"])
def test_the_decode_line_holds_the_trees_counts_and_metrics_get_them_if_enabled(
    publish: Publish, caplog: pytest.LogCaptureFixture, algorithm: str, metrics: bool
) -> None:
    publish(algorithm, WIDE)
    reporter = MagicMock(
        current_scheduler_metrics_enabled=metrics,
        enable_mfu_metrics=False,
        forward_ct_decode=40,
        decode_log_interval=40,
        last_decode_stats_tic=0.0,
        num_generated_tokens=8,
        spec_num_accept_tokens=6,
        spec_num_forward_ct=2,
        spec_num_cap_tokens=0,
        spec_num_block_accept_tokens=0,
        fwd_occupancy=0.0,
    )
    reporter.scheduler.spec_algorithm = SpeculativeAlgorithm.from_string(algorithm)
    reporter.scheduler.disaggregation_mode = DisaggregationMode.NULL
    reporter.scheduler.server_args.language_only = False
    reporter.scheduler.draft_worker.report_trees.return_value = "tree nodes: 42, "
    batch = MagicMock(reqs=[], seq_lens_cpu=torch.zeros(0))
    with caplog.at_level(logging.INFO, logger=metrics_reporter.logger.name):
        metrics_reporter.SchedulerMetricsReporter.report_decode_stats(reporter, False, batch)
    line = caplog.messages[-1]
    assert "accept len: 3.00, " in line
    report = reporter.scheduler.draft_worker.report_trees
    if algorithm == "DDTREE":
        report.assert_called_once_with(reporter.metrics_collector if metrics else None)
        assert ", tree nodes: 42, " in line
    else:
        report.assert_not_called()
        assert "tree nodes" not in line
