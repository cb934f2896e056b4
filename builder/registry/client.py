"""One repository of one registry: its manifests, blobs and tags."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from urllib.parse import urlencode

from builder.errors import (
    ImageAbsentError,
    RegistryUnreachableError,
    TagTakenError,
    TamperedError,
    TransferFailedError,
)
from builder.oci.model import Descriptor
from builder.registry import download, failures, manifests
from builder.registry.body import Meter, NoMeter
from builder.registry.failures import Patience
from builder.registry.probe import probe
from builder.registry.reference import Reference
from builder.registry.sessions import Session, forget_old
from builder.registry.transport import Transport
from builder.registry.upload import CHUNK, Upload

_LARGEST_READ = 64 << 20
_PAGE = 1000  # tags an answer
_PAGES = 1000


class Registry:
    """All calls may be made from several threads.

    Errors of every call: RegistryUnreachableError, RegistryRefusedError, RegistryFullError,
    TransferFailedError (retries are used up). What passes by itself is retried.
    """

    def __init__(
        self,
        reference: Reference,
        *,
        patience: Patience | None = None,
        stop: threading.Event | None = None,
        chunk: int = CHUNK,
        sessions: Path | None = None,
    ) -> None:
        """`sessions`: folder that remembers uploads under way from run to run."""
        self.reference = reference
        self._sessions = sessions
        if sessions is not None:
            forget_old(sessions)
        self._transport = Transport(reference, patience=patience or Patience(), stop=stop)
        self._chunk = chunk
        self._takes_chunks = True
        self._base = f"/v2/{reference.repository}"

    @property
    def plain(self) -> bool:
        """Whether it is reached without TLS (loopback alone)."""
        return self._transport.plain

    def stop(self) -> None:
        """End what other threads have under way here; the client is then of no more use."""
        self._transport.stop.set()

    def ping(self) -> None:
        """Ask whether a registry answers, and make use of the credentials."""
        transport = self._transport
        response = transport.request("GET", transport.url("/v2/"), "asking for the registry")
        if response.status_code == 400 and transport.plain and "HTTPS" in response.text:
            transport.use_tls()
            response = transport.request("GET", transport.url("/v2/"), "asking for the registry")
        if response.status_code != 200:
            raise RegistryUnreachableError(
                f"{self.reference.registry} does not answer as a registry: "
                f"GET /v2/ is HTTP {response.status_code}",
                "check the host and the port",
            )

    def check_writable(self) -> None:
        """The right to push, and some room. Nothing stays of the question."""
        probe(self._transport, self._transport.url(f"{self._base}/blobs/uploads/"))

    def manifest(self, tag_or_digest: str) -> tuple[Descriptor, bytes] | None:
        """A manifest or index, its bytes checked against the digest; None if there is none.

        Raises TamperedError.
        """
        transport = self._transport
        response = transport.request(
            "GET",
            transport.url(f"{self._base}/manifests/{tag_or_digest}"),
            f"reading the manifest {tag_or_digest}",
            headers={"Accept": manifests.ACCEPT},
        )
        if response.status_code == 404:
            return None
        if response.status_code != 200:
            raise failures.refused(response, transport.where, f"reading {tag_or_digest}")
        return manifests.read(response, transport.where, tag_or_digest)

    def has_blob(self, blob: Descriptor) -> bool:
        """Whether the repository has it, in the right size."""
        transport = self._transport
        response = transport.request("HEAD", self._blob_url(blob), "looking for a blob")
        length = response.headers.get("Content-Length", "")
        return response.status_code == 200 and length in ("", str(blob.size))

    def read_blob(self, blob: Descriptor) -> bytes:
        """A small blob (configuration, signature, SBOM). Raises TamperedError, ImageAbsentError."""
        if blob.size > _LARGEST_READ:
            raise ValueError(f"{blob.digest} has {blob.size} bytes: use fetch_blob")
        with tempfile.TemporaryDirectory(prefix="ddtree-blob-") as folder:
            return self.fetch_blob(blob, Path(folder) / "blob").read_bytes()

    def fetch_blob(self, blob: Descriptor, path: Path) -> Path:
        """Into a file, resumed and checked. Raises TamperedError, ImageAbsentError."""
        return download.fetch(self._transport, self._blob_url(blob), blob, path)

    def upload_blob(self, path: Path, blob: Descriptor, meter: Meter | None = None) -> bool:
        """Send a blob unless it is there; returns whether it was sent. Raises TamperedError."""
        count = meter or NoMeter()
        if self.has_blob(blob):
            count.skipped(blob.size)
            return False
        if path.stat().st_size != blob.size:
            raise TamperedError(
                f"{path} has {path.stat().st_size} bytes, its descriptor says {blob.size}",
                "the file is damaged: delete it, then run the command again",
            )
        upload = Upload(
            self._transport,
            self.reference.repository,
            path,
            blob,
            present=self.has_blob,
            meter=count,
            session=Session(self._sessions, f"{self.reference.name}@{blob.digest}"),
            whole=not self._takes_chunks,
            chunk=self._chunk,
        )
        asked_in_chunks = not upload.whole
        upload.run()
        if asked_in_chunks and upload.whole:
            self._takes_chunks = False
        return True

    def put_manifest(self, tag_or_digest: str, content: bytes, media_type: str) -> str:
        """Store a manifest; returns its digest. Raises TamperedError.

        A tag that exists is moved: `tag` is the careful way.
        """
        transport = self._transport
        digest = manifests.digest_of(content)
        if len(content) > manifests.LARGEST:
            raise ValueError(f"a manifest of {len(content)} bytes")
        self.check_writable()
        response = transport.request(
            "PUT",
            transport.url(f"{self._base}/manifests/{tag_or_digest}"),
            f"storing the manifest {tag_or_digest}",
            headers={"Content-Type": media_type},
            body=content,
        )
        if response.status_code not in (200, 201, 202):
            raise failures.refused(response, transport.where, f"storing {tag_or_digest}")
        stored = response.headers.get("Docker-Content-Digest", digest)
        if stored != digest:
            raise TamperedError(
                f"{transport.where} stored {stored} for {digest}", "do not use this registry"
            )
        self._read_back(digest)
        return digest

    def _read_back(self, digest: str) -> None:
        """A manifest that was taken and cannot be read is not there."""
        try:
            found = self.manifest(digest)
        except TransferFailedError as exc:
            raise TamperedError(
                f"{self.reference.name} took {digest} and cannot give it: {exc.what}",
                "its storage is damaged, as by a full disk: delete that manifest there, collect "
                "garbage (docker-registry garbage-collect), and push again",
            ) from None
        if found is None:
            raise ImageAbsentError(
                f"{self.reference.name} took {digest} and has no such manifest",
                "read the registry's log",
            )

    def tag(self, tag: str, manifest: Descriptor) -> bool:
        """Name a manifest that is there; returns False if it has that name already.

        A tag is never moved. The protocol has no conditional write, so it is read right before and
        after. Raises TagTakenError, ImageAbsentError.
        """
        if self.check_tag(tag, manifest.digest):
            return False
        found = self.manifest(manifest.digest)
        if found is None:
            raise ImageAbsentError(
                f"{self.reference.name} has no manifest {manifest.digest}", "push the image first"
            )
        self.put_manifest(tag, found[1], found[0].media_type)
        if not self.check_tag(tag, manifest.digest):
            raise ImageAbsentError(
                f"{self.reference.name}:{tag} was set and is not there", "read the registry's log"
            )
        return True

    def check_tag(self, tag: str, digest: str) -> bool:
        """True if the tag names `digest`, False if it is free. Raises TagTakenError."""
        found = self.manifest(tag)
        if found is None:
            return False
        if found[0].digest != digest:
            raise TagTakenError(
                f"{self.reference.name}:{tag} names {found[0].digest} already, not {digest}",
                "an immutable tag is not moved: the same inputs must give the same image; compare "
                "the two, or delete that tag in the registry if it must go",
            )
        return True

    def tags(self) -> list[str]:
        """All tags of the repository, sorted; empty if there is no such repository."""
        transport = self._transport
        names: set[str] = set()
        url = transport.url(f"{self._base}/tags/list?") + urlencode({"n": _PAGE})
        for _ in range(_PAGES):
            response = transport.request("GET", url, "listing tags")
            if response.status_code == 404:
                break
            if response.status_code != 200:
                raise failures.refused(response, transport.where, "listing tags")
            found, following = manifests.read_tags(response, transport.where)
            names.update(found)
            if not following:
                break
            url = transport.absolute(following, url)
        return sorted(names)

    def _blob_url(self, blob: Descriptor) -> str:
        return self._transport.url(f"{self._base}/blobs/{blob.digest}")
