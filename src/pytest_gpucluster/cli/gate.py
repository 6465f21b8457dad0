"""`gpucluster gate`: the checks of the node that it is started on, for Prolog, Epilog, HealthCheckProgram, and inside a job."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster import config
from pytest_gpucluster.cli.command import JSON, Command, argument, cluster_option, one_of, parser_of
from pytest_gpucluster.cli.errors import OF_SLURM, no_harm, of_slurm
from pytest_gpucluster.cli.output import print_json
from pytest_gpucluster.cli.run_command import run_command
from pytest_gpucluster.core import redact, units
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.former_names import present_check
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.gate.output import NAGIOS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.gate.baseline import Baseline
    from pytest_gpucluster.gate.gate import GateResult

CONTEXTS = ("prolog", "epilog", "health", "job")
OUT_OF_SERVICE, UNPROVED = 1, 3


class Gated(NamedTuple):
    """What a gate found, why the breaker keeps the node in service, what --drain did ('': nothing), where the evidence is."""

    found: GateResult
    open_because: str
    done: str
    kept: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run `gpucluster gate` without the other commands, and return its exit status.

    Started by Slurm, it ends with a status other than 0 for what it found alone: every error of its own ends with 0.
    """
    words = sys.argv[1:] if argv is None else argv
    if of_slurm(words):
        return _guarded(words, no_harm)
    return _guarded(words, _unknown) if "--nagios" in words else run_command((COMMAND,), words)


def _guarded(words: Sequence[str], failed: Callable[[BaseException], int]) -> int:
    """Return the status of the gate, or what `failed` returns for an error of any kind: another status would do harm."""
    try:
        status = gate(parser_of((COMMAND,)).parse_args(words))
        sys.stdout.flush()
    except SystemExit as end:  # of argparse, which has printed why
        return failed(ConfigError("wrong options: see stderr")) if end.code else 0
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        return failed(error)
    return status


def _unknown(error: BaseException) -> int:
    """Print an error as a plugin of Nagios does; return its status."""
    print(f"GPUCLUSTER UNKNOWN - {one_line(redact.text(str(error) or repr(error)), 500)}")
    return NAGIOS["UNKNOWN"]


def gate(args: argparse.Namespace) -> int:
    """Judge this node; return the exit status."""
    if args.collect:
        return _collect()
    if args.drain and args.context != "health":
        raise ConfigError("--drain: only with --context health; in a Prolog or Epilog the exit status drains")
    if args.fabric and args.context != "job":
        raise ConfigError("--fabric: only with --context job, in a step with one task on each node")
    from pytest_gpucluster.cluster import signals

    signals.catch()  # SIGTERM too, as timeout(1) sends it: what a gate has started ends with it
    try:
        return _show(args, _found(args))
    finally:
        signals.restore_handlers()


def _found(args: argparse.Namespace) -> Gated:
    from pytest_gpucluster.cluster.environment import SYSTEM_PATH
    from pytest_gpucluster.cluster.transport import LocalTransport  # the other commands start nothing
    from pytest_gpucluster.gate import files
    from pytest_gpucluster.gate.baseline import read
    from pytest_gpucluster.gate.breaker import Breaker
    from pytest_gpucluster.gate.gate import GateRequest, own_node, run_gate, with_own_gpus
    from pytest_gpucluster.gate.shared_answers import default_folder

    # a Prolog has hardly any PATH; the rest is that of the task or daemon that the gate runs in
    search = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"
    transport = LocalTransport({"PATH": search, "LC_ALL": "C"}, inherit=True)
    own = args.context in OF_SLURM or of_slurm(())  # what another user can write takes no node out of service
    file = _file(args.cluster)
    for given in (file, args.profile or ""):
        if own and "/" in given:
            files.read(Path(given), transport, own=True)
    cluster = config.load_cluster(file, profile=args.profile)
    stated = cluster.gate
    path = args.baseline or (Path(stated.baseline) if stated.baseline else None)
    baseline = _of_cluster(read(path, transport, own=own), cluster) if path else _empty()
    node = own_node(cluster, baseline, args.node, os.environ)
    request = GateRequest(
        checks=_patterns(args.checks) if args.checks else stated.checks,
        budget=_seconds("--budget", args.budget) if args.budget else stated.budget,
        fresh=_seconds("--fresh", args.fresh),
        folder=args.folder or default_folder(),
    )
    if not own:
        cluster = with_own_gpus(cluster, node, os.environ)
    found = run_gate(cluster, node, request, baseline, transport)
    open_because = ""
    if found.repairs and own:
        breaker = Breaker(stated.state, node, stated.max_failing, transport)
        open_because = breaker.why_open(found.repairs[0][0].check)
    kept = ""
    if found.repairs and own and not open_because and cluster.evidence.when != "off":
        from pytest_gpucluster.gate.evidence import keep  # only for a node that is bad

        kept = keep(found, transport, args.folder, sudo=cluster.sudo)
    done = _drained(cluster, found, open_because, request.folder) if args.drain else ""
    return Gated(found, open_because, done, kept)


def _drained(cluster: Cluster, found: GateResult, open_because: str, folder: Path) -> str:
    """Drain or resume the own node; return what happened, '' for nothing."""
    from pytest_gpucluster.cluster.slurm.client import make_slurm
    from pytest_gpucluster.gate import drain

    if found.repairs and open_because:
        return ""
    slurm = make_slurm(cluster)
    if slurm is None:
        raise ConfigError(f"--drain: cluster {cluster.name} has no Slurm")
    slurm.retry_for = 0
    return drain.drain(found, slurm, folder) if found.repairs else drain.resume(found, slurm, folder)


def _file(name: str | None) -> str:
    """Return the cluster file of a name; the sandbox's lies in its state folder."""
    if name != "sandbox":
        return name or "local"
    from pytest_gpucluster.sandbox import Sandbox  # no node of a real cluster needs it

    return str(Sandbox().cluster_file)


def _empty() -> Baseline:
    from pytest_gpucluster.gate.baseline import Baseline

    return Baseline()


def _of_cluster(baseline: Baseline, cluster: Cluster) -> Baseline:
    if baseline.cluster and baseline.cluster != cluster.name:
        raise ConfigError(f"the baseline is of cluster {baseline.cluster}, not of {cluster.name}")
    return baseline


def _patterns(text: str) -> list[str]:
    try:
        return [present_check(pattern) for pattern in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--checks: {error}") from error


def _seconds(option: str, text: str) -> float:
    try:
        return float(units.parse_duration(text))
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error


def _show(args: argparse.Namespace, gated: Gated) -> int:
    from pytest_gpucluster.gate import output

    found = gated.found
    if args.nagios:
        text, status = output.nagios(found)
        print(text)
        return status
    if args.json:
        print_json(output.as_json(found, gated.open_because, gated.done))
    else:
        of_node = f"{found.node}: " if args.context == "job" else ""  # a job has several
        print(f"{of_node}{output.first_line(found)}", flush=True)
        for line in output.lines(found) if args.context is None or found.failed else ():
            print(line)
        if gated.open_because:
            print(f"the node stays in service: {gated.open_because}")
        for line in filter(None, (gated.kept, gated.done)):
            print(line)
        if args.context == "job":
            print(json.dumps(output.row(found)), flush=True)
    if args.fabric:
        _measure_pairs(args, found)
    if args.context == "health":
        return 0  # slurmd only logs another status, once for each check
    if found.repairs:
        return 0 if gated.open_because else OUT_OF_SERVICE
    proved = found.judged and not found.unproved
    return 0 if proved or args.context in OF_SLURM else UNPROVED


def _nodes_of_job() -> tuple[str, ...]:
    """Return the nodes of the step or job that started this command, () outside of a job."""
    from pytest_gpucluster.core import hostlist

    variable = next(filter(os.environ.get, ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")), "")
    try:
        return hostlist.expand(os.environ.get(variable, ""))
    except ValueError as error:
        raise ConfigError(f"{variable}: {error}") from error


def _measure_pairs(args: argparse.Namespace, found: GateResult) -> None:
    from pytest_gpucluster.cluster.transport import LocalTransport
    from pytest_gpucluster.core.registry import parts_of_suites

    nodes = _nodes_of_job()
    device = "cpu" if found.simulated else "cuda"
    seconds = _seconds("--fabric", args.fabric)
    for pairs in parts_of_suites(lambda suite: suite.job_pairs):
        for line in pairs.measure(nodes, seconds, args.python, device, LocalTransport(inherit=True)):
            print(line, flush=True)


def _collect() -> int:
    """Read the rows of a job's gates from stdin; print srun's option without the bad nodes, and why each is bad."""
    from pytest_gpucluster.core.registry import parts_of_suites
    from pytest_gpucluster.gate.collect import collect

    together = [pairs.bad_nodes for pairs in parts_of_suites(lambda suite: suite.job_pairs)]
    found = collect(sys.stdin, _nodes_of_job(), together)
    for node, why in found.bad.items():
        print(f"{node}: {why}", file=sys.stderr)
    print(found.option)
    return 0 if found.fit else OUT_OF_SERVICE


COMMAND = Command(
    "gate",
    "judge the node that it is started on, for Prolog, HealthCheckProgram and inside a job",
    gate,
    (
        cluster_option("cluster file or its name (default: local, this machine alone)"),
        argument(
            "--profile",
            metavar="NAME|FILE",
            help="hardware profile, instead of the cluster file's",
            completes=config.profile_names,
        ),
        argument(
            "--node", metavar="NAME", help="this machine's name in the cluster file (default: Slurm's, or its hostname)"
        ),
        argument(
            "--checks",
            metavar="PATTERNS",
            help="check patterns by commas, like 'gpu.*,os.mounts' (default: gate.checks)",
        ),
        argument("--budget", metavar="TIME", help="time for all commands, like 10s (default: 8s)"),
        argument(
            "--fresh",
            metavar="TIME",
            default="60s",
            help="share answers of an earlier gate that are younger (%(default)s; 0: none)",
        ),
        argument(
            "--context", choices=CONTEXTS, help="who starts it: decides what the exit status means (docs/operate.md)"
        ),
        argument("--baseline", type=Path, metavar="FILE", help="the baseline (default: gate.baseline)"),
        argument(
            "--folder",
            type=Path,
            metavar="DIR",
            help="where gates of this machine share answers (default: in /run, else in TMPDIR)",
        ),
        argument(
            "--drain",
            action="store_true",
            help="with --context health: drain the node for what requires a repair, and resume it once that has passed (off)",
        ),
        argument(
            "--fabric",
            metavar="TIME",
            help="with --context job: also measure pairs of the job's nodes, in about this time",
        ),
        argument(
            "--python", default="python3", metavar="PATH", help="interpreter with torch, for --fabric (%(default)s)"
        ),
        one_of(
            argument(
                "--collect",
                action="store_true",
                help="read the rows of a job's gates from stdin, print --exclude=NODES of the bad ones",
            ),
            argument("--nagios", action="store_true", help="one line and the exit status of a Nagios plugin"),
            JSON,
        ),
    ),
)
