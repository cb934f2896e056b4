"""Who we are to a registry: credentials of the Docker configuration, tokens made of them.

A registry answers 401 with a challenge: `Basic`, or `Bearer` with the address of a token service
(OCI distribution specification 1.1; the token protocol is the distribution project's, which every
registry follows). Credentials go to the registry and to the token service that it names, over TLS
(loopback apart), and nowhere else; nothing of them is ever printed.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker.auth
import docker.errors
import docker.utils.config
import requests

from builder import console
from builder.errors import RegistryRefusedError
from builder.registry.documents import parse_json
from builder.registry.reference import is_loopback, split_address

_PARAMETER = re.compile(r'([A-Za-z_]+)="([^"]*)"|([A-Za-z_]+)=([^",\s]+)')
_TOKEN = re.compile(r"[!-~]+")
_TOKEN_LIFE = 60.0  # seconds, where the service does not say (the protocol's default)
# What docker.auth raises for a configuration whose JSON has other types than it expects.
_MALFORMED = (ValueError, OSError, KeyError, TypeError, AttributeError, RecursionError)
_EARLY = 10.0  # seconds before its end at which a token is no longer used
Fetch = Callable[..., requests.Response]


@dataclass(frozen=True)
class Credentials:
    """A user with password, or an identity token; never in a repr."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    def basic(self) -> str:
        """Value of an Authorization header."""
        pair = f"{self.username}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode()


@dataclass(frozen=True)
class Challenge:
    """One `WWW-Authenticate` header."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenge(header: str) -> Challenge | None:
    """The first challenge that we can meet: Bearer, else Basic; None when there is neither."""
    for scheme in ("Bearer", "Basic"):
        found = re.search(rf"(?:^|,\s*){scheme}\b(.*)", header, re.IGNORECASE)
        if found:
            pairs = _PARAMETER.findall(found[1])
            values = {(a or c).lower(): (b if a else d) for a, b, c, d in pairs}
            return Challenge(scheme, values)
    return None


def find_credentials(registry: str) -> Credentials | None:
    """What `docker login` stored for a registry: $DOCKER_CONFIG or ~/.docker, and its helpers.

    Raises RegistryRefusedError when the configuration or a credential helper is broken.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below says what the warning says
            _warn_of_no_json()
            found: Any = docker.auth.load_config().resolve_authconfig(registry)
    except (docker.errors.DockerException, *_MALFORMED) as exc:
        # Not the message of a decoder: it may quote what it could not decode.
        why = str(exc) if isinstance(exc, docker.errors.DockerException) else type(exc).__name__
        raise RegistryRefusedError(
            f"the Docker configuration gives no credentials for {registry}: {why}",
            "mend its config.json ($DOCKER_CONFIG or ~/.docker) or the credential helper that it "
            "names; `docker login` writes both",
        ) from None
    if not found:
        return None
    # Files give lower case, helpers give upper case.
    said = {str(key).lower(): str(value or "") for key, value in found.items()}
    credentials = Credentials(
        said.get("username", ""), said.get("password", ""), said.get("identitytoken", "")
    )
    return credentials if credentials.username or credentials.identity_token else None


def _warn_of_no_json() -> None:
    """The SDK takes a config.json that is no JSON for an empty one."""
    found = docker.utils.config.find_config_file()
    path = Path(str(found))
    if not found or path.name != "config.json":  # the oldest form, .dockercfg, need not be JSON
        return
    try:
        text = path.read_text("utf-8")
        if text.strip():
            json.loads(text)
    except (OSError, ValueError, RecursionError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not JSON"
        console.warn(f"{path} is ignored ({why}): no credentials, as if nobody had logged in")


class Authenticator:
    """Authorization headers for one registry; shared by threads."""

    def __init__(self, registry: str, repository: str, fetch: Fetch) -> None:
        self._registry = registry
        self._repository = repository
        self._fetch = fetch
        self._lock = threading.Lock()
        self._tokens: dict[bool, tuple[str, float]] = {}
        self._basic = ""
        self._credentials: Credentials | None = None
        self._looked = False

    @property
    def known(self) -> bool:
        """Whether the Docker configuration has credentials for the registry."""
        if not self._looked:
            self._credentials = find_credentials(self._registry)
            self._looked = True
        return self._credentials is not None

    def header(self, *, write: bool) -> str:
        """What an earlier challenge earned, or an empty string."""
        with self._lock:
            if self._basic:
                return self._basic
            token, end = self._tokens.get(write, ("", 0.0))
            return token if time.monotonic() < end else ""

    def meet(self, header: str, *, write: bool, used: str) -> str:
        """Answer a challenge with a new Authorization header; empty when we cannot.

        `used`: the header that was refused; another thread may have renewed it since.
        """
        challenge = parse_challenge(header)
        if challenge is None:
            return ""
        with self._lock:
            current = self._basic or self._tokens.get(write, ("", 0.0))[0]
            if current and current != used:
                return current
            if challenge.scheme == "Basic":
                if not self.known or used:
                    return ""
                assert self._credentials is not None
                self._basic = self._credentials.basic() if self._credentials.username else ""
                return self._basic
            token, seconds = self._token(challenge, write=write)
            self._tokens[write] = (f"Bearer {token}", time.monotonic() + seconds - _EARLY)
            return f"Bearer {token}"

    def _token(self, challenge: Challenge, *, write: bool) -> tuple[str, float]:
        realm = challenge.parameters.get("realm", "")
        try:
            parts = split_address(realm)
        except ValueError:
            raise RegistryRefusedError(
                f"{self._registry} names a token service without an address",
                "mend the registry's configuration",
            ) from None
        # A registry without TLS is on loopback, and so must its token service be.
        if parts.scheme != "https" and not (
            parts.scheme == "http" and is_loopback(parts.netloc) and is_loopback(self._registry)
        ):
            raise RegistryRefusedError(
                f"{self._registry} names a token service that is not on TLS: {realm!r}",
                "credentials are not sent there; mend the registry's configuration",
            )
        actions = "pull,push" if write else "pull"
        asked = {"scope": f"repository:{self._repository}:{actions}"}
        if challenge.parameters.get("service"):
            asked["service"] = challenge.parameters["service"]
        answer = self._ask(realm, asked)
        try:
            body = parse_json(answer.content)
            token = str(body.get("token") or body["access_token"])
            if not _TOKEN.fullmatch(token):  # it goes into a header
                raise ValueError("no token")
            return token, max(float(body.get("expires_in") or _TOKEN_LIFE), _TOKEN_LIFE)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RegistryRefusedError(
                f"the token service of {self._registry} answers HTTP {answer.status_code}: "
                f"no token for {asked['scope']}",
                self.remedy(),
            ) from None

    def _ask(self, realm: str, asked: dict[str, str]) -> requests.Response:
        credentials = self._credentials if self.known else None
        if credentials and credentials.identity_token:
            form = {
                **asked,
                "grant_type": "refresh_token",
                "client_id": "ddtree-builder",
                "refresh_token": credentials.identity_token,
            }
            return self._fetch("POST", realm, data=form)
        headers = {"Authorization": credentials.basic()} if credentials else {}
        return self._fetch("GET", realm, params=asked, headers=headers)

    def remedy(self) -> str:
        """What to do when the registry refuses us."""
        if self.known:
            return (
                f"the credentials of the Docker configuration are not enough: ask for the right to "
                f"{self._repository}, or `docker login {self._registry}` anew"
            )
        return f"`docker login {self._registry}`: the Docker configuration has no credentials"
