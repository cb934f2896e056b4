"""A program for an image without a base: Linux x86-64, static, a few hundred bytes."""

from __future__ import annotations

import struct

_BASE = 0x400000
_HEADERS = 64 + 56  # ELF header and one program header


def hello(text: str) -> bytes:
    """An ELF executable that writes `text` to standard output and exits with 0."""
    data = text.encode()
    # mov eax,1; mov edi,1; lea rsi,[rip+16]; mov edx,len; syscall; mov eax,60; xor edi,edi; syscall
    code = b"\xb8\x01\x00\x00\x00\xbf\x01\x00\x00\x00\x48\x8d\x35" + struct.pack("<i", 16)
    code += b"\xba" + struct.pack("<I", len(data)) + b"\x0f\x05"
    code += b"\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05"
    size = _HEADERS + len(code) + len(data)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + code + data
