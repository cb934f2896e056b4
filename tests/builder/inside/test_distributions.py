from __future__ import annotations

import pytest

from builder.inside.distributions import normalise, read_distributions
from builder.inside.filesystem import LayoutError, scan
from tests.builder.inside.tree import SITE, Tree


@pytest.mark.parametrize("name", ["Foo.Bar_baz", "foo-bar-baz", "FOO--bar.baz"])
def test_names_are_compared_as_pep_503_says(name: str) -> None:
    assert normalise(name) == "foo-bar-baz"


def test_headers_go_on_behind_a_licence_with_a_line_of_blanks(tree: Tree) -> None:
    """SGLang's metadata has one; what stands below the headers is prose."""
    tree.install("Some.Name", "1.2", requires=["a>=1", "b; extra == 'c'"], extra={"s.py": "x"})
    found = {d.name: d for d in read_distributions(tree.root, tree.site)}["some-name"]
    assert found.requires == ("a>=1", "b; extra == 'c'")
    assert found.version == "1.2"
    rows = {row.path: row for row in found.files}
    assert rows[f"{SITE}/s.py"].size == "1"
    assert rows[f"{SITE}/s.py"].digest.startswith("sha256=")


def test_a_script_outside_site_packages_is_found_where_it_lies(tree: Tree) -> None:
    tree.install("tool", "1")
    record = tree.site / "tool-1.dist-info/RECORD"
    record.write_text("../../../bin/tool,sha256=x,1\n")
    found = {d.name: d for d in read_distributions(tree.root, tree.site)}["tool"]
    assert [row.path for row in found.files] == ["opt/ddtree/venv/bin/tool"]


def test_metadata_without_a_name_is_refused(tree: Tree) -> None:
    tree.install("tool", "1")
    (tree.site / "tool-1.dist-info/METADATA").unlink()
    with pytest.raises(ValueError, match="tool-1"):
        read_distributions(tree.root, tree.site)


@pytest.mark.parametrize("content", [b"a\xff,,\n", b'"' + b"x" * (1 << 18) + b'",,\n'])
def test_a_record_that_cannot_be_read_is_named(tree: Tree, content: bytes) -> None:
    tree.install("tool", "1")
    (tree.site / "tool-1.dist-info/RECORD").write_bytes(content)
    with pytest.raises(ValueError, match=r"tool-1\.dist-info/RECORD"):
        read_distributions(tree.root, tree.site)
    with pytest.raises(LayoutError, match=r"tool-1\.dist-info/RECORD"):
        scan(tree.root)


def test_a_name_with_a_line_separator_is_one_row(tree: Tree) -> None:
    tree.install("tool", "1", extra={"a\u2028b.py": "x"})
    found = {d.name: d for d in read_distributions(tree.root, tree.site)}["tool"]
    assert f"{SITE}/a\u2028b.py" in {row.path for row in found.files}
