"""A pin's stations are found where they really are."""

from __future__ import annotations

import pytest

from builder.errors import UnknownPinError
from builder.explain import pin_keys, toml_line, trail
from builder.pins import all_targets, load_target
from builder.project import Project


def test_every_pin_of_every_target_can_be_explained(scratch: Project) -> None:
    for target in all_targets(scratch):
        for key in pin_keys(scratch, target):
            first = trail(scratch, target, key)[0]
            assert not first.place.endswith(":0"), f"{target.name}: no line for {key}"


def test_the_line_number_points_at_the_key(scratch: Project) -> None:
    path = scratch.images / "cu128.toml"
    for key, word in (
        ("torch.version", '"2.11.0+cu128"'),
        ("stand_in.torch.version", '"2.9.1"'),
        ("source.cuda_nvcc.sha256", "9961b348"),
    ):
        line = path.read_text().splitlines()[toml_line(path, key) - 1]
        assert word in line


def test_a_stand_ins_pin_is_explained_by_its_own_lock(scratch: Project) -> None:
    steps = trail(scratch, load_target(scratch, "cu128"), "stand_in.torch.version")
    assert any("stand-in/requirements.lock" in s.place and "2.9.1" in s.shows for s in steps)


def test_a_toolchain_component_is_followed_to_the_lock(scratch: Project) -> None:
    steps = trail(scratch, load_target(scratch, "cu130"), "toolchain.components.nvidia-cuda-nvcc")
    assert [s.place.split(":")[0] for s in steps] == [
        "images/cu130.toml",
        "images/cu130/requirements.lock",
    ]


def test_a_package_is_found_where_it_is_installed_and_nowhere_else(scratch: Project) -> None:
    steps = trail(scratch, load_target(scratch, "cu130"), "base.runtime_packages")
    shown = [s.shows.removesuffix(" \\") for s in steps[1:]]
    assert shown == list(load_target(scratch, "cu130").shared.base.runtime_packages)


def test_a_stand_in_explains_its_own_pins(scratch: Project) -> None:
    target = load_target(scratch, "cu128", stand_in=True)
    assert "2.9.1" in trail(scratch, target, "torch.version")[0].shows


def test_nothing_is_called_near_that_is_not(scratch: Project) -> None:
    target = load_target(scratch, "cu130")
    with pytest.raises(UnknownPinError) as caught:
        trail(scratch, target, "nothing.at.all")
    assert "lists all pins" in caught.value.remedy
    with pytest.raises(UnknownPinError) as caught:
        trail(scratch, target, "torch.verson")
    assert "torch.version" in caught.value.remedy
