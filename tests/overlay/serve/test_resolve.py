"""Precedence of the sources, for every key and every pair of levels; what is refused, and how."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.serve import errors
from ddtree_overlay.serve.catalogue import BY_NAME, KEYS, Key
from ddtree_overlay.serve.plan import Plan
from tests.overlay.serve.configured import resolved

LEVELS = ("command line", "environment", "file", "profile")
# Two values for each key that agree with the rest of the configuration below.
SAMPLES: dict[str, tuple[Any, Any, Any, Any]] = {
    "model": ("/m/1", "/m/2", "/m/3", "/m/4"),
    "draft_model": ("/d/1", "/d/2", "/d/3", "/d/4"),
    "served_model_name": ("a", "b", "c", "d"),
    "algorithm": ("DDTREE", "DFLASH", "EAGLE3", "NGRAM"),
    "budget": (11, 12, 13, 14),
    "topk": (2, 3, 4, 5),
    "tp": (1, 2, 4, 8),
    "pp": (2, 3, 4, 5),
    "dp": (2, 3, 4, 5),
    "nnodes": (1, 2, 3, 4),
    "node_rank": (1, 2, 3, 0),
    "dist_init_addr": ("h:1", "h:2", "h:3", "h:4"),
    "host": ("1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"),
    "port": (1001, 1002, 1003, 1004),
    "probe_host": ("1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"),
    "probe_port": (2001, 2002, 2003, 2004),
    "memory_fraction": (0.51, 0.52, 0.53, 0.54),
    "context_length": (1001, 1002, 1003, 1004),
    "max_running_requests": (5, 6, 7, 8),
    "attention_backend": ("triton", "flashinfer", "fa4", "fa3"),
    "device": ("cpu", "cuda", "cpu", "cuda"),
    "api_key": ("key-1", "key-2", "key-3", None),
    "admin_api_key": ("key-1", "key-2", "key-3", None),
    "cache_dir": ("/c/1", "/c/2", "/c/3", "/c/4"),
    "peer_to_peer": ("on", "off", "auto", "on"),
    "skip_checks": (("a",), ("b", "c"), ("d",), ("e",)),
    "drain_seconds": (1.0, 2.0, 3.0, 4.0),
    "kill_seconds": (1.0, 2.0, 3.0, 4.0),
    "progress_seconds": (1.0, 2.0, 3.0, 4.0),
    "start_seconds": (1.0, 2.0, 3.0, 4.0),
    "metrics": (False, True, False, True),
}
APART = {"profile", "config", "sglang_args"}  # they say where to look, and are tested by that
NOT_OF_PROFILES = {
    *("model", "draft_model", "served_model_name", "node_rank", "dist_init_addr", "skip_checks"),
    *("cache_dir", "host", "port", "probe_host", "probe_port", "api_key", "admin_api_key"),
}
COMPANIONS: dict[str, dict[str, Any]] = {
    "budget": {"algorithm": "DDTREE", "draft_model": "/d"},
    "topk": {"algorithm": "DDTREE", "draft_model": "/d", "budget": 64},
    "algorithm": {"draft_model": "/d"},
    "nnodes": {"dist_init_addr": "h:1"},
    "node_rank": {"nnodes": 4, "dist_init_addr": "h:1"},
}


def test_every_key_is_sampled() -> None:
    assert set(SAMPLES) | APART == {key.name for key in KEYS}


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def configuration(folder: Path, key: Key, given: dict[str, Any]) -> Plan:
    """The plan where each named level gives the key that value."""
    arguments: list[str] = []
    environment: dict[str, str] = {}
    file = folder / "config.toml"
    lines = [f"{name} = {_toml(v)}" for name, v in COMPANIONS.get(key.name, {}).items()]
    if "file" in given:
        lines.append(f"{key.name} = {_toml(given['file'])}")
    file.write_text("\n".join(lines))
    if "command line" in given:
        arguments += [f"{key.option}={_as_text(given['command line'])}"]
    if "environment" in given:
        environment[key.variable] = _as_text(given["environment"])
    if "profile" in given:
        (folder / "p.toml").write_text(
            f'summary = "s"\nbasis = "b"\n[settings]\n{key.name} = {_toml(given["profile"])}\n'
        )
        environment["DDTREE_PROFILE"] = "p"
    return resolved(*arguments, environment=environment, file=file, profiles=folder)


def pairs() -> list[tuple[str, str, str]]:
    found = []
    for name in SAMPLES:
        for high, low in itertools.combinations(LEVELS, 2):
            if not (low == "profile" and name in NOT_OF_PROFILES):
                found.append((name, high, low))
    return found


@pytest.mark.parametrize(("name", "high", "low"), pairs())
def test_the_higher_level_wins_whatever_the_value(
    name: str, high: str, low: str, tmp_path: Path
) -> None:
    key, samples = BY_NAME[name], SAMPLES[name]
    first, second = samples[LEVELS.index(high)], samples[LEVELS.index(low)]
    if first == second:
        second = next(sample for sample in samples if sample not in (first, None))
    plan = configuration(tmp_path, key, {high: first, low: second})
    if key.secret:
        assert plan.secrets[name].text == first
        assert plan.secrets[name].source.startswith(high)
        return
    assert plan.get(name) == first
    assert plan.settings[name].source.startswith(high)
    if key.flag:
        flags = [flag for flag in plan.flags if flag.name == key.flag]
        said = [] if first is False else [() if first is True else (_as_text(first),)]
        assert [flag.values for flag in flags] == said
    # And alone, the lower one holds.
    alone = configuration(tmp_path, key, {low: second})
    assert alone.get(name) == second
    assert alone.settings[name].source.startswith(low)


@pytest.mark.parametrize("name", [key.name for key in KEYS if not key.secret])
def test_nothing_given_is_the_default_and_says_so(name: str) -> None:
    plan = resolved()
    assert (plan.get(name), plan.settings[name].source) == (BY_NAME[name].default, "default")


@pytest.mark.parametrize("name", [n for n in SAMPLES if not BY_NAME[n].secret])
def test_an_empty_variable_is_not_given(name: str) -> None:
    plan = resolved(environment={BY_NAME[name].variable: ""})
    assert plan.settings[name].source == "default"


@pytest.mark.parametrize(
    ("spelling", "name", "value"),
    [
        (["--tp-size", "4"], "tp", 4),
        (["--tp", "4"], "tp", 4),
        (["--tensor-parallel-size=4"], "tp", 4),
        (["--tensor-par", "4"], "tp", 4),
        (["--model-path", "/m"], "model", "/m"),
        (["--model", "/m"], "model", "/m"),
        (["--speculative-draft-model", "/m"], "draft_model", "/m"),
        (["--draft-model", "/m"], "draft_model", "/m"),
        (["--speculative-alg", "ddtree", "--draft-model", "/d"], "algorithm", "DDTREE"),
        (["--nccl-init-addr", "h:1"], "dist_init_addr", "h:1"),
        (["--mem-fraction-static", "0.5"], "memory_fraction", 0.5),
        (["--memory-fraction", "0.5"], "memory_fraction", 0.5),
        (["--context-length", "32k"], "context_length", 32000),
        (["--enable-metrics"], "metrics", True),
        (["--no-metrics"], "metrics", False),
        (["--metrics", "off"], "metrics", False),
        (["--skip-checks", "a, b"], "skip_checks", ("a", "b")),
        (["--drain", "5"], "drain_seconds", 5.0),
        (["--tp", "2", "--tp-size", "4"], "tp", 4),
    ],
)
def test_every_spelling_is_the_same_setting(spelling: list[str], name: str, value: Any) -> None:
    plan = resolved(*spelling)
    assert plan.get(name) == value
    assert plan.settings[name].source == "command line"
    flag = BY_NAME[name].flag
    assert len([f for f in plan.flags if f.name == flag]) == (
        0 if value is False or not flag else 1
    )


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [
        (["--cuda-graph-max-bs", "8"], ["--cuda-graph-max-bs-decode", "8"]),
        (["--cuda-graph-bs", "1", "2"], ["--cuda-graph-bs-decode", "1", "2"]),
        (["--trust-remote"], ["--trust-remote-code"]),
        (["--page-size=1", "--page-size", "16"], ["--page-size", "16"]),
        (["--sglang-args", "--dtype bfloat16"], ["--dtype", "bfloat16"]),
        (["--lora-strict-loading", "--no-lora-strict-loading"], ["--no-lora-strict-loading"]),
        (
            ["--json-model-override-args", '{"a": "b c"}'],
            ["--json-model-override-args", '{"a": "b c"}'],
        ),
        (["--random-seed", "-5"], ["--random-seed", "-5"]),
        (["--max-total-tokens", "4k"], ["--max-total-tokens", "4k"]),
        (["--lora-paths"], ["--lora-paths"]),
    ],
)
def test_flags_of_sglang_pass_in_canonical_spelling(arguments: list[str], argv: list[str]) -> None:
    text = "\0".join(resolved(*arguments).argv())
    assert "\0".join(argv) in text
    assert text.count(argv[0]) == 1


UNKNOWN = errors.UnknownSettingError
SETTING = errors.SettingError
CONFLICT = errors.ConflictError


@pytest.mark.parametrize(
    ("arguments", "environment", "error", "says"),
    [
        (["--modle", "x"], {}, UNKNOWN, ["--modle", "command line", "--model"]),
        (["--speculative-ddtree-buget", "3"], {}, UNKNOWN, ["--speculative-ddtree-budget"]),
        (["--spec"], {}, UNKNOWN, ["--spec", "could be"]),
        (["--probe", "1"], {}, UNKNOWN, ["could be --probe-host, --probe-port"]),
        (["--pr"], {}, UNKNOWN, ["could be --pre-warm-nccl, ", " more"]),
        (["model"], {}, UNKNOWN, ["'model'", "no flag"]),
        (["--"], {}, UNKNOWN, ["--"]),
        (["-x"], {}, UNKNOWN, ["-x"]),
        (["--tp", "two"], {}, SETTING, ["tp", "'two'", "command line", "whole number"]),
        (["--tp", "0"], {}, SETTING, ["tp", "0", "at least 1"]),
        (["--tp"], {}, SETTING, ["--tp", "needs a value"]),
        (["--tp", "--model", "x"], {}, SETTING, ["--tp", "needs a value"]),
        (["--memory-fraction", "1.5"], {}, SETTING, ["memory_fraction", "1.5", "0.98"]),
        (["--memory-fraction", "nan"], {}, SETTING, ["memory_fraction"]),
        (["--port", "70000"], {}, SETTING, ["port", "70000", "65535"]),
        (["--device", "gpu"], {}, SETTING, ["device", "'gpu'"]),
        (["--attention-backend", "flashinfr"], {}, SETTING, ["flashinfr", "flashinfer"]),
        (["--page-size", "x"], {}, SETTING, ["--page-size", "'x'", "whole number"]),
        (["--page-size", "1", "2"], {}, UNKNOWN, ["'2'"]),
        (["--trust-remote-code=1"], {}, SETTING, ["--trust-remote-code", "no value"]),
        (["--no-metrics=1"], {}, SETTING, ["--no-metrics"]),
        (["--kv-cache-dtype", "fp9"], {}, SETTING, ["--kv-cache-dtype", "fp9"]),
        (["--cuda-graph-bs"], {}, SETTING, ["--cuda-graph-bs-decode", "needs a value"]),
        (["--preferred-sampling-params", "{"], {}, SETTING, ["JSON"]),
        (["--max-total-tokens", "4q"], {}, SETTING, ["--max-total-tokens", "4q"]),
        ([], {"DDTREE_MODLE": "x"}, UNKNOWN, ["DDTREE_MODLE", "DDTREE_MODEL"]),
        ([], {"DDTREE_BUDGETS": ""}, UNKNOWN, ["DDTREE_BUDGETS", "DDTREE_BUDGET"]),
        ([], {"DDTREE_MODEL_FILE": "x"}, UNKNOWN, ["DDTREE_MODEL_FILE"]),
        ([], {"DDTREE_TP": "8x"}, SETTING, ["tp", "DDTREE_TP", "'8x'"]),
        ([], {"DDTREE_METRICS": "maybe"}, SETTING, ["metrics", "true or false"]),
        ([], {"DDTREE_SGLANG_ARGS": "--frob 1"}, UNKNOWN, ["--frob", "DDTREE_SGLANG_ARGS"]),
        ([], {"DDTREE_SGLANG_ARGS": "--dtype 'x"}, SETTING, ["DDTREE_SGLANG_ARGS", "quot"]),
        ([], {"DDTREE_TP": "2", "DDTREE_SGLANG_ARGS": "--tp 4"}, CONFLICT, ["tp", "twice"]),
        (["--algorithm", "DDTREE"], {}, CONFLICT, ["DDTREE", "DDTREE_DRAFT_MODEL"]),
        (["--algorithm", "DFLASH"], {}, CONFLICT, ["DFLASH", "draft_model"]),
        (["--algorithm", "NONE", "--budget", "3"], {}, CONFLICT, ["budget", "3", "NONE"]),
        (["--algorithm", "NGRAM", "--topk", "3"], {}, CONFLICT, ["topk", "NGRAM"]),
        (["--budget", "3", "--topk", "4"], {}, CONFLICT, ["topk", "4", "3"]),
        (["--nnodes", "2"], {}, CONFLICT, ["nnodes", "dist_init_addr"]),
        (
            ["--nnodes", "2", "--node-rank", "2", "--dist-init-addr", "h:1"],
            {},
            CONFLICT,
            ["node_rank"],
        ),
        (["--dist-init-addr", "host"], {}, CONFLICT, ["'host'", "HOST:PORT"]),
        (["--nnodes", "3", "--tp", "8", "--dist-init-addr", "h:1"], {}, CONFLICT, ["tp", "8", "3"]),
        (["--probe-port", "30000"], {}, CONFLICT, ["30000", "DDTREE_PROBE_PORT"]),
        (["--config", "/nonexistent.toml"], {}, errors.ConfigFileError, ["/nonexistent.toml"]),
        (["--profile", "dense-8gpus"], {}, errors.ProfileError, ["dense-8gpus", "dense-8gpu"]),
        (["--config", "a.yaml", "--config", "b.yaml"], {}, CONFLICT, ["--config", "twice"]),
    ],
)
def test_a_mistake_is_named_with_value_source_and_remedy(
    arguments: list[str],
    environment: dict[str, str],
    error: type[errors.EntryError],
    says: list[str],
) -> None:
    with pytest.raises(error) as raised:
        resolved(*arguments, environment=environment)
    said = "\n".join(raised.value.lines())
    assert all(word in said for word in says), said
    assert said.count("\n") == 1
    assert 68 <= raised.value.exit_code <= 73


def test_the_exit_codes_are_as_documented() -> None:
    codes = [
        SETTING,
        UNKNOWN,
        errors.SecretError,
        errors.ProfileError,
        errors.ConfigFileError,
        CONFLICT,
    ]
    assert [cls.exit_code for cls in codes] == [68, 69, 70, 71, 72, 73]


@pytest.mark.parametrize(
    "variable",
    [
        ("DDTREE_PORT", "tcp://10.0.0.1:30000"),
        ("DDTREE_SERVICE_HOST", "10.0.0.1"),
        ("DDTREE_SERVICE_PORT", "30000"),
        ("DDTREE_SERVICE_PORT_HTTP", "30000"),
        ("DDTREE_PORT_30000_TCP", "tcp://10.0.0.1:30000"),
        ("DDTREE_PORT_30000_TCP_ADDR", "10.0.0.1"),
        ("DDTREE_ROUTER_PORT", "tcp://10.0.0.1:30000"),
        ("DDTREE_PROBE_PORT", "tcp://[fd00::1]:30080"),
    ],
)
def test_a_service_link_of_kubernetes_is_recognised(variable: tuple[str, str]) -> None:
    with pytest.raises(UNKNOWN, match="Kubernetes") as raised:
        resolved(environment=dict([variable]))
    assert "enableServiceLinks: false" in raised.value.remedy


def test_internal_names_and_other_programs_variables_are_left_alone() -> None:
    names = ("DDTREE_MANIFEST", "DDTREE_HOST_ROOT", "DDTREE_E2E_X", "DDTREE_CPU_PROOF", "PATH")
    assert resolved(environment=dict.fromkeys(names, "x")).get("model") is None


def test_a_plugins_attention_backend_passes_only_in_the_cpu_proof() -> None:
    arguments = ("--attention-backend", "ddtree_cpu")
    with pytest.raises(SETTING):
        resolved(*arguments)
    plan = resolved(*arguments, environment={"DDTREE_CPU_PROOF": "1"})
    assert plan.flag("--attention-backend") == "ddtree_cpu"
    with pytest.raises(SETTING):
        resolved("--kv-cache-dtype", "ddtree_cpu", environment={"DDTREE_CPU_PROOF": "1"})


def test_a_model_is_needed_to_serve_and_not_for_the_doctor() -> None:
    with pytest.raises(CONFLICT, match="no model"):
        resolved(need_model=True)
    assert resolved("--model", "/m", need_model=True).get("model") == "/m"
    assert resolved(need_model=False).get("model") is None


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("modle = 'x'", errors.ConfigFileError, ["modle", "did you mean model"]),
        ("model = ", errors.ConfigFileError, ["not TOML"]),
        ("schema = 2", errors.ConfigFileError, ["schema", "2"]),
        ("config = 'x'", errors.ConfigFileError, ["config"]),
        ("sglang = 3", errors.ConfigFileError, ["sglang", "table"]),
        ("tp = '8x'", SETTING, ["tp", "'8x'", "config.toml"]),
        ("tp = true", SETTING, ["tp", "True"]),
        ("tp = 1.5", SETTING, ["tp", "1.5"]),
        ("metrics = 'x'", SETTING, ["metrics"]),
        ("model = 3", SETTING, ["model", "3"]),
        ("[sglang]\nfrob = 1", UNKNOWN, ["--frob", "[sglang]"]),
        ("[sglang]\npage-size = 'x'", SETTING, ["--page-size", "'x'"]),
        ("[sglang]\napi-key = 'hunter22'", errors.ConfigFileError, ["api_key_file"]),
        ("[sglang]\nconfig = 'x.yaml'", errors.ConfigFileError, ["config"]),
        ("tp = 2\n[sglang]\ntp-size = 4", CONFLICT, ["tp", "twice"]),
        ("[environment]\nDDTREE_TP = '8'", errors.ConfigFileError, ["DDTREE_TP", "own key"]),
        ("[environment]\nHF_TOKEN = 'hunter22'", errors.ConfigFileError, ["HF_TOKEN", "secret"]),
        ("[environment]\n'A B' = 'x'", errors.ConfigFileError, ["A B"]),
    ],
)
def test_a_mistake_in_the_file_is_named(
    text: str, error: type[errors.EntryError], says: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(error) as raised:
        resolved(file=file)
    said = "\n".join(raised.value.lines())
    assert all(word in said for word in says), said
    assert "hunter22" not in said


def test_the_files_tables(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        "schema = 1\ntp = 4\nsglang_args = '--dtype bfloat16'\n"
        "[sglang]\npage_size = 1\n'--trust-remote-code' = true\nenable-p2p-check = false\n"
        "cuda-graph-bs = [1, 2]\nmem-fraction-static = 0.7\n"
        "[environment]\nNCCL_DEBUG = 'INFO'\n"
    )
    plan = resolved(file=file)
    assert plan.get("memory_fraction") == 0.7
    argv = " ".join(plan.argv())
    for part in ("--tp-size 4", "--dtype bfloat16", "--page-size 1", "--cuda-graph-bs-decode 1 2"):
        assert part in argv
    assert "--trust-remote-code" in argv and "p2p" not in argv
    assert plan.environment["NCCL_DEBUG"].value == "INFO"
    assert plan.environment["NCCL_DEBUG"].source == f"file {file}"


def test_the_file_is_named_by_flag_variable_or_place(tmp_path: Path) -> None:
    files = []
    for n in range(3):
        files.append(tmp_path / f"{n}.toml")
        files[-1].write_text(f"drain_seconds = {n + 1}")
    environment = {"DDTREE_CONFIG": str(files[1])}
    by_flag = resolved("--config", str(files[0]), environment=environment, file=files[2])
    assert by_flag.get("drain_seconds") == 1
    assert resolved(environment=environment, file=files[2]).get("drain_seconds") == 2
    assert resolved(file=files[2]).get("drain_seconds") == 3


def test_a_file_in_its_place_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigFileError):
        resolved(file=tmp_path)  # a folder
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(errors.ConfigFileError):
        resolved(file=tmp_path / "link")


class TestSglangYaml:
    """SGLang's own --config: read by SGLang, outranks our defaults, is outranked by what is given."""

    def plan(self, text: str, *arguments: str, **options: Any) -> Plan:
        file = Path(tempfile.mkdtemp()) / "server.yaml"
        file.write_text(text)
        return resolved("--config", str(file), *arguments, **options)

    def test_its_values_are_known_and_not_said_again(self) -> None:
        plan = self.plan(
            "port: 31000\nmodel-path: '/m'  # the model\ntp_size: 4\nhost: 127.0.0.1\n"
        )
        assert (plan.get("port"), plan.get("model"), plan.get("tp")) == (31000, "/m", 4)
        assert plan.settings["port"].source.startswith("SGLang config")
        argv = plan.argv()
        assert "--config" in argv
        assert not {"--port", "--model-path", "--tp-size", "--host"} & set(argv)

    def test_a_default_fills_what_it_leaves_open(self) -> None:
        assert self.plan("tp-size: 4\n").flag("--port") == "30000"

    def test_what_is_given_is_said_and_so_outranks_it(self) -> None:
        plan = self.plan("port: 31000\n", "--port", "32000", environment={"DDTREE_TP": "2"})
        assert (plan.get("port"), plan.flag("--port"), plan.flag("--tp-size")) == (
            32000,
            "32000",
            "2",
        )

    def test_a_profile_does_not_outrank_it(self, tmp_path: Path) -> None:
        (tmp_path / "p.toml").write_text(
            'summary = "s"\nbasis = "b"\n[settings]\ntp = 8\n[sglang]\npage-size = 1\ndtype = "half"\n'
        )
        plan = self.plan("tp-size: 4\npage-size: 16\n", "--profile", "p", profiles=tmp_path)
        assert plan.get("tp") == 4
        assert plan.flag("--page-size") is None and plan.flag("--dtype") == "half"

    def test_an_unknown_key_is_refused(self) -> None:
        with pytest.raises(UNKNOWN, match="--prot"):
            self.plan("prot: 1\n")

    def test_a_secret_in_it_is_not_taken_into_the_plan(self) -> None:
        plan = self.plan("api-key: hunter22\n")
        assert "hunter22" not in repr(plan)

    def test_one_that_cannot_be_read_is_refused(self) -> None:
        with pytest.raises(errors.ConfigFileError, match=r"/gone\.yaml"):
            resolved("--config", "/gone.yaml")


@pytest.mark.parametrize("value", ["2024-01-01", "2024-01-01T00:00:00", "00:00:00", "[1]", "{a=1}"])
@pytest.mark.parametrize("name", ["port", "memory_fraction", "context_length", "metrics", "model"])
def test_every_type_of_toml_is_refused_where_it_does_not_belong(
    name: str, value: str, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text(f"{name} = {value}\n")
    with pytest.raises(errors.SettingError, match=name):
        resolved(file=tmp_path / "c.toml")


def test_toml_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(errors.ConfigFileError, match="not TOML"):
        resolved(file=tmp_path / "c.toml")


@pytest.mark.parametrize("order", [1, -1])
def test_a_file_that_says_two_things_is_a_conflict_in_any_order(order: int, tmp_path: Path) -> None:
    lines = ["tp = 4", 'sglang_args = "--tp-size 2"'][::order]
    (tmp_path / "c.toml").write_text("\n".join(lines))
    with pytest.raises(errors.ConflictError, match="tp is given twice"):
        resolved(file=tmp_path / "c.toml")


def test_a_variable_in_lower_case_is_a_mistake_and_not_nothing() -> None:
    with pytest.raises(errors.UnknownSettingError) as caught:
        resolved(environment={"ddtree_tp": "4"})
    assert "DDTREE_TP" in caught.value.remedy


@pytest.mark.parametrize("port", [30000, 30080])
def test_the_hosts_meet_at_a_port_of_their_own(port: int) -> None:
    group = ["--nnodes", "2", "--dist-init-addr", f"h:{port}"]
    with pytest.raises(errors.ConflictError, match=str(port)):
        resolved(*group)
    assert resolved(*group, "--node-rank", "1").get("node_rank") == 1


def test_a_switch_of_sglangs_file_cannot_be_taken_back(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("enable-metrics: true\n")
    with pytest.raises(errors.ConflictError, match="metrics"):
        resolved("--config", str(tmp_path / "own.yaml"), "--no-metrics")


def test_a_failure_is_two_lines_whatever_was_given() -> None:
    with pytest.raises(errors.UnknownSettingError) as caught:
        resolved("--mo\ndel\x1b[31m")
    text = "\n".join(caught.value.lines())
    assert text.count("\n") == 1 and "\x1b" not in text
