"""The committed table of SGLang's flags: that it is whole, and nothing of a machine is in it."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from ddtree_overlay.serve.catalogue import ALGORITHMS, KEYS
from ddtree_overlay.serve.errors import UnknownSettingError
from ddtree_overlay.serve.peer_to_peer import NEED_PEERS, SWITCHED_OFF
from ddtree_overlay.serve.sglang_flags import FILE, flag_table, main

TABLE = flag_table()


def test_every_name_is_one_flags() -> None:
    names = list(chain.from_iterable(flag.names for flag in TABLE.flags))
    assert len(names) == len(set(names)) > 450
    assert all(re.fullmatch(r"--[a-z0-9][a-z0-9-]*", name) for name in names)
    assert {flag.kind for flag in TABLE.flags} <= {"switch", "one", "maybe", "many", "any"}
    assert {flag.type for flag in TABLE.flags} <= {"str", "int", "float", "json", "size"}


def test_every_flag_that_we_set_is_in_it_under_its_canonical_name() -> None:
    ours = [key.flag for key in KEYS if key.flag]
    for name in [*ours, *SWITCHED_OFF, *NEED_PEERS, "--cuda-graph-max-bs-decode", "--config"]:
        flag = TABLE.get(name)
        assert flag is not None and flag.name == name


@pytest.mark.parametrize("key", [key for key in KEYS if key.flag], ids=lambda key: key.name)
def test_a_settings_type_is_its_flags(key: object) -> None:
    from ddtree_overlay.serve.catalogue import Key

    assert isinstance(key, Key) and key.flag
    flag = TABLE.get(key.flag)
    assert flag is not None
    assert (flag.kind == "switch") == (key.type == "bool")
    if key.type != "bool":
        assert flag.type == key.type


def test_the_overlays_own_flags_and_algorithm_are_there() -> None:
    assert TABLE.get("--speculative-ddtree-budget") and TABLE.get("--speculative-ddtree-topk")
    assert TABLE.get("--speculative-ddtree-allow-hybrid-unsafe")
    assert "DDTREE" in ALGORITHMS


def test_nothing_of_the_machine_that_wrote_it_is_in_it() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert not re.search(r'"/|/home|/root|/tmp|site-packages|\\\\', text)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("--model", "--model-path"),
        ("--tensor-parallel-size", "--tp-size"),
        ("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"),
        ("--mem-fraction", "--mem-fraction-static"),
        ("--nccl-init", "--dist-init-addr"),
        ("--host", "--host"),
    ],
)
def test_every_spelling_finds_its_flag(name: str, canonical: str) -> None:
    assert TABLE.find(name, "x").name == canonical


@pytest.mark.parametrize("name", ["--", "--zzz", "--enable", "--model-pathh"])
def test_what_argparse_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(UnknownSettingError):
        TABLE.find(name, "x")


def test_the_tool_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--wirte"]) == 64
    assert "--check" in capsys.readouterr().out
