"""One gate: find out which node this is, run the commands within the budget, judge."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.plan import Plan, Problem, ProblemKind
from pytest_gpucluster.core.check import CHECKS, Outcome, inapplicable
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.part_commands import for_parts
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.gate.judge import judge_all, node_checks
from pytest_gpucluster.gate.local import LocalChannel
from pytest_gpucluster.gate.shared_answers import SharedAnswers
from pytest_gpucluster.run.session import ClusterSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.cluster.transport.base import Transport
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.finding import Finding
    from pytest_gpucluster.gate.baseline import Baseline
    from pytest_gpucluster.gate.judge import CheckResult, NodeCheck

NO_BASELINE = "without a baseline of other nodes (gate.baseline) what a setting of the cluster file may explain requires no repair"
CLEAN_UP = 2.0  # seconds, beyond the budget: a file on shared storage
IN_BASELINE = Problem(ProblemKind.UNAVAILABLE, "is known from the baseline only")


@dataclass(frozen=True)
class GateResult:
    """What a gate found. `slow`: commands that the budget ended. `notes`: for people.

    `proofs`: patterns of the checks without which nothing is proved of the node. `age`: seconds since the oldest answer that an
    earlier gate gave; None without one.
    """

    cluster: str
    node: str
    results: Sequence[CheckResult]
    slow: Sequence[str] = ()
    notes: Sequence[str] = ()
    seconds: float = 0.0
    simulated: bool = False
    proofs: Sequence[str] = ()
    profile: str = ""
    fresh: Mapping[str, int] = field(default_factory=dict)
    age: float | None = None

    def of(self, outcome: str) -> list[CheckResult]:
        """Return the checks that ended like this."""
        return [it for it in self.results if it.outcome == outcome]

    @property
    def failed(self) -> list[CheckResult]:
        """The checks that failed."""
        return self.of(Outcome.FAILED.value)

    @property
    def repairs(self) -> list[tuple[CheckResult, Finding]]:
        """The failures that require a repair of the node, each with its first finding that does."""
        return [(it, repair) for it in self.failed if (repair := it.repair) is not None]

    @property
    def unproved(self) -> list[CheckResult]:
        """The checks that would prove the node fit and did not pass, though they apply to it."""
        good = (Outcome.PASSED.value, "waived", Outcome.NOT_APPLICABLE.value)
        proofs = (it for it in self.results if any(fnmatchcase(it.check, pattern) for pattern in self.proofs))
        excused = {it.check for it in self.failed if CHECKS[it.check].of_job}
        return [it for it in proofs if it.outcome not in good and it.check not in excused]

    @property
    def fit(self) -> bool:
        """Whether something was judged, everything that proves the node passed, and nothing requires a repair."""
        return bool(self.judged) and not self.unproved and not self.repairs

    @property
    def aside(self) -> list[str]:
        """The suites of which nothing applies to this node."""
        return inapplicable((one.check.partition(".")[0], one.outcome) for one in self.results)

    @property
    def judged(self) -> int:
        """How many checks were judged."""
        return len(self.failed) + len(self.of(Outcome.PASSED.value)) + len(self.of("waived"))


@dataclass(frozen=True)
class GateRequest:
    """How a gate runs. `budget`, `fresh`: seconds. `folder`: where gates of this machine share answers."""

    checks: Sequence[str]
    budget: float
    fresh: float
    folder: Path


def own_node(cluster: Cluster, baseline: Baseline, given: str | None, environment: Mapping[str, str]) -> str:
    """Return the name of this machine in the cluster file; ConfigError where it is not there."""
    names = [name for group in cluster.groups for name in group.names]
    host = socket.gethostname()
    hosts = (host, host.partition(".")[0])
    of_host = [name for name, info in baseline.nodes.items() if info.hostname in hosts]
    candidates = [given] if given else [environment.get("SLURMD_NODENAME"), *hosts, *of_host]
    found = next((name for name in candidates if name in names), None)
    if found is None and not given and cluster.slurm.scheduler == "none" and len(names) == 1:
        return names[0]
    if found is None:
        tried = ", ".join(dict.fromkeys(filter(None, candidates)))
        raise ConfigError(f"cluster {cluster.name} has no node {tried}: name it with --node, or use --profile alone")
    return found


def with_own_gpus(cluster: Cluster, node: str, environment: Mapping[str, str]) -> Cluster:
    """Return the cluster without a count of the GPUs where Slurm gave this step fewer, and cgroups may hide the others."""
    group = next(group for group in cluster.groups if node in group.names)
    given, gpu = environment.get("SLURM_GPUS_ON_NODE", ""), group.profile.gpu
    if gpu is None or given not in map(str, range(1, gpu.count)):
        return cluster
    why = {"gpu.count": f"the job has {given} of {gpu.count} GPUs"}
    return cluster.model_copy(update={"not_applicable": {**cluster.not_applicable, **why}})


def run_gate(cluster: Cluster, node: str, request: GateRequest, baseline: Baseline, transport: Transport) -> GateResult:
    """Run the commands of all checks, and judge them."""
    begun = time.monotonic()
    # the entry of a node as it was, never its state: a gate does not query slurmctld
    named = {name for group in cluster.groups for name in group.names}
    peers = {name: it for name, it in baseline.answers.items() if name != node and name in named}
    inventory = {name: baseline.nodes[name] for name in (node, *peers) if name in baseline.nodes}
    plan = Plan((node, *peers), dict.fromkeys(peers, IN_BASELINE))
    last_good = dict.fromkeys(baseline.good, baseline.written)
    session = ClusterSession(cluster, inventory, plan, None, last_good=last_good)
    checks = node_checks(request.checks)
    if not checks:
        raise ConfigError(f"no check of one node has a name like {', '.join(request.checks)}")
    shared = SharedAnswers(request.folder, node, request.fresh, cluster.name)
    with shared.locked(request.budget / 2) as known:
        names = _names(checks, session, node)
        channel = LocalChannel(node, peers, transport, budget=request.budget, known=known, names=names)
        session = replace(session, channel=channel)
        with contextlib.closing(channel):  # also after Ctrl-C
            channel.start(_batches(checks, session, node))
            results = judge_all(checks, session, node)
            channel.end = max(channel.end, time.monotonic() + CLEAN_UP)
            with contextlib.suppress(GpuClusterError):  # what was judged stands
                session.made.end()
        shared.write(channel.answers)
        used = (it for key, it in known.items() if key in names and channel.answers[key] is it)
        received = [it.received or 0 for it in used]
    failed = any(it.outcome == Outcome.FAILED.value for it in results)
    notes = {shared.problem: shared.problem, NO_BASELINE: failed and not peers}
    return GateResult(
        cluster=cluster.name,
        node=node,
        results=results,
        slow=channel.slow,
        notes=[note for note, holds in notes.items() if holds],
        seconds=time.monotonic() - begun,
        simulated=session.simulated,
        proofs=_proofs(checks, session, node),
        profile=session.nodes[node].profile.name,
        fresh={"known": len(known), "run": len(channel.answers) + len(channel.ended) - len(known)},
        age=time.time() - min(received) if received else None,
    )


def _proofs(checks: Sequence[NodeCheck], session: ClusterSession, node: str) -> list[str]:
    """Return the patterns of the checks that prove something of this node, as in a run."""
    of_suites = {one.suite for one in checks}
    stated = (*session.cluster.required, *session.nodes[node].profile.required)
    return [*(it for suite in suites() if suite.name in of_suites for it in suite.proof), *stated]


def _batches(checks: Sequence[NodeCheck], session: ClusterSession, node: str) -> list[list[tuple[str, float]]]:
    """Return the commands, those of a suite in one shell: a tool that hangs costs no other suite; those alone in their own."""
    together: dict[str, dict[str, float]] = {}
    alone: dict[str, float] = {}
    seen: set[str] = set()
    for one in checks:
        for probe in one.probes(session, node):
            command = session.facts.rooted(probe, probe.command)
            if command not in seen:
                seen.add(command)
                place = alone if probe.alone else together.setdefault(one.suite, {})
                place[command] = probe.timeout
    return [*([it] for it in alone.items()), *(list(it.items()) for it in together.values())]


def _names(checks: Sequence[NodeCheck], session: ClusterSession, node: str) -> dict[str, str]:
    """Return {command: how a person names it}."""
    probes = [probe for one in checks for probe in one.probes(session, node)]
    return {session.facts.rooted(it, it.command): for_parts(it.by_hand, ()) or it.name for it in reversed(probes)}
