"""A small image through a real engine: exported, loaded back, run."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker.errors
import pytest

from builder.engine import Engine, acquire
from builder.oci.export import export_image, measure
from builder.oci.layout import load_layout, verify_layout
from builder.pins import load_shared
from builder.project import Project, default_project
from tests.builder.oci.archives import EPOCH, Member, save

pytestmark = pytest.mark.docker

SAVED, LOADED = "ddtree-export-test:saved", "ddtree-export-test:loaded"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    project = default_project()
    with acquire(project, load_shared(project), "auto", need_gib=1) as found:
        yield found
        for name in (SAVED, LOADED):
            with suppress(docker.errors.APIError):
                found.client.images.remove(name, force=True)


def program(path: str) -> list[Member]:
    """A program of this machine, and the libraries that it is linked to, where it looks for them."""
    listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    files = [path, *re.findall(r"(/\S+) \(0x", listed)]
    folders = {str(parent) for file in files for parent in Path(file).parents if parent.name}
    members = [Member(f"{folder.lstrip('/')}/") for folder in sorted(folders)]
    return members + [
        Member(file.lstrip("/"), Path(file).resolve().read_bytes(), mode=0o755) for file in files
    ]


@pytest.fixture(scope="module")
def saved(engine: Engine) -> Iterator[str]:
    """An image of three layers with everything that an export has to get right."""
    base = [*program("/bin/cat"), Member("data/"), Member("data/gone", b"gone")]
    second = [
        Member("data/"),
        Member("data/one", b"one\n", xattrs={"security.capability": CAPABILITY}),
        Member("data/two", link="data/one"),
        Member("data/link", target="two"),
    ]
    third = [Member("data/"), Member("data/.wh.gone"), Member("data/new", b"n", owner=(10001, 7))]
    config = {"Entrypoint": ["/bin/cat"], "Cmd": ["/data/link"], "Labels": {"a": "b"}}
    data = save([base, second, third], flavour="docker", tag=SAVED, config=config)
    (image,) = engine.client.images.load(data)
    yield SAVED
    with suppress(docker.errors.APIError):  # a test gives its name to the exported one
        engine.client.images.remove(str(image.id), force=True)


# cap_net_raw+ep, version 2 (linux/capability.h)
CAPABILITY = (b"\x01\0\0\x02\0\x20\0\0" + bytes(12)).decode("latin-1")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: str) -> Project:
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path))
    return default_project()


def test_an_image_is_the_same_after_export_and_load(
    project: Project, engine: Engine, saved: str
) -> None:
    layout = verify_layout(export_image(project, engine, saved, epoch=EPOCH).folder)
    image_id = load_layout(engine, layout, [LOADED])
    if "containerd" not in str(engine.client.info()["DriverStatus"]):
        assert image_id == layout.document()["config"]["digest"]
    assert engine.client.images.get(LOADED).labels == {"a": "b"}
    # What was built and what was exported have different ids, and the same files.
    loaded = measure(engine, LOADED, epoch=EPOCH)
    assert (loaded.manifest.digest, loaded.rootfs) == (layout.manifest.digest, layout.rootfs)
    out = engine.client.containers.run(LOADED, remove=True, network_mode="none")
    assert out == b"one\n"


def test_the_command_line_loads_a_tar_of_the_folder(
    project: Project, engine: Engine, saved: str, tmp_path: Path
) -> None:
    layout = export_image(project, engine, saved, epoch=EPOCH)
    tar = tmp_path / "layout.tar"
    with tarfile.open(tar, "w") as out:
        out.add(
            layout.folder, ".", filter=lambda m: m if not m.name.endswith("export.json") else None
        )
    done = subprocess.run(
        engine.docker("load", "--input", str(tar)),
        env=engine.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SAVED in done.stdout
    loaded = engine.client.images.get(SAVED).id
    assert loaded in (layout.document()["config"]["digest"], layout.manifest.digest)


def test_files_keep_owner_links_times_and_capabilities(
    project: Project, engine: Engine, saved: str
) -> None:
    load_layout(engine, export_image(project, engine, saved, epoch=EPOCH), [LOADED])
    container = engine.client.containers.create(LOADED)
    try:
        chunks, _ = container.get_archive("/data")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
            found = {member.name: member for member in tar}
    finally:
        container.remove()
    assert sorted(found) == ["data", *(f"data/{n}" for n in ("link", "new", "one", "two"))]
    assert (found["data/new"].uid, found["data/new"].gid) == (10001, 7)
    assert found["data/link"].linkname == "two"
    assert found["data/one"].mtime == EPOCH
    # The archive above has no extended attributes; what the engine saves of it has.
    files = measure(engine, LOADED, epoch=EPOCH).files
    assert files["data/one"]["xattrs"] == {"security.capability": CAPABILITY}
    assert files["data/two"] == {"link": "data/one"}


def test_a_name_goes_and_another_name_of_the_same_image_stays(engine: Engine, saved: str) -> None:
    """As where two builds of one commit gave one image, and one of them is dropped."""
    image = engine.client.images.get(saved)
    image.tag("ddtree-export-test", "more")
    image.tag("ddtree-export-test-2", "more")
    more = "ddtree-export-test:more"
    assert more in engine.names("ddtree-export-test")
    assert engine.names("ddtree-export-test-2") == ["ddtree-export-test-2:more"]
    engine.forget("ddtree-export-test-2:more", more, more, "ddtree-export-test:never")
    assert more not in engine.names("ddtree-export-test")
    assert saved in engine.names("ddtree-export-test")
