"""`ddtree health`: asks the running appliance's probes; what HEALTHCHECK runs.

It never reaches the model, so it costs no token, and it finds the probe port by itself.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ddtree_overlay.serve.errors import UsageError
from ddtree_overlay.serve.poll import get
from ddtree_overlay.serve.state_file import State, read_state

DEFAULT_PORT = 30080
TIMEOUT_SECONDS = 5.0
USAGE = "usage: ddtree health [--live | --ready | --progress] [--json]"


def health_command(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """0 if healthy, 1 if not, and one line. Raises UsageError.

    Without a flag: ready, and tokens move. That is what `docker compose up --wait` has to wait for;
    Docker's start period keeps a loading model from counting as unhealthy.
    """
    if "--help" in arguments or "-h" in arguments:
        print(USAGE)
        return 0
    asked = [argument for argument in arguments if argument != "--json"]
    if len(asked) > 1 or not set(asked) <= {"--live", "--ready", "--progress"}:
        raise UsageError(f"health does not take {' '.join(arguments)}", USAGE)
    wanted = [asked[0][2:]] if asked else ["live", "ready", "progress"]

    state = read_state() or _from_environment(environment)
    try:
        code, body = get(state.host, state.port, "/status", timeout=TIMEOUT_SECONDS)
        status = json.loads(body)
        if code != http.client.OK or not isinstance(status, dict) or "phase" not in status:
            raise ValueError(f"status {code}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = f"nothing answers as the appliance on probe port {state.port}: {error or type(error)}"
        return _report(False, why, {"why": why}, "--json" in arguments)
    healthy = all(status.get(name) is True for name in wanted)
    return _report(healthy, _line(status, wanted, healthy), status, "--json" in arguments)


def _from_environment(environment: Mapping[str, str]) -> State:
    text = environment.get("DDTREE_PROBE_PORT", "")
    port = (
        int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 65536 else DEFAULT_PORT
    )
    return State(0, environment.get("DDTREE_PROBE_HOST", ""), port)


def _line(status: Mapping[str, Any], wanted: Sequence[str], healthy: bool) -> str:
    phase = str(status.get("phase"))
    if healthy and wanted == ["live"]:
        return f"live ({phase})"
    if healthy:
        return f"{phase}, {status.get('in_flight') or 0} requests in flight"
    failed = next(name for name in wanted if status.get(name) is not True)
    return f"not {failed}: {status.get('why')}"


def _report(healthy: bool, line: str, status: Mapping[str, Any], as_json: bool) -> int:
    print(json.dumps({"healthy": healthy, **status}) if as_json else line)
    return 0 if healthy else 1
