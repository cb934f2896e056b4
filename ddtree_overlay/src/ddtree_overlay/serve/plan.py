"""What configuration resolves to: each value with where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Value:
    """A setting and its source in words: "command line", "environment DDTREE_TP", "file
    /etc/ddtree/config.toml", "profile dense-8x", "default", "computed: 8 GPUs are visible"."""

    value: Any
    source: str


@dataclass(frozen=True)
class Flag:
    """One SGLang flag in canonical spelling ("--tp-size"), its values as argv has them (none for a
    switch), and where it came from."""

    name: str
    values: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Secret:
    """A secret's bytes as text, never shown: repr and str are its source only."""

    text: str = field(repr=False)
    source: str

    def __str__(self) -> str:
        return f"(set, from {self.source})"


@dataclass(frozen=True)
class Plan:
    """A whole configuration, ready to be checked, shown or run.

    settings: the appliance's own keys by name (serve/catalogue.py), typed.
    flags: SGLang's argv in order; a flag appears once. The model's path, ports, tensor parallelism
        and so on are here too, in SGLang's spelling.
    environment: variables of the server's process that we set (NCCL, JIT caches).
    secrets: "api_key", "admin_api_key"; in neither of the above.
    """

    settings: Mapping[str, Value]
    flags: tuple[Flag, ...]
    environment: Mapping[str, Value]
    secrets: Mapping[str, Secret]
    profile: str
    notes: tuple[str, ...] = ()

    def get(self, name: str) -> Any:
        """A setting's value. Raises KeyError for a name that the catalogue lacks."""
        return self.settings[name].value

    def flag(self, name: str) -> str | None:
        """The (first) value of a flag in canonical spelling; "" for a switch; None if absent."""
        for flag in self.flags:
            if flag.name == name:
                return flag.values[0] if flag.values else ""
        return None

    @property
    def replicas(self) -> int:
        """Replicas (dp) with GPUs of their own; those of attention alone share one group."""
        return 1 if self.flag("--enable-dp-attention") is not None else self.get("dp") or 1

    def argv(self) -> tuple[str, ...]:
        """SGLang's arguments, without the program."""
        return tuple(part for flag in self.flags for part in (flag.name, *flag.values))

    def with_flag(self, flag: Flag) -> Plan:
        """A copy in which the flag is set, in its old place if it had one."""
        names = [old.name for old in self.flags]
        if flag.name in names:
            kept = tuple(flag if old.name == flag.name else old for old in self.flags)
        else:
            kept = (*self.flags, flag)
        return replace(self, flags=kept)
