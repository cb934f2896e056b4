"""`audit` on folders, and what it takes into a container; images: test_audit_image.py."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest
import requests

from builder import audit_cli
from builder.audit_image import MANIFEST, _luggage, audit_folder, audit_reference, pins_of
from builder.errors import (
    AuditFailedError,
    HostFileError,
    ImageReferenceError,
    UnknownVariantError,
)
from builder.inside.target import TargetError, parse_target, target_of_manifest
from builder.project import default_project
from tests.builder.inside.conftest import pristine, tree
from tests.builder.inside.tree import Tree, raw_target

__all__ = ["pristine", "tree"]  # fixtures


def manifest_of(pins: dict[str, object]) -> dict[str, object]:
    """What the image says of itself: its pins below `pins`, the rest on top."""
    top = ("name", "variant", "stand_in", "stand_in_reason", "version", "build_id")
    outer = {key: pins[key] for key in (*top, "source_date_epoch", "base", "sglang")}
    return {**outer, "pins": {key: value for key, value in pins.items() if key not in outer}}


@pytest.fixture
def appliance(tree: Tree) -> Tree:
    tree.write(MANIFEST, json.dumps(manifest_of(raw_target())))
    return tree


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    audit_cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["audit", *arguments])
    code: int = args.handler(args, default_project())
    return code


def test_a_clean_folder_passes_against_its_own_manifest(
    appliance: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(appliance.root)) == 0
    out = capsys.readouterr().out
    assert "audit of cu130" in out
    assert "JIT005  not run" in out


@pytest.mark.parametrize("what", ["/absent/folder", "./absent", "../absent", "~/absent"])
def test_a_folder_that_is_not_there_asks_no_engine(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_cli, "acquire", lambda *_, **__: pytest.fail("an engine was asked"))
    with pytest.raises(HostFileError, match="no such folder"):
        run(what)


def test_findings_end_in_51_with_the_table_first(
    appliance: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    appliance.library("x/libcublas.so.12")
    with pytest.raises(AuditFailedError, match="1 findings"):
        run(str(appliance.root))
    assert "MIX002 opt/ddtree/venv" in capsys.readouterr().out


def test_json_is_one_document_with_or_without_findings(
    appliance: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(appliance.root), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert report["notes"]["device_code"]["files_native"] == 2
    appliance.library("x/libcublas.so.12")
    assert run(str(appliance.root), "--json") == AuditFailedError.exit_code
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["code"] == "MIX002"


def test_the_pins_of_this_tree_may_judge_instead(appliance: Tree) -> None:
    audited = audit_folder(appliance.root, pins_of(default_project(), "cu128"))
    assert "LNK001" in {finding["code"] for finding in audited.report["findings"]}
    assert audited.report["target"] == "cu128"


def test_an_unknown_target_is_refused_with_the_known_ones(appliance: Tree) -> None:
    with pytest.raises(UnknownVariantError) as caught:
        run(str(appliance.root), "--target", "cu999")
    assert "cu128-stand-in" in caught.value.remedy


NO_APPLIANCE = ("empty", "no manifest", "malformed", "foreign", "incomplete", "number", "list")


@pytest.mark.parametrize("what", NO_APPLIANCE)
def test_what_is_no_appliance_cannot_be_audited(appliance: Tree, tmp_path: Path, what: str) -> None:
    root, path = appliance.root, appliance.root / MANIFEST
    if what == "empty":
        root = tmp_path / "empty"
        root.mkdir()
    elif what == "no manifest":
        path.unlink()
    elif what in ("incomplete", "number", "list"):
        pins = raw_target()
        if what == "number":
            pins["budget_gib"] = "large"
        elif what == "list":
            pins["toolchain"]["components"] = ["nvcc"]
        else:
            del pins["toolchain"]
        path.write_text(json.dumps(manifest_of(pins)))
    else:
        path.write_text("{" if what == "malformed" else "[]")
    with pytest.raises(AuditFailedError, match="cannot be audited") as caught:
        audit_folder(root, None)
    assert "\n" not in caught.value.what


def test_a_manifest_holds_what_the_rules_read() -> None:
    pins = raw_target()
    assert parse_target(target_of_manifest(manifest_of(pins))).raw == pins
    with pytest.raises(TargetError, match="pins"):
        target_of_manifest({"name": "x"})


def test_what_goes_into_the_container_is_whole(tmp_path: Path) -> None:
    """Everything lies below one folder, and runs there without the builder's environment."""
    with tarfile.open(fileobj=io.BytesIO(_luggage(raw_target()))) as archive:
        assert {name.split("/")[0] for name in archive.getnames()} == {"ddtree-audit"}
        archive.extractall(tmp_path, filter="data")
    place = tmp_path / "ddtree-audit"
    assert json.loads((place / "target.json").read_text()) == raw_target()
    program = (
        f"import sys; sys.path[:] = [{str(place / 'python')!r}] + "
        "[p for p in sys.path if 'site-packages' not in p]\n"
        "from builder.inside.audit.__main__ import main\n"
        "from builder.inside.audit.exceptions import FILE, load_exceptions\n"
        "assert load_exceptions(FILE.read_text('utf-8'))\n"
        "import elftools; print(elftools.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(place))


def test_a_manifest_that_leads_out_of_the_folder_is_none(appliance: Tree, tmp_path: Path) -> None:
    """The folder would be judged by the pins of another, which may be laxer."""
    path = appliance.root / MANIFEST
    path.rename(tmp_path / "manifest.json")
    path.symlink_to(tmp_path / "manifest.json")
    with pytest.raises(AuditFailedError, match="cannot be audited"):
        audit_folder(appliance.root, None)


def test_names_of_files_reach_no_terminal_as_they_are(
    appliance: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a\nSEC001  ok", "b\udcff", "c\x1b[2J"):
        path = appliance.root / "opt" / name
        path.touch()
        path.chmod(0o666)
    with pytest.raises(AuditFailedError, match="3 findings"):
        run(str(appliance.root))
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert run(str(appliance.root), "--json") == AuditFailedError.exit_code
    assert len(json.loads(capsys.readouterr().out.encode())["findings"]) == 3


class Fake:
    """An engine with one image, whose container holds one file under every name."""

    def __init__(self, kind: bytes = tarfile.REGTYPE, **config: Any) -> None:
        self.kind, self.removed, self.started = kind, 0, 0
        image = SimpleNamespace(id="sha256:1", attrs={"Config": config})
        client = SimpleNamespace(
            images=SimpleNamespace(get=lambda _name: image),
            containers=SimpleNamespace(create=lambda *_a, **_k: self),
        )
        self.engine: Any = SimpleNamespace(client=client)

    def get_archive(self, path: str) -> tuple[list[bytes], dict[str, Any]]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            entry = tarfile.TarInfo(Path(path).name)
            entry.type, entry.linkname = self.kind, "/etc/passwd"
            archive.addfile(entry)
        return [buffer.getvalue()], {}

    def start(self) -> None:
        self.started += 1

    def remove(self, **_options: Any) -> None:
        self.removed += 1


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_manifest_that_is_no_file_is_refused(kind: bytes) -> None:
    fake = Fake(kind)
    with pytest.raises(AuditFailedError, match="is no file"):
        audit_reference(fake.engine, "x:1", None)
    assert (fake.started, fake.removed) == (0, 1)


def test_an_image_without_our_manifest_is_not_ours() -> None:
    """With pins that are given it may be of any making; without, there is nothing to hold it to."""
    fake = Fake()

    def absent(_path: str) -> None:
        raise docker.errors.NotFound("no such path")

    fake.get_archive = absent  # type: ignore[assignment,method-assign]
    with pytest.raises(ImageReferenceError, match=MANIFEST):
        audit_reference(fake.engine, "x:1", None)
    assert (fake.started, fake.removed) == (0, 1)


def test_an_image_with_volumes_is_refused() -> None:
    """In a container they are mounts, and mounts are no part of what is audited."""
    fake = Fake(Volumes={"/opt/ddtree/venv": {}})
    with pytest.raises(AuditFailedError, match="volumes: /opt/ddtree/venv"):
        audit_reference(fake.engine, "x:1", raw_target())
    assert fake.started == 0


def test_a_malformed_name_is_said_to_be_one() -> None:
    fake = Fake()

    def refuse(_name: str) -> None:
        response = requests.Response()
        response.status_code = 400
        raise docker.errors.APIError("400", response, explanation="invalid reference format")

    fake.engine.client.images.get = refuse
    with pytest.raises(ImageReferenceError, match="invalid reference format"):
        audit_reference(fake.engine, "X:Y:Z", None)
