"""Pins: images/pins.toml and images/<variant>.toml, parsed strictly, checked against each other.

The TOML edge is pydantic (frozen, strict, unknown keys forbidden). Everything behind it uses
`Target`, a frozen dataclass that says what one image is made from. A target is a variant, or a
variant's *stand-in*: the same code path from PyPI alone, for tests, never for a GPU.
"""

from builder.pins.load import all_targets, known_variants, load_shared, load_target, load_variant
from builder.pins.rules import check_target
from builder.pins.schema import (
    EnginePins,
    LockPins,
    PythonPins,
    SharedPins,
    SourcePin,
)
from builder.pins.target import Target

__all__ = [
    "EnginePins",
    "LockPins",
    "PythonPins",
    "SharedPins",
    "SourcePin",
    "Target",
    "all_targets",
    "check_target",
    "known_variants",
    "load_shared",
    "load_target",
    "load_variant",
]
