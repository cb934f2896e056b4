"""The patches leave every other algorithm as it was: the same command lines, resolved by the
image's SGLang and by the wheel that upstream published, give the same ServerArgs or refusal."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import docker
import pytest

from builder.pins import Target
from builder.project import default_project
from builder.sources.index import fetch_sglang_wheel

pytestmark = pytest.mark.docker

# Models without weights; arguments are resolved before any are read. The device is named "cuda"
# where an algorithm asks for it: nothing is allocated while arguments are resolved.
SCRIPT = r"""
import contextlib, dataclasses, io, json, pathlib, sys, tempfile
import torch
root = pathlib.Path(tempfile.mkdtemp())
common = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "vocab_size": 256, "rms_norm_eps": 1e-6, "dtype": "bfloat16", "num_hidden_layers": 4,
}
drafter = {
    "architectures": ["DFlashDraftModel"], "num_hidden_layers": 1, "num_target_layers": 4,
    "block_size": 8, "dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 0},
}
for name, more in {
    "target": {"architectures": ["Qwen3ForCausalLM"]},
    "draft": drafter,
    "eagle": {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"},
}.items():
    (root / name).mkdir()
    (root / name / "config.json").write_text(json.dumps({**common, **more}))

from sglang.srt.arg_groups import speculative_hook
from sglang.srt.server_args import ServerArgs, prepare_server_args
import sglang

# The one gate that a machine without a GPU cannot pass; it reads nothing else.
gate = speculative_hook._handle_dflash
def without_device_gate(server_args):
    device, server_args.device = server_args.device, "cuda"
    try:
        gate(server_args)
    finally:
        server_args.device = device
speculative_hook._handle_dflash = without_device_gate

def resolve(flags):
    flags = [flag.replace("ROOT", str(root)) for flag in flags]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = prepare_server_args([
                "--model-path", str(root / "target"), "--device", "cpu", "--random-seed", "1",
                "--skip-tokenizer-init", "--load-format", "dummy", "--nccl-port", "29999",
                "--attention-backend", "triton", *flags,
            ])
    except (ValueError, AssertionError, NotImplementedError) as exc:
        return {"refused": f"{type(exc).__name__}: {exc}".replace(str(root), "ROOT")}
    except SystemExit:
        return {"refused": said.getvalue().strip().splitlines()[-1].replace(str(root), "ROOT")}
    fields = {f.name: repr(getattr(args, f.name)) for f in dataclasses.fields(ServerArgs)}
    fields["max_speculative_num_draft_tokens"] = repr(args.max_speculative_num_draft_tokens)
    return {k: v.replace(str(root), "ROOT") for k, v in fields.items()}

cases = json.loads(sys.argv[1])
print("FOUND " + json.dumps({"file": sglang.__file__, "cases": [resolve(c) for c in cases]}))
"""

DFLASH = ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "ROOT/draft"]
EAGLE3 = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "ROOT/eagle"]
EAGLE = ["--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", "ROOT/eagle"]
NGRAM = ["--speculative-algorithm", "NGRAM"]
CASES: dict[str, list[str]] = {
    "none": [],
    "none, big page": ["--page-size", "16"],
    "dflash": DFLASH,
    "dflash, lower case": ["--speculative-algorithm", "dflash", *DFLASH[2:]],
    "dflash, block": [*DFLASH, "--speculative-dflash-block-size", "4"],
    "dflash, width": [*DFLASH, "--speculative-num-draft-tokens", "6"],
    "dflash, both": [
        *(*DFLASH, "--speculative-num-draft-tokens", "6"),
        *("--speculative-dflash-block-size", "4"),
    ],
    "dflash, window": [*DFLASH, "--speculative-draft-window-size", "64"],
    "dflash, small window": [*DFLASH, "--speculative-draft-window-size", "2"],
    "dflash, no drafter": DFLASH[:2],
    "dflash, pp": [*DFLASH, "--pp-size", "2"],
    "dflash, steps": [*DFLASH, "--speculative-num-steps", "3"],
    "eagle": [
        *(*EAGLE, "--speculative-num-steps", "3", "--speculative-eagle-topk", "4"),
        *("--speculative-num-draft-tokens", "16"),
    ],
    "eagle, defaults": EAGLE,
    "eagle3": [
        *(*EAGLE3, "--speculative-num-steps", "3", "--speculative-eagle-topk", "4"),
        *("--speculative-num-draft-tokens", "16"),
    ],
    "eagle3, chain": [
        *(*EAGLE3, "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "9"),
    ],
    "ngram": NGRAM,
    "ngram, window": [*NGRAM, "--speculative-draft-window-size", "64"],
    "unknown": ["--speculative-algorithm", "NO_SUCH"],
}
# What the patches add; it is unset wherever DDTREE is not asked for.
OURS = {
    "speculative_ddtree_budget",
    "speculative_ddtree_topk",
    "speculative_ddtree_allow_hybrid_unsafe",
}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory, target: Target) -> Path:
    """The packages of the published wheel, as pinned by hash."""
    folder = tmp_path_factory.mktemp("upstream")
    with zipfile.ZipFile(fetch_sglang_wheel(default_project(), target.shared)) as wheel:
        wheel.extractall(folder, [n for n in wheel.namelist() if n.startswith("sglang/")])
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)
    return folder


def resolved(
    engine: docker.DockerClient,
    image: str,
    bytecode: dict[str, Any],
    volumes: dict[str, Any],
    path: str,
) -> dict[str, Any]:
    output = engine.containers.run(
        image,
        ["python", "-c", SCRIPT, json.dumps(list(CASES.values()))],
        remove=True,
        network_mode="none",
        environment={"PYTHONPATH": path, **bytecode["environment"]},
        volumes={**bytecode["volumes"], **volumes},
    )
    lines = bytes(output).decode().splitlines()
    (line,) = [text for text in lines if text.startswith("FOUND ")]
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return found


def test_other_algorithms_resolve_as_upstream(
    engine: docker.DockerClient, image: str, upstream: Path, bytecode: dict[str, Any]
) -> None:
    ours = resolved(engine, image, bytecode, {}, "")
    volume = {str(upstream): {"bind": "/upstream", "mode": "ro"}}
    theirs = resolved(engine, image, bytecode, volume, "/upstream")
    assert theirs["file"].startswith("/upstream/")
    assert not ours["file"].startswith("/upstream/")
    for name, own, other in zip(CASES, ours["cases"], theirs["cases"], strict=True):
        added = {key: own.pop(key) for key in OURS & own.keys()}
        assert set(added.values()) <= {"None"}, name
        assert own == other, name
    accepted = [name for name, c in zip(CASES, ours["cases"], strict=True) if "refused" not in c]
    assert {"none", "dflash", "eagle", "eagle3", "ngram"} <= set(accepted)
    assert "dflash, both" not in accepted and "unknown" not in accepted
