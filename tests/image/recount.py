"""Counts and hashes what is on disk, anew; runs inside the image, with the standard library alone.

A second opinion on the manifest: written apart from builder/inside, from what the manifest claims.
Prints one JSON object. Start it as root, so that no folder is passed over.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import json
import os
import re
import stat
import struct
import sys
from pathlib import Path
from typing import Any

# Written after the count was made, or by the engine into every container.
UNCOUNTED = {f"opt/ddtree/{name}.json" for name in ("manifest", "audit", "inventory")}
UNCOUNTED |= {".dockerenv"}
# Empty in the image, and what a container may write to.
WRITABLE = ("/tmp", "/var/cache/ddtree")
VERSION_FILE = "sglang/_version.py"


def sizes() -> dict[str, Any]:
    """Regular files that are the image's own; a hard-linked one counts once."""
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    mounts |= set(WRITABLE)
    seen: set[tuple[int, int]] = set()
    total = number = 0
    folders: dict[str, int] = {}
    for folder, names, files in os.walk("/"):
        names[:] = [n for n in names if os.path.join(folder, n) not in mounts]  # noqa: PTH118
        for name in files:
            path = os.path.join(folder, name)  # noqa: PTH118
            inside = path.lstrip("/")
            if path in mounts or inside in UNCOUNTED:
                continue
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                continue
            number += 1
            if status.st_nlink > 1:
                identity = (status.st_dev, status.st_ino)
                if identity in seen:
                    continue
                seen.add(identity)
            total += status.st_size
            top = inside.split("/")[0]
            folders[top] = folders.get(top, 0) + status.st_size
    return {"total_bytes": total, "files": number, "folders": folders}


def site() -> Path:
    """The image's site-packages."""
    (found,) = Path("/opt/ddtree/venv/lib").glob("python3.*/site-packages")
    return found


def kernels() -> dict[str, dict[str, str]]:
    """Kernel files: hash, and the architecture that the file itself states."""
    found = {}
    for path in sorted((site() / "ddtree_overlay/kernels").iterdir()):
        code = path.read_bytes()
        if path.suffix == ".cubin":
            # ELF64 e_flags; CUDA 13 keeps the architecture in bits 8 to 15, CUDA 12 in 0 to 7.
            (flags,) = struct.unpack_from("<I", code, 48)
            version = code[8]  # EI_ABIVERSION: 8 and up is the newer layout
            number = flags >> 8 & 0xFF if version >= 8 else flags & 0xFF
            architecture = f"sm_{number}"
        elif path.suffix == ".ptx":
            architecture = re.findall(rb"^\.target\s+sm_(\w+)", code, re.M)[0].decode()
            architecture = f"compute_{architecture}"
        else:
            continue
        found[path.name] = {"arch": architecture, "sha256": hashlib.sha256(code).hexdigest()}
    return found


def debian() -> dict[str, Any]:
    """Packages as dpkg's files list them."""
    texts = [p for p in (Path("/var/lib/dpkg/status"),) if p.is_file()]
    texts += sorted(Path("/var/lib/dpkg").glob("status.d/*"))
    lines = set()
    for text in texts:
        for paragraph in text.read_text("utf-8", "replace").split("\n\n"):
            keys = dict(
                line.split(": ", 1)
                for line in paragraph.splitlines()
                if ": " in line and line[0].isalpha()
            )
            if "Package" in keys and "not-installed" not in keys.get("Status", ""):
                lines.add("{Package}={Version}:{Architecture}\n".format_map(keys))
    digest = hashlib.sha256("".join(sorted(lines)).encode())
    version = Path("/etc/debian_version").read_text().strip()
    return {"version": version, "packages": len(lines), "packages_sha256": digest.hexdigest()}


def sglang_tree() -> dict[str, str]:
    """Hash of SGLang's installed packages as they were before the version was stamped in.

    The tree hash of builder/patches/treehash.py: kind, content's hash, path, by the paths' bytes.
    """
    distribution = importlib.metadata.distribution("sglang")
    (info,) = site().glob("sglang-*.dist-info")
    upstream, _, local = distribution.version.partition("+")
    rows = []
    with (info / "RECORD").open(newline="") as handle:
        names = [row[0] for row in csv.reader(handle) if row]
    for name in names:
        if name.startswith(("sglang-", "../")):
            continue
        path = site() / name
        data = path.read_bytes()
        if name == VERSION_FILE:
            text = data.decode().replace(f"'{upstream}+{local}'", f"'{upstream}'")
            data = text.replace(f", '{local}')", ")").encode()
        kind = "x" if path.stat().st_mode & 0o111 else "-"
        rows.append((name, f"{kind} {hashlib.sha256(data).hexdigest()} "))
    digest = hashlib.sha256()
    for name, head in sorted(rows, key=lambda row: os.fsencode(row[0])):
        digest.update(head.encode() + os.fsencode(name) + b"\0")
    listed = json.loads((info / "ddtree-patches.json").read_text())
    return {
        "tree": digest.hexdigest(),
        "listed_base_tree": listed["base_tree"],
        "listed_patched_tree": listed["patched_tree"],
    }


def records(names: list[str]) -> dict[str, Any]:
    """Files of these distributions that are not what their RECORD says."""
    wrong, checked = [], 0
    for name in names:
        for file in importlib.metadata.distribution(name).files or []:
            path = Path(str(file.locate()))
            if file.hash is None:
                continue
            digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
            checked += 1
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                wrong.append(str(file))
    return {"checked": checked, "wrong": wrong}


def main() -> None:
    found = {
        "sizes": sizes(),
        "kernels": kernels(),
        "debian": debian(),
        "sglang": sglang_tree(),
        "records": records(sys.argv[1:]),
        "distributions": {
            re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version
            for d in importlib.metadata.distributions(path=[str(site())])
        },
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
