"""REG: the SGLang that is shipped knows sm_120, whose shared memory is less than Hopper's.

A Triton kernel with Hopper's block sizes wants 106,496 bytes of shared memory for a block; sm_120
has 101,376. Upstream chooses smaller blocks there, in branches that a merge or a patch may lose.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from builder.inside.audit.model import Context, Finding

_SUPPORTED = "is_sm120_supported"
_COMMON = "sglang/srt/utils/common.py"
# Where the answer of is_sm120_supported() must decide something, and what.
_DECISIONS = {
    "sglang/kernels/ops/quantization/fp8_kernel.py": "pipeline stages of the Triton FP8 GEMM",
    "sglang/srt/layers/quantization/fp8_utils.py": "backend and stages of FP8 GEMMs",
    "sglang/srt/layers/attention/attention_registry.py": "kernels of hybrid models' attention",
    "sglang/srt/server_args.py": "what is switched off where there is no tcgen05",
}
_EXTEND = "sglang/kernels/ops/attention/extend_attention.py"
_REMEDY = "compare with upstream's SGLang; a patch must keep the branches for sm_120"


def sm120(context: Context) -> Iterator[Finding]:
    """REG004"""
    site = context.files.site
    for file, what in {_COMMON: "", _EXTEND: "", **_DECISIONS}.items():
        context.count("REG004")
        try:
            tree = ast.parse((context.files.site_path / file).read_text("utf-8"))
        except (OSError, SyntaxError) as exc:
            yield Finding("REG004", f"{site}/{file}", f"unreadable: {exc}", _REMEDY)
            continue
        if file == _COMMON and not _defined(tree):
            text = f"{_SUPPORTED} does not ask for compute capability 12"
        elif file == _EXTEND and not _blocks(tree):
            text = "block sizes are not chosen for CUDA_CAPABILITY[0] == 12 before any other"
        elif what and not _decides(tree):
            text = f"{_SUPPORTED} decides nothing here ({what})"
        else:
            continue
        yield Finding("REG004", f"{site}/{file}", text, _REMEDY)


def _defined(tree: ast.Module) -> bool:
    """An assignment or a function of that name in which the number 12 stands."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        elif isinstance(node, ast.FunctionDef):
            names = [node.name]
        if _SUPPORTED in names:
            values = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
            return 12 in values
    return False


def _decides(tree: ast.Module) -> bool:
    """The function's name, or one that was given its answer, in the test of a branch."""
    names = {_SUPPORTED, f"_{_SUPPORTED}"}
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp)) and names & _names(node.test):
            return True
    return False


def _blocks(tree: ast.Module) -> bool:
    """The first branch on the capability's major is the one for 12.

    Any `>=` before it would catch sm_120 as well, as Hopper's once did.
    """
    branches = sorted(
        (node for node in ast.walk(tree) if isinstance(node, ast.If)), key=lambda n: n.lineno
    )
    for branch in branches:
        for test in (n for n in ast.walk(branch.test) if isinstance(n, ast.Compare)):
            if ast.unparse(test.left) == "CUDA_CAPABILITY[0]":
                return ast.unparse(test) == "CUDA_CAPABILITY[0] == 12"
    return False


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
