"""`verify`: is the image in a registry what its digest, its key and its evidence say?"""

from __future__ import annotations

import argparse
import sys

from builder import console
from builder.arguments import nonempty
from builder.errors import SigningError
from builder.pins import load_shared
from builder.project import Project
from builder.receipts import LEVELS
from builder.registry.reference import parse_reference
from builder.supply.cosign import Cosign
from builder.supply.keys import public_key
from builder.supply.report import Report
from builder.supply.verify import Demand, Signer, verify

DESCRIPTION = """\
Check an image in a registry, without pulling it and without an engine:

  manifest     its bytes are those of the digest
  config       likewise, and it fits the layers
  labels       complete and well-formed (versions, build id, revision, kernels, driver floor)
  tag          the tag asked for is the image's own <version>-<target>-<build id>
  layers       with --layers: every layer is downloaded, hashed and unpacked
  signature    by the key, of this digest, for this repository
  SBOM, provenance, receipts
               signed by the key for this digest, and they agree with the labels

  python3 build.py verify registry.example.com/team/ddtree-appliance@sha256:... --key cosign.pub
  python3 build.py verify NAME:TAG --key cosign.pub --layers --require built,cpu-verified
  python3 build.py verify NAME:TAG --key awskms:///alias/release --json
  python3 build.py verify NAME:TAG --unsigned     integrity only: anyone may have made it

The table goes to stdout. Exit code 0 if every check holds, else that of the worst failure:
78 altered, 77 not signed by the key, 70 the tag is another image's, 76 the image is not whole,
79 evidence missing or contradicting. A tag is resolved once; use the digest that is printed.
Credentials are those of the Docker configuration.
"""
_LOUD = (
    "AUTHENTICITY WAS NOT CHECKED (--unsigned): whoever can write to that registry can have made "
    "this image and its evidence"
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "verify",
        help="check an image in a registry: digest, signature, SBOMs, provenance, receipts",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "reference",
        metavar="REF",
        type=nonempty("REF"),
        help="NAME@sha256:DIGEST (best) or NAME:TAG",
    )
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument(
        "--key",
        metavar="KEY",
        help="the signer's public key: a file (cosign.pub) or a key management service's address",
    )
    who.add_argument(
        "--unsigned", action="store_true", help="check everything that can be without a key"
    )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="download, hash and unpack every layer as well (gigabytes; room for the largest one "
        "in the builder's cache)",
    )
    parser.add_argument(
        "--require",
        metavar="LEVELS",
        type=_levels,
        default=(),
        help=f"receipts that must be there, separated by commas: {', '.join(LEVELS)}",
    )
    parser.add_argument(
        "--signed-as",
        metavar="NAME",
        type=nonempty("NAME"),
        help="the repository (REGISTRY/NAME) that the image was signed in, where it was copied "
        "from there together with its signature",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.set_defaults(handler=_run)


def _run(args: argparse.Namespace, project: Project) -> int:
    console.set_quiet(args.quiet)
    reference = parse_reference(args.reference)
    demand = Demand(
        scratch=project.cache / "verify",
        layers=args.layers,
        receipts=args.require,
        signed_as=_name(args.signed_as),
    )
    shared = load_shared(project)
    signer = None
    if not args.unsigned:  # an empty --key is no --unsigned
        public = public_key(args.key)
        signer = Signer(Cosign.obtain(project, shared), public)
        console.info(f"cosign {signer.cosign.version} ({signer.cosign.program})")
    elif args.signed_as:
        raise SigningError("--signed-as is about a signature, --unsigned checks none", "drop one")
    report = verify(reference, signer, demand, label_prefix=shared.project.label_prefix)
    return show(report, as_json=args.json)


def show(report: Report, *, as_json: bool) -> int:
    """Print the report, and the verdict on stderr; returns the exit code."""
    if as_json:
        console.result_json(report.document())
    else:
        print(f"{report.reference}\n  digest {report.digest or 'not known'}\n\n{report.table()}\n")
    sys.stdout.flush()
    if not report.authentic:
        console.warn(_LOUD)
    error = report.error()
    if error is None:
        if not as_json:
            verdict = "verified" if report.authentic else "intact, NOT authenticated"
            print(f"{verdict}: {parse_reference(report.reference).with_digest(report.digest)}")
        return 0
    print(f"error: {error.what}\n  fix: {error.remedy}", file=sys.stderr)
    return error.exit_code


def _levels(text: str) -> tuple[str, ...]:
    levels = tuple(nonempty("a level")(level).strip() for level in text.split(","))
    wrong = sorted(set(levels) - set(LEVELS))
    if wrong:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: not one of {', '.join(LEVELS)}")
    return levels


def _name(text: str | None) -> str:
    return parse_reference(text).name if text else ""
