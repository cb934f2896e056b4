from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import docker
import docker.errors
import pytest
import requests

from builder import base
from builder.base import BasePreference, bootstrapped, ensure_base
from builder.bootstrap import Recipe
from builder.engine import Engine, acquire
from builder.engine.aptsources import AptUnavailableError
from builder.errors import BaseImageError
from builder.pins import SharedPins, load_shared
from builder.project import Project, default_project
from tests.builder.engine.conftest import require_private, separate_cache


class FakeImages:
    """An engine's image store, and what its registry answers."""

    def __init__(self, answer: Exception | None) -> None:
        self.answer = answer
        self.present: set[str] = set()
        self.asked = 0

    def get(self, reference: str) -> FakeImages:
        if reference not in self.present:
            raise docker.errors.ImageNotFound(reference)
        return self

    id = "sha256:1"

    def tag(self, name: str, tag: str) -> bool:
        self.present.add(f"{name}:{tag}")
        return True

    def get_registry_data(self, reference: str) -> None:
        self.asked += 1
        if self.answer is not None:
            raise self.answer


class FakeClient:
    def __init__(self, answer: Exception | None) -> None:
        self.images = FakeImages(answer)
        self.api = type("Api", (), {"timeout": 900})()


Setup = Callable[[Exception | None], tuple[Engine, FakeImages]]


@pytest.fixture
def shared() -> SharedPins:
    return load_shared(default_project())


@pytest.fixture
def setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: SharedPins
) -> Iterator[tuple[Project, Setup, list[str]]]:
    """A project with an empty cache, an engine to be made, and a log of what was done."""
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path))
    done: list[str] = []

    def fake_bootstrap(project: Project, pins: SharedPins, recipe: Any, folder: Path) -> None:
        done.append("bootstrap")
        folder.mkdir(parents=True, exist_ok=True)
        record = {"layer": "ab" * 32, "image_id": "sha256:1", "mmdebstrap": "1.5"}
        record["packages_sha256"] = "cd" * 32
        (folder / "base.json").write_text(json.dumps(record))

    def make(answer: Exception | None) -> tuple[Engine, FakeImages]:
        client = FakeClient(answer)

        def fake_run(argv: list[str], **options: Any) -> None:
            done.append(argv[1])
            image = argv[-1]
            client.images.present.add(
                "ddtree-base:bookworm-abababababab" if "load" in argv else image
            )

        monkeypatch.setattr("builder.base.proc.run", fake_run)
        engine = Engine("existing", cast(docker.DockerClient, client), {}, {}, "/x/docker")
        return engine, client.images

    monkeypatch.setattr(base, "bootstrap", fake_bootstrap)
    yield default_project(), make, done


def refused() -> Exception:
    return docker.errors.APIError("no", explanation="dial tcp: lookup registry: no such host")


def test_a_registry_that_answers_gives_the_pinned_digest(
    setup: tuple[Project, Setup, list[str]], shared: SharedPins
) -> None:
    project, make, done = setup
    engine, images = make(None)
    found = ensure_base(project, shared, engine)
    assert (found.kind, found.detail) == ("registry", shared.base.image)
    assert found.reference in images.present
    assert done == ["pull"]
    ensure_base(project, shared, engine)
    assert done == ["pull"]
    assert images.asked == 1


@pytest.mark.parametrize("answer", [refused(), requests.ReadTimeout("slow")])
def test_without_a_registry_debian_is_bootstrapped_once(
    setup: tuple[Project, Setup, list[str]], shared: SharedPins, answer: Exception
) -> None:
    project, make, done = setup
    engine, images = make(answer)
    found = ensure_base(project, shared, engine)
    assert found.kind == "bootstrap"
    assert found.reference == "ddtree-base:bookworm-abababababab"
    assert "mmdebstrap=1.5" in found.detail
    assert engine.client.api.timeout == 900  # the short patience was for the question only
    assert ensure_base(project, shared, engine) == found
    assert done == ["bootstrap", "load"]
    assert images.asked == 1  # it stays with what it has


def test_refresh_bootstraps_anew(
    setup: tuple[Project, Setup, list[str]], shared: SharedPins
) -> None:
    project, make, done = setup
    engine, images = make(refused())
    ensure_base(project, shared, engine)
    ensure_base(project, shared, engine, refresh=True)
    assert done.count("bootstrap") == 2
    assert images.asked == 2


def test_all_that_the_image_takes_from_debian_is_in_the_base(
    setup: tuple[Project, Setup, list[str]], shared: SharedPins, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, make, _ = setup
    engine, _ = make(refused())
    recipes: list[Recipe] = []

    def recording(project: Project, pins: SharedPins, recipe: Recipe, folder: Path) -> None:
        recipes.append(recipe)
        raise AptUnavailableError("far enough", "")

    monkeypatch.setattr(base, "bootstrap", recording)
    with pytest.raises(BaseImageError):
        ensure_base(project, shared, engine)
    assert recipes[0].packages == shared.base.runtime_packages


def test_bootstrap_on_request_asks_no_registry(
    setup: tuple[Project, Setup, list[str]], shared: SharedPins
) -> None:
    project, make, _ = setup
    engine, images = make(None)
    assert ensure_base(project, shared, engine, prefer="bootstrap").kind == "bootstrap"
    assert images.asked == 0


def test_a_registry_on_request_is_never_replaced(
    setup: tuple[Project, Setup, list[str]], shared: SharedPins
) -> None:
    project, make, done = setup
    engine, _ = make(refused())
    with pytest.raises(BaseImageError, match="no such host") as caught:
        ensure_base(project, shared, engine, prefer="registry")
    assert "--base bootstrap" in caught.value.remedy
    assert done == []


@pytest.mark.parametrize("prefer", ["auto", "bootstrap"])
def test_when_neither_works_both_reasons_are_given(
    setup: tuple[Project, Setup, list[str]],
    shared: SharedPins,
    monkeypatch: pytest.MonkeyPatch,
    prefer: BasePreference,
) -> None:
    project, make, _ = setup
    engine, _ = make(refused())

    def unavailable(*args: object) -> None:
        raise AptUnavailableError("no archive named", "set DDTREE_DEBIAN_MIRROR")

    monkeypatch.setattr(base, "bootstrap", unavailable)
    with pytest.raises(BaseImageError, match="no archive named") as caught:
        ensure_base(project, shared, engine, prefer=prefer)
    assert ("no such host" in caught.value.what) == (prefer == "auto")
    assert "DDTREE_DEBIAN_MIRROR" in caught.value.remedy


@pytest.mark.docker
@pytest.mark.network
def test_the_bootstrapped_base_has_everything_and_nothing_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: SharedPins
) -> None:
    require_private()
    with (
        separate_cache(tmp_path / "cache", monkeypatch) as project,
        acquire(project, shared, "private", need_gib=3) as engine,
    ):
        found = ensure_base(project, shared, engine, prefer="bootstrap")
        context = tmp_path / "context"
        context.mkdir()
        packages = " ".join(shared.base.runtime_packages)
        (context / "Dockerfile").write_text(
            "FROM base\n"
            "RUN apt-get update"
            f" && apt-get install -y --no-install-recommends {packages} >/apt.out\n"
        )
        bake = {
            "context": str(context),
            "contexts": {"base": f"docker-image://{found.reference}"},
            "output": ["type=docker"],
            "tags": ["try:it"],
        }
        (context / "bake.json").write_text(json.dumps({"target": {"default": bake}}))
        argv = engine.buildx("bake", "--builder", "default", "-f", str(context / "bake.json"))
        subprocess.run(argv, env=engine.env, check=True)

        def run(script: str) -> str:
            return engine.client.containers.run(
                "try:it", ["sh", "-c", script], remove=True
            ).decode()

        assert run("cat /etc/debian_version").startswith("12.")
        assert "0 upgraded, 0 newly installed, 0 to remove" in run("cat /apt.out")
        assert run("find /etc/apt/sources.list* /run/secrets -type f; ls /var/log") == ""
        host = {p.name for p in Path("/etc/apt/apt.conf.d").iterdir()}
        assert set(run("ls /etc/apt/apt.conf.d").split()) & host <= {"01autoremove", "70debconf"}
        # The files themselves: a container hides what the layer holds at these paths.
        members = layer_members(bootstrapped(project, shared)[0] / "image.tar", found.reference)
        assert not {"./etc/resolv.conf", "./etc/hostname", "./etc/apt/sources.list"} & set(members)
        # Another owner is one that a program dropped to, if permissions on this machine let it.
        assert [name for name, member in members.items() if member.uid] == []


def layer_members(archive: Path, reference: str) -> dict[str, tarfile.TarInfo]:
    """What is in the one layer of the archive that holds `reference`, by name."""
    with tarfile.open(archive) as outer:
        manifest = outer.extractfile("manifest.json")
        assert manifest is not None
        (entry,) = json.load(manifest)
        assert entry["RepoTags"] == [reference]
        with tarfile.open(fileobj=outer.extractfile(entry["Layers"][0])) as inner:
            return {member.name: member for member in inner.getmembers()}
