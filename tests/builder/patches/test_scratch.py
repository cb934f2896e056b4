from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builder.errors import PatchDriftError, PatchSeriesError, ToolMissingError, TreeHashError
from builder.patches import scratch
from builder.patches.scratch import Exported, apply_to_scratch, export_from_scratch
from tests.builder.patches.conftest import AFTER_SECOND, NEW_EXECUTABLE, PACKAGES, Lab, make_wheel

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

# Everything that changes what `git diff` or `git commit` do for a user.
HOSTILE = """\
[user]
    name = Someone
    email = someone@example.invalid
[commit]
    gpgSign = true
    cleanup = strip
    template = /nonexistent
[core]
    hooksPath = {hooks}
    autocrlf = true
    quotePath = true
    attributesFile = {attributes}
    excludesFile = {excludes}
    abbrev = 4
[diff]
    noprefix = true
    mnemonicPrefix = true
    algorithm = patience
    context = 9
    interHunkContext = 40
    renames = copies
    external = false
    colorMoved = zebra
    orderFile = {order}
    suppressBlankEmpty = true
    wsErrorHighlight = all
[color]
    ui = always
[log]
    showSignature = true
[i18n]
    logOutputEncoding = latin1
"""


def git(folder: Path, *arguments: str, check: bool = True) -> str:
    """git as a person would run it in the scratch tree."""
    env = {
        **os.environ,
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.invalid",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.invalid",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=env, check=check, capture_output=True
    )
    return done.stdout.decode("utf-8", "replace")


@pytest.fixture
def dir_(lab: Lab, tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    apply_to_scratch(lab.project, lab.shared, lab.wheel, folder)
    return folder


def export(lab: Lab, folder: Path) -> Exported:
    return export_from_scratch(lab.project, lab.shared, lab.wheel, folder)


def patch_files(lab: Lab) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in lab.project.patches.iterdir()}


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", message)


def test_the_work_tree_is_the_patched_tree_with_one_commit_a_patch(lab: Lab, dir_: Path) -> None:
    files = {
        path.relative_to(dir_).as_posix(): path
        for path in dir_.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(dir_).parts
    }
    assert {name: path.read_bytes() for name, path in files.items()} == AFTER_SECOND
    assert {n for n, p in files.items() if p.stat().st_mode & 0o111} == NEW_EXECUTABLE
    log = git(dir_, "log", "--format=%s|%at|%ct", f"{scratch.BASE_TAG}..HEAD").splitlines()
    assert [line.split("|")[0] for line in log] == ["Second change: new and gone", "First change"]
    epoch = str(lab.shared.source_date_epoch)
    assert {part for line in log for part in line.split("|")[1:]} == {epoch}
    body = git(dir_, "log", "-1", "--format=%b")
    assert body.strip() == (
        "Reason: the first line\n  and a second one, na\u00efve\nRemoval: when upstream has it"
    )
    assert git(dir_, "status", "--porcelain") == ""


def test_an_export_without_a_change_writes_nothing(lab: Lab, dir_: Path) -> None:
    before = patch_files(lab)
    done = export(lab, dir_)
    assert (done.changed, done.removed) == ((), ())
    assert done.patched_tree == lab.shared.sglang.patched_tree
    assert patch_files(lab) == before


def test_a_lost_series_comes_back_byte_for_byte(lab: Lab, dir_: Path) -> None:
    before = patch_files(lab)
    for path in lab.project.patches.glob("*.patch"):
        path.unlink()
    export(lab, dir_)
    assert patch_files(lab) == before


def test_the_users_git_does_not_matter(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "commit-msg", "post-commit", "post-checkout"):
        (hooks / name).write_text("#!/bin/sh\necho spoiled > sglang/a.py\nexit 1\n")
        (hooks / name).chmod(0o755)
    (tmp_path / "attributes").write_text("*.py diff=python binary\n*.txt text eol=crlf\n")
    (tmp_path / "excludes").write_text("new\n*.txt\n")
    (tmp_path / "order").write_text("tools/*\nsglang/new/*\n")
    config = tmp_path / "gitconfig"
    names = ("hooks", "attributes", "excludes", "order")
    config.write_text(HOSTILE.format(**{name: tmp_path / name for name in names}))
    plain = tmp_path / "plain"
    apply_to_scratch(lab.project, lab.shared, lab.wheel, plain)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    monkeypatch.setenv("GIT_DIFF_OPTS", "--unified=9")
    folder = tmp_path / "scratch"
    apply_to_scratch(lab.project, lab.shared, lab.wheel, folder)
    heads = {(where / ".git/refs/heads/main").read_text() for where in (plain, folder)}
    assert len(heads) == 1, "identity, dates and content are fixed"
    before = patch_files(lab)
    # The same settings once more where only options on the command line outrank them.
    with (folder / ".git/config").open("a") as local:
        local.write(config.read_text())
    assert export(lab, folder).changed == ()
    assert patch_files(lab) == before


def test_a_new_commit_becomes_a_patch_and_a_dropped_one_goes(lab: Lab, dir_: Path) -> None:
    (dir_ / "tools/tag.py").write_bytes(b"tag = 3\n")
    commit(dir_, "Third\n\nReason: because\nRemoval: never")
    done = export(lab, dir_)
    assert done.changed == ("0003-third.patch", "series")
    text = (lab.project.patches / "0003-third.patch").read_text()
    assert text.startswith("Subject: Third\nReason: because\nRemoval: never\n\ndiff --git a/tools")
    assert "\nindex " not in text
    series = (lab.project.patches / "series").read_text()
    assert series.startswith("# in order\n\n0001-") and series.endswith("0003-third.patch\n")
    git(dir_, "reset", "--quiet", "--hard", "HEAD~2")
    done = export(lab, dir_)
    assert done.removed == ("0002-second-change-new-and-gone.patch", "0003-third.patch")
    assert sorted(patch_files(lab)) == ["0001-first-change.patch", "series"]


def test_what_is_exported_applies_again(lab: Lab, dir_: Path, tmp_path: Path) -> None:
    (dir_ / "sglang/run.sh").unlink()
    (dir_ / "sglang/b.sh").write_bytes(b"x\r\ny")
    (dir_ / "sglang/b.sh").chmod(0o755)
    (dir_ / "sglang/empty2.txt").write_bytes(b"")
    commit(dir_, "Third\n\nReason: because\n  of this\nRemoval: never")
    done = export(lab, dir_)
    lab.pin_patched()
    assert lab.shared.sglang.patched_tree == done.patched_tree
    again = tmp_path / "again"
    apply_to_scratch(lab.project, lab.shared, lab.wheel, again)
    assert git(again, "rev-parse", "HEAD^{tree}") == git(dir_, "rev-parse", "HEAD^{tree}")


def refused(lab: Lab, folder: Path, says: str) -> PatchSeriesError:
    before = patch_files(lab)
    with pytest.raises(PatchSeriesError) as caught:
        export(lab, folder)
    assert says in caught.value.what
    assert "\n" not in caught.value.what + caught.value.remedy
    assert patch_files(lab) == before, "nothing is written"
    return caught.value


@pytest.mark.parametrize("name", ["sglang/a.py", "sglang/untracked.py"])
def test_uncommitted_changes_are_refused(lab: Lab, dir_: Path, name: str) -> None:
    (dir_ / name).write_text("edited")
    refused(lab, dir_, f"uncommitted changes: {name}")


def test_what_python_drops_is_not_a_change(lab: Lab, dir_: Path) -> None:
    (dir_ / "sglang/__pycache__").mkdir()
    (dir_ / "sglang/__pycache__/a.pyc").write_bytes(b"")
    assert export(lab, dir_).changed == ()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("Third", "Reason: missing"),
        ("Third\n\nReason: because", "Removal: missing"),
        ("Third\n\nReason:\nRemoval: never", "Reason: missing"),
        ("Third\nstill\n\nReason: a\nRemoval: b", "'still'"),
        ("Third\n\nReason: a\nRemoval: b\nSigned-off-by: A <a@b>", "Signed-off-by"),
        ("Third\n\nReason: a\nRemoval: b\n\nSigned-off-by: A <a@b>", "an empty line"),
    ],
)
def test_a_commit_that_does_not_say_why_is_refused(
    lab: Lab, dir_: Path, message: str, says: str
) -> None:
    (dir_ / "tools/tag.py").write_bytes(b"tag = 3\n")
    commit(dir_, message)
    error = refused(lab, dir_, says)
    assert "commit " in error.what and "Third" in error.what
    assert "--amend" in error.remedy


def test_a_merge_is_refused(lab: Lab, dir_: Path) -> None:
    git(dir_, "checkout", "--quiet", "-b", "side", scratch.BASE_TAG)
    (dir_ / "tools/side.py").write_bytes(b"side\n")
    commit(dir_, "Side\n\nReason: a\nRemoval: b")
    git(dir_, "checkout", "--quiet", "main")
    git(dir_, "merge", "--quiet", "--no-edit", "side")
    refused(lab, dir_, "not one line")


def test_modes_links_and_binary_files_are_refused(lab: Lab, dir_: Path) -> None:
    def attempt(message: str) -> None:
        commit(dir_, f"{message}\n\nReason: a\nRemoval: b")
        refused(lab, dir_, "is not supported" if message != "moved" else "leaves the package tree")
        git(dir_, "reset", "--quiet", "--hard", "HEAD~1")

    (dir_ / "sglang/a.py").chmod(0o755)
    attempt("mode")
    (dir_ / "sglang/link.py").symlink_to("a.py")
    attempt("link")
    (dir_ / "sglang/a.py").write_bytes(b"\0\1\2")
    attempt("binary")
    (dir_ / "sglang-9.dist-info").mkdir()
    (dir_ / "sglang-9.dist-info/METADATA").write_text("x\n")
    attempt("moved")


def test_a_tree_of_another_base_is_refused(lab: Lab, dir_: Path) -> None:
    git(dir_, "tag", "--force", scratch.BASE_TAG, "HEAD~1")
    before = patch_files(lab)
    with pytest.raises((PatchSeriesError, PatchDriftError)):
        export(lab, dir_)
    make_wheel(lab.wheel, {**PACKAGES, "tools/tag.py": b"tag = 9\n"})
    git(dir_, "tag", "--force", scratch.BASE_TAG, "HEAD~2")
    with pytest.raises(TreeHashError, match="base_tree"):
        export(lab, dir_)
    assert patch_files(lab) == before


def test_only_a_scratch_tree_is_exported(lab: Lab, tmp_path: Path) -> None:
    refused(lab, tmp_path, "not a scratch tree")
    subprocess.run(["git", "init", "--quiet", tmp_path / "other"], check=True)
    refused(lab, tmp_path / "other", "git rev-parse")


def test_a_folder_in_use_is_refused_and_left_alone(lab: Lab, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "mine").write_text("mine")
    file = tmp_path / "file"
    file.write_text("mine")
    for target in (used, file):
        with pytest.raises(PatchSeriesError, match="not an empty folder"):
            apply_to_scratch(lab.project, lab.shared, lab.wheel, target)
    assert [path.name for path in used.iterdir()] == ["mine"]
    assert file.read_text() == "mine"


def test_drift_makes_nothing_unless_partial(lab: Lab, tmp_path: Path) -> None:
    make_wheel(lab.wheel, {**PACKAGES, "sglang/windows.txt": b"other\r\n"})
    lab.pin_base()
    folder = tmp_path / "scratch"
    with pytest.raises(PatchDriftError, match=r"0001-first-change\.patch"):
        apply_to_scratch(lab.project, lab.shared, lab.wheel, folder)
    assert not folder.exists()
    left = apply_to_scratch(lab.project, lab.shared, lab.wheel, folder, partial=True)
    assert left == ["0001-first-change.patch"]
    log = git(folder, "log", "--format=%s", f"{scratch.BASE_TAG}..HEAD").splitlines()
    assert log == ["Second change: new and gone"]


@pytest.mark.parametrize("existed", [True, False])
def test_an_interrupted_apply_leaves_the_folder_empty(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scratch, "_update", interrupted)
    folder = tmp_path / "scratch"
    if existed:
        folder.mkdir()
    with pytest.raises(KeyboardInterrupt):
        apply_to_scratch(lab.project, lab.shared, lab.wheel, folder)
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_line(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PatchSeriesError, match="Not a directory"):
        apply_to_scratch(lab.project, lab.shared, lab.wheel, tmp_path / "file" / "scratch")


def test_without_git_the_error_says_what_to_install(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissingError) as caught:
        apply_to_scratch(lab.project, lab.shared, lab.wheel, tmp_path / "scratch")
    assert "git" in caught.value.what and "install" in caught.value.remedy
    assert not (tmp_path / "scratch").exists()
