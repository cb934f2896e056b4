"""The model's folder and configuration: each way in which it cannot be what SGLang loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.model import Severity
from ddtree_overlay.doctor.model_checks.folder import architecture_findings, check_folder
from ddtree_overlay.doctor.model_checks.known import Known, read_known
from tests.overlay.doctor.model_files import LFS, TARGET, ids, subject, write_model

KNOWN = Known(
    frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM"}),
    frozenset({"Qwen3ForCausalLM", "BartForCausalLM"}),
    frozenset({"qwen3", "bart"}),
)


def test_a_whole_model_has_no_findings(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "generation_config.json").write_text("{}")
    assert ids(check_folder(subject(model=str(folder), draft_model=str(folder)))) == []


def _file(name: str, content: bytes | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        if content is None:
            return
        (folder / name).write_bytes(content)

    return change


def _folder_in_place(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return change


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (_file("config.json", None), "MOD003", "config.json"),
        (_file("config.json", b"{"), "MOD004", "not JSON"),
        (_file("config.json", b""), "MOD004", "is empty"),
        (_file("config.json", b"\xff\xfe{"), "MOD004", "not JSON"),
        (_file("config.json", b"[]"), "MOD004", "no JSON object"),
        (_file("config.json", b"[" * 100_000), "MOD004", "not JSON"),
        (_file("config.json", LFS), "WGT002", "git-lfs"),
        (_folder_in_place("config.json"), "MOD002", "cannot be read"),
        (_file("generation_config.json", b"nonsense"), "MOD013", "generation_config.json"),
    ],
)
@pytest.mark.parametrize("role", ["model", "draft_model"])
def test_a_damaged_folder_is_named(
    tmp_path: Path, change: Callable[[Path], None], code: str, says: str, role: str
) -> None:
    folder = write_model(tmp_path / "model")
    change(folder)
    (finding,) = check_folder(subject(**{role: str(folder)}))
    assert finding.code == code
    assert says in finding.what and str(folder) in finding.what


def test_mistrals_own_layout_is_only_warned_of(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "config.json").unlink()
    (folder / "params.json").write_text("{}")
    (finding,) = check_folder(subject(model=str(folder)))
    assert (finding.code, finding.severity) == ("MOD003", Severity.WARNING)


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./no/such", "../x", "~/no-such-model", "a/b/c", "/models/"]
)
def test_a_path_that_does_not_exist_is_no_hub_name(name: str) -> None:
    (finding,) = check_folder(subject(model=name, environment={"HF_HUB_OFFLINE": "1"}))
    assert finding.code == "MOD001" and name in finding.what


def test_a_single_file_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (finding,) = check_folder(subject(model=str(tmp_path / "model.gguf")))
    assert (finding.code, finding.severity) == ("MOD014", Severity.WARNING)


def _cache(home: Path, complete: bool) -> None:
    hub = home / "hub" / "models--org--name"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("abc")
    if complete:
        write_model(hub / "snapshots" / "abc")


@pytest.mark.parametrize(
    ("offline", "cached", "codes"),
    [
        ("1", True, []),
        ("1", False, ["MOD005"]),
        ("true", False, ["MOD005"]),
        ("", False, ["MOD006"]),
        ("0", False, ["MOD006"]),
        ("0", True, []),
    ],
)
def test_a_hub_name_has_to_be_in_the_cache_when_offline(
    tmp_path: Path, offline: str, cached: bool, codes: list[str]
) -> None:
    _cache(tmp_path, cached)
    environment = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": offline}
    assert ids(check_folder(subject(model="org/name", environment=environment))) == codes


@pytest.mark.parametrize(
    ("changes", "trusted", "codes", "says"),
    [
        ({}, False, [], ""),
        ({"model_type": "qwen9"}, False, ["MOD007"], "the nearest is qwen3"),
        ({"model_type": None}, False, ["MOD004"], "no model_type"),
        ({"architectures": None}, False, ["MOD004"], "no architectures"),
        ({"architectures": []}, False, ["MOD004"], "no architectures"),
        ({"architectures": "Qwen3ForCausalLM"}, False, ["MOD004"], "no architectures"),
        ({"architectures": ["Qwen3ForCausalLLM"]}, False, ["MOD008"], "the nearest is Qwen3"),
        ({"architectures": ["BartForCausalLM"]}, False, ["MOD008"], "Transformers"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "c.C"}},
            False,
            ["MOD009"],
            "by the model's code",
        ),
        ({"model_type": "own", "auto_map": {"AutoConfig": "c.C"}}, True, [], ""),
        (
            {"architectures": ["Own"], "auto_map": {"AutoModelForCausalLM": "m.M"}},
            False,
            ["MOD009"],
            "architecture Own",
        ),
        ({"architectures": ["Own"], "auto_map": {"AutoModel": "m.M"}}, True, [], ""),
    ],
)
def test_an_architecture_is_looked_up(
    changes: dict[str, Any], trusted: bool, codes: list[str], says: str
) -> None:
    config = {key: value for key, value in {**TARGET, **changes}.items() if value is not None}
    findings = list(architecture_findings(config, trusted, KNOWN))
    assert ids(findings) == codes
    assert all(says in finding.what for finding in findings)


def test_what_transformers_alone_has_is_a_warning() -> None:
    config = {**TARGET, "architectures": ["BartForCausalLM"], "model_type": "bart"}
    (finding,) = architecture_findings(config, False, KNOWN)
    assert finding.severity is Severity.WARNING


def test_nothing_is_refused_for_want_of_a_list() -> None:
    nothing = read_known(None, None)
    config = {**TARGET, "architectures": ["Own"], "model_type": "own"}
    assert ids(architecture_findings(config, False, nothing)) == []


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_names_are_read_from_files(tmp_path: Path) -> None:
    models = tmp_path / "sglang" / "srt" / "models"
    for i in range(30):
        _write(models / f"m{i}.py", f"class A{i}(B):\n    pass\n\nEntryClass = A{i}\n")
    _write(models / "pair.py", "EntryClass = [\n    One,  # not Two\n    Three,\n]\n")
    _write(models / "one.py", "EntryClass = [Four]\nother = Five\n")
    types = "".join(f'        ("type_{i}", "T{i}Config"),\n' for i in range(30))
    auto = tmp_path / "transformers" / "models" / "auto"
    _write(auto / "auto_mappings.py", f"CONFIG_MAPPING_NAMES = OrderedDict([\n{types}])\n")
    _write(auto / "configuration_auto.py", 'X.update({\n        "late-type": "LateConfig",\n})\n')
    _write(auto / "modeling_auto.py", "".join(f'("t{i}", "Model{i}"),\n' for i in range(30)))
    configs = tmp_path / "sglang" / "srt" / "configs"
    _write(configs / "own.py", 'class OwnConfig(P):\n    model_type = "own_type"\n')
    known = read_known(tmp_path / "sglang", tmp_path / "transformers")
    assert {"A7", "One", "Three", "Four"} <= known.architectures
    assert not {"Two", "Five", "B"} & known.architectures
    assert {"type_3", "late-type", "own_type"} <= known.model_types
    assert "Model4" in known.transformers_architectures


def test_a_laid_out_otherwise_package_refuses_nothing(tmp_path: Path) -> None:
    _write(tmp_path / "transformers" / "models" / "auto" / "auto_mappings.py", "moved = 1\n")
    _write(tmp_path / "sglang" / "srt" / "configs" / "own.py", json.dumps({}))
    known = read_known(tmp_path / "sglang", tmp_path / "transformers")
    assert known == Known(frozenset(), frozenset(), frozenset())
