"""Reading the drafter's configuration, with one line for whatever is wrong with its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddtree_overlay.sglang.refusal import one_line, refusal

PATH = "speculative_draft_model_path"


def check_readable(server_args: Any) -> None:
    """Raises ValueError for a drafter folder without a readable config.json.

    Before SGLang resolves anything: it reads the drafter's configuration itself, and what it says
    about a wrong path is about a Hub repository. A Hub name is left to `read_config`.
    """
    path = server_args.speculative_draft_model_path
    if not path or (server_args.decrypted_draft_config_file or "").strip():
        return
    folder = Path(path).expanduser()
    if not folder.exists() and not path.startswith(("/", "./", "../", "~")):
        return
    if folder.is_file():
        return  # a single-file format, which the loader's own parser reads
    if not folder.is_dir():
        raise refusal(PATH, path, "does not exist", "pass the drafter's folder or Hub name")
    config = folder / "config.json"
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise refusal(
            PATH,
            path,
            "has no config.json",
            "pass the folder that holds the drafter's config.json",
        ) from None
    except (OSError, ValueError) as error:
        raise refusal(
            PATH, path, f"has a config.json that cannot be read ({error})", "download it again"
        ) from None
    if not isinstance(content, dict):
        raise refusal(PATH, path, "has a config.json without an object", "download it again")


def read_config(server_args: Any) -> Any:
    """The drafter's Hugging Face configuration. Raises ValueError where it cannot be read."""
    from sglang.srt.utils.hf_transformers_utils import get_config

    check_readable(server_args)
    try:
        return get_config(
            server_args.speculative_draft_model_path,
            trust_remote_code=server_args.trust_remote_code,
            revision=server_args.speculative_draft_model_revision,
            model_override_args=json.loads(server_args.json_model_override_args),
        )
    except Exception as error:
        raise refusal(
            PATH,
            server_args.speculative_draft_model_path,
            f"has no configuration that can be read ({one_line(error, 160)})",
            "pass the drafter's folder or Hub name",
        ) from error
