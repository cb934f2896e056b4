"""What an engine answers about a name that is no image of its."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest
import requests

from builder.engine.images import look_up
from builder.errors import BuilderError, EngineFailedError, ImageAbsentError, ImageReferenceError


def answer(status: int) -> docker.errors.APIError:
    response = requests.Response()
    response.status_code = status
    return docker.errors.APIError("client error", response, explanation="what the engine said")


def engine(failure: Exception) -> Any:
    def get(_name: str) -> None:
        raise failure

    return SimpleNamespace(client=SimpleNamespace(images=SimpleNamespace(get=get)))


@pytest.mark.parametrize(
    ("failure", "error", "words"),
    [
        (docker.errors.ImageNotFound("x"), ImageAbsentError, "the engine has no image Bad Name"),
        (docker.errors.NullResource("x"), ImageReferenceError, "no name"),
        (answer(400), ImageReferenceError, "Bad Name: what the engine said"),
        (answer(500), EngineFailedError, "what the engine said"),
    ],
)
def test_each_answer_has_its_error(
    failure: Exception, error: type[BuilderError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        look_up(engine(failure), "Bad Name", "build it")
    assert type(caught.value) is error
    assert (caught.value.remedy == "build it") == (error is ImageAbsentError)
