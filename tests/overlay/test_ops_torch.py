"""`torch.ops.ddtree.*` as an installed wheel gives them. Runs where torch and the wheel are: inside
the image (an image test does it). Needs nothing but pytest beside them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

from ddtree_overlay import ops  # noqa: E402
from ddtree_overlay.tree.reference import build_tree as reference  # noqa: E402
from ddtree_overlay.tree.reference import pack_words  # noqa: E402

NAMES = (
    *("tokens", "parents", "depths", "first_child", "next_sibling"),
    *("ancestors", "counts", "scores", "exact"),
)


def draft(
    batch: int, levels: int, ranks: int, seed: int = 0, vocabulary: int = 500
) -> tuple[Any, Any]:
    """Ranked log-probabilities and ids as a drafter gives them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, levels, vocabulary, generator=generator)
    top = torch.log_softmax(logits, -1).topk(ranks, -1)
    return top.values, top.indices


def expected(logprobs: Any, token_ids: Any, budget: int) -> dict[str, Any]:
    """The reference's outputs as the op's tensors."""
    trees = [
        reference(row.tolist(), ids.tolist(), budget)
        for row, ids in zip(logprobs, token_ids, strict=True)
    ]
    result = {name: torch.tensor([getattr(t, name) for t in trees]) for name in NAMES[:5]}
    result["ancestors"] = torch.tensor(
        [[pack_words(bits, budget) for bits in t.ancestors] for t in trees]
    )
    result["counts"] = torch.tensor([t.count for t in trees])
    # int64 -> fp32 in one rounding, then an exact scaling: as the op does.
    units = torch.tensor([[s or 0 for s in t.score_units] for t in trees])
    padding = torch.tensor([[s is None for s in t.score_units] for t in trees])
    scores = units.to(torch.float32) * 2.0**-40
    result["scores"] = scores.masked_fill(padding, -131072.0)
    result["exact"] = torch.tensor([t.exact for t in trees])
    return result


def check(logprobs: Any, token_ids: Any, budget: int) -> None:
    got = ops.build_tree(logprobs, token_ids, budget)
    for name, value in expected(logprobs, token_ids, budget).items():
        tensor = got[NAMES.index(name)]
        assert tensor.dtype == value.dtype, name
        assert tensor.is_contiguous(), name
        assert torch.equal(tensor, value), name


@pytest.mark.parametrize("budget", [1, 5, 16, 63, 64, 65, 256])
@pytest.mark.parametrize(("levels", "ranks"), [(15, 16), (7, 3), (1, 64), (31, 1)])
def test_equals_the_reference(levels: int, ranks: int, budget: int) -> None:
    check(*draft(3, levels, ranks), budget)


def test_ties_and_absent_tokens() -> None:
    logprobs, token_ids = draft(4, 6, 8)
    logprobs = (logprobs * 2).round() / 2
    logprobs[0, :, 3:] = float("-inf")
    logprobs[1, 2] = float("-inf")
    logprobs[2] = -1.0
    logprobs[3] = 0.0
    check(logprobs, token_ids, 40)


def test_strided_and_expanded_inputs() -> None:
    logprobs, token_ids = draft(4, 6, 8)
    check(logprobs.transpose(0, 1).contiguous().transpose(0, 1), token_ids, 20)
    check(logprobs[::2, 1:], token_ids[::2, 1:], 20)
    check(logprobs[:, :, ::2], token_ids[:, :, ::2], 20)
    check(logprobs[:1].expand(5, -1, -1), token_ids[:1].expand(5, -1, -1), 20)
    padded = torch.full((4, 6, 9), float("nan"))
    padded[:, :, 1:] = logprobs
    check(padded[:, :, 1:], token_ids, 20)


def test_empty_batch() -> None:
    outputs = ops.build_tree(torch.empty(0, 5, 4), torch.empty(0, 5, 4, dtype=torch.int64), 70)
    shapes = [tuple(output.shape) for output in outputs]
    assert shapes == [(0, 71)] * 5 + [(0, 71, 2), (0,), (0, 71), (0,)]


def test_inputs_are_left_alone_and_outputs_share_nothing() -> None:
    logprobs, token_ids = draft(2, 5, 6)
    before = logprobs.clone(), token_ids.clone()
    outputs = ops.build_tree(logprobs, token_ids, 9)
    assert torch.equal(logprobs, before[0])
    assert torch.equal(token_ids, before[1])
    assert len({output.data_ptr() for output in outputs}) == len(outputs)


def test_runs_the_same_on_every_call() -> None:
    inputs = draft(8, 15, 16, seed=3)
    first = ops.build_tree(*inputs, 64)
    for _ in range(5):
        assert all(map(torch.equal, first, ops.build_tree(*inputs, 64)))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({(1, 2, 1): float("nan")}, r"logprobs\[1, 2, 1\] = nan is NaN"),
        ({(1, 0, 0): 0.5}, r"logprobs\[1, 0, 0\] = 0.5 is positive"),
        ({(0, 1, 2): -0.001}, r"logprobs\[0, 1, 2\] = -0.001 is greater than that of the rank"),
    ],
)
def test_bad_values_are_refused_by_index(values: dict[Any, float], text: str) -> None:
    logprobs, token_ids = draft(2, 4, 5)
    for index, value in values.items():
        logprobs[index] = value
    with pytest.raises(ValueError, match=text):
        ops.build_tree(logprobs, token_ids, 8)


def _bad_arguments() -> dict[str, tuple[Any, Any, int, str]]:
    logprobs, ids = draft(2, 4, 5)
    return {
        "fp64": (logprobs.double(), ids, 8, "logprobs must be Float, got Double"),
        "bf16": (logprobs.bfloat16(), ids, 8, "logprobs must be Float, got BFloat16"),
        "int32": (logprobs, ids.int(), 8, "token_ids must be Long, got Int"),
        "two dimensions": (logprobs[0], ids[0], 8, r"\[batch, levels, ranks\], got \[4, 5\]"),
        "shapes": (
            *(logprobs, ids[:, :, :4], 8),
            r"token_ids must have shape \[2, 4, 5\], got \[2, 4, 4\]",
        ),
        "no ranks": (logprobs[:, :, :0], ids[:, :, :0], 8, r"ranks .* 1\.\.2147483647, got 0"),
        "no levels": (logprobs[:, :0], ids[:, :0], 8, "levels .* 1..63, got 0"),
        "levels": (*draft(1, 64, 2), 8, "levels .* 1..63, got 64"),
        "budget 0": (logprobs, ids, 0, "budget must be 1..1024, got 0"),
        "budget": (logprobs, ids, 1025, "budget must be 1..1024, got 1025"),
        "negative": (logprobs, ids, -(2**40), "budget must be 1..1024, got -1099511627776"),
    }


@pytest.mark.parametrize("case", _bad_arguments())
def test_bad_arguments_are_refused(case: str) -> None:
    logprobs, token_ids, budget, text = _bad_arguments()[case]
    with pytest.raises(RuntimeError, match=text):
        ops.build_tree(logprobs, token_ids, budget)


@pytest.mark.parametrize("budget", [1, 64])
def test_opcheck(budget: int) -> None:
    """Schema, fake, and the dispatch of functional transforms, as PyTorch's own checker sees it."""
    torch.library.opcheck(torch.ops.ddtree.build_tree.default, (*draft(2, 5, 6), budget))


def test_fake_agrees_with_the_op() -> None:
    from torch._subclasses.fake_tensor import (  # type: ignore[import-not-found, unused-ignore]
        FakeTensorMode,
    )

    inputs = [tensor[:, ::2] for tensor in draft(2, 5, 6)]
    real = ops.build_tree(*inputs, 3)
    with FakeTensorMode() as mode:
        fakes = ops.build_tree(*map(mode.from_tensor, inputs), 3)
    for name, fake, tensor in zip(NAMES, fakes, real, strict=True):
        assert (fake.shape, fake.dtype) == (tensor.shape, tensor.dtype), name
        assert fake.stride() == tensor.stride(), name


def test_tensors_on_other_devices_are_refused_by_name() -> None:
    """No GPU is needed to reach an implementation by its dispatch key."""
    from torch._C import (  # type: ignore[import-not-found, unused-ignore]
        DispatchKey,
        DispatchKeySet,
    )

    logprobs, token_ids = draft(1, 2, 3)
    for key in (DispatchKey.CPU, DispatchKey.CUDA):
        call = torch.ops.ddtree.build_tree.default.redispatch
        with pytest.raises(
            RuntimeError, match="logprobs must be on a CPU or CUDA device, got meta"
        ):
            call(DispatchKeySet(key), logprobs.to("meta"), token_ids, 4)
        with pytest.raises(RuntimeError, match="token_ids must be on cpu like logprobs, got meta"):
            call(DispatchKeySet(key), logprobs, token_ids.to("meta"), 4)
        # Where the tensors are decides, not the key: nothing is launched on memory of the host.
        got = call(DispatchKeySet(key), logprobs, token_ids, 4)
        assert all(map(torch.equal, got, ops.build_tree(logprobs, token_ids, 4)))


def test_import_for_another_torch_is_refused_before_loading() -> None:
    """In a process of its own: this one has the extension loaded."""
    program = (
        "import torch; torch.__version__ = '9.9.9+other'\n"
        "try:\n    import ddtree_overlay.ops\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
        "print(hasattr(torch.ops.ddtree, 'build_tree'))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert "ExtensionMismatchError" in ran.stdout
    assert "torch 9.9.9+other is running" in ran.stdout
    assert f"built for torch {torch.__version__}" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "False"


def test_the_extension_needs_no_cuda_runtime() -> None:
    """By what its dynamic section needs: libcuda and libtorch_cuda are looked up at run time."""
    import struct

    assert _SPEC is not None
    assert _SPEC.origin is not None
    (library,) = Path(_SPEC.origin).parent.glob("_C*.so")
    data = library.read_bytes()
    # ELF64: e_phoff and e_phnum, then of each segment (type, flags, offset, address, _, size).
    (table,), (count,) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<H", data, 56)
    segments = [struct.unpack_from("<IIQQQQ", data, table + 56 * i) for i in range(count)]
    (dynamic,) = (segment for segment in segments if segment[0] == 2)
    tags = list(struct.iter_unpack("<qQ", data[dynamic[2] : dynamic[2] + dynamic[5]]))
    (address,) = (value for tag, value in tags if tag == 5)
    (strings,) = (
        address - s[3] + s[2] for s in segments if s[0] == 1 and s[3] <= address < s[3] + s[5]
    )
    needed = {
        data[strings + value : data.index(b"\0", strings + value)].decode()
        for tag, value in tags
        if tag == 1
    }
    assert {"libc10.so", "libtorch_cpu.so"} <= needed
    for name in needed:
        assert not name.startswith(
            ("libcudart", "libcuda.so", "libtorch_cuda", "libc10_cuda", "libgomp", "libpython")
        )
