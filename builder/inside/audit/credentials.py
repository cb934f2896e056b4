"""SEC: nothing in the image looks like a secret, by its name or by what it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from builder.inside.audit.model import Context, Finding

# Folders of a developer or a build host that no image needs.
_FOLDERS = {".git", ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".svn", ".hg"}
_FILES = (
    *(".netrc", "_netrc", ".pypirc", ".git-credentials", ".dockercfg", ".pgpass", ".htpasswd"),
    *(".env", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "ssh_host_*_key", "*.p12", "*.pfx"),
    *("application_default_credentials.json", "credentials.db", "*.kdbx", "*.jks", "*.keytab"),
    "cosign.key",
)
# Configuration whose addresses may carry a user and a password.
_CONFIGURATION = (
    *("pip.conf", "uv.toml", ".npmrc", ".condarc", ".gitconfig", "gitconfig", "*.sources"),
    *("sources.list", "*.list", "auth.conf", "apt.conf", ".wgetrc", ".curlrc", "environment"),
)
_IN_ADDRESS = re.compile(rb"://[^/\s:@]+:[^/\s@]+@|_authToken|^machine\s", re.MULTILINE)
_HUB = re.compile(r"(?:^|/)\.?(?:cache/)?huggingface/(?:token|stored_tokens)$")
_REMEDY = "keep it out of the build (secrets are mounted, never copied), or remove the file"


def secrets(context: Context) -> Iterator[Finding]:
    """SEC002"""
    files = context.files
    context.count("SEC002", len(files.sizes))
    for path in sorted((*files.sizes, *files.links)):
        text = _by_name(PurePosixPath(path))
        if text:
            yield Finding("SEC002", path, text, _REMEDY)
    for path, what in files.secrets:
        yield Finding("SEC002", path, f"holds {what}", _REMEDY)
    for path in sorted(files.sizes):
        if _is_configuration(path) and _IN_ADDRESS.search((files.root / path).read_bytes()):
            yield Finding("SEC002", path, "holds an address with a password", _REMEDY)
    yield from _passwords(context)


def _is_configuration(path: str) -> bool:
    """dpkg's lists of files are called *.list as well."""
    name = PurePosixPath(path).name
    return not path.startswith("var/lib/dpkg/") and any(
        fnmatchcase(name, pattern) for pattern in _CONFIGURATION
    )


def _by_name(path: PurePosixPath) -> str:
    folder = _FOLDERS & set(path.parts[:-1])
    if folder:
        return f"lies in {folder.pop()}, which holds credentials or history"
    if any(fnmatchcase(path.name, pattern) for pattern in _FILES):
        return "is named as what holds credentials"
    return "is a token of the Hugging Face hub" if _HUB.search(str(path)) else ""


def _passwords(context: Context) -> Iterator[Finding]:
    """A password of an account: a container's user needs none."""
    for name in ("etc/passwd", "etc/shadow", "etc/shadow-", "etc/gshadow"):
        path = context.files.root / name
        if name not in context.files.sizes:
            continue
        for line in path.read_text("utf-8", "replace").splitlines():
            user, _, rest = line.partition(":")
            value = rest.partition(":")[0]
            if value and value != "x" and value[0] not in "!*":  # x: it stands in shadow
                yield Finding("SEC002", name, f"{user} has a password", "lock the account")
