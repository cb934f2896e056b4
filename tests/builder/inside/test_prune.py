"""Pruning: what goes, what the RECORD says afterwards, and what is refused before anything goes."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from builder.inside import prune as module
from builder.inside.prune import PRUNE_FAILED, PruneError, load_rules, main, prune
from builder.project import default_project
from tests.builder.inside.tree import SITE, Tree, fatbin

EXACT = 0x100000  # the `a` of sm_90a
FAMILY = 0x200000
CUBIN, PTX = 2, 1


@pytest.fixture
def site(tmp_path: Path) -> Path:
    tree = Tree(tmp_path)
    files = {
        "pkg/keep.py": "kept",
        "pkg/big.so": "x" * 100,
        "pkg/sub/tests/test_a.py": "a",
        "pkg/sub/tests/deep/test_b.py": "b",
        "pkg/lib.a": "static",
        "pkg/real.so": "real",
        "pkg/twin.so": "twin",
    }
    tree.install("pkg", "1", extra=files)
    tree.install("other", "1", extra={"other/lib.a": "static", "shared.py": "both"})
    record = tree.site / "pkg-1.dist-info/RECORD"
    record.write_text(record.read_text() + "shared.py,,\n")
    return tmp_path / SITE


def rules(*entries: str) -> list[module.Rule]:
    return load_rules("".join(f"[[prune]]\n{entry}\n" for entry in entries))


def recorded(site: Path, distribution: str) -> dict[str, tuple[str, str]]:
    text = (site / f"{distribution}-1.dist-info/RECORD").read_text()
    return {row[0]: (row[1], row[2]) for row in csv.reader(text.splitlines())}


def everything(site: Path) -> dict[str, bytes]:
    return {str(p.relative_to(site)): p.read_bytes() for p in site.rglob("*") if p.is_file()}


def test_matching_files_go_and_their_owner_forgets_them(site: Path) -> None:
    before = recorded(site, "pkg")
    (removed,) = prune(site, rules('paths = ["pkg/big.so"]\nreason = "unused"'), "cu130")
    assert removed.files == ("pkg/big.so",)
    assert removed.size == 100
    assert not (site / "pkg/big.so").exists()
    assert recorded(site, "pkg") == {k: v for k, v in before.items() if k != "pkg/big.so"}
    assert (site / "pkg/keep.py").read_text() == "kept"


def test_a_folder_goes_whole_and_emptied_parents_with_it(site: Path) -> None:
    prune(site, rules('paths = ["pkg/**/tests"]\nreason = "unused"'), "cu130")
    assert not (site / "pkg/sub").exists()
    assert not [name for name in recorded(site, "pkg") if "tests" in name]


def test_a_file_of_two_owners_leaves_both_records(site: Path) -> None:
    prune(site, rules('paths = ["shared.py"]\nreason = "unused"'), "cu130")
    assert "shared.py" not in recorded(site, "pkg")
    assert "shared.py" not in recorded(site, "other")


def test_overlapping_rules_count_a_file_once(site: Path) -> None:
    chosen = rules('paths = ["pkg/*.a"]\nreason = "r"', 'paths = ["pkg/lib.a"]\nreason = "r"')
    first, second = prune(site, chosen, "cu130")
    assert (first.files, second.files) == (("pkg/lib.a",), ())


def test_a_rule_of_another_variant_is_left_alone(site: Path) -> None:
    chosen = rules('paths = ["pkg/gone.so"]\nreason = "r"\nvariants = ["cu128"]')
    assert prune(site, chosen, "cu130") == []
    with pytest.raises(PruneError, match=r"dead rule: pkg/gone\.so"):
        prune(site, chosen, "cu128")


def test_one_dead_pattern_of_several_is_an_error_and_nothing_goes(site: Path) -> None:
    before = everything(site)
    chosen = rules(
        'paths = ["pkg/big.so"]\nreason = "r"', 'paths = ["pkg/lib.a", "pkg/no.a"]\nreason = "r"'
    )
    with pytest.raises(PruneError, match=r"dead rule: pkg/no\.a"):
        prune(site, chosen, "cu130")
    assert everything(site) == before


def test_an_optional_rule_may_match_nothing(site: Path) -> None:
    chosen = rules('paths = ["pkg/no.a"]\nreason = "r"\noptional = true\noptional_reason = "why"')
    assert prune(site, chosen, "cu130")[0].files == ()


def test_a_link_takes_the_place_and_the_record_stays_true(site: Path) -> None:
    chosen = rules('paths = ["pkg/twin.so"]\nreason = "r"\nlink_to = "pkg/real.so"')
    prune(site, chosen, "cu130")
    assert (site / "pkg/twin.so").readlink() == Path("real.so")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"real").digest()).rstrip(b"=").decode()
    assert recorded(site, "pkg")["pkg/twin.so"] == (f"sha256={digest}", "4")


@pytest.mark.parametrize("goal", ["pkg/absent.so", "pkg/twin.so"])
def test_a_link_must_lead_to_a_file_that_stays(site: Path, goal: str) -> None:
    before = everything(site)
    chosen = rules(f'paths = ["pkg/twin.so"]\nreason = "r"\nlink_to = "{goal}"')
    with pytest.raises(PruneError, match="not a file that stays"):
        prune(site, chosen, "cu130")
    assert everything(site) == before


def test_a_file_that_nobody_owns_is_refused(site: Path) -> None:
    (site / "pkg/stray.so").write_text("?")
    with pytest.raises(PruneError, match="belongs to no installed distribution"):
        prune(site, rules('paths = ["pkg/stray.so"]\nreason = "r"'), "cu130")
    assert (site / "pkg/stray.so").exists()


def test_a_link_out_of_site_packages_is_not_followed(site: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.a").write_text("!")
    (site / "pkg/escape").symlink_to(outside)
    with pytest.raises(PruneError, match="outside site-packages"):
        prune(site, rules('paths = ["pkg/escape/*.a"]\nreason = "r"'), "cu130")
    assert (outside / "precious.a").exists()


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ('paths = ["../x"]\nreason = "r"', "must stay below"),
        ('paths = ["pkg/../../x"]\nreason = "r"', "must stay below"),
        ('paths = ["/etc/passwd"]\nreason = "r"', "must stay below"),
        ('paths = ["**/*.a"]\nreason = "r"', "must stay below"),
        ('paths = ["pkg/x"]\nreason = "r"\nlink_to = "../y"', "must stay below"),
        ('paths = ["pkg/x"]', "paths and reason"),
        ('paths = ["pkg/x"]\nreason = " "', "paths and reason"),
        ('paths = []\nreason = "r"', "paths and reason"),
        ('paths = ["pkg/x"]\nreason = "r"\noptional = true', "go together"),
        ('paths = ["pkg/x"]\nreason = "r"\nvariant = ["cu130"]', "unknown key variant"),
        ('paths = ["pkg/x"]\nreason = "r"\nno_code_for = "120"', "no architecture"),
        ('paths = ["pkg/x"', "not valid TOML"),
    ],
)
def test_malformed_rules_are_refused(entry: str, why: str) -> None:
    with pytest.raises(PruneError, match=why):
        rules(entry)


PROOF = 'paths = ["pkg/big.so"]\nreason = "r"\nno_code_for = "sm_120"'


@pytest.mark.parametrize(
    "entries",
    [
        [(CUBIN, 80, 0), (CUBIN, 86, 0), (CUBIN, 90, EXACT)],
        [(CUBIN, 100, EXACT), (CUBIN, 103, EXACT), (CUBIN, 110, FAMILY)],
        [(CUBIN, 121, 0), (CUBIN, 121, EXACT)],
        [(PTX, 121, 0), (PTX, 90, EXACT), (PTX, 100, FAMILY)],
    ],
)
def test_proof_accepts_what_sm_120_cannot_run(
    site: Path, entries: list[tuple[int, int, int]]
) -> None:
    (site / "pkg/big.so").write_bytes(b"\x7fELF" + b"pad" * 7 + fatbin(*entries))
    assert prune(site, rules(PROOF), "cu130")[0].files == ("pkg/big.so",)


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ((CUBIN, 120, 0), "sm_120"),
        ((CUBIN, 120, EXACT), "sm_120a"),
        ((CUBIN, 120, FAMILY), "sm_120f"),
        ((PTX, 120, 0), "compute_120"),
        ((PTX, 75, 0), "compute_75"),
        ((PTX, 120, EXACT), "compute_120a"),
        ((8, 90, 0), "lto_90"),
        ((9, 90, 0), "kind-9-90"),
    ],
)
def test_proof_refuses_what_sm_120_can_run(
    site: Path, entry: tuple[int, int, int], name: str
) -> None:
    content = b"\x7fELF" + fatbin((CUBIN, 90, EXACT)) + b"between" + fatbin((CUBIN, 80, 0), entry)
    (site / "pkg/big.so").write_bytes(content)
    with pytest.raises(PruneError, match=name):
        prune(site, rules(PROOF), "cu130")
    assert (site / "pkg/big.so").exists()


@pytest.mark.parametrize("content", [b"", b"\x7fELF" + b"\0" * 200, b"\x50\xed\x55\xba" * 9])
def test_proof_needs_device_code_to_speak_of(site: Path, content: bytes) -> None:
    (site / "pkg/big.so").write_bytes(content)
    with pytest.raises(PruneError, match="holds no device code"):
        prune(site, rules(PROOF), "cu130")


@pytest.mark.parametrize(
    "unknown", [fatbin((CUBIN, 120, 0), version=2), fatbin((CUBIN, 120, 0), entry_version=0x102)]
)
def test_proof_refuses_a_fat_binary_that_it_cannot_read(site: Path, unknown: bytes) -> None:
    (site / "pkg/big.so").write_bytes(fatbin((CUBIN, 90, EXACT)) + unknown)
    with pytest.raises(PruneError, match=r"pkg/big\.so: .* unknown version"):
        prune(site, rules(PROOF), "cu130")
    assert (site / "pkg/big.so").exists()


def test_proof_refuses_a_fat_binary_that_is_cut_off(site: Path) -> None:
    (site / "pkg/big.so").write_bytes(fatbin((CUBIN, 90, EXACT)) + fatbin((CUBIN, 90, 0))[:-1])
    with pytest.raises(PruneError, match=r"pkg/big\.so: .* cut off"):
        prune(site, rules(PROOF), "cu130")


def test_the_magic_number_as_an_operand_is_no_fat_binary(site: Path) -> None:
    operand = b"\x81\x38\x50\xed\x55\xba\x0f\x85" + b"\x90" * 20
    (site / "pkg/big.so").write_bytes(operand + fatbin((CUBIN, 90, EXACT)))
    assert prune(site, rules(PROOF), "cu130")[0].files == ("pkg/big.so",)


def test_as_a_plain_script_with_a_report(site: Path, tmp_path: Path) -> None:
    """That is how the early build stage runs it: no package, no path, nothing installed."""
    listed = tmp_path / "prune.toml"
    listed.write_text('[[prune]]\npaths = ["pkg/big.so"]\nreason = "unused"\n')
    report = tmp_path / "home/prune.json"
    argv = ["--site", site, "--rules", listed, "--variant", "cu130", "--report", report]
    if sys.version_info < (3, 11):
        pytest.skip("a bare Python 3.10 has no TOML parser; the image has 3.11")
    script = [sys.executable, "-I", "-S", module.__file__, *map(str, argv)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(report.read_text())
    assert (document["bytes"], document["files"], document["variant"]) == (100, 1, "cu130")
    assert document["rules"][0]["reason"] == "unused"


def test_a_failure_is_one_line(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "prune.toml"
    listed.write_text('[[prune]]\npaths = ["pkg/no.so"]\nreason = "unused"\n')
    report = tmp_path / "prune.json"
    argv = ["--site", site, "--rules", listed, "--variant", "cu130", "--report", report]
    assert main(list(map(str, argv))) == PRUNE_FAILED
    error = capsys.readouterr().err
    assert error.startswith("prune: dead rule")
    assert error.count("\n") == 1
    assert not report.exists()


def test_the_shipped_list_is_well_formed_and_reasoned() -> None:
    shipped = load_rules((default_project().images / "prune.toml").read_text("utf-8"))
    assert shipped
    assert all(len(rule.reason) > 20 for rule in shipped)
    assert {v for rule in shipped for v in rule.variants} <= {"cu128", "cu130"}
    proven = {path for rule in shipped if rule.no_code_for == "sm_120" for path in rule.paths}
    assert "sgl_kernel/flash_ops*.so" in proven


def _with_scripts(site: Path) -> Path:
    folder = site.parents[2] / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "kept").write_text("#!/bin/sh\n")
    for owner in ("pkg", "other"):
        record = site / f"{owner}-1.dist-info/RECORD"
        record.write_text(record.read_text() + "../../../bin/tool,sha256=x,10\n")
    return folder


def test_a_script_of_two_owners_leaves_both_records(site: Path) -> None:
    folder = _with_scripts(site)
    (removed,) = prune(site, rules('scripts = ["tool"]\nreason = "chance"'), "cu130")
    assert removed.files == ("../../../bin/tool",)
    assert [path.name for path in sorted(folder.iterdir()) if path.name in ("tool", "kept")] == [
        "kept"
    ]
    for owner in ("pkg", "other"):
        assert "../../../bin/tool" not in recorded(site, owner)


@pytest.mark.parametrize("size", [3, 30_000])
def test_what_chance_left_of_two_owners_does_not_show_in_the_report(site: Path, size: int) -> None:
    """Installed in parallel, the one or the other lies there: the report is part of the image."""
    _with_scripts(site)
    (site.parents[2] / "bin/tool").write_text("x" * size)
    (removed,) = prune(site, rules('scripts = ["tool"]\nreason = "chance"'), "cu130")
    assert removed.size == 10


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('scripts = ["absent"]\nreason = "r"', "no script absent"),
        ('scripts = ["../x"]\nreason = "r"', "no name of a script"),
    ],
)
def test_a_dead_or_unsafe_script_rule_is_refused(site: Path, entry: str, message: str) -> None:
    _with_scripts(site)
    before = everything(site)
    with pytest.raises(PruneError, match=message):
        prune(site, rules(entry), "cu130")
    assert everything(site) == before
