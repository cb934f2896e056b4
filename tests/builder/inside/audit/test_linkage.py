from __future__ import annotations

import pytest

from builder.inside.audit.linkage import cuda_major, expand


@pytest.mark.parametrize(
    ("name", "major"),
    [
        ("libcudart.so.13", 13),
        ("libcudart.so.12.8.90", 12),
        ("libcudart-d0da41ae.so.12", 12),
        ("libnvjpeg.36e11081.so.13", 13),
        ("libnppicc.so.12", 12),
        ("libcufft.so.11", 12),
        ("libcufft.so.12", 13),
        ("libcusolver.so.12", 13),
        ("libcusparse.so.12", None),  # the same number in CUDA 12 and 13
        ("libcurand.so.10", None),
        ("libcudnn.so.9", None),
        ("libcudart.so", None),
        ("libcuda.so.1", None),
        ("libc.so.6", None),
    ],
)
def test_cuda_major_of_a_soname(name: str, major: int | None) -> None:
    assert cuda_major(name) == major


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ("$ORIGIN", "a/b"),
        ("${ORIGIN}/../c", "a/c"),
        ("$ORIGIN/../../x/lib", "x/lib"),
        ("/usr/lib/special", "usr/lib/special"),
    ],
)
def test_origin_is_the_library_s_folder(entry: str, place: str) -> None:
    assert expand(entry, "a/b") == place
