from __future__ import annotations

import gzip
from pathlib import Path
from shutil import which

import pytest

from builder.engine.aptroot import kept_settings, open_suite, parse_print_uris
from builder.engine.aptsources import AptUnavailableError, Mirror, debian_keyring, host_mirror

needs_apt = pytest.mark.skipif(which("apt-get") is None, reason="apt-get is not installed")


def test_only_what_reaches_the_mirror_is_taken_over() -> None:
    dump = "\n".join(
        [
            'Acquire::http::Proxy "http://proxy.example:3128";',
            'Acquire::https::CAInfo "/etc/ca.pem";',
            'Acquire::AllowInsecureRepositories "true";',
            'Acquire::AllowDowngradeToInsecureRepositories "true";',
            'APT::Get::AllowUnauthenticated "true";',
            'APT::Update::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb || true";',
            'Dir::Etc::trusted "/elsewhere";',
        ]
    )
    assert kept_settings(dump).splitlines() == dump.splitlines()[:2]


def test_print_uris_gives_name_version_and_hash() -> None:
    sha = "ab" * 32
    text = (
        f"'http://m/pool/r/runc_1.1.5%2bds1-1_amd64.deb' runc_1.1.5+ds1-1_amd64.deb 27 SHA256:{sha}"
        f"\n'http://m/pool/l/lib_1%3a2_all.deb' libx_1%3a2~rc1_all.deb 3 SHA256:{sha}\nnoise\n"
    )
    libx, runc = parse_print_uris(text)
    assert (runc.name, runc.version, runc.size, runc.sha256) == ("runc", "1.1.5+ds1-1", 27, sha)
    assert (libx.name, libx.version, libx.filename) == ("libx", "1:2~rc1", "libx_1%3a2~rc1_all.deb")


@needs_apt
def test_an_unsigned_archive_is_refused_whatever_the_host_allows(tmp_path: Path) -> None:
    """A local archive without a signature: the index must not be believed."""
    suite = tmp_path / "debian/dists/trixie"
    binary = suite / "main/binary-amd64"
    binary.mkdir(parents=True)
    (binary / "Packages.gz").write_bytes(gzip.compress(b""))
    (suite / "Release").write_text("Suite: trixie\nCodename: trixie\nComponents: main\n")
    tmp_path.chmod(0o755)
    keyring = debian_keyring() or Path("/usr/share/keyrings/none.gpg")
    mirror = Mirror(f"file://{tmp_path}/debian", None, str(keyring))
    with (
        pytest.raises(AptUnavailableError, match="is not signed") as caught,
        open_suite(mirror, "trixie"),
    ):
        pass
    assert "debian-archive-keyring" in caught.value.remedy


@needs_apt
@pytest.mark.network
def test_debian_is_read_through_its_signed_index(tmp_path: Path) -> None:
    with open_suite(host_mirror(), "bookworm") as suite:
        (runc,) = suite.resolve(["runc"])
        assert "libseccomp2" in suite.libraries_of(["runc"])
        assert "libc6" not in suite.libraries_of(["runc"])
        (path,) = suite.download([runc], tmp_path)
        assert path.stat().st_size == runc.size
        with pytest.raises(AptUnavailableError, match="no-such-package"):
            suite.resolve(["no-such-package"])
