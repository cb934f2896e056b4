"""Secrets: from a value or a file, never both, never shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_overlay.serve.catalogue import KEYS
from ddtree_overlay.serve.errors import EntryError, SecretError
from ddtree_overlay.serve.launch import launch_of
from ddtree_overlay.serve.launch_spec import _fill, server_environment
from ddtree_overlay.serve.plan import Plan
from ddtree_overlay.serve.secret_files import MAX_KEY
from tests.overlay.serve.configured import resolved

KEY = "sk-hunter22-do-not-show"
SECRETS = [key.name for key in KEYS if key.secret]


def test_there_are_two() -> None:
    assert SECRETS == ["api_key", "admin_api_key"]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_gives_its_one_line(name: str, end: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes((KEY + end).encode())
    option = f"--{name.replace('_', '-')}-file"
    by_variable = resolved(environment={f"DDTREE_{name.upper()}_FILE": str(file)})
    by_flag = resolved(option, str(file))
    (tmp_path / "c.toml").write_text(f"{name}_file = '{file}'")
    by_file = resolved(file=tmp_path / "c.toml")
    for plan in (by_variable, by_flag, by_file):
        assert plan.secrets[name].text == KEY
        assert str(plan.secrets[name]) == f"(set, from {file})"
        assert KEY not in repr(plan) and not plan.notes


@pytest.mark.parametrize("name", SECRETS)
def test_on_the_command_line_it_is_taken_with_a_warning(name: str) -> None:
    option = f"--{name.replace('_', '-')}"
    plan = resolved(option, KEY)
    assert plan.secrets[name].text == KEY
    assert any(option in note and f"DDTREE_{name.upper()}_FILE" in note for note in plan.notes)
    assert KEY not in " ".join(plan.argv()) and KEY not in repr(plan)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"  \n", "empty"),
        (b"sk-hunter22\nsk-hunter23\n", "several lines"),
        (b"sk-hunter22\n\n", "several lines"),
        (b"sk-hunter22\0", "unprintable"),
        (b" sk-hunter22\n", "blank"),
        (b"\xff\xfe", "not text"),
        (b"sk-hunter22" * 10000, "larger than"),
        (b"sk-hunter22" * 100, "characters"),
        ("sk-hunter22é".encode(), "HTTP header"),
    ],
)
def test_a_file_that_holds_no_key_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(SecretError) as raised:
        resolved(environment={"DDTREE_API_KEY_FILE": str(file)})
    said = "\n".join(raised.value.lines())
    assert says in said and str(file) in said
    assert "hunter" not in said


@pytest.mark.parametrize("character", ["k", '"', "\\"])
def test_keys_that_are_taken_fit_the_pipe_to_the_server(character: str) -> None:
    longest = "k" + character * (MAX_KEY - 1)
    plan = resolved(environment={f"DDTREE_{name.upper()}": longest for name in SECRETS})
    reading, writing = os.pipe()
    _fill(writing, {name: secret.text for name, secret in plan.secrets.items()})
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert json.loads(pipe.read()) == dict.fromkeys(SECRETS, longest)


@pytest.mark.parametrize("kind", ["absent", "folder", "unreadable"])
def test_a_file_that_cannot_be_read_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    if kind == "folder":
        file.mkdir()
    elif kind == "unreadable":
        if os.geteuid() == 0:  # root may read everything: a name too long is unreadable to all
            file = tmp_path / ("x" * 300)
        else:
            file.write_text(KEY)
            file.chmod(0)
    with pytest.raises(SecretError, match="cannot be read") as raised:
        resolved("--api-key-file", str(file))
    assert "api_key" in raised.value.remedy


def test_both_forms_are_refused_wherever_they_are(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    toml = tmp_path / "c.toml"
    toml.write_text(f"api_key = '{KEY}'\napi_key_file = '{file}'")
    environment = {"DDTREE_API_KEY": KEY, "DDTREE_API_KEY_FILE": str(file)}
    forms: list[Callable[[], Plan]] = [
        lambda: resolved(environment=environment),
        lambda: resolved("--api-key", KEY, "--api-key-file", str(file)),
        lambda: resolved(file=toml),
    ]
    for refused in forms:
        with pytest.raises(SecretError, match="both") as raised:
            refused()
        assert KEY not in "\n".join(raised.value.lines())


def test_an_empty_variable_beside_the_file_is_no_second_form(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    environment = {"DDTREE_API_KEY": "", "DDTREE_API_KEY_FILE": str(file)}
    assert resolved(environment=environment).secrets["api_key"].text == KEY


def test_a_level_above_wins_over_the_other_form_below(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    plan = resolved("--api-key", "from-argv", environment={"DDTREE_API_KEY_FILE": str(file)})
    assert plan.secrets["api_key"].text == "from-argv"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", KEY, KEY],
        ["--api-key", "first", KEY],
        [f"-api-key={KEY}"],
        ["--api-key=a", KEY],
    ],
)
def test_a_key_in_the_wrong_place_is_not_shown(arguments: list[str]) -> None:
    with pytest.raises(EntryError) as caught:
        resolved(*arguments)
    assert KEY not in "\n".join(caught.value.lines())


def test_no_secret_flag_of_sglang_gets_from_a_file_into_argv(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f"[sglang]\nssl-keyfile-password = '{KEY}'")
    environment = {"DDTREE_SGLANG_ARGS": f"--ssl-keyfile-password {KEY}"}
    for ways in ({"file": tmp_path / "c.toml"}, {"environment": environment}):
        with pytest.raises(SecretError) as caught:
            resolved(**ways)
        assert KEY not in "\n".join(caught.value.lines())
    plan = resolved("--ssl-keyfile-password", KEY)
    assert any("--ssl-keyfile-password" in note for note in plan.notes)


def test_a_key_among_flags_in_a_variable_goes_by_the_pipe_alone() -> None:
    environment = {"DDTREE_SGLANG_ARGS": f"--api-key {KEY}", "PATH": "/bin"}
    launch = launch_of(resolved(environment=environment), environment)
    assert launch.secrets == {"api_key": KEY}
    assert KEY not in json.dumps([*launch.argv, server_environment(launch)])
