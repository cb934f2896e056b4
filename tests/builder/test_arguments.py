"""Empty arguments, and the commands that help and remedies name."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.cli import main, make_parser, with_default_verb
from builder.errors import SigningError
from builder.project import default_project

ROOT = default_project().root
DIGEST = "sha256:" + "0" * 64
CHECKED = ("push", "verify", "bundle", "audit", "test", "licences")
# Refused by what reads them, each with its own error.
ELSEWHERE = {"key", "cuda", "suite"}


def verbs() -> dict[str, argparse.ArgumentParser]:
    action = next(a for a in make_parser()._actions if a.dest == "verb")
    return dict(action.choices or {})


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("verb", CHECKED)
def test_no_empty_argument_is_taken_for_none(verb: str, blank: str) -> None:
    """Of all that take a value: `"$VARIABLE"` that is not set is not the option left out."""
    parser = verbs()[verb]
    takes = [a for a in parser._actions if a.nargs != 0 and a.dest not in ELSEWHERE]
    assert takes
    for action in takes:
        with pytest.raises(argparse.ArgumentError):
            parser._check_value(action, parser._get_value(action, blank))


@pytest.mark.parametrize(
    "argv",
    [
        ["push", "", "--cuda", "cu130", "--unsigned"],
        ["verify", "127.0.0.1:1/x:1", "--unsigned", "--require", ","],
        ["verify", "127.0.0.1:1/x:1", "--unsigned", "--require", "built,"],
        ["verify", "127.0.0.1:1/x:1", "--unsigned", "--require", "buillt"],
        ["bundle", "--cuda", "cu130", "--to", "", "--unsigned"],
        ["bundle", "--cuda", "cu130", "--to", "/nowhere/b", "--unsigned", "--image", ""],
        ["audit", "x", "--target", ""],
        ["test", ""],
        ["licences", ""],
        ["fetch", "--cuda", "cu128", "--to", ""],
        ["build", "--cuda", "cu128", "--wheelhouse", ""],
    ],
)
def test_it_is_a_usage_error(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["push", "127.0.0.1:1/x", "--cuda", "cu130"],
        ["verify", "127.0.0.1:1/x:1"],
        ["bundle", "--cuda", "cu130", "--to", "TMP/b"],
        ["test", f"127.0.0.1:1/x@{DIGEST}", "--attest"],
    ],
)
@pytest.mark.parametrize("blank", ["", " "])
def test_an_empty_key_is_no_leave_to_go_without(
    argv: list[str], blank: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [word.replace("TMP", str(tmp_path)) for word in argv]
    assert main([*argv, "--key", blank]) == SigningError.exit_code
    said = capsys.readouterr().err
    assert "--key is empty" in said
    assert "is the variable set?" in said


# -- commands ----------------------------------------------------------------------------------

# To a backquote, a bracket, two spaces, the end of the line; `.` and `,` end no word of a command.
COMMAND = re.compile(r"python3? build\.py((?: (?!-->)[^\s`;()|&#]+)*)")
SOURCES = [ROOT / "build.py", *sorted((ROOT / "builder").rglob("*.py"))]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def texts(path: Path) -> Iterator[str]:
    """The strings of a module, what is put into them as `{}`; of a document, its commands."""
    content = path.read_text("utf-8")
    if path.suffix == ".md":
        content = content.replace("\\\n", " ")
        for line in content.splitlines():
            if re.match(r"\s*(?:[A-Z_]+=\S* )*python3? build\.py", line):
                yield line
        yield from re.findall(r"`(python3? build\.py[^`]*)`", content)
        return
    inner = set()
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner
        ):
            yield node.value


def commands(path: Path) -> list[str]:
    found = [said.strip() for text in texts(path) for said in COMMAND.findall(text)]
    # What is put in: after --cuda a variant with or without --stand-in, else anything.
    found = [re.sub(r"(--cuda) (?:\{\})+", r"\1 cu130", command) for command in found]
    found = [command.replace("--image NAME", "--image cu130") for command in found]
    return [command for command in found if command and "{}" not in command]


@pytest.mark.parametrize("path", [*SOURCES, *DOCUMENTS], ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_that_are_named_can_be_given(path: Path) -> None:
    for command in commands(path):
        try:
            make_parser().parse_args(with_default_verb(shlex.split(command)))
        except SystemExit as exc:
            assert exc.code == 0, f"{path}: build.py {command}"


def test_the_commands_are_found() -> None:
    assert "--cuda cu130" in commands(ROOT / "builder/supply/inventory.py")
    assert "--cuda cu130" in commands(ROOT / "builder/local_image.py")
    assert "engine prune --all" in commands(ROOT / "builder/engine/cli.py")
    assert sum(len(commands(path)) for path in SOURCES) > 40
    with pytest.raises(SystemExit):
        make_parser().parse_args(["build"])  # as a remedy had it
