"""git, independent of the user's configuration, hooks, signing, attributes and locale."""

from __future__ import annotations

import os
from pathlib import Path

from builder.errors import PatchSeriesError
from builder.proc import require, run

IDENTITY = "DDTree patches"
EMAIL = "patches@ddtree.invalid"

# The user's files are switched off by the environment; this is for git < 2.32, which does not know
# GIT_CONFIG_GLOBAL, and for what a person sets in the scratch tree's own .git/config.
_CONFIG = {
    "commit.gpgSign": "false",
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.excludesFile": os.devnull,
    "core.fileMode": "true",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "false",
    "core.safecrlf": "false",
    "diff.suppressBlankEmpty": "false",
    "gc.auto": "0",
    "log.showSignature": "false",
    "tag.gpgSign": "false",
    "user.name": IDENTITY,
    "user.email": EMAIL,
}

# Every option that git lets a user's configuration or a new version decide, decided here.
_DIFF = (
    *("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-relative"),
    *("--diff-algorithm=myers", "--no-indent-heuristic", "--unified=3", "--inter-hunk-context=0"),
    *(f"-O{os.devnull}", "--full-index", "--src-prefix=a/", "--dst-prefix=b/"),
    "--ignore-submodules=none",
)

# No attribute of the tree or the user may turn text into something else. Last file wins.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding !diff\n"
_EXCLUDES = "__pycache__/\n*.pyc\n"


class Git:
    """git in one work tree. Every failure is a PatchSeriesError with git's last line."""

    def __init__(self, folder: Path, epoch: int = 0) -> None:
        self.folder = folder
        self.program = require("git", "install git (Debian: apt-get install git)")
        self._environment = _environment(epoch)

    def __call__(self, *arguments: str) -> str:
        """Run a git command; returns its standard output."""
        config = [part for key, value in _CONFIG.items() for part in ("-c", f"{key}={value}")]
        return run(
            [self.program, *config, *arguments],
            cwd=self.folder,
            env=self._environment,
            capture=True,
            echo=False,
            error=PatchSeriesError,
            what=f"git {arguments[0]} in {self.folder}",
            remedy="is DIR a work tree made by `python3 build.py patches apply DIR`?",
        ).stdout

    def init(self) -> None:
        """An empty repository without templates, hooks or conversions."""
        self("init", "--quiet", "--template=")
        self("symbolic-ref", "HEAD", "refs/heads/main")
        info = self.folder / ".git" / "info"
        info.mkdir(exist_ok=True)
        (info / "attributes").write_text(_ATTRIBUTES)
        (info / "exclude").write_text(_EXCLUDES)

    def commit_all(self, message: str) -> None:
        """Commit everything in the work tree, ignored names of the tree itself included."""
        self("add", "--all", "--force", ".")
        note = self.folder / ".git" / "DDTREE_MESSAGE"
        note.write_bytes(message.encode("utf-8", "surrogateescape"))
        self("commit", "--quiet", "--allow-empty", "--cleanup=verbatim", f"--file={note}")
        note.unlink()

    def diff(self, old: str, new: str) -> bytes:
        """The diff between two commits, the same bytes from every git."""
        # Through a file: captured output is decoded with universal newlines.
        out = self.folder / ".git" / "DDTREE_DIFF"
        self(*_DIFF, f"--output={out}", old, new)
        data = out.read_bytes()
        out.unlink()
        return data


def _environment(epoch: int) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    moment = f"{epoch} +0000"
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": IDENTITY,
        "GIT_AUTHOR_EMAIL": EMAIL,
        "GIT_AUTHOR_DATE": moment,
        "GIT_COMMITTER_NAME": IDENTITY,
        "GIT_COMMITTER_EMAIL": EMAIL,
        "GIT_COMMITTER_DATE": moment,
    }
