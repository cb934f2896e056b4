"""`engine`: look at the engine, run something with it, free what the private one keeps."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from builder import console
from builder.engine import Engine, EngineMode, acquire
from builder.engine.existing import find_existing
from builder.engine.layout import Layout, layout_of
from builder.engine.lock import exclusive, is_free
from builder.engine.packages import forget, recorded
from builder.engine.support import engine_wants, why_not_private
from builder.engine.toolset import host_tools
from builder.engine.versions import engine_versions
from builder.errors import EngineAbsentError, ToolMissingError
from builder.layers import forget_layers
from builder.pins import SharedPins, load_shared
from builder.project import Project

DESCRIPTION = """\
The Docker engine that builds run on: the one that answers, or a private one that is started for
the time of a command and stopped at its end. The private engine keeps its images and build cache
in the builder's cache folder.

  python3 build.py engine status
  python3 build.py engine exec -- docker run --rm ddtree-appliance:cu130 version
  python3 build.py engine exec -- docker images
  python3 build.py engine prune          drop build cache and images without a name
  python3 build.py engine prune --all    delete everything that the private engine keeps
"""


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    """`--engine`, the same on every verb that needs an engine."""
    parser.add_argument(
        "--engine",
        choices=("auto", "existing", "private"),
        default="auto",
        help="which Docker engine: the one that answers, a private one stopped at the end (root on "
        "Debian or Ubuntu), or auto: the first if there is one, else the second",
    )


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its actions."""
    parser = subparsers.add_parser(
        "engine",
        help="show, use and clean the Docker engine that builds run on",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    status = actions.add_parser("status", help="which engine a build would use; starts nothing")
    status.add_argument("--json", action="store_true", help="print JSON on stdout")
    status.set_defaults(handler=_status)

    execute = actions.add_parser(
        "exec",
        help="run a command with the engine: DOCKER_HOST set, in the network of its ports",
        description="Run a command with DOCKER_HOST and DOCKER_CONFIG set and docker on PATH, in "
        "the network in which published ports answer. Exits with the command's exit code.",
    )
    add_engine_option(execute)
    execute.add_argument("command", nargs="+", metavar="CMD", help="after `--`: what to run")
    execute.set_defaults(handler=_exec)

    prune = actions.add_parser("prune", help="free what the private engine keeps on disk")
    prune.add_argument(
        "--all", action="store_true", help="delete its data root: all images and build cache"
    )
    prune.add_argument(
        "--packages",
        action="store_true",
        help="forget the unpacked Debian packages: the next start takes the suite's current ones",
    )
    prune.set_defaults(handler=_prune)


def report(project: Project, shared: SharedPins) -> dict[str, Any]:
    """What `engine status` says, as data. Starts and changes nothing."""
    place = layout_of(project)
    tools, missing = host_tools(shared.engine)
    found: dict[str, Any] = {"host_tools": tools, "host_lacks": missing}
    try:
        existing = find_existing()
        found["existing"] = {"url": existing.url, **engine_versions(existing.client)}
        existing.client.close()
    except EngineAbsentError as exc:
        found["existing"] = None
        found["existing_reason"] = exc.what
    reason = why_not_private()
    found["private"] = {
        "possible": reason is None,
        "reason": reason.what if reason else "",
        "remedy": reason.remedy if reason else "",
        "data_root": str(place.data),
        "in_use": not is_free(place.lock),
        "packages": recorded(project, engine_wants(shared.engine)),
    }
    found["auto"] = "existing" if found["existing"] else "private" if reason is None else "none"
    return found


def _status(args: argparse.Namespace, project: Project) -> int:
    found = report(project, load_shared(project))
    if args.json:
        console.result_json(found)
        return 0
    private = found["private"]
    packages = private["packages"]
    lines = [
        f"existing  {json.dumps(found['existing'])}"
        if found["existing"]
        else f"existing  none: {found['existing_reason']}",
        f"private   {'possible' if private['possible'] else 'not possible: ' + private['reason']}"
        + (", in use" if private["in_use"] else ""),
        f"  data    {private['data_root']}",
        f"  docker  {packages.get('docker.io', 'not unpacked yet')}",
        f"tools     {found['host_tools'] or 'none'}"
        + (f", lacking {', '.join(found['host_lacks'])}" if found["host_lacks"] else ""),
        f"a build with --engine auto uses: {found['auto']}",
    ]
    print("\n".join(lines))
    return 0


def _exec(args: argparse.Namespace, project: Project) -> int:
    mode: EngineMode = args.engine
    # Running something needs no room for a build.
    with acquire(project, load_shared(project), mode, need_gib=1) as engine:
        return run_in(engine, args.command)


def run_in(engine: Engine, argv: list[str]) -> int:
    """Run a command that sees the engine, with our own terminal; returns its exit code."""
    if shutil.which(argv[0], path=engine.env.get("PATH")) is None:
        raise ToolMissingError(f"{argv[0]}: no such program", "check the command after `--`")
    child = subprocess.Popen(engine.in_network(*argv), env=engine.env, text=True)
    try:
        code = child.wait()
    except BaseException:
        _end(child)
        raise
    return code if code >= 0 else 128 - code  # the shell's way to report a signal


def _end(child: subprocess.Popen[str]) -> None:
    # It shares our terminal and process group, so Ctrl-C reached it as well; give it time first.
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        child.terminate()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _prune(args: argparse.Namespace, project: Project) -> int:
    place = layout_of(project)
    if args.packages:
        forget(project)
        console.info("the unpacked packages are gone")
    forget_layers(project)
    if args.all:
        with console.step(f"deleting {place.data}"):
            _delete(place)
    elif not args.packages and place.data.is_dir():
        with acquire(project, load_shared(project), "private", need_gib=0) as engine:
            freed = engine.client.images.prune(filters={"dangling": True})["SpaceReclaimed"]
            freed += engine.client.api.prune_builds()["SpaceReclaimed"]
            print(f"{freed / 2**30:.2f} GiB freed; named images stay (`docker rmi`, or --all)")
    return 0


def _delete(place: Layout) -> None:
    with exclusive(place.lock):
        doomed: Path = place.data.with_name(place.data.name + ".old")
        shutil.rmtree(doomed, ignore_errors=True)
        if place.data.exists():
            # Renamed first: cut short, it leaves no half a data root for the next engine.
            place.data.rename(doomed)
            shutil.rmtree(doomed)
