"""What a registry's answer means: ask again, refused, full, or not a registry."""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import requests

from builder.errors import (
    BuilderError,
    RegistryFullError,
    RegistryRefusedError,
    RegistryUnreachableError,
    TransferFailedError,
)
from builder.registry.documents import parse_json

_SAID = 300  # characters of an answer that an error repeats
# The registry's error codes carry no code of their own for "full": docker-registry 2.8 answers 500
# UNKNOWN with the text of ENOSPC or its number (28; 122 is EDQUOT), Harbor 403 or 412 with its
# quota's text, others 507.
_FULL = re.compile(
    r"no space left|disk quota exceeded|insufficient storage|storage limit|not enough space"
    r"|quota (?:has been |is |was )?(?:exceeded|reached|used)|(?:exceed\w*|over)\b.{0,40}\bquota"
    r"|exceed the configured upper limit|\"Err\":\s*(?:28|122)\b",
    re.IGNORECASE,
)
# Not 404 and the like, whose text repeats names of ours.
_MAY_SAY_FULL = (400, 403, 412, 413, 429)
_TOO_LARGE = 413
_TOO_MANY = 429
_RETRIED = (408, 425, _TOO_MANY)
RESUMES = "what arrived stays there: run the command again and only the rest is sent"


class TransientError(Exception):
    """A request that failed in a way that may pass: the connection, 429, 5xx."""

    def __init__(
        self, reason: str, *, status: int = 0, wait: float = 0.0, unreachable: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.wait = wait
        """Seconds that the registry asks us to wait (Retry-After); 0 when it does not."""
        self.unreachable = unreachable
        """No connection came about at all."""


class StoppedError(Exception):
    """Another part of the same transfer failed, or the user interrupted: do not go on."""


@dataclass(frozen=True)
class Patience:
    """How often and how long. `attempts`: in a row that bring nothing; the rest in seconds."""

    attempts: int = 7
    first: float = 0.5
    longest: float = 20.0
    longest_asked: float = 120.0
    unknown: int = 3
    """Tries of a registry that has not answered once: it may be a typing error."""
    connect: float = 20.0
    read: float = 120.0
    """Also for the last request of an upload, in which a registry hashes the whole blob."""

    def pause(self, fruitless: int, failure: TransientError, jitter: Callable[[], float]) -> float:
        """Seconds before the next try: exponential, with jitter, or what the registry asks."""
        ceiling = min(self.longest, self.first * 2.0 ** max(0, fruitless - 1))
        own: float = ceiling * (0.5 + jitter() / 2)
        return max(own, min(failure.wait, self.longest_asked))


def said(response: requests.Response) -> str:
    """The registry's own words, short and on one line."""
    text = _text(response)
    try:
        errors = parse_json(text)["errors"]
        words = [
            f"{e.get('code', '')}: {e.get('message', '')} {_detail(e.get('detail'))}".strip()
            for e in errors
        ]
        text = "; ".join(words)
    except (ValueError, KeyError, TypeError, AttributeError):
        if "html" in response.headers.get("Content-Type", ""):
            text = ""
    # It is shown on a terminal: no control characters.
    shown = "".join(c if c.isprintable() else " " for c in text[: 4 * _SAID])
    return " ".join(shown.split())[:_SAID]


def _text(response: requests.Response) -> str:
    try:
        return str(response.text)
    except (requests.RequestException, ValueError):  # broke off; a charset that is none
        return ""


def _detail(detail: object) -> str:
    return "" if not detail else detail if isinstance(detail, str) else json.dumps(detail)


def retry_after(response: requests.Response) -> float:
    """Seconds of a Retry-After header (a number or a date); 0 without one."""
    text = response.headers.get("Retry-After", "").strip()
    try:
        if text.isdecimal():
            return float(text)
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0


def is_full(response: requests.Response) -> bool:
    """Whether an error answer says that there is no room."""
    status = response.status_code
    if status == 507:
        return True
    return (status in _MAY_SAY_FULL or status >= 500) and bool(_FULL.search(_text(response)))


def check(response: requests.Response, where: str, remedy: Callable[[], str]) -> None:
    """Raise for an answer that no caller can use. `where`: registry and repository.

    Raises TransientError for 429, 408 and 5xx, RegistryFullError and RegistryRefusedError.
    """
    status = response.status_code
    if status < 400:
        return
    words = said(response)
    told = f"HTTP {status}" + (f" ({words})" if words else "")
    if is_full(response):
        raise full(where, told)
    if status in _RETRIED or status >= 500:
        raise TransientError(told, status=status, wait=retry_after(response))
    if status in (401, 403):
        raise RegistryRefusedError(f"{where} refuses: {told}", remedy())


def full(where: str, told: str) -> RegistryFullError:
    """There is no room; `told`: the registry's words."""
    return RegistryFullError(
        f"{where} has no room: {told}",
        "free space or raise the quota there, then run the command again: blobs that arrived "
        "whole are not sent again, and no tag was set",
    )


def too_large(where: str) -> RegistryFullError:
    """Even a small request is refused with 413."""
    return RegistryFullError(
        f"{where} takes no request of this size: HTTP {_TOO_LARGE}",
        "raise the limit of the proxy before the registry (nginx: client_max_body_size), or the "
        "registry's quota",
    )


def refused(response: requests.Response, where: str, doing: str) -> RegistryRefusedError:
    """For a status that the protocol does not have at this place."""
    words = said(response)
    told = f"HTTP {response.status_code}" + (f" ({words})" if words else "")
    return RegistryRefusedError(
        f"{where}: {doing}: {told}", "the registry's log says why; is it an OCI registry?"
    )


def give_up(
    where: str, doing: str, failure: TransientError, *, begun: bool = False
) -> BuilderError:
    """After the last try. `begun`: something had arrived."""
    if failure.unreachable and not begun:
        return RegistryUnreachableError(
            f"{where} does not answer: {failure.reason}",
            "check the name, the port, the network, and HTTPS_PROXY/NO_PROXY",
        )
    if failure.status == _TOO_MANY:
        return RegistryFullError(
            f"{where}: {doing}: {failure.reason}, again and again: its rate limit or quota is used "
            "up",
            f"wait, or raise the limit; {RESUMES}",
        )
    return TransferFailedError(f"{where}: {doing}: {failure.reason}", RESUMES)
