"""The argument rules of DDTREE, run from the patch itself: the file is new, so the patch has it all.

The gates of our wheel, which that file calls, stand in here by what they fill in. The whole parse, in
the real SGLang, is tests/image/test_ddtree_arguments.py and tests/overlay/test_gates.py.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from builder.patches.series import load_series
from builder.project import default_project

HOOK = "sglang/srt/arg_groups/ddtree_hook.py"
WORKER = "ddtree_overlay.sglang.worker"
RESOLVED = {
    "speculative_dflash_block_size": 16,
    "speculative_ddtree_budget": 16,
    "speculative_ddtree_topk": 16,
}


def arguments(**values: Any) -> SimpleNamespace:
    """ServerArgs as `_handle_ddtree` finds them on a GPU, with `values` as the user's flags."""
    found: dict[str, Any] = {
        "speculative_algorithm": "DDTREE",
        "speculative_draft_model_path": "drafter",
        "speculative_dflash_block_size": None,
        "speculative_draft_window_size": None,
        "speculative_num_steps": None,
        "speculative_eagle_topk": None,
        "speculative_num_draft_tokens": None,
        "speculative_ddtree_budget": None,
        "speculative_ddtree_topk": None,
        "speculative_ddtree_allow_hybrid_unsafe": None,
        "enable_dp_attention": False,
        "pp_size": 1,
        "page_size": None,
        "resolved_page_size": 1,
        "attention_backend": "flashinfer",
        "device": "cuda",
        "max_running_requests": None,
        "enable_mixed_chunk": True,
    }
    return SimpleNamespace(**{**found, **values})


def _view(args: SimpleNamespace) -> SimpleNamespace:
    resolved = args.page_size if args.page_size is not None else args.resolved_page_size
    return SimpleNamespace(**{**vars(args), "page_size": resolved})


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    overrides = types.ModuleType("sglang.srt.arg_groups.overrides")
    overrides.__dict__["resolved_view"] = _view
    overrides.__dict__["attention_backends_of"] = lambda view: (view.attention_backend,) * 2
    speculative = types.ModuleType("sglang.srt.arg_groups.speculative_hook")

    def resolve(args: SimpleNamespace) -> None:
        args.speculative_draft_attention_backend = "resolved"

    speculative.__dict__["_resolve_dflash_draft_attention_backend"] = resolve
    gates = types.ModuleType("ddtree_overlay.sglang.gates")
    gates.__dict__["resolve_and_check"] = _resolve
    gates.__dict__["check_before_resolution"] = lambda args: None
    for module in (overrides, speculative, gates):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("sglang", "sglang.srt", "sglang.srt.arg_groups"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    (change,) = [
        change
        for patch in load_series(default_project().patches)
        for change in patch.changes
        if change.path == HOOK and change.created
    ]
    source = b"".join(line for hunk in change.hunks for line in hunk.target).decode()
    module = types.ModuleType("ddtree_hook")
    exec(compile(source, HOOK, "exec"), module.__dict__)  # noqa: S102 - our own patch
    monkeypatch.setattr(module.__dict__["importlib"].util, "find_spec", lambda name: object())
    yield module


def _resolve(args: SimpleNamespace) -> None:
    for name, value in RESOLVED.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.speculative_ddtree_topk = min(args.speculative_ddtree_topk, args.speculative_ddtree_budget)


def accepted(hook: types.ModuleType, **values: Any) -> SimpleNamespace:
    args = arguments(**values)
    hook.__dict__["_handle_ddtree"](args)
    return args


def refused(hook: types.ModuleType, **values: Any) -> str:
    args = arguments(**values)
    before = dict(vars(args))
    with pytest.raises(ValueError) as caught:
        hook.__dict__["_handle_ddtree"](args)
    said = str(caught.value)
    assert "\n" not in said
    changed = {name for name, value in vars(args).items() if before[name] != value}
    assert changed <= set(RESOLVED), "a refused start changes nothing but what was open"
    return said


def test_nothing_but_a_drafter_is_needed(hook: types.ModuleType) -> None:
    args = accepted(hook)
    assert args.speculative_num_draft_tokens == RESOLVED["speculative_ddtree_budget"] + 1


def test_a_width_that_somebody_has_cached_is_forgotten(hook: types.ModuleType) -> None:
    args = accepted(hook, max_speculative_num_draft_tokens=None)
    assert not hasattr(args, "max_speculative_num_draft_tokens")


def test_what_follows_from_the_budget_is_set(hook: types.ModuleType) -> None:
    args = accepted(
        hook,
        speculative_ddtree_budget=32,
        speculative_ddtree_topk=32,
        speculative_dflash_block_size=8,
    )
    assert args.speculative_num_draft_tokens == 33
    assert (args.speculative_num_steps, args.speculative_eagle_topk) == (1, 1)
    assert args.speculative_dflash_block_size == 8, "the drafter's block, not the verify width"
    assert args.max_running_requests == 48
    assert args.enable_mixed_chunk is False
    assert args.speculative_draft_attention_backend == "resolved"


def test_what_was_resolved_is_accepted_again(hook: types.ModuleType) -> None:
    args = accepted(hook, speculative_ddtree_budget=7, max_running_requests=3)
    again = accepted(hook, **vars(args))
    assert again == args and again.max_running_requests == 3


@pytest.mark.parametrize("field", ["speculative_ddtree_budget", "speculative_ddtree_topk"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, "8"])
def test_budget_and_topk_are_positive_integers(
    hook: types.ModuleType, field: str, value: object
) -> None:
    said = refused(hook, **{field: value})
    assert "--" + field.replace("_", "-") in said and repr(value) in said


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"speculative_ddtree_budget": 4, "speculative_ddtree_topk": 5},
            ["--speculative-ddtree-topk (got 5)", "--speculative-ddtree-budget (got 4)"],
        ),
        ({"speculative_draft_model_path": None}, ["--speculative-draft-model-path"]),
        ({"speculative_draft_model_path": ""}, ["--speculative-draft-model-path"]),
        ({"speculative_dflash_block_size": 0}, ["--speculative-dflash-block-size", "0"]),
        ({"speculative_dflash_block_size": 1}, ["--speculative-dflash-block-size", "1"]),
        ({"speculative_num_steps": 3}, ["--speculative-num-steps (got 3)"]),
        ({"speculative_eagle_topk": 4}, ["--speculative-eagle-topk (got 4)", "ddtree-topk"]),
        (
            {"speculative_num_draft_tokens": 16},
            ["--speculative-num-draft-tokens (got 16)", "--speculative-ddtree-budget"],
        ),
        (
            {"speculative_num_draft_tokens": 16, "speculative_ddtree_budget": 16},
            ["--speculative-num-draft-tokens (got 16)", "17"],
        ),
        ({"enable_dp_attention": True}, ["--enable-dp-attention"]),
        ({"pp_size": 2}, ["--pp-size", "2"]),
        ({"page_size": 16}, ["--page-size 1", "16"]),
        ({"resolved_page_size": 64}, ["page size 1", "64", "flashinfer"]),
        ({"device": "cpu"}, ["--device cpu"]),
    ],
)
def test_a_contradiction_names_flag_value_and_remedy(
    hook: types.ModuleType, values: dict[str, object], says: list[str]
) -> None:
    said = refused(hook, **values)
    assert all(part in said for part in says), said
    assert any(verb in said for verb in ("remove", "Remove", "Lower", "pass ", "choose", "use "))


@pytest.mark.parametrize("algorithm", ["DFLASH", "EAGLE", None])
def test_flags_of_ddtree_beside_another_algorithm_are_refused(
    hook: types.ModuleType, algorithm: str | None
) -> None:
    check = hook.__dict__["refuse_ddtree_flags_without_ddtree"]
    for field, value in (
        ("speculative_ddtree_budget", 8),
        ("speculative_ddtree_topk", 0),
        ("speculative_ddtree_allow_hybrid_unsafe", True),
    ):
        with pytest.raises(ValueError) as caught:
            check(arguments(speculative_algorithm=algorithm, **{field: value}))
        said = str(caught.value)
        assert "--" + field.replace("_", "-") in said and str(algorithm) in said
        check(arguments(**{field: value}))
    check(arguments(speculative_algorithm=algorithm, speculative_ddtree_allow_hybrid_unsafe=False))


def test_without_the_worker_it_is_refused_whatever_the_arguments(
    hook: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought = []

    def find_spec(name: str) -> None:
        sought.append(name)

    monkeypatch.setattr(hook.__dict__["importlib"].util, "find_spec", find_spec)
    with pytest.raises(ValueError, match="is not installed"):
        hook.__dict__["_handle_ddtree"](arguments())
    assert sought == [WORKER]
