"""What must not be shown: recognised by name, so that it also holds for what we never heard of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HIDDEN = "(hidden)"
# Whole words of a name only: `tokenizer_path` and `max_tokens` are none, `HF_TOKEN` is one; and a
# token is a secret as the last word only: `--speculative-token-map` is a file of a vocabulary.
_SECRET_NAME = re.compile(
    r"(?:^|[^a-z0-9])"
    r"(?:password|passwd|passphrase|pwd|secret|credentials?|auth|authorization|bearer|cookie)"
    r"(?:$|[^a-z0-9])"
    r"|(?:^|[^a-z0-9])(?<!per[-_])(?<!first[-_])token$"
    r"|(?:api|access|secret|private|signing|encryption|ssl|account)[-_. ]?keys?(?:$|[^a-z0-9])"
    r"|passw(?:or)?d|(?:^|[^a-z0-9])(?:key|pat)$",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"(?:_FILE|-file|_fd|_path|-path|-keyfile|-filename)$", re.IGNORECASE)
_USER_INFO = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s]+@", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<name>[\"']?[\w.-]*(?:api[-_]?key|token|password|secret|authorization)[\"']?\s*[:=]\s*)"
    r"(?:bearer\s+)?(?P<quote>[\"']?)(?P<value>[^\s\"',}&]+)(?P=quote)",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether a flag, variable or key of this name holds a secret. A name of a file that holds one
    (`*_FILE`, `--ssl-keyfile`) does not."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS.search(name)


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Known secrets, user names in URLs, and values assigned to a name that tells: hidden."""
    for secret in sorted({s for s in secrets if s}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _USER_INFO.sub(rf"\g<scheme>{HIDDEN}@", text)
    return _ASSIGNED.sub(_hide_assigned, text)


def _hide_assigned(found: re.Match[str]) -> str:
    # `max_tokens: 5` is a count, and "token" alone in prose is followed by no secret.
    value, name = found["value"], found["name"].rstrip(" :=\t").strip("\"'")
    if not is_secret_name(name) or value.startswith("("):
        return found[0]
    return f"{found['name']}{found['quote']}{HIDDEN}{found['quote']}"


def redact_value(name: str, value: str, secrets: Iterable[str] = ()) -> str:
    """A value as it may be shown under its name."""
    return HIDDEN if value and is_secret_name(name) else redact_text(value, secrets)


def redact_environment(
    environment: Mapping[str, str], secrets: Iterable[str] = ()
) -> dict[str, str]:
    """All variables, the values of secret ones hidden."""
    hidden = tuple(secrets)
    return {name: redact_value(name, environment[name], hidden) for name in sorted(environment)}


def redact_argv(argv: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """Arguments as they may be shown: the value after (or behind the = of) a secret's flag."""
    hidden, shown, after = tuple(secrets), [], False
    for part in argv:
        name, equals, value = part.partition("=")
        if after and not part.startswith("--"):
            shown.append(HIDDEN)
            after = False
        elif part.startswith("--") and is_secret_name(name):
            shown.append(f"{name}={HIDDEN}" if equals else part)
            after = not equals
        elif part.startswith("--") and equals:
            shown.append(f"{name}={redact_value(name, value, hidden)}")
            after = False
        else:
            shown.append(redact_text(part, hidden))
            after = False
    return shown


def redact_json(value: Any, secrets: Iterable[str] = (), name: str = "") -> Any:
    """A document of JSON's types, every text in it as it may be shown."""
    hidden = tuple(secrets)
    if isinstance(value, dict):
        return {key: redact_json(part, hidden, str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_json(part, hidden, name) for part in value]
    return redact_value(name, value, hidden) if isinstance(value, str) else value
