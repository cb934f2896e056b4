"""Replace functions of SGLang with a check that there is something to replace.

SGLang's own HookRegistry logs a hook whose target is gone and runs on without it. A proof that
lost a shim may still give an answer, so here a missing or changed target is an error.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ddtree_overlay.sglang.cpu_proof.errors import CpuProofError


@dataclass(frozen=True)
class Shim:
    """One replacement.

    target: dotted path of a function or method of SGLang.
    parameters: the names that the target's parameters have in SGLang 0.5.17.
    function: `function(original, *args, **kwargs)`, called in the target's place.
    """

    target: str
    parameters: tuple[str, ...]
    function: Callable[..., Any]


def apply(shims: Sequence[Shim]) -> None:
    """Put every shim in place, or none where one does not fit.

    Raises:
        CpuProofError: a target is missing, has other parameters, or is bound somewhere that the
            replacement does not reach.
    """
    from sglang.srt.plugins.hook_registry import (  # type: ignore[import-not-found, unused-ignore]
        HookRegistry,
        HookType,
    )

    originals = {shim.target: find(shim.target, shim.parameters) for shim in shims}
    for shim in shims:
        HookRegistry.register(shim.target, shim.function, HookType.AROUND)
    HookRegistry.apply_hooks()
    for target, original in originals.items():
        current = find(target, None)
        if current is original or getattr(current, "__wrapped__", None) is not original:
            raise CpuProofError(
                f"SGLang did not replace {target}", "read its log for the reason above this line"
            )
        if stale := _still_bound(original):
            raise CpuProofError(
                f"{target} is replaced, but {', '.join(stale)} still holds the original",
                "import that module later, or add its name to the shims",
            )


def find(target: str, parameters: tuple[str, ...] | None) -> Any:
    """The object at a dotted path, its parameters checked unless None.

    Raises:
        CpuProofError: there is no such object, or its parameters have other names.
    """
    remedy = "use the SGLang version that this overlay was made for, or adapt the shim"
    path, name = target.rsplit(".", 1)
    try:
        found = pkgutil.resolve_name(target)
        owner = pkgutil.resolve_name(path)
        if isinstance(owner, type) and name not in vars(owner):
            raise AttributeError(f"{path} inherits {name}")
    except (ImportError, AttributeError) as error:
        raise CpuProofError(f"SGLang has no {target} to replace ({error})", remedy) from error
    if parameters is not None:
        actual = tuple(inspect.signature(found).parameters)
        if actual != parameters:
            raise CpuProofError(
                f"{target} takes {actual}, its replacement was written for {parameters}", remedy
            )
    return found


def _still_bound(original: Any) -> list[str]:
    """Modules with a name of their own for the original."""
    return [
        f"{module.__name__}.{name}"
        for module in list(sys.modules.values())
        if isinstance(module, types.ModuleType)
        for name, value in list(vars(module).items())
        if value is original
    ]
