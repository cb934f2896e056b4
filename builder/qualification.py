"""What it takes to be called built, CPU-verified or GPU-qualified."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from builder.errors import EvidenceError, HostFileError
from builder.receipts import Count, ImageId, Receipt

# What must have passed before an image is called CPU-verified. Not e2e/mutations, which proves the
# tests, and is run once for all images.
REQUIRED = (
    *("image/versions", "image/labels", "image/abi", "image/files", "image/users"),
    *("image/entrypoint", "image/doctor", "image/profiles", "image/ddtree_arguments"),
    *("image/upstream_unchanged", "image/metric_names", "image/overlay", "image/cpu_server"),
    *("image/serving", "image/health", "image/lifecycle"),
    *("e2e/lossless", "e2e/tree", "e2e/requests", "e2e/gpu_bodies"),
)


# On stdout: the container's user may not write into a mounted folder of root's.
_SELFTEST_COMMAND = "`docker run --rm --gpus all --shm-size 32g IMAGE selftest --json > FILE`"
# What its receipt must be (ddtree_overlay/selftest/receipt.py).
_SELFTEST = {"kind": "ddtree-selftest", "schema": 1}


def built(
    image: ImageId,
    labels: Mapping[str, str],
    audit: Mapping[str, Any],
    proof: Mapping[str, Any],
    engine: Mapping[str, str],
) -> Receipt:
    """Of an image whose audit and proof have passed. `audit` is the audit's report.

    Raises EvidenceError if the report does not say so.
    """
    ran = [rule for rule in audit.get("rules", ()) if rule["ran"]]
    if audit.get("passed") is not True or not ran:
        raise EvidenceError("the audit report says nothing of a pass", "build the image anew")
    suites = {
        "audit": Count(len(ran), 0, len(audit["rules"]) - len(ran)),
        "proof": Count(len(proof), 0, 0),
    }
    return _receipt("built", image, labels, stamp(), this_machine(engine), suites)


def cpu_verified(
    image: ImageId,
    labels: Mapping[str, str],
    suites: Mapping[str, Count],
    engine: Mapping[str, str],
) -> Receipt:
    """Of an image of which why_not_verified finds nothing. Raises EvidenceError otherwise."""
    reasons = why_not_verified(suites)
    if reasons:
        raise EvidenceError("; ".join(reasons), "run every suite: test IMAGE --suite all")
    return _receipt("cpu-verified", image, labels, stamp(), this_machine(engine), suites)


def why_not_verified(suites: Mapping[str, Count], required: Sequence[str] = REQUIRED) -> list[str]:
    """What stands between these results and `cpu-verified`; empty if nothing does."""
    reasons = [f"{name} failed" for name, count in suites.items() if count.failed]
    absent = [name for name in required if name not in suites]
    if absent:
        reasons.append(f"{', '.join(absent)} did not run")
    return reasons + [
        f"{name}: every test was skipped"
        for name in required
        if name in suites and not suites[name].passed and not suites[name].failed
    ]


def why_not_shown(receipt: Receipt) -> str:
    """Why a receipt does not show its own level, whoever wrote it; empty if it does."""
    if receipt.total.failed:
        return f"{receipt.total.failed} tests failed"
    if receipt.level == "cpu-verified":
        return "; ".join(why_not_verified(receipt.suites))
    needed = ("audit", "proof") if receipt.level == "built" else ("selftest",)
    silent = [n for n in needed if n not in receipt.suites or not receipt.suites[n].passed]
    if silent:
        return f"nothing of {', '.join(silent)} passed"
    if receipt.level == "gpu-qualified":
        gpus, ranks = receipt.machine.get("gpus"), receipt.machine.get("tp")
        if (
            not isinstance(gpus, list)
            or not all(isinstance(g, dict) and {"name", "architecture"} <= g.keys() for g in gpus)
            or type(ranks) is not int
            or not 1 <= ranks <= len(gpus)
        ):
            return "it does not say on which GPUs"
    return ""


def gpu_qualified(selftest: Any, image: ImageId, labels: Mapping[str, str]) -> Receipt:
    """From the receipt that `IMAGE selftest --json` printed on a host with GPUs.

    Raises EvidenceError unless it passed, is of this build, and ran on as many GPUs as it had
    ranks, each of an architecture that the image's kernels were compiled for.
    """
    try:
        device, about = selftest["device"], selftest["image"]
        checks = [check["passed"] is True for check in selftest["checks"]]
        gpus = [(str(gpu["name"]), "sm_" + _compact(gpu)) for gpu in device.get("gpus", ())]
        ours = _ours(labels)
        sass = ours["sass"].split(",")
        strangers = sorted({sm for _, sm in gpus} - set(sass))
        facts = {
            "it is no self-test's receipt": {k: selftest.get(k) for k in _SELFTEST} == _SELFTEST,
            f"its result is {selftest['result']}": selftest["result"] == "pass",
            "a check of it failed": bool(checks) and all(checks),
            f"it ran on {device['kind']}": device["kind"] == "cuda",
            "it names no GPU": bool(gpus),
            f"it ran {device['tp']} ranks on {len(gpus)} GPUs": 1 <= device["tp"] <= len(gpus),
            f"the image has no kernels for {', '.join(strangers)}": not strangers,
            f"it is of build {about['build_id']}": about["build_id"] == ours["build-id"],
            "it is of another SGLang": (
                about["sglang_patched_tree"] == ours["sglang.patched-tree"]
            ),
            "a stand-in is never for GPUs": (
                about["stand_in"] is False and ours["stand-in"] == "false"
            ),
        }
        wrong = [reason for reason, holds in facts.items() if not holds]
        if wrong:  # before what only such a receipt holds as can qualify: the driver
            raise EvidenceError(
                f"the self-test's receipt does not qualify this image: {'; '.join(wrong)}",
                f"on the GPUs that it is for, run {_SELFTEST_COMMAND} of this very image",
            )
        date = datetime.strptime(selftest["finished"], "%Y-%m-%dT%H:%M:%SZ")
        machine = {key: device[key] for key in ("cpu", "cores", "driver", "tp")}
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise EvidenceError(
            f"not the receipt of a self-test: {type(exc).__name__} {exc}",
            f"make it by {_SELFTEST_COMMAND}",
        ) from None
    machine["gpus"] = [{"name": name, "architecture": sm} for name, sm in gpus]
    return _receipt(
        "gpu-qualified",
        image,
        labels,
        date.strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine,
        {"selftest": Count(len(checks), 0, 0)},
    )


def read_selftest(path: Path) -> Any:
    """The JSON of a self-test's receipt. Raises HostFileError, EvidenceError (no JSON)."""
    remedy = f"name the file that came of {_SELFTEST_COMMAND}"
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise HostFileError(f"{path}: {exc.strerror}", remedy) from None
    except (ValueError, RecursionError) as exc:
        raise EvidenceError(f"{path} is not JSON: {exc}", remedy) from None


def stamp() -> str:
    """Now, as receipts write it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def this_machine(engine: Mapping[str, str]) -> dict[str, Any]:
    """Processor, memory and engine; nothing that says whose machine it is."""
    try:
        found = re.search(
            r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE
        )
    except OSError:  # an engine's host need not be Linux
        found = None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": found[1].strip() if found else platform.machine(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.system(),
        "engine": engine.get("engine", "unknown"),
        "gpus": [],
    }


def target_name(labels: Mapping[str, str]) -> str:
    """`cu130`, `cu128`, `cu128-stand-in`. Raises KeyError for labels of no appliance."""
    ours = _ours(labels)
    if not re.fullmatch(r"[a-z0-9]+", ours["variant"]):
        raise KeyError("variant")
    return ours["variant"] + ("-stand-in" if ours["stand-in"] == "true" else "")


def build_id(labels: Mapping[str, str]) -> str:
    """The label, which names a folder too. Raises KeyError for labels of no appliance."""
    found = _ours(labels)["build-id"]
    if not re.fullmatch(r"[0-9a-f]+", found):
        raise KeyError("build-id")
    return found


def revision(labels: Mapping[str, str]) -> str:
    """The commit that it was built from, as its label says."""
    return labels.get("org.opencontainers.image.revision", "unknown")


def names_a_commit(revision: str) -> bool:
    """Whether the label names all that was built: no changed tree, no tree without git."""
    return revision != "unknown" and not revision.endswith("-dirty")


def _ours(labels: Mapping[str, str]) -> dict[str, str]:
    """This project's labels without their prefix."""
    prefixes = [k.removesuffix("build-id") for k in labels if k.endswith(".build-id")]
    if len(prefixes) != 1:
        raise KeyError("build-id")
    return {k.removeprefix(prefixes[0]): v for k, v in labels.items() if k.startswith(prefixes[0])}


def _compact(gpu: Mapping[str, Any]) -> str:
    return "".join(str(gpu["capability"]).split("."))


def _receipt(
    level: str,
    image: ImageId,
    labels: Mapping[str, str],
    date: str,
    machine: Mapping[str, Any],
    suites: Mapping[str, Count],
) -> Receipt:
    return Receipt(
        level=level,
        image=image,
        target=target_name(labels),
        build_id=build_id(labels),
        revision=revision(labels),
        date=date,
        machine=machine,
        suites=suites,
    )
