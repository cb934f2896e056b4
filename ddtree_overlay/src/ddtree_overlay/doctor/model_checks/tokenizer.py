"""The target's tokenizer. A drafter has none of its own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ddtree_overlay.doctor.model import Check, Finding, Subject
from ddtree_overlay.doctor.model_checks import codes
from ddtree_overlay.doctor.model_checks.source import (
    Unusable,
    configured,
    is_lfs_pointer,
    read_object,
)

_OTHER_FILES = ("tokenizer.model", "spiece.model", "vocab.txt", "tekken.json", "tiktoken.model")
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


def check_tokenizer(subject: Subject) -> Iterable[Finding]:
    """Files that a tokenizer is made of, whether they parse, and a chat template."""
    found = configured(subject).get("model")
    if found is None:
        return
    if subject.tokenizer == "":
        return
    folder = found[0].folder
    if subject.tokenizer is not None:
        folder = Path(subject.tokenizer)
        if not folder.is_dir():
            return  # a Hub name, or a file: SGLang's own to say
    try:
        own = _optional(folder / "tokenizer_config.json")
        yield from _check_vocabulary(folder, own or {})
        yield from _check_template(folder, own or {})
    except Unusable as unusable:
        yield _as_tokenizer(unusable.finding)


def _check_vocabulary(folder: Path, own: dict[str, object]) -> Iterable[Finding]:
    fast = _optional(folder / "tokenizer.json")
    if fast is not None:
        if not isinstance(fast.get("model"), dict):
            yield codes.BAD_TOKENIZER.found(f"{folder / 'tokenizer.json'} has no model in it")
        return
    if (folder / "vocab.json").is_file():
        _optional(folder / "vocab.json")
        beside = any((folder / name).is_file() for name in ("merges.txt", *_OTHER_FILES))
        if not beside:
            yield codes.NO_TOKENIZER.found(f"{folder} has vocab.json without merges.txt")
        return
    others = [folder / name for name in _OTHER_FILES]
    others += [*folder.glob("*.tiktoken")]
    present = [path for path in others if path.is_file()]
    if not present and not own.get("auto_map"):
        yield codes.NO_TOKENIZER.found(
            f"{folder} has none of tokenizer.json, vocab.json, {', '.join(_OTHER_FILES)}"
        )
    for path in present:
        yield from _check_binary(path)


def _check_binary(path: Path) -> Iterable[Finding]:
    try:
        with path.open("rb") as file:
            beginning = file.read(64)
    except OSError as error:
        yield codes.UNREADABLE.found(f"{path} cannot be read ({error.strerror})")
        return
    if is_lfs_pointer(beginning):
        yield codes.LFS_POINTER.found(f"{path} is a git-lfs pointer")
    elif not beginning:
        yield codes.BAD_TOKENIZER.found(f"{path} is empty")


def _check_template(folder: Path, own: dict[str, object]) -> Iterable[Finding]:
    if own.get("chat_template") or any((folder / name).is_file() for name in _TEMPLATES):
        return
    if (folder / "chat_templates").is_dir():
        return
    yield codes.NO_TEMPLATE.found(
        f"{folder} has neither chat_template.jinja nor one in tokenizer_config.json"
    )


def _optional(path: Path) -> dict[str, object] | None:
    try:
        return read_object(path, "model")
    except FileNotFoundError:
        return None


def _as_tokenizer(finding: Finding) -> Finding:
    if finding.code != codes.BAD_CONFIG.id:
        return finding
    return codes.BAD_TOKENIZER.found(finding.what)


CHECKS = (
    Check(
        "tokenizer",
        "The model's tokenizer is there and parses",
        (
            codes.NO_TOKENIZER,
            codes.BAD_TOKENIZER,
            codes.NO_TEMPLATE,
            codes.LFS_POINTER,
            codes.UNREADABLE,
        ),
        check_tokenizer,
        needs="model",
    ),
)
