"""Each rule catches its broken trees and passes the clean one."""

from __future__ import annotations

import pytest

from builder.inside.audit.rules import RULES
from builder.inside.audit.run import audit
from builder.inside.audit.torch_abi import extensions
from tests.builder.inside.audit.corpus import CORPUS, Broken
from tests.builder.inside.tree import PYTHON, SITE, SYSTEM, TOOLKIT, Tree


@pytest.mark.parametrize("broken", CORPUS, ids=lambda b: f"{b.code}-{b.what}")
def test_a_broken_tree_is_caught(tree: Tree, broken: Broken) -> None:
    broken.break_it(tree)
    outcome = audit(tree.context(import_checks=True, **broken.target), RULES, [])
    hits = [f for f in outcome.result.errors if f.code == broken.code]
    assert hits, f"{broken.what}: not found among {outcome.result.errors}"
    assert any(broken.evidence in f"{f.file} {f.evidence}" for f in hits), hits
    assert all(f.remedy for f in hits)
    assert not outcome.passed


def test_a_clean_tree_gives_no_finding_and_every_rule_looks(tree: Tree) -> None:
    outcome = audit(tree.context(import_checks=True), RULES, [])
    assert outcome.result.errors == ()
    assert outcome.skipped == ()
    assert all(outcome.context.checked[rule.code] for rule in RULES)


def test_every_code_has_a_broken_tree() -> None:
    assert {rule.code for rule in RULES} | {"ABI002"} == {broken.code for broken in CORPUS}


STAND_IN = {
    "name": "cu130-stand-in",
    "stand_in": True,
    "stand_in_reason": "tests",
    "toolchain": {"source": "absent", "home": "", "components": {}, "reason": "not published"},
}


def test_a_stand_in_may_lack_the_toolkit_with_a_reason(tree: Tree) -> None:
    outcome = audit(tree.context(import_checks=True, **STAND_IN), RULES, [])
    assert outcome.result.errors == ()
    assert [rule.code for rule in outcome.skipped] == ["JIT002", "JIT005", "JIT006"]
    assert outcome.context.notes["toolkit"] == "absent: not published"


def test_the_import_borrows_no_module_of_the_audit(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/tools")
    python = '#!/bin/sh\n[ -z "$PYTHONPATH" ] || exit 1\n'
    tree.write("opt/ddtree/venv/bin/python", python + PYTHON.removeprefix("#!/bin/sh\n"))
    outcome = audit(tree.context(import_checks=True), RULES, [])
    assert outcome.result.errors == ()
    assert outcome.context.checked["REG003"] == 1


def test_extensions_are_known_by_needed_or_by_symbols(tree: Tree) -> None:
    tree.library("plain/_ext.so", undefined=["cudaMalloc"])
    found = {elf.path.removeprefix(f"{SITE}/") for elf in extensions(tree.context())}
    assert "cuda/core/cu13/_tensor_bridge.so" in found
    assert "sgl_kernel/common_ops.abi3.so" in found
    assert "plain/_ext.so" not in found


def test_an_override_waives_what_it_replaces(tree: Tree) -> None:
    tree.install("old", "1", requires=["torch<2"])
    context = tree.context(overridden=["torch==2.11.0"])
    outcome = audit(context, RULES, [])
    assert not [f for f in outcome.result.errors if f.code == "DST001"]
    assert context.notes["waived_requirements"] == ["old: torch<2 (override torch==2.11.0)"]


def test_an_exclusion_waives_what_needs_it(tree: Tree) -> None:
    tree.install("old", "1", requires=["nvidia-cuda-nvdisasm>=13.3"])
    excluded = [{"distribution": "nvidia-cuda-nvdisasm", "reason": "nothing loads it"}]
    outcome = audit(tree.context(excluded=excluded), RULES, [])
    assert not [f for f in outcome.result.errors if f.code == "DST001"]


def test_one_content_recorded_by_two_owners_is_harmless(tree: Tree) -> None:
    """NVIDIA's packages all bring the same nvidia/__init__.py."""
    tree.install("first", "1", extra={"shared.py": "same"})
    tree.install("second", "1", extra={"shared.py": "same"})
    outcome = audit(tree.context(), RULES, [])
    assert not [f for f in outcome.result.errors if f.code == "DST002"]


def test_import_checks_are_not_run_unasked(tree: Tree) -> None:
    outcome = audit(tree.context(), RULES, [])
    assert [rule.code for rule in outcome.skipped] == ["REG003", "JIT005", "JIT006"]


@pytest.mark.parametrize("said", ["/usr/local/cuda/compat", ":/x:/usr/local/cuda/lib64/stubs"])
def test_the_image_s_own_environment_may_not_widen_the_loader_s_path(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", said)
    found = audit(tree.context(import_checks=True), RULES, []).result.errors
    assert [(f.code, f.file) for f in found] == [("LNK006", "LD_LIBRARY_PATH")]
    # That of the machine that reads a folder says nothing.
    assert audit(tree.context(), RULES, []).result.errors == ()


def test_links_are_followed_as_inside_the_image(tree: Tree) -> None:
    """Debian's alternatives are absolute, merged folders are links, pruning leaves relative ones."""
    tree.install("twice", "1", extra={"twice/a.py": "same", "twice/b.py": "same"})
    (tree.site / "twice/b.py").unlink()
    (tree.site / "twice/b.py").symlink_to("a.py")
    (tree.root / "lib").symlink_to("/usr/lib")
    (tree.root / "etc/alternatives").mkdir()
    (tree.root / "etc/alternatives/blas").symlink_to("/usr/lib/probe.so")
    (tree.root / SYSTEM / "libblas.so.3").symlink_to("/etc/alternatives/blas")
    tree.library("sgl_kernel/more.so", needed=["libblas.so.3"])
    (tree.site / TOOLKIT / "lib/libcudart.so").unlink()
    (tree.site / TOOLKIT / "lib/libcudart.so").symlink_to(f"/{SITE}/{TOOLKIT}/lib/libcudart.so.13")
    assert audit(tree.context(import_checks=True), RULES, []).result.errors == ()


def test_an_override_of_what_is_not_installed_is_no_requirement(tree: Tree) -> None:
    outcome = audit(tree.context(overridden=["absent-one==1"]), RULES, [])
    assert outcome.result.errors == ()


def test_an_address_with_a_password_in_documentation_is_no_secret(tree: Tree) -> None:
    text = "git clone https://user:password@example.com/x\n"
    tree.write("usr/share/doc/git/README", text)
    tree.write("var/lib/dpkg/info/git.list", text)
    assert audit(tree.context(), RULES, []).result.errors == ()
