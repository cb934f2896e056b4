"""What the self-test does where a GPU's device node is visible; the servers are stubs."""

from __future__ import annotations

import json

import pytest

from ddtree_overlay.selftest.device import choose_device
from ddtree_overlay.serve.errors import SelftestNotRunError
from tests.overlay.selftest.conftest import Bench


def test_a_gpu_is_used_as_it_is_served_on(bench: Bench) -> None:
    bench.gpu()
    done = bench.run("--json", "--tp", "2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["claim"].startswith("self-test passed on GPU")
    assert any("tests/gpu" in one for one in found["not_proven"])
    assert any("seeded" in one for one in found["not_proven"])
    assert "sampled" not in {check["name"] for check in found["checks"]}
    for name in ("plain", "tree"):
        argv = bench.started(name)["argv"]
        environment = bench.started(name)["environment"]
        assert argv[argv.index("--attention-backend") + 1] == "flashinfer"
        assert argv[argv.index("--tp-size") + 1] == "2"
        assert "--disable-cuda-graph" not in argv
        assert not {"DDTREE_CPU_PROOF", "TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES"} & set(
            environment
        )


def test_the_cpu_can_be_chosen_beside_a_gpu(bench: Bench) -> None:
    bench.gpu()
    done = bench.run("--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["device"]["kind"] == "cpu"
    assert bench.started("tree")["environment"]["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(("gap", "code"), [("0.1", 0), ("0.5", 77)])
def test_only_a_near_tie_may_part(bench: Bench, gap: str, code: int) -> None:
    bench.gpu()
    done = bench.run("--json", fault="chat", STUB_GAP=gap)
    # Both chats part, of which one may: ties are an exception.
    assert done.returncode == 77
    done = bench.run("--json", fault="token", STUB_GAP=gap)
    assert done.returncode == code, done.stdout
    check = next(c for c in json.loads(done.stdout)["checks"] if c["name"] == "alone")
    assert ("ties" in check) == (code == 0)
    assert ("wrong" in check) == (code == 77)


def test_an_answer_that_is_shorter_is_no_tie(bench: Bench) -> None:
    bench.gpu()
    assert bench.run("--json", fault="ends", STUB_GAP="0.0").returncode == 77


def test_a_cpu_knows_no_ties(bench: Bench) -> None:
    assert bench.run("--json", fault="token", STUB_GAP="0.0").returncode == 77


@pytest.mark.parametrize(
    ("asked", "nodes", "visible", "chosen"),
    [
        ("auto", [], None, "cpu"),
        ("auto", ["nvidiactl", "nvidia-uvm"], None, "cpu"),
        ("auto", ["nvidiactl", "nvidia0"], None, "cuda"),
        ("auto", ["nvidia7"], "7", "cuda"),
        ("auto", ["dxg"], None, "cuda"),
        ("auto", ["nvidia0"], "", "cpu"),
        ("auto", ["nvidia0"], "-1", "cpu"),
        ("cpu", ["nvidia0"], None, "cpu"),
        ("cuda", ["nvidia0"], None, "cuda"),
        ("cuda", [], None, None),
        ("cuda", ["nvidia0"], "", None),
    ],
)
def test_the_device_follows_what_is_visible(
    bench: Bench, asked: str, nodes: list[str], visible: str | None, chosen: str | None
) -> None:
    for node in nodes:
        (bench.root / "host/dev" / node).touch()
    environment = {"DDTREE_HOST_ROOT": str(bench.root / "host")}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    if chosen is None:
        with pytest.raises(SelftestNotRunError, match="--device cuda"):
            choose_device(asked, environment)
    else:
        assert choose_device(asked, environment) == chosen
