"""Known messages of MPI, NCCL and CUDA: each wording belongs to its kind, and its neighbours to none."""

from __future__ import annotations

import pytest

from pytest_gpucluster.kit.mpi import mpi_errors
from pytest_gpucluster.kit.mpi.mpi_errors import explain

LIMITED = [
    "CUDA error: out of memory",
    "Cuda failure 'out of memory",
    "Cuda failure out of memory",
    "busy or unavailable",
    "Too many open files",
    "too many open files",
    "Cannot allocate memory",
    "cannot allocate memory",
    "unknown error",
]
# the lines of each kind; what is quoted is between two bars, or the whole line
LINES = {
    "MPI without PMI": [
        "OMPI was not built with SLURM's PMI support",
        "PMI server not found",
        "PMI_Init failed",
        "|PMI2_Init failed to intialize|. Return code: 14",
    ],
    "orte_ess_init": [
        "orte_ess_init failed",
        "ess_init failed",
        "orte_init failed",
        "ORTE_ERROR_LOG: Not found in file ess_pmi_module.c",
    ],
    "PMIx abort": [
        "a  |PMIX ERROR: b|",
        "PMIx_Init failed: no server",
        "mpi/pmix_v4: ERROR: no peer",
        "pmixp_server: ERROR: no peer",
    ],
    "step launch failed": ["|launch_p_step_launch: StepId=7.0 aborted before step completely launched|."],
    "plugin missing": [
        "|Couldn't find the specified plugin name for mpi/pmix| looking at all files",
        "cannot find mpi plugin for pmix",
        "|cannot create mpi context for mpi|/pmix",
    ],
    "too few slots": ["|There are not enough slots available in the system| to satisfy the 4 slots"],
    "mpirun daemons": [
        "ORTE was unable to reliably start one or more daemons",
        "OMPI was unable to reliably start one or more daemons",
        "|An ORTE daemon has unexpectedly failed| after launch",
        "PRTE has lost communication with a remote daemon",
        "HYDU_create_process: execvp error",
        "|HYDT_bscd: unable to| launch",
    ],
    "mpirun as root": [
        "|mpirun has detected an attempt to run as root|.",
        "|prterun has detected an attempt to run as root|.",
    ],
    "shared memory is full": [
        "Error while creating shared memory segment /x (size 9), error: No space left on device (28)"
    ],
    "no network interface": ["Bootstrap : no socket interface found", "NET/Socket : no interface found"],
    "low limits": LIMITED,
    "fabric manager": ["CUDA error: |system not yet initialized|"],
    "driver library": [
        "CUDA driver is a stub library",
        "driver on your system is too old",
        "CUDA |driver version is insufficient|",
        "|forward compatibility was attempted| on non supported HW",
        "system has unsupported display driver",
    ],
    "ranks do not fit": ["NET/IB : peer 10.0.0.1<1> message truncated : receiving 8 bytes instead of 4"],
    "NCCL": [
        "NCCL error: x",
        "NCCL error in: x.cpp:1, unhandled",
        "torch.distributed.DistBackendError: NCCL error in: x",
        "ncclUnhandledCudaError: Call to CUDA",
        "ncclSystemError: System call",
        "ncclRemoteError: A call failed",
        "ncclInternalError: Internal check",
    ],
    "out of memory": [
        "CUDA error: out of memory",
        "|Cuda failure 'out of memory|'",
        "import: |torch.OutOfMemoryError: CUDA out of memory|",
        "Out Of Memory: oom-kill of task 3",
        "out of memory by oom_kill",
    ],
    "no torch": ["ModuleNotFoundError: |No module named 'torch' (python3.11)|"],
    "library missing": [
        "x: |error while loading shared libraries: libmpi.so.40: cannot open shared object file|",
        "|libnccl.so.2: cannot open shared object file|",
    ],
    "command missing": [
        "slurmstepd: error: |execve(): /opt/x: No such file or directory|",
        "sh: 1: |/opt/x/all_reduce_perf: not found|",
        "all_reduce_perf: command not found",
    ],
}


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind, lines in LINES.items() for line in lines])
def test_each_wording_has_its_kind(kind: str, line: str) -> None:
    (found,) = explain(f"first\n{line.replace('|', '')}\nlast", low_limits=kind == "low limits")
    assert (found.kind, found.host) == (kind, "")
    assert found.text == (line.split("|")[1] if line.count("|") == 2 else line.strip("| "))
    assert found.hint


def test_a_message_says_how_often_and_for_which_pmix_it_was_built() -> None:
    assert explain("PMI server not found\nPMI server not found\n")[0].text == "PMI server not found (2 times)"
    client = "PMIX ERROR: Unreachable in file ext3x_client.c at line 1\nPMI_Init failed\n"
    assert explain(client)[0].text == "PMI_Init failed; it was built for PMIx 3 (ext3x_client.c)"


def test_tasks_that_did_not_start_are_named_without_the_nodes_that_were_killed() -> None:
    text = (
        "srun: error: launch_p_step_launch: StepId=7.0 aborted before step completely launched.\n"
        "srun: error: task 10 launch failed: x\nsrun: error: task 9 launch failed: x\n"
        "srun: error: gpu01: task 0: Killed\n"
    )
    (found,) = explain(text)
    assert found.host == ""
    assert found.text.endswith("; tasks 9,10 did not start")


def test_nodes_are_those_that_srun_names() -> None:
    text = (
        "NCCL error: x\nsrun: error: gpu02: tasks 2-3,5: Exited with exit code 1\nsrun: error: gpu01: task 0: Killed\n"
    )
    assert explain(text)[0].host == "gpu[01-02]"
    assert mpi_errors.nodes_of_tasks(text) == {2: "gpu02", 3: "gpu02", 5: "gpu02", 0: "gpu01"}


def test_ranks_that_share_a_gpu_are_recognised_by_device() -> None:
    text = (
        "Duplicate GPU detected : rank 3 and rank 1 both on CUDA device 60\n"
        "Duplicate GPU detected : rank 1 and rank 3 both on CUDA device 60\n"
        "Duplicate GPU detected : rank 0 and rank 2 both on CUDA device 1b\n"
        "srun: error: gpu01: task 1: Killed\n"
    )
    assert mpi_errors.duplicate_gpus(text) == {"1b": (0, 2), "60": (1, 3)}
    assert explain(text)[0].text == (
        "ranks 0, 2 share the GPU at bus id 1b; ranks 1 (gpu01), 3 share the GPU at bus id 60"
    )


def test_damaged_lines_of_srun_break_nothing() -> None:
    text = "NCCL error: x\nsrun: error: gpu[01: task 1: Killed\nsrun: error: b: task 2: Killed\n"
    assert explain(text)[0].host == "b, gpu[01"
    assert mpi_errors.nodes_of_tasks("srun: error: a: task 8 of 9: x\nsrun: error: b: task 1") == {}
    launch = "launch_p_step_launch: StepId=7.0 aborted before step completely launched"
    assert explain(f"{launch}\nsrun: error: task x1 launch failed: y\n")[0].text == launch
    client = "PMI_Init failed\nUnreachable in file extax_client.c\n"
    assert explain(client)[0].text == "PMI_Init failed"
