"""The weight files: each sound, all there, and together no more than the GPUs hold."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ddtree_overlay.doctor.model import Check, Finding, Severity, Subject
from ddtree_overlay.doctor.model_checks import codes
from ddtree_overlay.doctor.model_checks.safetensors import Shard, read_shard
from ddtree_overlay.doctor.model_checks.source import Source, Unusable, each, read_object

INDEX = "model.safetensors.index.json"
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.safetensors")
_OLD = ("*.bin", "*.pt", "*.pth")
_OLD_OTHERS = frozenset({"training_args.bin", "scheduler.pt", "optimizer.bin", "optimizer.pt"})
_DERIVED = ("lm_head.weight", ".rotary_emb.inv_freq")
"""Tensors that writers drop after the index is made: tied to the embedding, or computed."""
_CONSOLIDATED = re.compile(r"consolidated[\w.-]*\.safetensors")
"""The same weights once more, as Mistral publishes them; SGLang goes by the index."""
_SHOWN = 3
_AT_ONCE = 8
SECONDS = 180.0
"""Two hundred shards on object storage, several reads each."""


@dataclass
class Weights:
    """What a folder holds: findings, and the bytes of the sound files that would be loaded."""

    findings: list[Finding] = field(default_factory=list)
    data_bytes: int = 0


def check_weights(subject: Subject) -> Iterable[Finding]:
    """Of target and drafter: every header and size, the index, formats, git-lfs pointers."""
    if subject.dummy_weights:
        return ()
    return each(subject, lambda source: read_weights(source).findings)


def read_weights(source: Source) -> Weights:
    """Reads the headers of all files of a model's folder."""
    weights = Weights()
    try:
        files = sorted(path for path in source.folder.glob("*.safetensors"))
        index = _read_index(source)
    except Unusable as unusable:
        weights.findings.append(unusable.finding)
        return weights
    except OSError as error:
        weights.findings.append(
            codes.UNREADABLE.found(f"{source.folder} cannot be listed ({error.strerror})")
        )
        return weights
    if not files and index is None:
        weights.findings.extend(_check_old(source, weights))
        return weights
    by_shard = _by_shard(index) if index is not None else {}
    names = {path.name for path in files}
    if index is not None:
        weights.findings.extend(_check_strays(source, sorted(names - set(by_shard))))
        names = set(by_shard)
    shards = {}
    for name, result in _read_all(source.folder, sorted(names)):
        if isinstance(result, Shard):
            shards[name] = result
        else:
            weights.findings.append(result)
    if index is None:
        weights.findings.extend(_check_numbers(source.folder, [path.name for path in files]))
    else:
        weights.findings.extend(_check_index(source.folder, index, by_shard, shards))
    weights.data_bytes = sum(shard.data_bytes for shard in shards.values())
    return weights


def _read_all(folder: Path, names: list[str]) -> list[tuple[str, Shard | Finding]]:
    """Several at once: on a network file system each costs a few round trips."""

    def one(name: str) -> Shard | Finding:
        try:
            return read_shard(folder / name)
        except FileNotFoundError:
            return codes.SHARD_MISSING.found(f"{folder / name}, named in {INDEX}, is absent")
        except Unusable as unusable:
            return unusable.finding

    results: dict[str, Shard | Finding] = {}
    waiting = iter(names)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                name = next(waiting, None)
            if name is None:
                return
            results[name] = one(name)

    # Daemons, unlike a pool's: a read that never returns must not keep the process from its end.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(names)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [(name, results[name]) for name in names]


def _read_index(source: Source) -> dict[str, object] | None:
    path = source.folder / INDEX
    try:
        index = read_object(path, source.role)
    except FileNotFoundError:
        return None
    except Unusable as unusable:
        if unusable.finding.code != codes.BAD_CONFIG.id:
            raise
        raise Unusable(codes.BAD_INDEX.found(unusable.finding.what)) from None
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise Unusable(codes.BAD_INDEX.found(f"{path} has no weight_map"))
    wrong = [str(value) for value in names.values() if not _is_name(value)]
    if wrong:
        raise Unusable(codes.BAD_INDEX.found(f"{path} names {wrong[0]!r}, which is no file name"))
    return index


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value == Path(value).name and value not in ("", ".", "..")


def _by_shard(index: dict[str, object]) -> dict[str, set[str]]:
    names = index["weight_map"]
    found: dict[str, set[str]] = defaultdict(set)
    if isinstance(names, dict):
        for tensor, shard in names.items():
            found[str(shard)].add(str(tensor))
    return dict(found)


def _check_index(
    folder: Path, index: dict[str, object], by_shard: dict[str, set[str]], shards: dict[str, Shard]
) -> Iterable[Finding]:
    lacking = {name: sorted(by_shard[name] - shard.tensors) for name, shard in shards.items()}
    for name, missing in lacking.items():
        if missing:
            shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
            harmless = all(tensor.endswith(_DERIVED) for tensor in missing)
            yield codes.INDEX_DISAGREES.found(
                f"{folder / name} lacks {len(missing)} tensors that {INDEX} names: {shown}",
                severity=Severity.WARNING if harmless else None,
            )
    metadata = index.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = sum(shard.data_bytes for shard in shards.values())
    comparable = len(shards) == len(by_shard) and not any(lacking.values())
    if isinstance(stated, int) and comparable and stated > total:
        # Only a larger number says that something is missing.
        yield codes.STRAY_FILE.found(
            f"{folder / INDEX} states {stated} bytes of weights, the shards hold {total}"
        )


def _check_strays(source: Source, strays: list[str]) -> Iterable[Finding]:
    strays = [name for name in strays if not _CONSOLIDATED.fullmatch(name)]
    if strays:
        yield codes.STRAY_FILE.found(
            f"{len(strays)} files of the {source.role} are not in {INDEX}, "
            f"{source.folder / strays[0]} first"
        )


def _check_numbers(folder: Path, names: list[str]) -> Iterable[Finding]:
    """Without an index the names alone tell how many shards there are."""
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for match in filter(None, map(_NUMBERED.fullmatch, names)):
        seen[match["stem"], match["count"]].add(int(match["number"]))
    for (stem, count), numbers in seen.items():
        missing = sorted(set(range(1, int(count) + 1)) - numbers)
        # Some writers count from 0.
        if 0 in numbers:
            missing = sorted(set(range(int(count))) - numbers)
        if missing:
            first = f"{stem}-{missing[0]:0{len(count)}d}-of-{count}.safetensors"
            yield codes.SHARD_MISSING.found(
                f"{len(missing)} of {int(count)} shards are absent, {folder / first} first"
            )


def _check_old(source: Source, weights: Weights) -> Iterable[Finding]:
    old = [path for pattern in _OLD for path in sorted(source.folder.glob(pattern))]
    old = [path for path in old if path.name not in _OLD_OTHERS]
    if old:
        weights.data_bytes = sum(path.stat().st_size for path in old)
        yield codes.OLD_FORMAT.found(
            f"the {source.role} {source.name} has {len(old)} pickled files, {old[0].name} first"
        )
    elif not list(source.folder.glob("*.gguf")):
        yield codes.NO_WEIGHTS.found(f"the {source.role} {source.name} has no *.safetensors")


CHECKS = (
    Check(
        "weights",
        "Every weight file is whole and all of them are there",
        (
            codes.NO_WEIGHTS,
            codes.LFS_POINTER,
            codes.TRUNCATED,
            codes.BAD_HEADER,
            codes.SHARD_MISSING,
            codes.INDEX_DISAGREES,
            codes.BAD_INDEX,
            codes.STRAY_FILE,
            codes.OLD_FORMAT,
            codes.UNREADABLE,
        ),
        check_weights,
        needs="model",
        seconds=SECONDS,
    ),
)
