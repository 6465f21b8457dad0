"""The nccl suite without a threshold for the hardware, and without a tool that measures, on a real Slurm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from paths import ROOT
from plugin_helpers import Run, run_pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUITE = str(ROOT / "suites" / "nccl" / "test_nccl.py")
NODES = [f"gpu0{n}" for n in range(1, 7)]


@pytest.fixture(scope="module")
def six() -> Iterator[Sandbox]:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=len(NODES), gpus_per_node=8)
        yield sandbox


def accept(
    sandbox: Sandbox, folder: Path, *args: str, fabric: dict[str, Any] | None = None, **nccl: Any
) -> Run:
    """Run the suite with a cluster file that has no threshold, as `gpucluster init` drafts it for unknown hardware."""
    plain = yaml.safe_load(sandbox.cluster_file.read_text())
    plain.pop("thresholds", None)
    unstated = {"link_layer": "none", "hcas": 0, "peer_memory": False}
    unstated |= dict.fromkeys(("rate", "transport", "mtu"))
    plain["profile"] |= {"nccl": [], "fabric": unstated | (fabric or {})}
    plain["nccl"] |= {"deadline": "300s", **nccl}
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump(plain))
    options = [f"--cluster={path}", f"--report-dir={folder / 'reports'}", "-p", "no:cacheprovider"]
    return run_pytest(folder, *options, *args, where=(SUITE,), timeout=1200, env=sandbox.env)


def outcomes(run: Run, check: str) -> dict[str, tuple[str, str]]:
    """Return {node, '' for all: (outcome, message)} of a check."""
    return {
        it["node"]: (it["outcome"], it["message"])
        for it in run.events
        if it["event"] == "result" and it["check"] == check
    }


def test_a_fleet_over_sockets_is_below_the_floor_and_fails_by_transport_where_the_profile_has_adapters(
    six: Sandbox, tmp_path: Path
) -> None:
    six.heal()
    for node in NODES:
        six.fault("no_infiniband", node)
    run = accept(six, tmp_path)
    ((outcome, message),) = outcomes(run, "nccl.whole_bandwidth").values()
    assert outcome == "failed"
    assert "8 adapters x 50 GB/s" in message
    assert re.search(r"^monitor:\n(?:  .*\n)*  \(cluster\) +nccl.whole_bandwidth", run.out, re.MULTILINE)
    stated = accept(six, tmp_path, fabric={"link_layer": "InfiniBand", "hcas": 8, "rate": "400 Gb/s"})
    ((outcome, message),) = outcomes(stated, "nccl.whole").values()
    assert outcome == "failed"
    assert "NET/Socket between nodes" in message


def test_without_a_tool_nothing_is_measured_and_the_suite_says_what_to_install(
    six: Sandbox, tmp_path: Path
) -> None:
    six.heal()
    run = accept(six, tmp_path, command="absent_all_reduce_perf -b 1M -e 4G -f 2", runner="auto", payload=[])
    words = "neither absent_all_reduce_perf nor torch was found on gpu[01-06]: install nccl-tests, or name an environment"
    for check in ("nccl.alone", "nccl.alone_bandwidth", "nccl.pairs"):
        found = outcomes(run, check)
        assert sorted(found) == NODES
        for outcome, message in found.values():
            assert outcome == "not checked"
            assert words in message
    assert {outcome for outcome, _ in outcomes(run, "nccl.whole_bandwidth").values()} == {"not checked"}
    assert run.rc == 1
    assert "NOT PROVED" in run.out
    errors = outcomes(run, "nccl.proved")
    assert sorted(errors) == NODES
    for outcome, message in errors.values():
        assert outcome == "error"
        assert f"nccl measured nothing on gpu[01-06]: {words}" in message
