"""`test IMAGE`: its options, and what they do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from builder import console
from builder.arguments import path
from builder.attest import attest_receipts, digest_reference
from builder.engine import Engine, acquire
from builder.errors import ChecksFailedError, EvidenceError
from builder.pins import load_shared
from builder.project import Project
from builder.suites import Run
from builder.supply.cosign import Cosign
from builder.supply.keys import SigningKey, add_key_options, signing_key
from builder.test_image import (
    Subject,
    as_document,
    as_text,
    check_mounts,
    choose,
    commit_receipts,
    conclude,
    find,
    qualify,
    receipts_of,
    run_suites,
    why_foreign,
)

# Attributes of the parsed command line that mean nothing without an image.
ONLY_IMAGE = ("suite", "json", "selftest_receipt", "attest", "key", "key_password_file")


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """What may stand beside IMAGE."""
    image = parser.add_argument_group("with IMAGE")
    image.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="NAME",
        help="a suite instead of the quick ones, such as image/abi or e2e/tree; `all`; repeatable",
    )
    image.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    image.add_argument(
        "--selftest-receipt",
        type=path("FILE"),
        metavar="FILE",
        help="take GPU qualification from what `docker run --gpus all IMAGE selftest --json` "
        "printed; runs no suite unless --suite names one",
    )
    image.add_argument(
        "--attest",
        action="store_true",
        help="attach the image's receipts to it in its registry (IMAGE by digest, with --key)",
    )
    add_key_options(image)


def test_one(args: argparse.Namespace, project: Project) -> int:
    """The suites against an image that exists; 54 where they fail."""
    # Before an engine is asked for anything: what the command line itself has wrong.
    try:
        names = choose(project, args.suite, full=args.full)
    except ValueError as exc:
        args.usage_error(f"argument --suite: {exc}")
    if args.selftest_receipt and not args.suite and not args.full:
        names = ()
    key: SigningKey | None = None
    if args.attest:
        digest_reference(args.reference)
        if args.key is None:
            args.usage_error("--attest needs --key")
        key = signing_key(args.key, args.key_password_file)
    elif args.key is not None or args.key_password_file:
        args.usage_error("--key signs what --attest attaches: it needs --attest")
    with acquire(project, load_shared(project), args.engine, need_gib=1) as engine:
        subject = find(engine, args.reference)
        if args.selftest_receipt:
            qualify(project, subject, args.selftest_receipt)
        problem = _suites(args, project, engine, subject, names) if names else ""
        if not names and args.json:
            found = receipts_of(project, subject)
            console.result_json(as_document(subject, Run((), ""), found))
        if args.record and not problem:
            commit_receipts(project, subject)
        if key is not None and not problem:
            _attest(project, subject, key)
    return ChecksFailedError.exit_code if problem else 0


def _suites(
    args: argparse.Namespace,
    project: Project,
    engine: Engine,
    subject: Subject,
    names: Sequence[str],
) -> str:
    """Run and show them; why that is no pass, or nothing."""
    check_mounts(engine, subject.image.id)
    run = run_suites(
        project,
        engine,
        subject.image.id,  # a tag may move while the tests run
        names,
        full=args.full,
        foreign=why_foreign(project, subject.labels),
        target=subject.target,
        to_stderr=args.json,
    )
    conclude(project, engine, subject, run)
    if args.json:
        console.result_json(as_document(subject, run, receipts_of(project, subject)))
    else:
        print(as_text(subject, run))
    if run.problem:
        console.warn(f"{subject.reference}: {run.verdict}")
    return run.problem


def _attest(project: Project, subject: Subject, key: SigningKey) -> None:
    receipts = receipts_of(project, subject)
    if not receipts:
        raise EvidenceError(
            f"the cache holds no receipt of {subject.reference}: nothing can be attached",
            "earn one: --suite all, or --selftest-receipt FILE of a GPU host",
        )
    image = digest_reference(subject.reference)
    cosign = Cosign.obtain(project, load_shared(project))
    added = attest_receipts(cosign, image, receipts, key)
    console.info(f"{image}: attested {', '.join(added) or 'nothing new'}")
