"""Exit codes are an interface: one class, one code, all of them documented."""

from __future__ import annotations

import re

from builder.errors import all_error_classes
from builder.project import default_project


def test_every_failure_has_its_own_exit_code() -> None:
    codes = [cls.exit_code for cls in all_error_classes()]
    assert len(codes) == len(set(codes))
    assert all(10 <= code < 100 for code in codes)


def test_documented_codes_are_the_real_ones() -> None:
    text = (default_project().root / "docs" / "exit-codes.md").read_text()
    documented = {
        (int(code), name)
        for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    }
    assert documented == {(cls.exit_code, cls.__name__) for cls in all_error_classes()}


def test_every_failure_explains_itself() -> None:
    for cls in all_error_classes():
        assert cls.__doc__, cls.__name__
