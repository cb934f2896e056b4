"""Loading and launching on a stub driver: the calls, their arguments, and every refusal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.overlay.native_launch import Launcher, compile_launcher, missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

PRIMARY = "0x1000"  # the stub's context of device 0


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return compile_launcher(tmp_path_factory.mktemp("launch"))


@pytest.fixture
def files(tmp_path: Path) -> str:
    """Arguments of use_kernels: two files, of two entries and of one."""
    first, second = tmp_path / "first.cubin", tmp_path / "second:colon.cubin"
    first.write_text("first\nddtree_a ddtree_b\n")
    second.write_text("second\nddtree_static\n")
    return f"'{first}:ddtree_a,ddtree_b', '{second}:ddtree_static'"


def test_recording_the_files_calls_no_driver(launcher: Launcher, files: str) -> None:
    assert launcher.run(f"print(use(0, {files}), calls())") == "None []"


def test_all_is_loaded_once_in_the_primary_context(launcher: Launcher, files: str) -> None:
    printed = launcher.run(
        f"assert use(0, {files}) is None\n"
        "assert load(0) is None and load(0) is None and launch() is None\n"
        "print(*calls('cuInit', 'cuDevicePrimaryCtxRetain', 'cuCtxPushCurrent_v2',"
        " 'cuModuleLoadDataEx', 'cuModuleGetFunction', 'cuFuncSetAttribute'), sep='\\n')\n"
        "print(cuda.stub_context_depth())"
    )
    assert printed.splitlines() == [
        "cuInit 0",
        "cuDevicePrimaryCtxRetain 0",
        f"cuCtxPushCurrent_v2 {PRIMARY}",
        f"cuModuleLoadDataEx {PRIMARY} first",
        "cuModuleGetFunction ddtree_a",
        "cuFuncSetAttribute ddtree_a 8 101376",  # once, to what a block of the GPU can have
        "cuModuleGetFunction ddtree_b",
        "cuFuncSetAttribute ddtree_b 8 101376",
        f"cuModuleLoadDataEx {PRIMARY} second",
        "cuModuleGetFunction ddtree_static",
        "cuFuncSetAttribute ddtree_static 8 100352",  # less its own static part
        f"cuCtxPushCurrent_v2 {PRIMARY}",  # the launch's
        "0",
    ]


def test_a_launch_passes_its_shape_stream_and_argument(launcher: Launcher, files: str) -> None:
    """Nothing else is called on the way, so that a graph can capture it."""
    argument = bytes(range(200))
    printed = launcher.run(
        f"assert use(3, {files}) is None and load(3) is None\n"
        "cuda.stub_forget()\n"
        f"assert launch('ddtree_b', 3, (70000, 7), 128, 60000, {argument!r}) is None\n"
        "print(*calls(), sep='\\n')",
        {"DDTREE_STUB_ARGUMENT_BYTES": "200"},
    )
    assert printed.splitlines() == [
        "cuCtxGetCurrent",
        "cuCtxPushCurrent_v2 0x1003",
        "cuLaunchKernel ddtree_b 70000 7 1 128 1 1 60000 0x5003 0x1003 " + argument.hex(),
        "cuCtxPopCurrent_v2",
    ]


def test_a_current_primary_context_is_left_alone(launcher: Launcher, files: str) -> None:
    printed = launcher.run(
        f"assert use(0, {files}) is None and load(0) is None\n"
        f"cuda.stub_forget(); cuda.stub_set_current({PRIMARY})\n"
        "assert launch() is None\n"
        "print([line.split()[0] for line in calls()], cuda.stub_context_depth())"
    )
    assert printed == "['cuCtxGetCurrent', 'cuLaunchKernel'] 1"


def test_another_current_context_is_current_again_afterwards(
    launcher: Launcher, files: str
) -> None:
    """Also when the launch fails."""
    program = (
        f"assert use(0, {files}) is None and load(0) is None\n"
        "cuda.stub_set_current(0x7777); launch()\n"
        "current = ctypes.c_void_p(); cuda.cuCtxGetCurrent(ctypes.byref(current))\n"
        "print(calls('cuLaunchKernel')[-1].split()[-1], cuda.stub_context_depth(),"
        " hex(current.value))"
    )
    for environment in ({}, {"DDTREE_STUB_FAIL": "cuLaunchKernel=700"}):
        assert launcher.run(program, environment) == f"{PRIMARY} 1 0x7777"


@pytest.mark.parametrize("grid", [(0, 1), (1, 0), (0, 0)])
def test_an_empty_grid_launches_nothing(launcher: Launcher, grid: tuple[int, int]) -> None:
    """Not even a lookup: no files are recorded here."""
    assert launcher.run(f"print(launch(grid={grid}), calls())") == "None []"


def test_threads_load_once(launcher: Launcher, files: str) -> None:
    printed = launcher.run(
        f"assert use(0, {files}) is None and use(1, {files}) is None\n"
        "barrier = threading.Barrier(8); results = []\n"
        "def work(i):\n"
        "    barrier.wait()\n"
        "    results.append(launch(device=i % 2))\n"
        "threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "count = lambda name: len(calls(name))\n"
        "print(set(results), count('cuInit'), count('cuDevicePrimaryCtxRetain'),"
        " count('cuModuleLoadDataEx'), count('cuFuncSetAttribute'), count('cuLaunchKernel'))"
    )
    assert printed == "{None} 1 2 4 6 8"


def test_multiprocessors_are_asked_for_once(launcher: Launcher) -> None:
    printed = launcher.run(
        "count = ctypes.c_int()\n"
        "for _ in range(3): assert harness.multiprocessors(2, ctypes.byref(count)) is None\n"
        "print(count.value, calls('cuDeviceGetAttribute'))"
    )
    assert printed == "188 ['cuDeviceGetAttribute 16 2']"


FAILURES = {
    "cuInit=100": ("CUDA_ERROR_NO_DEVICE (100)", "--gpus"),
    "cuDeviceGet=101": ("an error without a name (101)", "CUDA_VISIBLE_DEVICES"),
    "cuDeviceGetAttribute=1": ("CUDA_ERROR_INVALID_VALUE (1)", "cuda:0"),
    "cuDevicePrimaryCtxRetain=2": ("CUDA_ERROR_OUT_OF_MEMORY (2)", "--mem-fraction-static"),
    "cuCtxGetCurrent=201": ("CUDA_ERROR_INVALID_CONTEXT (201)", ""),
    "cuCtxPushCurrent_v2=201": ("CUDA_ERROR_INVALID_CONTEXT (201)", ""),
    "cuModuleLoadDataEx=209": ("CUDA_ERROR_NO_BINARY_FOR_GPU (209)", "first.cubin"),
    "cuModuleLoadDataEx=222": ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)", "update the NVIDIA"),
    "cuModuleLoadDataEx=218": ("CUDA_ERROR_INVALID_PTX (218)", "reinstall"),
    "cuModuleGetFunction=500": ("CUDA_ERROR_NOT_FOUND (500)", "ddtree_a in "),
    "cuFuncGetAttribute=1": ("CUDA_ERROR_INVALID_VALUE (1)", "ddtree_a in "),
    "cuFuncSetAttribute=1": ("CUDA_ERROR_INVALID_VALUE (1)", "ddtree_a in "),
    "cuLaunchKernel=700": ("CUDA_ERROR_ILLEGAL_ADDRESS (700)", "an earlier kernel failed"),
    "cuLaunchKernel=900": ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)", "load_kernels"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_each_failure_names_function_error_and_remedy(
    launcher: Launcher, files: str, failure: str
) -> None:
    error, remedy = FAILURES[failure]
    printed = launcher.run(
        f"assert use(0, {files}) is None\nprint(launch())", {"DDTREE_STUB_FAIL": failure}
    )
    function = failure.split("=", maxsplit=1)[0]
    assert re.match(rf"ddtree::build_tree: {function} failed", printed), printed
    assert f": {error}; " in printed
    assert remedy in printed
    assert "\n" not in printed


def test_a_module_that_fails_names_gpu_driver_and_the_compilers_words(
    launcher: Launcher, files: str
) -> None:
    printed = launcher.run(
        f"assert use(0, {files}) is None\nprint(load(0))",
        {"DDTREE_STUB_FAIL": "cuModuleLoadDataEx=222"},
    )
    assert "cuda:0 (compute capability 12.0, driver for CUDA 12.8)" in printed
    assert '"ptxas fatal: Unsupported .version"' in printed
    assert printed.startswith("ddtree::_load_kernels: ")


def test_loading_can_be_tried_again_and_leaks_nothing(launcher: Launcher, files: str) -> None:
    printed = launcher.run(
        f"assert use(0, {files}) is None\n"
        "os.environ['DDTREE_STUB_FAIL'] = 'cuFuncSetAttribute=2'\n"
        "assert 'OUT_OF_MEMORY' in load(0) and 'OUT_OF_MEMORY' in launch()\n"
        "os.environ['DDTREE_STUB_FAIL'] = ''\n"
        "print(launch(), len(calls('cuDevicePrimaryCtxRetain')), len(calls('cuModuleLoadDataEx')),"
        " cuda.stub_context_depth())"
    )
    assert printed == "None 1 2 0"


def test_no_driver_is_an_error_with_the_remedy(launcher: Launcher) -> None:
    program = "count = ctypes.c_int()\nprint(text(harness.multiprocessors(0, ctypes.byref(count))))"
    printed = launcher.run(program, stubs=["torch"])
    assert "the CUDA driver cannot be loaded (" in printed
    assert "libcuda.so.1: " in printed
    assert "--gpus all" in printed
    assert "\n" not in printed


def test_no_stream_is_an_error(launcher: Launcher, files: str) -> None:
    program = f"assert use(0, {files}) is None\nprint(launch(), calls('cuLaunchKernel'))"
    printed = launcher.run(program, {"DDTREE_STUB_NO_STREAM": "1"})
    assert "aoti_torch_get_current_cuda_stream failed for cuda:0 (1)" in printed
    assert printed.endswith(" []")
    printed = launcher.run(program, stubs=["driver"])
    assert "libtorch_cuda.so is not loaded; run with the torch" in printed
    assert printed.endswith(" []")


def test_refusals_before_any_driver_call(launcher: Launcher, files: str) -> None:
    cases = {
        "launch(device=5)": "no kernels were chosen for cuda:5; import ddtree_overlay.ops",
        "load(64)": "device must be 0..63, got 64",
        "load(-1)": "device must be 0..63, got -1",
        "launch(grid=(1, 65536))": "a grid of 1 x 65536 blocks; at most 2147483647 x 65535",
        "launch(grid=(2**31, 1))": "a grid of 2147483648 x 1 blocks",
        "launch(block=0)": "blocks of 0 threads; a block has 1..1024",
        "launch(block=1025)": "blocks of 1025 threads",
        "use(0)": "files is empty for cuda:0",
        "use(0, 'k.cubin:ddtree_a')": r'files must be "<absolute path>:<entry>,<entry>..."',
        "use(0, '/k.cubin')": 'got "/k.cubin"',
        "use(0, '/k.cubin:')": 'got "/k.cubin:"',
        "use(0, '/k:a,,b')": "an entry of /k is empty",
        "use(0, '/k:a,')": "an entry of /k is empty",
        "use(0, '/k:a,b', '/l:b')": "kernel b is in both /k and /l",
        "use(99, '/k:a')": "device must be 0..63, got 99",
    }
    program = "".join(f"print({call})\n" for call in cases) + "print(calls())"
    printed = launcher.run(f"assert use(0, {files}) is None\n" + program).splitlines()
    assert printed.pop() == "[]"
    for line, (call, text) in zip(printed, cases.items(), strict=True):
        assert text in line, call


def test_refusals_of_what_was_loaded(launcher: Launcher, files: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.cubin"
    empty.touch()
    cases = {
        "launch('ddtree_other')": "kernel ddtree_other is in none of the 3 kernels of cuda:0",
        "launch(shared=101377)": "ddtree_a needs 101377 bytes of shared memory a block; cuda:0 has 101376",
        "launch('ddtree_static', shared=100353)": "100353 bytes .* has 100352",
        "use(0, '/k:a')": "kernels of cuda:0 are loaded already, from .*first.cubin on; use other",
        f"use(0, {files})": "None",
        "use(1, '/nowhere/k.cubin:a') or load(1)": "kernel file /nowhere/k.cubin cannot be read",
        f"use(2, '{empty}:a') or load(2)": "empty.cubin cannot be read or is empty; reinstall",
        f"use(3, '{tmp_path}:a') or load(3)": "cannot be read or is empty",
        f"use(4, {files[: files.index(':')]}:ddtree_z') or load(4)": "ddtree_z in .*NOT_FOUND",
    }
    program = "".join(f"print({call})\n" for call in cases)
    printed = launcher.run(f"assert use(0, {files}) is None and load(0) is None\n" + program)
    for line, (call, pattern) in zip(printed.splitlines(), cases.items(), strict=True):
        assert re.search(pattern, line), (call, line)
