"""Configuration against the image's own SGLang: the table of flags, and every profile's argv."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.overlay.serve.test_profiles import NAMES

# The profiles' names are this tree's.
pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("this_tree")]

# Configurations without weights: arguments are resolved before any are read. One interpreter for all
# profiles, because importing SGLang takes seconds. Each argv is parsed by SGLang's own parser as it
# is; then ServerArgs resolves it too, with the device and the backend that a machine without a GPU has.
PROGRAM = r"""
import argparse, contextlib, io, json, pathlib, tempfile

root = pathlib.Path(tempfile.mkdtemp())
common = {
    "hidden_size": 128, "intermediate_size": 128, "head_dim": 16, "vocab_size": 256,
    "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6, "dtype": "bfloat16",
}
models = {
    "dense": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4},
    "moe": {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": [],
    },
    "draft": {
        "model_type": "qwen3", "architectures": ["DFlashDraftModel"], "num_hidden_layers": 1,
        "num_target_layers": 4, "block_size": 16,
        "dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 0},
    },
}
for name, config in models.items():
    (root / name).mkdir()
    (root / name / "config.json").write_text(json.dumps({**common, **config}))

from ddtree_overlay.doctor.model import Gpu, Hardware, Link, Verdict
from ddtree_overlay.serve.derive import derive
from ddtree_overlay.serve.peer_to_peer import apply_verdict
from ddtree_overlay.serve.resolve import resolve
from sglang.srt.arg_groups import ddtree_hook
from sglang.srt.server_args import ServerArgs, prepare_server_args

ddtree_hook._check_ddtree_device = lambda *_: None
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)


def host(count):
    gpus = tuple(
        Gpu(n, f"GPU-{n}", "RTX PRO 6000", f"0000:{n:02x}:00.0", (12, 0), 95 * 2**30, 0)
        for n in range(count)
    )
    links = {(i, j): Link("SYS", False, "ok") for i in range(count) for j in range(i + 1, count)}
    return Hardware("580.95.05", (13, 0), gpus, links)


def parsed(argv):
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return parser.parse_args(argv), ""
    except SystemExit:
        return None, errors.getvalue().strip().splitlines()[-1]


def try_profile(name):
    gpus = 1 if name == "single-gpu" else 8
    model = "moe" if name.startswith("moe") else "dense"
    arguments = ["--profile", name, "--model", str(root / model)]
    if name not in ("cpu", "nospec"):
        arguments += ["--draft-model", str(root / "draft")]
    plan = derive(resolve(arguments, {}), host(gpus), environment={}, build_id="b")
    result = {"refused": [], "said": {flag.name: list(flag.values) for flag in plan.flags}}
    for variant in (plan, apply_verdict(plan, Verdict(False, "as a test"))):
        namespace, refused = parsed(list(variant.argv()))
        result["refused"] += [refused] if refused else []
    if namespace is not None:
        names = {a.option_strings[0]: a for a in parser._actions if a.option_strings}
        result["parsed"] = {
            flag.name: getattr(namespace, names[flag.name].dest) for flag in variant.flags
        }
    if plan.get("algorithm") != "DFLASH":  # which SGLang refuses without a GPU
        argv = list(plan.argv())
        for flag, value in (("--device", "cpu"), ("--attention-backend", "triton")):
            argv[argv.index(flag) + 1] = value
        try:
            args = prepare_server_args([*argv, "--skip-tokenizer-init", "--load-format", "dummy"])
            result["resolved"] = [args.speculative_algorithm, args.tp_size, args.page_size]
        except (Exception, SystemExit) as error:
            result["refused"].append(f"{type(error).__name__}: {error}")
    return result


print("\nFOUND " + json.dumps({name: try_profile(name) for name in NAMES}))
"""


@pytest.fixture(scope="module")
def found(image_python: Callable[[str], Any]) -> dict[str, dict[str, Any]]:
    ran = image_python(f"NAMES = {NAMES!r}\n{PROGRAM}")
    assert ran.returncode == 0, ran.stderr[-3000:]
    (line,) = [text for text in ran.stdout.splitlines() if text.startswith("FOUND ")]
    results: dict[str, dict[str, Any]] = json.loads(line.removeprefix("FOUND "))
    return results


def test_the_committed_table_is_the_parser_of_this_image(run_in: Callable[..., Any]) -> None:
    ran = run_in("python", "-m", "ddtree_overlay.serve.sglang_flags", "--check")
    assert ran.returncode == 0, ran.stdout[-500:] + ran.stderr[-500:]


@pytest.mark.parametrize("name", NAMES)
def test_sglangs_own_parser_takes_the_profiles_argv(
    name: str, found: dict[str, dict[str, Any]]
) -> None:
    assert found[name]["refused"] == []


@pytest.mark.parametrize("name", NAMES)
def test_and_understands_it_as_it_was_meant(name: str, found: dict[str, dict[str, Any]]) -> None:
    said, parsed = found[name]["said"], found[name]["parsed"]
    assert set(said) <= set(parsed)
    for flag, values in said.items():
        assert str(parsed[flag]) == (values[0] if values else "True"), flag


@pytest.mark.parametrize(
    ("name", "resolved"),
    [
        ("dense-8gpu", ["DDTREE", 8, 1]),
        ("moe-8gpu", ["DDTREE", 8, 1]),
        ("multi-gpu", ["DDTREE", 8, 1]),
        ("single-gpu", ["DDTREE", 1, 1]),
        ("no-graph", ["DDTREE", 8, 1]),
        ("nospec", [None, 8, 1]),
        ("cpu", [None, 1, 1]),
    ],
)
def test_and_resolves_it_the_whole_way(
    name: str, resolved: list[Any], found: dict[str, dict[str, Any]]
) -> None:
    assert found[name]["resolved"] == resolved
