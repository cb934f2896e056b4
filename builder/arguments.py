"""Types of command-line arguments (argparse, `type=`) that several verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def nonempty(what: str) -> Callable[[str], str]:
    """A text that is not blank; `what` names it in the message.

    An empty argument is most often a shell variable that is not set. None of it may mean the same
    as an option that was left out: that could check less, or something else.
    """

    def check(text: str) -> str:
        if not text.strip():
            raise argparse.ArgumentTypeError(f"{what} is empty (a shell variable that is not set?)")
        return text

    return check


def path(what: str) -> Callable[[str], Path]:
    """The same for a path: an empty one would be the current folder."""
    check = nonempty(what)
    return lambda text: Path(check(text))
