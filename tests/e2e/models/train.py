"""Train the tiny target and its DFlash drafter: `train.py OUT [--seed N] [--threads N]`.

Runs inside the image with nothing but its Python stack, in minutes on two cores. The same machine,
stack and seed give the same bytes; another CPU may not, so nothing may depend on the weights'
hashes. Writes OUT/target and OUT/draft.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

# The image sets PYTHONSAFEPATH: a script's own folder is not on the path there.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.e2e.models import corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--target-steps", type=int, default=300)
    parser.add_argument("--draft-steps", type=int, default=250)
    given = parser.parse_args()
    # Read when the libraries load.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    build(given)


def build(given: argparse.Namespace) -> None:
    import torch  # type: ignore[import-not-found, unused-ignore]

    from tests.e2e.models import distil, drafter, target

    torch.set_num_threads(given.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(given.seed)
    began = time.monotonic()

    def lap(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s: {what}", flush=True)

    folder = given.out / "target"
    texts = corpus.documents()
    tokenizer = target.train_tokenizer(folder, texts)
    end_id = tokenizer.convert_tokens_to_ids(corpus.END)
    stream = target.token_stream(tokenizer, texts, given.seed)
    lap(f"{len(stream)} tokens of text")
    model = target.new_target(end_id)
    target.train_target(model, stream, steps=given.target_steps, tokens=2048, seed=given.seed + 1)
    model.save_pretrained(folder)
    drafter.readable(folder)
    lap("target trained")

    plan = [(8, 256, 0.0), (24, 384, 0.0), (64, 256, 0.0), (64, 128, 0.6), (256, 192, 0.0)]
    sets = distil.continuations(model, stream, plan, seed=given.seed + 2)
    lap("continuations made")
    config = model.config
    shape = drafter.Shape(
        hidden=config.hidden_size,
        layers=2,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate_size,
        block_size=given.block_size,
        taps=(1, 3),
        target_layers=config.num_hidden_layers,
        vocabulary=config.vocab_size,
        mask_id=tokenizer.convert_tokens_to_ids(corpus.MASK),
        end_id=end_id,
        max_positions=config.max_position_embeddings,
    )
    draft = drafter.Drafter(shape)
    distil.train_drafter(
        draft,
        model,
        sets,
        steps=given.draft_steps,
        tokens_per_step=1536,
        anchors=12,
        seed=given.seed + 3,
    )
    drafter.save_drafter(draft, given.out / "draft")
    lap("drafter trained")


if __name__ == "__main__":
    main()
