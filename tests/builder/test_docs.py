"""The documents: their relative links lead somewhere."""

from __future__ import annotations

import re

import pytest

from builder.project import default_project

ROOT = default_project().root
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", "deploy/*.md")
    for page in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_exist(page: str) -> None:
    path = ROOT / page
    links = LINK.findall(path.read_text(encoding="utf-8"))
    missing = [
        link
        for link in links
        if not link.startswith(("http://", "https://")) and not (path.parent / link).exists()
    ]
    assert not missing


def test_the_readme_has_links() -> None:
    """Else the test above would say nothing."""
    assert len(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))) > 5
