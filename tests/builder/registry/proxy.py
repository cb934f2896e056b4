"""A bad line: a TCP proxy that cuts or holds connections after so many bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_BLOCK = 16 << 10


@dataclass
class BadLine:
    """What goes to the registry is counted; what comes back passes."""

    target: tuple[str, int]
    host: str = ""
    cuts: list[int] = field(default_factory=list)
    """For the next connections: bytes after which each is cut."""
    allowance: int | None = None
    """Bytes for all connections together; then everything is cut for ever (or held)."""
    hold: bool = False
    carried: int = 0
    cut: int = 0
    """Connections that were cut."""
    held: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    listener: socket.socket | None = None

    def end(self) -> None:
        """No new connections: they are refused."""
        assert self.listener is not None
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def serve(self) -> None:
        assert self.listener is not None
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connection, args=(client,), daemon=True).start()

    def _connection(self, client: socket.socket) -> None:
        with self.lock:
            limit = self.cuts.pop(0) if self.cuts else None
        with client, socket.create_connection(self.target) as server:
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            passed = 0
            with suppress(OSError):
                while block := client.recv(_BLOCK):
                    if limit is not None:
                        block = block[: limit - passed]
                    part = self._take(len(block))
                    server.sendall(block[:part])
                    passed += part
                    if part < len(block) or passed == limit:
                        if self.hold:
                            self.held.set()
                            self.released.wait()
                        with self.lock:
                            self.cut += 1
                        break
            for end in (server, client):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            back.join()

    def _take(self, count: int) -> int:
        with self.lock:
            if self.allowance is not None:
                count = min(count, self.allowance)
                self.allowance -= count
            self.carried += count
            return count


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(_BLOCK):
            sink.sendall(block)
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def bad_line(port: int) -> Iterator[BadLine]:
    """To a port of 127.0.0.1, for the time of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = BadLine(("127.0.0.1", port), f"127.0.0.1:{listener.getsockname()[1]}")
        line.listener = listener
        threading.Thread(target=line.serve, daemon=True).start()
        try:
            yield line
        finally:
            line.released.set()
            line.end()
