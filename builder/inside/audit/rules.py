"""All rules, in the order in which the table shows them."""

from __future__ import annotations

from builder.inside.audit import (
    cuda_mix,
    distributions,
    kernels,
    linkage,
    permissions,
    registration,
    size,
    toolchain,
    torch_abi,
)
from builder.inside.audit.model import Context, Rule


def _imports(context: Context) -> bool:
    return context.import_checks


RULES = (
    Rule("LNK001", "CUDA major of every NEEDED", linkage.needed_major),
    Rule("LNK002", "every NEEDED found by the loader", linkage.needed_resolvable),
    Rule("LNK003", "no damaged ELF file", linkage.damaged),
    Rule("ABI001", "torch symbols and string ABI of every extension", torch_abi.symbols),
    Rule("ABI003", "extension built for the installed torch", torch_abi.stamp),
    Rule("ABI004", "torch and its CUDA are the variant's", torch_abi.torch_flavour),
    Rule("KRN001", "architectures of the DDTree kernels", kernels.architectures),
    Rule("KRN002", "DDTree kernels compiled by the pinned NVRTC", kernels.compiler),
    Rule("KRN003", "DDTree kernels as kernels.json describes them", kernels.description),
    Rule("MIX001", "one CUDA major among distributions", cuda_mix.distributions),
    Rule("MIX002", "one CUDA major among libraries", cuda_mix.libraries),
    Rule("REG001", "DDTREE in SpeculativeAlgorithm", registration.algorithm),
    Rule("REG002", "DDTREE's server arguments", registration.server_arguments),
    Rule("REG003", "SGLang imports and knows both", registration.imported, _imports),
    Rule("JIT001", "JIT toolchain present", toolchain.present),
    Rule("JIT002", "JIT toolchain of one CUDA minor", toolchain.versions, toolchain.has_toolkit),
    Rule("JIT003", "Triton's ptxas knows sm_120", toolchain.triton_assemblers),
    Rule("DST001", "requirements of distributions met", distributions.requirements),
    Rule("DST002", "no file of two distributions", distributions.collisions),
    Rule("DST003", "every recorded file present", distributions.complete),
    Rule("DST004", "our wheels as recorded", distributions.hashes),
    Rule("SEC001", "no set-ID and no world-writable file", permissions.modes),
    Rule("SIZ001", "size budget", size.budget),
)
