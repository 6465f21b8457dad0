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
echo "$n 7 gpu01"
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
        ("gpu02", AllocationRequest(nodes=("gpu01",)), "gpu02"),
    ],
)
def test_an_allocation_of_which_other_nodes_are_listed_is_refused(
    tmp_path: Path, listed: str, asked: AllocationRequest, said: str
) -> None:
    """A `scontrol show hostnames` that was killed listed none: every node was accused of not answering."""
    slurm = slurm_of(tmp_path, SALLOC.replace("gpu01", listed).replace("kill -9 $$", ""))
    with pytest.raises(AllocationError, match=f"listed {said} in the job; run again"):
        Allocation.request(slurm, asked)


def test_an_allocation_that_cannot_be_given_back_is_reported_once(tmp_path: Path) -> None:
    held = Allocation.request(slurm_of(tmp_path), AllocationRequest(count=1))
    with pytest.raises(AllocationError, match=r"job 7 may still hold them: scancel: no .*: run scancel 7"):
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


# a site's wrapper: it prints on standard output, also without the end of the line, before and beside what the job prints
WRAPPER = """#!/bin/sh
echo "INFO: project 0815 is charged"
echo
printf 'balance: 7 '
while [ "$1" != sh ]; do shift; done
SLURM_JOB_ID=7
export SLURM_JOB_ID
"$@"
echo "INFO: thank you"
"""


def test_what_a_wrapper_of_salloc_prints_names_no_node(tmp_path: Path) -> None:
    slurm = slurm_of(tmp_path, WRAPPER)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho gpu03\necho gpu01\n")
    (tmp_path / "scontrol").chmod(0o755)
    with Allocation.request(slurm, AllocationRequest(nodes=("gpu01", "gpu03"))) as held:
        assert (held.job_id, held.nodes) == (7, ("gpu03", "gpu01"))


# 22.05.8, with MaxMemPerCPU=8000 and DefMemPerCPU=4000
TOO_MUCH = """case " $* " in *" --mem=0 "*)
  echo "salloc: error: CPU count per node can not be satisfied" >&2
  echo "salloc: error: Job submit/allocate failed: Requested node configuration is not available" >&2
  exit 1 ;;
esac
"""


def test_where_a_cpu_may_have_less_memory_the_default_is_requested(tmp_path: Path) -> None:
    lines: list[str] = []
    slurm = slurm_of(tmp_path, SALLOC.replace("echo", TOO_MUCH + "echo", 1).replace("kill -9 $$", ""))
    with Allocation.request(slurm, AllocationRequest(nodes=("gpu01",)), progress=lines.append) as held:
        assert held.nodes == ("gpu01",)
    assert any("the default memory instead (slurm.extra_args: --mem=SIZE" in line for line in lines)


def test_a_slurm_without_jobs_of_root_says_so(tmp_path: Path) -> None:
    refused = "echo 'salloc: error: Job submit/allocate failed: Invalid user id' >&2; exit 1"
    slurm = slurm_of(tmp_path, f"#!/bin/sh\n{refused}\n")
    with pytest.raises(AllocationError, match=r"Invalid user id: Slurm takes no jobs .*transport\.user"):
        Allocation.request(slurm, AllocationRequest(count=1))
