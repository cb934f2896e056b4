"""The committed Dockerfiles: what the templates render to, and nothing else."""

from __future__ import annotations

import re

import pytest

from builder.errors import PinConflictError, RenderDriftError
from builder.files import write_atomically
from builder.pins import all_targets, load_target
from builder.project import Project, default_project
from builder.render import check_render, render
from tests.builder.conftest import edit


def test_committed_dockerfiles_are_current() -> None:
    project = default_project()
    for target in all_targets(project):
        check_render(project, target)


def test_a_hand_edit_is_drift_and_the_first_difference_is_named(scratch: Project) -> None:
    target = load_target(scratch, "cu130")
    edit(target.dockerfile(scratch), "EXPOSE 30000", "EXPOSE 30001")
    with pytest.raises(RenderDriftError) as caught:
        check_render(scratch, target)
    assert "EXPOSE 3000" in caught.value.what
    assert "render" in caught.value.remedy


def test_a_changed_pin_is_drift_until_rendered(scratch: Project) -> None:
    edit(scratch.images / "cu130.toml", 'sass = ["sm_90", "sm_120"]', 'sass = ["sm_120"]')
    target = load_target(scratch, "cu130")
    with pytest.raises(RenderDriftError):
        check_render(scratch, target)
    write_atomically(target.dockerfile(scratch), render(scratch, target).encode())
    check_render(scratch, target)


def test_an_undefined_name_in_a_template_is_an_error(scratch: Project) -> None:
    edit(scratch.templates / "Dockerfile.j2", "EXPOSE 30000", "EXPOSE {{ port }}")
    with pytest.raises(PinConflictError) as caught:
        render(scratch, load_target(scratch, "cu130"))
    assert "port" in caught.value.what


@pytest.mark.parametrize("target", all_targets(default_project()), ids=lambda t: t.name)
def test_rules_of_every_dockerfile(target: object) -> None:
    """Decisions 2, 7 and 8 of the design, checked on the text."""
    text = render(default_project(), target)  # type: ignore[arg-type]
    code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert "# syntax=" not in text  # its frontend image cannot be pulled everywhere
    assert "sed -i" not in code
    assert "latest" not in code
    assert "case $CUDA" not in code
    for line in re.findall(r"^FROM (\S+)", code, re.MULTILINE):
        known = re.findall(r" AS (\S+)$", code, re.MULTILINE)
        assert line == "scratch" or line in known or "@sha256:" in line
    assert "--require-hashes --no-deps" in code
    assert re.search(r'^ENTRYPOINT \["/usr/bin/tini"', code, re.MULTILINE)
    assert re.search(r"^USER \d+:0$", code, re.MULTILINE)


def test_an_overlay_edit_cannot_reach_the_dependencies_layer() -> None:
    """The expensive layer mounts nothing that changes with the overlay, SGLang or the audit."""
    text = render(default_project(), load_target(default_project(), "cu130"))
    start = text.index("FROM system AS dependencies")
    layer = text[start : text.index("FROM dependencies AS overlay")]
    for mounted in ("source=overlay", "source=sglang", "source=inside", "target.json"):
        assert mounted not in layer
