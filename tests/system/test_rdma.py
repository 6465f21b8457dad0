"""Every fault of the rdma suite is found by its own check, on its own node and rail; the sound nodes of the same run pass."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import forked
import pytest
import yaml
from paths import ROOT
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.report.events import read_log
from pytest_gpucluster.report.run_snapshot import check_of, recorded
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.sandbox.found_by import FOUND_BY
from pytest_gpucluster.suites.rdma.campaign import SLOWEST_RAIL

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE_OF = {"rail_slow": "gpu02", "rail_latency": "gpu05", "gid_missing": "gpu07"}
LINK = ("gpu03", "gpu04")
# what a bad rail leaves unjudged beside its own check, on its own node
UNJUDGED = {
    "rail_slow": {"rdma.together": "not checked"},
    "gid_missing": {"rdma.latency": "not checked", "rdma.together": "not checked"},
}


class Run(NamedTuple):
    """{node: {check: outcome}}, the text of findings, actions of each node, {pair: GB/s}, and what pytest printed."""

    ends: dict[str, dict[str, str]]
    findings: dict[tuple[str, str], str]
    actions: dict[str, set[str]]
    pairs: dict[tuple[str, str], float]
    text: str


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Eight nodes of two rails, of which three have a bad rail and two a bad cable between them."""
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=8, gpus_per_node=2)
        for kind, node in NODE_OF.items():
            sandbox.fault(kind, node)
        sandbox.fault("slow_link", LINK[0], peer=LINK[1])
        own = {"rdma": {}, "nccl": {"exports": {"NCCL_IB_GID_INDEX": "3"}}}
        cluster = folder / "cluster.yaml"
        cluster.write_text(yaml.safe_dump({**yaml.safe_load(sandbox.cluster_file.read_text()), **own}))
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "suites", "-m", "rdma"]
        done = forked.run(
            [*argv, f"--cluster={cluster}", f"--report-dir={folder / 'r'}"], cwd=ROOT, timeout=1200
        )
        ends: dict[str, dict[str, str]] = {}
        findings: dict[tuple[str, str], str] = {}
        actions: dict[str, set[str]] = {}
        log = read_log(folder / "r/latest/events.jsonl")
        for result in log.results:
            node, check = check_of(result)
            ends.setdefault(node, {})[check] = result.outcome
            for verdict in result.verdicts:
                findings[node, check] = "\n".join(f"{it.part}: {it.measured}" for it in verdict.findings)
                if verdict.outcome == "failed":
                    actions.setdefault(node, set()).add(verdict.action)
        paired = [it for it in recorded(log).metrics if it.paired and it.metric.name == SLOWEST_RAIL]
        pairs = {(it.node, it.paired): it.metric.value for it in paired}
        yield Run(ends, findings, actions, pairs, done.stdout + done.stderr)


@pytest.mark.parametrize(
    "kind", [kind for kind, (check, *_) in FOUND_BY.items() if check.startswith("rdma.")]
)
def test_fault_is_found_by_its_own_check_alone(run: Run, kind: str) -> None:
    check = FOUND_BY[kind][0]
    usual = dict.fromkeys(run.ends["gpu01"], "passed")
    assert run.ends[NODE_OF[kind]] == {**usual, **UNJUDGED.get(kind, {}), check: "failed"}, run.text[-3000:]


def test_only_the_slow_adapter_takes_its_node_out(run: Run) -> None:
    assert run.actions == {"gpu02": {"drain"}, "gpu05": {"monitor"}, "gpu07": {"monitor"}, "": {"monitor"}}


def test_the_part_and_the_reason_are_named(run: Run) -> None:
    assert run.findings["gpu02", "rdma.bandwidth"].startswith("mlx5_1 port 1 (0000:40:00.0), rail of GPU 1")
    assert "the port has no GID of this index" in run.findings["gpu07", "rdma.bandwidth"]


def test_the_bad_cable_is_a_link_on_both_rails_and_neither_of_its_nodes_fails(run: Run) -> None:
    text = run.findings["", "rdma.links"]
    assert text.count(f"link {LINK[0]} - {LINK[1]}") == 2
    assert {line.partition(" - ")[0].rpartition(" ")[2] for line in text.splitlines()} == {LINK[0]}
    assert not any("failed" in run.ends[node].values() for node in LINK)


def test_sound_nodes_pass_everything(run: Run) -> None:
    assert [set(run.ends[node].values()) for node in ("gpu01", "gpu06", "gpu08")] == [{"passed"}] * 3, (
        run.text[-3000:]
    )


def test_a_campaign_gets_the_slowest_rail_of_each_pair(run: Run) -> None:
    slow = {nodes: value for nodes, value in run.pairs.items() if nodes[0] == "gpu02"}
    assert len(slow) >= 2
    assert max(slow.values()) < 35 < run.pairs["gpu01", "gpu08"]
