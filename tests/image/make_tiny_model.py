"""Make a tiny, real Qwen3 model on the spot; runs inside the image.

Weights are random from a fixed seed, saved as safetensors; the tokenizer is a byte-level one, so
that text goes in and comes out over HTTP. Prints the greedy continuation that Transformers itself
gives for a prompt: the server's answer is compared with it, token for token.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PROMPT = "The draft tree"
NEW_TOKENS = 16


def make_tokenizer(folder: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {c: i for i, c in enumerate(alphabet, 2)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    return len(vocabulary)


def make_model(folder: Path, vocabulary: int) -> list[int]:
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(20260829)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=1,
            # Wide enough that greedy choices are not ties.
            initializer_range=0.3,
        )
    ).to(torch.float32)
    with torch.no_grad():
        model.lm_head.weight[:2] = 0.0  # logit 0 is never the greatest: no special token comes out
    model.eval()
    model.save_pretrained(folder)
    ids = AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            step = model(ids).logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, step], dim=1)
    return [int(i) for i in ids[0, -NEW_TOKENS:]]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = make_tokenizer(folder)
    tokens = make_model(folder, vocabulary)
    from transformers import AutoTokenizer

    text = AutoTokenizer.from_pretrained(folder).decode(tokens)
    print(json.dumps({"prompt": PROMPT, "tokens": tokens, "text": text}))


if __name__ == "__main__":
    main()
