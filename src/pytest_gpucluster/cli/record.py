"""`gpucluster record`: sign the acceptance record of a run, and verify it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.cli import signature
from pytest_gpucluster.cli.output import add_source, existing
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.secure_tempfile import group_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from pytest_gpucluster.report.record_check import Outcome


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `gpucluster record`."""
    verbs = parser.add_subparsers(required=True, dest="verb", metavar="sign|verify")
    sign = verbs.add_parser("sign", help="sign record.json with ssh-keygen; writes record.json.sig")
    verify = verbs.add_parser(
        "verify", help="check record, event log, page and signature; exit status 1 if one is changed"
    )
    for verb in (sign, verify):
        add_source(verb)
        verb.add_argument(
            "--namespace",
            default=signature.NAMESPACE,
            metavar="NAME",
            help="what the signature is for (%(default)s)",
        )
    sign.add_argument(
        "--key",
        type=Path,
        required=True,
        metavar="FILE",
        help="private key of ssh-keygen, or a public key whose private key is in ssh-agent",
    )
    sign.add_argument("--force", action="store_true", help="replace an earlier signature")
    sign.add_argument(
        "--report-group", metavar="GROUP", help="let this group read the file: mode 0640 instead of 0600"
    )
    verify.add_argument(
        "--signers",
        type=Path,
        metavar="FILE",
        help="file of allowed signers (ssh-keygen(1)); without it, who signed is not checked",
    )
    verify.add_argument("--identity", metavar="WHO", help="the only signer that is accepted, like ops@site")


def record(args: argparse.Namespace) -> int:
    """Sign or verify the record of a run."""
    from pytest_gpucluster.report.run_folder import full_log

    log = existing(full_log(args.source))  # a rerun of single checks accepts no cluster
    return _sign(args, log) if args.verb == "sign" else _verify(args, log)


def _sign(args: argparse.Namespace, log: Path) -> int:
    from pytest_gpucluster.report import record_check  # it needs the template of the page
    from pytest_gpucluster.report.atomic_write import write_whole
    from pytest_gpucluster.report.record import RECORD
    from pytest_gpucluster.report.run_folder import SIGNATURE

    path, signed = log.with_name(RECORD), log.with_name(SIGNATURE)
    data, document = record_check.load(path)
    if signed.exists() and not args.force:
        raise GpuClusterError(f"{signed}: exists already; --force replaces it")
    failed = [outcome for outcome in record_check.verify(log) if outcome.failed]
    if failed:
        _print(failed)
        raise GpuClusterError(f"{path}: not signed, because it does not fit the files beside it")
    group = group_id(args.report_group)
    write_whole(signed, signature.sign(data, args.key, args.namespace), group=group)
    verdict = document["verdict"]
    print(
        f"{signed}: signed: cluster {document['cluster']}, run {document['run']}: {verdict['title']}, {verdict['nodes']}"
    )
    return 0


def _verify(args: argparse.Namespace, log: Path) -> int:
    from pytest_gpucluster.report import record_check  # it needs the template of the page
    from pytest_gpucluster.report.record import RECORD

    if args.identity and not args.signers:
        raise GpuClusterError("--identity: has no effect without --signers=FILE")
    outcomes = [*record_check.verify(log), *record_check.each(lambda: _signed(log, args))]
    _print(outcomes)
    failed = sum(outcome.failed for outcome in outcomes)
    if failed:
        print(f"NOT VERIFIED: {failed} of {len(outcomes)} checks failed")
        return 1
    _, document = record_check.load(log.with_name(RECORD))
    verdict = f"{document['verdict']['title']}, {document['verdict']['nodes']}"
    unchecked = "; ".join(outcome.open for outcome in outcomes if outcome.open)
    print(f"unchanged: {verdict}; but {unchecked}" if unchecked else f"verified: {verdict}")
    return 0


def _signed(log: Path, args: argparse.Namespace) -> Iterator[Outcome]:
    """Check the signature of the record, and who signed."""
    from pytest_gpucluster.report.record import RECORD
    from pytest_gpucluster.report.record_check import Outcome
    from pytest_gpucluster.report.run_folder import SIGNATURE

    path = log.with_name(SIGNATURE)
    if not path.is_file():
        yield Outcome(
            f"{path}: does not exist: the record is not signed",
            failed=args.signers is not None,
            open="the record is not signed, so whoever can write these files can have written others",
        )
        return
    data = log.with_name(RECORD).read_bytes()
    key = signature.check(data, path, args.namespace)
    text = f"{path}: signed for {args.namespace} with {key}"
    if args.signers is None:
        yield Outcome(text, open="who signed was not checked: --signers names a file of allowed signers")
        return
    who = signature.check_signer(data, path, args.signers, args.identity, args.namespace)
    yield Outcome(f"{text} by {who}")


def _print(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        label = "FAILED" if outcome.failed else "open" if outcome.open else "ok"
        print(f"{label}: {outcome.text}")
