"""Resolving against a small index: for the image, before the day, and by the rules."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import LockResolveError, SourceUnreachableError
from builder.lock.entries import LockEntry, parse_lock
from builder.lock.inputs import pinned_versions, resolve_inputs
from builder.lock.resolver import resolve
from builder.pins import LockPins, Target, all_targets, load_target
from builder.project import Project, default_project
from tests.builder.sources.fakes import PLATFORM, Site, digest, make_wheel

PROJECT = default_project()


def publish(
    site: Site, filename: str, *requires: str, uploaded: str = "2026-08-01T00:00:00Z"
) -> str:
    body = make_wheel(filename, requires)
    site.publish(filename, body, uploaded)
    return digest(body)


def world(site: Site, variant: str, *extra: str) -> Target:
    """An index with everything the target pins, SGLang asking for `extra`; the target for it."""
    target = load_target(PROJECT, variant)
    from_sources = {s.name for s in target.sources}
    for name, version in pinned_versions(target).items():
        if name not in from_sources:
            publish(site, f"{name.replace('-', '_')}-{version}-{PLATFORM}.whl")
    for source in target.sources:
        for line in source.requires:
            name = re.split(r"[\[<=>]", line)[0]
            if name not in from_sources | set(pinned_versions(target)):
                asked = re.search(r"[=>]=([\w.]+)", line)
                version = asked[1] if asked else "1.0"
                publish(site, f"{name.replace('-', '_')}-{version}-py3-none-any.whl")
    shared = target.shared
    sha256 = publish(site, shared.sglang.wheel, *extra)
    sglang = shared.sglang.model_copy(update={"sha256": sha256})
    pins = shared.model_copy(update={"sglang": sglang})
    return _with(target, shared=pins, lock=LockPins())


def _with(target: Target, **changes: object) -> Target:
    return replace(target, **changes)  # type: ignore[arg-type]


def locked(target: Target) -> dict[str, LockEntry]:
    return {entry.name: entry for entry in parse_lock(resolve(PROJECT, target))}


def test_exactly_the_wheels_of_the_image(site: Site) -> None:
    target = world(site, "cu130", "tool")
    good = publish(site, f"tool-2.0-{PLATFORM}.whl")
    for tags in ("cp311-cp311-macosx_11_0_arm64", "cp312-cp312-manylinux_2_17_x86_64"):
        publish(site, f"tool-2.0-{tags}.whl")
    publish(site, "tool-3.0-cp311-cp311-manylinux_2_39_x86_64.whl")  # newer glibc than Debian 12's
    site.publish("tool-4.0.tar.gz", b"source")
    entry = locked(target)["tool"]
    assert (entry.version, entry.hashes, entry.via) == ("2.0", (good,), ("sglang",))
    assert [file.filename for file in entry.files] == [f"tool-2.0-{PLATFORM}.whl"]
    assert entry.files[0].size == len(site.index[f"tool-2.0-{PLATFORM}.whl"].body)


def test_the_pins_say_what_the_image_is(site: Site) -> None:
    """A glibc that few hosts have: the host's own platform would not do."""
    target = world(site, "cu130", "tool")
    publish(site, "tool-1.0-py3-none-any.whl")
    publish(site, "tool-2.0-cp311-cp311-manylinux_2_40_x86_64.whl")
    python = target.shared.python.model_copy(update={"resolve_platform": "x86_64-manylinux_2_40"})
    newer = _with(target, shared=target.shared.model_copy(update={"python": python}))
    assert locked(target)["tool"].version == "1.0"
    assert locked(newer)["tool"].version == "2.0"


def test_files_of_the_day_itself_are_ignored(site: Site) -> None:
    target = world(site, "cu130", "tool")
    publish(site, "tool-1.0-py3-none-any.whl")
    day = target.shared.resolve_before
    publish(site, "tool-2.0-py3-none-any.whl", uploaded=f"{day}T00:00:01Z")
    assert locked(target)["tool"].version == "1.0"


def test_sglang_itself_is_not_in_the_lock(site: Site) -> None:
    assert set(locked(world(site, "cu130"))) == set(pinned_versions(load_target(PROJECT, "cu130")))


def test_the_index_must_list_the_pinned_sglang(site: Site) -> None:
    target = world(site, "cu130")
    site.publish(target.shared.sglang.wheel, make_wheel(target.shared.sglang.wheel, filler=b"x"))
    with pytest.raises(LockResolveError, match=r"sglang\.sha256"):
        resolve(PROJECT, target)


def test_the_same_inputs_give_the_same_bytes(site: Site) -> None:
    target = world(site, "cu130", "tool")
    publish(site, "tool-1.0-py3-none-any.whl")
    text = resolve(PROJECT, target)
    assert resolve(PROJECT, target) == text
    assert site.url not in text and "http" not in text
    assert resolve_inputs(target).digest() in text


def test_a_source_wheel_carries_its_pinned_hash_alone(site: Site) -> None:
    target = world(site, "cu128")
    entries = locked(target)
    for source in target.sources:
        if source.kind == "wheel":
            assert entries[source.name].hashes == (source.sha256,)
            assert entries[source.name].version == source.version
    assert "jinja2" in entries  # asked for by the stub of torch


def test_a_second_cuda_major_is_refused(site: Site) -> None:
    target = world(site, "cu128", "nvidia-cuda-nvcc")
    publish(site, f"nvidia_cuda_nvcc-13.3.33-{PLATFORM}.whl")
    with pytest.raises(LockResolveError, match=r"nvidia-cuda-nvcc==13\.3\.33"):
        resolve(PROJECT, target)


def test_an_override_and_an_exclusion_act(site: Site) -> None:
    target = world(site, "cu128", "nvidia-cuda-nvdisasm", "cuda-python>=13")
    publish(site, f"nvidia_cuda_nvdisasm-13.3.73-{PLATFORM}.whl")
    for version in ("12.9.7", "13.3.1"):
        publish(site, f"cuda_python-{version}-py3-none-any.whl")
    pins = LockPins.model_validate(
        {
            "overrides": ("cuda-python>=12,<13",),
            "exclude": ({"distribution": "nvidia-cuda-nvdisasm", "reason": "unused"},),
        }
    )
    entries = locked(_with(target, lock=pins))
    assert entries["cuda-python"].version == "12.9.7"
    assert entries["cuda-python"].via == ("pins", "sglang")
    assert "nvidia-cuda-nvdisasm" not in entries


def test_no_solution_says_why(site: Site) -> None:
    target = world(site, "cu130", "tool>=5")
    publish(site, "tool-1.0-py3-none-any.whl")
    with pytest.raises(LockResolveError, match=r"cu130: .*tool") as caught:
        resolve(PROJECT, target)
    assert "\n" not in caught.value.what
    assert "images/cu130.toml" in caught.value.remedy


def test_an_index_that_does_not_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    target = world(site, "cu130")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(SourceUnreachableError, match="does not answer") as caught:
        resolve(PROJECT, target)
    assert "UV_DEFAULT_INDEX" in caught.value.remedy


def test_settings_of_the_users_uv_change_nothing(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = world(site, "cu130", "tool")
    publish(site, "tool-1.0-py3-none-any.whl")
    publish(site, "tool-2.0-py3-none-any.whl")
    text = resolve(PROJECT, target)
    (tmp_path / "cap.txt").write_text("tool<2\n")
    monkeypatch.setenv("UV_CONSTRAINT", str(tmp_path / "cap.txt"))
    monkeypatch.setenv("UV_RESOLUTION", "lowest")
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2020-01-01")
    monkeypatch.setenv("UV_INDEX", "http://127.0.0.1:9/simple")
    config = tmp_path / "config"
    (config / "uv").mkdir(parents=True)
    (config / "uv" / "uv.toml").write_text('[pip]\nresolution = "lowest"\nno-index = true\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    assert resolve(PROJECT, target) == text


@pytest.mark.parametrize("target", all_targets(PROJECT), ids=lambda t: t.name)
def test_every_input_is_in_the_digest(target: Target) -> None:
    before = resolve_inputs(target).digest()
    shared = target.shared
    changed = [
        _with(target, torch=target.torch.model_copy(update={"version": "9.9"})),
        _with(target, cubin=target.cubin.model_copy(update={"nvrtc": "9.9"})),
        _with(target, lock=target.lock.model_copy(update={"constraints": ("x<1",)})),
        _with(target, lock=target.lock.model_copy(update={"overrides": ("x<1",)})),
        _with(target, shared=shared.model_copy(update={"resolve_before": "2026-01-01"})),
        *(
            _with(target, sources=(source.model_copy(update={"requires": ("x",)}),))
            for source in target.sources
            if source.kind == "wheel"
        ),
    ]
    digests = {resolve_inputs(other).digest() for other in changed}
    assert len(digests) == len(changed)
    assert before not in digests


def test_the_digest_does_not_depend_on_the_folder(tmp_path: Path) -> None:
    shutil.copytree(PROJECT.images, tmp_path / "images")
    there, here = load_target(Project(tmp_path), "cu128"), load_target(PROJECT, "cu128")
    assert resolve_inputs(there).digest() == resolve_inputs(here).digest()
