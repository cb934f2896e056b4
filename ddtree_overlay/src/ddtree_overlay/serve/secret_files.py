"""A secret from its value or from its file, never both."""

from __future__ import annotations

from ddtree_overlay.serve.catalogue import Key
from ddtree_overlay.serve.errors import SecretError
from ddtree_overlay.serve.plan import Secret
from ddtree_overlay.serve.regular_file import read_regular

MAX_BYTES = 16384
"""Of a secret's file: whatever is larger is another file, mounted by mistake."""

MAX_KEY = 1000
"""Characters of a key. The keys go to the server together, through a pipe of one page
(launch_spec.py), quotes and backslashes escaped."""


def secret_of(
    key: Key, text: str | None, file: str | None, text_source: str, file_source: str
) -> Secret | None:
    """None where neither is given. Raises SecretError; no message holds the secret."""
    if text is not None and file is not None:
        raise SecretError(
            f"{key.name} is given both as a value ({text_source}) and as a file ({file_source})",
            f"keep the file, {key.variable}_FILE",
        )
    if text is not None:
        return Secret(_one_line(text, f"{key.name} ({text_source})"), text_source)
    if file is None:
        return None
    return Secret(
        _one_line(_read(key, file, file_source), f"{file}, named by {file_source},"), file
    )


def _read(key: Key, file: str, source: str) -> str:
    try:
        return read_regular(file, MAX_BYTES).decode("utf-8")
    except OSError as error:
        raise SecretError(
            f"{file}, named by {source}, cannot be read: {error.strerror}",
            f"mount the file that holds {key.name} alone, readable for the container's user",
        ) from None
    except UnicodeDecodeError:
        raise SecretError(
            f"{file}, named by {source}, is not text", "name the file that holds the key alone"
        ) from None


def _one_line(text: str, where: str) -> str:
    """Without the line's end. Raises SecretError for an empty one and for several lines."""
    stripped = text.removesuffix("\n").removesuffix("\r")
    if not stripped.strip():
        raise SecretError(f"{where} is empty", "put the key into it, on one line")
    if not stripped.isprintable():
        raise SecretError(
            f"{where} has several lines or unprintable characters", "put the key alone into it"
        )
    if stripped != stripped.strip():
        raise SecretError(f"{where} begins or ends with a blank", "remove it")
    if not stripped.isascii():
        raise SecretError(
            f"{where} has characters that an HTTP header cannot carry",
            "use printable ASCII characters",
        )
    if len(stripped) > MAX_KEY:
        raise SecretError(
            f"{where} has {len(stripped)} characters, and a key may have {MAX_KEY}",
            "use a shorter key",
        )
    return stripped
