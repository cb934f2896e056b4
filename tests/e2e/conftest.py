"""Fixtures of `.stack` on the host; inside the image, where some tests here run too, there are none."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("docker") is not None:
    from tests.e2e.stack import (
        bytecode,
        config,
        engine,
        image,
        labels,
        mounted_pytest,
        name,
        ours,
        plain,
        proof,
        proof_file,
        stack,
        tiny_models,
        workspace,
    )

    __all__ = [
        "bytecode",
        "config",
        "engine",
        "image",
        "labels",
        "mounted_pytest",
        "name",
        "ours",
        "plain",
        "proof",
        "proof_file",
        "stack",
        "tiny_models",
        "workspace",
    ]
