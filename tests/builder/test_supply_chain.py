"""From an engine through a real registry to an engine: pushed, signed, verified, pulled by digest."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import docker.errors
import pytest

from builder.engine import Engine, acquire
from builder.errors import TamperedError, UnsignedError
from builder.inside.inventory import encode
from builder.local_image import LocalImage
from builder.project import Project, default_project
from builder.push import PushResult, Signing, open_registry, push, ready_to_sign
from builder.registry.client import Registry
from builder.registry.reference import Reference, parse_reference
from builder.supply.inventory import PATH
from builder.supply.report import Report
from builder.supply.verify import Demand, Signer, verify
from tests.builder.bundle.hello import hello
from tests.builder.local_registry import LocalRegistry, serve_registry
from tests.builder.oci.archives import Member, save
from tests.builder.supply.made import LABELS
from tests.builder.supply.parts import BUILD_ID, inventory, labels, target
from tests.builder.supply.real import key_pair, real_cosign

pytestmark = pytest.mark.docker

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
TARGET = target("cu130")
# As large as to tell a layer from what names it.
BULK = os.urandom(8 << 20)
REVISION = labels(TARGET)["org.opencontainers.image.revision"]


def in_network_of(engine: Engine, call: Callable[[], T]) -> T:
    """The result of `call`, run where the engine's ports are: what it starts is there too.

    A thread of its own enters the namespace; this process stays where it is.
    """
    if not engine.enter:
        return call()
    (path,) = (word.partition("=")[2] for word in engine.enter if word.startswith("--net="))
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            namespace = os.open(path, os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns", path)
            finally:
                os.close(namespace)
            outcome.append(call())
        except BaseException as exc:
            failure.append(exc)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


@dataclass(frozen=True)
class World:
    """An engine, a registry that it reaches, and a key."""

    project: Project
    engine: Engine
    registry: LocalRegistry
    signing: Signing
    signer: Signer
    scratch: Path

    @property
    def repository(self) -> Reference:
        return parse_reference(f"{self.registry.host}/chain/ddtree-appliance")

    def load(self, *, overlay: bytes, build_id: str) -> LocalImage:
        """An image with all that a push looks at: a large layer, and a small one on top of it."""
        held = inventory(TARGET, build_id=build_id)
        ours = {**LABELS, **labels(TARGET, build_id=build_id)}
        below = [
            Member("bin/"),
            Member("bin/hello", hello("it runs\n"), mode=0o755),
            Member("weights", BULK),
        ]
        above = [
            Member("opt/"),
            Member("opt/ddtree/"),
            Member(PATH.lstrip("/"), encode(held)),
            Member("opt/ddtree/overlay.py", overlay),
        ]
        config = {"Entrypoint": ["/bin/hello"], "Labels": ours}
        name = f"ddtree-chain-test:{build_id}"
        (image,) = self.engine.client.images.load(save([below, above], tag=name, config=config))
        tag = f"0.1.0-cu130-{build_id}"
        return LocalImage(name, str(image.id), tag, build_id, REVISION)

    def push(self, image: LocalImage, signing: Signing | None) -> PushResult:
        def run() -> PushResult:
            registry = open_registry(self.project, self.repository)
            return push(self.project, TARGET, self.engine, image, registry, signing)

        return in_network_of(self.engine, run)

    def verify(self, reference: str, **demand: Any) -> Report:
        """What the registry has, held against the key."""

        def run() -> Report:
            wanted = Demand(self.scratch, **demand)
            prefix = TARGET.shared.project.label_prefix
            return verify(parse_reference(reference), self.signer, wanted, label_prefix=prefix)

        return in_network_of(self.engine, run)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    project = default_project()
    folder = tmp_path_factory.mktemp("chain")
    with acquire(project, TARGET.shared, "auto", need_gib=1) as engine:
        elsewhere = bool(engine.enter)
        with serve_registry(folder / "registry", prefix=engine.enter, elsewhere=elsewhere) as here:
            key, public = key_pair(real_cosign(), folder / "keys", "chain")
            signing = ready_to_sign(project, TARGET.shared, key)
            signer = Signer(signing.cosign, public)
            yield World(project, engine, here, signing, signer, folder)
        for image in engine.client.images.list():
            if any("ddtree-chain-test:" in tag or "/chain/" in tag for tag in image.tags):
                with suppress(docker.errors.APIError):
                    engine.client.images.remove(str(image.id), force=True)


def test_an_image_goes_from_engine_to_engine_and_cannot_be_altered_on_the_way(world: World) -> None:
    first = world.load(overlay=b"one", build_id=BUILD_ID)
    pushed = world.push(first, world.signing)
    assert pushed.tag_set and pushed.signed
    for report in (world.verify(pushed.reference, layers=True), world.verify(pushed.tag)):
        assert report.error() is None, report.table()

    # The engine pulls what was signed, and it runs.
    world.engine.client.images.remove(first.id, force=True)
    pulled = world.engine.client.images.pull(pushed.reference)
    assert pushed.reference in pulled.attrs["RepoDigests"]
    ran = world.engine.client.containers.run(str(pulled.id), network_mode="none", remove=True)
    assert ran == b"it runs\n"
    world.engine.client.images.remove(str(pulled.id), force=True)

    # An update of the overlay alone sends its own layer and what names it.
    second = world.load(overlay=b"two", build_id="fedcba9876543210")
    update = world.push(second, world.signing)
    assert update.digest != pushed.digest
    assert update.bytes_skipped > len(BULK) > 100 * update.bytes_sent
    again = world.push(second, world.signing)
    assert (again.digest, again.bytes_sent, again.tag_set) == (update.digest, 0, False)

    # Neither signature covers an unsigned push, nor an altered layer.
    third = world.load(overlay=b"three", build_id="0000000000000003")
    unsigned = world.push(third, None)
    assert type(world.verify(unsigned.reference).error()) is UnsignedError
    layers = in_network_of(world.engine, lambda: _layers(world, update.digest))
    blob = world.registry.blob(layers[-1])
    blob.write_bytes(bytes([blob.read_bytes()[0] ^ 1]) + blob.read_bytes()[1:])
    assert type(world.verify(update.reference, layers=True).error()) is TamperedError
    world.engine.client.images.remove(second.id, force=True)
    with pytest.raises(docker.errors.APIError):
        world.engine.client.images.pull(update.reference)


def _layers(world: World, digest: str) -> list[str]:
    found = Registry(world.repository).manifest(digest)
    assert found is not None
    return [layer["digest"] for layer in json.loads(found[1])["layers"]]
