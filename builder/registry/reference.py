"""Names of images in a registry, as Docker writes them: REGISTRY/NAME[:TAG][@DIGEST]."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

from builder.errors import ImageReferenceError

DOCKER_HUB = "docker.io"
_HUB_API = "registry-1.docker.io"  # where Docker Hub answers the API
# Grammar of the distribution project's reference package, which Docker uses.
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
    r"|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?"
)
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME = 255
_EXAMPLE = "write REGISTRY/NAME[:TAG][@sha256:DIGEST], for example registry.example.com/team/name"


@dataclass(frozen=True)
class Reference:
    """A repository of a registry and, where given, the tag and the digest in it."""

    registry: str
    """Host, or host:port; in lower case."""
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def name(self) -> str:
        """Without tag and digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def api_host(self) -> str:
        """Where the registry's API answers (another host for Docker Hub alone)."""
        return _HUB_API if self.registry == DOCKER_HUB else self.registry

    @property
    def loopback(self) -> bool:
        """True for this machine itself, the only place that may be asked without TLS."""
        return is_loopback(self.registry)

    def with_tag(self, tag: str) -> Reference:
        """Of the same repository. Raises ImageReferenceError."""
        if not _TAG.fullmatch(tag):
            raise ImageReferenceError(f"{tag!r} is not a tag", "letters, digits, `.`, `_` and `-`")
        return replace(self, tag=tag, digest="")

    def with_digest(self, digest: str) -> Reference:
        """Of the same repository. Raises ImageReferenceError."""
        if not is_digest(digest):
            raise ImageReferenceError(f"{digest!r} is not a digest", "`sha256:` and 64 hex digits")
        return replace(self, tag="", digest=digest)


def is_digest(text: str) -> bool:
    """`sha256:` and 64 lower-case hex digits; no other algorithm is taken."""
    return _DIGEST.fullmatch(text) is not None


def is_loopback(netloc: str) -> bool:
    """Whether HOST[:PORT] is this machine by its name alone (localhost, 127.0.0.0/8, ::1)."""
    host = (urlsplit(f"//{netloc}").hostname or "").lower()
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(url: str) -> SplitResult:
    """An address that a registry gave. Raises ValueError for what two readers may read differently.

    What `http://a\\@b/` names is `b` to the one and `a` to the other; nobody needs either.
    """
    parts = urlsplit(url)
    if "\\" in url or "@" in parts.netloc or not parts.hostname:
        raise ValueError("an address with a user, a backslash or no host")
    _ = parts.port  # raises ValueError itself
    return parts


def parse_reference(text: str) -> Reference:
    """Read a reference that names its registry. Raises ImageReferenceError.

    Docker completes a name without a registry to Docker Hub's. Here it is refused: a forgotten
    host must not send an image there.
    """
    rest, at, digest = text.strip().partition("@")
    if at and not is_digest(digest):
        raise _malformed(text, f"{digest!r} is not `sha256:` and 64 hex digits")
    host, slash, path = rest.partition("/")
    if "://" in rest:
        raise _malformed(text, "it is an address, not a name")
    if not slash or not (set(host) & set(".:") or host == "localhost" or host != host.lower()):
        raise _malformed(text, f"it names no registry (Docker Hub is {DOCKER_HUB}/...)")
    if not _HOST.fullmatch(host) or _port(host) is None:
        raise _malformed(text, f"{host!r} is not a host or host:port")
    repository, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _malformed(text, f"{tag!r} is not a tag")
    registry = DOCKER_HUB if host.lower() == "index.docker.io" else host.lower()
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if not _REPOSITORY.fullmatch(repository):
        raise _malformed(text, f"{repository!r} is not a repository (lower case only)")
    if len(registry) + 1 + len(repository) > _LONGEST_NAME:
        raise _malformed(text, f"its name is longer than {_LONGEST_NAME} characters")
    return Reference(registry, repository, tag, digest)


def _port(host: str) -> int | None:
    """The port (0: none given); None when it is out of range."""
    try:
        return urlsplit(f"//{host}").port or 0
    except ValueError:
        return None


def _malformed(text: str, why: str) -> ImageReferenceError:
    return ImageReferenceError(f"{text!r} is not a reference: {why}", _EXAMPLE)
