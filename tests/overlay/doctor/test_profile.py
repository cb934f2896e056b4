"""A profile against the kind of model, and what a subject takes from a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.model import Hardware, Subject
from ddtree_overlay.doctor.model_checks.profile import check_model
from ddtree_overlay.doctor.model_checks.source import Unusable, locate
from ddtree_overlay.doctor.model_checks.tokenizer import check_tokenizer
from ddtree_overlay.doctor.subject import subject_of
from ddtree_overlay.serve.derive import derive
from ddtree_overlay.serve.manifest import Manifest
from ddtree_overlay.serve.profiles import Requires
from ddtree_overlay.serve.resolve import resolve
from tests.overlay.doctor.model_files import gpus, ids, subject, write_model


@pytest.mark.parametrize(
    ("wanted", "experts", "codes"),
    [
        ("dense", None, []),
        ("dense", 128, ["PRF002"]),
        ("moe", 128, []),
        ("moe", None, ["PRF002"]),
        ("any", 128, []),
    ],
)
def test_kinds_of_models(
    wanted: str, experts: int | None, codes: list[str], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", num_experts=experts)
    given = subject(model=str(model), profile="p", requires=Requires(model=wanted))
    findings = list(check_model(given))
    assert ids(findings) == codes
    assert all("profile p is made for" in finding.what for finding in findings)


def of_plan(*arguments: str, hardware: Hardware | None = None, **variables: str) -> Subject:
    hardware = hardware or gpus(8)
    plan = derive(
        resolve(arguments, variables, need_model=False),
        hardware,
        environment=variables,
        need_model=False,
    )
    return subject_of(plan, hardware, Manifest({}), variables)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--tp", "8", "--ep-size", "4"), {"ep": 4}),
        (("--tp", "8", "--ep", "2"), {"ep": 2}),
        (("--tp", "4"), {"ep": 1, "first_gpu": 0, "gpu_step": 1, "tokenizer": None}),
        (("--base-gpu-id", "4", "--gpu-id-step", "2"), {"first_gpu": 4, "gpu_step": 2}),
        (("--skip-tokenizer-init",), {"tokenizer": ""}),
        (("--tokenizer-path", "/t"), {"tokenizer": "/t"}),
        (("--load-format", "dummy"), {"dummy_weights": True}),
        (("--load-format", "auto"), {"dummy_weights": False}),
        (("--quantization", "fp8"), {"shrinks_weights": True}),
        (("--revision", "v2"), {"revision": "v2"}),
        (
            ("--profile", "dense-8gpu", "--draft-model", "/d"),
            {
                "profile": "dense-8gpu",
                "requires": Requires(gpus=8, capability=(12, 0), memory_gib=90, model="dense"),
            },
        ),
    ],
)
def test_the_subject_is_the_plans(arguments: tuple[str, ...], wanted: dict[str, Any]) -> None:
    it = of_plan(*arguments)
    assert {name: getattr(it, name) for name in wanted} == wanted


def test_the_gpus_of_a_subject_are_those_of_the_server() -> None:
    it = of_plan("--tp", "2", "--base-gpu-id", "3", "--gpu-id-step", "2")
    assert [gpu.index for gpu in it.gpus] == [3, 5]


def test_every_folder_of_the_plan_is_checked() -> None:
    it = of_plan(DDTREE_CACHE_DIR="/c")
    assert {Path("/c/dev/triton"), Path("/c/huggingface")} <= set(it.cache_folders)


@pytest.mark.parametrize(
    ("tokenizer", "codes"), [(None, ["MOD010"]), ("", []), ("own", []), ("bare", ["MOD010"])]
)
def test_the_tokenizer_is_looked_for_where_it_is(
    tokenizer: str | None, codes: list[str], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model")
    write_model(tmp_path / "own")
    (model / "tokenizer.json").unlink()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/chat_template.jinja").write_text("x")
    where = str(tmp_path / tokenizer) if tokenizer else tokenizer
    assert ids(check_tokenizer(subject(model=str(model), tokenizer=where))) == codes


@pytest.mark.parametrize(("revision", "found"), [(None, "a1"), ("v2", "b2"), ("b2", "b2")])
def test_the_revision_of_a_hub_name(revision: str | None, found: str, tmp_path: Path) -> None:
    home = tmp_path / "hub/models--x--y"
    for commit in ("a1", "b2"):
        (home / "snapshots" / commit).mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs/main").write_text("a1")
    (home / "refs/v2").write_text("b2")
    it = subject(environment={"HF_HOME": str(tmp_path)}, revision=revision)
    assert locate("x/y", "model", it).folder.name == found
    assert locate("x/y", "draft model", it).folder.name == "a1"


@pytest.mark.parametrize("number", [5, 13, 116])  # EIO, EACCES, ESTALE
def test_a_folder_that_fails_is_a_finding(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> bool:
        raise OSError(number, "fails so")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", fail)
        with pytest.raises(Unusable) as caught:
            locate(str(tmp_path), "model", subject())
    assert caught.value.finding.code == "MOD002"
    assert "fails so" in caught.value.finding.what
