"""What counts as a secret by its name, and that it is hidden in every form."""

from __future__ import annotations

import pytest

from ddtree_overlay.serve.redact import (
    is_secret_name,
    redact_argv,
    redact_environment,
    redact_json,
    redact_text,
)

SECRET = "hunter22"


@pytest.mark.parametrize(
    "name",
    [
        *("DDTREE_API_KEY", "DDTREE_ADMIN_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "PGPASSWORD_PASSWORD", "DB_PASSWORD"),
        *("--api-key", "--admin-api-key", "--ssl-keyfile-password", "client.secret", "apiKey"),
        *("PGPASSWORD", "MYSQL_PASSWD", "OPENAI_KEY", "GH_PAT"),
        *("REGISTRY_AUTH", "SESSION_COOKIE", "OPENAI_API_KEY", "GITHUB_TOKEN", "authorization"),
    ],
)
def test_these_names_hold_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("DDTREE_API_KEY_FILE", "--tokenizer-path", "--max-total-tokens", "--max-prefill-tokens"),
        *(
            "--tokenizer-mode",
            "--ssl-keyfile",
            "--kt-max-deferred-experts-per-token",
            "TOKENIZERS_PARALLELISM",
            "PATH",
        ),
        *("--speculative-num-draft-tokens", "--num-reserved-decode-tokens", "monkey", "NCCL_DEBUG"),
        *("--tbo-token-distribution-threshold-x", "--speculative-token-map", "tokens", "author"),
    ],
)
def test_these_do_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--api-key", SECRET], ["--api-key", "(hidden)"]),
        ([f"--api-key={SECRET}"], ["--api-key=(hidden)"]),
        (
            ["--page-size", "1", "--hf-token", SECRET],
            ["--page-size", "1", "--hf-token", "(hidden)"],
        ),
        (["--x", f"https://me:{SECRET}@host/p"], ["--x", "https://(hidden)@host/p"]),
        (["--api-key", "--tp", "8"], ["--api-key", "--tp", "8"]),
        (["--max-total-tokens", "4096"], ["--max-total-tokens", "4096"]),
    ],
)
def test_argv(argv: list[str], shown: list[str]) -> None:
    assert redact_argv(argv) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"api_key={SECRET}",
        f"api_key: '{SECRET}'",
        f'{{"api_key": "{SECRET}", "x": 1}}',
        f"Authorization: Bearer {SECRET}",
        f"GET /v1?api-key={SECRET}&x=1",
        f"HF_TOKEN={SECRET} python",
        f"server_args=ServerArgs(api_key='{SECRET}', port=1)",
        f"https://user:{SECRET}@example.org/x",
    ],
)
def test_text(text: str) -> None:
    shown = redact_text(text)
    assert SECRET not in shown and "(hidden)" in shown


def test_a_known_secret_is_hidden_wherever_it_stands() -> None:
    assert redact_text(f"key {SECRET}!", [SECRET]) == "key (hidden)!"
    assert redact_text("abc abcdef", ["abc", "abcdef", ""]) == "(hidden) (hidden)"


@pytest.mark.parametrize(
    "text", ["max_total_tokens=4096", "tokenizer_path='/m'", "token: (set)", "8 tokens"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_documents_and_environments() -> None:
    document = {"api_key": SECRET, "list": [{"password": SECRET}, "x"], "n": 3, "tokens": ["5"]}
    shown = redact_json(document)
    assert SECRET not in str(shown)
    assert (shown["n"], shown["list"][1], shown["tokens"]) == (3, "x", ["5"])
    environment = {"HF_TOKEN": SECRET, "PATH": "/bin", "URL": f"http://a:{SECRET}@h/"}
    hidden = redact_environment(environment)
    assert (
        hidden["PATH"] == "/bin" and SECRET not in str(hidden) and set(hidden) == set(environment)
    )
