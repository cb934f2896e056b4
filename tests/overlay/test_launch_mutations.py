"""A launcher with one mistake in it behaves otherwise than the launcher: the tests can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.overlay.native_launch import CSRC, Launcher, compile_launcher, missing, recompile

if missing():
    pytest.skip(missing(), allow_module_level=True)

# Source file, text, and what replaces it.
MUTATIONS = {
    "loading without a lock": (
        "loaded_kernels.cpp",
        "const std::lock_guard<std::mutex> lock(state.mutex);\n  if (state.owner)",
        "if (state.owner)",
    ),
    "loading again each time": (
        "loaded_kernels.cpp",
        "if (state.owner) return *state.owner;",
        "state.modules.clear();",
    ),
    "no shared memory limit raised": (
        "loaded_kernels.cpp",
        "driver.set_function_attribute(handle, kFunctionMaxDynamicShared, limit)",
        "0",
    ),
    "static shared memory forgotten": (
        "loaded_kernels.cpp",
        "shared_limit - fixed",
        "shared_limit",
    ),
    "modules of a failed try forgotten": (
        "loaded_kernels.cpp",
        "if (i == state.modules.size())",
        "if (true)",
    ),
    "the argument's address": (
        "launch.cpp",
        "{const_cast<void*>(arguments)}",
        "{&arguments}",
    ),
    "no stream": ("launch.cpp", "stream, parameters, nullptr", "nullptr, parameters, nullptr"),
    "no shared memory": ("launch.cpp", "1, 1, shape.shared,", "1, 1, 0,"),
    "grid turned": (
        "launch.cpp",
        "shape.grid_x, shape.grid_y, 1,",
        "shape.grid_y, shape.grid_x, 1,",
    ),
    "launch failure ignored": ("launch.cpp", "if (result != 0)", "if (false)"),
    "an empty grid launched": ("launch.cpp", "shape.grid_x == 0 || shape.grid_y == 0", "false"),
    "context never popped": ("cuda_driver.cpp", "if (pushed_) driver_", "if (false) driver_"),
    "context always pushed": ("cuda_driver.cpp", "if (current == context) return;", ""),
    "context never pushed": ("cuda_driver.cpp", "if (current == context) return;", "return;"),
}

# What a launcher does, in lines that are the same on every run.
PROGRAM = """
assert use(0, FILES) is None and use(1, FILES) is None
os.environ["DDTREE_STUB_FAIL"] = "cuFuncSetAttribute=2"
print(load(0))
os.environ["DDTREE_STUB_FAIL"] = ""
barrier = threading.Barrier(8)
def work(i):
    barrier.wait()
    launch(device=i % 2)
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(calls()))
cuda.stub_forget()
print(launch(grid=(0, 4)), launch("ddtree_b", 0, (5, 3), 96, 1000, bytes(range(64))))
cuda.stub_set_current(0x1000)
print(launch("ddtree_static", shared=100353), launch())
os.environ["DDTREE_STUB_FAIL"] = "cuLaunchKernel=700"
print(launch(), cuda.stub_context_depth())
print(*calls(), sep="\\n")
"""


def behaviour(launcher: Launcher, kernels: Path) -> str:
    """PROGRAM's output, or how it failed."""
    program = PROGRAM.replace("FILES", f"'{kernels}:ddtree_a,ddtree_b,ddtree_static'")
    try:
        return launcher.run(program, {"DDTREE_STUB_ARGUMENT_BYTES": "8"})
    except AssertionError as error:
        return f"failed: {error}"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "k.cubin"
    path.write_text("k\nddtree_a ddtree_b ddtree_static\n")
    return path


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return compile_launcher(tmp_path_factory.mktemp("right"))


@pytest.fixture(scope="module")
def expected(launcher: Launcher, kernels: Path) -> str:
    output = behaviour(launcher, kernels)
    assert not output.startswith("failed")
    assert output == behaviour(launcher, kernels)
    return output


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(
    name: str, launcher: Launcher, expected: str, kernels: Path, tmp_path: Path
) -> None:
    file, text, replacement = MUTATIONS[name]
    source = (CSRC / file).read_text()
    assert source.count(text) == 1, f"{file} does not hold {text!r} once"
    (tmp_path / file).write_text(source.replace(text, replacement))
    mutant = recompile(launcher, tmp_path / file, tmp_path / "built")
    assert behaviour(mutant, kernels) != expected
