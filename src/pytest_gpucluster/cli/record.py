"""`gpucluster record`: show the record of a run; sign the folder of a run or of a campaign, and verify it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.cli.command import JSON, Command, argument, report_group, source
from pytest_gpucluster.cli.history import history_file
from pytest_gpucluster.cli.output import existing, print_json, print_table
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.secure_tempfile import group_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pytest_gpucluster.campaign.store import CampaignStore

NAMESPACE = "gpucluster-record"


def _root(source: Path) -> Path:
    from pytest_gpucluster.campaign.state_file import NAME
    from pytest_gpucluster.report.machine.run_folder import full_log, log_in

    if (source / NAME).is_file():
        return source.resolve()
    full, newest = existing(full_log(source)), log_in(source)
    # a rerun of single checks accepts no cluster, and a full run before it may be out of date
    if full != newest:
        raise GpuClusterError(
            f"{source}: its newest run, {newest.parent.name}, is not its newest full run, {full.parent.name}: name the folder of "
            "the one that you mean"
        )
    return full.parent.resolve()


def show(args: argparse.Namespace) -> None:
    """Print verdict, scope, failures, figures, waivers and parts of a run."""
    from pytest_gpucluster.report.describe import clock, number
    from pytest_gpucluster.report.machine import acceptance_record as record
    from pytest_gpucluster.report.machine.events import read_log
    from pytest_gpucluster.report.machine.run_folder import log_in

    run = read_log(existing(log_in(args.source)))
    found = record.record_of(run)
    if args.json:
        print_json(found)
        return
    verdict = found["verdict"]
    print(f"{found['cluster']}, run {found['run']}: {verdict['title']}: {verdict['nodes']}.")
    print(*verdict["sentences"], end="\n" if verdict["sentences"] else "")
    failures = [
        f"{it['check']} on {it['nodes']}" + (f" ({it['action']})" if it["action"] else "") for it in found["failures"]
    ]
    for title, texts in (
        ("began", [f"{clock(found['began'], run)}, by {found['by']}"]),
        *((state, [nodes]) for state, nodes in found["nodes"].items()),
        ("failure", failures),
        ("criteria", [f"{it['nodes']}: profile {it['profile']} ({it['source']})" for it in found["criteria"]]),
        ("not applicable by the cluster file", [f"{it} ({why})" for it, why in found["not_applicable"].items()]),
        ("judged by", [", ".join(found["suites"]) or "no suite"]),
        ("narrowed by", filter(None, [found["narrowed_by"]])),
        ("without a result", filter(None, [", ".join(found["without_result"])])),
        ("not tested", found["not_tested"]),
        ("not judged", found["not_judged"]),
        ("parts", found["parts_by_kind"]),
        ("parts", found["parts_not_read"]),
    ):  # fmt: skip
        for text in texts:
            print(f"{title}: {text}")
    figures = [
        (
            *(it[key] for key in ("suite", "profile", "metric", "unit", "measurements")),
            number(it["least"]),
            it["least_at"],
            number(it["median"]),
            number(it["greatest"]),
            it["greatest_at"],
            "; ".join(bound["words"] for bound in it["bounds"]),
        )
        for it in found["figures"]
    ]
    columns = (
        "suite",
        "profile",
        "metric",
        "unit",
        "n",
        "least",
        "at",
        "median",
        "greatest",
        "at",
        "bound and its source",
    )
    for title, headers, rows in (
        ("Figures", columns, figures),
        ("Waivers", ("checks", "nodes", "reason", "ticket", "until"),
         [(", ".join(it["checks"]), it["nodes"], it["reason"], it["ticket"], it["until"]) for it in found["waivers"]]),
        ("Parts", ("node", "part", "model", "part number", "firmware", "n", "serial numbers"),
         [(*row, len(serials), ", ".join(serials)) for *row, serials in record.parts_table(run)]),
    ):  # fmt: skip
        if rows:
            print(f"\n{title}")
            print_table(headers, rows)


def sign(args: argparse.Namespace) -> int:
    """List the sums of all files of a run or campaign, and sign them."""
    from pytest_gpucluster.cli import signed_folder  # it needs the templates of the reports
    from pytest_gpucluster.report.machine.atomic_write import write_whole
    from pytest_gpucluster.report.machine.run_folder import MANIFEST, SIGNATURE

    root = _root(args.source)
    manifest, signature = root / MANIFEST, root / SIGNATURE
    if (manifest.exists() or signature.exists()) and not args.force:
        raise GpuClusterError(f"{signature}: exists already; --force replaces it")
    with _store(args, root) as store:
        data, found = signed_folder.manifest_of(root, store)
    signed = signed_folder.sign(data, args.key, args.namespace)
    group = group_id(args.report_group)
    write_whole(manifest, data, group=group)
    write_whole(signature, signed, group=group)
    print(f"{signature}: signed: {found.subject}: {found.verdict}")
    return 0


@contextlib.contextmanager
def _store(args: argparse.Namespace, root: Path) -> Iterator[CampaignStore | None]:
    """Open the history of a campaign; of a run there is nothing to compare."""
    from pytest_gpucluster.campaign.state_file import NAME
    from pytest_gpucluster.campaign.store import CampaignStore

    if not (root / NAME).exists():
        yield None
        return
    args.cluster = None
    with contextlib.closing(CampaignStore(history_file(args))) as store:
        yield store


def verify(args: argparse.Namespace) -> int:
    """Verify the files and the signature, and print the verdict of the logs."""
    from pytest_gpucluster.cli import signed_folder  # it needs the templates of the reports

    found, who = signed_folder.verify(
        _root(args.source), args.signers, identity=args.identity, namespace=args.namespace
    )
    print(f"verified: {found.verdict}: {found.subject}, signed by {who}")
    return 0


_NAMESPACE = argument("--namespace", default=NAMESPACE, metavar="NAME", help="what the signature is for (%(default)s)")
_SOURCE = source("; or the folder of a campaign")
COMMAND = Command(
    "record",
    "show the record of a run; sign or verify the folder of a run or campaign",
    commands=(
        Command(
            "show",
            "print the verdict, measured figures with their bounds, waivers, and the parts by serial number",
            show,
            (source(), JSON),
        ),
        Command(
            "sign",
            "list the sha256 of all files in SHA256SUMS, and sign it with ssh-keygen",
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
                argument(
                    "--history",
                    type=Path,
                    metavar="FILE",
                    help="history with the state of the campaign (default: $GPUCLUSTER_HISTORY)",
                ),
                report_group("the files"),
            ),
        ),
        Command(
            "verify",
            "check files and signature, and print the verdict of the logs; exit status 1 if one is changed",
            verify,
            (
                _SOURCE,
                _NAMESPACE,
                argument(
                    "--signers",
                    type=Path,
                    required=True,
                    metavar="FILE",
                    help="file of allowed signers (ssh-keygen(1))",
                ),
                argument("--identity", metavar="WHO", help="the only signer that is accepted, like ops@site"),
            ),
        ),
    ),
)
