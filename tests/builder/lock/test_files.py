"""Committed locks: they follow from the pins, and drift is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import LockDriftError, LockResolveError
from builder.lock import check_lock, files, read_lock, write_lock
from builder.lock.inputs import pinned_versions
from builder.pins import Target, all_targets, load_target
from builder.project import Project, default_project

TARGETS = all_targets(default_project())


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_the_committed_lock_follows_from_the_pins(target: Target) -> None:
    check_lock(default_project(), target, offline=True)
    entries = read_lock(default_project(), target)
    assert set(pinned_versions(target)) <= {entry.name for entry in entries}
    assert all(len(entry.files) == len(entry.hashes) for entry in entries)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_lock_names_no_host(target: Target) -> None:
    text = target.lock_file(default_project()).read_text()
    assert "://" not in text and "index" not in text.split("\naiohappyeyeballs")[0]


@pytest.mark.network
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_the_committed_lock_resolves_to_itself(target: Target) -> None:
    check_lock(default_project(), target, offline=False)


def test_other_pins_are_drift(scratch: Project) -> None:
    edit(scratch.images / "cu128.toml", "cuda-python>=12,<13", "cuda-python>=12.8,<13")
    with pytest.raises(LockDriftError, match="cu128: made from other pins") as caught:
        check_lock(scratch, load_target(scratch, "cu128"), offline=True)
    assert caught.value.remedy == "run `python3 build.py lock --cuda cu128`"


def test_a_stand_in_is_named_in_its_command(scratch: Project) -> None:
    edit(scratch.images / "cu128.toml", "torchcodec<0.10", "torchcodec<0.9")
    with pytest.raises(LockDriftError, match="cu128-stand-in") as caught:
        check_lock(scratch, load_target(scratch, "cu128", stand_in=True), offline=True)
    assert "--cuda cu128 --stand-in" in caught.value.remedy
    check_lock(scratch, load_target(scratch, "cu128"), offline=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [("==", "==1!"), ("# via", "# due to"), ("\n# body", "\n\n# body"), ("sha256:9", "sha256:8")],
)
def test_an_edit_by_hand_is_drift(scratch: Project, old: str, new: str) -> None:
    target = load_target(scratch, "cu130")
    head, mark, body = target.lock_file(scratch).read_text().partition("# body: ")
    first, newline, rest = body.partition("\n")
    text = head + mark + first + newline + rest.replace(old, new, 1)
    if old.startswith("\n"):
        text = (head + mark + body).replace("# body: sha256", "# body: sha265", 1)
    target.lock_file(scratch).write_text(text)
    with pytest.raises(LockDriftError, match="edited by hand"):
        check_lock(scratch, target, offline=True)


def test_a_missing_lock(scratch: Project) -> None:
    target = load_target(scratch, "cu130")
    target.lock_file(scratch).unlink()
    with pytest.raises(LockDriftError, match=r"images/cu130/requirements\.lock: no such lock"):
        check_lock(scratch, target, offline=True)


def resolves_to(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(files, "resolve", lambda _project, _target: text)


def test_online_drift_names_the_first_entries(
    scratch: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target(scratch, "cu130")
    text = target.lock_file(scratch).read_text()
    resolves_to(monkeypatch, text)
    check_lock(scratch, target, offline=False)
    entry = next(e for e in read_lock(scratch, target) if e.name == "aiohttp")
    resolves_to(
        monkeypatch,
        text.replace(f"aiohttp=={entry.version}", "aiohttp==99").replace(
            "\naiosignal==", "\naiosignal-new=="
        ),
    )
    with pytest.raises(LockDriftError) as caught:
        check_lock(scratch, target, offline=False)
    assert f"aiohttp is {entry.version}, the pins resolve to 99" in caught.value.what
    assert "aiosignal is gone; aiosignal-new is new" in caught.value.what
    check_lock(scratch, target, offline=True)


def test_a_lock_is_written_when_it_changes(
    scratch: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target(scratch, "cu130")
    path = target.lock_file(scratch)
    resolves_to(monkeypatch, "new text\n")
    assert write_lock(scratch, target)
    assert path.read_text() == "new text\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert not write_lock(scratch, target)
    assert [p for p in path.parent.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt, LockResolveError("no", "way"), OSError])
def test_an_interrupt_leaves_the_old_lock(
    scratch: Project, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    target = load_target(scratch, "cu130")
    path = target.lock_file(scratch)
    before, names = path.read_text(), sorted(path.parent.iterdir())

    def fail(*_args: object) -> None:
        raise failure

    resolves_to(monkeypatch, "new text\n")
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(BaseException):  # noqa: B017 - any of the three
        write_lock(scratch, target)
    assert path.read_text() == before
    assert sorted(path.parent.iterdir()) == names
