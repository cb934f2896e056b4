"""All rules, in the order in which the table shows them."""

from __future__ import annotations

from builder.inside.audit import (
    branches,
    credentials,
    cuda_mix,
    device_code,
    distributions,
    driver,
    gates,
    jit,
    kernels,
    linkage,
    permissions,
    registration,
    size,
    toolchain,
    torch_abi,
    versions,
)
from builder.inside.audit.model import Context, Rule


def _imports(context: Context) -> bool:
    return context.import_checks


RULES = (
    Rule("LNK001", "CUDA major of every NEEDED", linkage.needed_major),
    Rule("LNK002", "every NEEDED found by the loader", linkage.needed_resolvable),
    Rule("LNK003", "no damaged ELF file", linkage.damaged),
    Rule("LNK004", "glibc as new as every file asks", versions.glibc),
    Rule("LNK005", "libstdc++ as new as every file asks", versions.runtime),
    Rule("LNK006", "no driver of the image's own", driver.no_driver),
    Rule("ABI001", "torch symbols and string ABI of every extension", torch_abi.symbols),
    Rule("ABI003", "extension built for the installed torch", torch_abi.stamp),
    Rule("ABI004", "torch and its CUDA are the variant's", torch_abi.torch_flavour),
    Rule("ABI005", "cuDNN fits torch", gates.cudnn),
    Rule("ABI006", "NCCL fits torch", gates.nccl),
    Rule("DEV001", "device code that sm_120 runs in every file", device_code.runs),
    Rule("DEV002", "no PTX beyond the driver floor", device_code.ptx),
    Rule("KRN001", "architectures of the DDTree kernels", kernels.architectures),
    Rule("KRN002", "DDTree kernels compiled by the pinned NVRTC", kernels.compiler),
    Rule("KRN003", "DDTree kernels as kernels.json describes them", kernels.description),
    Rule("MIX001", "one CUDA major among distributions", cuda_mix.distributions),
    Rule("MIX002", "one CUDA major among libraries", cuda_mix.libraries),
    Rule("REG001", "DDTREE in SpeculativeAlgorithm", registration.algorithm),
    Rule("REG002", "DDTREE's server arguments", registration.server_arguments),
    Rule("REG003", "SGLang imports and knows both", registration.imported, _imports),
    Rule("REG004", "SGLang's branches for sm_120", branches.sm120),
    Rule("JIT001", "JIT toolchain present", toolchain.present),
    Rule("JIT002", "JIT toolchain of one CUDA minor", toolchain.versions, toolchain.has_toolkit),
    Rule("JIT003", "Triton's ptxas knows sm_120", toolchain.triton_assemblers),
    Rule("JIT004", "Triton's ptxas assembles for sm_120", jit.triton_assembles),
    Rule("JIT005", "a kernel compiled and linked in the image", jit.kernel, jit.compiles),
    Rule("JIT006", "Triton's launcher built in the image", jit.launcher, jit.compiles),
    Rule("DST001", "requirements of distributions met", distributions.requirements),
    Rule("DST002", "no file of two distributions", distributions.collisions),
    Rule("DST003", "every recorded file present", distributions.complete),
    Rule("DST004", "our wheels as recorded", distributions.ours),
    Rule("DST005", "every other distribution as recorded", distributions.theirs),
    Rule("SEC001", "no set-ID and no world-writable file", permissions.modes),
    Rule("SEC002", "no secret", credentials.secrets),
    Rule("SIZ001", "size budget", size.budget),
    Rule("SIZ002", "size budget of each layer", size.layers, size.has_layer_budgets),
)
