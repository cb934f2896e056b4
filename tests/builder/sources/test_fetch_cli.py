"""`build.py fetch`, as a user calls it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from builder.errors import MirrorOptionError, SourceUnreachableError, UnknownVariantError
from builder.sources.cli import add_parser, add_source_options, chosen_mirrors
from builder.sources.wheelhouse import verify
from tests.builder.sources.fakes import FakeProject, Site


def fetch(fake: FakeProject, *argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["fetch", *argv])
    code: int = args.handler(args, fake.project)
    return code


def test_fetch_fills_and_reports(
    fake: FakeProject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house = tmp_path / "house"
    assert fetch(fake, "--cuda", "cu128", "--to", str(house), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["to"] == str(house)
    assert report["targets"][0]["target"] == "cu128"
    assert report["targets"][0]["files"] == len(list(house.glob("*"))) - 1
    verify(fake.project, fake.target(), house)


def test_nothing_is_written_when_a_source_is_missing(
    fake: FakeProject, site: Site, tmp_path: Path
) -> None:
    del site.files[fake.paths["torch"]]
    with pytest.raises(SourceUnreachableError):
        fetch(fake, "--cuda", "cu128", "--to", str(tmp_path / "house"))
    assert not (tmp_path / "house").exists()


def test_bad_options(fake: FakeProject, tmp_path: Path) -> None:
    with pytest.raises(UnknownVariantError):
        fetch(fake, "--cuda", "cu999", "--to", str(tmp_path / "house"))
    with pytest.raises(MirrorOptionError):
        fetch(fake, "--cuda", "cu128", "--to", str(tmp_path / "house"), "--mirror", "x")
    with pytest.raises(SystemExit):
        fetch(fake, "--cuda", "cu128")


def test_source_options_of_other_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDTREE_MIRRORS", raising=False)
    parser = argparse.ArgumentParser()
    add_source_options(parser)
    args = parser.parse_args(["--mirror", "https://a.test=http://b.test", "--wheelhouse", "w"])
    assert chosen_mirrors(args) == {"https://a.test": "http://b.test"}
    assert args.wheelhouse == Path("w")
    assert parser.parse_args([]).wheelhouse is None
