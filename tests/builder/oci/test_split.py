from __future__ import annotations

import pytest

from builder.oci.entries import FILE, FOLDER, LINK, Entry
from builder.oci.plan import plan
from builder.oci.split import GIB, PART_BYTES, SPLIT_BYTES, assign, deal, group_of
from builder.oci.tree import Tree

SITE = "opt/venv/lib/python3.11/site-packages"
MIB = 2**20
SIZES = {
    "nvidia/cu13/lib/libcublasLt.so.13": 517 * MIB,
    "nvidia/cu13/lib/libnvrtc.so.13": 105 * MIB,
    "nvidia/cu13/lib/libcufft.so.12": 274 * MIB,
    "nvidia/cudnn/lib/libcudnn.so.9": 471 * MIB,
    "torch/lib/libtorch_cuda.so": 700 * MIB,
    "torch/lib/libtorch_cpu.so": 300 * MIB,
    "triton/_C/libtriton.so": 512 * MIB,
    "numpy/core.so": 100 * MIB,
    "something/else.so": 80 * MIB,
}


def site(sizes: dict[str, int]) -> list[tuple[str, int]]:
    return [(f"{SITE}/{name}", size) for name, size in sizes.items()]


def test_a_large_layer_is_cut_by_owner_into_bounded_parts() -> None:
    found = assign(site(SIZES))
    total: dict[str, int] = {}
    for path, size in site(SIZES):
        total[found[path]] = total.get(found[path], 0) + size
    assert max(total.values()) <= PART_BYTES
    assert found[f"{SITE}/torch/lib/libtorch_cuda.so"] == "torch"
    assert found[f"{SITE}/nvidia/cu13/lib/libnvrtc.so.13"] == "cuda"
    assert found[f"{SITE}/something/else.so"] == "rest"


def test_a_small_layer_stays_whole() -> None:
    assert set(assign([(f"{SITE}/torch/a", SPLIT_BYTES - 1), ("usr/x", 1)]).values()) == {""}


@pytest.mark.parametrize("change", ["another/new.so", "numpy/core.so", "torch/new.py"])
def test_a_change_of_one_distribution_moves_no_file_of_another(change: str) -> None:
    before = assign(site(SIZES))
    after = assign(site({**SIZES, change: 3 * MIB}))
    assert {path: after[path] for path in before} == before


def test_a_group_that_grows_past_the_limit_is_dealt_out_and_moves_no_other() -> None:
    many = {f"other{n}/lib.so": 60 * MIB for n in range(30)}
    before = assign(site({**SIZES, **many}))
    assert {part for part in before.values() if part.startswith("rest")} == {"rest-1", "rest-2"}
    more = {f"other{n}/lib.so": 60 * MIB for n in range(45)}
    after = assign(site({**SIZES, **more}))
    moved = [p for p in before if before[p] != after[p]]
    assert all(after[p] == "rest-3" for p in moved), "only the new part may take files over"
    assert len(moved) < len(many)


def test_dealing_is_spread() -> None:
    counts = [0, 0, 0, 0]
    for number in range(400):
        counts[deal(f"unit{number}", 4)] += 1
    assert min(counts) > 60


def test_metadata_goes_with_its_distribution() -> None:
    for name, group in (
        ("torch-2.11.0.dist-info/RECORD", "torch"),
        ("torchvision/x.so", "rest"),
        ("nvidia_cublas-13.0.dist-info/RECORD", "cublas"),
        ("nvidia_cudnn_cu13-9.dist-info/RECORD", "cudnn"),
        ("numpy-2.dist-info/RECORD", "numeric"),
    ):
        assert group_of(f"{SITE}/{name}") == group


def test_every_part_has_the_folders_and_links_of_its_files() -> None:
    entries = [Entry(SITE, FOLDER, mode=0o750)]
    entries += [Entry(path, FILE, size=size) for path, size in site(SIZES)]
    entries.append(Entry("opt/other-name", LINK, target=f"{SITE}/torch/lib/libtorch_cuda.so"))
    entries.append(Entry("opt/empty", FOLDER))
    tree = Tree()
    tree.apply(0, entries)
    layers = plan(tree)
    assert [layer.part for layer in layers][-1] == "rest"
    placed: dict[str, str] = {}
    for layer in layers:
        seen: dict[str, str] = {}
        for item in layer.items:
            folder = item.path.rpartition("/")[0]
            assert not folder or seen[folder] == FOLDER, "a folder comes before what is in it"
            if item.kind == LINK:
                assert seen[item.target] == FILE, "a link comes after its target, in its layer"
            seen[item.path] = item.kind
            if item.path == SITE:
                assert item.entry.mode == 0o750
            if item.kind != FOLDER:
                assert placed.setdefault(item.path, layer.part) == layer.part
    assert len(placed) == len(SIZES) + 1
    assert sum("opt/empty" in {i.path for i in layer.items} for layer in layers) == 1
    assert GIB == SPLIT_BYTES


def test_a_name_that_is_not_utf_8_is_dealt_out_too() -> None:
    paths = [(f"{SITE}/odd\udcff{number}/a", GIB) for number in range(4)]
    assert len(set(assign(paths).values())) > 1
    assert deal("odd\udcff1", 3) == deal("odd\udcff1", 3)
