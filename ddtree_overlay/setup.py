"""Builds the overlay's wheel: the C++ ops against the installed torch, the kernels by NVRTC.

    DDTREE_VARIANT=cu130 DDTREE_NVRTC=13.0.88 DDTREE_SASS=sm_90,sm_120 DDTREE_PTX=compute_120 \
    SOURCE_DATE_EPOCH=... python -m build --wheel --no-isolation

No nvcc, no CUDA headers, no network. The same inputs give the same bytes.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
# A PEP 517 front end runs this file without its folder on the path.
sys.path.insert(0, str(HERE))

from build_support.kernels import compile_kernels, write_json  # noqa: E402
from build_support.nvrtc import NvrtcError  # noqa: E402
from build_support.settings import SettingsError, read_settings  # noqa: E402
from build_support.torch_install import (  # noqa: E402
    TorchInstall,
    TorchInstallError,
    find_torch,
    require_cuda,
)

CSRC = HERE / "csrc"
PACKAGE = "ddtree_overlay"


class BuildKernels(build_py):
    """Adds the compiled kernels and the build stamp to the package's files."""

    def run(self):
        super().run()
        package = Path(self.build_lib) / PACKAGE
        try:
            compile_kernels(CSRC, package / "kernels", SETTINGS)
        except NvrtcError as error:
            sys.exit(f"error: {error}")
        write_json(
            package / "_build_info.json",
            {
                "torch": TORCH.version,
                "variant": SETTINGS.variant,
                "cxx11_abi": TORCH.cxx11_abi,
                "nvrtc": SETTINGS.nvrtc,
                "sass": SETTINGS.sass,
                "ptx": SETTINGS.ptx,
            },
        )


class BuildOps(build_ext):
    """Compiles the sources side by side: libtorch's headers are most of each one's seconds."""

    def build_extensions(self):
        one_after_another = self.compiler.compile

        def side_by_side(sources, **options):
            # build_ext waits for one source after another, and asks for them all in one call.
            with ThreadPoolExecutor(max(1, min(8, len(os.sched_getaffinity(0))))) as pool:
                made = pool.map(lambda source: one_after_another([source], **options), sources)
                return [name for names in made for name in names]

        self.compiler.compile = side_by_side
        # Keeps the interpreter's own link flags (an rpath, a library folder) out of the extension.
        compiler = self.compiler.compiler_cxx[0]
        self.compiler.set_executable("linker_so", [compiler, "-shared"])
        self.compiler.set_executable("linker_so_cxx", [compiler, "-shared"])
        self.compiler.library_dirs = []
        super().build_extensions()


def extension(torch: TorchInstall) -> Extension:
    """One library without Python in it. libtorch is found because torch is imported first."""
    return Extension(
        f"{PACKAGE}._C",
        # Relative and sorted: where and in which order files lie must not show in the library.
        sources=sorted(f"csrc/{path.name}" for path in CSRC.glob("*.cpp")),
        depends=sorted(f"csrc/{path.name}" for path in CSRC.glob("*.h")),
        libraries=["c10", "torch_cpu"],
        library_dirs=[torch.library_dir],
        language="c++",
        extra_compile_args=[
            "-std=c++20",
            "-O3",
            "-g0",
            "-Wextra",
            "-fvisibility=hidden",
            # Scores must be what the GPU computes, bit for bit.
            "-ffp-contract=off",
            *(arg for folder in torch.include_dirs for arg in ("-isystem", folder)),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}",
            # TORCH_CHECK records __FILE__.
            f"-ffile-prefix-map={HERE}=.",
            f"-ffile-prefix-map={torch.root}=torch",
        ],
        extra_link_args=["-Wl,-z,defs", "-Wl,--as-needed", "-Wl,--build-id=none", "-Wl,-s"],
    )


try:
    SETTINGS = read_settings(os.environ)
    TORCH = find_torch()
    require_cuda(TORCH, SETTINGS.cuda, SETTINGS.variant)
except (SettingsError, TorchInstallError) as error:
    sys.exit(f"error: {error}")

setup(ext_modules=[extension(TORCH)], cmdclass={"build_py": BuildKernels, "build_ext": BuildOps})
