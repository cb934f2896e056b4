"""What the dashboard and the alert rules ask for is what the image's programs export."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy.metrics import metric_names_used

# The dashboards are this tree's.
pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("this_tree")]

# Names as the source states them; a counter's may lack _total, a histogram's has no suffix yet.
STATED = """
import importlib.util, json, pathlib, re
folder = pathlib.Path(importlib.util.find_spec("sglang").origin).parent  # importing takes seconds
found = set()
for path in (folder / "srt/observability").glob("*.py"):
    found |= set(re.findall(r"[\\"'](sglang:[a-z0-9_]+)[\\"']", path.read_text()))
print(json.dumps(sorted(found)))
"""

ROUTER = """
import json, pathlib, re, importlib.util
folder = pathlib.Path(importlib.util.find_spec("sglang_router").origin).parent
(library,) = folder.glob("*.so")
text = library.read_bytes().decode("latin-1")
print(json.dumps(sorted(set(json.loads({names!r})) - {{n for n in json.loads({names!r}) if n in text}})))
"""


def test_sglang_states_every_name(image_python: Callable[[str], Any]) -> None:
    ran = image_python(STATED)
    assert ran.returncode == 0, ran.stderr
    stated = set(json.loads(ran.stdout))
    assert len(stated) > 100
    suffixes = ("", "_total", "_bucket", "_sum", "_count")
    exported = {name + suffix for name in stated for suffix in suffixes}
    used = {n for n in metric_names_used() if n.startswith("sglang:") and ":ddtree_" not in n}
    assert used - exported == set()


def test_the_router_knows_every_name(image_python: Callable[[str], Any]) -> None:
    names = json.dumps(sorted(n for n in metric_names_used() if n.startswith("smg_")))
    assert names != "[]"
    ran = image_python(ROUTER.format(names=names))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == []
