"""Writing a planned layer while its content passes by in whatever order it comes."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from builder.errors import TamperedError
from builder.oci.compress import LayerSink
from builder.oci.entries import CHUNK
from builder.oci.plan import Item, PlannedLayer, Source
from builder.oci.tarformat import END, header, padding


class LayerWriter:
    """Items go out in the planned order. Content that comes before its turn waits in a scratch
    file; an engine's layers come in that very order, so there mostly is none."""

    def __init__(self, layer: PlannedLayer, sink: LayerSink, scratch: Path, epoch: int) -> None:
        self.layer = layer
        self.sink = sink
        self._items = layer.items
        self._next = 0
        self._epoch = epoch
        self._scratch = scratch
        self._parked: dict[Source, int] = {}
        self._park: BinaryIO | None = None

    def offer(self, source: Source, size: int, content: BinaryIO) -> None:
        """Content of one member, read to its end. Raises TamperedError if it is cut short."""
        self._advance()
        if self._next < len(self._items) and self._items[self._next].source == source:
            self._write(self._items[self._next], content)
            self._next += 1
            self._advance()
        else:
            if self._park is None:
                self._park = self._scratch.open("w+b")
            self._parked[source] = self._park.seek(0, 2)
            _copy(content, size, self._park)

    def finish(self) -> None:
        """End the layer. Raises TamperedError if content of it never came."""
        self._advance()
        if self._next < len(self._items):
            raise TamperedError(
                f"the engine's second answer lacks {self._items[self._next].path!r}",
                "save the image anew; nothing may change it meanwhile",
            )
        self.sink.write(END)
        self.sink.close()
        self.abandon()

    def abandon(self) -> None:
        """Close files and drop what is parked."""
        self.sink.abandon()
        if self._park is not None:
            self._park.close()
            self._park = None
            self._scratch.unlink(missing_ok=True)

    def _advance(self) -> None:
        while self._next < len(self._items):
            item = self._items[self._next]
            if item.source is None:
                self.sink.write(self._header(item))
            elif item.source in self._parked and self._park is not None:
                self._park.seek(self._parked.pop(item.source))
                self._write(item, self._park)
            else:
                return
            self._next += 1

    def _write(self, item: Item, content: BinaryIO) -> None:
        self.sink.write(self._header(item))
        _copy(content, item.entry.size, self.sink)
        self.sink.write(bytes(padding(item.entry.size)))

    def _header(self, item: Item) -> bytes:
        return item_header(item, self._epoch)


def item_header(item: Item, epoch: int) -> bytes:
    """What stands before an item's content."""
    # As BuildKit's rewrite-timestamp: what is older keeps its time, or the byte code that Debian
    # compiled would look stale to Python.
    mtime = min(max(item.entry.mtime, 0), epoch)
    return header(item.entry, path=item.path, kind=item.kind, target=item.target, mtime=mtime)


def _copy(source: BinaryIO, size: int, sink: LayerSink | BinaryIO) -> None:
    left = size
    while left:
        data = source.read(min(CHUNK, left))
        if not data:
            raise TamperedError("the saved image ends too early", "save the image anew")
        sink.write(data)
        left -= len(data)
