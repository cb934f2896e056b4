"""What a request group is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.e2e.client import JSON, Client
from tests.e2e.models.corpus import Prompt

NEW_TOKENS = 64


@dataclass
class Session:
    """One running server.

    client:   to it
    prompts:  the held-out prompts
    context:  its --context-length
    results:  of the groups that ran before, by name
    """

    client: Client
    prompts: Sequence[Prompt]
    context: int
    results: dict[str, JSON] = field(default_factory=dict)

    def of_group(self, start: str) -> list[Prompt]:
        """Prompts whose group starts with `start`."""
        return [prompt for prompt in self.prompts if prompt.group.startswith(start)]


Group = Callable[[Session], JSON]


def by_name(prompts: Sequence[Prompt], answers: Sequence[JSON]) -> JSON:
    """Answers under their prompts' names."""
    return {prompt.name: answer for prompt, answer in zip(prompts, answers, strict=True)}
