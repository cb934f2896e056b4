"""`test IMAGE` with a fake engine: which image, which suites, what is kept and what is not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from builder import test_image, test_image_cli
from builder.cli import main
from builder.errors import (
    BuilderError,
    DiskSpaceError,
    EngineAbsentError,
    ImageAbsentError,
    ImageReferenceError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from builder.project import Project, default_project
from builder.qualification import REQUIRED
from builder.receipts import read_committed, read_receipts
from builder.suites import QUICK, Run, Suite, known_suites
from tests.builder.test_qualification import LABELS, a_selftest

ID = "sha256:" + "a" * 64
DIGEST = "sha256:" + "d" * 64
BUILD = "0123456789abcdef"
HERE = "ddtree-appliance:cu130"
REMOTE = f"registry.example/ddtree@{DIGEST}"


def api_error(kind: type[docker.errors.APIError], said: str) -> docker.errors.APIError:
    return kind("error", explanation=said)


class FakeImages:
    """One image here, one in a registry."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = dict(LABELS)
        self.pulled: list[str] = []
        self.failure: Exception | None = None
        self.broken = ""  # what the engine says in the middle of a pull

    def get(self, reference: str) -> Any:
        if reference not in (HERE, ID, *self.pulled):
            raise api_error(docker.errors.ImageNotFound, "no such image")
        return self._image()

    def pull(self, reference: str, *, stream: bool, decode: bool) -> Any:
        """As the engine's API: the answer is 200, and an error a line of the stream."""
        assert stream and decode
        if self.failure:
            raise self.failure
        yield {"status": "Pulling fs layer"}
        if self.broken:
            yield {"error": self.broken, "errorDetail": {"message": self.broken}}
            return
        self.pulled.append(reference)

    def _image(self) -> Any:
        return SimpleNamespace(id=ID, labels=self.labels, attrs={"Size": 7 * 2**30})


@pytest.fixture
def engine() -> Any:
    images = FakeImages()
    client = SimpleNamespace(
        images=images,
        api=SimpleNamespace(pull=images.pull),
        containers=SimpleNamespace(run=lambda *_a, **_k: b""),
    )
    return SimpleNamespace(client=client, images=images, versions={"engine": "0"}, env={})


def test_an_image_that_is_here_is_not_pulled(engine: Any) -> None:
    subject = test_image.find(engine, HERE)
    assert (subject.target, subject.build_id) == ("cu130", BUILD)
    assert subject.image.id == ID and subject.image.digest is None
    assert engine.images.pulled == []


def test_one_that_is_not_is_pulled_by_digest_or_immutable_tag(engine: Any) -> None:
    subject = test_image.find(engine, REMOTE)
    assert subject.image.digest == DIGEST
    assert test_image.find(engine, "registry.example:5000/a:1-cu130-x").image.digest is None
    assert engine.images.pulled == [REMOTE, "registry.example:5000/a:1-cu130-x"]


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("cu130", ImageAbsentError),
        ("ddtree-appliance:no-such-tag", ImageAbsentError),
        ("registry.example/ddtree", ImageReferenceError),
        ("registry.example:5000/ddtree", ImageReferenceError),
        ("registry.example/ddtree:latest", ImageReferenceError),
    ],
)
def test_a_name_that_is_no_fixed_image_is_never_pulled(
    engine: Any, reference: str, error: type[BuilderError]
) -> None:
    with pytest.raises(error, match=reference):
        test_image.find(engine, reference)
    assert engine.images.pulled == []


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (api_error(docker.errors.NotFound, "manifest unknown"), ImageAbsentError),
        (
            api_error(docker.errors.APIError, "dial tcp: connection refused"),
            RegistryUnreachableError,
        ),
        (api_error(docker.errors.APIError, "unauthorized: authentication"), RegistryRefusedError),
        (api_error(docker.errors.APIError, "denied: no right"), RegistryRefusedError),
    ],
)
def test_each_way_a_pull_fails_has_its_error(
    engine: Any, failure: Exception, error: type[BuilderError]
) -> None:
    engine.images.failure = failure
    with pytest.raises(error, match=r"registry\.example"):
        test_image.find(engine, REMOTE)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("write /var/lib/docker/tmp/x: no space left on device", DiskSpaceError),
        ("unexpected EOF", RegistryUnreachableError),
        ("unauthorized: the token has expired", RegistryRefusedError),
        ("no matching manifest for linux/arm64 in the manifest list entries", ImageAbsentError),
    ],
)
def test_a_pull_that_breaks_off_says_why(engine: Any, said: str, error: type[BuilderError]) -> None:
    engine.images.broken = said
    with pytest.raises(error, match=said):
        test_image.find(engine, REMOTE)


@pytest.mark.parametrize(
    "labels",
    [
        {"maintainer": "somebody"},
        {**LABELS, "dev.ddtree.build-id": "../../../../tmp/x"},
        {**LABELS, "dev.ddtree.build-id": "0\0"},
        {**LABELS, "dev.ddtree.variant": "../cu130"},
        {**LABELS, "dev.other.build-id": "0123456789abcdef"},
    ],
)
def test_any_other_image_is_no_appliance(engine: Any, labels: dict[str, str]) -> None:
    """Its labels become names of files here."""
    engine.images.labels = labels
    with pytest.raises(ImageReferenceError, match="no DDTree appliance"):
        test_image.find(engine, HERE)


def test_suites_are_the_quick_ones_unless_others_are_named() -> None:
    project = default_project()
    everything = tuple(known_suites(project))
    assert test_image.choose(project, [], full=False) == QUICK
    assert test_image.choose(project, ["image/abi"], full=False) == ("image/abi",)
    assert test_image.choose(project, ["image/abi", "all"], full=False) == everything
    assert test_image.choose(project, [], full=True) == everything
    for asked in (["image/no-such", "image/abi"], ["all", "image/no-such"]):
        for full in (False, True):
            with pytest.raises(ValueError, match="image/no-such"):
                test_image.choose(project, asked, full=full)


@pytest.mark.parametrize(
    ("theirs", "ours", "foreign"),
    [
        ("f" * 40, "f" * 40, False),
        ("f" * 40, "e" * 40, True),
        ("f" * 40, "f" * 40 + "-dirty", True),
        ("f" * 40 + "-dirty", "f" * 40 + "-dirty", True),  # of which changes, nobody knows
        ("unknown", "unknown", True),
    ],
)
def test_an_image_is_this_trees_only_if_both_are_one_clean_commit(
    monkeypatch: pytest.MonkeyPatch, theirs: str, ours: str, foreign: bool
) -> None:
    monkeypatch.setattr(test_image, "revision", lambda _project: ours)
    labels = {"org.opencontainers.image.revision": theirs}
    assert bool(test_image.why_foreign(default_project(), labels)) is foreign


def test_an_engine_elsewhere_is_refused(engine: Any) -> None:
    with pytest.raises(EngineAbsentError, match="does not see this machine's files"):
        test_image.check_mounts(engine, ID)
    engine.client.containers.run = lambda *_a, volumes, **_k: (
        Path(*volumes) / "probe"
    ).read_bytes()
    test_image.check_mounts(engine, ID)


def test_the_image_s_user_may_read_what_is_mounted(engine: Any) -> None:
    """Whatever the umask here; and its entry point, which may be broken, has no part in it."""
    seen: list[Any] = []

    def run(
        _image: str, _argv: list[str], *, entrypoint: list[str], volumes: Any, **_k: Any
    ) -> Any:
        seen.append((entrypoint, (Path(*volumes) / "probe").stat().st_mode & 0o777))
        return b"here\n"

    engine.client.containers.run = run
    before = os.umask(0o077)
    try:
        test_image.check_mounts(engine, ID)
    finally:
        os.umask(before)
    assert seen == [(["cat"], 0o644)]


@pytest.fixture
def verb(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The command line with everything outside replaced; `runs` records what pytest was given."""
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))
    source = default_project()
    project = Project(tmp_path / "repository")
    project.images.mkdir(parents=True)
    (project.images / "pins.toml").write_text((source.images / "pins.toml").read_text())
    (project.root / "tests").symlink_to(source.root / "tests")

    @contextmanager
    def acquire(*_a: Any, **_k: Any) -> Iterator[Any]:
        yield engine

    runs: list[dict[str, Any]] = []
    world = SimpleNamespace(project=project, engine=engine, runs=runs, suites=None)

    def run_suites(_p: Any, _e: Any, image: str, names: Any, **options: Any) -> Run:
        runs.append({"image": image, "names": tuple(names), **options})
        suites = world.suites or [Suite(name, passed=2, seconds=1.0) for name in names]
        failed = sum(suite.failed for suite in suites)
        return Run(tuple(suites), f"{failed} of 9 tests" if failed else "")

    monkeypatch.setattr(test_image_cli, "acquire", acquire)
    monkeypatch.setattr(test_image_cli, "run_suites", run_suites)
    monkeypatch.setattr(test_image_cli, "check_mounts", lambda *_a: None)
    monkeypatch.setattr(test_image, "revision", lambda _p: "e" * 40)
    monkeypatch.setattr("builder.cli.default_project", lambda: project)
    return world


def test_the_table_and_the_verdict_are_printed(
    verb: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", HERE]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[:-1]] == ["suite", *QUICK, "all"]
    assert out[-1] == f"{HERE}: passed: {2 * len(QUICK)} passed, 0 skipped"
    (run,) = verb.runs
    assert run["image"] == ID  # not the tag, which may move
    assert "built from revision" in run["foreign"] and run["target"] == "cu130"
    assert read_receipts(verb.project, BUILD) == []  # the quick suites are not all


def test_all_suites_leave_a_receipt_and_record_commits_it(
    verb: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", HERE, "--suite", "all", "--record", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] and [r["level"] for r in document["receipts"]] == ["cpu-verified"]
    (receipt,) = read_receipts(verb.project, BUILD)
    assert receipt.image.id == ID and set(REQUIRED) <= set(receipt.suites)
    assert read_committed(verb.project, "cu130") == {"cpu-verified": receipt}


def test_a_failure_is_54_and_leaves_nothing(
    verb: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    names = known_suites(verb.project)
    verb.suites = [Suite(name, passed=2) for name in names]
    verb.suites[3].failed = 1
    verb.suites[3].failures = ["test_wrong"]
    assert main(["test", HERE, "--suite", "all", "--record", "--json"]) == 54
    document = json.loads(capsys.readouterr().out)  # one document, not two
    assert not document["passed"] and document["problem"]
    assert read_receipts(verb.project, BUILD) == []
    assert read_committed(verb.project, "cu130") == {}


def test_a_selftest_of_a_gpu_host_qualifies_and_runs_nothing(
    verb: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "selftest.json"
    file.write_text(json.dumps(a_selftest()))
    assert main(["test", HERE, "--selftest-receipt", str(file), "--record", "--json"]) == 0
    assert verb.runs == []
    assert list(read_committed(verb.project, "cu130")) == ["gpu-qualified"]
    document = json.loads(capsys.readouterr().out)
    assert [r["level"] for r in document["receipts"]] == ["gpu-qualified"]
    assert document["suites"] == []
    file.write_text(json.dumps(a_selftest(kind="cpu")))
    assert main(["test", HERE, "--selftest-receipt", str(file)]) == 79


def test_without_a_receipt_nothing_is_attested(
    verb: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The quick suites earn none: to end with 0 would say that something was attached."""
    monkeypatch.setattr(test_image_cli, "signing_key", lambda *_a: object())
    monkeypatch.setattr(test_image_cli, "attest_receipts", lambda *_a: pytest.fail("attested"))
    assert main(["test", REMOTE, "--attest", "--key", "k"]) == 79
    assert "no receipt" in capsys.readouterr().err
    assert len(verb.runs) == 1


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["cu130"], 76),
        ([HERE, "--suite", "image/no-such"], 2),
        ([HERE, "--attest", "--key", "k"], 70),
        ([REMOTE, "--attest"], 2),
        ([HERE, "--key", "k"], 2),
        ([HERE, "--key-password-file", "f"], 2),
        ([HERE, "--suite", "all", "--suite", "image/no-such"], 2),
        ([HERE, "--selftest-receipt", "/nowhere/receipt"], 55),
        (["--key-password-file", "f"], 2),
        (["--key", ""], 2),
        ([HERE, "--unit"], 2),
        ([HERE, "--image", "cu130"], 2),
        (["--json"], 2),
        (["--unit", "--selftest-receipt", "f"], 2),
        (["--suite", "all"], 2),
    ],
)
def test_a_mistake_is_refused_before_anything_runs(
    verb: SimpleNamespace, argv: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert main(["test", *argv]) == code
    except SystemExit as ended:
        assert ended.code == code
    assert verb.runs == []
    assert "Traceback" not in capsys.readouterr().err
