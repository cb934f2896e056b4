"""`ddtree doctor`: its arguments, its bundle, and that no secret gets out."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from ddtree_overlay.doctor.command import parse
from ddtree_overlay.serve.errors import UsageError
from tests.overlay.doctor.fake_host import FakeHost
from tests.overlay.doctor.nvml import doctor, environment_of, run

FAST = ("--only", "driver,gpu-count,gpu-memory")
SECRETS = {
    "odd name": "odd-9b1f6c",
    "argv": "sk-argv-9f8e7d6c",
    "variable": "sk-variable-1a2b3c4d",
    "token": "hf_TOKENTOKENTOKEN",
    "file": "sk-in-a-file-5e6f7a8b",
    "another file": "p4ss-in-another-file",
    "proxy": "proxy-passw0rd",
    "kernel": "kernel-cmdline-s3cret",
}


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [
        (["--json", "--tp", "8"], ("--tp", "8")),
        (["--bundle=x.tar.gz", "--model", "/m"], ("--model", "/m")),
        (["--bundle", "x.tar.gz", "--only", "a,b"], ()),
        (["--skip-checks", "a"], ("--skip-checks", "a")),
    ],
)
def test_its_own_arguments_are_taken_out(arguments: list[str], rest: tuple[str, ...]) -> None:
    assert parse(arguments).rest == rest


@pytest.mark.parametrize(
    "arguments", [["--bundle"], ["--bundle", "--json"], ["--only="], ["--only"]]
)
def test_an_argument_without_its_value_is_refused(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(arguments)


def test_help_and_list_need_no_host(nvml: Path, tmp_path: Path) -> None:
    environment = environment_of(FakeHost(gpus=(), library=False), nvml, tmp_path)
    shown = run(["-m", "ddtree_overlay.serve.cli", "doctor", "--help"], environment)
    assert (shown.code, "--bundle" in shown.out) == (0, True)
    listed = doctor(environment, "--list")
    assert "gpu-memory" in {row["name"] for row in json.loads(listed.out)}


@pytest.mark.parametrize("option", ["--skip-checks", "--only"])
def test_a_misspelt_check_is_refused(option: str, nvml: Path, tmp_path: Path) -> None:
    refused = doctor(environment_of(FakeHost(), nvml, tmp_path), option, "gpu-memroy")
    assert refused.code == 64
    assert "gpu-memory" in refused.err
    assert not refused.out


def test_text_says_what_to_do(nvml: Path, tmp_path: Path) -> None:
    environment = environment_of(FakeHost(driver="550.54", cuda=12040), nvml, tmp_path)
    shown = run(["-m", "ddtree_overlay.serve.cli", "doctor", *FAST, "--tp", "8"], environment)
    lines = shown.out.splitlines()
    assert lines[0].startswith("ERROR DRV007 driver 550.54")
    assert lines[1].startswith("  do: update the host's driver")
    assert shown.code == 74


def test_a_bundle_has_what_is_needed_and_no_secret(nvml: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRETS["file"] + "\n")
    other = tmp_path / "other"
    other.write_text(SECRETS["another file"] + "\n")
    host = FakeHost(
        command_line=f"quiet iommu=pt netroot=https://user:{SECRETS['kernel']}@boot/x "
        f"systemd.set_credential=wifi:{SECRETS['kernel']}"
    )
    environment = environment_of(
        host,
        nvml,
        tmp_path,
        DDTREE_ADMIN_API_KEY_FILE=str(key),
        DATABASE_PASSWORD_FILE=str(other),
        LEAK=f"{SECRETS['file']} {SECRETS['another file']}",
        MY_SERVICE_API_KEY=SECRETS["variable"],
        HF_TOKEN=SECRETS["token"],
        HTTPS_PROXY=f"http://me:{SECRETS['proxy']}@proxy:3128",
        NOTE=f"the key is {SECRETS['variable']}",
        NCCL_NOTE=f"the key is {SECRETS['variable']}",
        **dict.fromkeys(("PGPASSWORD", "OPENAI_KEY", "GH_PAT", "MYPASS"), SECRETS["odd name"]),
    )
    bundle = tmp_path / "support.tar.gz"
    arguments = (*FAST, "--tp", "8", "--bundle", str(bundle), "--api-key", SECRETS["argv"])
    done = doctor(environment, *arguments)
    assert done.code == 0, done.err
    assert bundle.stat().st_mode & 0o777 == 0o600
    with tarfile.open(bundle) as archive:
        files = {
            member.name.removeprefix("ddtree-support/"): archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive
        }
    everything = "\n".join(files.values()) + done.out + done.err
    assert [name for name, secret in SECRETS.items() if secret in everything] == []
    assert json.loads(files["report.json"])["exit_code"] == 0
    assert len(json.loads(files["hardware.json"])["gpus"]) == 8
    variables = json.loads(files["environment.json"])
    assert variables["NOTE"] == variables["PGPASSWORD"] == "(not shown)"
    assert variables["NCCL_NOTE"].startswith("the key is ")
    assert "iommu=pt" in files["proc/cmdline"]
    assert "tp" in files["explain.txt"]
    assert "0000:01:00.0" in files["pci.txt"]
    assert {"version.json", "proc/self/mounts", "proc/meminfo", "nvidia-smi.txt"} <= set(files)


def test_a_bundle_that_cannot_be_written_is_said(nvml: Path, tmp_path: Path) -> None:
    where = tmp_path / "missing" / "support.tar.gz"
    done = doctor(
        environment_of(FakeHost(), nvml, tmp_path), *FAST, "--tp", "8", "--bundle", str(where)
    )
    assert done.code == 75
    assert str(where) in done.err
    assert "Traceback" not in done.err
