"""A stand-in for the docker CLI: an engine's image store in a folder, as far as import.sh asks.

Its load does what an engine does: layers are checked against the configuration, and the image's ID
is the configuration's digest (classic store) or the manifest's (STUB_CONTAINERD).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

STORE = Path(os.environ["STUB_STORE"])
IMAGES = STORE / "images.json"


def read() -> dict[str, list[str]]:
    """ID -> names."""
    return dict(json.loads(IMAGES.read_text())) if IMAGES.exists() else {}


def write(images: dict[str, list[str]]) -> None:
    IMAGES.write_text(json.dumps(images))


def resolve(name: str) -> str | None:
    return next((i for i, names in read().items() if name == i or name in names), None)


def fail(text: str) -> None:
    print(text, file=sys.stderr)
    raise SystemExit(1)


def load() -> None:
    # Here, because import.sh calls docker several times and Python's start is most of it; run with
    # -S for the same reason.
    import hashlib
    import site
    import tarfile
    import time

    site.main()
    import zstandard

    if "STUB_SLOW" in os.environ:
        (STORE / "loading").write_text(str(os.getpid()))
        time.sleep(60)
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
        for member in tar:
            handle = tar.extractfile(member)
            files[member.name] = handle.read() if handle else b""
            if "STUB_BREAK" in os.environ and len(files) == 2:
                fail("write /var/lib/docker/tmp: no space left on device")
    (entry,) = json.loads(files["manifest.json"])
    (descriptor,) = json.loads(files["index.json"])["manifests"]
    config = json.loads(files[entry["Config"]])
    manifest = files["blobs/" + descriptor["digest"].replace(":", "/")]
    for path, expected in zip(entry["Layers"], config["rootfs"]["diff_ids"], strict=True):
        content = zstandard.ZstdDecompressor().stream_reader(files[path]).read()
        if "sha256:" + hashlib.sha256(content).hexdigest() != expected:
            fail("invalid diffID for layer")
    (STORE / "broken").unlink(missing_ok=True)
    source = manifest if "STUB_CONTAINERD" in os.environ else files[entry["Config"]]
    found = os.environ.get("STUB_OTHER_ID") or "sha256:" + hashlib.sha256(source).hexdigest()
    images = read()
    images.setdefault(found, []).extend(entry["RepoTags"] or [])
    write(images)
    print(f"Loaded image ID: {found}")


def main(words: list[str]) -> None:
    with (STORE / "calls").open("a") as calls:
        calls.write(" ".join(words) + "\n")
    if "STUB_DOWN" in os.environ:
        fail("Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?")
    values = [word for word in words if word != "--"]
    if not asked(values) and not changed(values):
        fail(f"the stub does not know: docker {' '.join(words)}")


def asked(words: list[str]) -> bool:
    """What changes nothing; False for another command."""
    match words:
        case ["version", *_]:
            print(os.environ.get("STUB_VERSION", "26.1.5+dfsg1"))
        case ["info", *_]:
            kind = "[driver-type io.containerd.snapshotter.v1]"
            status = kind if "STUB_CONTAINERD" in os.environ else "[Backing Filesystem extfs]"
            print(f"{os.environ.get('STUB_ROOT', STORE)}|[{status}]")
        case ["context", "inspect", *_]:
            print(os.environ.get("STUB_ENDPOINT", "unix:///var/run/docker.sock"))
        case ["image", "inspect", _, _, name]:
            found = resolve(name)
            print(found) if found else fail(f"Error: No such image: {name}")
        case ["image", "ls", *_]:
            print("\n".join(read()))
        case _:
            return False
    return True


def changed(words: list[str]) -> bool:
    """What changes the store; False for another command."""
    match words:
        case ["image", "tag", source, name]:
            found = resolve(source)
            if found is None or "STUB_NO_TAG" in os.environ:
                fail("Error response from daemon: no such image")
            images = {i: [n for n in names if n != name] for i, names in read().items()}
            images[str(found)].append(name)
            write(images)
        case ["image", "rm", name]:
            write({i: names for i, names in read().items() if i != resolve(name)})
        case ["container", "create", "--pull", "never", "--network", "none", name, "x"]:
            if "DOCKER_DEFAULT_PLATFORM" in os.environ:
                fail("Error response from daemon: image does not match the specified platform")
            if resolve(name) is None or (STORE / "broken").exists():
                fail("Error response from daemon: content digest sha256:aa: not found")
            print("c0ffee")
        case ["container", "rm", "c0ffee"]:
            print("c0ffee")
        case ["load", "--quiet"]:
            load()
        case _:
            return False
    return True


main(sys.argv[1:])
