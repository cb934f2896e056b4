"""What stands behind a failed request, in a few words."""

from __future__ import annotations

import socket
import ssl

import urllib3.exceptions


def never_connected(exc: BaseException) -> bool:
    """DNS failed, nothing listens, or no answer to the first packet."""
    return isinstance(
        _root(exc),
        (
            urllib3.exceptions.NewConnectionError,
            urllib3.exceptions.ConnectTimeoutError,
            urllib3.exceptions.ProxyError,
            ConnectionRefusedError,
            socket.gaierror,
        ),
    )


def _root(exc: BaseException) -> BaseException:
    """What requests and urllib3 wrapped."""
    while True:
        inner = getattr(exc, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((a for a in exc.args if isinstance(a, BaseException)), None)
        if inner is None or isinstance(exc, urllib3.exceptions.NewConnectionError):
            return exc
        exc = inner


def reason(exc: BaseException) -> str:
    """A few words for a failed network operation; no address in it, which may carry a token."""
    root = _root(exc)
    if isinstance(root, urllib3.exceptions.NewConnectionError):
        cause = root.__cause__ or root.__context__
        return (getattr(cause, "strerror", None) or "no connection") if cause else "no connection"
    if isinstance(root, (TimeoutError, urllib3.exceptions.TimeoutError)):
        return "no answer in time"
    broken = (urllib3.exceptions.ProtocolError, ConnectionResetError, BrokenPipeError)
    if isinstance(root, broken):  # RemoteDisconnected among them
        return "the connection broke off"
    if isinstance(root, ssl.SSLError):
        return str(getattr(root, "verify_message", "") or root.reason or root)
    if isinstance(root, OSError) and root.strerror:
        return root.strerror
    text = str(root)
    return "the connection broke off" if not text or "://" in text else text[:200]
