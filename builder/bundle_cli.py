"""`bundle`: the image and its evidence as one folder or tar, for hosts without a network."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from builder import console
from builder.arguments import nonempty, path
from builder.bundle.gather import gather
from builder.bundle.make import BundleResult, make_bundle
from builder.bundle.signing import signer
from builder.bundle.write import check_destination
from builder.engine import acquire
from builder.engine.cli import add_engine_option
from builder.project import Project
from builder.supply.keys import add_key_options, signing_key
from builder.target_options import add_target_options, chosen_targets

DESCRIPTION = """\
Make an offline bundle: one folder, or one tar, with all that a host without a network needs to
check, load and serve the image:

  image/          the image, an OCI layout (zstd layers); `docker load` takes it too
  evidence/       SBOMs (SPDX, CycloneDX), SLSA provenance, the receipts that this image has
  serve/          compose.yaml and what belongs to it, the operator's manual
  SHA256SUMS      checksums of every file; SHA256SUMS.sig their signature by cosign's key
  import.sh       verifies all of this on the host, then loads the image; README.txt: by hand

  python3 build.py bundle --cuda cu130 --to /media/stick/ddtree --key cosign.key
  python3 build.py bundle --cuda cu130 --to ddtree.tar --key awskms:///alias/release
  python3 build.py bundle --cuda cu130 --to /tmp/ddtree --unsigned

and on the host, where cosign.pub came another way than the bundle:

  bash import.sh --key cosign.pub

The image is built first (`python3 build.py --cuda cu130`). Nothing that exists is overwritten, and
a bundle appears whole or not at all. Two bundles of one image are equal but for the signature. A
folder suits media that take no file of 4 GiB (FAT): its largest file is the largest layer.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "bundle",
        help="an offline bundle: image, evidence, signature, import script",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target_options(parser)
    parser.add_argument(
        "--to",
        type=path("DIR|FILE.tar"),
        required=True,
        metavar="DIR|FILE.tar",
        help="where the bundle goes: a new or empty folder, or a new file",
    )
    add_key_options(parser)
    parser.add_argument(
        "--unsigned", action="store_true", help="sign nothing: for tests, or to sign elsewhere"
    )
    parser.add_argument(
        "--image",
        metavar="REF",
        type=nonempty("REF"),
        help="another image of this target on the engine (default: the last one built)",
    )
    parser.add_argument(
        "--allow-dirty",
        action="store_true",
        help="take an image that was built with uncommitted changes, or without git",
    )
    add_engine_option(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.set_defaults(handler=_run, usage_error=parser.error)


def _run(args: argparse.Namespace, project: Project) -> int:
    console.set_quiet(args.quiet)
    if (args.key is not None) == args.unsigned:
        args.usage_error("name the key by --key, or say --unsigned (one of both)")
    if args.unsigned and args.key_password_file:
        args.usage_error("--key-password-file goes with --key")
    (target,) = chosen_targets(args, project)
    destination: Path = args.to.expanduser().absolute()
    check_destination(destination)
    sign = None
    if args.key is not None:
        key = signing_key(args.key, args.key_password_file)
        sign = signer(project, target.shared, key)
    reference = args.image or f"{target.shared.project.image_name}:{target.name}"
    with tempfile.TemporaryDirectory(prefix="ddtree-bundle-") as scratch:
        with acquire(project, target.shared, args.engine, need_gib=1) as engine:
            layout, evidence = gather(
                project, target, engine, reference, Path(scratch), allow_dirty=args.allow_dirty
            )
        result = make_bundle(project, target, layout, evidence, destination, sign)
    if args.json:
        console.result_json(as_json(result))
    else:
        print(summary(result))
    return 0


def as_json(result: BundleResult) -> dict[str, Any]:
    """Sizes in bytes."""
    image = result.announced
    return {
        "bundle": str(result.destination),
        "signed": result.signed,
        "files": result.files,
        "size_bytes": result.size_bytes,
        "largest_file_bytes": result.largest_bytes,
        "evidence": list(result.evidence),
        "image": {
            "name": image.name,
            "target": image.target,
            "build_id": image.build_id,
            "revision": image.revision,
            "manifest": image.manifest,
            "config": image.config,
            "rootfs": image.rootfs,
            "unpacked_bytes": image.unpacked_bytes,
        },
    }


def summary(result: BundleResult) -> str:
    """What was made, and what to do with it."""
    image = result.announced
    key = "--key cosign.pub" if result.signed else "--unsigned"
    state = "signed" if result.signed else "NOT signed: whoever has it in hand can change it"
    return "\n".join(
        [
            f"{result.destination}: {result.files} files, {result.size_bytes / 2**30:.2f} GiB, "
            f"largest {result.largest_bytes / 2**30:.2f} GiB; {state}",
            f"  image     {image.name}",
            f"  manifest  {image.manifest}",
            f"  evidence  {', '.join(result.evidence)}",
            f"  on the host: bash import.sh {key}",
        ]
    )
