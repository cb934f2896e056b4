"""Profiles: the built-in ones, mounted ones, the schema, and the tiers' arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddtree_overlay.serve.errors import EntryError, ProfileError, SettingError, UnknownSettingError
from ddtree_overlay.serve.profiles import (
    BUILT_IN,
    load_profile,
    profile_files,
    profile_folder,
    read_profile,
)
from ddtree_overlay.serve.profiles_command import profiles_command
from ddtree_overlay.serve.tiers import choose
from ddtree_overlay.sglang.defaults import SWEET_SPOT, hardware_of
from tests.overlay.serve.configured import NOWHERE

NAMES = sorted(path.stem for path in BUILT_IN.glob("*.toml"))
HEAD = 'summary = "s"\nbasis = "b"\n'
TIER = '[[tree.tier]]\nmax_running_requests = {}\nalgorithm = "{}"\nwhy = "w"\n'


def test_what_the_image_offers() -> None:
    wanted = {
        "dense-8gpu",
        "moe-8gpu",
        "single-gpu",
        "multi-gpu",
        "dflash",
        "nospec",
        "no-graph",
        "cpu",
    }
    assert set(NAMES) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_each_states_its_basis_and_never_claims_a_measurement(name: str) -> None:
    profile = load_profile(name, NOWHERE)
    assert "\n" not in profile.summary and len(profile.summary) < 120
    assert "measured" not in profile.basis.lower().replace("nothing here is measured", "")
    if profile.tiers:
        assert (
            "Nothing here is measured" in profile.basis
            or "nothing here is measured" in profile.basis
        )


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("cpu",)])
def test_each_uses_an_attention_backend_that_runs_on_sm_120_and_takes_a_mask(name: str) -> None:
    profile = load_profile(name, NOWHERE)
    assert profile.given.keys["attention_backend"].value in ("flashinfer", "triton")
    if profile.given.keys["algorithm"].value == "DDTREE":
        assert profile.given.flags["page_size"].values == ("1",)


@pytest.mark.parametrize("name", NAMES)
def test_the_tiers_agree_with_the_ridge_of_the_gpu(name: str) -> None:
    """A budget above the chain's is only claimed where its tokens stay below the ridge."""
    hardware = hardware_of((12, 0))
    assert hardware is not None
    for tier in load_profile(name, NOWHERE).tiers:
        if tier.budget:
            assert tier.budget == SWEET_SPOT
            assert tier.max_running_requests * (tier.budget + 1) <= hardware.ridge_tokens
            assert str(hardware.ridge_tokens) in tier.why


@pytest.mark.parametrize("name", ["dense-8gpu", "single-gpu", "multi-gpu"])
def test_the_first_tier_is_as_wide_as_the_ridge_carries(name: str) -> None:
    hardware, (tier, *_) = hardware_of((12, 0)), load_profile(name, NOWHERE).tiers
    assert hardware is not None
    assert (tier.max_running_requests + 1) * (SWEET_SPOT + 1) > hardware.ridge_tokens


@pytest.mark.parametrize(
    ("requests", "algorithm", "budget"),
    [(1, "DDTREE", 16), (16, "DDTREE", 16), (17, "DDTREE", 15), (32, "DDTREE", 15),
     (33, "DFLASH", None), (64, "DFLASH", None), (65, None, None)],
)  # fmt: skip
def test_tree_then_smaller_tree_then_chain_then_none(
    requests: int, algorithm: str | None, budget: int | None
) -> None:
    tier = choose(load_profile("dense-8gpu", NOWHERE).tiers, requests)
    assert (tier.algorithm if tier else None) == algorithm
    assert (tier.nodes(16) if tier else None) == budget


@pytest.mark.parametrize(
    ("block", "first", "second"), [(None, 16, 15), (8, 16, 7), (16, 16, 15), (32, 31, 31)]
)
def test_a_tree_always_holds_the_drafters_own_chain(
    block: int | None, first: int, second: int
) -> None:
    tiers = load_profile("dense-8gpu", NOWHERE).tiers
    assert [tier.nodes(block) for tier in tiers[:2]] == [first, second]


def test_a_mounted_one_takes_the_place_of_a_built_in_one(tmp_path: Path) -> None:
    (tmp_path / "nospec.toml").write_text(HEAD.replace('"s"', '"ours"'))
    (tmp_path / "house.toml").write_text(HEAD)
    (tmp_path / "README.md").write_text("no profile")
    files = profile_files(tmp_path)
    assert set(files) == {*NAMES, "house"}
    profile = load_profile("nospec", tmp_path)
    assert profile.mounted and profile.summary == "ours"
    assert not load_profile("dflash", tmp_path).mounted


SCHEMA_ERRORS = [
    ("", "summary"),
    ('summary = "s"', "basis"),
    ('summary = ""\nbasis = "b"', "summary"),
    ("summary = 3\nbasis = 'b'", "summary"),
    ("x = ", "not TOML"),
    (f"schema = 2\n{HEAD}", "schema"),
    (f"schema = true\n{HEAD}", "schema"),
    (f"{HEAD}summery = 's'", "did you mean summary?"),
    (f"{HEAD}[setting]\ntp = 1", "did you mean settings?"),
    (f"{HEAD}[settings]\nbudgett = 1", "did you mean budget?"),
    (f"{HEAD}[settings]\nmodel = '/m'", "model is unknown"),
    (f"{HEAD}[settings]\napi_key = 'hunter22'", "api_key is unknown"),
    (f"{HEAD}[settings]\nprofile = 'x'", "profile is unknown"),
    (f"{HEAD}[settings]\nport = 3", "port is unknown"),
    (f"{HEAD}settings = 3", "table"),
    (f"{HEAD}[sglang]\napi-key = 'hunter22'", "api_key_file"),
    (f"{HEAD}[sglang]\npage-size = {{a = 1}}", "no value"),
    (f"{HEAD}[settings]\ntp = 1\n[sglang]\ntp = 2", "twice"),
    (f"{HEAD}[environment]\nDDTREE_TP = '1'", "own key"),
    (f"{HEAD}[environment]\nX = [1]", "no variable"),
    (f"{HEAD}[requires]\ngpu = 8", "did you mean gpus?"),
    (f"{HEAD}[requires]\ngpus = '8'", "gpus"),
    (f"{HEAD}[requires]\ngpus = -1", "gpus"),
    (f"{HEAD}[requires]\ngpus = true", "gpus"),
    (f"{HEAD}[requires]\ncapability = 12.0", "capability"),
    (f"{HEAD}[requires]\ncapability = 'sm_120'", "capability"),
    (f"{HEAD}[requires]\nmodel = 'hybrid'", "model"),
    (f"{HEAD}[requires]\nmemory_gib = 'x'", "memory_gib"),
    (f"{HEAD}[tree]\ntiers = []", "did you mean tier?"),
    (f"{HEAD}[tree]\ntier = 3", "[[tree.tier]]"),
    (HEAD + TIER.format(16, "DFLASH") + "limit = 3", "limit is unknown"),
    (HEAD + TIER.format("'x'", "DFLASH"), "max_running_requests"),
    (HEAD + TIER.format(0, "DFLASH"), "max_running_requests"),
    (HEAD + TIER.format(16, "EAGLE3"), "algorithm"),
    (HEAD + TIER.format(16, "DDTREE"), "budget"),
    (HEAD + TIER.format(16, "DDTREE") + "budget = 0", "budget"),
    (HEAD + TIER.format(16, "DDTREE") + "budget = 'all'", "budget"),
    (HEAD + TIER.format(16, "DDTREE") + "budget = 2000", "budget"),
    (HEAD + TIER.format(16, "DFLASH") + "budget = 16", "budget"),
    (HEAD + TIER.format(16, "DFLASH") + TIER.format(16, "NONE"), "rising order"),
    (HEAD + TIER.format(16, "DFLASH").replace('why = "w"', ""), "why"),
]


@pytest.mark.parametrize(("text", "says"), SCHEMA_ERRORS)
def test_what_breaks_the_schema_is_refused(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(ProfileError) as raised:
        read_profile("p", file)
    said = "\n".join(raised.value.lines())
    assert says in said and str(file) in said and "hunter22" not in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("[settings]\ntp = 'x'", SettingError, "profile p"),
        ("[settings]\nmemory_fraction = 3", SettingError, "out of range"),
        ("[sglang]\nfrob = 1", UnknownSettingError, "--frob"),
        ("[sglang]\npage-size = 'x'", SettingError, "--page-size"),
        ("[sglang]\nattention-backend = 'fa9'", SettingError, "fa9"),
    ],
)
def test_a_wrong_value_in_it_is_refused(
    text: str, error: type[EntryError], says: str, tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text(HEAD + text)
    with pytest.raises(error) as raised:
        load_profile("p", tmp_path)
    assert says in str(raised.value)


def test_a_profile_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(ProfileError) as raised:
        load_profile("dense8gpu", NOWHERE)
    assert raised.value.remedy == "did you mean dense-8gpu?"


def test_the_command_lists_shows_and_speaks_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "house.toml").write_text(HEAD)
    environment = {"DDTREE_PROFILE_DIR": str(tmp_path)}
    assert profiles_command([], environment) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == sorted([*NAMES, "house"])
    assert str(tmp_path / "house.toml") in next(line for line in listed if line.startswith("house"))
    profiles_command(["show", "dense-8gpu"], environment)
    shown = capsys.readouterr().out
    assert shown.endswith((BUILT_IN / "dense-8gpu.toml").read_text())
    assert str(BUILT_IN) in shown.splitlines()[0]
    profiles_command(["--json"], environment)
    documents = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert documents["dense-8gpu"]["requires"]["capability"] == "12.0"
    assert documents["house"]["mounted"] is True
    profiles_command(["show", "nospec", "--json"], environment)
    assert json.loads(capsys.readouterr().out)["settings"]["algorithm"] == "NONE"


@pytest.mark.parametrize("arguments", [["shwo"], ["show"], ["show", "a", "b"], ["--all"]])
def test_the_command_takes_nothing_else(arguments: list[str]) -> None:
    with pytest.raises(EntryError) as raised:
        profiles_command(arguments, {})
    assert raised.value.exit_code == 64


def test_one_broken_file_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.toml").write_text("=")
    with pytest.raises(ProfileError, match="broken"):
        profiles_command([], {"DDTREE_PROFILE_DIR": str(tmp_path)})
    assert "dense-8gpu" in capsys.readouterr().out


def test_a_folder_of_profiles_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="DDTREE_PROFILE_DIR"):
        profile_folder({"DDTREE_PROFILE_DIR": str(tmp_path / "absent")})
