"""The proof refuses an image that says something else than what was built."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from builder.errors import ProofFailedError
from builder.pins import load_target
from builder.project import default_project
from builder.proof import prove

TARGET = load_target(default_project(), "cu130")
SAYS = {"variant": "cu130", "stand_in": False, "build_id": "b"}
OP = {"op": "ddtree::build_tree", "equal": True}


def engine(version: dict[str, Any], failure: bytes | None = None) -> Any:
    def run(_image: str, argv: list[str], **_options: Any) -> bytes:
        if failure is not None:
            container: Any = SimpleNamespace()
            said: Any = failure  # bytes, whatever the stubs say
            raise docker.errors.ContainerError(container, 1, " ".join(argv), "image", said)
        return json.dumps(version if argv[0] == "version" else OP).encode()

    return SimpleNamespace(client=SimpleNamespace(containers=SimpleNamespace(run=run)))


def test_an_honest_image_passes() -> None:
    assert prove(engine(SAYS), TARGET, "image", "b") == {"version": SAYS, "op": OP}


@pytest.mark.parametrize(
    ("key", "value"), [("variant", "cu128"), ("stand_in", True), ("build_id", "a")]
)
def test_an_image_that_contradicts_its_build_is_refused(key: str, value: object) -> None:
    with pytest.raises(ProofFailedError) as caught:
        prove(engine({**SAYS, key: value}), TARGET, "image", "b")
    assert key in caught.value.what


def test_a_container_that_fails_is_quoted() -> None:
    with pytest.raises(ProofFailedError) as caught:
        prove(engine(SAYS, b"Traceback\nImportError: libc10.so"), TARGET, "image", "b")
    assert "ImportError: libc10.so" in caught.value.what
