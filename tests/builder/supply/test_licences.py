"""What is stated, normalised; what is not, corrected with a reason or left open; never guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.errors import EvidenceError
from builder.supply.corrections import FILE, Correction, Corrections, load_corrections
from builder.supply.expressions import debian, join_and, kind_of, normalise
from builder.supply.licences import debian_licence, library_licence, python_licence
from tests.builder.supply.parts import distribution, package


@pytest.fixture(scope="module")
def table() -> Corrections:
    return load_corrections()


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("mit", "MIT"),
        ("GPL-2.0+", "GPL-2.0-or-later"),
        ("MIT/Apache-2.0", "MIT OR Apache-2.0"),
        ("(mit or apache-2.0) and Unicode-3.0", "(MIT OR Apache-2.0) AND Unicode-3.0"),
        ("Apache-2.0 WITH LLVM-exception", "Apache-2.0 WITH LLVM-exception"),
        ("LicenseRef-NVIDIA-Proprietary", "LicenseRef-NVIDIA-Proprietary"),
        ("BSD", None),
        ("MIT License", None),
        ("BSD, Public Domain", None),
        ("", None),
        ("MIT AND", None),
        ("LicenseRef-with space", None),
    ],
)
def test_only_what_spdx_lists_is_an_expression(text: str, expression: str | None) -> None:
    assert normalise(text) == expression


@pytest.mark.parametrize(
    ("short", "expression"),
    [
        ("Expat", "MIT"),
        ("GPL-2+", "GPL-2.0-or-later"),
        ("GPL-3", "GPL-3.0-only"),
        ("LGPL-2.1", "LGPL-2.1-only"),
        ("GPL", "GPL-1.0-or-later"),
        ("GFDL-NIV-1.3+", "GFDL-1.3-or-later"),
        ("GPL-2+ or BSD-3-clause", "GPL-2.0-or-later OR BSD-3-Clause"),
        ("GPL-3+ with Bison exception", "GPL-3.0-or-later WITH Bison-exception-2.2"),
        ("GPL-2+ with its own exception", "LicenseRef-Debian-GPL-2-with-its-own-exception"),
        ("public-domain", "LicenseRef-Debian-public-domain"),
        ("GPL-1+ or Artistic, and Expat", "LicenseRef-Debian-GPL-1-or-Artistic-and-Expat"),
    ],
)
def test_debians_short_names(short: str, expression: str) -> None:
    assert debian(short) == expression


def test_all_of_several_licences_hold_and_an_unknown_one_is_not_swallowed() -> None:
    assert join_and(["MIT", "GPL-2.0-only OR MIT", "MIT"]) == "(GPL-2.0-only OR MIT) AND MIT"
    assert join_and(["MIT", "NOASSERTION"]) == join_and([]) == "NOASSERTION"


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("MIT AND BSD-3-Clause", "permissive"),
        ("MIT OR GPL-3.0-only", "permissive"),  # whoever passes it on chooses
        ("MIT AND GPL-3.0-only", "copyleft"),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", "limited-copyleft"),
        ("MPL-2.0", "limited-copyleft"),
        ("LicenseRef-NVIDIA-Proprietary", "proprietary"),
        ("MIT AND LicenseRef-NVIDIA-SOFTWARE-LICENSE", "proprietary"),
        ("LicenseRef-Debian-BSD-variant", "debian"),
        ("LicenseRef-Debian-x AND GPL-2.0-only", "copyleft"),
        ("LicenseRef-Elsewhere", "unknown"),
        ("NOASSERTION", "unknown"),
    ],
)
def test_kinds(table: Corrections, expression: str, kind: str) -> None:
    assert kind_of(expression, dict(table.kinds)) == kind


@pytest.mark.parametrize(
    ("stated", "expression", "origin"),
    [
        ({"expression": "mit", "name": "BSD"}, "MIT", "License-Expression"),
        ({"expression": "Own-1.0"}, "LicenseRef-Python-Own-1.0", "License-Expression"),
        ({"name": "Apache 2.0"}, "Apache-2.0", "License"),
        ({"name": "BSD", "classifiers": ["MIT License"]}, "MIT", "Classifier"),
        ({"classifiers": ["MIT License", "Apache Software License"]}, "NOASSERTION", ""),
        ({"name": "BSD", "classifiers": ["BSD License"]}, "NOASSERTION", ""),
        ({"text_begins": "Do as you like"}, "NOASSERTION", ""),
        ({}, "NOASSERTION", ""),
    ],
)
def test_where_a_distributions_licence_comes_from(
    table: Corrections, stated: dict[str, Any], expression: str, origin: str
) -> None:
    found = python_licence(distribution("some", "1.0", licence=stated), table)
    assert found.expression == expression
    if origin:
        assert found.origin == origin
    else:
        assert found.kind == "unknown"
        assert all(
            word in found.stated
            for word in (stated.get("name", ""), *stated.get("classifiers", []))
        )


def test_a_correction_fills_in_and_never_overrules_an_expression() -> None:
    table = Corrections({}, {}, {}, {"some": Correction("ISC", "read there")}, {}, ())
    vague = distribution("some", "1.0", licence={"name": "BSD"})
    assert python_licence(vague, table).expression == "ISC"
    assert "read there" in python_licence(vague, table).origin
    stated = distribution("some", "1.0", licence={"expression": "MIT"})
    assert python_licence(stated, table).expression == "MIT"


def test_a_text_in_the_metadata_is_where_the_text_is(table: Corrections) -> None:
    entry = distribution("some", "1.0", licence={"text_begins": "x"}, licence_files=[])
    assert python_licence(entry, table).texts == (f"{entry['folder']}/METADATA",)
    assert python_licence(distribution("y", "1", licence_files=[]), table).texts == ()


def test_a_debian_package_has_all_that_its_copyright_file_names(table: Corrections) -> None:
    entry = package("x", "1", licences=["Expat", "GPL-2+"])
    found = debian_licence(entry, table)
    assert (found.expression, found.kind) == ("GPL-2.0-or-later AND MIT", "copyleft")
    assert found.texts == ("usr/share/doc/x/copyright",)
    prose = package("y", "1", machine_readable=False, licences=[], common=["GPL-3"])
    assert debian_licence(prose, table).expression == "NOASSERTION"
    assert "GPL-3" in debian_licence(prose, table).stated
    glibc = package("libc6", "2", source="glibc", machine_readable=False, licences=[])
    assert debian_licence(glibc, table).expression == "LGPL-2.1-or-later AND GPL-2.0-or-later"


def test_a_bundled_library_does_not_get_its_carriers_licence(table: Corrections) -> None:
    owner = python_licence(distribution("some", "1.0"), table)
    assert library_licence("some/_x.so", False, owner, table).expression == "MIT"
    assert library_licence("some.libs/libnew.so.1", True, owner, table).expression == "NOASSERTION"
    gomp = library_licence("some.libs/libgomp-e985bcbb.so.1.0.0", True, owner, table)
    assert gomp.expression == "GPL-3.0-or-later WITH GCC-exception-3.1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[python]]\nnames=['a']\nlicence='BSD'\nreason='x'", "no SPDX expression"),
        ("[[python]]\nnames=['a']\nlicence='MIT'\nreason=' '", "no reason"),
        ("[[python]]\nnames=['a']\nlicence='MIT'", "required"),
        (
            "[[debian]]\nsources=['a','a']\nlicence='MIT'\nreason='x'",
            "two entries",
        ),
        ("[kinds]\n'LicenseRef-X' = 'fine'", "none of"),
        ("[other]\na=1", "unknown table"),
        ("names = [", "licences.toml"),
    ],
)
def test_a_malformed_table_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / FILE.name
    path.write_text(text)
    with pytest.raises(EvidenceError, match=reason):
        load_corrections(path)
