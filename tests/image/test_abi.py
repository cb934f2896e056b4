"""Binary interfaces: what is compiled fits the torch, the CUDA and the C library beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.image.conftest import Ran

pytestmark = pytest.mark.docker

# Found by the driver's library alone, which the host brings.
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
SHELL_LDD = """
site=$1; shift
export LD_LIBRARY_PATH=$site/torch/lib:$(echo "$site"/nvidia/*/lib | tr ' ' ':')
for file in "$@" $(find "$site/sgl_kernel" -name '*.so'); do ldd "$file"; done
"""


@pytest.fixture(scope="module")
def dynamic(observed: dict[str, Any], run_in: Callable[..., Ran]) -> str:
    """The dynamic section of our extension, and the versions that it needs."""
    ran = run_in("objdump", "-p", observed["extension"])
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_audit_of_the_image_is_clean(host: Any, manifest: dict[str, Any]) -> None:
    report = json.loads(host.file("/opt/ddtree/audit.json").content_string)
    assert report["findings"] == []
    assert report["elf_files"] == manifest["audit"]["elf_files"] > 500
    assert report["passed"] is True
    ran = {rule["code"] for rule in report["rules"] if rule["ran"]}
    assert ran == set(manifest["audit"]["rules"])


def test_the_extension_was_made_for_this_torch(host: Any, manifest: dict[str, Any]) -> None:
    (folder,) = host.run(
        "echo /opt/ddtree/venv/lib/python3.*/site-packages/ddtree_overlay"
    ).stdout.split()
    info = json.loads(host.file(f"{folder}/_build_info.json").content_string)
    assert info["torch"] == manifest["observed"]["torch"]
    assert info["variant"] == manifest["variant"]
    assert info["nvrtc"] == manifest["pins"]["cubin"]["nvrtc"]
    assert info["sass"] == manifest["pins"]["cubin"]["sass"]


def test_every_op_is_registered_with_a_cpu_kernel(observed: dict[str, Any]) -> None:
    assert len(observed["ops"]) > 3
    assert observed["without_cpu"] == []


def test_one_cxx_abi(observed: dict[str, Any], run_in: Callable[..., Ran]) -> None:
    """The extension asks torch for std::string in the form that torch was compiled with."""
    ran = run_in("sh", "-c", f"objdump -T {observed['extension']} | c++filt")
    assert ran.returncode == 0, ran.stderr
    wanted = [line for line in ran.stdout.splitlines() if "*UND*" in line and "c10" in line]
    strings = [line for line in wanted if "basic_string" in line]
    assert strings, "the extension takes no string from torch: nothing was compared"
    assert all("__cxx11" in line for line in strings) is observed["cxx11"]


def test_the_extension_links_no_cuda_runtime(dynamic: str) -> None:
    """It launches through the driver's interface, whatever the CUDA major."""
    needed = re.findall(r"^  NEEDED +(\S+)$", dynamic, re.MULTILINE)
    assert needed
    assert not [name for name in needed if re.match(r"lib(cudart|nvrtc|cuda)\b", name)]


def test_the_extension_needs_no_newer_c_library(dynamic: str, observed: dict[str, Any]) -> None:
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", dynamic)
    assert versions
    has = tuple(int(part) for part in observed["glibc"].split("."))
    assert max((int(a), int(b)) for a, b in versions) <= has


def test_what_serving_loads_is_found_but_for_the_driver(
    observed: dict[str, Any], run_in: Callable[..., Ran]
) -> None:
    """By the loader itself: torch's CUDA library, our extension, SGLang's kernels. Those rely on
    torch having loaded NVIDIA's libraries before: hence their folders."""
    site = observed["lib"].removesuffix("/torch/lib")
    ran = run_in(
        *("sh", "-c", SHELL_LDD, "sh", site, observed["extension"]),
        f"{observed['lib']}/libtorch_cuda.so",
    )
    assert ran.stdout.count("linux-vdso") > 2, ran.stderr
    lost = set(re.findall(r"^\s+(\S+) => not found", ran.stdout, re.MULTILINE))
    assert lost <= set(DRIVER), lost


def test_one_cuda_major(run_in: Callable[..., Ran], manifest: dict[str, Any]) -> None:
    """Every CUDA runtime library in the image is of the CUDA that torch was compiled for."""
    ran = run_in("find", "/opt/ddtree", "/usr", "-name", "libcudart.so.*", user="0")
    assert ran.returncode == 0, ran.stderr
    majors = {re.findall(r"\.so\.(\d+)", line)[0] for line in ran.stdout.split()}
    assert majors == {manifest["observed"]["torch_cuda"].split(".")[0]}


def test_jit_toolchain_compiles_a_kernel(
    run_in: Callable[..., Ran], manifest: dict[str, Any]
) -> None:
    """The runtime image's own nvcc makes an sm_120 cubin and links libcudart: what JIT does."""
    if manifest["pins"]["toolchain"]["source"] == "absent":
        ran = run_in("sh", "-c", "command -v nvcc")
        assert ran.returncode != 0, "a stand-in must not carry a toolkit of another CUDA"
        return
    script = (
        "set -e; cd $(mktemp -d)\n"
        "printf '#include <cuda_bf16.h>\\n#include <cub/cub.cuh>\\n"
        "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }\\n"
        'extern "C" void run(float* x) { twice<<<1, 32>>>(x); cudaDeviceSynchronize(); }\\n'
        "' > k.cu\n"
        "nvcc -arch=sm_120 -O2 -shared -Xcompiler -fPIC k.cu -o libk.so -cudart shared "
        "-L$CUDA_HOME/lib64 -L$CUDA_HOME/lib64/stubs -lcuda -lnvrtc -lcublas -lcublasLt\n"
        "nvcc --version\n"
        "ls -l libk.so\n"
    )
    ran = run_in("sh", "-c", script)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"release {manifest['pins']['cuda']['version']}" in ran.stdout
