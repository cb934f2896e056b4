"""Whom we trust: the host's authorities and the engine's certificates of a registry."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import requests.adapters

CERTIFICATES = Path("/etc/docker/certs.d")  # HOST[:PORT]/*.crt, as the engine reads them
CONNECTIONS = 8


def tls_context(host: str, folder: Path = CERTIFICATES) -> ssl.SSLContext:
    """The host's trust (SSL_CERT_FILE applies), REQUESTS_CA_BUNDLE, and the engine's certs.d."""
    context = ssl.create_default_context()
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        bundle = os.environ.get(variable, "")
        if bundle and Path(bundle).is_file():
            context.load_verify_locations(cafile=bundle)
    own = folder / host
    if own.is_dir():
        for certificate in sorted(own.glob("*.crt")):
            context.load_verify_locations(cafile=str(certificate))
        for client in sorted(own.glob("*.cert")):
            context.load_cert_chain(str(client), str(client.with_suffix(".key")))
    return context


class Adapter(requests.adapters.HTTPAdapter):
    """With a TLS context of ours in place of the bundle that comes with requests."""

    def __init__(self, host: str) -> None:
        self._context = tls_context(host)
        super().__init__(pool_maxsize=CONNECTIONS)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options, ssl_context=self._context)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        return super().proxy_manager_for(proxy, **options, ssl_context=self._context)

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        conn.cert_reqs = "CERT_REQUIRED"
