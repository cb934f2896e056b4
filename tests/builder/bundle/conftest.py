"""A small bundle, signed with a key that openssl made, and a key pair to sign it with."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.bundle.make import make_bundle
from builder.oci.model import ImageLayout
from builder.pins import Target, load_target
from builder.project import Project, default_project
from builder.supply.keys import SigningKey
from tests.builder.bundle.small import SmallImage
from tests.builder.supply.real import key_pair, real_cosign


@dataclass(frozen=True)
class KeyPair:
    """ECDSA P-256, as `cosign generate-key-pair` makes it, without a password."""

    private: Path
    public: Path

    def sign(self, path: Path) -> bytes:
        """What `cosign sign-blob` writes: base64 of the DER signature over the file's SHA-256."""
        argv = ["openssl", "dgst", "-sha256", "-sign", str(self.private), str(path)]
        return base64.b64encode(subprocess.run(argv, capture_output=True, check=True).stdout)


def make_key(folder: Path) -> KeyPair:
    """A new key pair in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    pair = KeyPair(folder / "maker.key", folder / "maker.pub")
    for argv in (
        ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(pair.private)],
        ["ec", "-in", str(pair.private), "-pubout", "-out", str(pair.public)],
    ):
        subprocess.run(["openssl", *argv], capture_output=True, check=True)
    return pair


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_key(tmp_path_factory.mktemp("key"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))
    return default_project()


@pytest.fixture
def target(project: Project) -> Target:
    return load_target(project, "cu130")


@pytest.fixture
def layout(tmp_path: Path) -> ImageLayout:
    return SmallImage().make(tmp_path / "layout")


def write_stand_ins(folder: Path) -> dict[str, Path]:
    """Evidence by its names; a bundle does not look into it."""
    folder.mkdir()
    names = ("sbom.spdx.json", "sbom.cdx.json", "provenance.json", "receipts/built.json")
    found = {}
    for name in names:
        path = folder / Path(name).name
        path.write_text(f'{{"name": "{name}"}}\n')
        found[name] = path
    return found


@pytest.fixture
def evidence(tmp_path: Path) -> dict[str, Path]:
    return write_stand_ins(tmp_path / "evidence")


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory, key: KeyPair) -> Path:
    """A good, signed bundle, as a folder; nobody writes to it."""
    folder = tmp_path_factory.mktemp("original")
    project = default_project()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDTREE_CACHE", str(folder / "cache"))
        made = make_bundle(
            project,
            load_target(project, "cu130"),
            SmallImage().make(folder / "layout"),
            write_stand_ins(folder / "evidence"),
            folder / "bundle",
            key.sign,
        )
    return made.destination


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    """A copy of it, to be harmed."""
    return Path(shutil.copytree(original, tmp_path / "bundle"))


@pytest.fixture(scope="session")
def host_key(tmp_path_factory: pytest.TempPathFactory) -> tuple[SigningKey, Path]:
    """A pair that cosign made: the key, the file of the public half."""
    key, public = key_pair(real_cosign(), tmp_path_factory.mktemp("cosign"), "cosign")
    return key, Path(public)


def readme_step(bundle: Path, number: int, key: Path, scratch: Path) -> str:
    """The commands of a step of README.txt's "By hand", with this key and these scratch files."""
    steps = re.split(
        r"(?m)^ (?=\d )", (bundle / "README.txt").read_text().partition("By hand\n=")[2]
    )
    (step,) = (text for text in steps if text.startswith(f"{number} "))
    commands = [line.strip() for line in step.splitlines() if line.startswith("     ")]
    text = "\n".join(commands).partition("mkdir -p /srv")[0]
    return text.replace("/tmp/", f"{scratch}/").replace("/path/to/cosign.pub", str(key))
