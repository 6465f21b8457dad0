"""Belief before judgement: each recording and each lie gets its own verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from paths import TESTS

from pytest_gpucluster.config.models import FabricProfile, GpuProfile, Profile
from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome
from pytest_gpucluster.kit.mpi import mpi_errors
from pytest_gpucluster.kit.nccl import nccl_log
from pytest_gpucluster.kit.nccl import nccl_validation as nccl
from pytest_gpucluster.kit.nccl.nccl_rows import Half, NcclRow
from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput, NcclRun, RankLine, read
from pytest_gpucluster.kit.nccl.nccl_validation import (
    RunSpec,
    aligned,
    is_consequence,
    metrics,
    validate_nodes,
    validate_run,
)

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

DATA = TESTS / "data" / "nccl"
H200 = DATA.parent / "h200x4-slurm"
NODES = ("gpu01", "gpu02", "gpu03", "gpu04")
TASKS = {str(task): node for task, node in enumerate(NODES)}
IB = Profile(
    name="ib", description="", source="", gpu=GpuProfile(count=2, name="H200", nvlinks=18),
    fabric=FabricProfile(hcas=8, link_layer="InfiniBand", transport="NET/IB/GDRDMA"),
)  # fmt: skip


def text_of(name: str) -> str:
    return (DATA / name).read_text()


def run_of(nodes: int = 2, gpus: int = 2, **change: Any) -> NcclRun:
    ranks = tuple(
        RankLine(
            n * gpus + g, 0, 100 + n, f"gpu{n + 1:02}.cluster.local", g, f"0000:{g + 6:02x}:00", "NVIDIA H200"
        )
        for n in range(nodes)
        for g in range(gpus)
    )
    half = Half(100.0, 10.0, 15.0, 0)
    rows = (
        NcclRow(8, 2, "float", "sum", -1, Half(20.5, 0.0, 0.0, 0), half),
        NcclRow(2**20, 2**18, "float", "sum", -1, half, half),
    )
    run = NcclRun(
        "2.19.6", "all_reduce", ranks, rows, 0, 7.5, complete=True, world=nodes * gpus, validation=True
    )
    return replace(run, **change)


def judged(run: NcclRun, **change: Any) -> Verdict:
    asked = replace(RunSpec(("gpu01", "gpu02"), 2, "all_reduce", (2**20,)), **change)
    return validate_run(NcclOutput((run,)), asked)


def reported(verdict: Verdict) -> str:
    return "; ".join(f"{found.part}: {found.measured} / {found.expected}" for found in verdict.findings)


def with_rank(run: NcclRun, which: int, **change: Any) -> NcclRun:
    ranks = tuple(replace(line, **change) if line.rank == which else line for line in run.ranks)
    return replace(run, ranks=ranks)


@pytest.mark.parametrize(
    ("bus_ids", "devices", "shared"),
    [
        (("0x00", "0x00"), (0, 1), ""),  # before 2.14.1 without the PCI domain: all GPUs of a virtual machine
        (
            ("0x00", "0x00"),
            (0, 0),
            "",
        ),  # one GPU a task: nothing tells them apart, and NCCL itself finds a GPU twice
        (("0x1b", "0x1b"), (0, 1), ""),  # of two domains
        (("0x1b", "0x1c"), (0, 0), ""),
        (("0x1b", "0x1b"), (0, 0), "GPU 0x1b device 0 of gpu01: ranks 0, 1 / one rank per GPU"),
        (("0000:00:00", "0000:00:00"), (0, 1), "GPU 0000:00:00 of gpu01: ranks 0, 1 / one rank per GPU"),
    ],
)
def test_a_gpu_is_shared_where_nothing_else_explains_its_name(
    bus_ids: tuple[str, str], devices: tuple[int, int], shared: str
) -> None:
    run = run_of()
    for rank in (0, 1):
        run = with_rank(run, rank, bus_id=bus_ids[rank], device=devices[rank])
    verdict = judged(run)
    assert reported(verdict) == shared
    apart = NcclOutput(
        tuple(replace(run, ranks=run.ranks[at : at + 1], label=f"{at}", world=1) for at in (0, 1))
    )
    found = validate_nodes(apart, {"0": "gpu01", "1": "gpu02"}, RunSpec(("gpu01", "gpu02"), 1))
    assert ("at once" in reported(found["gpu01"])) == bool(shared)


def test_a_good_run_is_believed_and_measured() -> None:
    verdict = judged(run_of())
    assert verdict.outcome is Outcome.PASSED, reported(verdict)
    assert Metric("busbw", 15.0, "GB/s", "all_reduce 1 MiB", detail=True) in verdict.metrics
    assert Metric("latency", 20.5, "us", "all_reduce 8 B") in verdict.metrics


def test_eight_gpus_of_a_recording() -> None:
    output = read(text_of("nccl-allreduce-g8.txt"), rc=0)
    verdict = validate_run(output, RunSpec(("vm",), 8, "all_reduce", (2**30, 2**32)))
    assert verdict.outcome is Outcome.PASSED, reported(verdict)


def test_a_rank_that_is_there_twice_is_named() -> None:
    verdict = judged(with_rank(run_of(), 1, rank=0))
    assert "ranks 0: more than once" in reported(verdict)
    assert not verdict.metrics


@pytest.mark.parametrize(("path", "word"), [("NET/IB/0", "nvidia_peermem"), ("NET/Socket/0", "InfiniBand")])
def test_a_worse_network_has_its_hint(path: str, word: str) -> None:
    verdict = transports(line(path))
    assert (verdict.outcome, verdict.findings[0].part) == (Outcome.FAILED, "gpu[01-02]: ranks 1->2")
    assert word in verdict.hint


def test_unchecked_out_of_place_data_fails_in_place_may_be() -> None:
    row = run_of().rows[1]
    assert "not checked (1 of 1 sizes)" in reported(
        judged(run_of(rows=(replace(row, out_of_place=Half(100.0, 10.0, 15.0, None)),)))
    )
    inside = replace(row, in_place=Half(100.0, 10.0, 15.0, None))  # alltoall cannot check in-place
    assert judged(run_of(rows=(inside,))).outcome is Outcome.PASSED


def test_old_error_column_counts_as_checked() -> None:
    row = replace(run_of().rows[1], out_of_place=Half(100.0, 10.0, 15.0, None, 1e-6))
    assert judged(run_of(rows=(row,), validation=True)).outcome is Outcome.PASSED


def test_virtual_nodes_need_slurms_word() -> None:
    run = run_of()
    one_host = replace(run, ranks=tuple(
        replace(line, host="vm", bus_id=f"0000:{line.rank + 6:02x}:00") for line in run.ranks))  # fmt: skip
    assert "ranks on vm" in reported(judged(one_host))
    where = {0: "gpu01", 1: "gpu01", 2: "gpu02", 3: "gpu02"}
    assert judged(one_host, node_of_rank=where).outcome is Outcome.PASSED
    assert "gpu01: 3 ranks" in reported(judged(one_host, node_of_rank={**where, 2: "gpu01"}))


def test_all_tasks_on_one_asked_node_are_no_virtual_nodes() -> None:
    run = replace(run_of(), ranks=tuple(
        replace(line, host="gpu01", bus_id=f"0000:{line.rank + 6:02x}:00") for line in run_of().ranks))  # fmt: skip
    verdict = judged(run, node_of_rank={0: "gpu01", 1: "gpu01", 2: "gpu02", 3: "gpu02"})
    assert "rank 2: on gpu01 / on gpu02" in reported(verdict)


# --- recordings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mpi", "part", "words", "hint"),
    [
        ("mpi-none.txt", "", "gpu[01-04]", "built for PMIx 3 (ext3x_client.c); the step ran without --mpi", "srun --mpi=pmix"),
        ("mpi-pmi2.txt", "pmi2", "gpu[01-04]", "the step ran with --mpi=pmi2", "srun --mpi=pmix"),
        ("mpi-pmix.txt", "pmix", "run", "step launch failed: launch_p_step_launch: StepId=6.0", "slurmd's log"),
        ("torch-duplicate-gpu.txt", None, "gpu[01-04]",
         "ranks 0 (gpu01), 2 (gpu02), 4 (gpu03), 6 (gpu04) share the GPU at bus id 60", "needs its own GPU"),
        ("nccl-toomany.txt", None, "run", "9 requested but only 8 were found", "--gpus-per-node"),
    ],
)  # fmt: skip
def test_each_recorded_failure_has_its_own_verdict(
    name: str, mpi: str | None, part: str, words: str, hint: str
) -> None:
    verdict = validate_run(read(text_of(name), rc=1, mpi=mpi), RunSpec(NODES, 2))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.findings[0].part == part
    assert words in verdict.findings[0].measured
    assert hint in verdict.hint
    assert len(verdict.findings) == 1


OUT_OF_MEMORY = (
    "collective: rank 1 on n01 (GPU 0000:00:07): OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. "
    "GPU 0 has a total capacity of 139.80 GiB of which 527.56 MiB is free. Process 1142 has 136.86 GiB memory in use."
)
STUB = (
    "Unexpected error from cudaGetDeviceCount(). Error 34: CUDA driver is a stub library (torch 2.11.0+cu130)"
)
BUSY = "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
NO_SPACE, LIMITS = "Cuda failure 'out of memory'", "limits of this process: 32 GiB of address space"
SHM = "Error while creating shared memory segment /dev/shm/nccl-1enYdo (size 9637888), error: No space left on device (28)"
NO_DEVICE = "torch finds no CUDA device (torch 2.11.0+cu130, CUDA_VISIBLE_DEVICES=4; check --gpus-per-task)"


@pytest.mark.parametrize(
    ("stderr", "cause", "words"),
    [
        (
            OUT_OF_MEMORY,
            "out of memory",
            "rank 1 (GPU 0000:00:07): OutOfMemoryError: CUDA out of memory. Tried",
        ),
        (f"collective: rank 1 on n01: {NO_DEVICE}", "no GPU", f"rank 1: {NO_DEVICE}"),
        ("collective: rank 1 on n01: RuntimeError: odd", "a rank failed", "rank 1: RuntimeError: odd"),
        (
            f"collective: rank 1 on n01: RuntimeError: odd; {LIMITS}",
            "a rank failed",
            "rank 1: RuntimeError: odd",
        ),
        (f"{OUT_OF_MEMORY}; {LIMITS}", "out of memory", "Process 1142 has 136.86 GiB"),
        (
            "collective: rank 0 on n01: No module named 'torch': give the environment a python that has torch",
            "no torch",
            "rank 0: No module named 'torch'",
        ),
        (
            "collective: rank 0 on n01 (GPU 0000:00:07): NCCL error: Bootstrap : no socket interface found",
            "no network interface",
            "rank 0 (GPU 0000:00:07): NCCL error: Bootstrap : no socket interface found",
        ),
        (f"collective: rank 1 on n01: torch finds no CUDA device: {STUB}", "driver library", STUB),
        (
            "collective: rank 1 on n01: torch finds no CUDA device: it is a CPU build (torch 2.13.0+cpu)",
            "CPU build of torch",
            "it is a CPU build",
        ),
        (
            f"collective: rank 1 on n01: {BUSY}; limits of this process: 40 open files",
            "low limits",
            "busy or unavailable; limits of this process: 40 open files",
        ),
        (
            f"n01:7:9 [0] alloc.h:12 NCCL WARN {NO_SPACE}\ncollective: rank 1 on n01: NCCL error: {NO_SPACE}; {LIMITS}",
            "low limits",
            "rank 1: NCCL error: Cuda failure 'out of memory'; limits of this process: 32 GiB",
        ),
        (
            f"collective: rank 1 on n01: NCCL error: {SHM}",
            "shared memory is full",
            "/dev/shm/nccl-1enYdo",
        ),
    ],
)
def test_what_a_rank_of_our_payload_says_is_the_cause(stderr: str, cause: str, words: str) -> None:
    """Recorded on 4 H200: a GPU whose memory another process held, and a device file without a GPU."""
    follower = "collective: rank 0 on n01: ranks 1 never came to the rendezvous"
    verdict = validate_run(
        read(f"{follower}\n{stderr}\n{stderr.replace('rank 1', 'rank 3')}\n", rc=137), RunSpec(("n01",), 4)
    )
    assert verdict.cause == cause
    assert verdict.findings[0].part == "n01"
    assert words in verdict.findings[0].measured
    assert len(verdict.findings) == 1  # alike on rank 3, and rank 0 only waited


def test_ranks_that_do_not_fit_are_the_cause_of_what_follows() -> None:
    """Recorded on two H200: an nccl.conf of one node with NCCL_PROTO=LL."""
    verdict = validate_run(
        read((H200 / "nccl-proto-of-one-node.txt").read_text(), rc=4), RunSpec(("gpu01", "gpu02"), 1)
    )
    assert verdict.cause == "ranks do not fit"
    assert "message truncated : receiving 131072 bytes instead of 65536" in verdict.findings[0].measured
    assert "nccl.conf" in verdict.hint
    assert not [found for found in verdict.findings if found.measured.startswith("NCCL:")]


def test_a_run_that_was_cut_says_first_why() -> None:
    """Recorded on 4 H200 with NCCL_P2P_DISABLE and NCCL_SHM_DISABLE: too slow for the deadline."""
    log = nccl_log.read(
        "vm:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n"
        "vm:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0\n"
    )
    cut = replace(run_of(1), reasons=("3 rows for 4 sizes: rows are missing",))
    failures = (
        mpi_errors.LaunchFailure(
            "timeout", "vm", "vm: Test timeout (30s) all_reduce at 4294967296 bytes", ""
        ),
        mpi_errors.LaunchFailure("exit code", "", "exit 137: killed by signal 9", ""),
    )
    verdict = validate_run(
        NcclOutput((cut,), failures),
        RunSpec(("gpu01",), 2, "all_reduce", log=log, node_of_rank=dict.fromkeys(range(2), "gpu01")),
        IB,
    )
    assert verdict.findings[0].measured == "NET/Socket within a node"
    assert (
        verdict.cause
        == "set in the environment or nccl.conf: NCCL_P2P_DISABLE=1; GPUs of one node do not use NVLink"
    )


def test_per_node_runs_are_believed_one_by_one() -> None:
    verdicts = validate_nodes(
        read(text_of("per-node.txt"), rc=0), TASKS, RunSpec(NODES, 2, "all_reduce", (2**30,))
    )
    assert [verdict.outcome for verdict in verdicts.values()] == [Outcome.PASSED] * 4
    assert verdicts["gpu02"].metrics == (Metric("busbw", 328.72, "GB/s", "all_reduce 1 GiB", detail=True),)


def test_nodes_that_share_gpus_are_not_believed() -> None:
    verdicts = validate_nodes(read(text_of("per-node-wrong-gpus.txt"), rc=0), TASKS, RunSpec(NODES, 2))
    for node, verdict in verdicts.items():
        assert verdict.outcome is Outcome.FAILED
        assert verdict.findings[0].part == "GPU 0000:00:06 of vm"
        assert verdict.findings[0].expected == f"used by {node} alone"
        assert "TaskProlog" in verdict.hint


def test_same_bus_ids_on_different_hosts_are_no_fault() -> None:
    output = read(text_of("per-node-wrong-gpus.txt"))
    runs = tuple(
        replace(run, ranks=tuple(replace(line, host=TASKS[run.label]) for line in run.ranks))
        for run in output.runs
    )
    verdicts = validate_nodes(NcclOutput(runs), TASKS, RunSpec(NODES, 2))
    assert {verdict.outcome for verdict in verdicts.values()} == {Outcome.PASSED}


def test_a_node_without_a_table_is_named_alone() -> None:
    lines = [line for line in text_of("per-node.txt").split("\n") if not line.startswith("2: ")]
    verdicts = validate_nodes(read("\n".join(lines)), TASKS, RunSpec(NODES, 2))
    assert [node for node, verdict in verdicts.items() if verdict.outcome is Outcome.FAILED] == ["gpu03"]
    assert "gpu03: 0 tables" in reported(verdicts["gpu03"])


@pytest.mark.parametrize("labelled", [True, False])
def test_singletons_are_caught(labelled: bool) -> None:  # parametrize gives it by name
    text = text_of("nccl-allreduce-g1.txt").replace("rc=0\n", "")
    tags = [f"{task}: " if labelled else "" for task in range(4)]
    both = "".join(f"{tag}{line}\n" for line in text.splitlines() for tag in tags)
    verdict = validate_run(read(both, rc=0), RunSpec(NODES, 1))
    assert verdict.outcome is Outcome.FAILED
    assert "rank 0 alone, 4 times / 1 run of 4 ranks" in reported(verdict)
    assert "--mpi=pmix" in verdict.hint


def test_one_gpu_has_no_bus_bandwidth() -> None:
    (run,) = read(text_of("nccl-allreduce-g1.txt")).runs
    assert not [metric for metric in metrics(run) if metric.name == "busbw"]


# --- transports -------------------------------------------------------------------------------------------


def test_socket_between_nodes_of_an_infiniband_profile() -> None:
    log = nccl_log.read(text_of("torch-net-socket-debug.txt"))
    where = {rank: NODES[rank // 2] for rank in range(8)}
    run = run_of(nodes=4, world=8)
    asked = RunSpec(NODES, 2, node_of_rank=where, log=log)
    verdict = validate_run(NcclOutput((run,)), asked, IB)
    assert "NET/Socket between nodes / NET/IB/GDRDMA" in reported(verdict)
    assert "no InfiniBand device" in verdict.hint
    socket = IB.model_copy(update={"fabric": FabricProfile(transport="NET/Socket")})
    assert validate_run(NcclOutput((run,)), asked, socket).outcome is Outcome.PASSED
    # a profile that states adapters and no transport accepts any but sockets: plugins have names of their own
    adapters = IB.model_copy(update={"fabric": FabricProfile(hcas=8, link_layer="Ethernet")})
    verdict = validate_run(NcclOutput((run,)), asked, adapters)
    assert "NET/Socket between nodes / a transport over the adapters of the profile" in reported(verdict)
    plugin = nccl_log.read(text_of("torch-net-socket-debug.txt").replace("NET/Socket", "NET/FasTrak"))
    assert validate_run(NcclOutput((run,)), replace(asked, log=plugin), adapters).outcome is Outcome.PASSED
    bare = IB.model_copy(update={"fabric": FabricProfile()})
    assert validate_run(NcclOutput((run,)), asked, bare).outcome is Outcome.PASSED


def line(path: str, source: int = 1, target: int = 2, tag: str = "[send] ") -> str:
    ranks = "".join(
        f"gpu0{r // 2 + 1}:1:1 [0] NCCL INFO comm 0x1 rank {r} nRanks 4 nNodes 2 localRanks 2\n"
        for r in range(4)
    )
    return ranks + f"gpu01:1:1 [0] NCCL INFO Channel 00/0 : {source}[1] -> {target}[0] {tag}via {path}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (line("NET/IB/0/GDRDMA"), ""),
        (line("NET/IB/0(3)/GDRDMA(PCI)/Shared"), ""),
        (line("NET/IB/0"), "gpu[01-02]: ranks 1->2: NET/IB between nodes"),
        (
            line("NET/IB/0/GDRDMA") + line("SHM/direct/direct", 0, 1, ""),
            "gpu01: ranks 0->1: SHM within a node",
        ),
        (line("NET/IB/0/GDRDMA") + line("NET/IB/0", 0, 1), "NET/IB within a node"),
        (line("P2P/CUMEM", 0, 1, ""), "no connection between nodes was logged"),
        ("", "no connection between nodes was logged"),
    ],
)
def test_transports_are_held_against_the_profile(text: str, words: str) -> None:
    verdict = validate_run(
        NcclOutput((run_of(),)), RunSpec(("gpu01", "gpu02"), 2, log=nccl_log.read(text)), IB
    )
    assert verdict.outcome is (Outcome.FAILED if words else Outcome.PASSED)
    assert words in reported(verdict)


@pytest.mark.parametrize(
    ("nodes", "nvls", "words"),
    [
        (1, "NVLS comm 0x1 headRank 0 nHeads 4", ""),
        (2, "NVLS comm 0x1 headRank 0 nHeads 2", "no connection between nodes was logged"),
        (1, "Connected all rings", "no connection between nodes was logged"),
    ],
)
def test_nodes_that_nvlink_joins_need_no_connection_over_the_network(
    nodes: int, nvls: str, words: str
) -> None:
    """A pair of one GB200 NVL72: NCCL counts one node, and NVLS alone logs no connection (awsome NVL72 logs, NCCL 2.27)."""
    text = "".join(
        f"gpu0{r // 2 + 1}:1:1 [0] NCCL INFO comm 0x1 rank {r} nRanks 4 nNodes {nodes} localRanks 4 localRank {r} MNNVL 1\n"
        f"gpu0{r // 2 + 1}:1:1 [0] NCCL INFO {nvls}\n"
        for r in range(4)
    )
    verdict = validate_run(
        NcclOutput((run_of(),)), RunSpec(("gpu01", "gpu02"), 2, log=nccl_log.read(text)), IB
    )
    assert verdict.outcome is (Outcome.FAILED if words else Outcome.PASSED)
    assert words in reported(verdict)


@pytest.mark.parametrize(
    ("gpus", "text", "words"),
    [
        (2, line("P2P/CUMEM", 0, 1, ""), ""),
        (2, "vm:1:1 [0] NCCL INFO NVLS comm 0x1 headRank 0 nHeads 8\n", ""),
        (2, "", "transport: no connection within the node was logged / P2P or NVLS"),
        (
            2,
            "vm:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n",
            "no connection within the node was logged",
        ),
        (1, "", ""),  # it has nobody to connect to
    ],
)
def test_transports_within_a_node_are_proved_or_it_is_no_pass(gpus: int, text: str, words: str) -> None:
    """A task prolog with NCCL_DEBUG=VERSION: nccl.alone passed over whatever way."""
    asked = RunSpec(
        ("gpu01",), gpus, log=nccl_log.read(text), node_of_rank=dict.fromkeys(range(gpus), "gpu01")
    )
    verdict = validate_run(NcclOutput((run_of(1, gpus),)), asked, IB)
    assert verdict.outcome is (Outcome.FAILED if words else Outcome.PASSED)
    assert words in reported(verdict)
    for unasked in (replace(asked, log=None), replace(asked, logged=False)):
        assert validate_run(NcclOutput((run_of(1, gpus),)), unasked, IB).outcome is Outcome.PASSED


# --- value by value ---

COUNT = "compare srun's -N, --ntasks-per-node and the tool's -g with the requested run"
OTHER = "the run was smaller or larger than requested, or another one"
REPEAT = "repeat this size on each node alone; the node that fails again has bad memory, NVLink or NIC"
GOOD = Half(100.0, 10.0, 15.0, 0)


def wrong(number: int) -> Half:
    return replace(GOOD, wrong=number)


DOUBTS: dict[str, tuple[NcclRun, tuple[str, str, str], str, str]] = {
    "missing": (
        replace(run_of(), ranks=run_of().ranks[:3]), ("ranks 3", "missing", "ranks 0-3 once each"), OTHER, COUNT
    ),
    "surplus": (
        run_of(gpus=3, world=6), ("ranks 4, 5", "too many", "ranks 0-3 once each"), OTHER, COUNT
    ),
    "many": (
        run_of(gpus=5, world=10), ("ranks 4, 5, 6, 7 and 2 more", "too many", "ranks 0-3 once each"), OTHER, COUNT
    ),
    "shared": (
        with_rank(run_of(), 1, bus_id="0000:06:00"),
        ("GPU 0000:06:00 of gpu01", "ranks 0, 1", "one rank per GPU"), "ranks share a GPU",
        "give each task its own GPU (--gpus-per-task=1); on virtual nodes, assign different GPUs to each node",
    ),
    "cpus": (
        with_rank(with_rank(run_of(), 1, bus_id="-"), 0, bus_id="-"), ("ranks 0, 1", "no GPU named", "one GPU each"),
        "the ranks ran on CPUs, or the tool names no device",
        "check the names in the Rank lines; a newer torch reports the bus id",
    ),
    "uneven": (
        with_rank(run_of(), 3, host="gpu01", bus_id="x"), ("gpu01", "3 ranks", "2 ranks"), "ranks are spread unevenly",
        "srun --ntasks-per-node, or -g of the tool",
    ),
    "out of bounds": (run_of(out_of_bounds=3), ("data", "3 values out of bounds", "0"), "data is corrupted", REPEAT),
    "unchecked": (
        run_of(validation=False), ("data", "not checked (0 of 2 sizes)", "checked"), "nccl-tests ran with -c 0",
        "run with -c 1",
    ),
    "other": (run_of(collective="all_gather"), ("collective", "all_gather", "all_reduce"), "another test ran", ""),
    "nameless": (run_of(collective=""), ("collective", "not named", "all_reduce"), "another test ran", ""),
    "size": (
        run_of(rows=run_of().rows[:1]), ("size 1 MiB", "not measured", "measured"),
        "the sweep does not reach this size",
        "set -b, -e and -f of nccl-tests so that it does; small GPU memory limits the largest size",
    ),
    "table": (
        run_of(reasons=("line 7: row rejected",)), ("table", "line 7: row rejected", "a complete table"),
        "the table is cut, mixed or contradictory", "repeat the run",
    ),
    "data": (
        run_of(rows=(replace(run_of().rows[1], out_of_place=wrong(4)),)),
        ("all_reduce 1 MiB out-of-place", "4 wrong elements", "0 wrong elements"), "data is corrupted", REPEAT,
    ),
    "data in place": (
        run_of(rows=(replace(run_of().rows[1], in_place=wrong(5)),)),
        ("all_reduce 1 MiB in-place", "5 wrong elements", "0 wrong elements"), "data is corrupted", REPEAT,
    ),
    "failure": (
        run_of(failures=(mpi_errors.LaunchFailure("timeout", "gpu02", "Test timeout", "pairs"),)),
        ("gpu02", "timeout: Test timeout", "no failure"), "timeout", "pairs",
    ),
    "failure of nobody": (
        run_of(failures=(mpi_errors.LaunchFailure("relayed", "", "x", "h"), mpi_errors.LaunchFailure("odd", "", "words", "pairs"))),
        ("run", "odd: words", "no failure"), "odd", "pairs",
    ),
    "failure alone": (
        run_of(failures=(mpi_errors.LaunchFailure("relayed", "a", "x", "h"),)), ("a", "relayed: x", "no failure"), "relayed",
        "h",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTS)
def test_how_a_doubt_is_reported(name: str) -> None:
    run, reported, cause, hint = DOUBTS[name]
    verdict = judged(run)
    assert Finding(*reported) == verdict.findings[0]
    assert len(verdict.findings) == 1 or name in {
        "surplus",
        "many",
        "missing",
        "uneven",
    }  # these tell of both nodes
    assert (verdict.cause, verdict.hint, verdict.action, verdict.metrics) == (cause, hint, Action.MONITOR, ())
    assert verdict.check == "nccl.belief"


def test_ranks_on_other_nodes() -> None:
    spread = "virtual nodes of one host need Slurm's task labels (srun --label); otherwise check the hostfile"
    verdict = judged(with_rank(run_of(), 3, host="gpu09"))
    assert verdict.findings == (Finding("nodes", "ranks on gpu[01-02,09]", "ranks on gpu[01-02]"),)
    assert (verdict.cause, verdict.hint) == ("nodes not requested: gpu09", spread)
    away = with_rank(with_rank(run_of(), 2, host="gpu01", bus_id="a"), 3, host="gpu01", bus_id="b")
    verdict = judged(away)
    assert verdict.findings == (Finding("nodes", "ranks on gpu01", "ranks on gpu[01-02]"),)
    assert (verdict.cause, verdict.hint) == ("nodes without a rank: gpu02", spread)
    reported = judged(run_of(), node_of_rank={0: "gpu01", 1: "gpu01", 2: "gpu01"})
    assert reported.findings[:2] == (
        Finding("rank 2", "on gpu02.cluster.local", "on gpu01"),
        Finding("rank 3", "on gpu02.cluster.local", "on a node of the job"),
    )
    assert (reported.cause, reported.hint) == (
        "the rank did not run where Slurm started it, or hostnames are wrong",
        "compare `hostname -s` with NodeHostName of scontrol show node",
    )


def test_tables_of_a_step() -> None:
    asked = RunSpec(("gpu01", "gpu02"), 2)
    alone = validate_run(NcclOutput((run_of(1, 1),) * 4), asked)
    assert alone.findings == (Finding("ranks", "rank 0 alone, 4 times", "1 run of 4 ranks"),)
    assert validate_run(NcclOutput((run_of(1, 1),)), RunSpec(("gpu01",), 1)).outcome is Outcome.PASSED
    none = validate_run(NcclOutput(()), asked)
    assert none.findings == (Finding("tables", "0 tables", "1 table"),)
    assert (none.cause, none.hint) == (
        "the run printed no table, or several runs did",
        "run one command; with several, use srun --label",
    )
    two = validate_run(NcclOutput((run_of(), run_of()), reasons=("a", "b", "c")), asked)
    assert two.findings == (
        Finding("tables", "2 tables", "1 table"),
        *(Finding("output", reason, "complete output") for reason in "abc"),
    )
    assert two.hint == "a; b"
    cut = validate_run(NcclOutput((run_of(),), reasons=("a",)), asked)
    assert (cut.findings, cut.cause, cut.hint) == (
        (Finding("output", "a", "complete output"),),
        "the output is cut or mixed",
        "repeat with srun --label",
    )
    assert validate_run(NcclOutput((), reasons=("a",)), asked).findings == (
        Finding("tables", "0 tables", "1 table"),
    )


def nodewise(**change: Any) -> NcclOutput:
    """One table of each of two nodes."""
    runs = []
    for at in (0, 1):
        ranks = tuple(replace(it, rank=it.rank - 2 * at) for it in run_of().ranks[2 * at : 2 * at + 2])
        runs.append(run_of(ranks=ranks, label=f"{at}", world=2))
    runs[1] = replace(runs[1], **change)
    return NcclOutput(tuple(runs))


LABELS = {"0": "gpu01", "1": "gpu02"}


def test_tables_of_nodes() -> None:
    asked = RunSpec(("gpu01", "gpu02"), 2)
    good = validate_nodes(nodewise(), LABELS, asked)
    assert {node: it.outcome for node, it in good.items()} == dict.fromkeys(asked.nodes, Outcome.PASSED)
    (one,) = [validate_nodes(NcclOutput(nodewise().runs[:1]), LABELS, asked)["gpu02"]]
    assert one.findings == (Finding("gpu02", "0 tables", "1 table"),)
    assert (one.cause, one.hint) == (
        "the node's process printed nothing, or crashed",
        "repeat on this node alone",
    )
    other = nodewise(ranks=nodewise().runs[1].ranks[1:])
    few = validate_nodes(other, LABELS, asked)["gpu02"]
    assert few.findings == (Finding("gpu02", "ranks 1", "ranks 0-1"),)
    assert (few.cause, few.hint) == (
        "the process used other GPUs than requested",
        "compare -g of the tool with --gpus-per-node",
    )
    astray = tuple(replace(it, host="gpu07") for it in nodewise().runs[1].ranks)
    lost = validate_nodes(nodewise(ranks=astray), LABELS, asked)["gpu02"]
    assert lost.findings == (Finding("gpu02", "ran on gpu07", "ran on gpu02"),)
    assert (lost.cause, lost.hint) == (
        "the task did not run where Slurm started it",
        "compare `hostname -s` with NodeHostName of scontrol show node",
    )
    one_host = [replace(it, host="vm") for it in nodewise().runs[0].ranks]
    both = NcclOutput(tuple(replace(run, ranks=tuple(one_host)) for run in nodewise().runs))
    shared = validate_nodes(both, LABELS, asked)["gpu02"]
    assert [it.part for it in shared.findings] == ["GPU 0000:06:00 of vm", "GPU 0000:07:00 of vm"]
    assert shared.findings[0] == Finding(
        "GPU 0000:06:00 of vm", "used by gpu[01-02] at once", "used by gpu02 alone"
    )
    assert (shared.cause, shared.hint) == (
        "the nodes share one host and were given the same GPUs",
        "assign different GPUs to the nodes: File= in gres.conf, and CUDA_VISIBLE_DEVICES in Slurm's TaskProlog",
    )


@pytest.mark.parametrize(
    ("size", "asked", "ranks", "fits"),
    [
        (100, 100, 2, True), (69, 100, 2, True), (68, 100, 2, False), (101, 100, 2, False), (85, 100, 0, True),
        (84, 100, 0, False), (84, 100, 1, False), (99, 100, 1, True),
    ],
)  # fmt: skip
def test_a_row_answers_a_size_that_is_rounded_down(size: int, asked: int, ranks: int, *, fits: bool) -> None:
    assert aligned(size, asked, ranks) is fits


def rows(*values: tuple[int, float | None, float | None]) -> tuple[NcclRow, ...]:
    return tuple(
        NcclRow(size, size, "float", "sum", -1, Half(time, 1.0, busbw, 0), None)
        for size, time, busbw in values
    )


def test_the_metrics_of_a_run() -> None:
    run = run_of(rows=rows((16, 9.0, 3.0), (8, 2.0, 1.0), (8, 4.0, 2.0), (8, 30.0, 30.0), (0, 1.0, None)))
    assert list(metrics(run)) == [
        Metric("busbw", 2.0, "GB/s", "all_reduce 8 B", detail=True),
        Metric("latency", 4.0, "us", "all_reduce 8 B"),
        Metric("busbw", 3.0, "GB/s", "all_reduce 16 B", detail=True),
    ]
    even = run_of(collective="", rows=rows((1, 2.0, 1.0), (1, 5.0, 2.0)), world=2)
    assert list(metrics(even)) == [
        Metric("busbw", 1.5, "GB/s", "collective 1 B", detail=True),
        Metric("latency", 3.5, "us", "collective 1 B"),
    ]
    assert [it.name for it in metrics(replace(even, world=1))] == ["latency"]


@pytest.mark.parametrize(
    ("finding", "cut"),
    [
        (Finding("table", "x", ""), True), (Finding("tables", "x", ""), True), (Finding("output", "x", ""), True),
        (Finding("gpu01", "2 tables", ""), True), (Finding("run", "exit code: 7", ""), True),
        (Finding("run", "an exit code: 7", ""), False), (Finding("data", "x", ""), False),
    ],
)  # fmt: skip
def test_what_only_follows(finding: Finding, *, cut: bool) -> None:
    assert is_consequence(finding) is cut


def transports(text: str, **change: Any) -> Any:
    asked = replace(RunSpec(("gpu01", "gpu02"), 2, log=nccl_log.read(text)), **change)
    return validate_run(NcclOutput((run_of(),)), asked, IB)


def test_a_transport_that_is_better_or_beside_the_profile() -> None:
    socket = IB.model_copy(update={"fabric": FabricProfile(transport="NET/Socket")})
    asked = RunSpec(("gpu01", "gpu02"), 2, log=nccl_log.read(line("NET/IB/0/GDRDMA")))
    assert validate_run(NcclOutput((run_of(),)), asked, socket).outcome is Outcome.PASSED
    assert transports(line("P2P/MNNVL")).outcome is Outcome.PASSED
    assert transports(line("NET/AWS Libfabric/0")).outcome is Outcome.FAILED


# --- which node it is ----------------------------------------------------------------------------------------------


# --- limits and rarer words ----------------------------------------------------------------------------------------


def test_lists_of_pairs_are_cut_after_four() -> None:
    assert nccl._short("gpu01.cluster.local") == "gpu01"
    where = dict.fromkeys(range(9), "gpu01")
    pairs = [(rank, rank + 1) for rank in range(5)]
    assert nccl._pairs(pairs[:4], where) == "gpu01: ranks 0->1, 1->2, 2->3, 3->4"
    assert nccl._pairs(pairs, where) == "gpu01: ranks 0->1, 1->2, 2->3, 3->4 ..."


@pytest.mark.parametrize(("size", "latency"), [(0, False), (1, True), (8, True), (9, False), (16, False)])
def test_latency_is_that_of_at_most_8_bytes(size: int, *, latency: bool) -> None:
    half = Half(20.5, 0.0, 1.0, 0)
    run = run_of(rows=(NcclRow(size, 1, "float", "sum", -1, half, None),))
    assert ("latency" in {metric.name for metric in metrics(run)}) is latency


def test_two_ranks_that_ran_alone() -> None:
    alone = run_of(nodes=1, gpus=1)
    output = NcclOutput((alone, alone))
    assert output.singletons == 2
    verdict = validate_run(output, RunSpec(("gpu01",), 2))
    assert verdict.findings == (Finding("ranks", "rank 0 alone, 2 times", "1 run of 2 ranks"),)
    assert (validate_run(NcclOutput(()), RunSpec(("gpu01",), 1)).findings[0].part) == "tables"
    passed = validate_run(NcclOutput((run_of(nodes=1),)), RunSpec(("gpu01",), 2))
    assert (passed.outcome, passed.cause, passed.hint) == (Outcome.PASSED, "", "")


def test_the_table_of_one_node_is_proved_as_that_of_all() -> None:
    asked = RunSpec(("gpu01", "gpu02"), 2)
    failure = mpi_errors.LaunchFailure("out of memory", "", "words", "do this")
    rows = (replace(run_of().rows[0], out_of_place=wrong(3)), run_of().rows[1])
    shared = with_rank(nodewise().runs[1], 1, bus_id="0000:06:00")
    for change, part, measured in (
        ({"failures": (failure,)}, "run", "out of memory: words"),
        ({"rows": rows}, "all_reduce 8 B out-of-place", "3 wrong elements"),
        ({"ranks": shared.ranks}, "GPU 0000:06:00 of gpu02", "ranks 0, 1"),
        ({"reasons": ("no end",)}, "table", "no end"),
    ):
        found = validate_nodes(nodewise(**change), LABELS, asked)
        assert [(it.part, it.measured) for it in found["gpu02"].findings] == [(part, measured)]
        assert found["gpu01"].outcome is Outcome.PASSED
    unlabelled = validate_nodes(nodewise(label="9"), {**LABELS, "x": "gpu02"}, asked)
    assert unlabelled["gpu02"].findings == (Finding("gpu02", "0 tables", "1 table"),)


def test_transports_of_each_node_by_its_own_log() -> None:
    asked = RunSpec(("gpu01", "gpu02"), 2)
    logs = {
        "gpu01": nccl_log.read(line("P2P/CUMEM", 0, 1, "")),
        "gpu02": nccl_log.read(line("SHM/direct/direct", 0, 1, "")),
    }
    found = validate_nodes(nodewise(), LABELS, asked, IB, logs)
    assert found["gpu01"].outcome is Outcome.PASSED
    assert found["gpu02"].findings == (Finding("gpu02: ranks 0->1", "SHM within a node", "P2P or NVLS"),)


def test_at_most_four_ranks_elsewhere_are_named() -> None:
    where = dict.fromkeys(range(5), "gpu02")
    run = run_of(nodes=1, gpus=5)
    verdict = validate_run(NcclOutput((run,)), RunSpec(("gpu01",), 5, node_of_rank=where))
    assert [it.part for it in verdict.findings if it.part.startswith("rank ")] == [
        f"rank {n}" for n in range(4)
    ]
