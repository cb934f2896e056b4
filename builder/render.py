"""`render`: the committed Dockerfiles, from the pins, and the documents' generated parts."""

from __future__ import annotations

import argparse
import difflib

import jinja2

from builder import console
from builder.documents import check_documents, rendered
from builder.errors import PinConflictError, RenderDriftError
from builder.files import write_atomically
from builder.pins import Target
from builder.project import Project
from builder.target_options import add_target_options, chosen_targets

HOME = "/opt/ddtree"
VENV = f"{HOME}/venv"

# How the pinned tools' wheels are named on every index.
_WHEEL_NAMES = {
    "uv": "uv-{version}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "pyelftools": "pyelftools-{version}-py3-none-any.whl",
}


def site_packages(target: Target) -> str:
    """Where distributions lie inside the image."""
    return f"{VENV}/lib/python{target.shared.python.version}/site-packages"


def cuda_home(target: Target) -> str:
    """The toolkit that JIT uses inside the image; empty for a stand-in without one."""
    if target.toolchain.source == "wheels":
        return f"{site_packages(target)}/{target.toolchain.home}"
    return target.toolchain.home


def tool_wheel(target: Target, tool: str) -> str:
    """File name of a pinned tool's wheel."""
    version = getattr(target.shared.tools, tool).version
    return _WHEEL_NAMES[tool].format(version=version)


def render(project: Project, target: Target) -> str:
    """The Dockerfile of one target. Raises PinConflictError on an undefined name in a template."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(project.templates),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a Dockerfile is not HTML
    )
    try:
        return env.get_template("Dockerfile.j2").render(
            target=target,
            home=HOME,
            venv=VENV,
            site=site_packages(target),
            cuda_home=cuda_home(target),
            archives=[s for s in target.sources if s.kind == "archive"],
            wheel=lambda tool: tool_wheel(target, tool),
        )
    except jinja2.TemplateError as exc:
        raise PinConflictError(
            f"templates: {exc}", "make the template and the pins use the same names"
        ) from None


def drift(project: Project, target: Target) -> list[str]:
    """Unified diff between the committed Dockerfile and a fresh render; empty when equal."""
    path = target.dockerfile(project)
    committed = path.read_text() if path.exists() else ""
    name = str(path.relative_to(project.root))
    return list(
        difflib.unified_diff(
            committed.splitlines(),
            render(project, target).splitlines(),
            f"{name} (committed)",
            f"{name} (rendered)",
            lineterm="",
        )
    )


def check_render(project: Project, target: Target) -> None:
    """Raise RenderDriftError with the first differing line unless the committed file is current."""
    changes = drift(project, target)
    if changes:
        line = next(c for c in changes if c[:1] in "+-" and c[:3] not in ("+++", "---"))
        raise RenderDriftError(
            f"{target.dockerfile(project).relative_to(project.root)} is not what the templates "
            f"render to; first difference: {line.strip()!r}",
            "run `python3 build.py render` and commit the result",
        )


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "render",
        help="write the Dockerfiles and the documents' generated tables",
        description="Write images/<variant>/Dockerfile from templates/ and the pins, and the "
        "tables of README and docs/ that the overlay's code prints; --check "
        "fails when a committed file is not what would be written.",
    )
    add_target_options(parser, allow_all=True)
    parser.add_argument("--check", action="store_true", help="write nothing; fail on drift")
    parser.set_defaults(handler=_run)


def _run(args: argparse.Namespace, project: Project) -> int:
    for target in chosen_targets(args, project):
        path = target.dockerfile(project)
        if args.check:
            check_render(project, target)
            console.info(f"{path.relative_to(project.root)}: current")
        else:
            write_atomically(path, render(project, target).encode("utf-8"))
            console.info(f"{path.relative_to(project.root)}: written")
    if args.check:
        check_documents(project)
        console.info("the documents' tables: current")
    else:
        for path, text in rendered(project).items():
            write_atomically(path, text.encode("utf-8"))
            console.info(f"{path.relative_to(project.root)}: tables written")
    return 0
