"""One request to a registry: TLS, proxies, redirects, authorization, retries."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
import requests.adapters
import requests.utils

from builder import console
from builder.errors import RegistryRefusedError, RegistryUnreachableError
from builder.registry import failures
from builder.registry.auth import Authenticator
from builder.registry.failures import Patience, StoppedError, TransientError
from builder.registry.network import never_connected, reason
from builder.registry.reference import Reference, is_loopback, split_address
from builder.registry.tls import CERTIFICATES, CONNECTIONS, Adapter

_REDIRECTS = 5
_BLOCK = 64 << 10  # bytes: what is packed a thousandfold stays bearable
LARGEST_ANSWER = 16 << 20  # bytes; manifests have 4 MiB at most
Body = Callable[[], Any] | bytes | None


class Transport:
    """Requests to one registry, for one repository; shared by threads."""

    def __init__(
        self, reference: Reference, *, patience: Patience, stop: threading.Event | None = None
    ) -> None:
        self.where = reference.name
        self.patience = patience
        self.stop = stop or threading.Event()
        self._host = reference.api_host
        self._scheme = "http" if reference.loopback else "https"
        self._session = requests.Session()
        # Not the environment's: requests would also take credentials from ~/.netrc.
        self._session.trust_env = False
        self._session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS))
        self._answered = False
        self._secure = False
        self._lock = threading.Lock()
        self.auth = Authenticator(reference.registry, reference.repository, self._token_request)

    def use_tls(self) -> None:
        """On loopback, when plain HTTP turned out to be wrong."""
        self._scheme = "https"

    @property
    def plain(self) -> bool:
        """Whether requests go out without TLS."""
        return self._scheme == "http"

    def url(self, path: str) -> str:
        """Absolute address of a path of the registry."""
        return f"{self._scheme}://{self._host}{path}"

    def absolute(self, location: str, asked: str) -> str:
        """A Location header as an address that we may use. Raises RegistryRefusedError."""
        own = urlsplit(self.url("/"))
        try:
            found = split_address(urljoin(asked, location))
        except ValueError:
            raise RegistryRefusedError(
                f"{self.where} sends us to what is no address", "mend the registry's configuration"
            ) from None
        if found.scheme == "http" and own.scheme == "https" and found.hostname == own.hostname:
            # A registry behind a proxy that ends TLS often does not know its own scheme.
            return urlunsplit((own.scheme, own.netloc, found.path, found.query, ""))
        # Services of this machine are asked for a registry of this machine alone: another one would
        # have us send requests, deletions among them, to whatever listens here.
        here = is_loopback(self._host) and is_loopback(found.netloc)
        if found.scheme == "https" or (found.scheme == "http" and here):
            return urlunsplit(found)
        raise RegistryRefusedError(
            f"{self.where} sends us to an address without TLS: {found.scheme}://{found.netloc}",
            "mend the registry's external address",
        )

    def request(
        self,
        method: str,
        url: str,
        doing: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body = None,
        stream: bool = False,
    ) -> requests.Response:
        """`once`, again and again while its failure may pass. `doing`: a few words for errors."""
        fruitless = 0
        while True:
            try:
                return self.once(method, url, headers=headers, body=body, stream=stream)
            except TransientError as failure:
                fruitless += 1
                known = self._answered or not failure.unreachable
                if fruitless >= (self.patience.attempts if known else self.patience.unknown):
                    raise failures.give_up(self.where, doing, failure) from None
                self.wait(fruitless, failure, doing)

    def wait(self, fruitless: int, failure: TransientError, doing: str) -> None:
        """Say why, and pause before the next try. Raises StoppedError."""
        seconds = self.patience.pause(fruitless, failure, random.random)
        console.info(f"{doing}: {failure.reason}; trying again in {seconds:.1f} s")
        if self.stop.wait(seconds):
            raise StoppedError

    def once(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body = None,
        stream: bool = False,
    ) -> requests.Response:
        """One request, with redirects of reads followed and one challenge met.

        `body`: bytes, or a function that makes the body anew for each try. Statuses below 500
        other than 401, 403 and 429 come back to the caller. Raises TransientError, StoppedError,
        RegistryFullError, RegistryRefusedError, RegistryUnreachableError.
        """
        write = method not in ("GET", "HEAD")
        sent = dict(headers or {})
        target = url
        challenged = False
        for _ in range(_REDIRECTS):
            own = self._is_own(target)
            used = self.auth.header(write=write) if own else ""
            if used:
                sent["Authorization"] = used
            else:
                sent.pop("Authorization", None)
            data = body() if callable(body) else body
            response = self._send(method, target, headers=sent, data=data, stream=stream)
            if response.status_code == 401 and own and not challenged:
                challenged = True
                header = response.headers.get("WWW-Authenticate", "")
                response.close()
                if self.auth.meet(header, write=write, used=used):
                    continue
            if response.is_redirect and not write:
                target = self.absolute(response.headers["Location"], target)
                response.close()
                continue
            failures.check(response, self.where, self.auth.remedy)
            return response
        raise RegistryRefusedError(
            f"{self.where} redirects more than {_REDIRECTS} times", "mend the registry"
        )

    def _is_own(self, url: str) -> bool:
        parts = urlsplit(url)
        return (parts.scheme, parts.netloc) == (self._scheme, self._host)

    def _token_request(self, method: str, url: str, **options: Any) -> requests.Response:
        """Of the token service: no redirects, so that credentials stay with it."""
        response = self._send(method, url, **options)
        if response.status_code >= 500 or response.status_code == 429:
            wait = failures.retry_after(response)
            told = f"the token service answers HTTP {response.status_code}"
            raise TransientError(told, status=response.status_code, wait=wait)
        return response

    def _send(self, method: str, url: str, **options: Any) -> requests.Response:
        if self.stop.is_set():
            raise StoppedError
        if url.startswith("https:"):
            self._trust(urlsplit(url).netloc)
        headers = {
            "User-Agent": "ddtree-builder",
            "Accept-Encoding": "identity",
            **options.pop("headers", {}),
        }
        proxies = {} if is_loopback(urlsplit(url).netloc) else _proxies(url)
        try:
            response = self._session.request(
                method,
                url,
                headers=headers,
                proxies=proxies,
                allow_redirects=False,
                timeout=(self.patience.connect, self.patience.read),
                **{**options, "stream": True},
            )
            if response.status_code >= 400 or not options.get("stream"):
                self._read(response)
        except requests.exceptions.SSLError as exc:
            raise self._no_tls(url, exc) from None
        except requests.exceptions.InvalidProxyURL:
            raise RegistryUnreachableError(
                f"the proxy for {urlsplit(url).netloc} has no address", "mend HTTPS_PROXY"
            ) from None
        except ValueError:  # of an address or a header; requests looks at redirects by itself
            raise RegistryRefusedError(
                f"{self.where} sends us to what is no address", "mend the registry's configuration"
            ) from None
        except requests.RequestException as exc:
            unreachable = isinstance(exc, requests.ConnectionError) and never_connected(exc)
            raise TransientError(reason(exc), unreachable=unreachable) from None
        except OSError as exc:
            raise TransientError(reason(exc)) from None
        self._answered = True
        return response

    def _read(self, response: requests.Response) -> None:
        """The body, unless it is larger than any that the protocol has outside of blobs."""
        content = bytearray()
        for block in response.iter_content(_BLOCK):
            content += block
            if len(content) > LARGEST_ANSWER:
                response.close()
                raise RegistryRefusedError(
                    f"{self.where} answers with more than {LARGEST_ANSWER >> 20} MiB",
                    "is it an OCI registry? No manifest or list is that large",
                )
        response._content = bytes(content)  # as requests keeps what it has read itself

    def _trust(self, host: str) -> None:
        """Before the first request over TLS: reading the authorities takes a while."""
        with self._lock:
            if self._secure:
                return
            try:
                self._session.mount("https://", Adapter(self._host))
            except (OSError, ValueError) as exc:  # ssl.SSLError among them
                raise RegistryUnreachableError(
                    f"the certificates for {host} cannot be read: {reason(exc)}",
                    f"mend {CERTIFICATES}/{self._host}/, or the file in REQUESTS_CA_BUNDLE or "
                    "CURL_CA_BUNDLE",
                ) from None
            self._secure = True

    def _no_tls(self, url: str, exc: Exception) -> RegistryUnreachableError | TransientError:
        host = urlsplit(url).netloc
        words = reason(exc)
        if "EOF occurred" in words or "timed out" in words or "reset" in words:
            return TransientError(words)
        if "WRONG_VERSION_NUMBER" in words or "wrong version number" in words.lower():
            return RegistryUnreachableError(
                f"{host} answers without TLS",
                "plain HTTP is used for loopback addresses alone: give the registry a certificate, "
                "or reach it through a tunnel to 127.0.0.1",
            )
        return RegistryUnreachableError(
            f"{host} is not trusted: {words}",
            f"put the certificate of its authority into {CERTIFICATES}/{host}/ca.crt, or name it "
            "in SSL_CERT_FILE or REQUESTS_CA_BUNDLE; TLS is never skipped",
        )


def _proxies(url: str) -> dict[str, str]:
    found: dict[str, str] = requests.utils.get_environ_proxies(url)
    return found
