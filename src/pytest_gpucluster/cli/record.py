"""`gpucluster record`: sign the acceptance record of a run or of a campaign, and verify it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.cli import signature
from pytest_gpucluster.cli.command import Command, argument, report_group, source
from pytest_gpucluster.cli.output import existing
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.secure_tempfile import group_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from pytest_gpucluster.report.record_check import Outcome


@dataclass(frozen=True)
class _Record:
    """A record, and what checks it. `describe` returns whose it is and its verdict; GpuClusterError for no record."""

    path: Path
    verify: Callable[[], Iterator[Outcome]]
    describe: Callable[[], tuple[str, str]]

    @property
    def signature(self) -> Path:
        """The file of the signature, beside it."""
        return self.path.with_name(f"{self.path.name}.sig")


def _of_run(log: Path) -> _Record:
    from pytest_gpucluster.report import record_check  # it needs the template of the page
    from pytest_gpucluster.report.record import RECORD

    path = log.with_name(RECORD)

    def describe() -> tuple[str, str]:
        document = record_check.load(path)[1]
        verdict = document["verdict"]
        return (
            f"cluster {document['cluster']}, run {document['run']}",
            f"{verdict['title']}, {verdict['nodes']}",
        )

    return _Record(path, lambda: record_check.verify(log), describe)


def _of_campaign(path: Path) -> _Record:
    from pytest_gpucluster.campaign import record as campaigns

    def describe() -> tuple[str, str]:
        document = campaigns.load(path)[1]
        return f"cluster {document['cluster']}, campaign {document['campaign']}", campaigns.title(document)

    return _Record(path, lambda: campaigns.verify(path), describe)


def _named(args: argparse.Namespace) -> _Record:
    """Return the record of a run or of a campaign that a command line names."""
    from pytest_gpucluster.campaign import record as campaigns
    from pytest_gpucluster.report.run_folder import full_log

    if campaigns.is_one(args.source):
        return _of_campaign(args.source)
    return _of_run(existing(full_log(args.source)))  # a rerun of single checks accepts no cluster


def sign(args: argparse.Namespace) -> int:
    """Sign the record of a run or of a campaign."""
    from pytest_gpucluster.report.atomic_write import write_whole

    found = _named(args)
    (subject, verdict), signed = found.describe(), found.signature
    data = found.path.read_bytes()
    if signed.exists() and not args.force:
        raise GpuClusterError(f"{signed}: exists already; --force replaces it")
    failed = [outcome for outcome in found.verify() if outcome.failed]
    if failed:
        _print(failed)
        raise GpuClusterError(f"{found.path}: not signed, because it does not fit the files beside it")
    group = group_id(args.report_group)
    write_whole(signed, signature.sign(data, args.key, args.namespace), group=group)
    print(f"{signed}: signed: {subject}: {verdict}")
    return 0


def verify(args: argparse.Namespace) -> int:
    """Verify the record of a run or of a campaign; return 1 if a check fails."""
    from pytest_gpucluster.report.record_check import each  # it needs the template of the page

    if args.identity and not args.signers:
        raise GpuClusterError("--identity: has no effect without --signers=FILE")
    found = _named(args)
    outcomes = [*found.verify(), *each(lambda: _signed(found, args))]
    _print(outcomes)
    failed = sum(outcome.failed for outcome in outcomes)
    if failed:
        print(f"NOT VERIFIED: {failed} of {len(outcomes)} checks failed")
        return 1
    verdict = found.describe()[1]
    unchecked = "; ".join(outcome.open for outcome in outcomes if outcome.open)
    print(f"unchanged: {verdict}; but {unchecked}" if unchecked else f"verified: {verdict}")
    return 0


def _signed(found: _Record, args: argparse.Namespace) -> Iterator[Outcome]:
    """Check the signature of the record, and who signed."""
    from pytest_gpucluster.report.record_check import Outcome

    path = found.signature
    if not path.is_file():
        yield Outcome(
            f"{path}: does not exist: the record is not signed",
            failed=args.signers is not None,
            open="the record is not signed, so whoever can write these files can have written others",
        )
        return
    data = found.path.read_bytes()
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


_NAMESPACE = argument(
    "--namespace",
    default=signature.NAMESPACE,
    metavar="NAME",
    help="what the signature is for (%(default)s)",
)
_SOURCE = source("; or the record-TIME.json of a campaign")
COMMAND = Command(
    "record",
    "sign or verify the acceptance record of a run",
    commands=(
        Command(
            "sign",
            "sign record.json with ssh-keygen; writes record.json.sig",
            sign,
            (
                _SOURCE,
                _NAMESPACE,
                argument(
                    "--key",
                    type=Path,
                    required=True,
                    metavar="FILE",
                    help="private key of ssh-keygen, or a public key whose private key is in ssh-agent",
                ),
                argument("--force", action="store_true", help="replace an earlier signature"),
                report_group("the file"),
            ),
        ),
        Command(
            "verify",
            "check record, event log, page and signature; exit status 1 if one is changed",
            verify,
            (
                _SOURCE,
                _NAMESPACE,
                argument(
                    "--signers",
                    type=Path,
                    metavar="FILE",
                    help="file of allowed signers (ssh-keygen(1)); without it, who signed is not checked",
                ),
                argument("--identity", metavar="WHO", help="the only signer that is accepted, like ops@site"),
            ),
        ),
    ),
)
