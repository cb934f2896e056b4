"""Comparing two builds: equal images, and for others a message that says where to look."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import docker.errors
import pytest

from builder import proc, reproduce
from builder.bake import NoCache
from builder.engine import Engine
from builder.errors import BuildFailedError, NotReproducibleError, ToolMissingError
from builder.oci.produce import produce
from builder.pins import load_target
from builder.pipeline import revision
from builder.project import Project, default_project
from builder.reproduce import (
    SHOWN,
    Snapshot,
    compare,
    copy_tree,
    differences,
    prove_reproducible,
    second_build,
)
from tests.builder.oci.archives import CONFIG, EPOCH, Member, Stream, save


def shot(*members: Member, **config: Any) -> Snapshot:
    with TemporaryDirectory() as scratch:
        data = save([members], config={**CONFIG, **config})
        found = produce(Stream(data), epoch=EPOCH, scratch=Path(scratch), threads=1)
    return Snapshot(found.manifest.digest, found.files, found.config)


FILES = (Member("a/"), Member("a/one", b"1"), Member("a/two", b"2"), Member("l", target="a"))


def test_equal_images_pass() -> None:
    compare(shot(*FILES), shot(*reversed(FILES[1:]), FILES[0]))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (Member("a/two", b"3"), r"/a/two: content [0-9a-f]{12} / [0-9a-f]{12}"),
        (Member("a/two", b"33"), r"/a/two: content .*, size 1 / 2"),
        (Member("a/two", b"2", mode=0o600), "/a/two: mode 0644 / 0600"),
        (Member("a/two", b"2", owner=(7, 0)), "/a/two: owner 0:0 / 7:0"),
        (Member("a/two", link="a/one"), "/a/two: .*hard link absent / a/one"),
        (Member("l", target="b"), "/l: link a / b"),
        (Member("new", b""), "/new: only in the second"),
    ],
)
def test_a_difference_is_named_with_what_differs(change: Member, line: str) -> None:
    others = [member for member in FILES if member.path != change.path]
    with pytest.raises(NotReproducibleError, match=line) as caught:
        compare(shot(*FILES), shot(*others, change))
    assert "1 places" in caught.value.what


def test_a_difference_of_the_configuration_is_named() -> None:
    with pytest.raises(NotReproducibleError, match=r"configuration config\.User: 10001:0 / 0:0"):
        compare(shot(*FILES), shot(*FILES, User="0:0"))


def test_another_base_is_said_first_and_is_no_fault_of_a_step() -> None:
    labels = {"dev.ddtree.base": "bookworm packages-sha256=1"}
    with pytest.raises(NotReproducibleError) as caught:
        compare(shot(*FILES), shot(Member("other", b""), Labels=labels))
    assert caught.value.what.splitlines()[1].strip().startswith("configuration config.Labels.dev")
    assert "archive has moved" in caught.value.remedy


def test_a_long_list_is_cut() -> None:
    many = [Member(f"n{number:03}", b"x") for number in range(50)]
    first, second = shot(*FILES), shot(*FILES, *many)
    assert len(differences(first, second)) == 50
    with pytest.raises(NotReproducibleError, match=f"and {50 - SHOWN} more") as caught:
        compare(first, second)
    assert len(caught.value.what.splitlines()) == SHOWN + 2


def test_the_same_files_with_other_digests_are_no_pass() -> None:
    first = shot(*FILES)
    other = Snapshot("sha256:" + "0" * 64, first.files, first.config)
    with pytest.raises(NotReproducibleError, match="packed differently"):
        compare(first, other)


def test_a_snapshot_survives_the_disk(tmp_path: Path) -> None:
    first = shot(*FILES)
    first.save(tmp_path / "s.json")
    assert Snapshot.load(tmp_path / "s.json") == first
    (tmp_path / "other.json").write_text(json.dumps({"digest": "x"}))
    with pytest.raises(ValueError, match="no snapshot"):
        Snapshot.load(tmp_path / "other.json")


# -- the second build ----------------------------------------------------------------------------


def git(root: Path, *args: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "-C", str(root), *identity, *args], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Project:
    root = tmp_path / "repository"
    (root / "images").mkdir(parents=True)
    git(tmp_path, "init", "--quiet", str(root))
    (root / ".gitignore").write_text("ignored\n")
    (root / "build.py").write_text("committed")
    (root / "script").write_text("#!/bin/sh\n")
    (root / "script").chmod(0o755)
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    return Project(root)


def test_a_copy_is_the_same_commit(repository: Project, tmp_path: Path) -> None:
    (repository.root / "ignored").write_text("x")
    copy_tree(repository, tmp_path / "copy")
    assert revision(Project(tmp_path / "copy")) == revision(repository)
    assert not revision(repository).endswith("-dirty")
    assert not (tmp_path / "copy/ignored").exists()
    assert os.access(tmp_path / "copy/script", os.X_OK)


def test_a_copy_is_dirty_like_its_original(repository: Project, tmp_path: Path) -> None:
    (repository.root / "build.py").write_text("changed")
    (repository.root / "images/new.toml").write_text("new")
    (repository.root / "script").unlink()
    copy_tree(repository, tmp_path / "copy")
    assert (tmp_path / "copy/build.py").read_text() == "changed"
    assert (tmp_path / "copy/images/new.toml").read_text() == "new"
    assert not (tmp_path / "copy/script").exists()
    assert revision(Project(tmp_path / "copy")) == revision(repository)
    assert revision(repository).endswith("-dirty")


def test_a_tree_without_git_cannot_be_built_twice(tmp_path: Path) -> None:
    with pytest.raises(ToolMissingError, match="no git checkout"):
        copy_tree(Project(tmp_path), tmp_path / "copy")


def test_the_second_build_shares_nothing_with_the_first(
    repository: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], dict[str, Any]]] = []
    real = proc.run

    def run(argv: list[str], **options: Any) -> Any:
        if "git" in argv[0]:
            return real(argv, **options)
        calls.append((argv, options))
        return None

    monkeypatch.setattr(proc, "run", run)
    engine: Any = SimpleNamespace(env={"DOCKER_HOST": "unix:///here", "DDTREE_CACHE": "/first"})
    target = load_target(default_project(), "cu128", stand_in=True)
    name = second_build(repository, target, engine, tmp_path / "2", name="twice", options=["--x"])
    ((argv, options),) = calls
    assert name == "twice:cu128-stand-in"
    assert {"--no-cache", "--stand-in", "--x"} <= set(argv)
    assert argv[argv.index("--name") + 1] == "twice"
    assert options["cwd"] == tmp_path / "2/tree"
    assert options["env"]["DDTREE_CACHE"] == str(tmp_path / "2/cache")
    assert options["env"]["DOCKER_HOST"] == "unix:///here"
    assert options["error"] is BuildFailedError


@pytest.mark.parametrize("anew", ["ours", "all"])
def test_the_layers_that_the_engine_has_are_known_to_the_second_cache(
    anew: NoCache, repository: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a second build of our own layers asks for the room of a whole first build."""
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "1"))
    monkeypatch.setattr(proc, "run", lambda argv, **options: None)
    monkeypatch.setattr(reproduce, "copy_tree", lambda project, to: None)
    record = tmp_path / "1/reports/cu130.layers"
    record.parent.mkdir(parents=True)
    record.write_text("engine and layers")
    engine: Any = SimpleNamespace(env={})
    target = load_target(default_project(), "cu130")
    second_build(repository, target, engine, tmp_path / "2", name="x", anew=anew)
    assert (tmp_path / "2/cache/reports/cu130.layers").exists() == (anew == "ours")


class Images:
    """An engine's images: names of ids. An id is removed with all its names, as engines do it."""

    def __init__(self, here: dict[str, str]) -> None:
        self.here = here

    def list(self, name: str) -> list[Any]:
        found = {known for full, known in self.here.items() if full.split(":")[0] == name}
        return [SimpleNamespace(id=known, tags=self._names(known)) for known in sorted(found)]

    def _names(self, known: str) -> builtins.list[str]:
        return [name for name, same in self.here.items() if same == known]

    def remove(self, image: str, force: bool) -> None:
        gone = [name for name, known in self.here.items() if image in (name, known)]
        if not gone:
            raise docker.errors.ImageNotFound(f"No such image: {image}")
        for name in gone:
            del self.here[name]


@pytest.mark.parametrize("equal", [True, False])
def test_only_the_first_image_remains_whatever_comes_out(
    equal: bool, repository: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path))
    first, second = "ddtree-appliance:tag", "ddtree-second-cu130:tag"
    images = Images({first: "sha256:1", second: "sha256:1" if equal else "sha256:2"})
    shots = {
        first: shot(*FILES),
        second: shot(*FILES) if equal else shot(*FILES, Member("more", b"")),
    }
    monkeypatch.setattr(reproduce, "snapshot", lambda engine, name, **options: shots[name])
    monkeypatch.setattr(reproduce, "second_build", lambda *given, **options: second)
    engine = Engine("existing", cast(Any, SimpleNamespace(images=images)), {}, {}, "docker")
    target = load_target(default_project(), "cu130")
    if equal:
        digest = prove_reproducible(repository, target, engine, first, anew="ours")
        assert digest == shots[first].identity
    else:
        with pytest.raises(NotReproducibleError, match="/more: only in the second"):
            prove_reproducible(repository, target, engine, first, anew="ours")
    assert images.here == {first: "sha256:1"}
    assert not list(tmp_path.glob("second-*"))
