"""Debian bootstrapped from its own packages into a `docker load` archive.

mmdebstrap with a fixed timestamp, and an image configuration of our own: the same package versions
give the same image id on every machine, whichever mirror they came from.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from builder import proc
from builder.engine.aptsources import AptUnavailableError, Mirror, host_mirror
from builder.engine.namespaces import contained
from builder.engine.packages import Want, obtain
from builder.files import sha256_file
from builder.pins import SharedPins
from builder.project import Project

REPOSITORY = "ddtree-base"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Written at bootstrap time, different each time, of no use in an image.
_VARYING = ("/var/log/*", "/var/cache/*/*", "/var/lib/apt/lists/*", "/run/*")
# Mirror, keyring path, name servers and name of the host, as mmdebstrap leaves them.
_OF_THE_HOST = (
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/*",
    "/etc/hostname",
    "/etc/resolv.conf",
)
_DROPPED = _VARYING + _OF_THE_HOST


@dataclass(frozen=True)
class Recipe:
    """All that a bootstrap depends on, apart from the archive's state."""

    suite: str
    packages: tuple[str, ...]
    epoch: int

    def key(self) -> str:
        """Names the cached result; another recipe never meets it."""
        text = json.dumps([4, self.suite, sorted(self.packages), self.epoch])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def local_reference(suite: str, digest: str) -> str:
    """`ddtree-base:<suite>-<12 hex digits>`."""
    return f"{REPOSITORY}:{suite}-{digest.removeprefix('sha256:')[:12]}"


def _over_network(mirror: Mirror) -> bool:
    uris = [mirror.main, mirror.security or mirror.main]
    return all(uri.startswith(("http://", "https://")) for uri in uris)


def bootstrap(project: Project, shared: SharedPins, recipe: Recipe, folder: Path) -> None:
    """Make `folder` with image.tar and base.json, or nothing. Raises AptUnavailableError."""
    if os.geteuid() != 0:
        raise AptUnavailableError("bootstrapping needs root", "run as root, or use a registry")
    proc.require("perl", "install perl, which mmdebstrap is written in")
    mirror = host_mirror()
    tool = obtain(project, [Want(shared.engine.suite, ("mmdebstrap",))])
    program = tool.program("mmdebstrap")
    assert program is not None
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    new.chmod(0o755)
    try:
        layer = new / "layer.tar"
        # Its mounts (proc, sys, dev of the tree) stay in its namespace: what is left of an
        # interrupted run can then be deleted without reaching the host's.
        argv = [
            *contained(),
            str(program),
            "--mode=root",
            "--variant=minbase",
            "--quiet",
            "--format=tar",
        ]
        argv += [f"--include={','.join(recipe.packages)}"]
        argv += [f"--customize-hook=rm -rf {' '.join(f'$1{p}' for p in _DROPPED)}"]
        # Its last step has apt make its folders anew, owned by `_apt` or by root as the permissions
        # of *our* folder have it. The hook has removed all that this step would.
        argv += ["--skip=cleanup/apt", recipe.suite, str(layer)]
        if _over_network(mirror):  # else mmdebstrap's own default
            sources = new / "mirror.sources"
            sources.write_text(mirror.sources(recipe.suite, "amd64"))
            argv.append(str(sources))
        env = {**os.environ, "SOURCE_DATE_EPOCH": str(recipe.epoch), "TMPDIR": str(new)}
        done = proc.run(argv, env=env, capture=True)
        if done.returncode != 0:
            raise AptUnavailableError(
                f"mmdebstrap failed: {_last_error(done.stderr)}",
                f"check that {mirror.main} can be reached",
            )
        record = _record(layer, tool.versions["mmdebstrap"], mirror)
        reference = local_reference(recipe.suite, record["layer"])
        record["image_id"] = write_image(layer, new / "image.tar", reference, recipe.epoch)
        layer.unlink()
        (new / "mirror.sources").unlink(missing_ok=True)
        (new / "base.json").write_text(json.dumps(record, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith("E:")]
    return (marked or lines or ["no output"])[0]


def _record(layer: Path, version: str, mirror: Mirror) -> dict[str, Any]:
    with tarfile.open(layer) as tar:
        member = tar.extractfile("./var/lib/dpkg/status")
        assert member is not None
        packages = installed(member.read().decode())
    return {
        "layer": sha256_file(layer),
        "mmdebstrap": version,
        "mirror": mirror.main,
        "packages": packages,
        "packages_sha256": hashlib.sha256("\n".join(packages).encode()).hexdigest(),
    }


def installed(status: str) -> list[str]:
    """`name=version` of each package in a dpkg status file, sorted."""
    found = []
    for stanza in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " "
        )
        if fields.get("Status", "").endswith(" installed"):
            found.append(f"{fields['Package']}={fields['Version']}")
    return sorted(found)


def write_image(layer: Path, to: Path, reference: str, epoch: int) -> str:
    """A `docker load` archive of one layer; returns the image id, a function of its content."""
    created = datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = sha256_file(layer)
    config = {
        "architecture": "amd64",
        "config": {"Cmd": ["bash"], "Env": ["PATH=" + _PATH]},
        "created": created,
        "history": [{"created": created, "created_by": "mmdebstrap"}],
        "os": "linux",
        "rootfs": {"diff_ids": [f"sha256:{digest}"], "type": "layers"},
    }
    blob = json.dumps(config, sort_keys=True).encode()
    image_id = hashlib.sha256(blob).hexdigest()
    manifest = [
        {"Config": f"{image_id}.json", "Layers": [f"{digest}/layer.tar"], "RepoTags": [reference]}
    ]
    with tarfile.open(to, "w") as tar:
        tar.add(layer, f"{digest}/layer.tar", filter=_plain)
        _add_bytes(tar, {f"{image_id}.json": blob, "manifest.json": json.dumps(manifest).encode()})
    return f"sha256:{image_id}"


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = 0
    return member


def _add_bytes(tar: tarfile.TarFile, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
