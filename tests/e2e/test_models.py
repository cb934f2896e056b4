"""The tiny models' text, prompts and configs: what needs no training and no torch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import jinja2
import pytest

from tests.e2e.models import configs, corpus
from tests.e2e.models.acceptance import Acceptance, draft_tree, follow, total


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return corpus.documents()


@pytest.fixture(scope="module")
def prompts() -> list[corpus.Prompt]:
    return corpus.load_prompts()


def test_no_prompt_shares_a_long_substring_with_the_training_text(
    texts: list[str], prompts: list[corpus.Prompt]
) -> None:
    shared = {p.name: found for p in prompts if (found := corpus.overlaps(p.text, texts))}
    assert shared == {}


@pytest.mark.parametrize("shift", [0, 7])
def test_overlap_sees_text_taken_from_the_training_text(texts: list[str], shift: int) -> None:
    taken = " ".join(texts[0].split())[shift : shift + corpus.OVERLAP_CHARACTERS]
    broken = taken.replace(" ", "\n  ")
    assert corpus.overlaps(f"{corpus.USER}Zq {broken} qZ{corpus.END}", texts) == [taken]


def test_overlap_is_not_one_character_too_strict(texts: list[str]) -> None:
    taken = " ".join(texts[0].split())[: corpus.OVERLAP_CHARACTERS - 1]
    assert corpus.overlaps(f"Zq{taken}qZ", texts) == []


def test_prompts_are_many_and_of_every_kind(prompts: list[corpus.Prompt]) -> None:
    assert len({p.name for p in prompts}) == len({p.text for p in prompts}) == len(prompts) >= 40
    groups = Counter(p.group for p in prompts)
    assert groups["chat"] >= 8
    assert groups["text"] >= 25
    lengths = sorted(len(p.text) for p in prompts if p.group == "text")
    assert lengths[0] < 15
    assert lengths[-1] > 750


def test_shared_prefixes_are_long_and_their_endings_differ(prompts: list[corpus.Prompt]) -> None:
    names = {p.group for p in prompts if p.group.startswith("prefix-")}
    assert len(names) >= 2
    for name in names:
        members = [p.text for p in prompts if p.group == name]
        common = min(_common(members[0], other) for other in members[1:])
        assert len(members) >= 4
        assert common > 300


def test_documents_end_with_the_end_token_and_carry_no_mask(texts: list[str]) -> None:
    assert len(texts) > 500
    assert all(text.endswith(corpus.END) for text in texts)
    assert not any(corpus.MASK in text for text in texts)
    turns = [text for text in texts if text.startswith(corpus.USER)]
    assert len(turns) > 200
    assert all(text.count(corpus.END) == 2 for text in turns)


def test_the_text_is_the_same_each_time() -> None:
    assert corpus.documents() == corpus.documents()


def test_the_chat_template_renders_what_the_model_was_trained_on() -> None:
    render = jinja2.Environment(autoescape=False).from_string(corpus.CHAT_TEMPLATE).render  # noqa: S701
    user = {"role": "user", "content": "Why?"}
    assert render(messages=[user], add_generation_prompt=True) == corpus.chat_prompt("Why?")
    answered = render(messages=[user, {"role": "assistant", "content": "So."}])
    assert answered == corpus.chat_prompt("Why?") + "So." + corpus.END


def test_follow_takes_siblings_and_stops_at_a_miss() -> None:
    # Two depths of two tokens: 10 or 11, then 20 or 21; the tree holds all six nodes.
    tree = draft_tree([[-0.1, -2.0], [-0.2, -1.5]], [[10, 11], [20, 21]], 6)
    assert follow(tree, [10, 20, 30]) == (2, False)
    assert follow(tree, [11, 20]) == (2, True)
    assert follow(tree, [10, 21]) == (2, True)
    assert follow(tree, [10, 22]) == (1, False)
    assert follow(tree, [12]) == (0, False)
    assert follow(tree, [11]) == (1, True)


def test_follow_on_a_chain_never_leaves_the_spine() -> None:
    tree = draft_tree([[-0.1, -2.0], [-0.2, -1.5]], [[10, 11], [20, 21]], 0)
    assert tree.count == 2
    assert follow(tree, [10, 20]) == (2, False)
    assert follow(tree, [10, 21]) == (1, False)


def test_accept_length_is_tokens_per_round() -> None:
    assert Acceptance(budget=4, rounds=10, tokens=35, off_spine=3).length == 3.5


def test_counts_of_one_budget_add_up_and_of_two_do_not() -> None:
    parts = [Acceptance(4, 1, 2, 0), Acceptance(4, 10, 20, 5)]
    assert total(parts) == Acceptance(4, 11, 22, 5)
    with pytest.raises(ValueError, match=r"\[4, 8\]"):
        total([*parts, Acceptance(8, 1, 1, 0)])


def test_configs_are_written_one_folder_each(tmp_path: Path) -> None:
    folders = configs.make_all(tmp_path)
    assert set(folders) == set(configs.MAKERS)
    for name, folder in folders.items():
        read = json.loads((folder / "config.json").read_text("utf-8"))
        assert read == configs.MAKERS[name]()


def test_a_drafters_config_takes_changes_field_by_field() -> None:
    target = configs.dense()
    plain = configs.drafter(target)
    assert plain["dflash_config"] == {"target_layer_ids": [0, 2], "mask_token_id": 3}
    changed = configs.drafter(target, block_size=8, dflash_config={"mask_token_id": 4096})
    assert changed["block_size"] == 8
    assert changed["dflash_config"] == {"target_layer_ids": [0, 2], "mask_token_id": 4096}
    without = configs.drafter(target, block_size=None, dflash_config={"target_layer_ids": None})
    assert "block_size" not in without
    assert without["dflash_config"] == {"mask_token_id": 3}


def _common(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
