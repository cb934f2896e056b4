"""`licences` as a user meets it; a container of a test's making holds the inventory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from builder import licences_cli
from builder.cli import main
from builder.engine import Engine
from builder.errors import EvidenceError, ImageAbsentError
from builder.inside.inventory import encode
from tests.builder.supply.parts import inventory, target
from tests.builder.supply.test_evidence import FakeContainer, engine_with

NAME = "ddtree-appliance:cu128"
Holds = Callable[[FakeContainer | None], None]


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> Holds:
    """The engine has one image with that container, or none."""

    def holding(container: FakeContainer | None) -> None:
        @contextmanager
        def engine(*_: Any, **__: Any) -> Iterator[Engine]:
            yield engine_with(container)

        monkeypatch.setattr(licences_cli, "acquire", engine)

    return holding


def test_a_table_of_an_image(holds: Holds, capsys: pytest.CaptureFixture[str]) -> None:
    container = FakeContainer(encode(inventory(target("cu128"))))
    holds(container)
    assert main(["licences", NAME]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{NAME}: cu128, version ")
    # The archives of the CUDA toolkit, which only the pins describe.
    assert "cuda_nvcc 12.8.93" in out.partition("\nproprietary: ")[2].partition("\ncopyleft: ")[0]
    assert "libc6 2.36-9" in out.partition("\ncopyleft: ")[2]
    assert container.removed


def test_the_document_of_an_image(holds: Holds, capsys: pytest.CaptureFixture[str]) -> None:
    made = inventory(target("cu128-stand-in"))
    holds(FakeContainer(encode(made)))
    assert main(["licences", NAME, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["image"] == {
        "reference": NAME,
        "target": "cu128-stand-in",
        "version": made["version"],
        "build_id": made["build_id"],
    }
    assert set(document) == {"image", "licences", "attention", "parts"}
    assert not [part for part in document["parts"] if part["ref"].startswith("archive:")]


def other(**changes: Any) -> FakeContainer:
    return FakeContainer(encode(inventory(target(), **changes)))


@pytest.mark.parametrize(
    ("container", "error", "word"),
    [
        (None, ImageAbsentError, NAME),
        (FakeContainer(None), EvidenceError, "inventory.json"),
        (FakeContainer(b"{}"), EvidenceError, "no inventory"),
        (other(schema=2), EvidenceError, "schema 2"),
        (other(name="cu999"), EvidenceError, "cu999"),
        (other(name=["odd"]), EvidenceError, "odd"),
        (other(kernels=None), EvidenceError, "garbles"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_cannot_be_listed_is_two_lines(
    holds: Holds,
    container: FakeContainer | None,
    error: type[EvidenceError],
    word: str,
    form: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    holds(container)
    assert main(["licences", NAME, *form]) == error.exit_code
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["error", "  fix"]
    assert word in lines[0]
    assert (json.loads(shown.out)["error"] if form else shown.out) == (
        error.__name__ if form else ""
    )
