"""`licences`: the licence of every part of an image, and which of them a person must look at."""

from __future__ import annotations

import argparse

from builder import console
from builder.arguments import nonempty
from builder.engine import acquire
from builder.engine.cli import add_engine_option
from builder.pins import load_shared
from builder.project import Project
from builder.supply.evidence import image_components, target_of
from builder.supply.inventory import read_inventory
from builder.supply.licence_report import licence_report

DESCRIPTION = """\
List the licences of all that an image ships: Debian packages, Python distributions, what is
compiled or bundled into them, every native file, our kernels, the archives of the CUDA toolkit.

  python3 build.py licences ddtree-appliance:cu130         a table: licences by count, then what
                                                           needs a person's look
  python3 build.py licences ddtree-appliance:cu130 --json  each part: licence, what says so, and
                                                           where its text lies in the image

What needs a look: proprietary, copyleft, limited copyleft, unknown, and no text in the image. A
part inside another with the same licence is counted, and listed with the other alone.

What is listed is what the image's own inventory (/opt/ddtree/inventory.json) states, in SPDX's
words: nothing of the image is run, and nothing is concluded from a text. Statements that are vague
or missing are corrected, each with its reason, in builder/supply/licences.toml. `push` and `bundle`
write the same licences into the SBOMs. A listing is no legal advice and no verdict: exit 0 whatever
it holds; 76 when the engine has no such image, 79 when that carries no inventory that can be read.

The texts are in the image; to read one whose path --json names:
  docker run --rm --network none --entrypoint cat IMAGE /PATH
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "licences",
        help="the licences of all that an image ships, and what needs a person's look",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "reference", metavar="IMAGE", type=nonempty("IMAGE"), help="an image on the engine"
    )
    parser.add_argument("--json", action="store_true", help="print the document on stdout")
    add_engine_option(parser)
    parser.set_defaults(handler=_run)


def _run(args: argparse.Namespace, project: Project) -> int:
    with acquire(project, load_shared(project), args.engine, need_gib=1) as engine:
        inventory = read_inventory(engine, args.reference)
    target = target_of(project, inventory)
    found = licence_report(image_components(target, inventory))
    about = {
        "reference": args.reference,
        "target": target.name,
        "version": inventory.get("version"),
        "build_id": inventory.get("build_id"),
    }
    if args.json:
        console.result_json({"image": about, **found.document()})
    else:
        print("{reference}: {target}, version {version}, build {build_id}".format_map(about))
        print("\n".join(found.lines()))
    return 0
