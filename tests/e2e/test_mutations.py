"""Each deliberate breakage of the overlay makes the test named for it fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.project import default_project
from tests.e2e.breakages import BREAKAGES, Breakage
from tests.e2e.mutations import QUICK, ROOT, apply
from tests.e2e.quick import CHECKS
from tests.e2e.stack import Stack

PACKAGE = default_project().overlay / "src" / "ddtree_overlay"


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda b: b.name)
def test_a_breakage_fits_the_code_and_names_a_test(breakage: Breakage, tmp_path: Path) -> None:
    """Seconds, on any machine: so that a change of the code is answered here at once."""
    copy = tmp_path / breakage.file
    copy.parent.mkdir(parents=True)
    copy.write_text((PACKAGE / breakage.file).read_text("utf-8"), "utf-8")
    apply(breakage, tmp_path)
    compile(copy.read_text("utf-8"), breakage.file, "exec")
    if breakage.test.startswith(QUICK):
        assert breakage.test.removeprefix(QUICK) in CHECKS
    else:
        file, name = breakage.test.split("::")
        assert f"def {name}(" in (ROOT / file).read_text("utf-8")


def test_a_breakage_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(ValueError, match="occurs 2 times"):
        apply(Breakage("twice", "a.py", "x = 1", "x = 2", "quick:tokens"), tmp_path)


def test_names_are_unique() -> None:
    assert len({b.name for b in BREAKAGES}) == len(BREAKAGES) >= 12


@pytest.mark.docker
def test_each_breakage_is_seen(
    request: pytest.FixtureRequest, stack: Stack, tiny_models: Path, workspace: Path
) -> None:
    if stack.image and request.getfixturevalue("name") != "cu130":
        pytest.skip("the overlay's Python is the same in each image: cu130 has run it")
    proof = request.getfixturevalue("proof_file")
    out = workspace / "mutations.json"
    ran = stack.run(
        *("tests/e2e/mutations.py", str(tiny_models), str(proof), str(out)),
        writable=workspace,
        readable=[tiny_models, proof.parent],
        seconds=1200,
    )
    print(ran.stdout)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-6000:]
    found = json.loads(out.read_text("utf-8"))["breakages"]
    assert {one["name"] for one in found if one["caught"]} == {b.name for b in BREAKAGES}
