"""`ddtree selftest`: serve tiny models with and without draft trees, and compare."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from ddtree_overlay.selftest.device import choose_device, describe
from ddtree_overlay.selftest.interrupts import Interrupted, Interrupts, interruptible
from ddtree_overlay.selftest.model_files import FOLDER, load_models
from ddtree_overlay.selftest.receipt import (
    Receipt,
    check_writable,
    render_json,
    render_text,
    write_receipt,
)
from ddtree_overlay.selftest.run import Options, run
from ddtree_overlay.serve.errors import SelftestFailedError, SelftestNotRunError, UsageError
from ddtree_overlay.serve.launch import refuse_stand_in_on_gpu
from ddtree_overlay.serve.manifest import read_manifest
from ddtree_overlay.serve.version import collect

DESCRIPTION = """\
Start the image's own server twice on a tiny model that comes with it, without speculation and with
DDTREE, ask both the same over HTTP, and require the same tokens, accepted trees and the accept
length that the models were made with. Needs no network, no model and no writable root; a CPU is
enough. Exit status: 0 passed, 77 failed, 78 could not be run.
"""
# Two servers on two slow cores; with a GPU, FlashInfer may have to compile first.
TIMEOUT_SECONDS = 900.0


def selftest_command(
    arguments: Sequence[str], environment: Mapping[str, str], *, models: Path = FOLDER
) -> int:
    """Run it; 0 if everything is as it must be, 128 + n after signal n.

    The receipt goes to stdout, progress to stderr. Raises UsageError (64), StandInGpuError (65),
    ManifestError (66), SelftestFailedError (77) and SelftestNotRunError (78).
    """
    given = _parse(arguments)
    manifest = read_manifest(environment)
    # As `serve` does, and for its reason: a GPU would be served by substitutes.
    refuse_stand_in_on_gpu(manifest, environment)
    device = choose_device(given.device, environment)
    if given.receipt:
        check_writable(given.receipt)
    made = load_models(models)
    receipt = Receipt(
        collect(manifest),
        describe(device, given.tp, environment),
        accept_length_recorded=made.accept_length,
    )
    options = Options(device, given.tp, made, time.monotonic() + given.timeout)
    error: SelftestNotRunError | None = None
    try:
        with interruptible() as interrupts:
            _run_in_folder(options, environment, receipt, interrupts, given.keep_logs)
    except Interrupted as interrupted:
        print(f"selftest: ended by {interrupted}", file=sys.stderr)
        return 128 + interrupted.number
    except SelftestNotRunError as raised:
        error = raised
        receipt.error = raised.what
    document = receipt.document()
    print(render_json(document) if given.json else render_text(document), flush=True)
    if given.receipt:
        write_receipt(given.receipt, document)
    if error is not None:
        raise error
    if receipt.result != "pass":
        raise SelftestFailedError(_first_failure(receipt), _remedy(device))
    return 0


def _run_in_folder(
    options: Options,
    environment: Mapping[str, str],
    receipt: Receipt,
    interrupts: Interrupts,
    keep_logs: Path | None,
) -> None:
    """Run with a folder of its own, gone afterwards but for the logs that are to be kept."""
    with ExitStack() as stack:
        if keep_logs is not None:
            try:
                keep_logs.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=keep_logs):
                    pass
            except OSError as error:
                raise SelftestNotRunError(
                    f"--keep-logs {keep_logs} cannot be written: {error.strerror}",
                    "name a folder that can be written to",
                ) from None
        try:
            # Short names: SGLang's sockets lie below it.
            folder = Path(tempfile.mkdtemp(prefix="selftest-", dir=environment.get("TMPDIR")))
        except OSError as error:
            raise SelftestNotRunError(
                f"no temporary folder can be made: {error.strerror}",
                "give the container a writable /tmp (--tmpfs /tmp:exec)",
            ) from None
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if keep_logs is not None:
            stack.callback(_copy_logs, folder, keep_logs)
        run(options, environment, receipt, folder, interrupts, say)


def _copy_logs(folder: Path, keep: Path) -> None:
    for log in folder.glob("*.log"):
        shutil.copyfile(log, keep / log.name)


def say(line: str) -> None:
    """A line of progress."""
    print(f"selftest: {line}", file=sys.stderr, flush=True)


def _first_failure(receipt: Receipt) -> str:
    failed = [check for check in receipt.checks if not check.passed]
    names = ", ".join(check.name for check in failed)
    first = failed[0]
    where = first.wrong[0].line() if first.wrong else f"{first.name}: {first.what}"
    return f"{len(failed)} of {len(receipt.checks)} checks failed ({names}); {where}"


def _remedy(device: str) -> str:
    common = "do not serve with this image; keep the receipt and the logs (--keep-logs DIR)"
    return (
        f"{common}, and compare with `ddtree selftest --device cpu`" if device == "cuda" else common
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"selftest: {message}", "see `ddtree selftest --help`")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="ddtree selftest",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print the receipt as JSON")
    parser.add_argument(
        "--receipt", type=Path, metavar="FILE", help="write it there as well (JSON)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks, 1 or 2"
    )
    parser.add_argument(
        "--keep-logs", type=Path, metavar="DIR", help="keep the servers' logs there"
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_SECONDS, metavar="S", help="bound of the whole run"
    )
    given = parser.parse_args(list(arguments))
    if given.tp not in (1, 2):
        raise UsageError(
            f"selftest: --tp {given.tp}: the tiny models have two heads", "use --tp 1 or --tp 2"
        )
    if not 0 < given.timeout < 86400:
        raise UsageError(f"selftest: --timeout {given.timeout} is no bound", "give it in seconds")
    return given
