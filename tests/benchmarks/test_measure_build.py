"""benchmarks/measure_build.py without an engine: steps, room, order, and the registry's log."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import build_session, build_transfer, measure_build
from benchmarks.build_page import State
from benchmarks.build_session import EDITED, Session, Transfers
from benchmarks.build_transfer import MeasureError, Transfer
from builder.engine import Engine
from builder.project import Project, default_project

DIGEST = "sha256:" + "a" * 64
AGENT = '"" "docker/26.1.5 UpstreamClient(Docker-Client/26.1.5 \\\\(linux\\\\))"'


def access(method: str, path: str, status: int, size: int) -> str:
    return f'127.0.0.1 - - [30/Nov/2026:06:53:13 +0000] "{method} {path} HTTP/1.1" {status} {size} {AGENT}\n'


def test_only_content_that_was_served_counts() -> None:
    log = (
        'time="2026-11-30T06:53:13Z" level=info msg="response completed" http.response.written=999\n'
        + access("HEAD", f"/v2/n/manifests/{DIGEST}", 200, 700)
        + access("GET", f"/v2/n/manifests/{DIGEST}", 200, 7)
        + access("GET", f"/v2/n/blobs/{DIGEST}", 200, 100)
        + access("GET", f"/v2/n/blobs/{DIGEST}", 206, 20)
        + access("GET", "/v2/n/blobs/sha256:" + "b" * 64, 404, 3000)
        + access("PUT", f"/v2/n/blobs/{DIGEST}", 201, 50)
    )
    assert build_transfer.served(log) == build_transfer.Served(127, frozenset({DIGEST}))


def test_a_layer_is_called_by_its_part_or_its_step() -> None:
    config = {
        "history": [
            {"created_by": "COPY base /", "comment": "buildkit.dockerfile.v0"},
            {"created_by": "ENV A=1", "empty_layer": True},
            {"created_by": "RUN /bin/sh -c pip install # buildkit", "comment": "part torch"},
            {},
        ]
    }
    assert build_transfer.layer_names(config) == ["COPY base /", "part torch", "base"]


@pytest.mark.parametrize(
    ("text", "own", "steps"),
    [
        ("edit", False, {"edit"}),
        ("edit", True, {"cold", "edit"}),
        ("pull", False, {"push", "pull"}),
        (" update,", False, {"edit", "push", "pull", "update"}),
    ],
)
def test_steps_bring_those_that_they_need(text: str, own: bool, steps: set[str]) -> None:
    assert measure_build.chosen(text, own_cache=own) == steps


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--steps", "push,shove"], "shove"),
        (["--steps", ","], "there are cold"),
        (["--steps", "cold", "--cache", "."], "empty cache"),
        (["--steps", "push", "--cache", "nonesuch"], "is no folder"),
        (["--engine", "existing"], "give --cache"),
    ],
)
def test_what_makes_no_sense_is_refused(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        measure_build.arguments(argv)
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


def test_more_steps_need_no_less_room() -> None:
    def need(text: str, own: bool = False) -> float:
        return measure_build.disk_gib(measure_build.chosen(text, own_cache=own), 25, 8.0)

    assert need("same") < need("edit") < need("push") < need("pull") < need("update")
    # Export of the second image: the engine's temporary file, two layouts, the registry.
    assert need("update") == 8 + 3 * 4 + 1
    assert need("same", own=True) == 25
    assert need("update", own=True) == 2 * 8 + need("update")


def test_an_interrupted_builder_has_time_to_clean_up(tmp_path: Path) -> None:
    mark = tmp_path / "cleaned"
    child = (
        "import signal, sys, time, pathlib\n"
        "def end(*_):\n"
        f"    time.sleep(1); pathlib.Path({str(mark)!r}).touch(); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "time.sleep(60)\n"
    )

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            build_transfer.run_json([sys.executable, "-c", child])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert mark.exists()


def test_a_failed_command_is_no_result() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        build_transfer.run_json([sys.executable, "-c", "print('{}'); raise SystemExit(3)"])


class FakeImage:
    def __init__(self, images: FakeImages, image_id: str, tags: list[str]) -> None:
        self.images, self.id, self.tags = images, image_id, tags

    def tag(self, name: str, tag: str) -> None:
        self.images.tags[f"{name}:{tag}"] = self.id


class FakeImages:
    """Names and ids of an engine's images."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}

    @property
    def engine(self) -> Engine:
        return Engine("existing", cast(Any, SimpleNamespace(images=self)), {}, {}, "docker")

    def get(self, name: str) -> FakeImage:
        found = self.tags[name]
        return FakeImage(self, found, [tag for tag, image in self.tags.items() if image == found])

    def remove(self, name: str, *, force: bool) -> None:
        assert force
        del self.tags[name]


class Stage:
    """A session whose builds and transfers are recorded instead of made."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.images = FakeImages()
        self.cache = folder / "cache"
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.root = folder / "clone"
        self.root.mkdir()
        (self.root / "images").symlink_to(default_project().root / "images")
        self.edited = self.root / EDITED
        self.edited.parent.mkdir(parents=True)
        self.edited.write_text("pass\n")
        for argv in (["init", "-q"], ["add", EDITED], ["commit", "-q", "-m", "x"]):
            user = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
            subprocess.run(["git", *user, *argv], cwd=self.root, check=True)
        monkeypatch.setenv("DDTREE_CACHE", str(self.cache))
        monkeypatch.setattr(Session, "build", self.build)
        monkeypatch.setattr(Transfers, "push", self.push)
        monkeypatch.setattr(Transfers, "pull", lambda *_: self.did.append("pull"))
        monkeypatch.setattr(Transfers, "exported", lambda _: {"layers": []})
        monkeypatch.setattr(build_session, "acquire", self.acquire)
        monkeypatch.setattr(build_transfer, "registry_near", self.registry)

    @property
    def session(self) -> Session:
        return Session(Project(self.root), "cu130", False, "existing", kept=True)

    @contextmanager
    def acquire(self, *_: Any, **__: Any) -> Iterator[Engine]:
        yield self.images.engine

    @contextmanager
    def registry(self, *_: Any) -> Iterator[None]:
        self.did.append("registry")
        yield

    def build(self, *_: Any) -> tuple[float, dict[str, Any]]:
        build_id = "edited" if "one line more" in self.edited.read_text() else "plain"
        self.did.append(f"build {build_id}")
        reference = f"ddtree-appliance:1-cu130-{build_id}"
        self.images.tags[reference] = self.images.tags["ddtree-appliance:cu130"] = build_id
        reports = self.cache / "reports" / "cu130"
        reports.mkdir(parents=True, exist_ok=True)
        (reports / "manifest.json").write_text(
            json.dumps(
                {
                    "build_id": build_id,
                    "sizes": {"total_bytes": 1, "packages": {}},
                    "pins": {"budget_gib": 1.0},
                    "audit": {"notes": {}},
                }
            )
        )
        return 1.5, {
            "build_id": build_id,
            "image_id": build_id,
            "reference": reference,
            "base": "bootstrap: x",
            "engine": {"engine": "26"},
            "size_bytes": 1,
            "layers": [],
        }

    def push(self, *_: Any) -> None:
        self.did.append(f"push {self.images.tags['ddtree-appliance:cu130']}")

    def measure(self, *steps: str) -> State:
        return self.session.measure(frozenset(steps), self.scratch, State({}))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_the_first_image_is_pushed_before_the_edit_and_both_are_pulled_after_it(
    stage: Stage,
) -> None:
    state = stage.measure("edit", "push", "pull", "update")
    assert stage.did == [
        *("build plain", "registry", "push plain"),
        *("build edited", "registry", "push edited", "pull"),
    ]
    assert set(state.runs) == {"edit"}  # the recorded transfers measured nothing
    assert state.sizes is not None
    assert state.sizes["place"]["image"].startswith("ddtree-appliance:1-cu130-plain")


def test_a_kept_cache_and_its_engine_have_what_they_had(stage: Stage) -> None:
    stage.measure("edit")
    assert stage.images.tags == {
        "ddtree-appliance:1-cu130-plain": "plain",
        "ddtree-appliance:cu130": "plain",
    }
    report = json.loads((stage.cache / "reports/cu130/manifest.json").read_text())
    assert report["build_id"] == "plain"


def test_they_have_it_after_a_failure_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MeasureError("no")

    monkeypatch.setattr(Transfers, "pull", fail)
    with pytest.raises(MeasureError):
        stage.measure("edit", "push", "pull", "update")
    assert stage.images.tags["ddtree-appliance:cu130"] == "plain"
    assert "ddtree-appliance:1-cu130-edited" not in stage.images.tags


def test_a_report_of_another_build_is_not_taken(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, result = stage.build()
    monkeypatch.setattr(Session, "build", lambda _: (seconds, {**result, "build_id": "newer"}))
    with pytest.raises(MeasureError, match="of another build"):
        stage.measure("same")


def layout(*digests: str) -> Any:
    layers = [SimpleNamespace(digest=one, size=10 * n) for n, one in enumerate(digests, 1)]
    return SimpleNamespace(layers=lambda: layers, manifest=SimpleNamespace(digest="sha256:m"))


def test_a_pull_by_an_engine_that_had_layers_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target: Any = SimpleNamespace(
        shared=SimpleNamespace(project=SimpleNamespace(image_name="image"))
    )
    place: Any = None
    transfers = Transfers(default_project(), target, place, layouts=[layout("a", "b")])
    removed: list[str] = []
    monkeypatch.setattr(build_transfer, "pull", lambda *_: Transfer(1.0, 10, frozenset({"a"})))
    registry: Any = SimpleNamespace(host="127.0.0.1:1")
    images: Any = SimpleNamespace(remove=lambda name, force: removed.append(name))
    engine = Engine("existing", cast(Any, SimpleNamespace(images=images)), {}, {}, "docker")
    with pytest.raises(MeasureError, match="1 of 2 layers"):
        transfers.pull(engine, registry)
    assert removed == ["127.0.0.1:1/image@sha256:m"]
    assert not transfers.runs


def test_a_row_counts_the_layers_that_crossed() -> None:
    place: Any = None
    run = build_session.crossing(
        Transfer(1.0, 77, frozenset({"b", "c"})), layout("a", "b", "c"), place
    )
    assert (run.sent, run.layers, run.layers_of, run.largest) == (77, 2, 3, 30)
