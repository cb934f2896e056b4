"""The tokenizer: absent, partial, damaged, without a chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_overlay.doctor.model_checks.tokenizer import check_tokenizer
from tests.overlay.doctor.model_files import LFS, ids, subject, write_model


def _set(**files: bytes | None) -> Callable[[Path], None]:
    """Names with __ for a dot; None removes."""

    def change(folder: Path) -> None:
        for key, content in files.items():
            path = folder / key.replace("__", ".")
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)

    return change


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (_set(), []),
        (_set(tokenizer__json=None), ["MOD010"]),
        (_set(tokenizer__json=b"{"), ["MOD011"]),
        (_set(tokenizer__json=b"{}"), ["MOD011"]),
        (_set(tokenizer__json=b"[]"), ["MOD011"]),
        (_set(tokenizer__json=LFS), ["WGT002"]),
        (_set(tokenizer_config__json=None), ["MOD012"]),
        (_set(tokenizer_config__json=b"{}"), ["MOD012"]),
        (_set(tokenizer_config__json=b"{}", chat_template__jinja=b"x"), []),
        (_set(tokenizer_config__json=b"{"), ["MOD011"]),
        (_set(tokenizer__json=None, vocab__json=b"{}"), ["MOD010"]),
        (_set(tokenizer__json=None, vocab__json=b"{}", merges__txt=b""), []),
        (_set(tokenizer__json=None, vocab__json=b"[", merges__txt=b""), ["MOD011"]),
        (_set(tokenizer__json=None, tokenizer__model=b"\x0a\x0e"), []),
        (_set(tokenizer__json=None, tokenizer__model=b""), ["MOD011"]),
        (_set(tokenizer__json=None, tokenizer__model=LFS), ["WGT002"]),
        (_set(tokenizer__json=None, qwen__tiktoken=b"IQ== 0"), []),
    ],
)
def test_a_tokenizer(tmp_path: Path, change: Callable[[Path], None], codes: list[str]) -> None:
    folder = write_model(tmp_path / "model")
    change(folder)
    assert ids(check_tokenizer(subject(model=str(folder)))) == codes


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").mkdir()
    assert ids(check_tokenizer(subject(model=str(folder)))) == ["MOD002"]


def test_the_models_own_tokenizer_code_is_no_missing_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    own = {"auto_map": {"AutoTokenizer": ["t.T", None]}, "chat_template": "x"}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    assert ids(check_tokenizer(subject(model=str(folder)))) == []


def test_a_drafter_needs_none(tmp_path: Path) -> None:
    target, draft = write_model(tmp_path / "target"), write_model(tmp_path / "draft")
    (draft / "tokenizer.json").unlink()
    assert ids(check_tokenizer(subject(model=str(target), draft_model=str(draft)))) == []
