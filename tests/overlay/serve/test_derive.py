"""What is computed from the host: the profile, TP, drafting, memory, graphs, variables."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.model import Hardware
from ddtree_overlay.serve import errors, model_config
from ddtree_overlay.serve.derive import memory_fraction
from ddtree_overlay.serve.model_config import model_facts
from ddtree_overlay.serve.resolve import level_is_given
from tests.overlay.serve.configured import DENSE, MOE, derived, drafter, host, model


def pair(folder: Path, config: dict[str, int] = DENSE, **draft: int) -> list[str]:
    return ["--model", model(folder, config), "--draft-model", drafter(folder, **draft)]


@pytest.mark.parametrize(
    ("gpus", "config", "profile", "tp"),
    [
        (8, DENSE, "dense-8gpu", 8),
        (8, MOE, "moe-8gpu", 8),
        (8, {"text_config": MOE}, "moe-8gpu", 8),
        (8, {**DENSE, "n_routed_experts": 256}, "moe-8gpu", 8),
        (7, DENSE, "multi-gpu", 4),
        (4, MOE, "multi-gpu", 4),
        (2, DENSE, "multi-gpu", 2),
        (1, DENSE, "single-gpu", 1),
        (0, DENSE, "multi-gpu", 1),
    ],
)
def test_the_profile_and_tp_follow_from_gpus_and_model(
    gpus: int, config: dict[str, int], profile: str, tp: int, tmp_path: Path
) -> None:
    plan = derived(host(gpus), pair(tmp_path, config))
    assert (plan.profile, plan.get("profile"), plan.get("tp")) == (profile, profile, tp)
    assert plan.settings["profile"].source.startswith("computed: ")
    assert any(note.startswith(f"profile {profile}: ") for note in plan.notes)
    assert plan.flag("--tp-size") == str(tp)
    assert plan.get("algorithm") == "DDTREE"


@pytest.mark.parametrize(
    ("arguments", "profile", "says"),
    [
        ([], "nospec", "no model"),
        (["--model", "/m"], "nospec", "no draft_model"),
        (["--model", "/m", "--algorithm", "NONE"], "nospec", "NONE"),
        (["--model", "/m", "--draft-model", "/d", "--algorithm", "none"], "nospec", "NONE"),
        (["--model", "/m", "--draft-model", "/d", "--algorithm", "dflash"], "dflash", "DFLASH"),
        (["--model", "/m", "--draft-model", "/d", "--algorithm", "eagle3"], "nospec", "EAGLE3"),
        (["--model", "/m", "--draft-model", "/d"], "dense-8gpu", "not readable|no readable"),
        (["--device", "cpu"], "cpu", "cpu"),
    ],
)
def test_the_profile_follows_from_what_is_given(
    arguments: list[str], profile: str, says: str
) -> None:
    plan = derived(host(8), arguments)
    assert plan.profile == profile
    assert any(word in plan.settings["profile"].source for word in says.split("|"))


def test_without_a_draft_model_no_flag_of_speculation_is_left(tmp_path: Path) -> None:
    plan = derived(host(8), ["--model", model(tmp_path, DENSE)])
    assert plan.get("algorithm") is None
    assert not [flag.name for flag in plan.flags if "speculative" in flag.name]


@pytest.mark.parametrize("given", [["--profile", "nospec"], ["--algorithm", "NONE"]])
def test_a_drafter_that_is_given_and_not_used_is_said(given: list[str], tmp_path: Path) -> None:
    plan = derived(host(8), [*pair(tmp_path), *given])
    assert not [flag.name for flag in plan.flags if "speculative" in flag.name]
    assert any(
        "--speculative-draft-model-path" in note and "left out" in note for note in plan.notes
    )


def test_a_named_profile_of_trees_needs_a_drafter() -> None:
    with pytest.raises(errors.ConflictError) as raised:
        derived(host(8), ["--profile", "dense-8gpu", "--model", "/m"])
    assert "profile dense-8gpu" in str(raised.value) and "nospec" in raised.value.remedy


@pytest.mark.parametrize(
    ("gpus", "heads", "draft_heads", "arguments", "tp"),
    [
        (8, 64, 32, [], 8),
        (8, 40, 32, [], 8),
        (8, 12, 32, [], 4),
        (8, 64, 4, [], 4),
        (8, 25, 32, [], 1),
        (6, 64, 32, [], 4),
        (3, 64, 32, [], 2),
        (8, 64, 32, ["--dp", "2"], 4),
        (8, 64, 32, ["--dp", "2", "--enable-dp-attention"], 8),
        (8, 64, 32, ["--pp", "2"], 4),
        (8, 64, 32, ["--nnodes", "2", "--dist-init-addr", "h:1"], 16),
        (8, 64, 32, ["--tp", "3"], 3),
    ],
)
def test_tp_is_the_largest_power_of_two_that_divides_all_heads(
    gpus: int, heads: int, draft_heads: int, arguments: list[str], tp: int, tmp_path: Path
) -> None:
    models = pair(tmp_path, {**DENSE, "num_attention_heads": heads}, heads=draft_heads)
    plan = derived(host(gpus), [*models, "--profile", "multi-gpu", *arguments])
    assert plan.get("tp") == tp
    if "--tp" not in arguments:
        source = plan.settings["tp"].source
        assert source.startswith("computed: ") and str(gpus) in source
        if tp < 8 and gpus == 8 and not arguments:
            assert str(draft_heads if draft_heads < 8 else heads) in source


@pytest.mark.parametrize(
    ("requests", "algorithm", "budget"),
    [(1, "DDTREE", 16), (16, "DDTREE", 16), (17, "DDTREE", 15), (40, "DFLASH", None), (65, None, None)],
)  # fmt: skip
def test_the_tier_follows_from_the_running_requests(
    requests: int, algorithm: str | None, budget: int | None, tmp_path: Path
) -> None:
    plan = derived(host(8), [*pair(tmp_path), "--max-running-requests", str(requests)])
    assert (plan.get("algorithm"), plan.get("budget")) == (algorithm, budget)
    assert plan.flag("--speculative-algorithm") == algorithm
    assert plan.flag("--speculative-ddtree-budget") == (str(budget) if budget else None)
    source = plan.settings["algorithm"].source
    assert source.startswith(f"computed: {requests} running requests (command line)")
    said = any(note.startswith("algorithm") for note in plan.notes)
    assert said == (algorithm != "DDTREE")
    if algorithm is None:
        assert not [flag for flag in plan.flags if "speculative" in flag.name]


@pytest.mark.parametrize(
    ("given", "algorithm", "budget"),
    [
        (["--algorithm", "DDTREE"], "DDTREE", None),
        (["--budget", "48"], "DDTREE", 48),
        (["--algorithm", "DDTREE", "--budget", "48"], "DDTREE", 48),
        (["--topk", "8"], "DDTREE", None),
    ],
)
def test_an_explicit_algorithm_or_budget_wins_over_the_tier(
    given: list[str], algorithm: str, budget: int | None, tmp_path: Path
) -> None:
    """48 requests are of the chain's tier. Where the tier has no budget the server chooses it."""
    plan = derived(host(8), [*pair(tmp_path), "--max-running-requests", "48", *given])
    assert (plan.get("algorithm"), plan.get("budget")) == (algorithm, budget)


@pytest.mark.parametrize("algorithm", ["DFLASH", "NONE", "EAGLE3"])
def test_another_algorithm_gets_no_budget(algorithm: str, tmp_path: Path) -> None:
    models = pair(tmp_path)
    plan = derived(host(8), [*models, "--algorithm", algorithm, "--profile", "dense-8gpu"])
    assert plan.get("budget") is None and plan.flag("--speculative-ddtree-budget") is None


def test_the_drafters_block_sets_the_smallest_tree(tmp_path: Path) -> None:
    plan = derived(host(8), pair(tmp_path, block_size=32))
    assert plan.get("budget") == 31
    assert "block of 32 drafts 31 positions" in plan.settings["budget"].source


def test_budget_of_a_plan_that_ends_without_a_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ConflictError, match="budget"):
        derived(host(8), [*pair(tmp_path), "--budget", "8", "--profile", "dflash"])


def test_memory_grows_with_the_gpu_and_shrinks_with_a_drafter() -> None:
    sizes = [24, 48, 80, 95.6, 141, 180]
    plain = [memory_fraction(gib, drafting=False)[0] for gib in sizes]
    drafted = [memory_fraction(gib, drafting=True)[0] for gib in sizes]
    assert plain == sorted(plain) and drafted == sorted(drafted)
    assert all(low < high for low, high in zip(drafted, plain, strict=True))
    assert all(0.3 <= fraction < 0.95 for fraction in plain)
    assert memory_fraction(95.6, drafting=True)[0] == 0.84


def test_memory_follows_from_the_smallest_gpu(tmp_path: Path) -> None:
    big, small = host(2, 95.6), host(2, 48)
    mixed = replace(big, gpus=(big.gpus[0], small.gpus[1]))
    plan = derived(mixed, pair(tmp_path))
    assert plan.get("memory_fraction") == memory_fraction(48, drafting=True)[0]
    assert "48 GiB" in plan.settings["memory_fraction"].source
    assert (
        derived(mixed, [*pair(tmp_path / "b"), "--memory-fraction", "0.7"]).get("memory_fraction")
        == 0.7
    )


def test_without_a_gpu_nothing_of_a_gpu_is_computed(tmp_path: Path) -> None:
    plan = derived(Hardware(error="no driver"), pair(tmp_path))
    assert plan.get("memory_fraction") is None
    assert "no GPU" in plan.settings["tp"].source


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--max-running-requests", "24"], "24"),
        (["--max-running-requests", "24", "--dp", "2"], "24"),
        (["--max-running-requests", "24", "--dp", "2", "--enable-dp-attention"], "12"),
        (["--cuda-graph-max-bs", "4"], "4"),
        (["--cuda-graph-bs", "1", "2"], None),
        (["--disable-cuda-graph"], None),
        (["--cuda-graph-backend-decode", "disabled"], None),
        (["--profile", "no-graph"], None),
    ],
)
def test_graphs_are_captured_for_as_many_as_run(
    arguments: list[str], value: str | None, tmp_path: Path
) -> None:
    plan = derived(host(8), [*pair(tmp_path), *arguments])
    assert plan.flag("--cuda-graph-max-bs-decode") == value


@pytest.mark.parametrize(("made_for", "context"), [(2048, 2048), (32768, 32768), (131072, 32768)])
def test_a_profiles_context_is_an_upper_bound(made_for: int, context: int, tmp_path: Path) -> None:
    config = {**DENSE, "max_position_embeddings": made_for}
    assert derived(host(8), pair(tmp_path, config)).get("context_length") == context


def test_a_given_context_is_kept(tmp_path: Path) -> None:
    plan = derived(host(8), [*pair(tmp_path), "--context-length", "100000"])
    assert plan.get("context_length") == 100000


def test_a_cpu_gets_nothing_of_a_gpu() -> None:
    plan = derived(host(8), ["--device", "cpu", "--model", "/m"])
    names = {flag.name for flag in plan.flags}
    assert not names & {
        "--cuda-graph-max-bs-decode",
        "--mem-fraction-static",
        "--max-running-requests",
    }
    assert (plan.get("tp"), plan.flag("--attention-backend")) == (1, "torch_native")
    assert not [name for name in plan.environment if name.startswith("NCCL")]


def test_given_values_never_change(tmp_path: Path) -> None:
    """With every computed setting given, none is computed."""
    given = ["--tp", "2", "--memory-fraction", "0.5", "--algorithm", "DDTREE", "--budget", "9",
             "--max-running-requests", "3", "--context-length", "77", "--attention-backend", "triton"]  # fmt: skip
    plan = derived(host(8), [*pair(tmp_path), *given])
    for name in ("tp", "memory_fraction", "algorithm", "budget", "max_running_requests"):
        assert plan.settings[name].source == "command line"
    assert (plan.get("context_length"), plan.get("attention_backend")) == (77, "triton")


def test_every_computed_value_says_why(tmp_path: Path) -> None:
    plan = derived(host(8), [*pair(tmp_path), "--profile", "multi-gpu"])
    sources = [value.source for value in [*plan.settings.values(), *plan.environment.values()]]
    sources += [flag.source for flag in plan.flags]
    computed = [source for source in sources if source.startswith("computed")]
    assert len(computed) > 10
    assert all(len(source.removeprefix("computed: ").split()) > 2 for source in computed)
    assert all(
        level_is_given(s) or s.startswith(("computed: ", "profile ", "default")) for s in sources
    )


@pytest.mark.parametrize(
    ("name", "environment", "value", "source"),
    [
        ("NCCL_DEBUG", {}, "WARN", "profile dense-8gpu"),
        ("NCCL_DEBUG", {"NCCL_DEBUG": "INFO"}, "INFO", "environment NCCL_DEBUG"),
        ("CUDA_DEVICE_ORDER", {}, "PCI_BUS_ID", "computed: "),
        ("TRITON_CACHE_DIR", {}, "/var/cache/ddtree/b1/triton", "computed: "),
        ("TRITON_CACHE_DIR", {"TRITON_CACHE_DIR": "/t"}, "/t", "environment TRITON_CACHE_DIR"),
    ],
)
def test_variables_of_the_server(
    name: str, environment: dict[str, str], value: str, source: str, tmp_path: Path
) -> None:
    plan = derived(host(8), pair(tmp_path), environment=environment)
    assert plan.environment[name].value == value
    assert plan.environment[name].source.startswith(source)


def test_variables_of_the_file_outrank_the_profiles(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[environment]\nNCCL_DEBUG = 'TRACE'\nOTHER = 3\n")
    plan = derived(host(8), pair(tmp_path), file=file)
    assert (plan.environment["NCCL_DEBUG"].value, plan.environment["OTHER"].value) == ("TRACE", "3")
    given = derived(host(8), [], file=file, environment={"NCCL_DEBUG": "INFO"})
    assert given.environment["NCCL_DEBUG"].value == "INFO"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"num_attention_heads": "x"}', '{"num_attention_heads": true}', "\udcff"],
)
def test_a_models_config_that_says_nothing_is_no_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert model_facts(str(tmp_path)).heads is None
    assert model_facts(str(tmp_path / "gone")).readable is False
    assert model_facts(None).readable is False


def test_a_drafters_block_may_be_nested(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"dflash_config": {"block_size": 8}}))
    assert model_facts(str(tmp_path)).block_size == 8


FP8_235B = {
    "num_attention_heads": 64,
    "num_experts": 128,
    "moe_intermediate_size": 1536,
    "intermediate_size": 12288,
    "quantization_config": {"weight_block_size": [128, 128]},
}
FP8_30B = {**FP8_235B, "num_attention_heads": 32, "moe_intermediate_size": 768}


@pytest.mark.parametrize(
    ("config", "arguments", "size"),
    [
        (FP8_235B, [], "2"),
        (FP8_30B, [], "4"),
        (FP8_235B, ["--tp", "4"], None),
        (FP8_235B, ["--ep-size", "8"], "8"),
        ({**FP8_235B, "quantization_config": {}}, [], None),
        ({"text_config": FP8_235B}, [], "2"),
        ({**FP8_235B, "num_experts": 0}, [], None),
        # No size would do: the doctor says so.
        ({**FP8_235B, "moe_intermediate_size": 1000}, [], None),
    ],
)
def test_block_quantised_experts_are_spread_so_that_blocks_stay_whole(
    config: dict[str, Any], arguments: list[str], size: str | None, tmp_path: Path
) -> None:
    plan = derived(host(8), ["--model", model(tmp_path, config), *arguments])
    assert plan.flag("--ep-size") == size


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({"num_experts": 128}, 128),  # Qwen3-30B-A3B, Qwen3-235B-A22B
        ({"num_local_experts": 32}, 32),  # gpt-oss, Mixtral
        ({"n_routed_experts": 256, "n_shared_experts": 1}, 256),  # DeepSeek
        ({"text_config": {"num_local_experts": 16}}, 16),  # Llama-4
        ({"text_config": {"num_experts": 128}, "vision_config": {}}, 128),  # Qwen3-VL
        ({"thinker_config": {"text_config": {"num_experts": 128}}}, 128),  # Qwen3-Omni
        ({"num_experts": 0}, None),
        ({"num_local_experts": 1}, None),
        ({"num_experts": True}, None),
        ({"num_attention_heads": 8}, None),
    ],
)
def test_a_mixture_of_experts_is_recognised(
    config: dict[str, Any], experts: int | None, tmp_path: Path
) -> None:
    assert model_facts(model(tmp_path, config)).experts == experts
    plan = derived(host(8), pair(tmp_path / "pair", config))
    assert plan.profile == ("moe-8gpu" if experts else "dense-8gpu")


def test_eight_smaller_gpus_do_not_take_the_numbers_of_large_ones(tmp_path: Path) -> None:
    plan = derived(host(8, 24.0), pair(tmp_path))
    assert plan.profile == "multi-gpu"
    assert plan.get("tp") == 8
    assert plan.settings["memory_fraction"].source.startswith("computed")


def test_a_profile_that_nobody_named_yields_to_the_models_heads(tmp_path: Path) -> None:
    seven_b = pair(tmp_path, {"num_attention_heads": 28, "max_position_embeddings": 32768})
    plan = derived(host(8), seven_b)
    assert (plan.profile, plan.get("tp")) == ("dense-8gpu", 4)
    assert "28 attention heads" in plan.settings["tp"].source
    # Who names it gets its number, and the doctor's finding.
    assert derived(host(8), [*seven_b, "--profile", "dense-8gpu"]).get("tp") == 8


def test_a_profiles_context_is_also_bounded_by_the_drafters(tmp_path: Path) -> None:
    draft = model(tmp_path, {"block_size": 16, "max_position_embeddings": 4096}, "short")
    target = ["--model", model(tmp_path, DENSE)]
    plan = derived(host(8), [*target, "--draft-model", draft])
    assert plan.get("context_length") == 4096
    assert "drafter" in plan.settings["context_length"].source
    given = derived(host(8), [*target, "--draft-model", draft, "--context-length", "8192"])
    assert given.get("context_length") == 8192


@pytest.mark.parametrize(
    ("gpus", "arguments", "idle"),
    [
        (8, [], None),
        (7, [], "3 of 7"),
        (16, [], "8 of 16"),
        (16, ["--tp", "16"], None),
        (8, ["--tp", "4", "--dp", "2"], None),
        (8, ["--tp", "2", "--pp", "2"], "4 of 8"),
        (1, [], None),
        (0, [], None),
    ],
)
def test_gpus_that_stay_idle_are_said(
    gpus: int, arguments: list[str], idle: str | None, tmp_path: Path
) -> None:
    notes = [
        note for note in derived(host(gpus), [*pair(tmp_path), *arguments]).notes if "idle" in note
    ]
    assert [note.startswith(f"{idle} GPUs") for note in notes] == ([True] if idle else [])


def test_a_model_folder_that_never_answers_does_not_hang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A dead network mount: the doctor says so, with its own bound; here it counts as unreadable."""
    released = threading.Event()
    monkeypatch.setattr(model_config, "READ_SECONDS", 0.1)
    monkeypatch.setattr(model_config, "read_regular", lambda *_: b"{}" * released.wait(30))
    try:
        assert model_config.model_facts(str(tmp_path)) == model_config.ModelFacts()
    finally:
        released.set()
