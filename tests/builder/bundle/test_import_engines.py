"""import.sh with real engines: one of each image store, empty, with a data root of its own."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest

from builder.bundle.make import make_bundle
from builder.bundle.signing import signer
from builder.engine import Engine, acquire, layout
from builder.oci.export import export_image
from builder.pins import load_target
from builder.project import Project, default_project
from builder.supply.keys import SigningKey
from tests.builder.bundle.conftest import KeyPair, readme_step
from tests.builder.bundle.hello import hello
from tests.builder.bundle.small import EPOCH, LABELS, NAME, SmallImage
from tests.builder.engine.conftest import require_private, separate_cache

pytestmark = pytest.mark.docker


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The other machine: a cache, and so an engine, of its own; removed at the end."""
    require_private()
    with separate_cache(tmp_path / "host", monkeypatch) as project:
        yield project


def run_import(engine: Engine, bundle: Path, *words: str, **environment: str) -> Any:
    """import.sh as the operator runs it, with the docker CLI of that engine first on PATH."""
    return subprocess.run(
        ["bash", str(bundle / "import.sh"), *words],
        env={**engine.env, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


# Two layers, one of them above what import.sh announces one by one (64 MiB).
DOCKERFILE = """
FROM scratch
COPY models /opt/ddtree/models
COPY hello /bin/hello
LABEL {labels}
CMD ["/bin/hello"]
"""


def test_from_one_engine_over_a_bundle_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host_key: tuple[SigningKey, Path]
) -> None:
    """Built and exported here; there, what is loaded is what was exported, and it runs."""
    require_private()
    project = default_project()
    target = load_target(project, "cu130")
    key, public = host_key
    sign = signer(project, target.shared, key)
    tag = f"ddtree-bundle-test:{os.getpid()}"
    with acquire(project, target.shared, "auto", need_gib=2) as maker:
        _build(maker, tmp_path / "context", tag)
        try:
            layout = export_image(project, maker, tag, epoch=EPOCH, folder=tmp_path / "layout")
        finally:
            maker.client.images.remove(tag, force=True)
    tar = tmp_path / "bundle.tar"
    made = make_bundle(project, target, layout, {}, tar, sign)
    shutil.rmtree(layout.folder)
    medium = tmp_path / "medium"
    medium.mkdir()
    subprocess.run(["tar", "-xf", str(tar), "-C", str(medium)], check=True)
    tar.unlink()
    (bundle,) = medium.iterdir()
    with (
        separate_cache(tmp_path / "host", monkeypatch) as other,
        acquire(other, target.shared, "private", need_gib=1) as engine,
    ):
        assert engine.client.images.list(all=True) == []
        done = run_import(engine, bundle, "--key", str(public))
        assert done.returncode == 0, done.stderr
        assert f" of {made.files - 2} files, 0.06 GiB of 0.06 GiB" in done.stderr
        (found,) = engine.client.images.list(all=True)
        assert (found.id, found.tags) == (made.announced.config, [NAME])
        ran = engine.client.containers.run(NAME, network_mode="none", remove=True)
        assert ran == b"it runs\n"
        again = run_import(engine, bundle, "--key", str(public))
        assert "already there" in again.stderr, again.stderr
    shutil.rmtree(medium)


def _build(engine: Engine, context: Path, tag: str) -> None:
    (context / "models").mkdir(parents=True)
    # The same each time: the engine's build cache grows once.
    weights = random.Random(1).randbytes(66 << 20)  # noqa: S311 -- nothing secret
    (context / "models/weights").write_bytes(weights)
    (context / "hello").write_bytes(hello("it runs\n"))
    (context / "hello").chmod(0o755)
    labels = " ".join(f'{key}="{value}"' for key, value in LABELS.items())
    (context / "Dockerfile").write_text(DOCKERFILE.format(labels=labels))
    argv = engine.buildx("build", "--quiet", "--load", "--tag", tag, str(context))
    subprocess.run(argv, env=engine.env, check=True, capture_output=True)
    shutil.rmtree(context)


@pytest.mark.parametrize("store", ["classic", "containerd"])
def test_an_empty_engine_gets_the_announced_image_and_no_other(
    host: Project,
    key: KeyPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
) -> None:
    target = load_target(default_project(), "cu130")
    if store == "containerd":
        _use_containerd(monkeypatch)
    image = SmallImage().make(tmp_path / "layout")
    bundle = make_bundle(host, target, image, {}, tmp_path / "bundle", key.sign).destination
    with_key = ("--key", str(key.public))
    with acquire(host, target.shared, "private", need_gib=1) as engine:
        status = str(engine.client.info()["DriverStatus"])
        assert ("io.containerd.snapshotter" in status) == (store == "containerd")
        assert engine.client.images.list(all=True) == []

        swapped = run_import(
            engine, bundle, *with_key, PATH=_swapping_tar(engine, bundle, tmp_path)
        )
        assert swapped.returncode in (8, 9), swapped.stderr
        assert engine.client.images.list(all=True) == []
        refused = run_import(engine, bundle, *with_key)  # the swapped file is still there
        assert refused.returncode == 5, refused.stderr
        shutil.rmtree(bundle)
        make_bundle(host, target, image, {}, bundle, key.sign)

        done = run_import(engine, bundle, *with_key)
        assert done.returncode == 0, done.stderr
        config = str(image.document()["config"]["digest"])
        announced = image.manifest.digest if store == "containerd" else config
        (found,) = engine.client.images.list(all=True)
        assert (found.id, found.tags) == (announced, [NAME])
        ran = engine.client.containers.run(announced, network_mode="none", remove=True)
        assert ran == b"it runs\n"

        again = run_import(engine, bundle, *with_key)
        assert again.returncode == 0, again.stderr
        assert "already there" in again.stderr
        _compose_uses_it(engine, bundle, tmp_path / "serve", announced)

        engine.client.images.remove(NAME)
        _by_hand(engine, bundle, key, tmp_path, announced)
        assert engine.client.images.get(NAME).id == announced
        engine.client.images.remove(NAME)
        with pytest.raises(docker.errors.ImageNotFound):
            engine.client.images.get(announced)
    assert not layout.layout_of(host).run.exists()


def _by_hand(engine: Engine, bundle: Path, key: KeyPair, scratch: Path, announced: str) -> None:
    """README.txt's steps from loading to naming."""
    for step in (4, 5, 6):
        # The name is read from bundle.conf in step 5 and used in step 6.
        text = readme_step(bundle, step, key.public, scratch).replace(" ID ", f" {announced} ")
        before = ". ./bundle.conf\n" if step == 6 else ""
        done = subprocess.run(
            ["bash", "-c", before + text],
            cwd=bundle,
            env=engine.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if step == 5:
            assert done.stdout.split() == [announced]


def _use_containerd(monkeypatch: pytest.MonkeyPatch) -> None:
    """The private engine with the store that is the default of new installations from 29 on."""
    original = layout.daemon_config

    def changed(place: layout.Layout, *, keep_gib: int) -> dict[str, object]:
        config = original(place, keep_gib=keep_gib)
        config["features"] = {"containerd-snapshotter": True}
        config["storage-driver"] = "overlayfs"
        return config

    monkeypatch.setattr(layout, "daemon_config", changed)


def _swapping_tar(engine: Engine, bundle: Path, scratch: Path) -> str:
    """A PATH whose `tar` replaces one layer by another good one just before it is read."""
    first, second = SmallImage().make(scratch / "same").layers()
    blobs = bundle / "image/blobs/sha256"
    old, new = (blobs / d.digest.removeprefix("sha256:") for d in (first, second))
    folder = scratch / "bin"
    folder.mkdir()
    tar = folder / "tar"
    tar.write_text(f'#!/bin/sh\ncp {new} {old}\nexec {shutil.which("tar")} "$@"\n')
    tar.chmod(0o755)
    return f"{folder}:{engine.env['PATH']}"


def _compose_uses_it(engine: Engine, bundle: Path, folder: Path, announced: str) -> None:
    """What README.txt says, up to the GPU: compose names the image that the engine has."""
    shutil.copytree(bundle / "serve", folder)
    text = (folder / "env.example").read_text()
    values = [line for line in text.splitlines() if f"DDTREE_IMAGE={announced}" in line]
    assert len(values) == 1
    (folder / ".env").write_text(f"{values[0].lstrip('#')}\nDDTREE_MODELS={folder}\n")
    env = {k: v for k, v in engine.env.items() if not k.startswith(("DDTREE_", "COMPOSE_"))}
    asked = subprocess.run(
        engine.compose("config", "--images"),
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.stdout.split() == [announced], asked.stderr
    assert os.access(folder / "deploy/appliance.py", os.X_OK)
