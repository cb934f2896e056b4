"""What SGLang's own --config file says, as far as it must be known before SGLang reads it."""

from __future__ import annotations

import re

from ddtree_overlay.serve.catalogue import BY_FLAG
from ddtree_overlay.serve.errors import ConfigFileError, SettingError
from ddtree_overlay.serve.given import Given
from ddtree_overlay.serve.plan import Flag
from ddtree_overlay.serve.regular_file import MAX_CONFIGURATION, read_regular
from ddtree_overlay.serve.sglang_flags import flag_table

SOURCE = "SGLang config"
"""With what the source of its values begins."""
_YAML_LINE = re.compile(r"([\w-]+)\s*:(?:\s+(.*))?")


def from_yaml(path: str) -> Given:
    """Top-level keys of SGLang's own --config file, which SGLang itself reads.

    A default on argv would override them, so they must be known here; their values are taken only
    where they are plain ones. Raises ConfigFileError for a file that cannot be read, and
    UnknownSettingError for a key that is no flag.
    """
    given, source = Given(), f"{SOURCE} {path}"
    try:
        text = read_regular(path, MAX_CONFIGURATION).decode("utf-8", errors="replace")
    except OSError as error:
        raise ConfigFileError(
            f"{path}: cannot be read: {error.strerror}",
            "check the path, the mount, and that the container's user may read it",
        ) from None
    for line in text.splitlines():
        found = _YAML_LINE.fullmatch(line.rstrip())
        if not found:
            continue
        flag = flag_table().find("--" + found[1].replace("_", "-"), source)
        value, key = _yaml_scalar(found[2] or ""), BY_FLAG.get(flag.name)
        if key and key.secret:
            note = f"{found[1]} ({source}) is SGLang's to read: better {key.variable}_FILE"
            given.notes.append(note)
            continue
        if key and not value:
            raise SettingError(
                f"{found[1]} ({source}) is not a plain value on its own line", "write it so"
            )
        if key:
            given.add_key(key, value, source, choices_open=True)
        given.flags[flag.dest] = Flag(flag.name, (value,) if value else (), source)
    return given


def _yaml_scalar(text: str) -> str:
    """The value of a plain or quoted scalar, without its comment; "" for anything else."""
    text = text.strip()
    quoted = re.match(r"""(['"])(.*?)\1\s*(#.*)?$""", text)
    if quoted:
        return quoted[2]
    text = re.sub(r"(^|\s)#.*$", "", text).strip()
    return "" if text[:1] in {"[", "{", "|", ">", "&", "*", "!"} else text
