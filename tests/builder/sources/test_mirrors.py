from __future__ import annotations

import pytest

from builder.errors import MirrorOptionError
from builder.sources.mirrors import mirrored, parse_mirrors

WHL = "https://download.pytorch.org/whl"


def test_the_longest_prefix_wins() -> None:
    mirrors = parse_mirrors(
        ["https://download.pytorch.org=http://a.test/all", f"{WHL}/=http://b.test/torch/"]
    )
    assert mirrored(f"{WHL}/cu128/x%2By.whl", mirrors) == "http://b.test/torch/cu128/x%2By.whl"
    assert mirrored("https://download.pytorch.org/y", mirrors) == "http://a.test/all/y"
    assert mirrored("https://github.com/y", mirrors) == "https://github.com/y"


def test_a_prefix_ends_at_a_path_segment() -> None:
    mirrors = parse_mirrors([f"{WHL}=http://b.test"])
    assert mirrored(f"{WHL}-nightly/x", mirrors) == f"{WHL}-nightly/x"


def test_options_beat_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "DDTREE_MIRRORS", f"{WHL}=http://env.test https://github.com=http://hub.test"
    )
    mirrors = parse_mirrors([f"{WHL}=http://option.test"])
    assert mirrored(f"{WHL}/x", mirrors) == "http://option.test/x"
    assert mirrored("https://github.com/x", mirrors) == "http://hub.test/x"


@pytest.mark.parametrize("text", ["", "x", WHL, f"{WHL}=", "=http://a.test", f"{WHL}=ftp://a.test"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(MirrorOptionError, match="PREFIX=URL"):
        parse_mirrors([text])


def test_the_environment_is_named_when_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDTREE_MIRRORS", "nonsense")
    with pytest.raises(MirrorOptionError, match="DDTREE_MIRRORS"):
        parse_mirrors([])
