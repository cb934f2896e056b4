"""What a check is given and what it says: codes, findings, the subject, the hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ddtree_overlay.serve.manifest import Manifest
from ddtree_overlay.serve.profiles import Requires


class Severity(str, Enum):
    """ERROR: serving would fail or give wrong results. WARNING: it works, worse than it could.
    INFO: worth knowing, nothing to do."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Code:
    """A kind of finding: stable id (three letters of its area, three digits), what it means in
    general, and the usual remedy. README's table is made from these."""

    id: str
    severity: Severity
    meaning: str
    remedy: str

    def found(
        self, what: str, *, remedy: str | None = None, severity: Severity | None = None
    ) -> Finding:
        """An instance of the kind: one line with the values found; a remedy only if it is more
        precise than the usual one; a severity only if the circumstances soften or sharpen it."""
        return Finding(self.id, severity or self.severity, what, remedy or self.remedy)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, in one line, and one remedy, in one line."""

    code: str
    severity: Severity
    what: str
    remedy: str


@dataclass(frozen=True)
class Gpu:
    """One GPU, as NVML has it. Memory in bytes. `numa_node` is None where the host says none."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str  # as sysfs names it: 0000:01:00.0, lower case
    capability: tuple[int, int]
    memory_total: int
    memory_used: int
    mig_enabled: bool = False
    numa_node: int | None = None
    processes: tuple[tuple[int, int], ...] = ()  # pid, bytes
    compute_mode: str = "default"  # or "prohibited", "exclusive process", "exclusive thread"


UNKNOWN_PEER = "the driver does not say"
"""Of a link's peer-to-peer: neither allowed nor refused."""


@dataclass(frozen=True)
class Link:
    """Between two GPUs: NVML's common ancestor ("PIX", "PXB", "PHB", "NODE", "SYS", "internal"),
    NVLink, and what the driver says of peer-to-peer reads and writes ("ok" or the reason)."""

    ancestor: str
    nvlink: bool
    peer_to_peer: str


@dataclass(frozen=True)
class Hardware:
    """The GPUs and the driver. `error`: why NVML could not be asked, in one line; then no GPUs.

    `gpus` are those that a CUDA process would see, in its order; `present` are all that NVML lists.
    `lost`: those that it lists and cannot open, each with its reason. `unmatched`: what the
    variable that selects GPUs names and the host lacks.
    """

    driver: str | None = None
    cuda_driver: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)  # (i, j) with i < j
    error: str | None = None
    error_kind: str = (
        ""  # "library", "driver", "mismatch", "unknown", "permission", "hung", "other"
    )
    present: int = 0
    lost: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """Everything a check may look at. None: not configured.

    `root` is where the host's /proc, /sys and /dev are ("/" but in tests); paths of models and
    caches are the container's own and not below it. `ports`: what will listen, by purpose, each
    with the address it binds.
    """

    root: Path
    environment: Mapping[str, str]
    manifest: Manifest
    hardware: Hardware
    device: str = "cuda"  # or "cpu": then checks of GPUs do not apply
    serving: bool = False  # False: `doctor` alone, perhaps without a model
    model: str | None = None
    draft_model: str | None = None
    algorithm: str | None = None  # "DDTREE", "DFLASH", ... or None
    allow_hybrid_unsafe: bool = False
    trust_remote_code: bool = False
    tp: int = 1
    pp: int = 1
    dp: int = 1
    nnodes: int = 1
    node_rank: int = 0
    dist_init_addr: str | None = None
    ep: int = 1  # expert parallelism, a divisor of tp
    gpus_needed: int = 1  # on this host
    first_gpu: int = 0  # of the visible ones (--base-gpu-id), and every `gpu_step`th from there
    gpu_step: int = 1
    profile: str = ""
    requires: Requires = field(default_factory=Requires)  # what the profile is made for
    revision: str | None = None  # of the model on the Hub; None: main
    tokenizer: str | None = None  # where it is not with the model; "" where none is loaded
    dummy_weights: bool = False  # no weights are read (--load-format dummy)
    shrinks_weights: bool = False  # quantised or offloaded while they load
    memory_fraction: float | None = None
    attention_backend: str | None = None
    context_length: int | None = None
    block_size: int | None = None
    ports: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    cache_root: Path = Path("/var/cache/ddtree")
    cache_folders: tuple[Path, ...] = ()
    peer_to_peer: str = "auto"  # "auto", "on", "off"
    collective_seconds: float = 60.0  # bound of one functional all-reduce
    python: str = "python"  # with which the server will run

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the server will use, as far as they are there."""
        return self.hardware.gpus[self.first_gpu :: self.gpu_step][: self.gpus_needed]


@dataclass(frozen=True)
class Check:
    """One check. `name` is what --skip-checks takes; `needs` says to what it applies: "" always,
    "cuda" (device cuda, whatever NVML says), "gpu" (and a GPU can be read), "gpus" (two or more are
    to be used and can be read), "model" (a model is configured), "draft", "image" (the stack is
    installed). `slow` ones start processes; they run after all others, and only if
    none of those found an error. `seconds` bounds a fast one; None for the usual bound."""

    name: str
    title: str
    codes: tuple[Code, ...]
    run: Callable[[Subject], Iterable[Finding]]
    needs: str = ""
    slow: bool = False
    seconds: float | None = None


class State(str, Enum):
    """What became of a check. BROKEN: it raised, which is an error of ours and reported as one."""

    PASSED = "passed"
    FOUND = "found"
    SKIPPED = "skipped"
    NOT_APPLICABLE = "not applicable"
    BROKEN = "broken"


@dataclass(frozen=True)
class Outcome:
    """A check's result; `why` for skipped, not applicable and broken."""

    check: str
    state: State
    findings: tuple[Finding, ...] = ()
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """Whether GPUs may talk peer to peer, for all libraries alike, and why."""

    peer_to_peer: bool
    why: str


@dataclass(frozen=True)
class Decided:
    """Findings of a check that also decides on peer-to-peer traffic; its `run` returns one."""

    findings: tuple[Finding, ...]
    verdict: Verdict

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)
