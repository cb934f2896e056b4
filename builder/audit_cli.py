"""`audit`: the rules of the build's last stage, on an image or a folder that is already there."""

from __future__ import annotations

import argparse
from pathlib import Path

from builder import console
from builder.arguments import nonempty
from builder.audit_image import audit_folder, audit_reference, pins_of
from builder.engine import acquire
from builder.engine.cli import add_engine_option
from builder.errors import AuditFailedError, HostFileError
from builder.pins import load_shared
from builder.project import Project

DESCRIPTION = """\
Hold a finished file system against the rules that every build must pass: linkage, ABI, device code
for sm_120, one CUDA, distributions as recorded, a toolchain that compiles, no secret, size budgets.

  python3 build.py audit ddtree-appliance:cu130            an image on the engine, from inside it
  python3 build.py audit registry.example.com/x@sha256:..  the same, once it is pulled
  python3 build.py audit /mnt/rootfs                       a folder that an image was unpacked into
  python3 build.py audit ddtree-appliance:cu130 --target cu130   against this tree's pins
  python3 build.py audit ddtree-appliance:cu130 --json    the whole report, with device code by file

Without --target the pins are those that the image itself carries (/opt/ddtree/manifest.json). An
image is audited in a container of it, without a network; nothing is left behind. A folder is only
read, except that its nvcc, ptxas and their like are run to ask their version and to assemble a few
lines, and that its Python package `packaging` is imported: audit an image that you do not trust as
an image. What only runs inside an image (importing SGLang, compiling a kernel) is left out for a
folder, and the table says so.

Known, harmless findings and why each is harmless: builder/inside/audit/exceptions.toml.
Exit 0 without a finding, 51 with any or when nothing can be audited, 70 when IMAGE holds no
manifest of ours (an image of other making needs --target).
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "audit",
        help="check an image, or an unpacked one, against the rules of the build",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        metavar="IMAGE|DIR",
        type=nonempty("IMAGE|DIR"),
        help="a reference on the engine, or a folder (if it is one)",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        type=nonempty("NAME"),
        help="pins of this tree: cu130, cu128, cu128-stand-in",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON on stdout")
    add_engine_option(parser)
    parser.set_defaults(handler=_run)


def _run(args: argparse.Namespace, project: Project) -> int:
    pins = pins_of(project, args.target) if args.target else None
    folder = Path(args.what)
    if folder.is_dir():
        audited = audit_folder(folder.absolute(), pins)
    elif args.what.startswith(("/", ".", "~")):  # no reference of an image begins so
        raise HostFileError(f"{args.what}: no such folder", "check the path")
    else:
        shared = load_shared(project)
        with acquire(project, shared, args.engine, need_gib=1) as engine:
            audited = audit_reference(engine, args.what, pins)
    if args.json:
        console.result_json(audited.report)
        return 0 if audited.passed else AuditFailedError.exit_code
    print("\n".join(audited.lines))
    if not audited.passed:
        raise AuditFailedError(
            f"{args.what}: {audited.findings} findings", "each one above says what to do"
        )
    return 0
