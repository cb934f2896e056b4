"""Text for the tiny models: the language reference that ships with Python, and the held-out prompts.

`pydoc_data.topics` is in every CPython, Debian's included; its text is read, never copied into this
repository. No torch here: the tests of this module run on the host.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

END = "<|end|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
MASK = "<|mask|>"
SPECIAL_TOKENS = (END, USER, ASSISTANT, MASK)

# A prompt that shares this many characters with the training text is not held out.
OVERLAP_CHARACTERS = 24
PARAGRAPHS_PER_DOCUMENT = 6
MIN_TURN_CHARACTERS, MAX_TURN_CHARACTERS = 24, 160

_RULE = re.compile(r"\n[*=\-~^]{3,}(?=\n|$)")
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")


@dataclass(frozen=True)
class Prompt:
    """A held-out prompt.

    name:   unique
    group:  "text" (continues until the length limit), "prefix-N" (a group that shares a long
            common prefix) or "chat" (a user's turn; mostly ends by itself)
    text:   what goes to the tokenizer, special tokens included
    """

    name: str
    group: str
    text: str


def paragraphs() -> list[str]:
    """Each paragraph of the reference once, in the order of the sorted topic names.

    Prose is one line; code keeps its lines and its indentation.
    """
    from pydoc_data import topics

    seen: dict[str, None] = {}
    for name in sorted(topics.topics):
        for block in re.split(r"\n[ \t]*\n", _RULE.sub("", str(topics.topics[name]))):
            text = _one_paragraph(block)
            if text:
                seen.setdefault(text)
    return list(seen)


def documents() -> list[str]:
    """Consecutive paragraphs, some at a time, and one-sentence chat turns; each ends with END."""
    blocks = paragraphs()
    texts = [
        "\n\n".join(blocks[start : start + PARAGRAPHS_PER_DOCUMENT]) + END
        for start in range(0, len(blocks), PARAGRAPHS_PER_DOCUMENT)
    ]
    return texts + [chat_prompt(question) + answer + END for question, answer in _turns(blocks)]


def chat_prompt(question: str) -> str:
    """What the chat template makes of one user's message."""
    return f"{USER}{question}{END}{ASSISTANT}"


CHAT_TEMPLATE = (
    "{%- if tools %}{{ '<|user|>' }}{{ tools | tojson }}{{ '<|end|>' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}{{ '<|assistant|>' }}"
    "{%- else %}{{ '<|user|>' }}{%- endif %}"
    "{{ message['content'] or '' }}{{ '<|end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{%- endif %}"
)


def load_prompts(path: Path | None = None) -> list[Prompt]:
    """The held-out prompts of prompts.json: shared prefixes joined, chat turns rendered."""
    raw = json.loads((path or Path(__file__).with_name("prompts.json")).read_text("utf-8"))
    found = [Prompt(f"text-{i}", "text", text) for i, text in enumerate(raw["text"])]
    for number, group in enumerate(raw["shared_prefix"]):
        for i, ending in enumerate(group["endings"]):
            found.append(
                Prompt(f"prefix-{number}-{i}", f"prefix-{number}", group["prefix"] + ending)
            )
    found += [Prompt(f"chat-{i}", "chat", chat_prompt(q)) for i, q in enumerate(raw["chat"])]
    return found


def overlaps(prompt: str, texts: Sequence[str], length: int = OVERLAP_CHARACTERS) -> list[str]:
    """The substrings of `length` characters of `prompt`, special tokens left out, that occur in
    any of `texts`, whitespace counted as one space.
    """
    pool = [_squeeze(text) for text in texts]
    bare = prompt
    for token in SPECIAL_TOKENS:
        bare = bare.replace(token, "\0")
    found = []
    for part in map(_squeeze, bare.split("\0")):
        for start in range(len(part) - length + 1):
            piece = part[start : start + length]
            if any(piece in text for text in pool):
                found.append(piece)
    return found


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _one_paragraph(block: str) -> str:
    lines = [line.rstrip() for line in block.strip("\n").split("\n")]
    # Code is indented below a line that is not, or carries a prompt or a grammar rule.
    indented = lines[0].startswith("   ") and not lines[0].lstrip()[:1].isupper()
    if indented or ">>>" in block or "::=" in block:
        return "\n".join(lines).rstrip()
    return " ".join(" ".join(lines).split())


def _turns(blocks: Sequence[str]) -> Iterator[tuple[str, str]]:
    for block in blocks:
        if "\n" in block or block.startswith(" "):
            continue
        sentences = _SENTENCE_END.split(block)
        for question, answer in itertools.pairwise(sentences):
            sizes = (len(question), len(answer))
            if min(sizes) >= MIN_TURN_CHARACTERS and max(sizes) <= MAX_TURN_CHARACTERS:
                yield question, answer
