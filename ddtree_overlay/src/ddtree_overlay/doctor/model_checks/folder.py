"""The model's folder: there, readable, with a configuration that this image's SGLang can load."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

from ddtree_overlay.doctor.model import Check, Finding, Severity, Subject
from ddtree_overlay.doctor.model_checks import codes, configuration
from ddtree_overlay.doctor.model_checks.configuration import Config
from ddtree_overlay.doctor.model_checks.known import Known, installed
from ddtree_overlay.doctor.model_checks.source import (
    Source,
    Unusable,
    configured,
    locate,
    read_config,
    read_object,
    sources,
)


def check_folder(subject: Subject) -> Iterable[Finding]:
    """Of target and drafter: folder, permissions, config.json, generation_config.json."""
    for name, role in sources(subject):
        try:
            source = locate(name, role, subject)
            if not os.access(source.folder, os.R_OK | os.X_OK):
                yield codes.UNREADABLE.found(
                    f"the {role} {name} cannot be listed by UID {os.getuid()}"
                )
                continue
            read_config(source)
            yield from _check_generation(source)
        except Unusable as unusable:
            yield _softened(unusable.finding, name, role, subject)


def check_architecture(subject: Subject) -> Iterable[Finding]:
    """Of the target: model_type and architecture are known, or its own code is trusted. A drafter's
    are the drafter check's."""
    found = configured(subject).get("model")
    if found is not None:
        yield from architecture_findings(found[1], subject.trust_remote_code, installed())


def architecture_findings(config: Config, trusted: bool, known: Known) -> Iterable[Finding]:
    """The same of a configuration and of what is known."""
    name = configuration.architecture(config)
    if name is None:
        yield codes.BAD_CONFIG.found("config.json states no architectures")
        return
    model_type = config.get("model_type")
    native = name in known.architectures
    own_config = _maps(config, "AutoConfig")
    if not isinstance(model_type, str):
        yield codes.BAD_CONFIG.found("config.json states no model_type")
    elif known.model_types and model_type not in known.model_types and not (own_config and trusted):
        if own_config:
            yield codes.REMOTE_CODE.found(f"model_type {model_type} is defined by the model's code")
        else:
            near = difflib.get_close_matches(model_type, known.model_types, 1)
            hint = f" (the nearest is {near[0]})" if near else ""
            yield codes.UNKNOWN_TYPE.found(f"unknown model_type {model_type}{hint}")
        return
    if native or not known.architectures or not known.transformers_architectures:
        return
    if name in known.transformers_architectures:
        yield codes.UNKNOWN_ARCHITECTURE.found(
            f"SGLang has no {name}; it runs on Transformers' implementation: slower, and "
            "DFLASH and DDTREE cannot read its layers",
            severity=Severity.WARNING,
        )
    elif _maps(config, "AutoModel"):
        if not trusted:
            yield codes.REMOTE_CODE.found(f"architecture {name} is defined by the model's code")
    else:
        near = difflib.get_close_matches(name, known.architectures, 1)
        hint = f" (the nearest is {near[0]})" if near else ""
        yield codes.UNKNOWN_ARCHITECTURE.found(f"unknown architecture {name}{hint}")


def _maps(config: Config, kind: str) -> bool:
    own = config.get("auto_map")
    return isinstance(own, dict) and any(str(key).startswith(kind) for key in own)


def _softened(finding: Finding, name: str, role: str, subject: Subject) -> Finding:
    """Mistral's own layout has params.json instead, which SGLang reads too."""
    if finding.code != codes.NO_CONFIG.id:
        return finding
    source = locate(name, role, subject)
    if not (source.folder / "params.json").is_file():
        return finding
    return codes.NO_CONFIG.found(
        f"the {role} {name} has params.json and no config.json: it was not checked further",
        severity=Severity.WARNING,
    )


def _check_generation(source: Source) -> Iterable[Finding]:
    try:
        read_object(source.folder / "generation_config.json", source.role)
    except FileNotFoundError:
        return
    except Unusable as unusable:
        yield codes.BAD_GENERATION.found(unusable.finding.what)


CHECKS = (
    Check(
        "model-folder",
        "The model's folder and its config.json can be read",
        (
            codes.NO_FOLDER,
            codes.UNREADABLE,
            codes.NO_CONFIG,
            codes.BAD_CONFIG,
            codes.LFS_POINTER,
            codes.NOT_CACHED,
            codes.NOT_LOCAL,
            codes.BAD_GENERATION,
            codes.SINGLE_FILE,
        ),
        check_folder,
        needs="model",
    ),
    Check(
        "model-architecture",
        "SGLang knows the model's type and architecture",
        (codes.UNKNOWN_TYPE, codes.UNKNOWN_ARCHITECTURE, codes.REMOTE_CODE, codes.BAD_CONFIG),
        check_architecture,
        needs="model",
    ),
)
