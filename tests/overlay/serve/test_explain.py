"""What is printed: everything with its source, one line to copy, and no secret in any form."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import pytest

from ddtree_overlay.doctor.model import Hardware, Verdict
from ddtree_overlay.serve import explain
from ddtree_overlay.serve.catalogue import KEYS, help_text
from ddtree_overlay.serve.errors import EntryError
from ddtree_overlay.serve.explain import plan_document, print_plan, shown_command
from ddtree_overlay.serve.peer_to_peer import apply_verdict
from ddtree_overlay.serve.plan import Plan
from tests.overlay.serve.configured import DENSE, derived, drafter, host, model

SECRET = "sk-hunter22"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """With secrets in every place where one can be."""
    key = tmp_path / "key"
    key.write_text(SECRET + "-admin\n")
    arguments = [
        *("--model", model(tmp_path, DENSE), "--draft-model", drafter(tmp_path)),
        *("--api-key", SECRET, "--ssl-keyfile-password", SECRET + "-ssl"),
        *("--served-model-name", "a name"),
    ]
    environment = {
        "DDTREE_ADMIN_API_KEY_FILE": str(key),
        "DDTREE_SGLANG_ARGS": f"--otlp-traces-endpoint http://me:{SECRET}@host:4317",
    }
    return derived(host(8), arguments, environment=environment)


def printed(plan: Plan, **options: bool) -> str:
    out = io.StringIO()
    print_plan(plan, file=out, **options)
    return out.getvalue()


FORMS = [{}, {"everything": True}, {"as_json": True}, {"as_json": True, "everything": True}, {"brief": True}]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_no_form_holds_a_secret(plan: Plan, form: dict[str, bool]) -> None:
    assert SECRET not in printed(plan, **form)
    assert "hunter" not in printed(plan, **form)


def test_the_objects_own_texts_hold_none_of_the_appliances_keys(plan: Plan) -> None:
    assert SECRET + "-admin" not in repr(plan) + str(plan.secrets)
    assert SECRET not in repr(plan.secrets)


def test_secrets_are_said_to_be_set_and_from_where(plan: Plan, tmp_path: Path) -> None:
    rows = {line.split()[0]: line for line in printed(plan).splitlines() if line.strip()}
    assert "(set)" in rows["api_key"] and "from command line" in rows["api_key"]
    assert f"from {tmp_path / 'key'}" in rows["admin_api_key"]
    document = json.loads(printed(plan, as_json=True))
    assert document["secrets"]["api_key"] == {"set": True, "source": "from command line"}


def test_every_setting_flag_and_variable_is_there_with_its_source(plan: Plan) -> None:
    text = printed(plan)
    for key in KEYS:
        assert any(line.split()[:1] == [key.name] for line in text.splitlines()), key.name
    for flag in plan.flags:
        line = next(line for line in text.splitlines() if line.split()[:1] == [flag.name])
        if "hunter" not in " ".join(flag.values):
            assert all(value in line for value in flag.values)
        assert line.rstrip().endswith(flag.source)
    for name, value in plan.environment.items():
        line = next(line for line in text.splitlines() if line.split()[:1] == [name])
        assert str(value.value) in line and value.source in line


def test_the_command_is_one_line_that_a_shell_takes_apart_again(plan: Plan) -> None:
    line = shown_command(plan)
    assert "\n" not in line and printed(plan).rstrip().splitlines()[-1].strip() == line
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "ddtree_overlay.sglang.http_server"]
    hidden = {i for i, part in enumerate(plan.argv()) if "hunter" in part}
    assert len(hidden) == 2
    assert [w for i, w in enumerate(words[3:]) if i not in hidden] == [
        part for i, part in enumerate(plan.argv()) if i not in hidden
    ]


def test_json_says_the_same(plan: Plan) -> None:
    document = json.loads(printed(plan, as_json=True))
    assert document == json.loads(json.dumps(plan_document(plan)))
    assert document["profile"] == "dense-8gpu"
    assert document["settings"]["tp"] == {"value": 8, "source": "profile dense-8gpu"}
    assert {flag["name"] for flag in document["flags"]} == {flag.name for flag in plan.flags}
    assert document["settings"]["skip_checks"]["value"] == []
    assert "defaults" not in document


def test_all_adds_the_defaults_that_stay_and_no_other(plan: Plan) -> None:
    defaults = json.loads(printed(plan, as_json=True, everything=True))["defaults"]
    assert len(defaults) > 300
    assert defaults["--schedule-policy"] == "fcfs"
    assert not set(defaults) & {flag.name for flag in plan.flags}
    assert "--api-key" not in defaults
    assert "--schedule-policy" in printed(plan, everything=True)
    assert "--schedule-policy" not in printed(plan)


def test_the_brief_form_is_profile_notes_and_command(plan: Plan) -> None:
    switched = apply_verdict(plan, Verdict(False, "the all-reduce hung"))
    lines = printed(switched, brief=True).splitlines()
    assert lines[0].startswith("profile: dense-8gpu (")
    assert any(line.startswith("note: ") and "hung" in line for line in lines)
    assert lines[-1].startswith("server: python -m ")
    assert all(line.split(": ")[0] in {"profile", "note", "server"} for line in lines)


def explained(monkeypatch: pytest.MonkeyPatch, hardware: Hardware) -> None:
    from ddtree_overlay.doctor import hardware as reading

    monkeypatch.setattr(reading, "read_hardware", lambda _environment: hardware)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    explained(monkeypatch, host(8))
    assert explain.explain_command(["--json", "--model", "/m"], {}) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["profile"], document["settings"]["tp"]["value"]) == ("nospec", 8)
    assert explain.explain_command(["--all"], {}) == 0
    assert "--schedule-policy" in capsys.readouterr().out
    assert explain.explain_command(["--help"], {}) == 0
    assert "usage: ddtree explain" in capsys.readouterr().out


def test_the_command_needs_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    explained(monkeypatch, Hardware(error="no driver"))
    assert explain.explain_command(["--model", "/m"], {}) == 0
    assert "no GPU is visible" in capsys.readouterr().out


def test_the_command_refuses_what_serve_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    explained(monkeypatch, host(8))
    with pytest.raises(EntryError):
        explain.explain_command(["--modle", "/m"], {})


def test_the_help_names_every_setting() -> None:
    assert all(key.option in help_text() and key.help in help_text() for key in KEYS)
