from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builder import bundle_cli, console
from builder.errors import BuilderError, BundleError, HostFileError, SigningError
from builder.oci.model import ImageLayout
from builder.project import Project
from tests.builder.bundle.conftest import KeyPair
from tests.builder.bundle.small import NAME

Run = Callable[..., int]


@pytest.fixture
def run(
    project: Project,
    layout: ImageLayout,
    evidence: dict[str, Path],
    key: KeyPair,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Run]:
    """The verb with a hand-made layout in the place of an engine's image; what it asked for."""
    asked: list[str] = []

    @contextmanager
    def engine(*args: Any, **kwargs: Any) -> Iterator[None]:
        asked.append("engine")
        yield None

    def gather(
        project: Project,
        target: Any,
        engine: Any,
        reference: str,
        folder: Path,
        *,
        allow_dirty: bool,
    ) -> Any:
        asked.append(reference)
        return layout, evidence

    monkeypatch.setattr(bundle_cli, "acquire", engine)
    monkeypatch.setattr(bundle_cli, "gather", gather)
    monkeypatch.setattr(bundle_cli, "signer", lambda *args: key.sign)
    parser = argparse.ArgumentParser()
    bundle_cli.add_parser(parser.add_subparsers())

    def call(*words: str) -> int:
        args = parser.parse_args(["bundle", "--cuda", "cu130", *words])
        return int(args.handler(args, project))

    call.asked = asked  # type: ignore[attr-defined]
    yield call
    console.set_quiet(False)


@pytest.fixture
def cosign_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The form of cosign's key; nothing here decrypts it."""
    monkeypatch.setenv("COSIGN_PASSWORD", "x")
    path = tmp_path / "cosign.key"
    path.write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAAAA\n")
    return str(path)


def test_a_signed_folder(
    run: Run, cosign_key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--to", str(tmp_path / "b"), "--key", cosign_key) == 0
    out = capsys.readouterr().out
    assert NAME in out
    assert "bash import.sh --key cosign.pub" in out
    assert (tmp_path / "b/SHA256SUMS.sig").is_file()
    assert run.asked == ["engine", "ddtree-appliance:cu130"]  # type: ignore[attr-defined]


def test_an_unsigned_tar_as_json(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--unsigned", "--image", "other:1", "--json", "--quiet")
    assert run("--to", str(tmp_path / "b.tar"), *words) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["signed"] is False
    assert result["image"]["name"] == NAME
    assert result["bundle"] == str(tmp_path / "b.tar")
    assert result["size_bytes"] < (tmp_path / "b.tar").stat().st_size
    assert captured.err == ""
    assert run.asked == ["engine", "other:1"]  # type: ignore[attr-defined]


def test_the_summary_of_an_unsigned_one_says_so(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--to", str(tmp_path / "b"), "--unsigned") == 0
    assert "NOT signed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [(), ("--key", "K", "--unsigned"), ("--unsigned", "--key-password-file", "F")]
)
def test_signed_or_not_has_to_be_said(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--to", str(tmp_path / "b"), *words)
    assert caught.value.code == 2
    assert run.asked == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BundleError, ("--to", "full", "--unsigned")),
        (BundleError, ("--to", "none/b", "--unsigned")),
        (BundleError, ("--to", "b.tar.gz", "--unsigned")),
        (HostFileError, ("--to", "b", "--key", "none.key")),
        (SigningError, ("--to", "b", "--key", "full/mine")),
    ],
)
def test_refused_before_an_engine_is_started(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BuilderError],
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("x")
    with pytest.raises(error):
        run(*words)
    assert run.asked == []  # type: ignore[attr-defined]


def test_a_key_that_cannot_sign_is_refused_before_an_engine_is_started(
    run: Run, cosign_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> Any:
        raise SigningError("the password is wrong", "set COSIGN_PASSWORD")

    monkeypatch.setattr(bundle_cli, "signer", refuse)
    with pytest.raises(SigningError):
        run("--to", str(tmp_path / "b"), "--key", cosign_key)
    assert run.asked == []  # type: ignore[attr-defined]
    assert not (tmp_path / "b").exists()
