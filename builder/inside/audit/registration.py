"""REG: SGLang knows DDTREE (upstream only logs a plugin that raises, so absence is an error)."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator

from builder.inside.audit.model import Context, Finding

ALGORITHM = "DDTREE"
FIELDS = (
    "speculative_ddtree_budget",
    "speculative_ddtree_topk",
    "speculative_ddtree_allow_hybrid_unsafe",
)
_REMEDY = "apply the overlay's patches: `python3 build.py patches check`"
_CACHES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR")
_IMPORT = """
import dataclasses, json
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.server_args import ServerArgs
member = SpeculativeAlgorithm.from_string("DDTREE")
print("\\n" + json.dumps({
    "algorithm": member.name,
    "fields": [field.name for field in dataclasses.fields(ServerArgs)],
}))
"""


def algorithm(context: Context) -> Iterator[Finding]:
    """REG001: the member stands in the source of the enum."""
    yield from _assigned(
        context,
        "REG001",
        "sglang/srt/speculative/spec_info.py",
        "SpeculativeAlgorithm",
        (ALGORITHM,),
    )


def server_arguments(context: Context) -> Iterator[Finding]:
    """REG002: the fields stand in the source of the server arguments."""
    yield from _assigned(context, "REG002", "sglang/srt/server_args.py", "ServerArgs", FIELDS)


def imported(context: Context) -> Iterator[Finding]:
    """REG003: the image's own Python imports SGLang and finds both."""
    python = context.files.site_path.parents[2] / "bin/python"
    name = "sglang"
    context.count("REG003")
    try:
        # Caches that an import leaves behind must not show up in what is described next.
        with tempfile.TemporaryDirectory() as scratch:
            done = subprocess.run(
                [str(python), "-c", _IMPORT],
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
                env=_environment(scratch),
            )
    except (OSError, subprocess.TimeoutExpired) as exc:
        yield Finding("REG003", name, f"{python}: {exc}", "repair the virtual environment")
        return
    lines = done.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if done.returncode == 0 else None
    except (ValueError, IndexError):
        answer = None
    if answer is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        yield Finding("REG003", name, f"import fails: {last}", _REMEDY)
        return
    missing = sorted(set(FIELDS) - set(answer["fields"]))
    if answer["algorithm"] != ALGORITHM or missing:
        text = f"imported SGLang has {answer['algorithm']}, lacks {', '.join(missing) or 'nothing'}"
        yield Finding("REG003", name, text, _REMEDY)


def _environment(scratch: str) -> dict[str, str]:
    """As the appliance runs: the audit's own PYTHONPATH would lend the image missing modules."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {
        **inherited,
        **dict.fromkeys(_CACHES, scratch),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _assigned(
    context: Context, code: str, file: str, class_name: str, names: tuple[str, ...]
) -> Iterator[Finding]:
    path = context.files.site_path / file
    context.count(code, len(names))
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError) as exc:
        yield Finding(code, f"{context.files.site}/{file}", f"unreadable: {exc}", _REMEDY)
        return
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for statement in node.body:
                targets = statement.targets if isinstance(statement, ast.Assign) else []
                if isinstance(statement, ast.AnnAssign):
                    targets = [statement.target]
                found |= {t.id for t in targets if isinstance(t, ast.Name)}
    for name in names:
        if name not in found:
            yield Finding(
                code, f"{context.files.site}/{file}", f"{class_name} has no {name}", _REMEDY
            )
