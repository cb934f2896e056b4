"""BuildKit through `docker buildx bake`: the bake file, host secrets, the run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from builder import console
from builder.engine import Engine
from builder.errors import AuditFailedError, BuilderError, BuildFailedError, DiskSpaceError
from builder.proc import end_group

# Exit code of `python -m builder.inside.audit` when it has findings.
AUDIT_EXIT = AuditFailedError.exit_code
_EXIT_CODE = re.compile(r"did not complete successfully: exit code: (\d+)")
# "#20 21.2 LNK001 FILE: EVIDENCE"; the rows of the audit's table are indented further.
_FINDING = re.compile(r"^#\d+ [\d.]+ ([A-Z]{3}\d{3} \S.*)")
_KEPT_LINES = 400
# Stages of templates/Dockerfile.j2 that hold what is ours; those below them are other people's.
OUR_STAGES = ("overlay", "runtime", "audit", "image")

NoCache = Literal["", "ours", "all"]
"""Which layers are built anew: none, ours, or every one."""


@dataclass(frozen=True)
class BakeTarget:
    """One target of the bake file."""

    stage: str
    context: Path
    named_contexts: dict[str, str]
    output: str
    tags: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    no_cache: NoCache = ""


def bake_file(target: BakeTarget, secrets: dict[str, Path]) -> dict[str, Any]:
    """The bake file's content (docs.docker.com/build/bake/reference)."""
    body: dict[str, Any] = {
        "context": str(target.context),
        "dockerfile": "Dockerfile",
        "target": target.stage,
        "contexts": target.named_contexts,
        "output": [target.output],
        "secret": [f"type=file,id={name},src={path}" for name, path in sorted(secrets.items())],
        # Attestations need an image index, which the engine's classic store cannot hold.
        "attest": ["type=provenance,disabled=true"],
    }
    if target.tags:
        body["tags"] = list(target.tags)
    if target.labels:
        body["labels"] = dict(sorted(target.labels.items()))
    if target.no_cache == "all":
        body["no-cache"] = True
    elif target.no_cache == "ours":
        body["no-cache-filter"] = list(OUR_STAGES)
    return {"target": {"default": body}}


def host_index(env: dict[str, str]) -> str:
    """The package index that the host's uv or pip settings name; empty for their default."""
    named = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or env.get("PIP_INDEX_URL")
    if named:
        return named
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    # `config get` does not see every file that `list`, and pip itself, read.
    found = re.findall(r"^global\.index-url='(.*)'$", asked.stdout, re.MULTILINE)
    return str(found[-1]) if found else ""


def uv_settings(index: str) -> str:
    """uv.toml for the build steps: the host's own index, where the host names one."""
    if not index:
        return ""
    return f"[[index]]\nurl = {json.dumps(index)}\ndefault = true\n"


@contextmanager
def host_secrets() -> Iterator[dict[str, Path]]:
    """The host's CA bundle and package index as BuildKit secrets, gone afterwards."""
    with TemporaryDirectory(prefix="ddtree-secrets-") as name:
        folder = Path(name)
        secrets: dict[str, Path] = {}
        for variable in ("DDTREE_CA_FILE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
            value = os.environ.get(variable)
            if value and Path(value).is_file():
                secrets["ca"] = Path(value).resolve()
                break
        settings = uv_settings(host_index(dict(os.environ)))
        if settings:
            secrets["uv"] = folder / "uv.toml"
            secrets["uv"].write_text(settings)
            secrets["uv"].chmod(0o600)
        yield secrets


def failure(lines: list[str], log: Path, returncode: int) -> BuilderError:
    """The error that a failed bake means, judged by what BuildKit printed."""
    codes = [int(m.group(1)) for line in lines for m in [_EXIT_CODE.search(line)] if m]
    text = "\n".join(lines)
    if "no space left on device" in text.lower():
        return DiskSpaceError(
            "the engine ran out of disk space during the build",
            "free space on the engine's data root (`docker system prune`, or "
            "`python3 build.py engine prune` for the private engine)",
        )
    if AUDIT_EXIT in codes:
        findings = [m.group(1) for line in lines for m in [_FINDING.match(line)] if m]
        first = f"; {len(findings)} in all, the first: {findings[0]}" if findings else ""
        return AuditFailedError(
            f"the audit of the built file system has findings{first}", f"see the table in {log}"
        )
    errors = [line for line in lines if "ERROR" in line or "error:" in line.lower()]
    last = errors[-1].strip() if errors else f"buildx exited with {returncode}"
    return BuildFailedError(f"the image build failed: {last}", f"the whole output is in {log}")


def run_bake(engine: Engine, target: BakeTarget, log: Path) -> None:
    """Build one target; BuildKit's output streams to stderr and into `log`.

    Raises AuditFailedError, DiskSpaceError or BuildFailedError.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="ddtree-bake-") as name, host_secrets() as secrets:
        path = Path(name) / "docker-bake.json"
        path.write_text(json.dumps(bake_file(target, secrets), indent=2))
        # The `default` builder is the engine itself: its image store holds the base.
        argv = engine.buildx("bake", "--builder", "default", "--progress", "plain")
        argv += ["--file", str(path)]
        console.command(argv)
        env = {
            **engine.env,
            "BUILDX_BAKE_ENTITLEMENTS_FS": "0",
            "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        }
        returncode, lines = _stream(argv, env, log)
    if returncode != 0:
        raise failure(lines, log, returncode)


def _stream(argv: list[str], env: dict[str, str], log: Path) -> tuple[int, list[str]]:
    kept: list[str] = []
    child = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        with log.open("a", encoding="utf-8") as handle:
            for line in child.stdout:
                handle.write(line)
                kept.append(line.rstrip())
                del kept[:-_KEPT_LINES]
                if console.shows_progress():
                    sys.stderr.write(line)
        child.wait()
    except BaseException:
        end_group(child)
        raise
    return child.returncode, kept
