"""Is there a driver, and is it new enough for this image?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject
from ddtree_overlay.serve.manifest import UNKNOWN

_ERROR = Severity.ERROR
NO_LIBRARY = Code(
    "DRV001",
    _ERROR,
    "The NVIDIA driver's library is not in this container.",
    "start the container with --gpus all (compose: a device reservation); if it was, install "
    "nvidia-container-toolkit on the host, run nvidia-ctk runtime configure and restart Docker",
)
NO_DRIVER = Code(
    "DRV002",
    _ERROR,
    "The NVIDIA kernel module is not loaded, or no GPU was given to the container.",
    "on the host run nvidia-smi: if it fails, install or load the driver; if it works, start the "
    "container with --gpus all",
)
MISMATCH = Code(
    "DRV003",
    _ERROR,
    "The driver's library and its kernel module have different versions.",
    "the driver was updated while running: reboot the host (or reload the nvidia modules), then "
    "start the container again",
)
LOST_ACCESS = Code(
    "DRV004",
    _ERROR,
    "NVML says unknown error, most often because systemd reloaded and took the devices away.",
    "restart the container; to prevent it use the cgroupfs driver of Docker or CDI devices "
    "(nvidia-ctk cdi generate)",
)
PERMISSION = Code(
    "DRV005",
    _ERROR,
    "The user of this container may not open the GPU devices.",
    "on the host make /dev/nvidia* readable and writable for all (driver option "
    "NVreg_DeviceFileMode=0666) or start with --group-add of the devices' group",
)
NVML_FAILED = Code(
    "DRV006",
    _ERROR,
    "NVML failed in another way, or did not answer.",
    "run nvidia-smi on the host and look for Xid lines in the host's dmesg; a GPU in error needs "
    "a reset or a reboot",
)
TOO_OLD = Code(
    "DRV007",
    _ERROR,
    "The driver is older than the oldest one that this image runs on.",
    "update the host's driver, or use the image variant for an older CUDA (cu128)",
)
CUDA_TOO_OLD = Code(
    "DRV008",
    _ERROR,
    "The driver's CUDA version is below the image's: kernels compiled at run time are refused.",
    "update the host's driver to one of the image's CUDA version or later, or use the image "
    "variant for an older CUDA (cu128)",
)
FLOOR_UNKNOWN = Code(
    "DRV009",
    Severity.INFO,
    "The image does not record the oldest driver it runs on, so the driver was not compared.",
    "use the image as it was built, with its manifest",
)
OF_KIND = {
    "library": NO_LIBRARY,
    "driver": NO_DRIVER,
    "mismatch": MISMATCH,
    "unknown": LOST_ACCESS,
    "permission": PERMISSION,
}


def check_driver(subject: Subject) -> Iterator[Finding]:
    """One finding at most: a driver that is too old has too old a CUDA as well."""
    hardware = subject.hardware
    if hardware.error is not None:
        yield OF_KIND.get(hardware.error_kind, NVML_FAILED).found(hardware.error)
        return
    floor = subject.manifest.text("pins", "cuda", "driver_floor")
    cuda = subject.manifest.text("pins", "cuda", "version")
    if UNKNOWN in {floor, cuda}:
        yield FLOOR_UNKNOWN.found("no driver floor in the image's manifest")
        return
    if hardware.driver is None or version(hardware.driver) < version(floor):
        yield TOO_OLD.found(
            f"driver {hardware.driver or 'unknown'}, this image (CUDA {cuda}) needs "
            f"{floor} or newer"
        )
    elif hardware.cuda_driver is not None and hardware.cuda_driver < version(cuda)[:2]:
        yield CUDA_TOO_OLD.found(
            f"driver {hardware.driver} offers CUDA {'.'.join(map(str, hardware.cuda_driver))}, "
            f"this image is CUDA {cuda}"
        )


def version(text: str) -> tuple[int, ...]:
    """Numbers of a version, for comparison: "580.65.06" is (580, 65, 6)."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


CHECKS = (
    Check(
        "driver",
        "NVIDIA driver against the image",
        (*OF_KIND.values(), NVML_FAILED, TOO_OLD, CUDA_TOO_OLD, FLOOR_UNKNOWN),
        check_driver,
        needs="cuda",
    ),
)
