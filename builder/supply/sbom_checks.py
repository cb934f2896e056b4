"""Attested SBOMs are read by the libraries of their formats; a list of nothing is not one."""

from __future__ import annotations

import warnings
from typing import Any

from cyclonedx.model.bom import Bom
from spdx_tools.spdx.parser.error import SPDXParsingError
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser

from builder.errors import EvidenceError
from builder.supply.image_checks import Image


def check_spdx(predicate: dict[str, Any], image: Image) -> str:
    """SPDX 2.3 (spdx.github.io/spdx-spec/v2.3). Raises EvidenceError."""
    version = str(predicate.get("spdxVersion", ""))
    if version != "SPDX-2.3":
        raise EvidenceError(f"it is {version or 'no SPDX'}, not SPDX-2.3", "")
    try:
        parser: Any = JsonLikeDictParser  # untyped
        document = parser().parse(predicate)
    except SPDXParsingError as exc:
        messages: list[str] = exc.messages
        raise EvidenceError(f"it does not parse as SPDX: {messages[0]}", "") from None
    except Exception as exc:  # the parser expects the schema's types
        raise EvidenceError(f"it does not parse as SPDX: {type(exc).__name__}", "") from None
    return _counted(len(document.packages), len(document.files), version)


def check_cyclonedx(predicate: dict[str, Any], image: Image) -> str:
    """CycloneDX JSON (cyclonedx.org/specification). Raises EvidenceError."""
    if predicate.get("bomFormat") != "CycloneDX":
        raise EvidenceError("it is not CycloneDX", "")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bom: Any = Bom.from_json(predicate)  # type: ignore[attr-defined]
            count = len(bom.components)
    except Exception as exc:  # whatever the reader cannot make sense of
        raise EvidenceError(f"it does not parse as CycloneDX: {type(exc).__name__}", "") from None
    return _counted(count, 0, f"CycloneDX {predicate.get('specVersion')}")


def _counted(components: int, files: int, version: str) -> str:
    if not components:
        raise EvidenceError("it lists nothing", "")
    return f"{version}, {components} components" + (f", {files} files" if files else "")
