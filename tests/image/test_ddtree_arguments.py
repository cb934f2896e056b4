"""Parsing DDTREE's arguments in the image's own SGLang, the whole way through ServerArgs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.docker

# One interpreter for all cases: importing SGLang takes seconds. The drafter and the target are
# configurations without weights: arguments are resolved before any are read.
SETUP = r"""
import contextlib, io, json, pathlib, tempfile

root = pathlib.Path(tempfile.mkdtemp())
common = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "vocab_size": 256, "rms_norm_eps": 1e-6, "dtype": "bfloat16",
}
models = {
    "target": {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4},
    "draft": {
        "architectures": ["DFlashDraftModel"], "num_hidden_layers": 1, "num_target_layers": 4,
        "block_size": 8, "dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 0},
    },
}
for name, config in models.items():
    (root / name).mkdir()
    (root / name / "config.json").write_text(json.dumps({**common, **config}))

from sglang.srt.arg_groups import ddtree_hook
from sglang.srt.server_args import prepare_server_args

FIELDS = (
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "speculative_dflash_block_size", "speculative_ddtree_budget",
    "speculative_ddtree_topk", "speculative_ddtree_allow_hybrid_unsafe", "page_size",
)
present = {
    "_check_ddtree_device": ddtree_hook._check_ddtree_device,
    "_require_ddtree_worker": ddtree_hook._require_ddtree_worker,
}

def parse(lifted, *flags):
    # `lifted`: gates that a machine without a GPU, or an image without the worker, cannot pass.
    for name, gate in present.items():
        setattr(ddtree_hook, name, (lambda *_: None) if name in lifted else gate)
    flags = [flag.replace("DRAFT", str(root / "draft")) for flag in flags]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            args = prepare_server_args([
                "--model-path", str(root / "target"), "--device", "cpu", "--skip-tokenizer-init",
                "--load-format", "dummy", "--attention-backend", "triton", *flags,
            ])
    except (ValueError, AssertionError) as exc:
        return {"refused": str(exc)}
    except SystemExit:
        return {"refused": errors.getvalue().strip().splitlines()[-1]}
    return {name: getattr(args, name) for name in FIELDS}
"""

BOTH = ["_check_ddtree_device", "_require_ddtree_worker"]
DDTREE = ["--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", "DRAFT"]
TREE = ["--speculative-ddtree-budget", "16", "--speculative-ddtree-topk", "4"]
BLOCK = ["--speculative-dflash-block-size", "8"]

CASES: dict[str, tuple[list[str], list[str]]] = {
    "whole": (BOTH, [*DDTREE, *TREE, *BLOCK]),
    "bare": (BOTH, DDTREE),
    "lower case": (BOTH, ["--speculative-algorithm", "ddtree", *DDTREE[2:], *TREE]),
    "unsafe": (BOTH, [*DDTREE, "--speculative-ddtree-allow-hybrid-unsafe"]),
    "without": (BOTH, []),
    "device": (["_require_ddtree_worker"], DDTREE),
    "budget 0": (BOTH, [*DDTREE, "--speculative-ddtree-budget", "0"]),
    "budget x": (BOTH, [*DDTREE, "--speculative-ddtree-budget", "x"]),
    "topk": (BOTH, [*DDTREE, "--speculative-ddtree-budget", "3", *TREE[2:]]),
    "no drafter": (BOTH, DDTREE[:2]),
    "page": (BOTH, [*DDTREE, "--page-size", "16"]),
    "block": (BOTH, [*DDTREE, "--speculative-dflash-block-size", "0"]),
    "steps": (BOTH, [*DDTREE, "--speculative-num-steps", "3"]),
    "eagle": (BOTH, [*DDTREE, "--speculative-eagle-topk", "4"]),
    "width": (BOTH, [*DDTREE, *TREE, "--speculative-num-draft-tokens", "16"]),
    "stray": (BOTH, TREE),
    "pp": (BOTH, [*DDTREE, "--pp-size", "2"]),
}


# Hides the worker, so that this holds in an image that has one. Last: it replaces find_spec.
WITHOUT_WORKER = r"""
import importlib.util as util
real = util.find_spec
util.find_spec = lambda name, package=None: (
    None if name == "ddtree_overlay.sglang.worker" else real(name, package))
refused = parse(["_check_ddtree_device"], *worker_flags)["refused"]
util.find_spec = real
"""

ENUM = r"""
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm as Algorithm
algorithm = Algorithm.from_string("ddtree")
enum = {
    "is DDTREE": algorithm is Algorithm.DDTREE,
    "of its family": algorithm.is_ddtree() and algorithm.is_dflash_family(),
    "no other": not (algorithm.is_dflash() or algorithm.is_dspark() or algorithm.is_eagle()),
    "DFLASH is not": not Algorithm.DFLASH.is_ddtree(),
}
Algorithm.register("OURS", supports_overlap=True)(lambda args: None)
try:
    worker = algorithm.create_worker(None).__module__
except ModuleNotFoundError as exc:
    worker = exc.name
enum["worker is ours"] = worker.startswith("ddtree_overlay")
"""

HELP = r"""
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
helps = {flag: a.help for a in parser._actions for flag in a.option_strings if "speculative" in flag}
"""


@pytest.fixture(scope="module")
def found(image_python: Callable[[str], Any]) -> dict[str, Any]:
    """Everything that is asked of the image's SGLang here, by one interpreter."""
    run = (
        f"cases, worker_flags = json.loads({json.dumps([CASES, [*DDTREE, *TREE]])!r})\n"
        "parsed = {name: parse(lifted, *flags) for name, (lifted, flags) in cases.items()}\n"
        f"{HELP}\n{WITHOUT_WORKER}\n{ENUM}\n"
        "print('\\nFOUND ' + json.dumps(\n"
        "    {'parsed': parsed, 'without_worker': refused, 'enum': enum, 'helps': helps}))\n"
    )
    ran = image_python(SETUP + run)
    assert ran.returncode == 0, ran.stderr[-2000:]
    (line,) = [text for text in ran.stdout.splitlines() if text.startswith("FOUND ")]
    document: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return document


@pytest.fixture(scope="module")
def parsed(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = found["parsed"]
    return cases


def test_a_whole_tree_is_accepted_and_sets_the_verify_width(
    parsed: dict[str, dict[str, Any]],
) -> None:
    assert parsed["whole"] == {
        "speculative_algorithm": "DDTREE",
        "speculative_num_steps": 1,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 17,
        "speculative_dflash_block_size": 8,
        "speculative_ddtree_budget": 16,
        "speculative_ddtree_topk": 4,
        "speculative_ddtree_allow_hybrid_unsafe": None,
        "page_size": 1,
    }
    assert parsed["lower case"]["speculative_algorithm"] == "DDTREE"


def test_what_is_not_given_is_resolved_for_ddtree_and_left_alone_without_it(
    parsed: dict[str, dict[str, Any]],
) -> None:
    own = ("speculative_ddtree_budget", "speculative_ddtree_topk", "speculative_dflash_block_size")
    bare = parsed["bare"]
    assert [bare[name] for name in own] == [16, 16, 8]  # the block size is the drafter's
    assert bare["speculative_num_draft_tokens"] == 17
    without = parsed["without"]
    assert {v for k, v in without.items() if k.startswith("speculative_ddtree")} == {None}
    assert without["speculative_dflash_block_size"] is None
    assert parsed["unsafe"]["speculative_ddtree_allow_hybrid_unsafe"] is True


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("device", ["--device cpu"]),
        ("budget 0", ["--speculative-ddtree-budget (got 0)", "positive"]),
        ("budget x", ["--speculative-ddtree-budget", "'x'"]),
        ("topk", ["--speculative-ddtree-topk (got 4)", "(got 3)"]),
        ("no drafter", ["--speculative-draft-model-path"]),
        ("page", ["--page-size", "16"]),
        ("block", ["--speculative-dflash-block-size", "0"]),
        ("steps", ["--speculative-num-steps (got 3)"]),
        ("eagle", ["--speculative-eagle-topk (got 4)"]),
        ("width", ["--speculative-num-draft-tokens (got 16)", "17"]),
        ("stray", ["--speculative-ddtree-budget", "DDTREE"]),
        ("pp", ["--pp-size"]),
    ],
)
def test_a_mistake_is_one_line_with_flag_and_value(
    parsed: dict[str, dict[str, Any]], case: str, says: list[str]
) -> None:
    said = parsed[case]["refused"]
    assert "\n" not in said
    assert all(part in said for part in says), said


def test_without_the_worker_valid_arguments_are_refused_before_weights_load(
    found: dict[str, Any],
) -> None:
    said = found["without_worker"]
    assert "arguments are valid" in said and "ddtree_overlay.sglang.worker" in said


def test_the_enum_knows_ddtree_and_never_hands_it_to_dflash(found: dict[str, Any]) -> None:
    assert len(found["enum"]) == 5
    assert [name for name, holds in found["enum"].items() if not holds] == []


def test_the_help_text_names_algorithm_and_flags(found: dict[str, Any]) -> None:
    helps = found["helps"]
    assert "DDTREE" in helps["--speculative-algorithm"]
    assert "DDTREE" in helps["--speculative-dflash-block-size"]
    for flag in ("budget", "topk", "allow-hybrid-unsafe"):
        assert helps["--speculative-ddtree-" + flag].startswith("DDTREE only"), flag
