"""The engine that answers already: found as the docker CLI would find it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import docker
import docker.errors
import requests
from docker.context import ContextAPI

from builder.errors import EngineAbsentError

DEFAULT_URL = "unix:///var/run/docker.sock"
_PROBE_SECONDS = 15
_CALL_SECONDS = 900


@dataclass(frozen=True)
class Found:
    """A client that was answered, and where."""

    client: docker.DockerClient
    url: str


def _client(env: Mapping[str, str], timeout: int) -> tuple[docker.DockerClient, str]:
    """DOCKER_CONTEXT beats DOCKER_HOST beats the current context (docker's rule)."""
    name = env.get("DOCKER_CONTEXT")
    host = env.get("DOCKER_HOST")
    if host and not name:
        client = docker.DockerClient.from_env(
            environment=dict(env), timeout=timeout, use_ssh_client=host.startswith("ssh://")
        )
        return client, host
    context = ContextAPI.get_context(name) if name else ContextAPI.get_current_context()
    if context is None:
        raise docker.errors.DockerException(f"there is no docker context {name!r}")
    url = str(context.Host or DEFAULT_URL).replace("http+unix://", "unix://")
    client = docker.DockerClient(
        base_url=url,
        tls=context.TLSConfig or False,
        timeout=timeout,
        use_ssh_client=url.startswith("ssh://"),
    )
    return client, url


def named_engine() -> bool:
    """The environment names an engine (DOCKER_HOST, DOCKER_CONTEXT)."""
    return bool(os.environ.get("DOCKER_HOST") or os.environ.get("DOCKER_CONTEXT"))


def find_existing(env: Mapping[str, str] | None = None) -> Found:
    """The answering engine. Raises EngineAbsentError saying where none answered, and why."""
    used = os.environ if env is None else env
    where = used.get("DOCKER_CONTEXT") or used.get("DOCKER_HOST") or "the default socket"
    try:
        client, url = _client(used, _PROBE_SECONDS)
        client.ping()
    except PermissionError:
        reason = "permission denied"
    except (docker.errors.DockerException, requests.RequestException, OSError) as exc:
        reason = _reason(exc)
    else:
        client.close()
        client, url = _client(used, _CALL_SECONDS)
        return Found(client, url)
    remedy = "start it, or point DOCKER_HOST at one, or use --engine private"
    if "ermission denied" in reason:
        remedy = "add yourself to the group `docker`, or run as root"
    raise EngineAbsentError(f"no Docker engine answers at {where}: {reason}", remedy)


def _reason(exc: BaseException) -> str:
    """The innermost cause in one line: the client wraps it several times over."""
    text = str(exc)
    for mark in ("No such file or directory", "Permission denied", "Connection refused"):
        if mark in text:
            return mark.lower()
    return text.splitlines()[0][:200] if text else type(exc).__name__
