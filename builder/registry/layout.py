"""An OCI image layout into a registry: blobs in parallel, then the manifest by digest."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field

from builder import console
from builder.oci.model import Descriptor, ImageLayout
from builder.registry.client import Registry
from builder.registry.failures import StoppedError
from builder.registry.reference import Reference

PARALLEL = 3  # as docker: more gains little and costs a slow line its timeouts
_REPORT_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_STOP_SECONDS = 5.0  # for each other transfer to see that one has failed


@dataclass
class Progress:
    """What went out and what need not; a line now and then. For several threads."""

    total: int
    """Bytes of all blobs."""
    sent_bytes: int = 0
    """On the wire, what was sent again included."""
    skipped_bytes: int = 0
    blobs_sent: int = 0
    blobs_skipped: int = 0
    _begin: float = field(default_factory=time.monotonic)
    _shown: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sent(self, count: int) -> None:
        """Part of Meter."""
        with self._lock:
            self.sent_bytes += count
            now = time.monotonic()
            if now - self._shown < _REPORT_SECONDS:
                return
            self._shown = now
            rate = self.sent_bytes / (now - self._begin) / 1e6
            have = (self.sent_bytes + self.skipped_bytes) / 1e6
        console.info(f"pushing: {have:.0f} of {self.total / 1e6:.0f} MB ({rate:.1f} MB/s)")

    def skipped(self, count: int) -> None:
        """Part of Meter."""
        with self._lock:
            self.skipped_bytes += count
            self.blobs_skipped += 1

    def done(self) -> None:
        """One blob that was sent is there."""
        with self._lock:
            self.blobs_sent += 1


def push_layout(
    layout: ImageLayout,
    target: Reference | Registry,
    progress: Progress | None = None,
    *,
    parallel: int = PARALLEL,
) -> Descriptor:
    """Send what the registry lacks, layers first, then configuration and manifest; sets no tag.

    The manifest goes last: an image that is not whole has no name and cannot be pulled. Raises the
    errors of Registry, and TamperedError for a damaged layout.
    """
    registry = target if isinstance(target, Registry) else Registry(target)
    document = layout.document()
    layers = {layer.digest: layer for layer in layout.layers()}  # one blob may be two layers
    config = Descriptor.parse(document["config"])
    meter = progress or Progress(blob_bytes(layout))
    _send_all(registry, layout, list(layers.values()), meter, parallel)
    _send(registry, layout, config, meter)
    content = layout.blob(layout.manifest.digest).read_bytes()
    registry.put_manifest(layout.manifest.digest, content, layout.manifest.media_type)
    return layout.manifest


def blob_bytes(layout: ImageLayout) -> int:
    """Bytes of layers and configuration, each blob once."""
    blobs = {layer.digest: layer.size for layer in layout.layers()}
    config = Descriptor.parse(layout.document()["config"])
    return sum({**blobs, config.digest: config.size}.values())


def tag(reference: Reference, name: str) -> bool:
    """Name the manifest of `reference` (which has a digest); see Registry.tag."""
    registry = Registry(reference)
    return registry.tag(name, Descriptor("", reference.digest, 0))


def _send(registry: Registry, layout: ImageLayout, blob: Descriptor, meter: Progress) -> None:
    if registry.upload_blob(layout.blob(blob.digest), blob, meter):
        meter.done()


def _send_all(
    registry: Registry,
    layout: ImageLayout,
    blobs: list[Descriptor],
    meter: Progress,
    parallel: int,
) -> None:
    """The first failure stops the others; what they had sent whole stays.

    Daemon threads: an interrupt does not wait for one that a dead line holds.
    """
    waiting: queue.SimpleQueue[Descriptor] = queue.SimpleQueue()
    for blob in sorted(blobs, key=lambda blob: -blob.size):
        waiting.put(blob)
    failed: list[BaseException] = []

    def work() -> None:
        while not failed:
            try:
                blob = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                _send(registry, layout, blob, meter)
            except BaseException as exc:
                failed.append(exc)
                registry.stop()

    workers = [threading.Thread(target=work, daemon=True) for _ in range(parallel)]
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers) and not failed:
            for worker in workers:
                worker.join(_LOOK_SECONDS)
        for worker in workers:
            worker.join(_STOP_SECONDS)
    except BaseException:
        registry.stop()
        raise
    if failed:
        real = [exc for exc in failed if not isinstance(exc, StoppedError)]
        raise (real or failed)[0]
