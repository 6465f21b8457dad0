"""What Slurm says when it gives no nodes, and which key of the cluster file is to be changed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import names, on, run_pytest

from pytest_gpucluster.cluster.slurm import error_hints
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest, _Holder
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, parse_partitions
from pytest_gpucluster.cluster.transport.local import LocalTransport
from pytest_gpucluster.core.errors import ConfigError, SlurmError
from pytest_gpucluster.plugin import open_session as start

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

# 22.05.8
PARTITION = (
    "PartitionName=batch AllowGroups=ALL AllowAccounts=physics,ops DenyQos=low AllocNodes=ALL Default=YES MaxNodes=2 "
    "MaxTime=00:10:00 MinNodes=0 Nodes=gpu[01-04] State=UP\n"
)
ASKED = AllocationRequest(nodes=("gpu01", "gpu02", "gpu03"), time=3600)


class Inventory:
    """Slurm as the holder of an allocation asks it."""

    def __init__(self, **flags: str) -> None:
        self.found = {node: NodeInfo(node, "IDLE", frozenset(words.split())) for node, words in flags.items()}

    def refresh(self) -> None:
        """Nothing is remembered."""

    def nodes(self) -> dict[str, NodeInfo]:
        return self.found


@pytest.mark.parametrize(("reservation", "out"), [("fix", ["gpu02"]), (None, ["gpu01", "gpu02"])])
def test_inside_its_reservation_no_node_is_out_for_it(reservation: str | None, out: list[str]) -> None:
    """Else one node that is drained as salloc waits would cost the run all of the reservation's nodes."""
    holder: Any = object.__new__(_Holder)
    holder.slurm = Inventory(gpu01="MAINTENANCE RESERVED", gpu02="MAINTENANCE RESERVED DRAIN", gpu03="DRAIN")
    holder.request = AllocationRequest(nodes=("gpu01", "gpu02"), reservation=reservation)
    assert list(holder._out()) == out


TIME = "MaxTime=0-00:10:00, 0-01:00:00 was requested: slurm.time or --time"


@pytest.mark.parametrize(
    ("printed", "reported"),
    [
        ("Requested time limit is invalid", TIME),
        ("PartitionTimeLimit", TIME),
        ("Node count specification invalid", "MaxNodes=2, 3 were requested: fewer --nodes"),
        ("Invalid account or account/partition", "AllowAccounts=physics,ops: slurm.account"),
        ("Invalid qos specification", "DenyQos=low: another slurm.qos"),
    ],
)
def test_the_setting_in_the_way_is_named_with_the_key_to_change(printed: str, reported: str) -> None:
    free = "PartitionName=batch AllowAccounts=ALL AllowQos=ALL MaxNodes=UNLIMITED Nodes=n1\n"
    for text, hint in ((PARTITION, f"partition batch has {reported}"), (free, "")):
        assert error_hints.partition_limits(parse_partitions(text)["batch"], ASKED, printed) == hint


@pytest.mark.parametrize(
    ("reason", "in_vain"),
    [
        ("QOSMaxNodePerJobLimit", True),
        ("AssocMaxNodePerJobLimit", True),
        ("QOSMinGRES", True),
        ("AccountNotAllowed", True),
        ("PartitionTimeLimit", True),
        ("QOSMaxJobsPerUserLimit", False),  # theirs may end
        ("AssocGrpGRES", False),
        ("Resources", False),
        ("PartitionDown", False),
    ],
)
def test_a_limit_of_one_job_is_not_waited_for(reason: str, in_vain: bool) -> None:
    assert error_hints.hopeless(error_hints.with_meaning(reason)) is in_vain
    assert error_hints.with_meaning(reason) != reason  # it is said what it means


def test_a_job_submit_plugin_that_refuses_is_named() -> None:
    refused = "Job submit/allocate failed: Unspecified error"
    assert "job_submit plugin" in error_hints.advice(refused)
    versions = "error: Incompatible versions of client and server code"
    assert error_hints.advice(f"{versions}\nerror: {refused}") == "", "no job_submit plugin was ever asked"


def test_nodes_that_private_data_hides_are_no_unknown_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> str:
        raise SlurmError("denied", argv=(), rc=1, stderr="slurm_load_node error: Access/permission denied")

    client = Slurm(LocalTransport({}))
    monkeypatch.setattr(client, "run", denied)
    with pytest.raises(ConfigError, match=re.escape("PrivateData of slurm.conf may hide it")):
        start.first_contact(None, client)  # type: ignore[arg-type] # it does not come to the cluster


ENDING = """
import subprocess, time


def test_end(gpucluster_fleet, gpucluster_allocation):
    subprocess.run(["scancel", str(gpucluster_allocation.job_id)], check=True)
    while len(gpucluster_fleet.lost) < 2:
        time.sleep(0.05)


def test_after(gpucluster_node):
    assert gpucluster_node.name
"""


@pytest.mark.thorough
def test_a_run_whose_job_is_cancelled_says_so_in_slurms_words(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), "--nodes=gpu[01-02]", files={"test_ending.py": ENDING})
    assert run.rc == 1
    assert names(run.outcomes, "failed") == []
    (reported,) = (line for line in run.errors if "has ended" in line)
    assert re.match(r"ERROR: job \d+, which held gpu\[01-02\] for this run, has ended: CANCELLED: ", reported)
    errors = [event["message"] for event in run.events if event["event"] == "error"]
    assert errors == [reported.removeprefix("ERROR: ")]


def test_a_job_that_still_completes_is_asked_again_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    client, states = Slurm(LocalTransport({})), ["COMPLETING", "COMPLETING", "PREEMPTED"]
    monkeypatch.setattr(client, "run", lambda *_: f"{states.pop(0)}\n")
    assert Allocation(client, 7, ("gpu01",)).why_ended().startswith("PREEMPTED: ")
    assert not states
    assert error_hints.end_explanation("TIMEOUT").endswith("--time or slurm.time")
    assert error_hints.end_explanation("COMPLETED") == error_hints.end_explanation("") == ""
