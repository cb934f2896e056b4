"""Against docker-registry itself: bad lines, a full disk, a killed push, two at once.

docker-registry 2.8 cannot go on inside a chunk: a connection that breaks there costs what had
arrived of that blob, so the bound is one blob a break. Going on at a byte is in test_upload.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.errors import (
    RegistryFullError,
    RegistryRefusedError,
    TagTakenError,
    TamperedError,
    TransferFailedError,
)
from builder.oci.model import Descriptor, ImageLayout
from builder.project import default_project
from builder.registry.client import Registry
from builder.registry.layout import Progress, blob_bytes, push_layout
from builder.registry.reference import Reference, parse_reference
from tests.builder.local_registry import (
    PASSWORD,
    USER,
    LocalRegistry,
    password_auth,
    serve_registry,
    skip_or_fail,
)
from tests.builder.registry.conftest import QUICK, Login
from tests.builder.registry.layouts import make_layout, noise
from tests.builder.registry.proxy import bad_line

pytestmark = pytest.mark.docker

NAME = "team/app"
LAYER = 1 << 20
CHUNK = 128 << 10
LAYERS = 6


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> ImageLayout:
    layers = [noise(LAYER, seed=number) for number in range(LAYERS)]
    return make_layout(tmp_path_factory.mktemp("layout"), layers)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LocalRegistry]:
    with serve_registry(tmp_path / "registry") as registry:
        yield registry


def to(host: str) -> Registry:
    return Registry(Reference(host, NAME), patience=QUICK, chunk=CHUNK)


def arrived(registry: LocalRegistry, layout: ImageLayout) -> int:
    """Bytes of the layers that the registry has whole."""
    return sum(layer.size for layer in layout.layers() if registry.blob(layer.digest).exists())


def assert_whole(host: str, layout: ImageLayout, folder: Path) -> None:
    found = to(host).manifest(layout.manifest.digest)
    assert found is not None
    assert found[0] == layout.manifest
    for layer in layout.layers():
        to(host).fetch_blob(layer, folder / layer.digest)  # which checks the digest


def test_push_and_push_again(served: LocalRegistry, layout: ImageLayout, tmp_path: Path) -> None:
    progress = Progress(blob_bytes(layout))
    assert push_layout(layout, to(served.host), progress) == layout.manifest
    assert progress.sent_bytes == blob_bytes(layout)
    assert served.tags(NAME) == []
    assert to(served.host).tag("1-cu130-abc", layout.manifest)
    assert_whole(served.host, layout, tmp_path)

    again = Progress(blob_bytes(layout))
    push_layout(layout, to(served.host), again)
    assert not to(served.host).tag("1-cu130-abc", layout.manifest)
    assert (again.sent_bytes, again.blobs_skipped) == (0, LAYERS + 1)
    assert served.tags(NAME) == to(served.host).tags() == ["1-cu130-abc"]


def test_an_update_sends_what_is_new(
    served: LocalRegistry, layout: ImageLayout, tmp_path: Path
) -> None:
    push_layout(layout, to(served.host))
    old = [layout.blob(layer.digest).read_bytes() for layer in layout.layers()[:-1]]
    new = make_layout(tmp_path / "new", [*old, noise(10_000, seed=99)])
    progress = Progress(blob_bytes(new))
    push_layout(new, to(served.host), progress)
    assert progress.blobs_sent == 2  # the layer and the configuration
    assert progress.sent_bytes < 12_000


def test_an_immutable_tag(served: LocalRegistry, layout: ImageLayout, tmp_path: Path) -> None:
    registry = to(served.host)
    push_layout(layout, registry)
    registry.tag("1-cu130-abc", layout.manifest)
    other = make_layout(tmp_path / "other", [noise(1000, seed=7)])
    push_layout(other, registry)
    with pytest.raises(TagTakenError):
        registry.tag("1-cu130-abc", other.manifest)
    assert served.tag_link(NAME, "1-cu130-abc").read_text() == layout.manifest.digest


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_line_that_breaks_in_the_middle_of_chunks(
    served: LocalRegistry, layout: ImageLayout, tmp_path: Path, parallel: int
) -> None:
    with bad_line(served.port) as line:
        line.cuts = [CHUNK // 2, 5 * CHUNK + 999, LAYER // 3, LAYER - 5, 3 * CHUNK // 2]
        breaks = len(line.cuts)
        progress = Progress(blob_bytes(layout))
        push_layout(layout, to(line.host), progress, parallel=parallel)
        assert line.cut == breaks
        assert line.carried <= blob_bytes(layout) * 1.02 + breaks * LAYER
    assert_whole(served.host, layout, tmp_path)


def test_a_line_that_is_dead_and_then_mended(
    served: LocalRegistry, layout: ImageLayout, tmp_path: Path
) -> None:
    with bad_line(served.port) as line:
        line.allowance = 3 * LAYER + LAYER // 2
        with pytest.raises(TransferFailedError) as caught:
            push_layout(layout, to(line.host), parallel=1)
        assert "run the command again" in caught.value.remedy
        assert to(served.host).manifest(layout.manifest.digest) is None
        have = arrived(served, layout)
        assert have == 3 * LAYER
        line.allowance = None
        progress = Progress(blob_bytes(layout))
        push_layout(layout, to(line.host), progress)
        assert progress.skipped_bytes == have
        assert progress.sent_bytes == blob_bytes(layout) - have
    assert_whole(served.host, layout, tmp_path)


# A run in the background ignores SIGINT, and what it starts would too.
PUSH = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from builder.oci.model import Descriptor, ImageLayout
from builder.registry.layout import push_layout
from builder.registry.client import Registry
from builder.registry.reference import parse_reference
folder, digest, size, reference = sys.argv[1:]
manifest = Descriptor("application/vnd.oci.image.manifest.v1+json", digest, int(size))
push_layout(ImageLayout(Path(folder), manifest), Registry(parse_reference(reference)), parallel=2)
"""


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT])
def test_a_push_that_is_killed(
    served: LocalRegistry, layout: ImageLayout, tmp_path: Path, sig: signal.Signals
) -> None:
    """SIGINT ends it as well while the line holds its transfers."""
    with bad_line(served.port) as line:
        line.allowance, line.hold = 4 * LAYER, True
        manifest = layout.manifest
        argv = [str(layout.folder), manifest.digest, str(manifest.size), f"{line.host}/{NAME}"]
        child = subprocess.Popen(
            [sys.executable, "-c", PUSH, *argv], cwd=default_project().root, stderr=subprocess.PIPE
        )
        try:
            assert line.held.wait(60), child.communicate(timeout=5)
            child.send_signal(sig)
            child.communicate(timeout=60)
            assert child.returncode == -sig
        finally:
            child.kill()
            child.communicate()
    have = arrived(served, layout)
    assert LAYER <= have < LAYERS * LAYER
    assert to(served.host).manifest(manifest.digest) is None
    progress = Progress(blob_bytes(layout))
    push_layout(layout, to(served.host), progress)
    # One whose last byte had arrived may be there only a moment after the push has died.
    assert have <= progress.skipped_bytes <= have + LAYER
    assert progress.sent_bytes == blob_bytes(layout) - progress.skipped_bytes
    assert_whole(served.host, layout, tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[LocalRegistry, Callable[..., None]]]:
    """A registry on a disk of 3 MiB of its own, and how to run something where that is mounted."""
    folder = tmp_path / "small"
    (folder / "storage").mkdir(parents=True)
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", "--mount", *user, "sh", "-c"]
    mount = 'mount -t tmpfs -o size=3m none "$0" && exec "$@"'
    prefix = [*unshare, mount, str(folder / "storage")]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], check=False).returncode:
        skip_or_fail("a file system of a test's own cannot be mounted here")
    with serve_registry(folder, prefix=prefix) as registry:

        def inside(*argv: str) -> None:
            assert registry._child is not None
            enter = ["nsenter", "--mount", "--target", str(registry._child.pid)]
            enter += ["--user", "--preserve-credentials"] if user else []
            subprocess.run([*enter, *argv], check=True)

        yield registry, inside


def resized(registry: LocalRegistry, size: str) -> tuple[str, ...]:
    return ("mount", "-o", f"remount,size={size}", str(registry.storage))


def test_a_registry_that_is_full(
    small: tuple[LocalRegistry, Callable[..., None]], layout: ImageLayout, tmp_path: Path
) -> None:
    served, inside = small
    with pytest.raises(RegistryFullError, match="no room") as caught:
        push_layout(layout, to(served.host), parallel=2)
    assert "no tag was set" in caught.value.remedy
    assert to(served.host).manifest(layout.manifest.digest) is None
    assert to(served.host).tags() == []
    inside(*resized(served, "64m"))
    progress = Progress(blob_bytes(layout))
    push_layout(layout, to(served.host), progress)
    assert progress.skipped_bytes >= LAYER  # what had arrived whole is of use
    assert_whole(served.host, layout, tmp_path)


def test_a_registry_with_no_room_for_the_manifest(
    small: tuple[LocalRegistry, Callable[..., None]], tmp_path: Path
) -> None:
    served, inside = small
    layout = make_layout(tmp_path / "layout", [noise(1000)])
    registry = to(served.host)
    config = Descriptor.parse(layout.document()["config"])
    for blob in (*layout.layers(), config):
        registry.upload_blob(layout.blob(blob.digest), blob)
    inside("sh", "-c", 'cat /dev/zero >"$0" 2>/dev/null || true', f"{served.storage}/filler")
    content = layout.blob(layout.manifest.digest).read_bytes()
    with pytest.raises(RegistryFullError):
        registry.put_manifest("1-cu130-abc", content, layout.manifest.media_type)
    inside("rm", f"{served.storage}/filler")
    assert registry.manifest("1-cu130-abc") is None
    push_layout(layout, registry)
    assert registry.tag("1-cu130-abc", layout.manifest)


def test_two_at_once(served: LocalRegistry, layout: ImageLayout, tmp_path: Path) -> None:
    begin = threading.Barrier(2)

    def push(_: int) -> Descriptor:
        registry = to(served.host)
        begin.wait()
        pushed = push_layout(layout, registry)
        registry.tag("1-cu130-abc", pushed)
        return pushed

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(lambda _: push(_).digest, range(2))) == {layout.manifest.digest}
    assert served.tags(NAME) == ["1-cu130-abc"]
    assert_whole(served.host, layout, tmp_path)


def test_the_password_of_the_docker_configuration(
    tmp_path: Path, layout: ImageLayout, login: Login
) -> None:
    folder = tmp_path / "guarded"
    with serve_registry(folder, config=password_auth(folder)) as served:
        with pytest.raises(RegistryRefusedError) as caught:
            push_layout(layout, to(served.host))
        assert "docker login" in caught.value.remedy
        login(served.host, USER, "wrong")
        with pytest.raises(RegistryRefusedError):
            to(served.host).check_writable()
        login(served.host, USER, PASSWORD)
        to(served.host).check_writable()
        push_layout(layout, to(served.host))
        assert_whole(served.host, layout, tmp_path)


def test_a_registry_that_only_reads(tmp_path: Path, layout: ImageLayout) -> None:
    config = {"storage": {"maintenance": {"readonly": {"enabled": True}}}}
    with (
        serve_registry(tmp_path / "readonly", config=config) as served,
        pytest.raises(RegistryRefusedError, match="405"),
    ):
        to(served.host).check_writable()


def test_tampered_storage(served: LocalRegistry, layout: ImageLayout, tmp_path: Path) -> None:
    push_layout(layout, to(served.host))
    layer = layout.layers()[0]
    place = served.blob(layer.digest)
    place.write_bytes(b"\0" + place.read_bytes()[1:])
    with pytest.raises(TamperedError):
        to(served.host).fetch_blob(layer, tmp_path / "layer")
    served.blob(layout.manifest.digest).write_bytes(b'{"schemaVersion": 2}')
    with pytest.raises((TamperedError, TransferFailedError)):
        to(served.host).manifest(layout.manifest.digest)


def test_a_name_that_was_given_as_text(served: LocalRegistry, layout: ImageLayout) -> None:
    target = parse_reference(f"{served.host}/{NAME}")
    assert push_layout(layout, target) == layout.manifest
