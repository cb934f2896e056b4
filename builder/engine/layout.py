"""Where a private engine keeps its things, and the files it is started with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from builder.engine.clidir import make_docker_config
from builder.engine.libraries import link_libraries
from builder.engine.network import TAP_MTU
from builder.engine.packages import Unpacked
from builder.errors import EngineStartError
from builder.project import Project

RUN_ROOT = Path("/run")
SOCKET_LIMIT = 107  # bytes of sun_path without its NUL, unix(7)
_CGROUPS = Path("/sys/fs/cgroup")
_PROGRAMS = ("dockerd", "containerd", "containerd-shim-runc-v2", "runc", "docker-proxy", "docker")


@dataclass(frozen=True)
class Layout:
    """Paths of one private engine; everything but data and logs goes when it stops."""

    data: Path
    lock: Path
    logs: Path
    run: Path

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def private_run(self) -> Path:
        """What the engine sees as /run."""
        return self.run / "run"

    @property
    def socket(self) -> Path:
        return self.private_run / "engine.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def config(self) -> Path:
        return self.run / "daemon.json"

    @property
    def log(self) -> Path:
        return self.logs / "dockerd.log"

    def write_resolv(self, target: Path, text: str) -> bool:
        """Write the resolv.conf that shall lie over `target`; True if /run's cover hides it."""
        (self.private_run / "resolv.conf").write_text(text)
        if not target.is_relative_to(RUN_ROOT):
            return False
        inside = self.private_run / target.relative_to(RUN_ROOT)
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_text(text)
        return True

    def remove_run(self) -> None:
        """Remove the run folder and the (empty) control groups of an engine that has ended."""
        shutil.rmtree(self.run, ignore_errors=True)
        for controller in [_CGROUPS, *(p for p in _CGROUPS.iterdir() if p.is_dir())]:
            remove_cgroup(controller / self.name)


@dataclass(frozen=True)
class Programs:
    """What is executed, and with which environment."""

    dockerd: Path
    slirp4netns: Path
    cli: Path
    env: dict[str, str]
    client_env: dict[str, str]


def layout_of(project: Project) -> Layout:
    """The private engine of a builder's cache. Raises EngineStartError if a path is too long."""
    cache = project.cache
    data = cache / "engine-data"
    # Derived, not random: the next builder finds what a killed one left.
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
    place = Layout(
        data=data,
        lock=cache / "engine-data.lock",
        logs=cache / "logs",
        run=RUN_ROOT / f"ddtree-engine-{digest}",
    )
    check_socket_path(place.socket)
    return place


def check_socket_path(path: Path) -> None:
    """Raises EngineStartError where the kernel could not bind a socket at `path`."""
    length = len(os.fsencode(path))
    if length > SOCKET_LIMIT:
        raise EngineStartError(
            f"the engine's socket path has {length} bytes, the kernel takes {SOCKET_LIMIT}: {path}",
            "use a shorter path",
        )


def remove_cgroup(path: Path) -> None:
    """Remove an empty control group with its descendants, bottom up; busy ones are left."""
    if not path.is_dir():
        return
    for folder, _, _ in os.walk(path, topdown=False):
        for _ in range(50):  # the kernel frees a group a moment after its last process
            try:
                Path(folder).rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)


def daemon_config(place: Layout, *, keep_gib: int) -> dict[str, object]:
    """daemon.json. The graph driver is overlay2: the containerd store takes three times as long
    to finish an image of this size, and dockerd's own choice may change between versions."""
    return {
        "data-root": str(place.data),
        "exec-root": "/run/docker",
        "pidfile": "/run/docker.pid",
        "hosts": ["unix:///run/engine.sock"],
        "storage-driver": "overlay2",
        "features": {"containerd-snapshotter": False},
        # systemd manages the host's groups and must not be asked about ours.
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{place.name}",
        # The bridge's packets end in slirp4netns, not on the uplink (builder/engine/network.py).
        "mtu": TAP_MTU,
        # dockerd's default drops cache mounts after two days or at a tenth of the disk.
        "builder": {
            "gc": {"enabled": True, "policy": [{"all": True, "keepStorage": f"{keep_gib}GB"}]}
        },
    }


def prepare(place: Layout, unpacked: Unpacked, *, keep_gib: int) -> Programs:
    """Make the run folder: programs, libraries, configuration. Raises EngineStartError."""
    place.run.mkdir(mode=0o700)
    for folder in (place.private_run / place.name, place.run / "bin", place.run / "lib"):
        folder.mkdir(parents=True)
    for folder in (place.data, place.logs):
        folder.mkdir(parents=True, exist_ok=True)
    found = {name: _program(unpacked, name) for name in (*_PROGRAMS, "slirp4netns")}
    firewalls = {kind: _program(unpacked, f"xtables-{kind}-multi") for kind in ("nft", "legacy")}
    link_libraries([*found.values(), *firewalls.values()], unpacked.root, place.run / "lib")
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("DOCKER_", "BUILDX_"))},
        "LD_LIBRARY_PATH": str(place.run / "lib"),
        "XTABLES_LIBDIR": str(_xtables(unpacked.root)),
        "XTABLES_LOCKFILE": str(place.run / "xtables.lock"),
    }
    kind = _firewall(firewalls, env)
    for name in ("iptables", "iptables-save", "iptables-restore"):
        (place.run / "bin" / name).symlink_to(firewalls[kind])
        (place.run / "bin" / name.replace("ip", "ip6", 1)).symlink_to(firewalls[kind])
    for name, path in found.items():
        (place.run / "bin" / name).symlink_to(path)
    sbin = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env["PATH"] = f"{place.run / 'bin'}:{sbin}"
    place.config.write_text(json.dumps(daemon_config(place, keep_gib=keep_gib), indent=2))
    config = make_docker_config(
        place.run / "config",
        {name: unpacked.program(name) for name in ("docker-buildx", "docker-compose")},
    )
    return Programs(
        dockerd=found["dockerd"],
        slirp4netns=found["slirp4netns"],
        cli=found["docker"],
        env=env,
        client_env=client_env(place.url, config, place.run / "bin" / "docker"),
    )


def client_env(url: str, config: Path, cli: Path) -> dict[str, str]:
    """The caller's environment, pointed at the private engine and at nothing else."""
    # Only the CLI: the engine's own programs must not shadow the host's.
    folder = config / "bin"
    folder.mkdir()
    (folder / "docker").symlink_to(cli)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DOCKER_", "BUILDX_BUILDER"))}
    env.update(DOCKER_HOST=url, DOCKER_CONFIG=str(config))
    env["PATH"] = f"{folder}:{env.get('PATH', os.defpath)}"
    return env


def _program(unpacked: Unpacked, name: str) -> Path:
    path = unpacked.program(name)
    if path is None:
        raise EngineStartError(
            f"Debian's packages brought no {name}",
            "mend engine.packages in images/pins.toml, then `build.py engine prune --packages`",
        )
    return path


def _xtables(root: Path) -> Path:
    return next(iter(root.glob("usr/lib/*/xtables")), root)


def _firewall(programs: dict[str, Path], env: dict[str, str]) -> str:
    """`nft`, or `legacy` on a kernel without nf_tables; tried in a throw-away namespace."""
    for kind, program in programs.items():
        argv = ["unshare", "--net", str(program), "iptables", "-t", "nat", "-L", "-n"]
        done = subprocess.run(argv, env=env, capture_output=True, check=False)
        if done.returncode == 0:
            return kind
    raise EngineStartError(
        "the kernel has neither nf_tables nor ip_tables, so the engine can have no network",
        "install Docker Engine yourself, or use a kernel with netfilter",
    )
