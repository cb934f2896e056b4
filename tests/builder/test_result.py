"""The build result as people and scripts read it."""

from __future__ import annotations

from builder.result import layers


def test_layers_are_told_by_what_made_them() -> None:
    history = [
        {"Size": 0, "CreatedBy": "CMD"},
        {
            "Size": 7,
            "CreatedBy": "RUN /bin/sh -c --mount=type=bind,from=a uv pip   install # buildkit",
        },
        {"Size": 3, "CreatedBy": ""},
    ]
    assert layers(history) == [
        {"bytes": 3, "step": "base"},
        {"bytes": 7, "step": "uv pip install"},
    ]
