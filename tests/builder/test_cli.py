"""The command line as a user meets it: verbs, help, refusals without traceback."""

from __future__ import annotations

import json
import re

import pytest

from builder.cli import main, make_parser, with_default_verb

VERBS = (
    *("build", "plan", "explain", "render", "lock", "fetch", "patches", "engine"),
    *("audit", "licences", "test", "push", "verify", "bundle"),
)


def test_build_is_the_default_verb() -> None:
    assert with_default_verb(["--cuda", "cu130"]) == ["build", "--cuda", "cu130"]
    assert with_default_verb(["plan", "--cuda", "cu130"])[0] == "plan"
    assert with_default_verb(["--help"]) == ["--help"]


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help_that_teaches(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert len(capsys.readouterr().out) > 200


def test_every_verb_is_tested_here() -> None:
    listed = re.search(r"\{([a-z,]+)\}", make_parser().format_usage().replace("\n", ""))
    assert listed is None  # metavar hides the braces; the choices are read from the action
    action = next(a for a in make_parser()._actions if a.dest == "verb")
    assert sorted(action.choices or []) == sorted(VERBS)


def test_no_arguments_prints_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "python3 build.py --cuda cu130" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "code", "word"),
    [
        (["plan", "--cuda", "cu999"], 10, "cu999"),
        (["explain", "cu130", "torch.vresion"], 16, "torch.version"),
        (["plan", "--cuda", "cu130", "--stand-in"], 10, "stand-in"),
        (["plan", "--cuda", "all"], 10, "all"),
        (["build", "--cuda", "all"], 10, "all"),
    ],
)
def test_a_users_mistake_is_two_lines_and_a_code(
    argv: list[str], code: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    err = capsys.readouterr().err.strip().splitlines()
    assert len(err) == 2
    assert err[0].startswith("error: ")
    assert err[1].startswith("  fix: ")
    assert word in "\n".join(err)


def test_errors_are_json_where_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--cuda", "cu999", "--json"]) == 10
    document = json.loads(capsys.readouterr().out)
    assert document["error"] == "UnknownVariantError"
    assert document["exit_code"] == 10
    assert document["remedy"]


@pytest.mark.parametrize("stand_in", [False, True])
def test_plan_needs_no_engine_and_no_network(
    stand_in: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    argv = ["plan", "--cuda", "cu128", "--json"] + (["--stand-in"] if stand_in else [])
    assert main(argv) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["stand_in"] is stand_in
    assert len(plan["other_sources"]) == (0 if stand_in else 7)
    assert plan["lock"]["distributions"] > 150


def test_explain_follows_a_pin_to_its_label(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "cu130", "torch.version"]) == 0
    out = capsys.readouterr().out
    for station in (
        "images/cu130.toml:",
        "requirements.lock:",
        "manifest.json",
        "dev.ddtree.torch",
    ):
        assert station in out
    assert "2.11.0" in out


def test_a_file_of_the_host_that_cannot_be_written_is_two_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied", "/somewhere/Dockerfile")

    monkeypatch.setattr("builder.render.write_atomically", refuses)
    assert main(["render"]) == 55
    err = capsys.readouterr().err.splitlines()
    assert err[-2] == "error: /somewhere/Dockerfile: Permission denied"
    assert err[-1].startswith("  fix: ")
