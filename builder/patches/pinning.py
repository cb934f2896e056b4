"""Writing the tree hashes into images/pins.toml, leaving the rest of the file as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from builder.errors import PinFileError
from builder.files import write_atomically


def pin_trees(pins_file: Path, trees: Mapping[str, str]) -> list[str]:
    """Set `base_tree`/`patched_tree` of [sglang]; returns the keys whose value changed.

    Raises PinFileError when a key is not there exactly once. The file is replaced as a whole.
    """
    text = pins_file.read_text(encoding="utf-8")
    changed = []
    for key, value in trees.items():
        found = re.findall(rf'^{key} = "([0-9a-f]*)"', text, flags=re.MULTILINE)
        if len(found) != 1:
            raise PinFileError(
                f'{pins_file.name}: sglang.{key}: not there exactly once as {key} = "..."',
                "write the line by hand",
            )
        if found[0] != value:
            changed.append(key)
            text = re.sub(rf'^{key} = "[0-9a-f]*"', f'{key} = "{value}"', text, flags=re.MULTILINE)
    if changed:
        write_atomically(pins_file, text.encode("utf-8"))
    return changed
