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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import config
from pytest_gpucluster.cli import campaign as cli_campaign
from pytest_gpucluster.cli import check as cli_check
from pytest_gpucluster.cli import clean as cli_clean
from pytest_gpucluster.cli import events as cli_events
from pytest_gpucluster.cli import evidence as cli_evidence
from pytest_gpucluster.cli import examples as cli_examples
from pytest_gpucluster.cli import gate as cli_gate
from pytest_gpucluster.cli import history as cli_history
from pytest_gpucluster.cli import parts as cli_parts
from pytest_gpucluster.cli import punchlist as cli_punchlist
from pytest_gpucluster.cli import record as cli_record
from pytest_gpucluster.cli import report as cli_report
from pytest_gpucluster.cli import watch as cli_watch
from pytest_gpucluster.cli.command import JSON, Command, argument, cluster_option, one_of, report_group
from pytest_gpucluster.cli.output import print_json, print_table
from pytest_gpucluster.cli.run_command import run_command
from pytest_gpucluster.config import json_schema
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError, SandboxError
from pytest_gpucluster.core.registry import parts_of_suites
from pytest_gpucluster.core.secure_tempfile import group_id, temporary_folder
from pytest_gpucluster.core.text import count
from pytest_gpucluster.report.machine.atomic_write import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import PartitionInfo
    from pytest_gpucluster.config import Profile
    from pytest_gpucluster.core.survey import Pmi, Survey

_PLAIN = {"power_limit": "watts"}  # numbers without a unit in profiles


def main(argv: Sequence[str] | None = None) -> int:
    """Run `gpucluster` and return its exit status."""
    return run_command(commands(), argv)


# --- init


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
        f"{path}: {count(nodes, 'node')} in {count(groups, 'group')}. "
        f"Review the file, then run: gpucluster check {path} --try; pytest --cluster={path}"
    )


def _from_nodes(nodes: str | None, known: Survey, draft: Callable[[Survey], str], *, every: bool) -> Survey:
    """Return what is known with what one node per group shows; `every`: also what most nodes have in common."""
    from pytest_gpucluster.cli.node_survey import read_nodes, survey  # only here

    with contextlib.closing(temporary_folder()) as parent, tempfile.TemporaryDirectory(dir=parent.path) as folder:
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
        return from_inventory(inventory, name=name, origin=str(args.inventory), survey=survey, access=args.access)

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
            DraftNode(node.name, chosen, node.gres, partitions[chosen].max_time if chosen in partitions else None)
            for node in slurm.nodes().values()
            for chosen in (_chosen(node.partitions, partitions),)
        ]
    except GpuClusterError as error:
        raise GpuClusterError(f"{error}; run init where sinfo works, or use --inventory FILE") from error
    name = args.name or _file_name(slurm.config().get("ClusterName", "cluster"))
    conf = os.environ.get("SLURM_CONF")
    simulated = _of_simulated_sandbox(conf)

    def write(survey: Survey) -> str:
        return draft(name, nodes, origin="sinfo", conf=conf, survey=survey, simulated=simulated, access=args.access)

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
    return Pmi(tuple(pmi_type for pmi_type in types if pmi_type != "none"), slurm.config().get("MpiDefault", ""))


def _outputs(slurm: Slurm) -> dict[tuple[str, ...], str]:
    """Return what the commands print from which suites draft their sections; those that fail are left out."""
    found = {}
    for commands in parts_of_suites(lambda suite: suite.draft_commands):
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


def _schema(args: argparse.Namespace) -> None:
    from pytest_gpucluster.cli import reference as cli_reference  # only here

    if args.pages:
        for page, written in cli_reference.pages(args.pages, commands()).items():
            changed = page.read_text() != written
            _write(page, written, force=True)
            print(f"{page}: {'written' if changed else 'unchanged'}")
        return
    if args.reference:
        text = cli_reference.reference(commands())
    else:
        text = json_schema.reference() if args.markdown else json.dumps(json_schema.schema(args.kind), indent=2) + "\n"
    if args.output:
        _write(args.output, text, force=True)
    else:
        print(text.rstrip("\n"))


def _show_profile(args: argparse.Namespace) -> None:
    stated = _expectations(config.load_profile(args.name))
    if args.json:
        print_json(stated)
    else:
        print(_profile_text(stated))


def _list_profiles(args: argparse.Namespace) -> None:
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


def _sandbox_command() -> Command:
    about = "run a real Slurm of virtual nodes on this machine"
    try:
        from slurm_sandbox import cli as cli_sandbox
    except ModuleNotFoundError:
        why = "It is not installed: pip install 'pytest-gpucluster[sandbox]'; in a checkout pip install ./slurm-sandbox"
        words = argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        return Command("sandbox", about, _sandbox, (words,), epilog=why)
    verbs = (
        Command(
            verb.name,
            verb.help,
            _sandbox,
            tuple(argument(*names, **attributes) for names, attributes in verb.arguments),
            values={"verb": verb.act},
        )
        for verb in cli_sandbox.verbs("GPUCLUSTER_SANDBOX")
    )
    return Command("sandbox", about, commands=tuple(verbs))


def _sandbox(args: argparse.Namespace) -> None:
    from pytest_gpucluster.sandbox import Sandbox, found_by, refused  # only here; SandboxError: not installed
    from slurm_sandbox import cli as cli_sandbox

    with refused():
        cli_sandbox.run(
            Sandbox(args.state_dir), args, {fault: checks[0] for fault, checks in found_by.FOUND_BY.items()}
        )


# --- junit


def _junit(args: argparse.Namespace) -> None:
    from pytest_gpucluster.report.machine.junit_merge import merge  # only here

    if args.out.name == "junit.xml" and args.out.with_name("events.jsonl").exists() and args.out.exists():
        raise ConfigError(f"{args.out}: belongs to a run: name the output file before the input files")
    print(f"{args.out}: {merge(args.inputs, args.out, group=group_id(args.report_group))}")


# --- drains


def _drains(args: argparse.Namespace) -> None:
    from pytest_gpucluster.drain import PREFIX, table  # only here
    from pytest_gpucluster.report.machine.events import logs_below

    slurm = _slurm_of(args.cluster)
    try:
        nodes, held = slurm.nodes(), table.held(slurm.run(*table.JOBS))
    except GpuClusterError as error:
        where = "" if args.cluster else "; run it on a machine with sinfo, or name the cluster with --cluster"
        raise GpuClusterError(f"{error}{where}") from error
    finally:
        slurm.transport.close()
    rows = table.listed(nodes.values(), logs_below(args.reports or [Path("reports")]))
    if args.json:
        print_json({"drains": rows, "held": held})
        return
    if rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        print(f"No node is drained with a reason that begins with {PREFIX}")
    if any(row["checks"] in table.BY_SCRIPT.values() for row in rows):
        print("(Prolog), (Epilog): the script failed there; slurmd's log has the line of a gate that it ran")
    for job in held:
        print(f"job {job['job']} of {job['user']}: {job['reason']}; after the repair: scontrol release {job['job']}")


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


# --- the table


INIT = Command(
    "init",
    "draft a cluster file from sinfo or an Ansible inventory",
    _init,
    (
        argument("--name", help="name of the cluster (default: Slurm's, or that of the inventory file)"),
        argument("--inventory", type=Path, metavar="FILE", help="read an Ansible inventory instead of sinfo"),
        one_of(
            argument(
                "--offline",
                action="store_true",
                help="read no node: without it, one idle node per group is allocated for some seconds, to read its hardware "
                "and software",
            ),
            argument(
                "--from-nodes",
                action="store_true",
                help="also draft checks from what runs on most nodes: allocates the nodes, one task each, for a few seconds",
            ),
        ),
        argument("--nodes", metavar="LIST", help="the nodes to read, like gpu[01-04] (default: idle ones)"),
        argument(
            "--access",
            choices=("slurm", "ssh"),
            default="slurm",
            help="ssh: the cluster file reaches the nodes over SSH, without Slurm, and so does --from-nodes",
        ),
        argument("--output", metavar="FILE", help="default: clusters/NAME.yaml; - for standard output"),
        argument("--force", action="store_true", help="overwrite an existing file"),
    ),
)
SCHEMA = Command(
    "schema",
    "print the JSON Schema of cluster files for editors, or the reference",
    _schema,
    (
        argument(
            "kind",
            nargs="?",
            choices=("cluster", "profile"),
            default="cluster",
            help="what the schema describes (%(default)s)",
        ),
        one_of(
            argument("--markdown", action="store_true", help="print the keys as Markdown lists"),
            argument(
                "--reference",
                action="store_true",
                help="print options, markers, commands, fixtures and checks as Markdown",
            ),
            argument(
                "--pages",
                type=Path,
                metavar="FOLDER",
                help="write the generated parts of the pages below a folder, like docs, between their marks",
            ),
        ),
        argument("--output", type=Path, metavar="FILE", help="default: standard output"),
    ),
)
# without a default: the parser of `profiles` has one, which that of `profiles list` must not replace
_JSON_OF_VERB = argument(*JSON.names, **{**JSON.attributes, "default": argparse.SUPPRESS})
PROFILES = Command(
    "profiles",
    "list or show the shipped hardware profiles",
    _list_profiles,
    (JSON,),
    (
        Command("list", "list names and descriptions", _list_profiles, (_JSON_OF_VERB,)),
        Command(
            "show",
            "show all expectations of one profile",
            _show_profile,
            (
                argument("name", help="a shipped profile, NAME:COUNT or a file", completes=config.profile_names),
                _JSON_OF_VERB,
            ),
        ),
    ),
)
DRAINS = Command(
    "drains",
    "list the nodes that gpucluster has drained, with the run that drained them",
    _drains,
    (
        cluster_option("cluster whose Slurm to query (default: the Slurm of this machine)"),
        argument(
            "--reports",
            type=Path,
            action="append",
            metavar="DIR",
            help="folder of reports, searched for the event log of the run (default: reports)",
        ),
        JSON,
    ),
)
JUNIT = Command(
    "junit",
    "put several JUnit files into one",
    commands=(
        Command(
            "merge",
            "merge JUnit files of shards and of repeated runs; earlier failures stay visible",
            _junit,
            (
                argument("out", type=Path, metavar="OUT", help="the file to write"),
                report_group("the file"),
                argument("inputs", type=Path, nargs="+", metavar="IN", help="the files to read"),
            ),
        ),
    ),
)


def commands() -> tuple[Command, ...]:
    """Return all commands; those of the sandbox are in a package of its own, which may be missing."""
    return (
        INIT,
        cli_check.COMMAND,
        SCHEMA,
        cli_examples.COMMAND,
        cli_gate.COMMAND,
        PROFILES,
        DRAINS,
        cli_clean.COMMAND,
        _sandbox_command(),
        cli_history.HISTORY,
        cli_parts.PARTS,
        cli_events.COMMAND,
        cli_evidence.EVIDENCE,
        cli_punchlist.COMMAND,
        cli_campaign.COMMAND,
        cli_history.COMPARE,
        cli_report.COMMAND,
        cli_record.COMMAND,
        cli_watch.COMMAND,
        JUNIT,
    )


if __name__ == "__main__":
    sys.exit(main())
