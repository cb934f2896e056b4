"""A pin's stations are found where they really are."""

from __future__ import annotations

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


def test_a_stand_in_explains_its_own_pins(scratch: Project) -> None:
    target = load_target(scratch, "cu128", stand_in=True)
    assert "2.9.1" in trail(scratch, target, "torch.version")[0].shows
