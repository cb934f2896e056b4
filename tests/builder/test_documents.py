"""The generated tables of the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import documents
from builder.documents import SECTIONS, Section, check_documents, rendered
from builder.errors import RenderDriftError
from builder.project import Project, default_project


def test_committed_documents_are_current() -> None:
    check_documents(default_project())


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with one document of one section, which a module of its own prints."""
    source = tmp_path / "ddtree_overlay" / "src"
    source.mkdir(parents=True)
    (source / "printed.py").write_text("print('| a |')\nprint('| b\\\\1 |')\n")
    (tmp_path / "page.md").write_text("before\n<!-- t: x -->\nold\n<!-- /t -->\nafter\n")
    monkeypatch.setattr(documents, "SECTIONS", (Section("t", "page.md", "printed"),))
    return Project(tmp_path)


def test_a_section_is_replaced_and_nothing_else(small: Project) -> None:
    page = small.root / "page.md"
    (text,) = rendered(small).values()
    assert text == "before\n<!-- t: x -->\n| a |\n| b\\1 |\n<!-- /t -->\nafter\n"
    with pytest.raises(RenderDriftError, match=r"page\.md"):
        check_documents(small)
    page.write_text(text)
    check_documents(small)


@pytest.mark.parametrize("text", ["nothing\n", "<!-- t: x -->\n<!-- /t -->\n" * 2])
def test_markers_must_be_there_once(small: Project, text: str) -> None:
    (small.root / "page.md").write_text(text)
    with pytest.raises(RenderDriftError, match="markers"):
        rendered(small)


def test_a_module_that_fails_is_one_error(small: Project) -> None:
    (small.overlay / "src" / "printed.py").write_text("raise SystemExit('no such table')\n")
    with pytest.raises(RenderDriftError, match="no such table"):
        rendered(small)


def test_a_section_may_be_a_function_of_ours(
    small: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = Section("t", "page.md", lambda project: f"in {project.root.name}\n\n")
    monkeypatch.setattr(documents, "SECTIONS", (section,))
    (text,) = rendered(small).values()
    assert text == f"before\n<!-- t: x -->\nin {small.root.name}\n<!-- /t -->\nafter\n"


def test_sections_are_named_once() -> None:
    assert len({section.name for section in SECTIONS}) == len(SECTIONS)
