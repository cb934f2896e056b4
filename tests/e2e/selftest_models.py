"""Make the self-test's tiny models again: `selftest_models.py OUT [--from STAGE]`.

    python tests/e2e/selftest_models.py ddtree_overlay/src/ddtree_overlay/selftest/models

Runs in about five minutes wherever the image's Python stack is installed, and writes OUT/target,
OUT/draft and OUT/models.json: the sha256 of every file, and what Transformers and the reference
tree make of the self-test's texts in float32. Another CPU or number of threads gives other bits
(the committed target was trained with --threads 2, its drafter with 1), so that the committed
files, not this script, are what models.json vouches for. Smaller than the end-to-end models, with
weights stored in bfloat16, because they ship in the image.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

# The image sets PYTHONSAFEPATH: a script's own folder is not on the path there.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.e2e.models import corpus

STAGES = ("target", "draft", "record")
SEED = 20261130
VOCABULARY = 512
LAYERS = 3
TAPS = (0, 1)
BLOCK = 16
BUDGET = 16
# Logits of float32 on different CPUs differ by far less: each must choose the same tokens.
MIN_GAP = 0.01
TARGET_STEPS, DRAFT_STEPS = 900, 400
MAX_POSITIONS = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--from", dest="first", choices=STAGES, default="target")
    given = parser.parse_args()
    # Read when the libraries load.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    import torch  # type: ignore[import-not-found, unused-ignore]

    torch.set_num_threads(given.threads)
    torch.use_deterministic_algorithms(True)
    stages = {"target": train_target, "draft": train_draft, "record": record}
    for name in STAGES[STAGES.index(given.first) :]:
        began = time.monotonic()
        stages[name](given.out)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


def train_target(out: Path) -> None:
    """Write OUT/target."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    from tests.e2e.models import target

    torch.manual_seed(SEED)
    # Read when it is called. An argument would change a file whose hash names the cached models of
    # the end-to-end tests.
    target.VOCABULARY = VOCABULARY
    texts = corpus.documents()
    tokenizer = target.train_tokenizer(out / "target", texts)
    stream = target.token_stream(tokenizer, texts, SEED)
    model = new_target(tokenizer.convert_tokens_to_ids(corpus.END))
    target.train_target(model, stream, steps=TARGET_STEPS, tokens=2048, seed=SEED + 1)
    _round(model)
    save_target(model, out / "target")


def train_draft(out: Path) -> None:
    """Write OUT/draft, for the OUT/target that is there."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.e2e.models import distil, drafter, target

    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    model = AutoModelForCausalLM.from_pretrained(out / "target", dtype=torch.float32).eval()
    stream = target.token_stream(tokenizer, corpus.documents(), SEED)
    plan = [(8, 256, 0.0), (24, 384, 0.0), (64, 256, 0.0), (64, 128, 0.6), (256, 128, 0.0)]
    sets = distil.continuations(model, stream, plan, seed=SEED + 2)
    config = model.config
    draft = drafter.Drafter(
        drafter.Shape(
            hidden=config.hidden_size,
            layers=2,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            intermediate=config.intermediate_size,
            block_size=BLOCK,
            taps=TAPS,
            target_layers=LAYERS,
            vocabulary=VOCABULARY,
            mask_id=tokenizer.convert_tokens_to_ids(corpus.MASK),
            end_id=config.eos_token_id,
            max_positions=MAX_POSITIONS,
        )
    )
    distil.train_drafter(
        draft, model, sets, steps=DRAFT_STEPS, tokens_per_step=1536, anchors=12, seed=SEED + 3
    )
    _round(draft)
    drafter.save_drafter(draft, out / "draft")
    _store_in_bfloat16(out / "draft")


def new_target(end_id: int) -> Any:
    """A Qwen3ForCausalLM with random weights from the current seed, fp32.

    Two heads of 64 for keys as for queries: FlashInfer's kernels take no smaller ones, and two
    tensor-parallel ranks get one each.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=end_id,
        dtype="float32",
        attn_implementation="sdpa",
    )
    import torch

    return Qwen3ForCausalLM(config).to(torch.float32)


def save_target(model: Any, folder: Path) -> None:
    """Write the target's configuration and weights beside its tokenizer."""
    from tests.e2e.models.drafter import readable

    model.save_pretrained(folder)
    _store_in_bfloat16(folder)
    readable(folder)


def _round(model: Any) -> None:
    """Give every weight the value that bfloat16 keeps of it, so that storing loses nothing."""
    import torch

    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)


def _store_in_bfloat16(folder: Path) -> None:
    import torch
    from safetensors.torch import (  # type: ignore[import-not-found, unused-ignore]
        load_file,
        save_file,
    )

    weights = folder / "model.safetensors"
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(weights).items()}
    save_file(tensors, str(weights), metadata={"format": "pt"})
    weights.chmod(0o644)
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8")) | {"dtype": "bfloat16"}
    path.write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def record(out: Path) -> None:
    """Write OUT/models.json from what OUT/target and OUT/draft are and do."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ddtree_overlay.selftest.workload import TEXTS, TOKENS
    from tests.e2e.models.acceptance import total
    from tests.e2e.models.drafter import load_drafter
    from tests.e2e.models.evaluate import greedy_run, measure

    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    model = AutoModelForCausalLM.from_pretrained(out / "target", dtype=torch.float32).eval()
    draft = load_drafter(out / "draft")
    runs, measured = [], []
    for name, text in TEXTS.items():
        run = greedy_run(model, tokenizer, corpus.Prompt(name, "text", text), TOKENS)
        ids = tokenizer(text, add_special_tokens=False).input_ids + run.output
        runs.append(run)
        measured.append(measure(draft, model, ids, run, [BUDGET]))
        chain, tree = measured[-1]
        print(
            f"{name}: {len(run.output)} tokens, closest {min(run.gaps):.3f}, accept "
            f"{chain.length:.2f} {tree.length:.2f}: {tokenizer.decode(run.output)!r}"
        )
    chain, tree = (total(column) for column in zip(*measured, strict=True))
    smallest = min(min(run.gaps) for run in runs)
    files = sorted(path for part in ("target", "draft") for path in (out / part).iterdir())
    document = {
        "schema": 1,
        "made_by": "tests/e2e/selftest_models.py",
        "budget": BUDGET,
        "accept_length": round(tree.length, 4),
        "chain_accept_length": round(chain.length, 4),
        "rounds_off_spine": round(tree.off_spine / tree.rounds, 4),
        "min_gap": round(smallest, 4),
        "answers": {run.name: run.output for run in runs},
        "files": {
            path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        },
    }
    lines = json.dumps(document, indent=1)
    # A list of tokens on one line.
    lines = re.sub(r"\[[\d,\s]+\]", lambda found: re.sub(r"\s+", " ", found[0]), lines)
    (out / "models.json").write_text(lines + "\n", "utf-8")
    print({key: value for key, value in document.items() if key not in ("answers", "files")})
    if smallest < MIN_GAP:
        sys.exit(f"two tokens are only {smallest:.4f} apart: choose another text")


if __name__ == "__main__":
    main()
