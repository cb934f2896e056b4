"""The trial of the overlay, with a stub for its process: every answer and every way to give none."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.child import MARK, child_environment, run_child
from ddtree_overlay.doctor.image_checks.overlay import KINDS, check_overlay
from ddtree_overlay.serve.manifest import Manifest
from tests.overlay.doctor.model_files import PATH, alive, ids, stub, subject, write_model

FINE = {"problems": [], "torch": "2.11.0+cu130", "cuda": "13.0"}
MANIFEST = Manifest({"observed": {"torch": "2.11.0+cu130", "torch_cuda": "13.0"}})


def _says(message: Any, then: str = "") -> str:
    return f"print({MARK + json.dumps(message)!r}, flush=True)\n{then}\n"


def _check(tmp_path: Path, body: str, seconds: float = 30, **given: Any) -> list[Any]:
    python = stub(tmp_path / "python", body)
    base = {"python": python, "device": "cpu", "manifest": MANIFEST, "environment": {"PATH": PATH}}
    return list(check_overlay(subject(**{**base, **given}), seconds))


def test_all_is_well(tmp_path: Path) -> None:
    assert ids(_check(tmp_path, "print('a library says hello')\n" + _says(FINE))) == []


CODES = {
    "torch": "OVL002",
    "extension": "OVL002",
    "wrong": "OVL003",
    "op": "OVL003",
    "registered": "OVL004",
    "sgl_kernel": "OVL006",
    "plugin": "OVL007",
    "gpu": "OVL008",
    "capture": "OVL009",
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_problem(tmp_path: Path, kind: str) -> None:
    text = "it is\nbroken"
    (finding,) = _check(tmp_path, _says({**FINE, "problems": [[kind, text]]}))
    assert finding.code == CODES[kind] and finding.what.endswith("it is broken")


def test_several_problems(tmp_path: Path) -> None:
    problems = [["extension", "a"], ["registered", "b"], ["plugin", "c"]]
    found = _check(tmp_path, _says({**FINE, "problems": problems}))
    assert ids(found) == ["OVL002", "OVL004", "OVL007"]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({**FINE, "cuda": "12.8"}, "CUDA is 12.8, the manifest says 13.0"),
        ({**FINE, "torch": "2.10.0"}, "version is 2.10.0"),
    ],
)
def test_another_torch_than_the_images(tmp_path: Path, message: Any, says: str) -> None:
    (finding,) = _check(tmp_path, _says(message))
    assert finding.code == "OVL005" and says in finding.what
    assert ids(_check(tmp_path, _says(message), manifest=Manifest({}))) == []


LAST = "import sys; print('first\\nlast words', file=sys.stderr, flush=True)\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (LAST + "import os; os.kill(os.getpid(), 11)", "SIGSEGV; last words: last words"),
        (LAST + "sys.exit(3)", "exit code 3; last words: last words"),
        (LAST, "without a result; last words: last words"),
        ("", "without a result"),
        (f"print({MARK!r} + 'nonsense')", "without a result"),
        (f"print({MARK!r} + '[1]')", "without a result"),
        (_says({"problems": "many"}), "something else"),
        (_says({"problems": [["other", "x"]]}), "something else"),
        (_says({"problems": [["plugin"]]}), "something else"),
        (_says(FINE, LAST + "sys.exit(9)"), "exit code 9"),
    ],
)
def test_no_answer_is_a_finding(tmp_path: Path, body: str, says: str) -> None:
    (finding,) = _check(tmp_path, body)
    assert finding.code == "OVL001" and says in finding.what and "\n" not in finding.what


def test_a_hang_is_ended(tmp_path: Path) -> None:
    (finding,) = _check(tmp_path, LAST + "import time; time.sleep(120)", seconds=1.5)
    assert finding.code == "OVL001" and "no answer within 1.5 s" in finding.what


def test_what_a_child_leaves_is_killed_with_it(tmp_path: Path) -> None:
    body = (
        "import os, sys, time\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    time.sleep(120)\n"
        f"print({MARK!r} + '{{\"pid\": %d}}' % pid, flush=True)\n"
    )
    said = run_child([stub(tmp_path / "python", body)], {"PATH": PATH}, 30)
    assert said.problem is None
    deadline = time.monotonic() + 20
    while alive(said.messages[0]["pid"]):
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.02)


def test_a_python_that_cannot_be_started(tmp_path: Path) -> None:
    (finding,) = check_overlay(subject(python=str(tmp_path / "none"), device="cpu"))
    assert finding.code == "OVL001" and "cannot be started" in finding.what


def test_the_child_is_told_what_to_try(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    body = (
        "import json, os, sys\n"
        f"open({str(tmp_path / 'seen')!r}, 'w').write(json.dumps([sys.argv, dict(os.environ)]))\n"
    )
    environment = {
        "PATH": PATH,
        "DDTREE_API_KEY": "hidden",
        "HF_TOKEN": "hidden",
        "LANG": "C",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    given: dict[str, Any] = {
        "model": str(folder),
        "algorithm": "DDTREE",
        "environment": environment,
    }
    _check(tmp_path, body + _says(FINE), **given)
    argv, seen = json.loads((tmp_path / "seen").read_text())
    assert argv[-6:] == [
        *("--device", "cpu", "--algorithm", "DDTREE", "--architecture", "Qwen3ForCausalLM")
    ]
    assert "hidden" not in seen.values() and seen["LANG"] == "C"
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    _check(tmp_path, body + _says(FINE), **{**given, "device": "cuda"})
    assert json.loads((tmp_path / "seen").read_text())[1]["CUDA_VISIBLE_DEVICES"] == "3"


def test_secrets_are_left_out() -> None:
    given = {
        "AWS_SECRET_ACCESS_KEY": "s1",
        "MY_PASSWORD": "s2",
        "hf_token": "s3",
        "VAULT_PASSPHRASE": "s5",
        "AWS_ACCESS_KEY_ID": "s6",
        "NCCL_DEBUG": "WARN",
        "DDTREE_TP": "s4",
    }
    kept = child_environment(given)
    assert not {f"s{i}" for i in range(1, 7)} & set(kept.values()) and kept["NCCL_DEBUG"] == "WARN"
