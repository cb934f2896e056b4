"""The suites of tests/image and tests/e2e against any image, and the receipts that they earn."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker.errors

from builder import console, qualification, receipts
from builder.engine import Engine
from builder.engine.images import look_up
from builder.errors import (
    BuilderError,
    DiskSpaceError,
    EngineAbsentError,
    ImageAbsentError,
    ImageReferenceError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from builder.pipeline import revision
from builder.project import Project
from builder.receipts import ImageId, Receipt, record, write_receipt
from builder.suites import QUICK, Run, judge, known_suites, parse_report, run_pytest, table

REPORT = ("--durations=15",)


@dataclass(frozen=True)
class Subject:
    """An image on the engine. `digest` only if it was asked for by digest."""

    reference: str
    image: ImageId
    labels: Mapping[str, str]
    target: str
    build_id: str


def find(engine: Engine, reference: str) -> Subject:
    """The image, pulled if it is a registry's and not here.

    Raises ImageReferenceError (malformed, moves, or no appliance), ImageAbsentError,
    RegistryUnreachableError, RegistryRefusedError, DiskSpaceError, EngineFailedError.
    """
    try:
        image = look_up(engine, reference)
    except ImageAbsentError:
        image = _pull(engine, reference)
    labels = dict(image.labels)
    try:
        target, build_id = qualification.target_name(labels), qualification.build_id(labels)
    except KeyError as exc:
        raise ImageReferenceError(
            f"{reference} is no DDTree appliance: it has no valid label {exc}",
            "name an image that build.py made; `docker images` lists what is here",
        ) from None
    digest = reference.partition("@")[2] or None
    size = int(image.attrs["Size"])
    identity = ImageId(str(image.id), reference, size, digest=digest)
    return Subject(reference, identity, labels, target, build_id)


def _pull(engine: Engine, reference: str) -> Any:
    name, at, _digest = reference.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if "/" not in name and not at:
        raise ImageAbsentError(
            f"the engine has no image {reference}",
            "`docker images` lists what is here; `test --image cu130` builds one and tests it; an "
            "image of a registry is named REGISTRY/NAME:TAG or by its digest",
        )
    if not at and tag in ("", "latest"):
        raise ImageReferenceError(
            f"{reference} is not here, and names no image that stays the same",
            "name its immutable tag or its digest: NAME:TAG or NAME@sha256:DIGEST",
        )
    with console.step(f"pulling {reference}"):
        try:
            # Not images.pull(): it drops what the engine says of a pull that breaks off half-way.
            for line in engine.client.api.pull(reference, stream=True, decode=True):
                if "error" in line:
                    raise _pull_failed(reference, str(line["error"]))
            return engine.client.images.get(reference)
        except docker.errors.NotFound as exc:
            raise ImageAbsentError(
                f"{reference}: {exc.explanation or exc}",
                "check the name; a private one needs `docker login` with this user",
            ) from None
        except docker.errors.APIError as exc:
            raise _pull_failed(reference, str(exc.explanation or exc)) from None


def _pull_failed(reference: str, said: str) -> BuilderError:
    what = f"{reference} cannot be pulled: {said}"
    if "no space left" in said:
        return DiskSpaceError(what, "make room in the engine's data folder, then run it again")
    if any(word in said for word in ("denied", "unauthorized", "authentication")):
        return RegistryRefusedError(what, "log in with `docker login`")
    if any(word in said for word in ("not found", "manifest unknown", "no matching manifest")):
        return ImageAbsentError(what, "check the name; the images are for linux/amd64")
    return RegistryUnreachableError(what, "check the registry's name and network")


def why_foreign(project: Project, labels: Mapping[str, str]) -> str:
    """Why an image is not taken for a build of this tree; empty if it is one."""
    theirs, ours = qualification.revision(labels), revision(project)
    if theirs == ours and qualification.names_a_commit(ours):
        return ""
    short = [r[:10] + ("-dirty" if r.endswith("-dirty") else "") for r in (theirs, ours)]
    return f"the image was built from revision {short[0]}, this tree is {short[1]}"


def choose(project: Project, asked: Sequence[str], *, full: bool) -> tuple[str, ...]:
    """Names of suites: QUICK unless others are asked for. Raises ValueError."""
    known = known_suites(project)
    unknown = [name for name in asked if name not in (*known, "all")]
    if not unknown and (full or "all" in asked):
        return tuple(known)
    if unknown:
        raise ValueError(f"no suite named {', '.join(unknown)}: all, or of {', '.join(known)}")
    return tuple(asked) or QUICK


def check_mounts(engine: Engine, image: str) -> None:
    """The suites mount files of this machine. Raises EngineAbsentError if the engine lacks them."""
    with tempfile.TemporaryDirectory(prefix="ddtree-probe-") as scratch:
        probe = Path(scratch) / "probe"
        probe.write_text("here\n")
        probe.chmod(0o644)  # the image's user is another one, whatever the umask here
        Path(scratch).chmod(0o755)
        said = b""
        try:
            said = engine.client.containers.run(
                image,
                ["/probe/probe"],
                entrypoint=["cat"],  # not the image's own: that is for the suites to judge
                remove=True,
                network_mode="none",
                volumes={scratch: {"bind": "/probe", "mode": "ro"}},
            )
        except docker.errors.ContainerError:
            pass
        except docker.errors.APIError as exc:
            console.info(f"the engine mounts nothing of this machine: {exc.explanation or exc}")
    if bytes(said) != b"here\n":
        raise EngineAbsentError(
            "the engine does not see this machine's files, which the tests mount",
            "run it on the machine of the engine, or share the temporary folder with it",
        )


def run_suites(
    project: Project,
    engine: Engine,
    image: str,
    names: Sequence[str],
    *,
    full: bool = False,
    foreign: str = "",
    target: str = "",
    to_stderr: bool = False,
) -> Run:
    """Run suites against an image that the engine has; pytest's output is streamed."""
    known = known_suites(project)
    files = [str(known[name].relative_to(project.root)) for name in names]
    env = {"DDTREE_IMAGE": image, "DDTREE_FOREIGN": foreign, "DDTREE_TARGET": target}
    with tempfile.TemporaryDirectory(prefix="ddtree-report-") as scratch:
        report = Path(scratch) / "junit.xml"
        marks = "docker" if full else "docker and not full"
        code = run_pytest(
            project,
            [*files, "-m", marks, *REPORT, f"--junitxml={report}", "-o", "junit_family=xunit2"],
            env,
            engine,
            to_stderr=to_stderr,
        )
        return judge(parse_report(report), code, names)


def conclude(project: Project, engine: Engine, subject: Subject, run: Run) -> Receipt | None:
    """Keep the receipt `cpu-verified` if these suites earn it; say why where they do not."""
    reasons = qualification.why_not_verified(run.counts)
    if run.problem or reasons:
        console.info(f"no cpu-verified receipt: {'; '.join(reasons) or run.problem}")
        return None
    receipt = qualification.cpu_verified(subject.image, subject.labels, run.counts, engine.versions)
    console.info(f"cpu-verified: {write_receipt(project, receipt)}")
    return receipt


def qualify(project: Project, subject: Subject, file: Path) -> Receipt:
    """Keep the receipt `gpu-qualified` from a self-test's own. Raises EvidenceError."""
    selftest = qualification.read_selftest(file)
    receipt = qualification.gpu_qualified(selftest, subject.image, subject.labels)
    console.info(f"gpu-qualified: {write_receipt(project, receipt)}")
    return receipt


def receipts_of(project: Project, subject: Subject) -> list[Receipt]:
    """What this machine's cache holds of that very image."""
    image = subject.image
    return receipts.receipts_of(
        project,
        subject.build_id,
        image_id=image.id,
        rootfs=image.rootfs or "",
        digest=image.digest or "",
    )


def commit_receipts(project: Project, subject: Subject) -> None:
    """Into images/receipts, for README's table. Nothing of the image is known: nothing changes."""
    found = receipts_of(project, subject)
    if not found:
        console.warn(f"no receipt of {subject.reference} in the cache: nothing to record")
        return
    path = record(project, subject.target, found)
    levels = ", ".join(receipt.level for receipt in found)
    console.info(f"{path.relative_to(project.root)}: {levels}; now `python3 build.py render`")


def as_text(subject: Subject, run: Run) -> str:
    """The table, then the verdict."""
    return f"{table(run)}\n{subject.reference}: {run.verdict}"


def as_document(subject: Subject, run: Run, found: Sequence[Receipt]) -> dict[str, Any]:
    """The result as JSON."""
    return {
        "reference": subject.reference,
        "image_id": subject.image.id,
        "digest": subject.image.digest,
        "target": subject.target,
        "build_id": subject.build_id,
        "passed": not run.problem,
        "problem": run.problem,
        "suites": [suite.document() for suite in run.suites],
        "receipts": [receipt.document() for receipt in found],
    }
