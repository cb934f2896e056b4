"""A pytest plugin: a property that fails is reported as found. Shrinking takes minutes, and a
breakage needs no smallest example."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile("unshrunk", phases=(Phase.explicit, Phase.generate))
settings.load_profile("unshrunk")
