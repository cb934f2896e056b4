"""JSON that somebody else wrote: whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(content: bytes | str) -> Any:
    """RFC 8259, without the numbers that Python adds to it.

    Raises ValueError, also for nesting that is too deep for the reader and for numbers beyond a
    double: `int()` of an infinity is another exception than that of a word.
    """
    try:
        return json.loads(content, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is beyond a double")
    return value
