"""The tiny target: its tokenizer, its training and its own continuations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from tests.e2e.models import corpus
from tests.e2e.models.optimise import optimise

VOCABULARY = 1024
SEQUENCE = 512


def train_tokenizer(folder: Path, texts: Sequence[str]) -> Any:
    """Train a byte-level BPE of VOCABULARY tokens on `texts`, save it to `folder`, return it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    bare = list(texts)
    for token in corpus.SPECIAL_TOKENS:
        bare = [text.replace(token, "\n") for text in bare]
    core.train_from_iterator(
        bare,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(corpus.SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=corpus.END,
        pad_token=corpus.END,
        additional_special_tokens=[corpus.USER, corpus.ASSISTANT, corpus.MASK],
        chat_template=corpus.CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def new_target(end_id: int) -> Any:
    """A Qwen3ForCausalLM with random weights from the current seed, fp32."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,  # FlashInfer's kernels have none below, and tests/gpu serves with them
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=end_id,
        dtype="float32",
        attn_implementation="sdpa",
    )
    return Qwen3ForCausalLM(config).to(torch.float32)


def token_stream(tokenizer: Any, documents: Sequence[str], seed: int) -> Any:
    """int64 [tokens]: the documents in a shuffled order, one after the other."""
    order = list(documents)
    random.Random(seed).shuffle(order)  # noqa: S311
    encoded = tokenizer(order, add_special_tokens=False)["input_ids"]
    return torch.tensor([token for document in encoded for token in document])


def train_target(model: Any, stream: Any, *, steps: int, tokens: int, seed: int) -> None:
    """Next-token training on random windows of `stream`, `tokens` of them a step."""
    generator = torch.Generator().manual_seed(seed)

    def loss_of(step: int) -> Any:
        # Attention costs with the square of the window: a few long ones teach the far positions.
        length = SEQUENCE if step % 4 == 0 else SEQUENCE // 2
        starts = torch.randint(0, len(stream) - length, (tokens // length, 1), generator=generator)
        window = stream[starts + torch.arange(length + 1)]
        logits = model(input_ids=window[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), window[:, 1:].reshape(-1)
        )

    optimise(model, steps, loss_of, "target")


def continue_greedily(
    model: Any, prefixes: Any, length: int, temperature: float = 0.0, seed: int = 0
) -> Any:
    """int64 [batch, prefix + length]: `prefixes` (equal lengths) and the model's continuation.

    Greedy, or sampled at `temperature` above 0. It runs on past the end token.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens, step, cache = prefixes, prefixes, None
    with torch.inference_mode():
        for _ in range(length):
            out = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            logits = out.logits[:, -1]
            if temperature > 0:
                chances = torch.softmax(logits / temperature, -1)
                step = torch.multinomial(chances, 1, generator=generator)
            else:
                step = logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, step], 1)
    return tokens.clone()
