"""Allocations whose salloc is killed, lists other nodes, or whose job Slurm has forgotten."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest, _Holder
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import AllocationError

if TYPE_CHECKING:
    from pathlib import Path

SALLOC = """#!/bin/sh
echo "salloc: Granted job allocation 7" >&2
eval "n=\\${$#}"
echo gpu01
echo "$n 7 batch"
cat >/dev/null
kill -9 $$
"""


def slurm_of(folder: Path, salloc: str = SALLOC) -> Slurm:
    """Return a Slurm of this salloc, which is killed when the pipe closes; a scancel is refused."""
    for name, text in {"salloc": salloc, "scancel": "#!/bin/sh\necho no >&2\nexit 1\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return Slurm(LocalTransport({"PATH": f"{folder}:{os.environ['PATH']}"}), retry_for=1)


@pytest.mark.parametrize(
    ("listed", "asked", "said"),
    [
        ("", AllocationRequest(nodes=("gpu01",)), "no node"),
        ("", AllocationRequest(count=1), "no node"),
        ("echo gpu02", AllocationRequest(nodes=("gpu01",)), "gpu02"),
    ],
)
def test_an_allocation_of_which_other_nodes_are_listed_is_refused(
    tmp_path: Path, listed: str, asked: AllocationRequest, said: str
) -> None:
    """A `scontrol show hostnames` that was killed listed none: every node was accused of not answering."""
    slurm = slurm_of(tmp_path, SALLOC.replace("echo gpu01", listed).replace("kill -9 $$", ""))
    with pytest.raises(AllocationError, match=f"listed {said} in the job; run again"):
        Allocation.request(slurm, asked)


def test_an_allocation_that_cannot_be_given_back_is_reported_once(tmp_path: Path) -> None:
    held = Allocation.request(slurm_of(tmp_path), AllocationRequest(count=1))
    with pytest.raises(
        AllocationError, match=r"job 7 may still hold them: scancel: no .*: run scancel 7 once"
    ):
        held.release()
    held.release()


def test_a_request_that_slurm_has_forgotten_is_not_waited_for(tmp_path: Path) -> None:
    holder = _Holder(slurm_of(tmp_path), AllocationRequest(count=1))
    ask, forgotten = holder._give_up_if_hopeless, "unknown, squeue failed: squeue: Invalid job id specified"
    try:
        for why in (forgotten, "Resources", forgotten):  # once alone: the job may just have been granted
            ask(why)
        with pytest.raises(AllocationError, match="no longer has the request"):
            ask(forgotten)
    finally:
        with pytest.raises(AllocationError):
            holder.end(7)
