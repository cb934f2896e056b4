"""One HTTP GET: proxies from the environment, the host's CA bundle, plain reasons for failures."""

from __future__ import annotations

import functools
import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass

CONNECT_SECONDS = 5.0


class HttpError(Exception):
    """A request that brought nothing; `permanent` when asking again cannot help."""

    def __init__(self, reason: str, *, permanent: bool = False, status: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent
        self.status = status


@dataclass
class Answer:
    """A response whose body is still to be read."""

    body: http.client.HTTPResponse
    start: int  # first byte of the file that the body holds
    total: int | None  # size of the whole file in bytes, where the server says so


@functools.cache  # reading a CA bundle takes longer than the request
def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()  # SSL_CERT_FILE and SSL_CERT_DIR apply here
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"):
        bundle = os.environ.get(variable)
        if bundle and os.path.isfile(bundle):  # noqa: PTH113 - a variable, not a path of ours
            context.load_verify_locations(cafile=bundle)
    return context


def get(url: str, *, first: int = 0, last: int | None = None, timeout: float) -> Answer:
    """Ask for bytes `first`..`last` of `url`; a server may answer with all of it (`start` 0).

    `timeout` in seconds bounds each network operation. Raises HttpError.
    """
    # Compressed transfer would make Content-Length another number than the file's size.
    headers = {"User-Agent": "ddtree-builder", "Accept-Encoding": "identity"}
    if first or last is not None:
        headers["Range"] = f"bytes={first}-{'' if last is None else last}"
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - pins allow http(s)
        handler = urllib.request.HTTPSHandler(context=_context())
        body = urllib.request.build_opener(handler).open(request, timeout=timeout)
    except urllib.error.HTTPError as exc:
        exc.close()
        permanent = exc.code < 500 and exc.code not in (408, 429)
        reason = f"HTTP {exc.code} {exc.reason}"
        raise HttpError(reason, permanent=permanent, status=exc.code) from None
    except (urllib.error.URLError, OSError, http.client.HTTPException, ValueError) as exc:
        raise HttpError(
            failure_reason(exc, timeout), permanent=isinstance(exc, ValueError)
        ) from None
    return _answer(body)


def _answer(body: http.client.HTTPResponse) -> Answer:
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", body.headers.get("Content-Range", ""))
    if body.status == 206 and span is not None:
        return Answer(body, int(span[1]), None if span[2] == "*" else int(span[2]))
    length = body.headers.get("Content-Length", "")
    return Answer(body, 0, int(length) if length.isdigit() else None)


def probe(url: str, *, timeout: float = CONNECT_SECONDS) -> int | None:
    """Size of the file at `url` without fetching it (None: the server does not say).

    A ranged GET, not HEAD: signed addresses behind a redirect allow GET alone.
    """
    answer = get(url, last=0, timeout=timeout)
    with closing(answer.body):
        return answer.total


def failure_reason(exc: Exception, timeout: float) -> str:
    """A few words for a failed network operation."""
    cause = exc.reason if isinstance(exc, urllib.error.URLError) else exc
    if isinstance(cause, TimeoutError):
        return f"no answer within {timeout:.0f} s"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"certificate not trusted ({cause.verify_message}); set SSL_CERT_FILE"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__
