"""The appliance's own settings: name, type, default, help, and the SGLang flag that each sets.

Each can come from the command line (`--name-with-dashes`, and every SGLang spelling of its flag),
the environment (`DDTREE_NAME`), a TOML file, a profile, or the default here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from ddtree_overlay.serve.errors import SettingError
from ddtree_overlay.serve.sglang_flags import nearest

PREFIX = "DDTREE_"
NO_ALGORITHM = "NONE"
TREE_ALGORITHMS = ("DDTREE", "DFLASH")
"""Those that need a drafter of the DFlash kind."""
# DFLASH and the rest are SGLang 0.5.17's; NONE is ours, for no speculation.
ALGORITHMS = (
    *("DDTREE", "DFLASH", NO_ALGORITHM, "DSPARK", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN"),
    *("NGRAM", "STANDALONE"),
)
_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}
_SIZE = re.compile(r"(\d+)(k|M|Ki|Mi)")
_UNITS = {"k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20}


@dataclass(frozen=True)
class Key:
    """One setting.

    type: "str", "int", "float", "bool", "list" (comma-separated) or "size" (an integer, or one with
        k, M, Ki, Mi).
    default: None means unset: SGLang's own default, or computed from the host.
    flag: the SGLang flag, in canonical spelling, that carries it; None if it is not SGLang's.
    """

    name: str
    type: str
    default: Any
    help: str
    flag: str | None = None
    secret: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def parse(self, given: Any, source: str) -> Any:
        """The typed value of a text (from argv or the environment) or of a TOML value.

        Raises SettingError, which names key, value and source.
        """
        if self.secret:
            return str(given)
        try:
            value = _convert(self.type, given)
        except (ValueError, TypeError):  # TypeError: TOML has dates
            raise SettingError(
                f"{self.name} ({source}) is {given!r}, which is not {_WANTED[self.type]}",
                f"give {_WANTED[self.type]}",
            ) from None
        return self._checked(value, source)

    def _checked(self, value: Any, source: str) -> Any:
        if self.choices:
            folded = {choice.lower(): choice for choice in self.choices}
            if str(value).lower() not in folded:
                raise SettingError(
                    f"{self.name} ({source}) is {value!r}, which it cannot be",
                    nearest(str(value), self.choices, f"one of {', '.join(self.choices)}"),
                )
            return folded[str(value).lower()]
        low, high = self.minimum, self.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise SettingError(
                f"{self.name} ({source}) is {value}, which is out of range", f"it must be {bounds}"
            )
        return value


_WANTED = {
    "str": "a text that is not empty",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list of words with commas between",
    "size": "a whole number (k, M, Ki, Mi allowed)",
}


def _convert(kind: str, given: Any) -> Any:
    """Raises ValueError."""
    if kind == "bool":
        return _boolean(given)
    if isinstance(given, bool):
        raise ValueError
    if kind == "list":
        return _words(given)
    if isinstance(given, (list, dict)) or not str(given).strip():
        raise ValueError
    if kind == "str":
        if not isinstance(given, str) or "\n" in given or "\0" in given:
            raise ValueError
        return given
    if kind == "float":
        number = float(given)
        if not math.isfinite(number):
            raise ValueError
        return number
    if kind == "size" and isinstance(given, str) and (found := _SIZE.fullmatch(given.strip())):
        return int(found[1]) * _UNITS[found[2]]
    if isinstance(given, float):
        raise ValueError
    return int(given)


def _boolean(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    word = str(given).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError


def _words(given: Any) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise ValueError
    return tuple(part.strip() for part in parts if part.strip())


KEYS: tuple[Key, ...] = (
    Key(
        "profile", "str", None, "profile of values; without it, chosen from the GPUs and the model"
    ),
    Key("config", "str", None, "TOML file of settings (/etc/ddtree/config.toml if it exists)"),
    Key("model", "str", None, "folder of the model", "--model-path"),
    Key(
        "draft_model", "str", None, "folder of its DFlash drafter", "--speculative-draft-model-path"
    ),
    Key("served_model_name", "str", None, "the model's name in the API", "--served-model-name"),
    Key(
        *("algorithm", "str", None, "how tokens are drafted; NONE: plain decoding"),
        flag="--speculative-algorithm",
        choices=ALGORITHMS,
    ),
    Key(
        *("budget", "int", None, "nodes of a draft tree (DDTREE)", "--speculative-ddtree-budget"),
        minimum=1,
        maximum=1024,
    ),
    Key(
        *("topk", "int", None, "candidates per position (DDTREE)", "--speculative-ddtree-topk"),
        minimum=1,
        maximum=64,
    ),
    Key("tp", "int", None, "GPUs that share one model (tensor parallel)", "--tp-size", minimum=1),
    Key("pp", "int", 1, "pipeline stages", "--pp-size", minimum=1),
    Key("dp", "int", 1, "data-parallel replicas behind one port", "--dp-size", minimum=1),
    Key("nnodes", "int", 1, "hosts that share one model", "--nnodes", minimum=1),
    Key("node_rank", "int", 0, "this host's number among them, from 0", "--node-rank", minimum=0),
    Key("dist_init_addr", "str", None, "HOST:PORT of the first of them", "--dist-init-addr"),
    Key("host", "str", "0.0.0.0", "address that the API listens on", "--host"),  # noqa: S104
    Key("port", "int", 30000, "port of the API", "--port", minimum=1, maximum=65535),
    Key("probe_host", "str", "0.0.0.0", "address that the probes listen on"),  # noqa: S104
    Key("probe_port", "int", 30080, "port of the probes", minimum=1, maximum=65535),
    Key(
        *("memory_fraction", "float", None, "part of a GPU's memory for weights and KV cache"),
        flag="--mem-fraction-static",
        minimum=0.05,
        maximum=0.98,
    ),
    Key("context_length", "size", None, "longest request in tokens", "--context-length", minimum=1),
    Key(
        *("max_running_requests", "int", None, "requests decoded at once"),
        flag="--max-running-requests",
        minimum=1,
    ),
    Key("attention_backend", "str", None, "attention kernels", "--attention-backend"),
    Key("device", "str", "cuda", "cuda or cpu", "--device", choices=("cuda", "cpu")),
    Key("api_key", "str", None, "key that requests must carry", "--api-key", secret=True),
    Key(
        *("admin_api_key", "str", None, "key of SGLang's administration endpoints"),
        flag="--admin-api-key",
        secret=True,
    ),
    Key("cache_dir", "str", "/var/cache/ddtree", "folder of compiled kernels and downloads"),
    Key(
        *("peer_to_peer", "str", "auto", "GPUs read each other's memory; auto: as tested at start"),
        choices=("auto", "on", "off"),
    ),
    Key("skip_checks", "list", (), "names of checks not to run at start"),
    Key("drain_seconds", "float", 90.0, "time that running requests have after SIGTERM", minimum=0),
    Key("kill_seconds", "float", 10.0, "time that processes have between TERM and KILL", minimum=0),
    Key(
        *(
            "progress_seconds",
            "float",
            120.0,
            "time without a token, while requests wait, that counts",
        ),
        minimum=1,
    ),
    Key("start_seconds", "float", 1800.0, "time until ready before giving up; 0: none", minimum=0),
    Key("metrics", "bool", True, "export Prometheus metrics", "--enable-metrics"),
    Key("sglang_args", "str", None, "further SGLang flags, quoted as for a shell"),
)

BY_NAME = {key.name: key for key in KEYS}
BY_OPTION = {key.option: key for key in KEYS}
BY_FLAG = {key.flag: key for key in KEYS if key.flag}
BY_VARIABLE = {key.variable: key for key in KEYS}

NOT_IN_FILES = frozenset({"config", "profile", "sglang_args"})
"""Of these a profile may set none, and the configuration file only `profile` and `sglang_args`."""


def help_text() -> str:
    """The settings, one a line, for --help."""
    width = max(len(key.option) for key in KEYS)
    return "\n".join(f"  {key.option:<{width}}  {key.help}{_default(key)}" for key in KEYS)


def _default(key: Key) -> str:
    if key.default in (None, ()):
        return ""
    shown = str(key.default).lower() if isinstance(key.default, bool) else key.default
    return f" ({shown})"
