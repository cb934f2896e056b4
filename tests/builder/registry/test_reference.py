from __future__ import annotations

import pytest

from builder.errors import ImageReferenceError
from builder.registry.reference import Reference, is_loopback, parse_reference

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("registry.example.com/team/app", Reference("registry.example.com", "team/app")),
        ("localhost/app:v1", Reference("localhost", "app", "v1")),
        ("127.0.0.1:5000/app", Reference("127.0.0.1:5000", "app")),
        (f"h:5/a/b__c/d-e.f:T_1@{DIGEST}", Reference("h:5", "a/b__c/d-e.f", "T_1", DIGEST)),
        (f"[::1]:5000/app@{DIGEST}", Reference("[::1]:5000", "app", "", DIGEST)),
        ("docker.io/team/app:v1", Reference("docker.io", "team/app", "v1")),
        ("GHCR.io/team/app", Reference("ghcr.io", "team/app")),
    ],
)
def test_reads_and_writes(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected
    assert parse_reference(str(expected)) == expected


def test_docker_hub_has_its_own_rules() -> None:
    hub = parse_reference("docker.io/debian")
    assert (str(hub), hub.api_host) == ("docker.io/library/debian", "registry-1.docker.io")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ddtree-appliance:cu130", "names no registry"),
        ("team/app", "names no registry"),
        ("https://registry.example.com/app", "an address"),
        ("registry.example.com/App", "lower case"),
        ("registry.example.com/", "lower case"),
        ("registry.example.com/a//b", "lower case"),
        ("registry.example.com/a:", "not a tag"),
        ("registry.example.com/a:-x", "not a tag"),
        ("registry.example.com/a:b:c", "not a tag"),
        ("registry.example.com/a@sha256:abc", "64 hex"),
        (f"registry.example.com/a@sha512:{'a' * 128}", "64 hex"),
        ("registry.example.com/a@", "64 hex"),
        ("registry.example.com:99999/a", "not a host"),
        ("user:secret@registry.example.com/a", "64 hex"),
        ("registry..example.com/a", "not a host"),
        ("registry.example.com/../a", "lower case"),
        ("registry.example.com/a b", "lower case"),
        ("registry.example.com/" + "a" * 250, "longer than 255"),
        ("", "names no registry"),
    ],
)
def test_refuses(text: str, why: str) -> None:
    with pytest.raises(ImageReferenceError, match=why):
        parse_reference(text)


@pytest.mark.parametrize("host", ["localhost", "localhost:5000", "127.9.9.9:1", "[::1]:5000"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["localhost.example.com", "127.0.0.1.example.com:5000", "128.0.0.1", "10.0.0.1:5000"]
)
def test_not_this_machine(host: str) -> None:
    assert not is_loopback(host)


def test_other_tag_and_digest() -> None:
    here = parse_reference("localhost/app:v1")
    assert str(here.with_digest(DIGEST)) == f"localhost/app@{DIGEST}"
    assert str(here.with_tag("v2")) == "localhost/app:v2"
    for bad in ("a/b", "", "x" * 129):
        with pytest.raises(ImageReferenceError):
            here.with_tag(bad)
    with pytest.raises(ImageReferenceError):
        here.with_digest("sha256:0")
