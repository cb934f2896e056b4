"""`audit IMAGE` on a real engine: small images with the trees of the corpus in them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker.errors
import packaging
import pytest

from builder.audit_image import MANIFEST, audit_reference
from builder.base import ensure_base
from builder.engine import Engine, acquire
from builder.errors import AuditFailedError, ImageAbsentError, ImageReferenceError
from builder.pins import load_shared
from builder.project import default_project
from tests.builder.inside.conftest import pristine, tree
from tests.builder.inside.tree import SITE, TOOLKIT, Tree, raw_target
from tests.builder.test_audit_cli import manifest_of

__all__ = ["pristine", "tree"]  # fixtures
pytestmark = pytest.mark.docker

NAME = "ddtree-audit-test"
DOCKERFILE = f"""\
FROM {{base}}
COPY root/ /
ENV CUDA_HOME=/{SITE}/{TOOLKIT}
RUN find / -xdev -type f -perm /6000 -exec chmod a-s {{{{}}}} +
"""


# The base is real: half a gigabyte of Debian.
PINS = raw_target(budget_layers_mib={"system": 1024, "dependencies": 8, "sglang": 8, "overlay": 8})


@pytest.fixture
def appliance(tree: Tree) -> Tree:
    tree.write(MANIFEST, json.dumps(manifest_of(PINS)))
    return tree


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    project = default_project()
    with acquire(project, load_shared(project), "auto", need_gib=1) as found:
        yield found
        for tag in ("clean", "broken", "foreign"):
            with suppress(docker.errors.APIError):
                found.client.images.remove(f"{NAME}:{tag}", force=True)


def build(engine: Engine, tag: str, tree: Tree | None) -> str:
    """An image of the base with the tree on top."""
    project = default_project()
    base = ensure_base(project, load_shared(project), engine).reference
    text = DOCKERFILE.format(base=base) if tree else f"FROM {base}\nENV x=y\n"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text.encode()))
        if tree:
            # Here the host's own does not help out.
            archive.add(Path(packaging.__file__).parent, f"root/{SITE}/packaging")
            # glibc and libstdc++ are the base's own; the compiler of the tree makes what it should.
            archive.add(
                tree.root,
                "root",
                filter=lambda m: None if "x86_64-linux-gnu" in m.name.split("/") else m,
            )
    reference = f"{NAME}:{tag}"
    engine.client.images.build(
        fileobj=io.BytesIO(buffer.getvalue()), custom_context=True, tag=reference, rm=True
    )
    return reference


def leftovers(engine: Engine, reference: str) -> int:
    return len(engine.client.containers.list(all=True, filters={"ancestor": reference}))


def test_a_clean_image_passes_from_inside(engine: Engine, appliance: Tree) -> None:
    reference = build(engine, "clean", appliance)
    audited = audit_reference(engine, reference, None)
    assert audited.report["findings"] == [], audited.lines
    assert audited.passed
    ran = {rule["code"] for rule in audited.report["rules"] if rule["ran"]}
    assert {"REG003", "JIT005", "JIT006"} <= ran
    assert any("JIT005  ok" in line for line in audited.lines)
    # What the audit brought along is no part of what it saw.
    assert "ddtree-audit" not in str(audited.report)
    assert leftovers(engine, reference) == 0


def test_a_broken_image_is_caught(engine: Engine, appliance: Tree) -> None:
    appliance.library("x/libcublas.so.12")
    appliance.write(f"{SITE}/{TOOLKIT}/bin/nvcc", "#!/bin/sh\nexit 3\n")
    audited = audit_reference(engine, build(engine, "broken", appliance), PINS)
    assert {"MIX002", "JIT005"} <= {finding["code"] for finding in audited.report["findings"]}
    assert not audited.passed


def test_an_image_that_is_no_appliance_is_refused(engine: Engine) -> None:
    reference = build(engine, "foreign", None)
    with pytest.raises(ImageReferenceError, match=MANIFEST):
        audit_reference(engine, reference, None)
    with pytest.raises(AuditFailedError, match="site-packages expected, found 0"):
        audit_reference(engine, reference, PINS)
    assert leftovers(engine, reference) == 0


def test_an_absent_image_is_named(engine: Engine) -> None:
    with pytest.raises(ImageAbsentError, match="no-such-image"):
        audit_reference(engine, "no-such-image:1", None)
