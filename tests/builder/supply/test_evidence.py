"""The three files together, and what makes them impossible; the inventory read from an engine."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docker
import docker.errors
import pytest

from builder.engine import Engine, acquire
from builder.errors import EvidenceError, HostFileError, ImageAbsentError, ImageReferenceError
from builder.inside.inventory import encode
from builder.pins import load_shared
from builder.project import Project, default_project
from builder.supply.evidence import image_components, target_of, write_evidence
from builder.supply.inventory import PATH, parse_inventory, read_inventory
from tests.builder.conftest import edit
from tests.builder.supply.parts import inventory, layout, target


def test_three_files_about_one_digest(tmp_path: Path) -> None:
    made = target()
    image = layout(tmp_path / "image", made)
    evidence = write_evidence(
        default_project(), made, inventory(made), image, tmp_path / "new" / "evidence"
    )
    assert set(evidence.predicates) == {
        "https://spdx.dev/Document",
        "https://cyclonedx.org/bom",
        "https://slsa.dev/provenance/v1",
    }
    digest = image.manifest.digest.removeprefix("sha256:")
    for path in (evidence.spdx, evidence.cyclonedx):
        assert digest in path.read_text()
    assert json.loads(evidence.provenance.read_text())["buildDefinition"]
    left = sorted(p.name for p in evidence.spdx.parent.iterdir())
    assert left == ["provenance.json", "sbom.cdx.json", "sbom.spdx.json"]


def test_the_same_image_gives_the_same_files(tmp_path: Path) -> None:
    made = target()
    files = []
    for name in ("one", "two"):
        image = layout(tmp_path / name, made)
        evidence = write_evidence(
            default_project(), made, inventory(made), image, tmp_path / f"{name}-evidence"
        )
        files.append([path.read_bytes() for path in evidence.predicates.values()])
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("what", "label", "value"),
    [
        ("build id", "build_id", "ffffffffffffffff"),
        ("SGLang", "sglang", "0.5.18"),
        ("torch", "torch", "2.10.0+cu130"),
        ("lock", "lock", "sha256:" + "0" * 64),
        ("variant", "variant", "cu128"),
        ("stand-in", "stand_in", "true"),
        ("base", "base", "registry: elsewhere"),
    ],
)
def test_labels_that_contradict_the_inventory_give_no_evidence(
    tmp_path: Path, what: str, label: str, value: str
) -> None:
    made = target()
    image = layout(tmp_path / "image", made, **{label: value})
    folder = tmp_path / "evidence"
    with pytest.raises(EvidenceError, match=f"^{what}: .*{value.partition('+')[0]}"):
        write_evidence(default_project(), made, inventory(made), image, folder)
    assert not folder.exists()


def test_the_inventory_of_another_target_is_refused(tmp_path: Path) -> None:
    made = target()
    image = layout(tmp_path / "image", made)
    with pytest.raises(EvidenceError, match=r"target: .* cu128"):
        write_evidence(
            default_project(), made, inventory(made, name="cu128"), image, tmp_path / "e"
        )


def test_a_lock_that_is_not_the_images_is_refused(scratch: Project, tmp_path: Path) -> None:
    made = target()
    image = layout(tmp_path / "image", made)
    edit(made.lock_file(scratch), "# target: cu130\n", "# target: cu130\n# edited\n")
    with pytest.raises(EvidenceError, match="another lock") as caught:
        write_evidence(scratch, made, inventory(made), image, tmp_path / "e")
    assert "revision" in caught.value.remedy


def test_a_garbled_inventory_is_refused(tmp_path: Path) -> None:
    made = target()
    image = layout(tmp_path / "image", made)
    held = inventory(made)
    del held["native"][0]["sha256"]
    with pytest.raises(EvidenceError, match="sha256"):
        write_evidence(default_project(), made, held, image, tmp_path / "e")


def test_an_image_of_other_sources_is_not_described_by_these_pins() -> None:
    """An archive's licence follows from its pin: another archive's would be made up."""
    made = target("cu128")
    held = inventory(made)
    assert image_components(target_of(default_project(), held), held)
    for sources in ([], [{**held["pins"]["sources"][0], "sha256": "0" * 64}]):
        with pytest.raises(EvidenceError, match="other sources") as caught:
            image_components(made, {**held, "pins": {**held["pins"], "sources": sources}})
        assert "revision" in caught.value.remedy


def test_an_image_of_a_target_that_is_not_here() -> None:
    with pytest.raises(EvidenceError, match="cu999"):
        target_of(default_project(), inventory(target(), name="cu999"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    made = target()
    image = layout(tmp_path / "image", made)
    (tmp_path / "file").write_text("")
    with pytest.raises(HostFileError, match="file/evidence"):
        write_evidence(
            default_project(), made, inventory(made), image, tmp_path / "file" / "evidence"
        )


@pytest.mark.parametrize("content", [b"", b"[]", b'{"no": 1}', b'{"schema": 2}'])
def test_what_is_no_inventory_is_refused(content: bytes) -> None:
    with pytest.raises(EvidenceError, match="x:tag"):
        parse_inventory(content, "x:tag")


# -- from an engine ------------------------------------------------------------------------------


class FakeContainer:
    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.removed = False

    def get_archive(self, path: str) -> tuple[list[bytes], dict[str, Any]]:
        assert path == PATH
        if self.content is None:
            raise docker.errors.NotFound("no such path")
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            member = tarfile.TarInfo("inventory.json")
            member.size = len(self.content)
            tar.addfile(member, io.BytesIO(self.content))
        data = out.getvalue()
        return [data[:100], data[100:]], {}

    def remove(self, *, force: bool) -> None:
        self.removed = force


def engine_with(container: FakeContainer | None) -> Engine:
    class Images:
        def get(self, reference: str) -> Any:
            if container is None:
                raise docker.errors.ImageNotFound(reference)
            return SimpleNamespace(id="sha256:of-" + reference)

    class Containers:
        def create(self, image: str, command: list[str], **options: Any) -> FakeContainer:
            assert image.startswith("sha256:of-")
            assert container is not None
            return container

    client = SimpleNamespace(containers=Containers(), images=Images())
    return Engine("existing", cast(docker.DockerClient, client), {}, {}, "/x/docker")


def test_the_inventory_is_read_and_the_container_removed() -> None:
    made = inventory(target())
    container = FakeContainer(encode(made))
    assert read_inventory(engine_with(container), "x:tag") == made
    assert container.removed


def test_an_image_without_one_says_what_to_do() -> None:
    container = FakeContainer(None)
    with pytest.raises(EvidenceError, match=PATH) as caught:
        read_inventory(engine_with(container), "x:tag")
    assert "python3 build.py --cuda cu130" in caught.value.remedy
    assert container.removed


def test_an_absent_image_is_told_apart() -> None:
    with pytest.raises(ImageAbsentError, match="x:tag"):
        read_inventory(engine_with(None), "x:tag")


@pytest.mark.docker
def test_it_is_read_from_a_real_engine(tmp_path: Path) -> None:
    project = default_project()
    made = inventory(target())
    archive = tmp_path / "files.tar"
    with tarfile.open(archive, "w") as tar:
        data = encode(made)
        member = tarfile.TarInfo(PATH.lstrip("/"))
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    with acquire(project, load_shared(project), "auto", need_gib=1) as engine:
        name = "ddtree-test-inventory:one"
        with archive.open("rb") as handle:
            engine.client.api.import_image_from_data(
                handle.read(), repository=name.partition(":")[0], tag="one"
            )
        try:
            assert read_inventory(engine, name) == made
            assert not engine.client.containers.list(all=True, filters={"ancestor": name})
            with pytest.raises(ImageAbsentError):
                read_inventory(engine, "ddtree-test-inventory:two")
            for malformed in ("", "UPPER:!"):
                with pytest.raises(ImageReferenceError):
                    read_inventory(engine, malformed)
        finally:
            engine.client.images.remove(name, force=True)
