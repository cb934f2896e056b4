from __future__ import annotations

import pytest

from builder.inside.audit.torch_abi import torch_version
from builder.inside.contents import is_torch_symbol
from builder.inside.filesystem import scan
from tests.builder.inside.tree import SITE, Tree


@pytest.mark.parametrize(
    "name",
    [
        "_ZN3c103fooEv",
        "_ZNK3c106Device3strEv",
        "_ZNKR3c104IValue6toListEv",
        "_ZNO3c104IValue6toListEv",
        "_ZTIN3c105ErrorE",
        "_ZTVN3c1010TensorImplE",
        "_ZN2at4_ops5empty4callEv",
        "_ZN5torch7LibraryD1Ev",
        "_ZN4c10d12ProcessGroupE",
        "_ZN6caffe28TypeMeta3fooEv",
        "aoti_torch_get_data_ptr",
        "torch_call_dispatcher",
    ],
)
def test_names_that_torch_must_provide(name: str) -> None:
    assert is_torch_symbol(name)


@pytest.mark.parametrize(
    "name", ["_ZNSt6vectorIN3c106DeviceEE3fooEv", "_ZN4math3fooEv", "cudaMalloc", "_ZN3attE"]
)
def test_names_that_torch_need_not_provide(name: str) -> None:
    assert not is_torch_symbol(name)


def test_torch_version_is_read_without_importing(tree: Tree) -> None:
    tree.write(
        f"{SITE}/torch/version.py",
        "import nothing_that_exists\n__version__ = '2.9.1+cpu'\ncuda: 'str | None' = None\n",
    )
    assert torch_version(scan(tree.root)) == {"__version__": "2.9.1+cpu", "cuda": None}
