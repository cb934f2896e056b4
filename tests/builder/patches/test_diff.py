from __future__ import annotations

import pytest

from builder.errors import PatchSeriesError
from builder.patches.diff import canonical_diff, is_safe_path, parse_diff
from tests.builder.patches.conftest import AFTER_SECOND, PACKAGES, make_diff

DIFF = make_diff(PACKAGES, AFTER_SECOND)
EDIT = make_diff(PACKAGES, {**PACKAGES, "tools/tag.py": b"tag = 2\n"})


def test_every_kind_of_change_is_understood() -> None:
    changes = {change.path: change for change in parse_diff("p", DIFF)}
    assert changes["sglang/gone.py"].deleted
    assert changes["sglang/new/run.sh"].created and changes["sglang/new/run.sh"].executable
    assert changes["sglang/new/hook.py"].created and not changes["sglang/new/hook.py"].executable
    assert changes["sglang/windows.txt"].hunks[0].source[1] == b"two\r\n"
    assert changes["sglang/no_newline.txt"].hunks[0].source[-1] == b"last"
    assert changes["sglang/no_newline.txt"].hunks[0].target[-1] == b"very last"
    assert changes["sglang/latin1.txt"].hunks[0].target[-1] == b"mat\xe9\n"
    assert not changes["sglang/a.py"].created and len(changes["sglang/a.py"].hunks) == 2


def test_an_empty_file_can_be_created_and_deleted() -> None:
    for kind in ("new", "deleted"):
        diff = f"diff --git a/sglang/e b/sglang/e\n{kind} file mode 100644\n"
        (change,) = parse_diff("p", diff)
        assert (change.created, change.deleted) == (kind == "new", kind == "deleted")


@pytest.mark.parametrize(
    "path",
    [
        "../evil.py",
        "sglang/../../evil.py",
        "/etc/passwd",
        "sglang//x.py",
        "sglang/./x.py",
        ".git/hooks/pre-commit",
        "sglang/.git/config",
        "sglang-0.5.17.dist-info/METADATA",
        "sglang-0.5.17.data/scripts/x",
        "sglang\\..\\x.py",
        "C:/x.py",
    ],
)
def test_a_path_that_leaves_the_packages_is_refused(path: str) -> None:
    assert not is_safe_path(path)
    with pytest.raises(PatchSeriesError) as caught:
        parse_diff("0007-x.patch", EDIT.replace("tools/tag.py", path))
    assert "0007-x.patch" in caught.value.what


@pytest.mark.parametrize(
    "diff",
    [
        "diff --git a/tools/a b/tools/b\nsimilarity index 100%\nrename from tools/a\n"
        "rename to tools/b\n",
        "diff --git a/tools/a b/tools/a\nold mode 100644\nnew mode 100755\n",
        "diff --git a/tools/a b/tools/a\nnew file mode 120000\n--- /dev/null\n+++ b/tools/a\n"
        "@@ -0,0 +1,1 @@\n+elsewhere\n\\ No newline at end of file\n",
        "diff --git a/tools/a b/tools/a\nBinary files a/tools/a and b/tools/a differ\n",
        "diff --git a/tools/a b/tools/a\n",
        "some words\n" + EDIT,
        EDIT + "trailing words\n",
        EDIT.replace("@@ -1,1", "@@ -1,2"),
        EDIT.replace("+1,1 @@", "+1,3 @@"),
        EDIT.replace("diff --git a/tools/tag.py b/tools/tag.py\n", ""),
        EDIT.replace("+++ b/tools/tag.py", "+++ b/tools/other.py"),
        EDIT + EDIT,
    ],
    ids=[
        "rename",
        "mode",
        "link",
        "binary",
        "nothing",
        "words before",
        "words after",
        "source count",
        "target count",
        "no git line",
        "two names",
        "one file twice",
    ],
)
def test_anything_but_text_edits_is_refused(diff: str) -> None:
    with pytest.raises(PatchSeriesError) as caught:
        parse_diff("0007-x.patch", diff)
    assert caught.value.what.startswith("0007-x.patch: ")
    assert "\n" not in caught.value.what


def test_canonical_form_drops_what_depends_on_git_and_keeps_the_body() -> None:
    noisy = EDIT.replace("--- a/", "index 0123..4567 100644\n--- a/", 1)
    noisy = noisy.replace("@@ -1,1 +1,1 @@", "@@ -1 +1 @@ def heading():")
    assert noisy != EDIT
    assert canonical_diff(noisy) == EDIT
    assert canonical_diff(DIFF) == DIFF
    tricky = EDIT.replace("-tag = 1", "-index 1").replace("+tag = 2", "+@@ -1 +1 @@ x")
    assert canonical_diff(tricky) == tricky
