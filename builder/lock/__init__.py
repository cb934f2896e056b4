"""Locks: every distribution of an image by exact version and hash, resolved from the pins."""

from builder.lock.entries import LockedFile, LockEntry, parse_lock
from builder.lock.files import check_lock, read_lock, write_lock
from builder.lock.resolver import lock_command, resolve

__all__ = [
    "LockEntry",
    "LockedFile",
    "check_lock",
    "lock_command",
    "parse_lock",
    "read_lock",
    "resolve",
    "write_lock",
]
