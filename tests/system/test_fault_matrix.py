"""Each fault changes the outcome of exactly its own checks, on exactly its node; healthy nodes pass everything.

A single run of the suites shows all faults: those that have no check in common share a node, few of each suite. Every item of a faulty node is
held against the same item of a healthy one: also what was not checked, not applicable or an error.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

import forked
import pytest
import yaml
from paths import ROOT
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.check import CHECKS
from pytest_gpucluster.gate.baseline import read
from pytest_gpucluster.gate.gate import GateRequest, GateResult, run_gate
from pytest_gpucluster.report.history.run_snapshot import check_of
from pytest_gpucluster.report.machine.events import read_log
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.sandbox.found_by import FOUND_BY
from slurm_sandbox.api import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pytest_gpucluster.core.part import Part

SHOWN = sorted(
    name
    for name, fault in FAULTS.items()
    if fault.change
    and not fault.harmless
    and not FOUND_BY[name][0].startswith(("nccl.", "burnin.", "rdma.", "ibfabric.", "storage."))
)
HARMLESS = sorted(name for name, fault in FAULTS.items() if fault.harmless)
ACTED = ("drained", "slurmd_dead", "wrong_gres")
HEALTHY = 6
PER_SUITE = {"fabric": 1, "gpu": 1, "os": 2, "run": 1, "slurm": 1}  # faults of one node
# slurmctld's log shows faults of Slurm a second time: test_controller.py
MARKED = "(os or gpu or slurm or fabric) and not controller"


# How checks end that a fault makes unjudgeable, beside the failure of its own check, and why.
UNJUDGEABLE = {
    "mig_on": {"gpu.p2p": "not applicable"},  # instances have no peers
    # which GPUs are near to the missing one cannot be told
    "hca_missing": {"fabric.gpu_nic_affinity": "not checked"},
    "rail_replaced": {"fabric.gpu_nic_affinity": "not checked"},
    # with one less the numbers of the others mean other slots
    "gpu_missing": {"gpu.numa_affinity": "not checked"},
    "drive_dead": {"os.drive_health": "not checked"},  # it cannot be opened
    # systemctl shows services
    "systemd_gone": dict.fromkeys(
        ("fabric.fabric_manager", "gpu.fabric_manager", "os.failed_units", "os.services"), "not checked"
    ),
    # no job ran there
    **{it: {"slurm.prolog": "not checked", "run.available": "error"} for it in ("drained", "wrong_gres")},
    "slurmd_dead": {"slurm.prolog": "not checked"},
}
# What slurmctld shows of a node that nothing can run on; everything else of such a node is not tested.
JUDGED_BY_SLURMCTLD = "known responding completing version cpus memory gres prolog"
OF_SLURMCTLD = {f"slurm.{name}" for name in JUDGED_BY_SLURMCTLD.split()}


# Faults that take their node out of service, and by which repair. All others are settings or software of the site, or
# deviations that prove no fault: their nodes fail, and stay in service.
REPAIRED = {
    "gpu_missing": "drain",
    "gpu_memory": "return to vendor",
    "ecc_volatile": "reset gpu",
    "ecc_aggregate_sram": "return to vendor",
    "remap_failure": "return to vendor",
    "remap_pending": "reset gpu",
    "nvlink_down": "drain",
    "nvlink_errors": "drain",
    "pcie_width": "drain",
    "pcie_generation": "drain",
    "drive_failing": "drain",
    "throttled": "drain",
    "hot": "drain",
    "xid": "reset gpu",
    "fabric_state": "reboot",
    "topology": "drain",
    "memory_missing": "return to vendor",
    "mce": "drain",
    "file_system_read_only": "drain",
    "file_server_away": "reboot",
    "oops": "reboot",
    "systemd_gone": "reboot",
    "hca_missing": "drain",
    "rail_replaced": "drain",
    "rails_down": "drain",
    "ib_down": "drain",
    "ib_rate": "drain",
    "slurmd_dead": "drain",
}


# after them little else of a node can be judged
ON_ITS_OWN = {*UNJUDGEABLE, "file_server_away", "file_system_read_only"}


def shared(kinds: Sequence[str]) -> list[list[str]]:
    """Return the faults of each node: no two are found by one check, and few are of one suite."""
    nodes: list[list[str]] = []
    for kind in kinds:
        suite = suite_of(kind)
        for others in nodes:
            taken = {check for other in others for check in FOUND_BY[other]}
            room = [suite_of(other) for other in others].count(suite) < PER_SUITE[suite]
            if room and taken.isdisjoint(FOUND_BY[kind]) and ON_ITS_OWN.isdisjoint({kind, *others}):
                others.append(kind)
                break
        else:
            nodes.append([kind])
    return nodes


def bare(name: str) -> str:
    """Return the check of `os.drift/kernel`."""
    return name.partition("/")[0]


def names(check: str, part: Part) -> tuple[str, str]:
    """Return how FOUND_BY may name a finding."""
    return check, f"{check}/{str(part).partition(' ')[0]}"


def suite_of(kind: str) -> str:
    return FOUND_BY[kind][0].partition(".")[0]


class Run(NamedTuple):
    """One run of the suites: {node: {check: outcome}}, which node has which fault, what pytest printed, its exit."""

    ends: dict[str, dict[str, str]]
    actions: dict[tuple[str, str], set[str]]  # node and check -> actions of its failures; CHECK/PART: of its findings
    warned: dict[str, set[str]]  # node -> checks with a warning
    node_of: dict[str, str]
    healthy: tuple[str, ...]
    text: str
    rc: int
    sandbox: Sandbox
    cluster: Path  # its file, with a baseline for gates

    @property
    def failed(self) -> dict[str, set[str]]:
        """{node: checks that failed}, of nodes that have any."""
        found = {node: {check for check, end in ends.items() if end == "failed"} for node, ends in self.ends.items()}
        return {node: checks for node, checks in found.items() if checks}

    def kinds_on(self, node: str) -> list[str]:
        """Faults of a node."""
        return [kind for kind, place in self.node_of.items() if place == node]

    def passed(self, node: str) -> int:
        """How many checks passed on a node."""
        return list(self.ends.get(node, {}).values()).count("passed")

    def usual(self) -> dict[str, set[str]]:
        """{check: outcomes that a healthy node may have}."""
        return {check: {end} for check, end in self.ends[self.healthy[0]].items()}

    def differences(self, node: str) -> dict[str, str]:
        """{check: its outcome on this node, '' for none}, where a healthy node's is another."""
        usual, ends = self.usual(), self.ends.get(node, {})
        both = {check: ends.get(check, "") for check in usual.keys() | ends.keys()}
        return {check: end for check, end in both.items() if end not in usual.get(check, ())}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    yield from runs()


def runs(*options: str) -> Iterator[Run]:
    """Put every fault into a node of its own and run the suites once."""
    kinds_of = [*shared([*SHOWN, *ACTED]), *shared(HARMLESS)]
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=len(kinds_of) + HEALTHY)
        node_of = {kind: node for kinds, node in zip(kinds_of, sandbox.nodes, strict=False) for kind in kinds}
        for kind, node in node_of.items():
            sandbox.fault(kind, node)
        cluster = folder / "cluster.yaml"
        gate = {"gate": {"baseline": str(folder / "baseline")}}
        cluster.write_text(yaml.safe_dump({**yaml.safe_load(sandbox.cluster_file.read_text()), **gate}))
        yield suites(sandbox, cluster, folder / "reports", node_of, *options)


def suites(sandbox: Sandbox, cluster: Path, reports: Path, node_of: dict[str, str], *options: str) -> Run:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "suites", "-m", MARKED]
    argv += [f"--cluster={cluster}", f"--report-dir={reports}", *options]
    # that one waits for two minutes
    argv += ["--slow", "--deselect=suites/slurm/test_slurm.py::test_time_limit"]
    done = forked.run(argv, cwd=ROOT, timeout=1200)
    ends: dict[str, dict[str, str]] = {}
    actions: dict[tuple[str, str], set[str]] = {}
    warned: dict[str, set[str]] = {}
    for result in read_log(reports / "latest" / "events.jsonl").results:
        node, check = check_of(result)
        ends.setdefault(node, {})[check] = result.outcome
        actions.setdefault((node, check), set())
        for verdict in (it for it in result.verdicts if it.outcome == "failed"):
            actions[node, check].add(verdict.action)
            for found in verdict.findings:
                _, part = names(check, found.part)
                actions.setdefault((node, part), set()).add(found.action or verdict.action)
        if any(verdict.advisories for verdict in result.verdicts):
            warned.setdefault(node, set()).add(check)
    healthy = tuple(node for node in sandbox.nodes if node not in node_of.values())
    text = done.stdout + done.stderr
    return Run(ends, actions, warned, node_of, healthy, text, done.returncode, sandbox, cluster)


@pytest.mark.parametrize("kind", [*SHOWN, *ACTED])
@pytest.mark.essential
def test_fault_changes_the_outcome_of_its_own_checks_alone(run: Run, kind: str) -> None:
    node = run.node_of[kind]
    expected = dict.fromkeys(run.usual().keys() - OF_SLURMCTLD if kind in ACTED else (), "not tested")
    for one in run.kinds_on(node):
        expected |= dict.fromkeys(map(bare, FOUND_BY[one]), "failed") | UNJUDGEABLE.get(one, {})
    assert run.differences(node) == expected, run.text[-2000:]


def test_fault_of_a_setting_is_a_finding_of_this_setting_alone(run: Run) -> None:
    expected = {(node, found) for kind, node in run.node_of.items() for found in FOUND_BY[kind] if "/" in found}
    expected -= {(run.node_of[kind], found) for kind in HARMLESS for found in FOUND_BY[kind]}
    assert {it for it, actions in run.actions.items() if actions and it[1].startswith("os.drift/")} == expected
    assert len(expected) == 8


@pytest.mark.parametrize("kind", [*SHOWN, "slurmd_dead"])
@pytest.mark.essential
def test_fault_of_the_hardware_takes_its_node_out_and_no_other_does(run: Run, kind: str) -> None:
    found = set().union(*(run.actions[run.node_of[kind], check] for check in FOUND_BY[kind]))
    expected = {REPAIRED[kind]} if kind in REPAIRED else {"configure", "monitor"}
    expected |= {"configure", "monitor"} if FOUND_BY[kind][1:] else set()
    assert found <= expected
    assert found & {REPAIRED.get(kind, "configure"), REPAIRED.get(kind, "monitor")}


@pytest.mark.parametrize("kind", HARMLESS)
@pytest.mark.essential
def test_what_is_harmless_changes_no_outcome(run: Run, kind: str) -> None:
    assert run.differences(run.node_of[kind]) == {}, run.text[-2000:]


@pytest.mark.parametrize("kind", ["throttled_once", "file_server_slow", "crashed_once", "drive_hot"])
@pytest.mark.essential
def test_what_a_second_reading_no_longer_shows_is_a_warning(run: Run, kind: str) -> None:
    assert FOUND_BY[kind][0] in run.warned.get(run.node_of[kind], set()), run.text[-2000:]
    assert not any(FOUND_BY[kind][0] in run.warned.get(node, set()) for node in run.healthy)


# what the node cannot see by itself, with the check that finds it
ON_REQUEST = {"os.bmc_events", "os.bmc_sensors"}  # a gate has no --slow
FROM_OUTSIDE = {"duplicate_address": "os.addresses"}  # the other owner is none of the nodes of the baseline
ON_OTHERS = {"file_server_away"}  # a gate does not know whether the server answers other nodes: no repair


def gate_on(run: Run, node: str) -> GateResult:
    """Run a gate as a task on the node does: with its tools and its name."""
    folder = run.cluster.parent
    tools, of_node = folder / "s" / "simbin", folder / "s" / "nodes" / node
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_SANDBOX_NODE": str(of_node), "SLURMD_NODENAME": node}
    cluster = load_cluster(run.cluster)
    request = GateRequest(cluster.gate.checks, 60.0, 0.0, folder / "gates" / node)
    return run_gate(
        cluster, node, request, read(folder / "baseline", LocalTransport()), LocalTransport(environment, inherit=True)
    )


@pytest.mark.parametrize("part", range(3))
def test_a_gate_finds_what_its_node_shows_and_accepts_healthy_ones(run: Run, part: int) -> None:
    """Every fault whose check needs neither Slurm nor another node, by the same check and with the same action."""
    missed: set[str] = set()
    for node in sorted({run.node_of[kind] for kind in SHOWN})[part::3]:
        of_gate = {
            kind: FOUND_BY[kind][0]
            for kind in run.kinds_on(node)
            if FOUND_BY[kind][0].startswith(("gpu.", "os.", "fabric.")) and FOUND_BY[kind][0] not in ON_REQUEST
        }
        found = gate_on(run, node)
        named = {name for it in found.failed for one in it.findings for name in names(it.check, one.part)}
        missed |= {kind for kind, check in of_gate.items() if check not in named}
        repaired = {kind: check for kind, check in of_gate.items() if kind in REPAIRED and kind not in ON_OTHERS}
        drained = any(not CHECKS[bare(check)].of_job for check in repaired.values())
        assert bool(found.repairs) == drained, (node, of_gate, found.failed)
    assert missed <= FROM_OUTSIDE.keys()
    for node in (run.healthy[0], *sorted({run.node_of[kind] for kind in HARMLESS})[part::3]):
        found = gate_on(run, node)
        assert (found.failed, found.judged > 70) == ([], True), node


@pytest.mark.essential
def test_healthy_nodes_are_alike_in_every_outcome(run: Run) -> None:
    assert {node: run.differences(node) for node in run.healthy} == {node: {} for node in run.healthy}
    assert set().union(*run.usual().values()) == {"passed", "not applicable"}


@pytest.mark.essential
def test_only_nodes_with_a_fault_fail(run: Run) -> None:
    assert run.failed.keys() == {run.node_of[kind] for kind in (*SHOWN, "slurmd_dead")}, run.text[-2000:]
    assert all(run.passed(node) >= 45 for node in run.healthy), run.ends


@pytest.mark.parametrize("kind", ["node_hanging", "epilog_hanging"])
def test_a_node_that_takes_part_in_nothing_takes_no_other_along(sandbox: Sandbox, tmp_path: Path, kind: str) -> None:
    sandbox.fault(kind, "gpu03")
    run = suites(sandbox, sandbox.cluster_file, tmp_path, {kind: "gpu03"})
    # a batch job may have been sent there: then a check of the whole cluster fails too
    assert {node: checks for node, checks in run.failed.items() if node} == {"gpu03": {FOUND_BY[kind][0]}}
    assert all(run.passed(node) >= 45 for node in run.healthy), run.text[-2000:]


def test_an_epilog_that_fails_as_the_nodes_are_released_is_in_the_reports(sandbox: Sandbox, tmp_path: Path) -> None:
    # the batch jobs of the slurm suite end on the first nodes
    sandbox.fault("epilog_failing", "gpu04")
    run = suites(sandbox, sandbox.cluster_file, tmp_path, {"epilog_failing": "gpu04"})
    assert run.failed == {"gpu04": {"slurm.epilog"}}
    assert "Epilog error" in run.text
    assert run.rc == 1
    assert "test_epilog" in (tmp_path / "latest" / "junit.xml").read_text()
