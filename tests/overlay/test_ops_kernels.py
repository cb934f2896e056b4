"""The choice of kernel files for a GPU, and the refusals. Needs no torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay import _kernels as kernels

CARRIED = ("sm_90", "sm_120", "compute_120")
SETS = {
    # GPU's capability, architectures carried, the one chosen
    "H100, H200": ((9, 0), CARRIED, "sm_90"),
    "RTX PRO 6000": ((12, 0), CARRIED, "sm_120"),
    "GB10": ((12, 1), CARRIED, "sm_120"),
    "L40S": ((8, 9), CARRIED, None),
    "A100": ((8, 0), CARRIED, None),
    "B200": ((10, 0), CARRIED, None),
    "B300": ((10, 3), CARRIED, None),
    "Thor": ((11, 0), CARRIED, None),
    "a later major": ((13, 0), CARRIED, "compute_120"),
    "two majors later": ((14, 2), CARRIED, "compute_120"),
    "the highest minor that fits": ((8, 9), ("sm_80", "sm_86", "sm_89", "sm_90"), "sm_89"),
    "not a higher minor": ((8, 6), ("sm_80", "sm_87", "sm_89"), "sm_80"),
    "a cubin before newer PTX": ((12, 1), ("sm_120", "compute_121"), "sm_120"),
    "PTX below": ((12, 1), ("sm_90", "compute_90", "compute_120"), "compute_120"),
    "PTX above": ((9, 0), ("compute_120",), None),
    "a on its own": ((9, 0), ("sm_90", "sm_90a"), "sm_90a"),
    "a not on a neighbour": ((12, 1), ("sm_120a", "sm_120"), "sm_120"),
    "a alone": ((12, 1), ("sm_120a",), None),
    "f in its family": ((12, 1), ("sm_120", "sm_120f"), "sm_120f"),
    "f not below its minor": ((10, 0), ("sm_103f",), None),
    "f not in another family": ((13, 0), ("sm_120f", "compute_120f"), None),
    "PTX of a": ((12, 0), ("compute_120a",), "compute_120a"),
    "PTX of a on a later one": ((12, 1), ("compute_120a", "compute_90"), "compute_90"),
    "nothing": ((12, 0), (), None),
}


@pytest.mark.parametrize("name", SETS)
def test_choice(name: str) -> None:
    capability, carried, expected = SETS[name]
    assert kernels.choose_architecture(capability, carried) == expected
    assert kernels.choose_architecture(capability, reversed(carried)) == expected


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(kernels.KernelFileError, match="gfx942"):
        kernels.choose_architecture((9, 0), ["gfx942"])


def write_kernels(folder: Path, **changes: Any) -> Path:
    """Two kernels for each architecture of CARRIED, as the build writes them."""
    files = []
    for kernel, entries in {"build_tree": ["ddtree_a"], "walk": ["ddtree_b", "ddtree_c"]}.items():
        for arch in CARRIED:
            kind = "cubin" if arch.startswith("sm_") else "ptx"
            name = f"{kernel}.{arch}.{kind}"
            code = f"{name}\n{' '.join(entries)}\n".encode()
            (folder / name).write_bytes(code)
            files.append(
                {
                    "file": name,
                    "kernel": kernel,
                    "arch": arch,
                    "kind": kind,
                    "sha256": hashlib.sha256(code).hexdigest(),
                    "entries": dict.fromkeys(entries),
                }
            )
    description = {"schema": 2, "nvrtc": "13.0.88", "options": [], "files": files, **changes}
    (folder / "kernels.json").write_text(json.dumps(description))
    return folder


def test_a_set_holds_every_kernel_of_one_architecture(tmp_path: Path) -> None:
    files = kernels.read_kernels(write_kernels(tmp_path))
    chosen = kernels.select_kernels("an RTX", (12, 0), files)
    assert [(file.path, file.entries) for file in chosen.files] == [
        (tmp_path / "build_tree.sm_120.cubin", ("ddtree_a",)),
        (tmp_path / "walk.sm_120.cubin", ("ddtree_b", "ddtree_c")),
    ]
    kernels.check_files(chosen)
    assert chosen.description == "sm_120 cubins"
    later = kernels.select_kernels("a later GPU", (13, 0), files)
    assert [file.path.name for file in later.files] == [
        *("build_tree.compute_120.ptx", "walk.compute_120.ptx")
    ]
    assert later.description == "compute_120 PTX, compiled by the driver"


def test_a_gpu_that_nothing_fits_is_named_with_what_is_carried(tmp_path: Path) -> None:
    files = kernels.read_kernels(write_kernels(tmp_path))
    with pytest.raises(kernels.KernelMissingError) as caught:
        kernels.select_kernels("cuda:1 (NVIDIA L40S)", (8, 9), files)
    text = str(caught.value)
    assert text.startswith("cuda:1 (NVIDIA L40S) has compute capability 8.9, ")
    assert "carries kernels for compute_120, sm_90, sm_120 only; " in text
    assert "cubin.sass" in text
    assert "CUDA_VISIBLE_DEVICES" in text
    assert "\n" not in text
    assert isinstance(caught.value, ImportError)


def test_a_kernel_without_the_architecture_is_named(tmp_path: Path) -> None:
    files = kernels.read_kernels(write_kernels(tmp_path))
    files = [file for file in files if file.path.name != "walk.sm_120.cubin"]
    with pytest.raises(kernels.KernelFileError, match="no sm_120 file of walk; reinstall"):
        kernels.select_kernels("an RTX", (12, 0), files)


@pytest.mark.parametrize("damage", ["changed", "truncated", "removed"])
def test_a_file_that_is_not_the_described_one_is_named(tmp_path: Path, damage: str) -> None:
    files = kernels.read_kernels(write_kernels(tmp_path))
    path = tmp_path / "walk.sm_120.cubin"
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + (b"x" if damage == "changed" else b""))
    chosen = kernels.select_kernels("an RTX", (12, 0), files)
    with pytest.raises(kernels.KernelFileError, match=r"walk\.sm_120\.cubin .*reinstall") as caught:
        kernels.check_files(chosen)
    assert "\n" not in str(caught.value)
    kernels.check_files(kernels.select_kernels("an H100", (9, 0), files))


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"schema": 2}', '{"schema": 2, "files": [{}]}']
)
def test_an_unusable_description_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "kernels.json").write_text(content)
    with pytest.raises(kernels.KernelFileError, match=r"kernels\.json cannot be used .*reinstall"):
        kernels.read_kernels(tmp_path)


def test_another_schema_is_named(tmp_path: Path) -> None:
    write_kernels(tmp_path, schema=1)
    with pytest.raises(kernels.KernelFileError, match="has schema 1, 2 is expected; reinstall"):
        kernels.read_kernels(tmp_path)
