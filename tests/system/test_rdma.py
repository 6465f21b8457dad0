"""Every fault of the rdma suite is found by its own check, on its own node and rail; the sound nodes of the same run pass."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import yaml
from paths import ROOT
from plugin_helpers import run_pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.report.history.run_snapshot import check_of, recorded
from pytest_gpucluster.report.machine.events import read_log
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.sandbox.found_by import FOUND_BY
from pytest_gpucluster.suites.rdma.campaign import SLOWEST_RAIL

if TYPE_CHECKING:
    from pathlib import Path

NODE_OF = {"rail_slow": "gpu02", "rail_latency": "gpu05", "gid_missing": "gpu07"}
LINK = ("gpu03", "gpu04")
# what a bad rail leaves unjudged beside its own check, on its own node
UNJUDGED = {
    "rail_slow": {"rdma.together": "not checked"},
    "gid_missing": {"rdma.latency": "not checked", "rdma.together": "not checked"},
}


def test_each_fault_is_found_by_its_own_check_on_its_own_node_and_rail(tmp_path: Path) -> None:
    """Eight nodes of two rails, of which three have a bad rail and two a bad cable between them."""
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=8, gpus_per_node=2)
        for kind, node in NODE_OF.items():
            sandbox.fault(kind, node)
        sandbox.fault("slow_link", LINK[0], peer=LINK[1])
        own = {"rdma": {}, "environments": {"default": {"exports": {"NCCL_IB_GID_INDEX": "3"}}}}
        cluster = tmp_path / "cluster.yaml"
        cluster.write_text(yaml.safe_dump({**yaml.safe_load(sandbox.cluster_file.read_text()), **own}))
        run = run_pytest(tmp_path, f"--cluster={cluster}", "-m", "rdma", where=(str(ROOT / "suites"),))
    log = read_log(run.reports / "events.jsonl")
    ends: dict[str, dict[str, str]] = defaultdict(dict)
    findings: dict[tuple[str, str], str] = {}
    actions: dict[str, set[str]] = defaultdict(set)
    for result in log.results:
        node, check = check_of(result)
        ends[node][check] = result.outcome
        for verdict in result.verdicts:
            findings[node, check] = "\n".join(f"{it.part}: {it.measured}" for it in verdict.findings)
            if verdict.outcome == "failed":
                actions[node].add(verdict.action)
    usual = dict.fromkeys(ends["gpu01"], "passed")
    for kind, (check, *_) in FOUND_BY.items():
        if check.startswith("rdma."):
            expected = {**usual, **UNJUDGED.get(kind, {}), check: "failed"}
            assert ends[NODE_OF[kind]] == expected, run.out[-3000:]
    for node in ("gpu01", "gpu06", "gpu08"):
        assert set(ends[node].values()) == {"passed"}, run.out[-3000:]
    # only the slow adapter takes its node out
    assert actions == {"gpu02": {"drain"}, "gpu05": {"monitor"}, "gpu07": {"monitor"}, "": {"monitor"}}
    assert findings["gpu02", "rdma.bandwidth"].startswith("mlx5_1 port 1 (0000:40:00.0), rail of GPU 1")
    assert "the port has no GID of this index" in findings["gpu07", "rdma.bandwidth"]
    # the bad cable is a link on both rails, and neither of its nodes fails
    links = findings["", "rdma.links"]
    assert links.count(f"link {LINK[0]} - {LINK[1]}") == 2
    assert {line.partition(" - ")[0].rpartition(" ")[2] for line in links.splitlines()} == {LINK[0]}
    assert not any("failed" in ends[node].values() for node in LINK)
    # a campaign gets the slowest rail of each pair
    paired = [it for it in recorded(log).metrics if it.paired and it.metric.name == SLOWEST_RAIL]
    pairs = {(it.node, it.paired): it.metric.value for it in paired}
    slow = [value for nodes, value in pairs.items() if nodes[0] == "gpu02"]
    assert len(slow) >= 2
    assert max(slow) < 35 < pairs["gpu01", "gpu08"]
