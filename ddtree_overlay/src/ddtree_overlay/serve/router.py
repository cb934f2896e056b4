"""SGLang's router with its API key from a file: `python -m ddtree_overlay.serve.router FLAGS`.

The router takes its key only as an argument, which every process listing shows. It needs one all
the same where its workers have one: with it, it asks callers for the key and guards its own
management calls (POST /workers adds a worker: whoever may do that gets other people's requests and
keys); without it, it only hands on what the caller sent.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from ddtree_overlay.serve.catalogue import BY_NAME
from ddtree_overlay.serve.errors import EntryError, RouterMissingError, UsageError
from ddtree_overlay.serve.secret_files import secret_of


def router_key(environment: Mapping[str, str]) -> str:
    """The key of DDTREE_API_KEY_FILE or DDTREE_API_KEY; empty if neither is set.

    Raises SecretError, as `serve` does for the same two.
    """
    name, file = "DDTREE_API_KEY", "DDTREE_API_KEY_FILE"
    key = BY_NAME["api_key"]
    found = secret_of(key, environment.get(name), environment.get(file), name, file)
    return found.text if found else ""


def with_key(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The router's arguments, the key among them; for the parser in this process, never for exec.

    Raises UsageError for a key on the command line.
    """
    if any(a == "--api-key" or a.startswith("--api-key=") for a in arguments):
        raise UsageError(
            "an API key on the command line is visible to every process listing",
            "put it into a file and name that in DDTREE_API_KEY_FILE",
        )
    key = router_key(environment)
    return [*arguments, f"--api-key={key}"] if key else list(arguments)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the router until it is told to stop; failures of ours are two lines on stderr."""
    try:
        given = with_key(arguments, environment)
        try:
            router = importlib.import_module("sglang_router.launch_router")
        except ModuleNotFoundError:
            raise RouterMissingError(
                "this image has no SGLang router", "use an image that was built with sglang-router"
            ) from None
    except EntryError as error:
        print(*error.lines(), sep="\n", file=sys.stderr)
        return error.exit_code
    if len(given) == len(arguments):
        print(
            "warning: no API key: whoever reaches this port can add workers to the router",
            file=sys.stderr,
        )
    router.launch_router(router.parse_router_args(given))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
