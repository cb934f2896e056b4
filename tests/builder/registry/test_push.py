"""`push` without an engine: the order of its steps, what it refuses, and what it says."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import docker
import docker.errors
import pytest

from builder import push, push_cli
from builder.engine import Engine
from builder.errors import (
    BuilderError,
    EvidenceError,
    ImageAbsentError,
    ImageReferenceError,
    RegistryFullError,
    RegistryRefusedError,
    SigningError,
    TagTakenError,
)
from builder.oci.model import ImageLayout
from builder.project import default_project
from builder.registry.reference import Reference
from builder.supply.attach import Attached
from tests.builder.registry.fake import Answer, FakeRegistry, Handler, Request, answers, error
from tests.builder.registry.layouts import make_layout, noise

NAME = "ddtree-appliance"
TAG = "0.1.0-cu130-0123456789ab"
LABELS = {
    "org.opencontainers.image.version": "0.1.0",
    "org.opencontainers.image.revision": "c" * 40,
    "dev.ddtree.variant": "cu130",
    "dev.ddtree.stand-in": "false",
    "dev.ddtree.build-id": "0123456789ab",
}


class Images:
    def __init__(self, labels: dict[str, str] | None) -> None:
        self.labels = labels
        self.id = "sha256:" + "1" * 64

    def get(self, reference: str) -> Images:
        if self.labels is None:
            raise docker.errors.ImageNotFound(reference)
        assert reference == f"{NAME}:cu130"
        return self


Push = Callable[..., int]


@pytest.fixture
def layout(tmp_path: Path) -> ImageLayout:
    return make_layout(tmp_path / "exported", [noise(100_000), b"small"])


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, layout: ImageLayout) -> Iterator[list[str]]:
    """Which of the costly steps ran; the export and the signer are not what is tested here."""
    done: list[str] = []

    def export(*args: object) -> ImageLayout:
        done.append("export")
        return layout

    def ready(*args: object) -> push.Signing:
        done.append("ready")
        return cast(push.Signing, object())

    def attach(*args: object) -> Attached:
        assert isinstance(args[1], Reference)
        assert args[1].digest == layout.manifest.digest
        done.append("attach")
        return Attached(("signature", "provenance"), ("SBOM (SPDX)",))

    monkeypatch.setattr(push, "export_layout", export)
    monkeypatch.setattr(push_cli, "ready_to_sign", ready)

    def write(*args: object) -> push.Evidence:
        done.append("evidence")
        return cast(push.Evidence, object())

    monkeypatch.setattr(push, "write_evidence_of", write)
    monkeypatch.setattr(push, "attach_evidence", attach)
    yield done


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, steps: list[str], tmp_path: Path) -> Push:
    """`build.py push ARGUMENTS` with an engine that has one image, or none."""
    key = tmp_path / "cosign.key"
    key.write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n")
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))

    def call(*argv: str, labels: dict[str, str] | None = LABELS, sign: bool = True) -> int:
        @contextmanager
        def acquire(*args: object, **options: object) -> Iterator[Engine]:
            steps.append("engine")
            client = type("Client", (), {"images": Images(labels)})()
            yield Engine("existing", cast(docker.DockerClient, client), {}, {}, "/x/docker")

        monkeypatch.setattr(push_cli, "acquire", acquire)
        parser = argparse.ArgumentParser()
        push_cli.add_parser(parser.add_subparsers())
        key_options = ["--key", str(key)] if sign else []
        args = parser.parse_args(["push", "--cuda", "cu130", "--quiet", *key_options, *argv])
        return int(args.handler(args, default_project()))

    return call


def test_in_this_order_and_the_tag_last(
    run: Push,
    fake: FakeRegistry,
    steps: list[str],
    layout: ImageLayout,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = layout.manifest.digest

    def attach(*args: object) -> Attached:
        assert digest in fake.manifests
        assert TAG not in fake.manifests
        steps.append("attach")
        return Attached(("signature",), ())

    monkeypatch.setattr(push, "attach_evidence", attach)
    assert run(f"{fake.host}/team/app") == 0
    assert steps == ["ready", "engine", "export", "evidence", "attach"]
    assert fake.seen[0].path == "/v2/"
    assert fake.manifests[TAG][1] == layout.blob(digest).read_bytes()
    said = capsys.readouterr().out
    assert f"docker pull {fake.host}/team/app@{digest}" in said
    assert f"{fake.host}/team/app:{TAG}" in said


def test_again_sends_nothing(
    run: Push, fake: FakeRegistry, layout: ImageLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    run(f"{fake.host}/team/app", "--json")
    first = json.loads(capsys.readouterr().out)
    assert first["bytes_sent"] == first["bytes_total"]
    assert first["tag_set"]
    assert run(f"{fake.host}/team/app:{TAG}", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["bytes_sent"], again["blobs_skipped"], again["tag_set"]) == (0, 3, False)
    assert again["digest"] == layout.manifest.digest
    assert again["pull"] == f"docker pull {again['reference']}"
    assert again["attached"] == ["signature", "provenance", "SBOM (SPDX)"]


def test_unsigned_attaches_nothing_and_says_so(
    run: Push, fake: FakeRegistry, steps: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{fake.host}/team/app", "--unsigned", sign=False) == 0
    assert steps == ["engine", "export"]
    out, err = capsys.readouterr()
    assert "signed   no" in out
    assert "not signed" in err


def test_a_dry_run_pushes_nothing(
    run: Push, fake: FakeRegistry, steps: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{fake.host}/team/app", "--dry-run") == 0
    assert f"would push {fake.host}/team/app:{TAG} (the tag is free)" in capsys.readouterr().out
    run(f"{fake.host}/team/app")
    capsys.readouterr()
    run(f"{fake.host}/team/app", "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out)["tag_exists"]
    assert steps.count("export") == 1


@pytest.mark.parametrize(
    ("reference", "labels", "expected", "words"),
    [
        ("HOST/team/app:latest", LABELS, ImageReferenceError, "latest"),
        ("HOST/team/app:v1", LABELS, ImageReferenceError, f"its tag is :{TAG}"),
        (f"HOST/team/app@sha256:{'a' * 64}", LABELS, ImageReferenceError, "digest"),
        ("team/app", LABELS, ImageReferenceError, "names no registry"),
        ("HOST/team/app", None, ImageAbsentError, "has no image"),
        ("HOST/team/app", {}, ImageReferenceError, "not built by build.py"),
        (
            "HOST/team/app",
            {**LABELS, "org.opencontainers.image.revision": "c" * 40 + "-dirty"},
            ImageReferenceError,
            "uncommitted",
        ),
        (
            "HOST/team/app",
            {**LABELS, "org.opencontainers.image.revision": "unknown"},
            ImageReferenceError,
            "no git checkout",
        ),
        (
            "HOST/team/app",
            {**LABELS, "dev.ddtree.stand-in": "true"},
            ImageReferenceError,
            "cu130-stand-in",
        ),
    ],
)
def test_refused_before_anything_is_exported(
    run: Push,
    fake: FakeRegistry,
    steps: list[str],
    reference: str,
    labels: dict[str, str] | None,
    expected: type[BuilderError],
    words: str,
) -> None:
    with pytest.raises(expected, match=words):
        run(reference.replace("HOST", fake.host), labels=labels)
    assert "export" not in steps
    assert not (fake.blobs or fake.manifests or fake.uploads)


def test_absent_names_the_command(run: Push, fake: FakeRegistry) -> None:
    with pytest.raises(ImageAbsentError) as caught:
        run(f"{fake.host}/team/app", labels=None)
    assert "python3 build.py --cuda cu130" in caught.value.remedy


@pytest.mark.parametrize("revision", ["c" * 40 + "-dirty", "unknown"])
def test_of_no_commit_on_request(run: Push, fake: FakeRegistry, revision: str) -> None:
    dirty = {**LABELS, "org.opencontainers.image.revision": revision}
    assert run(f"{fake.host}/team/app", "--allow-dirty", labels=dirty) == 0
    assert TAG in fake.manifests


@pytest.mark.parametrize("options", [[], ["--unsigned", "--key", "x"], ["--key", "/nowhere"]])
def test_a_key_or_none(run: Push, fake: FakeRegistry, steps: list[str], options: list[str]) -> None:
    with pytest.raises(BuilderError) as caught:
        run(f"{fake.host}/team/app", *options, sign=False)
    assert isinstance(caught.value, SigningError) or "/nowhere" in caught.value.what
    assert not fake.seen
    assert not steps


def test_no_right_to_push_is_found_first(run: Push, fake: FakeRegistry, steps: list[str]) -> None:
    fake.rules.append(answers("POST", "uploads", Answer(403, {}, error("DENIED"))))
    with pytest.raises(RegistryRefusedError):
        run(f"{fake.host}/team/app")
    assert steps == []


def test_a_tag_of_another_image_is_found_before_sending(
    run: Push, fake: FakeRegistry, steps: list[str]
) -> None:
    fake.manifests[TAG] = ("application/x", b"{}")
    with pytest.raises(TagTakenError):
        run(f"{fake.host}/team/app")
    assert steps[-1] == "export"
    assert not fake.blobs
    assert fake.manifests == {TAG: ("application/x", b"{}")}


def test_no_tag_when_signing_fails(
    run: Push, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch, layout: ImageLayout
) -> None:
    def fails(*args: object) -> Any:
        raise SigningError("no", "")

    monkeypatch.setattr(push, "attach_evidence", fails)
    with pytest.raises(SigningError):
        run(f"{fake.host}/team/app")
    assert set(fake.manifests) == {layout.manifest.digest}


def test_nothing_is_sent_without_evidence(
    run: Push, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> Any:
        raise EvidenceError("no inventory", "")

    monkeypatch.setattr(push, "write_evidence_of", fails)
    with pytest.raises(EvidenceError):
        run(f"{fake.host}/team/app")
    assert not (fake.blobs or fake.manifests)


def test_no_manifest_when_a_blob_fails(run: Push, fake: FakeRegistry) -> None:
    def full(handler: Handler, request: Request) -> Answer | None:
        return Answer(507) if request.method == "PUT" and "uploads" in request.path else None

    fake.rules.append(full)
    with pytest.raises(RegistryFullError):
        run(f"{fake.host}/team/app")
    assert not fake.manifests
