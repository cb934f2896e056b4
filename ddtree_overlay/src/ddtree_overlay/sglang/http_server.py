"""The server process: `python -m ddtree_overlay.sglang.http_server SGLANG-FLAGS`.

SGLang's HTTP server as `sglang.launch_server` starts it, with three things of ours around it: keys
come over a pipe (serve/launch_spec.py), requests pass a gate, and SIGTERM drains.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from ddtree_overlay.serve.errors import EntryError, SecretPipeError, UnsupportedServerError
from ddtree_overlay.serve.launch_spec import SECRETS_VARIABLE
from ddtree_overlay.sglang.drain import Drain
from ddtree_overlay.sglang.gate import HEALTH_PATH, Gate
from ddtree_overlay.sglang.secret_text import SecretText

_PR_SET_PDEATHSIG = 1
# Fields of ServerArgs that are keys.
SECRET_FIELDS = ("api_key", "admin_api_key", "ssl_keyfile_password")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM: 0 if every request was answered. Failures are two lines on stderr."""
    try:
        secrets = read_secrets(os.environ)
        return _serve(list(sys.argv[1:] if arguments is None else arguments), secrets)
    except EntryError as error:
        print(*error.lines(), sep="\n", file=sys.stderr, flush=True)
        return error.exit_code


def read_secrets(environment: MutableMapping[str, str]) -> dict[str, str]:
    """From the pipe whose number the environment has; neither is inherited by any child.

    Without the variable it was started by hand: no secrets. Raises SecretPipeError.
    """
    number = environment.pop(SECRETS_VARIABLE, None)
    if number is None:
        return {}
    _end_with_parent()
    try:
        with os.fdopen(int(number), "rb") as pipe:
            secrets = json.loads(pipe.read())
    except (OSError, ValueError) as error:
        raise SecretPipeError(
            f"the secrets cannot be read from descriptor {number}: {type(error).__name__}",
            f"{SECRETS_VARIABLE} is internal: do not set it",
        ) from None
    if not isinstance(secrets, dict) or not set(secrets) <= set(SECRET_FIELDS):
        raise SecretPipeError("what came over the pipe is no set of keys", "this is a bug")
    for name, value in secrets.items():
        # Headers cannot hold anything else, and SGLang's comparison would fail at each request.
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise SecretPipeError(
                f"{name} has characters that an HTTP header cannot carry",
                "use printable ASCII characters",
            )
    return secrets


def _end_with_parent() -> None:
    """Should the supervisor be killed, nobody would end this process and its GPUs' memory."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def refuse_unsupported(server_args: Any, environment: Mapping[str, str]) -> None:
    """Raises UnsupportedServerError for a mode whose requests would bypass the gate."""
    rust = environment.get("SGLANG_RUST_SERVER", "").lower() in {"1", "true", "yes", "y"}
    modes = {
        "--tokenizer-worker-num above 1": (server_args.tokenizer_worker_num or 1) > 1,
        "--use-ray": server_args.use_ray,
        "--encoder-only": server_args.encoder_only,
        "--smg-grpc-mode": server_args.smg_grpc_mode or server_args.grpc_mode,
        "--grpc-port": server_args.grpc_port is not None,
        "--enable-http2": server_args.enable_http2,
        "SGLANG_RUST_SERVER": rust,
    }
    for name, given in modes.items():
        if given:
            raise UnsupportedServerError(
                f"{name}: its requests could be neither drained, watched nor guarded by a key",
                f"leave {name.split()[0]} out",
            )


def _serve(arguments: list[str], secrets: Mapping[str, str]) -> int:
    from sglang.srt.plugins import load_plugins
    from sglang.srt.utils.common import suppress_noisy_warnings

    suppress_noisy_warnings()
    load_plugins()

    from sglang.srt.entrypoints import http_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    server_args = prepare_server_args(arguments)
    refuse_unsupported(server_args, os.environ)
    _set_secrets(server_args, secrets)
    gate = Gate()
    drain = Drain(gate)

    def on_startup() -> None:
        drain.install()
        # After uvicorn has configured its loggers.
        logging.getLogger("uvicorn.access").addFilter(_without_polls)

    gate.on_startup = on_startup
    _install_gate(http_server.app, gate)
    workers = _Workers(server_args.node_rank)
    try:
        http_server.launch_server(
            server_args, init_tokenizer_manager_func=_managing(http_server, gate, drain)
        )
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's end, where SGLang's threads and sockets may hang.
    os._exit(0 if drain.done or workers.ended_well() else 1)


def _without_polls(record: logging.LogRecord) -> bool:
    """The supervisor asks each second; lines of that would bury all others."""
    return HEALTH_PATH not in record.getMessage()


def _set_secrets(server_args: Any, secrets: Mapping[str, str]) -> None:
    """Put the keys in, and see to it that only the originals are compared with."""
    from sglang.srt.utils import auth

    given = {name: secrets.get(name) or getattr(server_args, name) for name in SECRET_FIELDS}
    hidden = {name: SecretText(value) for name, value in given.items() if value}
    if hidden:
        server_args.override("ddtree: keys", **hidden)
    add = auth.add_api_key_middleware

    def add_with_originals(app: Any, **_copies: Any) -> None:
        # A deep copy of the arguments holds "(set)" for a key, which must not let anybody in.
        add(app, api_key=given["api_key"], admin_api_key=given["admin_api_key"])

    auth.add_api_key_middleware = add_with_originals


def _install_gate(app: Any, gate: Gate) -> None:
    """Outermost: add_middleware would put it inside what SGLang adds later (the key check)."""
    build = app.build_middleware_stack

    def build_with_gate() -> Gate:
        gate.app = build()
        return gate

    app.build_middleware_stack = build_with_gate


def _managing(http_server: Any, gate: Gate, drain: Drain) -> Any:
    """SGLang's maker of its tokenizer manager, whose outputs the gate then sees."""
    from sglang.srt.managers.tokenizer_manager import SignalHandler

    class DrainingSignalHandler(SignalHandler):  # type: ignore[misc]
        """Set at the first request, over the handler that `drain` installed."""

        def sigterm_handler(self, signum: Any = None, frame: Any = None) -> None:
            drain.begin()

    async def leave_it_to_the_drain() -> None:
        """In place of SGLang's loop."""

    def init(*args: Any, **kwargs: Any) -> Any:
        manager, templates = http_server.init_tokenizer_manager(*args, **kwargs)
        handle = manager._handle_batch_output

        async def handle_and_note(output: Any) -> None:
            gate.saw_output(sum(map(len, getattr(output, "output_ids", None) or ())))
            await handle(output)

        manager._handle_batch_output = handle_and_note
        manager.signal_handler_class = DrainingSignalHandler
        manager.sigterm_watchdog = leave_it_to_the_drain
        gate.manager = manager
        return manager, templates

    return init


class _Workers:
    """On a node of rank > 0 there is no HTTP server: the schedulers' ends are the end.

    SGLang would go on there to an HTTP server without a manager.
    """

    def __init__(self, node_rank: int) -> None:
        self._processes: list[Any] = []
        self._counts = node_rank > 0
        if not self._counts:
            return
        from sglang.srt.entrypoints import http_server
        from sglang.srt.entrypoints.engine import Engine

        launch = Engine._launch_scheduler_processes

        def launch_and_keep(*args: Any, **kwargs: Any) -> Any:
            result, processes = launch(*args, **kwargs)
            self._processes.extend(processes or ())
            return result, processes

        Engine._launch_scheduler_processes = staticmethod(launch_and_keep)
        http_server._setup_and_run_http_server = lambda *_args, **_kwargs: None

    def ended_well(self) -> bool:
        """Each scheduler ended with status 0, as they do when rank 0 shuts down."""
        return self._counts and all(process.exitcode == 0 for process in self._processes)


if __name__ == "__main__":
    sys.exit(main())
