"""The command `gpucluster`: cluster file templates, schemas, profiles, the sandbox, history, reports.

Exit status: 0; 1 for an error; 2 for wrong usage; 3 if compare finds something worse; 4 for a wrong cluster file,
profile, inventory or history; 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import __version__, config
from pytest_gpucluster.cli import campaign as cli_campaign
from pytest_gpucluster.cli import check as cli_check
from pytest_gpucluster.cli import clean as cli_clean
from pytest_gpucluster.cli import examples as cli_examples
from pytest_gpucluster.cli import gate as cli_gate
from pytest_gpucluster.cli import history as cli_history
from pytest_gpucluster.cli import record as cli_record
from pytest_gpucluster.cli import report as cli_report
from pytest_gpucluster.cli import watch as cli_watch
from pytest_gpucluster.cli.completion import add_cluster, completes
from pytest_gpucluster.cli.output import add_json, print_json, print_table
from pytest_gpucluster.cli.run_command import run_command
from pytest_gpucluster.config import json_schema
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError, SandboxError
from pytest_gpucluster.core.registry import suite_hooks
from pytest_gpucluster.core.secure_tempfile import group_id, temporary_folder
from pytest_gpucluster.report.atomic_write import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import PartitionInfo
    from pytest_gpucluster.config import Profile
    from pytest_gpucluster.core.survey import Pmi, Survey

_PLAIN = {"power_limit": "watts"}  # numbers without a unit in profiles


@dataclass(frozen=True)
class Command:
    """A subcommand: name, one line of help, arguments, function."""

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]  # exit status, None is 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run `gpucluster` and return its exit status."""
    return run_command(_parser, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpucluster", description="Cluster files, reports, history and sandbox of pytest --cluster=NAME."
    )
    parser.add_argument("--version", action="version", version=f"gpucluster {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        one = commands.add_parser(command.name, help=command.help, description=command.help)
        command.arguments(one)
        one.set_defaults(run=command.run)
    return parser


# --- init


def _init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", help="name of the cluster (default: Slurm's, or that of the inventory file)"
    )
    parser.add_argument(
        "--inventory", type=Path, metavar="FILE", help="read an Ansible inventory instead of sinfo"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--offline",
        action="store_true",
        help="read no node: without it, one idle node per group is allocated for some seconds, to read its hardware and "
        "software",
    )
    how.add_argument(
        "--from-nodes",
        action="store_true",
        help="also draft checks from what runs on most nodes: allocates the nodes, one task each, for a few seconds",
    )
    parser.add_argument(
        "--nodes",
        metavar="LIST",
        help="the nodes to read, like gpu[01-04] (default: idle ones)",
    )
    parser.add_argument(
        "--access",
        choices=("slurm", "ssh"),
        default="slurm",
        help="ssh: the cluster file reaches the nodes over SSH, without Slurm, and so does --from-nodes",
    )
    parser.add_argument("--output", metavar="FILE", help="default: clusters/NAME.yaml; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def _init(args: argparse.Namespace) -> None:
    if args.nodes is not None and args.offline:
        raise ConfigError("--nodes: has no effect with --offline")
    name, known, draft = _draft_of_inventory(args) if args.inventory else _draft_of_slurm(args)
    path = Path(args.output) if args.output else Path("clusters", f"{name}.yaml")
    if args.output != "-":
        _refuse_existing(path, force=args.force)  # before nodes are allocated
    text = draft(known if args.offline else _from_nodes(args.nodes, known, draft, every=args.from_nodes))
    if args.output == "-":
        print(text)
        return
    _write(path, text, force=args.force)
    cluster = config.load_cluster(path if path.suffix in (".yaml", ".yml") else path.resolve())
    nodes, groups = sum(len(group.names) for group in cluster.groups), len(cluster.groups)
    print(
        f"{path}: {nodes} node{'s' * (nodes > 1)} in {groups} group{'s' * (groups > 1)}. "
        f"Review the file, then run: gpucluster check {path} --try; pytest --cluster={path}"
    )


def _from_nodes(nodes: str | None, known: Survey, draft: Callable[[Survey], str], *, every: bool) -> Survey:
    """Return what is known with what one node per group shows; `every`: also what most nodes have in common."""
    from pytest_gpucluster.cli.node_survey import read_nodes, survey  # only here

    with (
        contextlib.closing(temporary_folder()) as parent,
        tempfile.TemporaryDirectory(dir=parent.path) as folder,
    ):
        path = Path(folder, "draft.yaml")
        path.write_text(draft(known))
        cluster = config.load_cluster(path)
    progress = partial(print, file=sys.stderr)
    known = read_nodes(cluster, known, progress, nodes)
    return survey(cluster, nodes, known, progress) if every else known


def _draft_of_inventory(args: argparse.Namespace) -> tuple[str, Survey, Callable[[Survey], str]]:
    from pytest_gpucluster.config.ansible import read_inventory  # only init needs it
    from pytest_gpucluster.config.init_template import from_inventory
    from pytest_gpucluster.core.survey import Survey

    name, inventory = args.name or _file_name(args.inventory.stem), read_inventory(args.inventory)

    def draft(survey: Survey) -> str:
        return from_inventory(
            inventory, name=name, origin=str(args.inventory), survey=survey, access=args.access
        )

    return name, Survey(), draft


def _draft_of_slurm(args: argparse.Namespace) -> tuple[str, Survey, Callable[[Survey], str]]:
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.transport import LocalTransport
    from pytest_gpucluster.config.init_template import DraftNode, draft  # only init needs Slurm
    from pytest_gpucluster.core.survey import Survey

    slurm = Slurm(LocalTransport(), retry_for=0)
    try:
        partitions = slurm.partitions()
        nodes = [
            DraftNode(node.name, _chosen(node.partitions, partitions), node.gres)
            for node in slurm.nodes().values()
        ]
    except GpuClusterError as error:
        raise GpuClusterError(f"{error}; run init where sinfo works, or use --inventory FILE") from error
    name = args.name or _file_name(slurm.config().get("ClusterName", "cluster"))
    conf = os.environ.get("SLURM_CONF")
    simulated = _of_simulated_sandbox(conf)

    def write(survey: Survey) -> str:
        return draft(
            name, nodes, origin="sinfo", conf=conf, survey=survey, simulated=simulated, access=args.access
        )

    hosts = {node.hostname for node in slurm.nodes().values()}
    known = Survey(_pmi(slurm), outputs=_outputs(slurm), share_host=len(hosts) < len(nodes))
    return name, known, write


def _pmi(slurm: Slurm) -> Pmi | None:
    from pytest_gpucluster.cluster.slurm.mpi_types import read_mpi_list
    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.core.survey import Pmi  # only init needs it

    try:
        done = slurm.transport.run(("srun", "--mpi=list"), timeout=slurm.timeout, env=slurm.env)
        types = read_mpi_list(Answer("", done.rc, done.stdout.encode(), done.stderr.encode()))
    except GpuClusterError:
        return None
    return Pmi(
        tuple(pmi_type for pmi_type in types if pmi_type != "none"), slurm.config().get("MpiDefault", "")
    )


def _outputs(slurm: Slurm) -> dict[tuple[str, ...], str]:
    """Return what the commands print from which suites draft their sections; those that fail are left out."""
    found = {}
    for commands in suite_hooks("draft_commands"):
        for command in commands(slurm.config()):
            with contextlib.suppress(GpuClusterError):
                found[command] = slurm.run(*command)
    return found


def _of_simulated_sandbox(conf: str | None) -> bool:
    try:
        from pytest_gpucluster.sandbox import Sandbox, refused  # only init needs it
    except SandboxError:  # not installed
        return False
    with refused():
        root = Path(conf or "/etc/slurm/slurm.conf").absolute().parent.parent
        return Sandbox(root).status().get("gpus") == "simulated"


def _chosen(mine: Sequence[str], partitions: dict[str, PartitionInfo]) -> str:
    """Return one partition of a node: the default partition if possible, else the one with most nodes."""

    def rank(name: str) -> tuple[bool, int, str]:
        info = partitions.get(name)
        return info is None or not info.default, -len(info.nodes) if info else 0, name

    return min(mine, key=rank, default="")


def _file_name(text: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "-" for char in text).strip(".") or "cluster"


_ANOTHER = "--output names another file"


def _refuse_existing(path: Path, *, force: bool) -> None:
    if not force and os.path.lexists(path):
        raise ConfigError(f"{path}: exists already; --force overwrites it, {_ANOTHER}")


def _write(path: Path, text: str, *, force: bool) -> None:
    _refuse_existing(path, force=force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode(), mode=0o666 & ~_umask())
    except (GpuClusterError, OSError) as error:
        why = f"{path}: cannot be written ({error.strerror})" if isinstance(error, OSError) else error
        raise ConfigError(f"{why}: {_ANOTHER}, - standard output") from error


def _umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# --- schema and profiles


def _schema_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        nargs="?",
        choices=("cluster", "profile", "record"),
        default="cluster",
        help="what the schema describes (%(default)s)",
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--markdown", action="store_true", help="print the keys as Markdown tables")
    other.add_argument(
        "--reference",
        action="store_true",
        help="print options, markers, commands, fixtures and checks as Markdown",
    )
    other.add_argument(
        "--pages",
        type=Path,
        metavar="FOLDER",
        help="write the generated parts of the pages below a folder, like docs, between their marks",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")


def _schema(args: argparse.Namespace) -> None:
    from pytest_gpucluster.cli import reference as cli_reference  # only here

    if args.pages:
        for page, written in cli_reference.pages(args.pages, _parser()).items():
            changed = page.read_text() != written
            _write(page, written, force=True)
            print(f"{page}: {'written' if changed else 'unchanged'}")
        return
    if args.reference:
        text = cli_reference.reference(_parser())
    else:
        text = (
            json_schema.reference() if args.markdown else json.dumps(_schema_of(args.kind), indent=2) + "\n"
        )
    if args.output:
        _write(args.output, text, force=True)
    else:
        print(text.rstrip("\n"))


def _schema_of(kind: str) -> dict[str, Any]:
    if kind == "record":
        from pytest_gpucluster.report import record  # only here

        return record.schema()
    return json_schema.schema("profile" if kind == "profile" else "cluster")


def _man_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")


def _man(args: argparse.Namespace) -> None:
    from pytest_gpucluster.cli.man_page import man_page  # only here

    text = man_page(_parser(), __version__)
    if args.output:
        _write(args.output, text, force=True)
    else:
        print(text.rstrip("\n"))


def _profiles_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="list|show NAME")
    add_json(parser)
    listing = verbs.add_parser("list", help="list names and descriptions")
    show = verbs.add_parser("show", help="show all expectations of one profile")
    completes(show.add_argument("name", help="a shipped profile, NAME:COUNT or a file"), config.profile_names)
    for verb in (listing, show):
        add_json(verb, default=argparse.SUPPRESS)


def _profiles(args: argparse.Namespace) -> None:
    if args.verb == "show":
        stated = _expectations(config.load_profile(args.name))
        if args.json:
            print_json(stated)
        else:
            print(_profile_text(stated))
        return
    rows = [(name, config.load_profile(name).description) for name in config.profile_names()]
    if args.json:
        print_json({"profiles": [{"profile": name, "description": about} for name, about in rows]})
    else:
        print_table(("profile", "description"), rows)


def _expectations(profile: Profile) -> dict[str, Any]:
    return _stated(profile.model_dump(mode="json"), profile.model_dump(mode="json", exclude_defaults=True))


def _profile_text(stated: dict[str, Any]) -> str:
    import yaml  # only here

    text = yaml.safe_dump(stated, sort_keys=False, allow_unicode=True, width=110).rstrip()
    return re.sub(r"(?m)^ +(power_limit): .*$", lambda line: f"{line[0]}  # {_PLAIN[line[1]]}", text)


def _stated(plain: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """Omit empty values, except a null instead of a default, which removes an expectation."""
    inner = {
        key: _stated(value, changed.get(key) or {}) if isinstance(value, dict) else value
        for key, value in plain.items()
    }
    return {key: value for key, value in inner.items() if value not in (None, {}, []) or key in changed}


# --- sandbox


def _sandbox_arguments(parser: argparse.ArgumentParser) -> None:
    try:
        from slurm_sandbox import cli as cli_sandbox
    except ModuleNotFoundError:
        parser.epilog = "It is not installed: pip install 'pytest-gpucluster[sandbox]'; in a checkout pip install ./slurm-sandbox"
        parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    else:
        cli_sandbox.add_arguments(parser, environment="GPUCLUSTER_SANDBOX")


def _sandbox(args: argparse.Namespace) -> None:
    from pytest_gpucluster.sandbox import Sandbox, found_by, refused  # only here; SandboxError: not installed
    from slurm_sandbox import cli as cli_sandbox

    with refused():
        cli_sandbox.run(
            Sandbox(args.state_dir), args, {fault: checks[0] for fault, checks in found_by.FOUND_BY.items()}
        )


# --- junit


def _junit_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="merge")
    text = "merge JUnit files of shards and of repeated runs; earlier failures stay visible"
    merge = verbs.add_parser("merge", help=text, description=text)
    merge.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    merge.add_argument(
        "--report-group", metavar="GROUP", help="let this group read the file: mode 0640 instead of 0600"
    )
    merge.add_argument("inputs", type=Path, nargs="+", metavar="IN", help="the files to read")


def _junit(args: argparse.Namespace) -> None:
    from pytest_gpucluster.report.junit_merge import merge  # only here

    if args.out.name == "junit.xml" and args.out.with_name("events.jsonl").exists() and args.out.exists():
        raise ConfigError(f"{args.out}: belongs to a run: name the output file before the input files")
    print(f"{args.out}: {merge(args.inputs, args.out, group=group_id(args.report_group))}")


# --- drains


def _drains_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser, "cluster whose Slurm to query (default: the Slurm of this machine)")
    parser.add_argument(
        "--reports",
        type=Path,
        action="append",
        metavar="DIR",
        help="folder of reports, searched for the event log of the run (default: reports)",
    )
    add_json(parser)


def _drains(args: argparse.Namespace) -> None:
    from pytest_gpucluster.drain import PREFIX, listed  # only here
    from pytest_gpucluster.report.events import logs_below

    slurm = _slurm_of(args.cluster)
    try:
        nodes = slurm.nodes()
    except GpuClusterError as error:
        where = "" if args.cluster else "; run it on a machine with sinfo, or name the cluster with --cluster"
        raise GpuClusterError(f"{error}{where}") from error
    finally:
        slurm.transport.close()
    rows = listed(nodes.values(), logs_below(args.reports or [Path("reports")]))
    if args.json:
        print_json({"drains": rows})
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        print(f"No node is drained with a reason that begins with {PREFIX}")


def _slurm_of(name: str | None) -> Any:
    """Return the client of a cluster file's Slurm, or of the Slurm of this machine."""
    from pytest_gpucluster.cluster.slurm.client import Slurm, make_slurm  # slow to import
    from pytest_gpucluster.cluster.transport import LocalTransport

    if name is None:
        return Slurm(LocalTransport(), retry_for=0)
    if name == "sandbox":
        from pytest_gpucluster.sandbox import Sandbox

        return Slurm(LocalTransport(dict(Sandbox().env)), retry_for=0)
    slurm = make_slurm(config.load_cluster(name))
    if slurm is None:
        raise ConfigError(f"cluster {name} has no Slurm, so it has no drained nodes")
    slurm.retry_for = 0
    return slurm


COMMANDS = (
    Command("init", "draft a cluster file from sinfo or an Ansible inventory", _init_arguments, _init),
    Command(
        "check",
        "validate a cluster file without running anything; exit status 4 if it has errors",
        cli_check.arguments,
        cli_check.check,
    ),
    Command(
        "schema",
        "print the JSON Schema of cluster files for editors, or the reference",
        _schema_arguments,
        _schema,
    ),
    Command(
        "examples",
        "copy the shipped cluster files, CI jobs and suite of a site into a new folder",
        cli_examples.arguments,
        cli_examples.examples,
    ),
    Command(
        "gate",
        cli_gate.ABOUT,
        cli_gate.arguments,
        cli_gate.gate,
    ),
    Command("profiles", "list or show the shipped hardware profiles", _profiles_arguments, _profiles),
    Command(
        "drains",
        "list the nodes that gpucluster has drained, with the run that drained them",
        _drains_arguments,
        _drains,
    ),
    Command(
        "clean",
        "list jobs, files and containers that killed runs left; with --yes remove them",
        cli_clean.arguments,
        cli_clean.clean,
    ),
    Command("sandbox", "run a real Slurm of virtual nodes on this machine", _sandbox_arguments, _sandbox),
    Command(
        "history",
        "list the runs that pytest's --history has stored, or the history of one node",
        cli_history.history_arguments,
        cli_history.history,
    ),
    Command(
        "campaign",
        "show what a campaign (pytest --campaign) has found: nodes tested, waiting and failing, ages of verdicts",
        cli_campaign.arguments,
        cli_campaign.campaign,
    ),
    Command(
        "compare",
        "compare two runs; exit status 3 if something got worse",
        cli_history.compare_arguments,
        cli_history.compare,
    ),
    Command(
        "report",
        "write HTML and JUnit again from the event log, also of a killed run",
        cli_report.arguments,
        cli_report.report,
    ),
    Command(
        "record",
        "sign or verify the acceptance record of a run",
        cli_record.arguments,
        cli_record.record,
    ),
    Command("watch", "show how far a running run is", cli_watch.arguments, cli_watch.watch),
    Command("junit", "put several JUnit files into one", _junit_arguments, _junit),
    Command("man", "print the man page, for man -l", _man_arguments, _man),
)

if __name__ == "__main__":
    sys.exit(main())
