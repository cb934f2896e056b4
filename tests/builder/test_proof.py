"""The proof refuses an image that says something else than what was built."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from builder.errors import ProofFailedError
from builder.pins import load_target
from builder.project import default_project
from builder.proof import prove

TARGET = load_target(default_project(), "cu130")
SAYS = {"variant": "cu130", "stand_in": False, "build_id": "b"}
OP = {"op": "ddtree::build_tree", "equal": True}


class FakeContainer:
    """Answers as the image would; remembers whether it was removed."""

    removed = 0

    def __init__(self, says: dict[str, Any], failure: bytes | None) -> None:
        self.says, self.failure = says, failure

    def start(self) -> None:
        """Nothing to start."""

    def wait(self) -> dict[str, int]:
        return {"StatusCode": 0 if self.failure is None else 1}

    def logs(self, *, stdout: bool, stderr: bool) -> bytes:
        return json.dumps(self.says).encode() if stdout else self.failure or b""

    def remove(self, *, force: bool) -> None:
        FakeContainer.removed += force


def engine(version: dict[str, Any], failure: bytes | None = None) -> Any:
    def create(_image: str, argv: list[str], **_options: Any) -> FakeContainer:
        return FakeContainer(version if argv[0] == "version" else OP, failure)

    return SimpleNamespace(client=SimpleNamespace(containers=SimpleNamespace(create=create)))


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


def test_no_container_is_left_even_on_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_self: FakeContainer) -> dict[str, int]:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeContainer, "wait", interrupted)
    monkeypatch.setattr(FakeContainer, "removed", 0)
    with pytest.raises(KeyboardInterrupt):
        prove(engine(SAYS), TARGET, "image", "b")
    assert FakeContainer.removed == 1
