from __future__ import annotations

from pathlib import Path

import pytest

from builder.engine import aptsources
from builder.engine.aptsources import (
    AptUnavailableError,
    Mirror,
    find_mirror,
    host_entries,
    host_mirror,
    parse_deb822,
    parse_one_line,
)

DEB822 = """\
# written by the installer
Types: deb deb-src
URIs: http://mirror.example/debian
# a comment inside a stanza
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb cdrom:[Debian 12]/ bookworm main
deb-src http://mirror.example/debian bookworm main
deb [ arch=amd64 signed-by=/etc/k.gpg ] http://mirror.example/debian/ bookworm main contrib # x
deb http://mirror.example/debian-security bookworm-security main
"""
UBUNTU = """\
Types: deb
URIs: http://archive.example/ubuntu
Suites: noble noble-updates
Components: main universe
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
THIRD_PARTY = """\
Types: deb
URIs: https://multimedia.example
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/multimedia.gpg

Types: deb
URIs: https://docker.example/linux/debian
Suites: bookworm
Components: stable
"""


@pytest.mark.parametrize("text", [DEB822, ONE_LINE], ids=["deb822", "one-line"])
def test_both_formats_name_the_archive_and_its_security_fixes(text: str) -> None:
    parse = parse_deb822 if text is DEB822 else parse_one_line
    mirror = find_mirror(parse(text))
    assert mirror is not None
    assert mirror.main.rstrip("/") == "http://mirror.example/debian"
    assert mirror.security == "http://mirror.example/debian-security"


def test_one_line_options_are_read_and_other_types_left_out() -> None:
    entries = parse_one_line(ONE_LINE)
    assert [e.signed_by for e in entries] == ["/etc/k.gpg", ""]
    assert entries[0].components == ("main", "contrib")


def test_ubuntu_has_no_debian_archive() -> None:
    assert find_mirror(parse_deb822(UBUNTU)) is None


@pytest.mark.parametrize("order", [[THIRD_PARTY, DEB822], [DEB822, THIRD_PARTY]])
def test_a_third_party_with_debians_suite_name_is_not_the_archive(order: list[str]) -> None:
    mirror = find_mirror([entry for text in order for entry in parse_deb822(text)])
    assert mirror is not None
    assert mirror.main == "http://mirror.example/debian"


@pytest.mark.parametrize("value", ["no", "false"])
def test_a_disabled_stanza_is_left_out(value: str) -> None:
    assert parse_deb822(f"Enabled: {value}\n" + UBUNTU) == []
    assert parse_deb822("Enabled: yes\n" + UBUNTU) != []


def test_an_inline_key_survives_into_the_private_source_list() -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQIN\n -----END PGP PUBLIC KEY BLOCK-----"
    text = "Types: deb\nURIs: http://m.example/debian\nSuites: trixie\nComponents: main\n"
    mirror = find_mirror(parse_deb822(f"{text}Signed-By:{key}\n"))
    assert mirror is not None
    assert f"Signed-By:{key}\n" in mirror.sources("trixie", "amd64")
    assert parse_deb822(mirror.sources("trixie", "amd64"))[0].signed_by == mirror.signed_by


def test_sources_carry_updates_and_security_of_the_asked_suite() -> None:
    mirror = Mirror("http://m.example/debian", "http://m.example/debian-security", "/k.gpg")
    entries = parse_deb822(mirror.sources("trixie", "amd64"))
    assert [e.suites for e in entries] == [("trixie", "trixie-updates"), ("trixie-security",)]
    (bare,) = parse_deb822(mirror.sources("trixie", "amd64", updates=False))
    assert bare.suites == ("trixie",)


def test_host_entries_reads_every_file_that_apt_reads(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://a.example/debian bookworm main\n")
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "b.list").write_text("deb http://b.example/debian bookworm main\n")
    (parts / "c.sources").write_text(DEB822)
    (parts / "d.sources.disabled").write_text(UBUNTU)
    uris = [entry.uris[0] for entry in host_entries(tmp_path)]
    assert uris[:2] == ["http://a.example/debian", "http://b.example/debian"]
    assert len(uris) == 4
    assert host_entries(tmp_path / "absent") == []


def test_the_variable_beats_the_host_and_may_name_security(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aptsources, "debian_keyring", lambda: Path("/k.gpg"))
    (tmp_path / "sources.list").write_text("deb http://a.example/debian bookworm main\n")
    both = {"DDTREE_DEBIAN_MIRROR": "http://m.example/debian http://m.example/debian-security"}
    assert host_mirror(tmp_path, both) == Mirror(
        "http://m.example/debian", "http://m.example/debian-security", "/k.gpg"
    )
    assert host_mirror(tmp_path, {}).main == "http://a.example/debian"


@pytest.mark.parametrize("value", ["not-a-uri", "http://a http://b http://c"])
def test_a_malformed_variable_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(AptUnavailableError, match="DDTREE_DEBIAN_MIRROR is not"):
        host_mirror(tmp_path, {"DDTREE_DEBIAN_MIRROR": value})


def test_without_an_archive_the_error_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(AptUnavailableError) as caught:
        host_mirror(tmp_path, {})
    assert "DDTREE_DEBIAN_MIRROR" in caught.value.what
    assert "DDTREE_DEBIAN_MIRROR" in caught.value.remedy


def test_without_a_keyring_nothing_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aptsources, "debian_keyring", lambda: None)
    with pytest.raises(AptUnavailableError, match="keyring") as caught:
        host_mirror(tmp_path, {"DDTREE_DEBIAN_MIRROR": "http://m.example/debian"})
    assert "debian-archive-keyring" in caught.value.remedy
