"""deploy/bundle/import.sh, really run by bash, with a stub `docker` that records its calls."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.builder.bundle.conftest import KeyPair, make_key, readme_step
from tests.builder.bundle.small import NAME

STUB = Path(__file__).with_name("stub_docker.py")


@dataclass
class Place:
    """A host with a bundle, a key and a stub engine."""

    bundle: Path
    key: KeyPair
    store: Path
    bin: Path
    environment: dict[str, str] = field(default_factory=dict)

    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DOCKER_", "STUB_"))}
        path = f"{self.bin}:{kept.get('PATH', os.defpath)}"
        return {**kept, "PATH": path, "STUB_STORE": str(self.store), **self.environment}

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """import.sh with these arguments; by default with the right key."""
        return subprocess.run(
            ["bash", str(self.bundle / "import.sh"), *(words or ("--key", str(self.key.public)))],
            env={**self.env(), **environment},
            cwd=self.store,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def sign(self) -> None:
        """Sign the list as it is now, as whoever holds the key could."""
        (self.bundle / "SHA256SUMS.sig").write_bytes(self.key.sign(self.bundle / "SHA256SUMS"))

    def relist(self) -> None:
        """A new list of all that is there, signed."""
        names = sorted(
            str(path.relative_to(self.bundle))
            for path in self.bundle.rglob("*")
            if path.is_file() and not path.name.startswith("SHA256SUMS")
        )
        digests = [hashlib.sha256((self.bundle / n).read_bytes()).hexdigest() for n in names]
        lines = [f"{digest}  {name}\n" for digest, name in zip(digests, names, strict=True)]
        (self.bundle / "SHA256SUMS").write_text("".join(lines))
        self.sign()

    @property
    def images(self) -> dict[str, list[str]]:
        """What the engine has: ID -> names."""
        path = self.store / "images.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    @property
    def calls(self) -> list[str]:
        path = self.store / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def conf(self) -> dict[str, str]:
        lines = (self.bundle / "bundle.conf").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


@pytest.fixture
def place(bundle: Path, key: KeyPair, tmp_path: Path) -> Place:
    store, bin_ = tmp_path / "store", tmp_path / "bin"
    store.mkdir()
    bin_.mkdir()
    stub = bin_ / "docker"
    stub.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {STUB} "$@"\n')
    stub.chmod(0o755)
    return Place(bundle, key, store, bin_)


def refused(done: subprocess.CompletedProcess[str], code: int, text: str) -> None:
    """One line of what, one of what to do."""
    assert done.returncode == code, done.stderr
    what, fix = done.stderr.splitlines()[-2:]
    assert what.startswith("error: ")
    assert text in what, what
    assert fix.startswith("  fix: ")
    assert done.stdout == ""


@pytest.mark.parametrize("containerd", [False, True])
def test_a_good_bundle_is_loaded_and_named(place: Place, containerd: bool) -> None:
    if containerd:
        place.environment["STUB_CONTAINERD"] = "1"
    done = place.run()
    assert done.returncode == 0, done.stderr
    announced = place.conf()["manifest" if containerd else "config"]
    assert place.images == {announced: [NAME]}
    assert announced in done.stdout
    assert "signature: good" in done.stderr


def test_the_second_time_nothing_is_loaded(place: Place) -> None:
    assert place.run().returncode == 0
    first = place.images
    done = place.run()
    assert done.returncode == 0, done.stderr
    assert "already there" in done.stderr
    assert place.images == first
    assert sum(call.startswith("load") for call in place.calls) == 1


def test_an_image_that_is_known_but_not_whole_is_loaded_again(place: Place) -> None:
    """What a load that broke off leaves in the containerd store."""
    place.environment["STUB_CONTAINERD"] = "1"
    known: dict[str, list[str]] = {place.conf()["manifest"]: []}
    (place.store / "images.json").write_text(json.dumps(known))
    (place.store / "broken").touch()
    done = place.run("--key", str(place.key.public), "--engine-check")
    assert "ready for the image" in done.stderr
    refused(place.run(STUB_BREAK="1"), 8, "no space left")
    assert place.images == known  # somebody else's, perhaps
    done = place.run()
    assert done.returncode == 0, done.stderr
    assert "loaded" in done.stderr
    assert place.images == {place.conf()["manifest"]: [NAME]}


def test_an_image_that_lost_its_name_gets_it_again(place: Place) -> None:
    assert place.run().returncode == 0
    (announced,) = place.images
    (place.store / "images.json").write_text(json.dumps({announced: []}))
    assert place.run().returncode == 0
    assert place.images == {announced: [NAME]}


def test_check_only_asks_no_engine(place: Place) -> None:
    (place.bin / "docker").unlink()
    done = place.run(
        "--key", str(place.key.public), "--check-only", PATH=str(_without_docker(place))
    )
    assert done.returncode == 0, done.stderr
    assert f"the bundle is whole: {NAME}" in done.stderr


def _without_docker(place: Place) -> Path:
    """A PATH with what import.sh says it needs, and nothing else."""
    folder = place.store / "programs"
    folder.mkdir()
    for name in (
        *("bash", "base64", "cat", "cp", "df", "mkdir", "mktemp", "realpath", "rm"),
        *("sha256sum", "sleep", "stat", "tail", "tar", "openssl", "dirname"),
    ):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return folder


def test_a_program_that_is_missing_is_named(place: Place) -> None:
    folder = _without_docker(place)
    refused(place.run(PATH=str(folder)), 3, "docker is not installed")
    (folder / "openssl").unlink()
    refused(place.run(PATH=str(folder)), 3, "openssl is not installed")


def test_engine_check_reads_no_layer(place: Place) -> None:
    layer = max((place.bundle / "image/blobs/sha256").iterdir(), key=lambda p: p.stat().st_size)
    layer.write_bytes(bytes(layer.stat().st_size))
    done = place.run("--key", str(place.key.public), "--engine-check")
    assert done.returncode == 0, done.stderr
    assert "ready for the image" in done.stderr
    assert place.images == {}


@pytest.mark.parametrize("words", [("--unsigned",), ("--unsigned", "--check-only")])
def test_without_a_signature_only_if_asked(place: Place, words: tuple[str, ...]) -> None:
    (place.bundle / "SHA256SUMS.sig").unlink()
    refused(place.run(), 4, "no signature")
    done = place.run(*words)
    assert done.returncode == 0, done.stderr
    assert "NOT checked" in done.stderr
    (place.bundle / "serve/compose.yaml").write_text("services: {}\n")
    refused(place.run("--unsigned"), 5, "changed: serve/compose.yaml")


# -- what somebody did to the bundle -----------------------------------------------------------


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _blobs(bundle: Path) -> list[Path]:
    return sorted((bundle / "image/blobs/sha256").iterdir())


def _rewrite_list(bundle: Path) -> None:
    """Somebody without the key changes a file and the list with it."""
    path = bundle / "serve/deploy/appliance.py"
    old = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text("import os\n")
    new = hashlib.sha256(path.read_bytes()).hexdigest()
    sums = bundle / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(old, new))


def _link_out(bundle: Path) -> None:
    path = bundle / "serve/compose.yaml"
    outside = bundle.parent / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)


def _link_folder(bundle: Path) -> None:
    outside = bundle.parent / "evidence-outside"
    shutil.move(bundle / "evidence", outside)
    (bundle / "evidence").symlink_to(outside)


Harm = Callable[[Path], object]
HARMS: dict[str, tuple[Harm, int, str]] = {
    "changed blob": (lambda b: _flip(_blobs(b)[0]), 5, "changed: image/blobs/sha256/"),
    "longer blob": (lambda b: _blobs(b)[1].open("ab").write(b"x"), 5, "changed: image/blobs/"),
    "empty blob": (lambda b: _blobs(b)[2].write_bytes(b""), 5, "changed: image/blobs/"),
    "changed conf": (lambda b: _flip(b / "bundle.conf"), 5, "changed: bundle.conf"),
    "changed index": (lambda b: _flip(b / "image/index.json"), 5, "changed: image/index.json"),
    "changed SBOM": (lambda b: _flip(b / "evidence/sbom.spdx.json"), 5, "changed: evidence/"),
    "missing blob": (lambda b: _blobs(b)[0].unlink(), 5, "missing: image/blobs/sha256/"),
    "missing receipt": (lambda b: (b / "evidence/receipts/built.json").unlink(), 5, "missing"),
    "folder for file": (lambda b: _folder_for(b / "serve/LICENSE"), 5, "missing: serve/LICENSE"),
    "added file": (lambda b: (b / "serve/.env").write_text("X=1"), 5, "not listed"),
    "added blob": (lambda b: (b / "image/blobs/sha256/aa").write_text("x"), 5, "not listed"),
    "added hidden": (lambda b: (b / ".x").write_text("x"), 5, "not listed"),
    "added odd name": (lambda b: (b / "a]=$(touch b)[").write_text("x"), 5, "not listed"),
    "fifo": (lambda b: os.mkfifo(b / "serve/pipe"), 5, "neither file nor folder"),
    "link to a file": (_link_out, 5, "a link is in the bundle: serve/compose.yaml"),
    "link to a folder": (_link_folder, 5, "a link is in the bundle: evidence"),
    "dangling link": (lambda b: (b / "x").symlink_to("/nowhere"), 5, "a link is in the bundle"),
    "linked list": (lambda b: _linked(b / "SHA256SUMS"), 5, "SHA256SUMS is a link"),
    "list changed": (_rewrite_list, 4, "not of this key"),
    "no list": (lambda b: (b / "SHA256SUMS").unlink(), 3, "there is no SHA256SUMS"),
    "no signature": (lambda b: (b / "SHA256SUMS.sig").unlink(), 4, "no signature"),
    "not base64": (lambda b: (b / "SHA256SUMS.sig").write_text("?"), 4, "not a signature"),
    "empty signature": (lambda b: (b / "SHA256SUMS.sig").write_text(""), 4, "not of this key"),
    "short list": (lambda b: _shorten(b / "SHA256SUMS"), 4, "not of this key"),
}


def _folder_for(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _linked(path: Path) -> None:
    other = path.parent.parent / "list"
    shutil.move(path, other)
    path.symlink_to(other)


def _shorten(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("harm", HARMS)
def test_harm_is_found_and_nothing_is_loaded(place: Place, harm: str) -> None:
    do, code, text = HARMS[harm]
    do(place.bundle)
    refused(place.run(), code, text)
    refused(place.run("--key", str(place.key.public), "--check-only"), code, text)
    assert place.images == {}
    assert not any(call.startswith("load") for call in place.calls)


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "serve/../../outside",
        "/etc/passwd",
        "./x",
        "-x",
        "serve/-x",
        "a b",
        "a//b",
        "a\\b",
    ],
)
def test_a_signed_list_may_not_lead_out_either(place: Place, name: str) -> None:
    (place.bundle.parent / "outside").write_text("x")
    with (place.bundle / "SHA256SUMS").open("a") as sums:
        sums.write(f"{hashlib.sha256(b'x').hexdigest()}  {name}\n")
    place.sign()
    done = place.run()
    refused(done, 5, "SHA256SUMS ")
    assert place.images == {}


def test_a_path_twice_or_no_image_in_the_list(place: Place) -> None:
    sums = place.bundle / "SHA256SUMS"
    good = sums.read_text()
    sums.write_text(good + good.splitlines(keepends=True)[0])
    place.sign()
    refused(place.run(), 5, "lists what it must not")
    kept = [line for line in good.splitlines(keepends=True) if "index.json" not in line]
    sums.write_text("".join(kept))
    place.sign()
    refused(place.run(), 5, "does not list image/index.json")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("config=sha256:", "config=md5:"),
        ("unpacked_bytes=", "unpacked_bytes=a[$(touch /tmp/never)]"),
        (f"name={NAME}", "name=--help"),
        ("unpacked_bytes=", "unpacked_bytes=0"),
        ("format=1", "format=2"),
    ],
)
def test_what_the_conf_says_is_looked_at(place: Place, old: str, new: str) -> None:
    path = place.bundle / "bundle.conf"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    place.relist()
    refused(place.run(), 5, "bundle")
    assert place.images == {}


def test_wrong_keys(place: Place, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    refused(place.run("--key", str(other.public)), 4, "not of this key")
    refused(place.run("--key", str(tmp_path / "none")), 2, "cannot be read")
    refused(place.run("--key", str(other.private)), 2, "not a public key")
    # A forger's own key beside their own signature.
    (place.bundle / "cosign.pub").write_bytes(other.public.read_bytes())
    refused(place.run("--key", str(place.bundle / "cosign.pub")), 2, "lies in the bundle")
    link = tmp_path / "link.pub"
    link.symlink_to(place.bundle / "cosign.pub")
    refused(place.run("--key", str(link)), 2, "lies in the bundle")
    assert place.calls == []


@pytest.mark.parametrize(
    "words",
    [
        ("--key",),
        ("--key", ""),
        ("--unsigned", "--key", "KEY"),
        ("--check-only",),
        ("--unsigned", "--check-only", "--engine-check"),
        ("--unsigned", "image.tar"),
        ("--unsigned", "--force"),
    ],
)
def test_arguments(place: Place, words: tuple[str, ...]) -> None:
    refused(place.run(*[str(place.key.public) if w == "KEY" else w for w in words]), 2, "")
    assert place.calls == []


def test_no_argument_is_refused_too(place: Place) -> None:
    done = subprocess.run(
        ["bash", str(place.bundle / "import.sh")],
        env=place.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    refused(done, 2, "no key")


def test_help_names_every_exit_code_of_the_script(place: Place) -> None:
    done = place.run("--help")
    assert done.returncode == 0
    used = set(re.findall(r"\bfail (\d+)\b", (place.bundle / "import.sh").read_text()))
    assert used == {"2", "3", "4", "5", "6", "7", "8", "9", "10"}
    for code in used:
        assert any(line.strip().startswith(f"{code}  ") for line in done.stdout.splitlines()), code


# -- by hand -----------------------------------------------------------------------------------


def test_the_steps_by_hand_say_the_same(place: Place, tmp_path: Path) -> None:
    def check(step: int) -> str:
        text = readme_step(place.bundle, step, place.key.public, tmp_path)
        done = subprocess.run(
            ["bash", "-c", text], cwd=place.bundle, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    assert check(1) == "Verified OK\n"
    assert all(line.endswith(": OK") for line in check(2).splitlines())
    assert len(check(2).splitlines()) == len((place.bundle / "SHA256SUMS").read_text().splitlines())
    assert check(3) == ""

    (place.bundle / "serve/added").write_text("x")
    assert "serve/added" in check(3)
    (place.bundle / "serve/added").unlink()
    (place.bundle / "link").symlink_to("import.sh")
    assert "./link" in check(3)
    (place.bundle / "link").unlink()
    _flip(_blobs(place.bundle)[0])
    assert "FAILED" in check(2)
    with (place.bundle / "SHA256SUMS").open("a") as sums:
        sums.write("x\n")
    assert "Verified OK" not in check(1)


@pytest.mark.parametrize(
    "name",
    ["x\nthe bundle is whole", "\x1b[2K\x1b[1Athe bundle is whole", "a\rfiles: all as listed"],
)
def test_a_file_name_cannot_speak_for_the_script(place: Place, name: str) -> None:
    (place.bundle / name).write_text("x")
    done = subprocess.run(
        ["bash", str(place.bundle / "import.sh"), "--key", str(place.key.public)],
        env=place.env(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 5
    lines = done.stderr.decode().split("\n")
    assert [line.partition(":")[0] for line in lines] == ["signature", "error", "  fix", ""]
    assert not set(done.stderr) & {0x1B, 0x0D}


@pytest.mark.parametrize(
    "environment",
    [
        {"SHELLOPTS": "noglob"},
        {"BASHOPTS": "nocasematch:failglob"},
    ],
)
def test_the_environment_hides_no_added_file(place: Place, environment: dict[str, str]) -> None:
    done = place.run(**environment)
    assert done.returncode == 0, done.stderr
    (place.bundle / "serve" / "added").write_text("x")
    refused(place.run(**environment), 5, "not listed is in the bundle: serve/added")


def test_the_environment_changes_nothing_of_what_is_sent_and_made(place: Place) -> None:
    done = place.run(TAR_OPTIONS="--exclude=blobs", DOCKER_DEFAULT_PLATFORM="linux/s390x")
    assert done.returncode == 0, done.stderr
    assert place.images == {place.conf()["config"]: [NAME]}


# -- the engine --------------------------------------------------------------------------------


def test_engines_that_cannot_take_it(place: Place, tmp_path: Path) -> None:
    refused(place.run(STUB_DOWN="1"), 6, "Is the docker daemon running?")
    refused(place.run(STUB_VERSION="20.10.24+dfsg1"), 6, "too old")
    refused(place.run(STUB_VERSION="", STUB_ROOT=""), 6, "not a Docker engine")
    assert place.images == {}


def test_no_room_is_found_before_the_long_part(place: Place) -> None:
    conf = place.bundle / "bundle.conf"
    lines = [
        f"unpacked_bytes={10**15 - 1}" if line.startswith("unpacked") else line
        for line in conf.read_text().splitlines()
    ]
    conf.write_text("\n".join(lines) + "\n")
    place.relist()
    done = place.run()
    refused(done, 7, "are free")
    assert "checking" not in done.stderr
    # An engine elsewhere: its disk cannot be seen, and this one's says nothing.
    done = place.run(STUB_ENDPOINT="tcp://other:2376")
    assert done.returncode == 0, done.stderr
    assert "not checked" in done.stderr


def test_an_engine_that_fails_while_loading(place: Place) -> None:
    done = place.run(STUB_BREAK="1")
    refused(done, 8, "no space left on device")
    assert place.images == {}
    assert place.run().returncode == 0  # and again, when there is room


def test_an_engine_that_loads_another_image(place: Place) -> None:
    other = "sha256:" + "e" * 64
    done = place.run(STUB_OTHER_ID=other)
    refused(done, 9, "another image than")
    assert place.images == {}  # removed again
    # One that was there before is not ours to remove.
    (place.store / "images.json").write_text(json.dumps({other: ["mine:1"]}))
    refused(place.run(STUB_OTHER_ID=other), 9, "another image than")
    assert place.images == {other: ["mine:1"]}


def test_announced_wrongly_and_signed(place: Place) -> None:
    conf = place.bundle / "bundle.conf"
    conf.write_text(conf.read_text().replace(place.conf()["config"], "sha256:" + "d" * 64))
    place.relist()
    refused(place.run(), 9, "another image than sha256:ddd")
    assert place.images == {}


def test_a_name_that_is_taken_stays(place: Place) -> None:
    taken = {"sha256:" + "e" * 64: [NAME]}
    (place.store / "images.json").write_text(json.dumps(taken))
    refused(place.run(), 10, "is another image on this engine")
    assert place.images == taken


def test_a_tag_that_is_refused(place: Place) -> None:
    refused(place.run(STUB_NO_TAG="1"), 8, "cannot be tagged")


@pytest.mark.parametrize("swapped", ["layer", "manifest.json"])
def test_files_swapped_between_check_and_load(place: Place, swapped: str) -> None:
    """A `tar` that changes a file just before it is read: a medium that gives other bytes."""
    real = shutil.which("tar")
    listed = place.bundle / "image/manifest.json"
    first, second = json.loads(listed.read_text())[0]["Layers"]
    victim = place.bundle / "image" / first if swapped == "layer" else listed
    replacement = place.store / "replacement"
    if swapped == "layer":
        replacement.write_bytes((place.bundle / "image" / second).read_bytes())
    else:
        document = json.loads(victim.read_text())
        document[0]["RepoTags"] = ["debian:bookworm"]
        replacement.write_text(json.dumps(document))
    tar = place.bin / "tar"
    tar.write_text(f'#!/bin/sh\ncp {replacement} {victim}\nexec {real} "$@"\n')
    tar.chmod(0o755)
    done = place.run()
    if swapped == "layer":
        assert done.returncode == 8, done.stderr  # the engine checks each layer
        assert place.images == {}
    else:
        # Sent from the verified copy: no other image's name can be taken.
        assert done.returncode == 0, done.stderr
        assert place.images == {place.conf()["config"]: [NAME]}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_loading(place: Place, number: signal.Signals) -> None:
    child = subprocess.Popen(
        # A run in the background ignores SIGINT, and what it starts would too.
        [
            *("env", "--default-signal=INT", "bash", str(place.bundle / "import.sh")),
            *("--key", str(place.key.public)),
        ],
        env={**place.env(), "STUB_SLOW": "1", "TMPDIR": str(place.store)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    mark = place.store / "loading"
    end = time.monotonic() + 30
    while not (mark.exists() and mark.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    loader = int(mark.read_text())
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    assert "interrupted" in err
    end = time.monotonic() + 10
    while _runs(loader) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _runs(loader)  # an orphan would go on loading
    assert place.images == {}
    assert list(place.store.glob("tmp.*")) == []


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_read_only_medium_without_modes(place: Place) -> None:
    """FAT and ISO 9660 keep neither owners nor modes; nobody may write."""
    before = sorted(str(p) for p in place.bundle.rglob("*"))
    for path in place.bundle.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    place.bundle.chmod(0o555)
    try:
        user = (
            [] if os.geteuid() else ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        )
        if user:
            _open_up(place)
        done = subprocess.run(
            [
                *user,
                "bash",
                str(place.bundle / "import.sh"),
                "--key",
                str(place.key.public),
                "--check-only",
            ],
            env=place.env(),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        place.bundle.chmod(0o755)
        for path in place.bundle.rglob("*"):
            path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert sorted(str(p) for p in place.bundle.rglob("*")) == before


def _open_up(place: Place) -> None:
    """Let another user reach the bundle and the key below pytest's private folders."""
    for path in (place.bundle, place.key.public):
        for parent in path.parents:
            if parent.stat().st_uid == os.geteuid() and "pytest" in str(parent):
                parent.chmod(parent.stat().st_mode | 0o055)


def test_a_truncated_script_does_nothing(place: Place) -> None:
    script = place.bundle / "import.sh"
    text = script.read_text()
    script.write_text(text[: text.index("# -- load ---")])
    done = place.run("--unsigned")
    assert done.returncode != 0
    assert place.calls == []
