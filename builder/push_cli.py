"""`push`: the image of a target into a registry."""

from __future__ import annotations

import argparse

from builder import console
from builder.arguments import nonempty
from builder.engine import acquire
from builder.engine.cli import add_engine_option
from builder.errors import SigningError
from builder.local_image import check_tag_of, destination, find_image
from builder.project import Project
from builder.push import (
    PushResult,
    open_registry,
    push,
    ready_to_sign,
)
from builder.registry.reference import Reference
from builder.supply.keys import add_key_options, signing_key
from builder.target_options import add_target_options, chosen_targets

DESCRIPTION = """\
Push the image that was built last for a target, sign it and attach its evidence:

  1. export it from the engine as an OCI layout (kept in the cache until the image changes), and
     write SBOMs and provenance
  2. send the blobs that the registry lacks, then the manifest by its digest
  3. sign that digest; attest SBOMs (SPDX, CycloneDX), provenance and this image's receipts
  4. set the image's own tag, <version>-<target>-<build id>, which is never moved

  python3 build.py push registry.example.com/team/ddtree-appliance --cuda cu130 --key cosign.key
  python3 build.py push 127.0.0.1:5000/ddtree --cuda cu130 --unsigned
  python3 build.py push REGISTRY/NAME --cuda cu128 --stand-in --key cosign.key --dry-run

Name, credentials, right to push, key and password are checked before anything is exported. A push
that breaks off is resumed, then repeated; blobs that arrived whole are never sent again, and no tag
is set before everything is there. The same command again does what is left to do.

Credentials are those of the Docker configuration (`docker login`, credential helpers): there is no
option for them. TLS everywhere but on loopback; authorities of your own: SSL_CERT_FILE,
REQUESTS_CA_BUNDLE, /etc/docker/certs.d/HOST[:PORT]/ca.crt.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "push",
        help="push an image by digest, sign it, attach its evidence, set its immutable tag",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "reference",
        metavar="REGISTRY/NAME",
        type=nonempty("REGISTRY/NAME"),
        help="the repository; a tag is taken only if it is the image's own",
    )
    add_target_options(parser)
    add_key_options(parser)
    parser.add_argument(
        "--unsigned",
        action="store_true",
        help="no signature, so no evidence in the registry: for tests",
    )
    parser.add_argument(
        "--allow-dirty",
        action="store_true",
        help="push an image that was built with uncommitted changes, or without git",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="make the checks, then stop: nothing is pushed"
    )
    add_engine_option(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.set_defaults(handler=_run)


def _run(args: argparse.Namespace, project: Project) -> int:
    console.set_quiet(args.quiet)
    (target,) = chosen_targets(args, project)
    reference = destination(args.reference)
    key = None
    if not args.unsigned:
        if args.key is None:
            raise SigningError(
                "an image is pushed with a signature, and no key was given",
                "--key cosign.key (`cosign generate-key-pair` makes one), or --unsigned",
            )
        key = signing_key(args.key, args.key_password_file)
    elif args.key is not None or args.key_password_file:
        raise SigningError("--unsigned takes no key", "drop one of the two")
    registry = open_registry(project, reference)
    signing = ready_to_sign(project, target.shared, key) if key else None
    # Room for an export is the export's own check.
    with acquire(project, target.shared, args.engine, need_gib=1) as engine:
        image = find_image(target, engine, allow_dirty=args.allow_dirty)
        check_tag_of(image, reference)
        if args.dry_run:
            taken = registry.manifest(image.tag) is not None
            return _dry_run(reference.with_tag(image.tag), taken=taken, as_json=args.json)
        result = push(project, target, engine, image, registry, signing)
    if not result.signed:
        console.warn("not signed: `verify` will say so, and a host cannot tell who made it")
    if args.json:
        console.result_json(result.document())
    else:
        print(summary(result))
    return 0


def _dry_run(tag: Reference, *, taken: bool, as_json: bool) -> int:
    if as_json:
        console.result_json({"dry_run": True, "tag": str(tag), "tag_exists": taken})
    else:
        there = "exists: it would be compared, never moved" if taken else "is free"
        print(f"would push {tag} (the tag {there}); nothing was sent")
    return 0


def summary(result: PushResult) -> str:
    """What a person needs after a push: the digest, the tag, how to pull."""
    state = "set" if result.tag_set else "was there already"
    lines = [
        f"{result.tag}: pushed in {result.seconds:.1f} s",
        f"  digest   {result.digest}",
        f"  tag      {result.tag.rpartition(':')[2]} ({state})",
        f"  sent     {result.bytes_sent / 1e6:.1f} MB in {result.blobs_sent} blobs",
        f"  skipped  {result.bytes_skipped / 1e6:.1f} MB in {result.blobs_skipped} blobs, there "
        "already",
        f"  signed   {', '.join(result.attached) if result.signed else 'no'}",
        f"  pull     docker pull {result.reference}",
    ]
    return "\n".join(lines)
