"""Strict parsing and the cross-pin rules: every refusal names file, key and reason."""

from __future__ import annotations

import pytest

from builder.errors import PinConflictError, PinFileError, UnknownVariantError
from builder.pins import all_targets, known_variants, load_target
from builder.project import Project
from tests.builder.conftest import edit


def test_committed_pins_are_valid_and_complete(scratch: Project) -> None:
    names = [t.name for t in all_targets(scratch)]
    assert names == ["cu128", "cu128-stand-in", "cu130"]
    assert known_variants(scratch) == ["cu128", "cu130"]


def test_unknown_variant_lists_the_known_ones(scratch: Project) -> None:
    with pytest.raises(UnknownVariantError) as caught:
        load_target(scratch, "cu129")
    assert "cu129" in caught.value.what
    assert "cu128, cu130" in caught.value.remedy


def test_a_variant_without_stand_in_says_which_has_one(scratch: Project) -> None:
    with pytest.raises(UnknownVariantError) as caught:
        load_target(scratch, "cu130", stand_in=True)
    assert "cu128" in caught.value.remedy


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("cu130.toml", 'variant = "cu130"', 'variant = "cu130"\ncolour = "red"', ["colour", "unknown key"]),
        ("cu130.toml", 'driver_floor = "580.65.06"', "", ["cuda.driver_floor", "missing"]),
        ("cu130.toml", "driver_floor =", "driver_flor =", ["cuda.driver_flor:", "unknown key"]),
        ("cu130.toml", 'version = "13.0"', "version = 13.0", ["cuda.version"]),
        ("pins.toml", 'abi = "cp311"', "abi = ", ["not valid TOML"]),
        ("pins.toml", "@sha256:96e378d7e6531ac9a15ad505478fcc2e69f371b10f5cdf87857c4b8188404716", "", ["base.image", "without a digest"]),
        ("cu128.toml", 'sha256 = "aa09af4599121558f813e7089caa9d4ff43e7a31b3794c0e48523085484484f6"\n', "", ["source.3.sha256", "missing"]),
        ("cu128.toml", 'sha256 = "aa09af45', 'sha256 = "AA09', ["sha256", "64 lower-case hex"]),
        ("pins.toml", 'resolve_before = "2026-08-31"', 'resolve_before = "2026-13-31"', ["resolve_before"]),
        ("cu130.toml", "image_gib = 8.0", "image_gib = inf", ["budget.image_gib"]),
        ("cu130.toml", "overlay = 8\n", "", ["budget.layers_mib.overlay", "missing"]),
        ("cu130.toml", "sglang = 80", "sglang = 0", ["budget.layers_mib.sglang"]),
        ("pins.toml", "schema_version = 1", "schema_version = 2", ["schema_version"]),
    ],
)  # fmt: skip
def test_malformed_pins_are_refused_by_key(
    scratch: Project, file: str, old: str, new: str, words: list[str]
) -> None:
    edit(scratch.images / file, old, new)
    with pytest.raises(PinFileError) as caught:
        load_target(scratch, file[:5] if file != "pins.toml" else "cu130")
    for word in [file, *words]:
        assert word in caught.value.what
    assert caught.value.remedy
    assert "\n" not in caught.value.what


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("cu130.toml", 'variant = "cu130"', 'variant = "cu131"', ["variant"]),
        ("cu130.toml", 'version = "13.0"', 'version = "13.1"', ["cuda.version", "cu131"]),
        # PyPI's torch 2.10 is a CUDA 12.8 build.
        ("cu130.toml", 'version = "2.11.0" #', 'version = "2.10.0" #', ["torch.version", "12.8"]),
        ("cu130.toml", 'version = "2.11.0" #', 'version = "2.11.0+cu130" #', ["torch.version", "local"]),
        ("cu128.toml", 'version = "2.11.0+cu128"\ntorchvision', 'version = "2.11.0+cu129"\ntorchvision', ["torch.version", "+cu128"]),
        ("cu130.toml", 'cuda = "13.0"', 'cuda = "12.9"', ["kernels.cuda"]),
        ("cu130.toml", 'nvrtc = "13.0.88"', 'nvrtc = "13.5.10"', ["cubin.nvrtc"]),
        ("cu130.toml", 'sass = ["sm_90", "sm_120"]', 'sass = ["sm_90"]', ["cubin.sass", "sm_120"]),
        ("cu130.toml", 'nvidia-cuda-nvcc = "13.0.88"\n', "", ["toolchain.components", "nvidia-cuda-nvcc"]),
        ("cu130.toml", 'nvidia-nvvm = "13.0.88"', 'nvidia-nvvm = "13.5.88"', ["toolchain.components.nvidia-nvvm"]),
        ("cu128.toml", 'name = "cuda_cccl"', 'name = "cuda_nvcc"', ["twice", "cuda_nvcc"]),
        ("cu128.toml", 'cuda_cccl = "12.8.90"', 'cuda_cccl = "12.8.91"', ["source.version", "cuda_cccl"]),
        ("cu128.toml", 'filename = "cuda_cccl-linux', 'filename = "cuda_ccl-linux', ["source.filename"]),
    ],
)  # fmt: skip
def test_pins_that_do_not_fit_each_other_are_refused(
    scratch: Project, file: str, old: str, new: str, words: list[str]
) -> None:
    edit(scratch.images / file, old, new)
    with pytest.raises(PinConflictError) as caught:
        load_target(scratch, file[:5])
    for word in [file, *words]:
        assert word in caught.value.what
    assert caught.value.remedy


def test_a_real_variant_may_not_lack_its_toolchain(scratch: Project) -> None:
    edit(scratch.images / "cu130.toml", 'source = "wheels"', 'source = "absent"')
    with pytest.raises(PinConflictError) as caught:
        load_target(scratch, "cu130")
    assert "toolchain.source" in caught.value.what
