"""A real SGLang server in the image, on the CPU, answering over HTTP.

The tiny model is made on the spot; the reference is Transformers' own greedy continuation. What
SGLang 0.5.17 lacks on a CPU is the overlay's CPU proof path, switched on by DDTREE_CPU_PROOF=1.
DDTREE itself on a CPU is in tests/e2e.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from tests.image.conftest import HERE, Ran

pytestmark = pytest.mark.docker

# Only a bound, so that a hang ends: the server is up in well under a minute on two cores.
START_SECONDS = 420
CPU_ARGUMENTS = (
    "--device cpu --attention-backend ddtree_cpu --dtype float32 --grammar-backend none "
    "--disable-cuda-graph --cuda-graph-backend-prefill disabled --disable-overlap-schedule "
    "--max-total-tokens 2048 --mem-fraction-static 0.1"
).split()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    folder.chmod(0o777)
    for parent in folder.parents[:2]:
        parent.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def reference(engine: docker.DockerClient, image: str, models: Path) -> dict[str, Any]:
    """Make the model with the image's own Transformers; returns its greedy continuation."""
    output = engine.containers.run(
        image,
        ["python", "/tests/make_tiny_model.py", "/models/tiny"],
        remove=True,
        network_mode="none",
        stderr=False,
        volumes={
            str(HERE): {"bind": "/tests", "mode": "ro"},
            str(models): {"bind": "/models", "mode": "rw"},
        },
    )
    document: dict[str, Any] = json.loads(bytes(output).decode().splitlines()[-1])
    return document


@pytest.fixture(scope="module")
def server(
    engine: docker.DockerClient,
    image: str,
    models: Path,
    reference: dict[str, Any],
    bytecode: dict[str, Any],
) -> Iterator[str]:
    container = engine.containers.run(
        image,
        ["serve", "--model-path", "/models/tiny", *CPU_ARGUMENTS],
        detach=True,
        ports={"30000/tcp": ("127.0.0.1", 0)},
        environment={"DDTREE_CPU_PROOF": "1", **bytecode["environment"]},
        shm_size="1g",
        volumes={str(models): {"bind": "/models", "mode": "ro"}, **bytecode["volumes"]},
    )
    try:
        container.reload()
        published: Any = container.ports["30000/tcp"]
        port = published[0]["HostPort"]
        address = f"http://127.0.0.1:{port}"
        wait_until_ready(container, address)
        yield address
    finally:
        container.remove(force=True)


def wait_until_ready(container: Container, address: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        container.reload()
        if container.status != "running":
            break
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    pytest.fail("the server did not come up:\n" + container.logs().decode()[-6000:])


def post(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        address + path,
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


def test_openai_completion_is_the_references_text(server: str, reference: dict[str, Any]) -> None:
    answer = post(
        server,
        "/v1/completions",
        {
            "model": "tiny",
            "prompt": reference["prompt"],
            "temperature": 0,
            "max_tokens": len(reference["tokens"]),
        },
    )
    assert answer["choices"][0]["text"] == reference["text"]
    assert answer["usage"]["completion_tokens"] == len(reference["tokens"])


def test_generated_tokens_are_the_references(server: str, reference: dict[str, Any]) -> None:
    answer = post(
        server,
        "/generate",
        {
            "text": reference["prompt"],
            "sampling_params": {"temperature": 0, "max_new_tokens": len(reference["tokens"])},
        },
    )
    assert answer["output_ids"] == reference["tokens"]


def test_without_the_proof_path_ddtree_on_a_cpu_is_refused_before_weights_load(
    run_image: Callable[..., Ran],
    models: Path,
    reference: dict[str, Any],
    bytecode: dict[str, Any],
) -> None:
    """Asked for DDTREE where it cannot run, the server never runs something else instead: the
    doctor refuses the drafter that is none, and without the doctor SGLang's own gate the device."""
    arguments = [
        *("serve", "--model-path", "/models/tiny", "--speculative-algorithm", "DDTREE"),
        *("--speculative-draft-model-path", "/models/tiny", "--speculative-ddtree-budget", "16"),
        *(a if a != "ddtree_cpu" else "triton" for a in CPU_ARGUMENTS),
    ]
    options: dict[str, Any] = {
        "environment": bytecode["environment"],
        "volumes": {str(models): {"bind": "/models", "mode": "ro"}, **bytecode["volumes"]},
    }
    checked = run_image(*arguments, **options)
    assert checked.returncode == 74, checked.stderr[-2000:]
    assert "ERROR DRF001 " in checked.stderr
    unchecked = run_image(*arguments, "--skip-checks", "drafter,overlay", **options)
    assert unchecked.returncode == 82, unchecked.stderr[-2000:]
    refusals = [line for line in unchecked.stderr.splitlines() if "--device" in line]
    assert any("DDTREE" in line for line in refusals), unchecked.stderr[-2000:]
    for ran in (checked, unchecked):
        assert "Load weight" not in ran.stdout + ran.stderr
