"""Rules on a resolved set: no second CUDA major, the pins' versions, hashes on everything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.errors import LockResolveError
from builder.lock.entries import LockEntry
from builder.lock.inputs import pinned_versions
from builder.lock.rules import broken_rules, check_rules
from builder.pins import Target, all_targets
from builder.project import default_project

HASH = "a" * 64
TARGETS = all_targets(default_project())
BY_NAME = {target.name: target for target in TARGETS}


def sound(target: Target) -> list[LockEntry]:
    """The smallest set that breaks no rule."""
    pinned = {s.name: s.sha256 for s in target.sources if s.kind == "wheel"}
    return [
        LockEntry(name, version, (pinned.get(name, HASH),))
        for name, version in pinned_versions(target).items()
    ]


def with_one(target: Target, requirement: str) -> list[str]:
    name, version = requirement.split("==")
    return broken_rules(target, [*sound(target), LockEntry(name, version, (HASH,))])


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_sound_set_passes(target: Target) -> None:
    check_rules(target, sound(target))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_every_pinned_version_must_be_met(target: Target) -> None:
    for index, entry in enumerate(sound(target)):
        entries = sound(target)
        entries[index] = replace(entry, version=entry.version + "9")
        assert any(f"{entry.name} is" in line for line in broken_rules(target, entries))
        del entries[index]
        assert f"{entry.name} is absent" in broken_rules(target, entries)[0]


@pytest.mark.parametrize(
    "foreign",
    [
        "nvidia-cudnn-cu13==9.19.0.56",
        "nvidia-cutlass-dsl-libs-cu13==4.6.0",
        "cupy-cuda13x==13.0",
        "somelib==1.0+cu130",
        # CUDA 13's components have no suffix; their own versions may be any number
        "nvidia-cuda-nvcc==13.3.33",
        "nvidia-cuda-runtime==13.3.10",
        "nvidia-cuda-nvrtc==13.3.33",
        "nvidia-cublas==13.1.0.3",
        "nvidia-cufft==12.0.0.61",
        "nvidia-nvjitlink==13.0.88",
        "cuda-python==13.3.1",
        "cuda-bindings==13.3.1",
        "cuda-toolkit==13.0.2",
    ],
)
@pytest.mark.parametrize("name", ["cu128", "cu128-stand-in"])
def test_cuda_13_in_a_cuda_12_lock(name: str, foreign: str) -> None:
    (line,) = with_one(BY_NAME[name], foreign)
    assert foreign in line


@pytest.mark.parametrize(
    "foreign",
    [
        "nvidia-cublas-cu12==12.8.4.1",
        "nvidia-cuda-runtime-cu12==12.8.90",
        "nvidia-cutlass-dsl-libs-cu12x==4.6.0",
        "somelib==1.0+cu129",
        "nvidia-nvtx==12.8.90",
        "nvidia-cuda-nvdisasm-extra==12.9.88",
        "cuda-python==12.9.7",
        "cuda-toolkit==12.8.1",
    ],
)
def test_cuda_12_in_a_cuda_13_lock(foreign: str) -> None:
    (line,) = with_one(BY_NAME["cu130"], foreign)
    assert foreign in line


@pytest.mark.parametrize(
    "neutral",
    [
        "nvidia-ml-py==13.610.43",
        "nvidia-mathdx==25.6.0",
        "nvidia-cudnn-frontend==1.27.0",
        "nvidia-cutlass-dsl==4.6.0",
        "cuda-core==1.0.1",
        "cuda-pathfinder==1.8.0",
        "executing==2.2.1",
        "accumulate==13.0",
    ],
)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_what_follows_no_toolkit_may_stay(target: Target, neutral: str) -> None:
    assert with_one(target, neutral) == []


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_an_excluded_distribution_must_be_gone(target: Target) -> None:
    for excluded in target.lock.exclude:
        found = with_one(target, f"{excluded.distribution}==1.0")
        assert any(excluded.reason in line for line in found)


def test_other_offences() -> None:
    target = BY_NAME["cu130"]
    assert "sglang is in the lock" in with_one(target, "sglang==0.5.17")[0]
    assert "torch is there twice" in with_one(target, f"torch=={target.torch.version}")[0]
    bare = [*sound(target), LockEntry("x", "1.0", ())]
    assert broken_rules(target, bare) == ["x==1.0 has no hash"]


def test_a_source_wheel_has_its_pinned_hash_and_no_other() -> None:
    target = BY_NAME["cu128"]
    for hashes in [(HASH,), (target.sources[0].sha256, HASH)]:
        entries = [
            replace(e, hashes=hashes) if e.name == target.sources[0].name else e
            for e in sound(target)
        ]
        assert "other hashes" in broken_rules(target, entries)[0]


def test_the_error_names_the_first_and_counts_the_rest() -> None:
    target = BY_NAME["cu130"]
    entries = [*sound(target), LockEntry("a-cu12", "1", (HASH,)), LockEntry("b", "1", ())]
    with pytest.raises(LockResolveError, match=r"cu130: a-cu12==1 .*\(and 1 more\)") as caught:
        check_rules(target, entries)
    assert "images/cu130.toml" in caught.value.remedy
