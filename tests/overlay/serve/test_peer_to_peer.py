"""One verdict on peer-to-peer, applied to every library."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_overlay.doctor.model import Verdict
from ddtree_overlay.serve.errors import ConflictError
from ddtree_overlay.serve.peer_to_peer import NEED_PEERS, SWITCHED_OFF, apply_verdict
from ddtree_overlay.serve.plan import Plan
from tests.overlay.serve.configured import derived, host

NO, YES = Verdict(False, "the all-reduce hung"), Verdict(True, "tested")
MODEL = ["--model", "/m"]


def flags(plan: Plan) -> set[str]:
    return {flag.name for flag in plan.flags}


@pytest.mark.parametrize(
    ("gpus", "nvlink", "arguments", "custom_off", "checked"),
    [
        (8, False, [], True, False),
        (8, True, [], False, False),
        (4, False, [], True, False),
        (2, False, [], False, True),
        (2, True, [], False, False),
        (8, False, ["--tp", "2"], False, True),
        (8, False, ["--tp", "1"], False, False),
        (1, False, [], False, False),
    ],
)
def test_the_custom_all_reduce_without_nvlink(
    gpus: int, nvlink: bool, arguments: list[str], custom_off: bool, checked: bool
) -> None:
    plan = derived(host(gpus, nvlink=nvlink), [*MODEL, *arguments])
    assert ("--disable-custom-all-reduce" in flags(plan)) == custom_off
    assert ("--enable-p2p-check" in flags(plan)) == checked


def test_links_that_nobody_could_read_count_as_no_nvlink() -> None:
    from dataclasses import replace

    plan = derived(replace(host(8), links={}), MODEL)
    assert "--disable-custom-all-reduce" in flags(plan)


@pytest.mark.parametrize("gpus", [2, 8])
@pytest.mark.parametrize("nvlink", [False, True])
def test_a_bad_verdict_reaches_every_library(gpus: int, nvlink: bool) -> None:
    plan = apply_verdict(derived(host(gpus, nvlink=nvlink), MODEL), NO)
    assert set(SWITCHED_OFF) <= flags(plan)
    assert not set(NEED_PEERS) & flags(plan)
    assert plan.environment["NCCL_P2P_DISABLE"].value == "1"
    assert "hung" in plan.environment["NCCL_P2P_DISABLE"].source
    assert any("hung" in note for note in plan.notes)
    assert len(plan.flags) == len(flags(plan))


def test_a_good_verdict_changes_nothing() -> None:
    plan = derived(host(8), MODEL)
    assert apply_verdict(plan, YES) == plan


def test_off_is_off_before_any_test_and_whatever_it_says() -> None:
    plan = derived(host(8), [*MODEL, "--peer-to-peer", "off"])
    assert plan.environment["NCCL_P2P_DISABLE"].value == "1"
    assert set(SWITCHED_OFF) <= flags(plan)
    assert apply_verdict(plan, YES) == plan and apply_verdict(plan, NO) == plan


def test_on_is_on_and_a_bad_verdict_is_said() -> None:
    plan = derived(host(8), [*MODEL, "--peer-to-peer", "on"])
    assert plan.environment["NCCL_P2P_LEVEL"].value == "SYS"
    after = apply_verdict(plan, NO)
    assert "NCCL_P2P_DISABLE" not in after.environment
    assert any("hung" in note for note in after.notes)


def test_the_verdict_outranks_a_variable_that_says_otherwise() -> None:
    environment = {"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS"}
    plan = apply_verdict(derived(host(8), MODEL, environment=environment), NO)
    assert plan.environment["NCCL_P2P_DISABLE"].value == "1"


@pytest.mark.parametrize(
    "given",
    [
        ["--enable-mscclpp"],
        ["--enable-torch-symm-mem"],
        ["--enable-symm-mem"],
        ["--enable-nccl-nvls"],
        ["--flashinfer-allreduce-fusion-backend", "auto"],
    ],
)
def test_a_given_flag_that_needs_peers_is_refused_by_name(given: list[str]) -> None:
    plan = derived(host(8), [*MODEL, *given])
    with pytest.raises(ConflictError) as raised:
        apply_verdict(plan, NO)
    assert given[0] in str(raised.value) and "hung" in str(raised.value)


def test_given_switches_are_not_said_twice() -> None:
    plan = derived(host(8), [*MODEL, "--disable-custom-all-reduce", "--enable-p2p-check"])
    after = apply_verdict(plan, NO)
    names = [flag.name for flag in after.flags]
    assert names.count("--disable-custom-all-reduce") == 1
    assert next(f for f in after.flags if f.name == SWITCHED_OFF[0]).source == "command line"


@pytest.mark.parametrize("gpus", [2, 8])
@pytest.mark.parametrize("value", ["1", " 1 ", "2"])
def test_nccls_own_switch_means_all_libraries(gpus: int, value: str) -> None:
    plan = derived(host(gpus), MODEL, environment={"NCCL_P2P_DISABLE": value})
    setting = plan.settings["peer_to_peer"]
    assert (setting.value, setting.source) == ("off", "environment NCCL_P2P_DISABLE")
    assert set(SWITCHED_OFF) <= flags(plan)
    assert plan.environment["NCCL_P2P_DISABLE"].value == "1"


def test_a_files_switch_of_nccl_too(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[environment]\nNCCL_P2P_DISABLE = 1\n")
    plan = derived(host(8), MODEL, file=tmp_path / "c.toml")
    assert plan.get("peer_to_peer") == "off"
    assert set(SWITCHED_OFF) <= flags(plan)


def test_a_switch_that_is_not_thrown_changes_nothing() -> None:
    for value in ("0", ""):
        plan = derived(host(8), MODEL, environment={"NCCL_P2P_DISABLE": value})
        assert plan.get("peer_to_peer") == "auto"


@pytest.mark.parametrize(("value", "setting"), [("1", "on"), ("0", "off")])
def test_a_switch_against_the_setting_is_a_conflict(value: str, setting: str) -> None:
    with pytest.raises(ConflictError, match="NCCL_P2P_DISABLE"):
        derived(
            *(host(8), [*MODEL, "--peer-to-peer", setting]),
            environment={"NCCL_P2P_DISABLE": value},
        )
