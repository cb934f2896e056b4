"""The text of a lock: what is written is read back, anything else is refused with its line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import LockDriftError
from builder.lock.entries import LockedFile, LockEntry, format_entries, parse_lock

A, B = "a" * 64, "b" * 64
HASH_A = f"    --hash=sha256:{A}"

_names = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,6}){0,2}", fullmatch=True)
_versions = st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,3}){0,3}(\+cu128)?", fullmatch=True)
_hashes = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)


@st.composite
def _entries(draw: st.DrawFn) -> list[LockEntry]:
    entries = []
    for name in draw(st.lists(_names, unique=True, max_size=6)):
        version = draw(_versions)
        hashes = tuple(draw(st.lists(_hashes, unique=True, min_size=1, max_size=3)))
        sizes = draw(
            st.lists(st.none() | st.integers(0, 10**10), min_size=len(hashes), max_size=len(hashes))
        )
        files = tuple(
            LockedFile(f"{name}-{version}-{number}.whl", digest, size)
            for number, (digest, size) in enumerate(zip(hashes, sizes, strict=True))
        )
        entries.append(LockEntry(name, version, hashes, files, tuple(draw(st.lists(_names)))))
    return sorted(entries, key=lambda e: e.name)


@settings(deadline=None)  # a busy machine is no failure
@given(_entries())
def test_what_is_written_is_read_back(entries: list[LockEntry]) -> None:
    assert parse_lock("# head\n" + format_entries(entries)) == entries


def test_the_form_is_a_requirements_file_with_hashes() -> None:
    files = (LockedFile("x-1.0-a.whl", A, 12), LockedFile("x-1.0-b.whl", B, None))
    text = format_entries([LockEntry("x", "1.0", (A, B), files, ("y", "z"))])
    assert text == (
        f"x==1.0 \\\n{HASH_A} \\\n    --hash=sha256:{B}\n"
        "    # file x-1.0-a.whl 12\n    # file x-1.0-b.whl -\n    # via y, z\n"
    )


def test_plain_requirements_files_can_be_read_too() -> None:
    (entry,) = parse_lock(f"x==1.0 \\\n{HASH_A}\n    # via\n    #   y\n")
    assert entry == LockEntry("x", "1.0", (A,))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"x>=1.0 \\\n{HASH_A}\n", 1),
        (f"x \\\n{HASH_A}\n", 1),
        (f"x==1.0 ; python_version < '3' \\\n{HASH_A}\n", 1),
        (f"\nx @ https://a.test/x.whl \\\n{HASH_A}\n", 2),
        ("--index-url https://a.test/simple\n", 1),
        (f"-e . \\\n{HASH_A}\n", 1),
        (f"x==1.0 \\\n{HASH_A}\n    --hash=md5:{A}\n", 3),
        (f"x==1.0 \\\n    --hash=sha256:{A[:-1]}\n", 2),
        (f"{HASH_A}\n", 1),
    ],
)
def test_anything_else_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(LockDriftError, match=rf"line {line}:"):
        parse_lock(text)


def test_an_entry_without_a_hash_is_refused() -> None:
    with pytest.raises(LockDriftError, match=r"x==1\.0 has no hash"):
        parse_lock(f"x==1.0\ny==1.0 \\\n{HASH_A}\n")
