"""Belief before judgement: each recording and each lie gets its own verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kit.nccl.test_nccl_tests import text_of
from paths import TESTS
from payload_helpers import rank_row

from pytest_gpucluster.config.models import FabricProfile, GpuProfile, Profile
from pytest_gpucluster.core.check import Action, Metric, Outcome
from pytest_gpucluster.kit.mpi.mpi_errors import LaunchFailure
from pytest_gpucluster.kit.nccl import nccl_log
from pytest_gpucluster.kit.nccl.nccl_rows import Half, NcclRow
from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput, NcclRun, RankLine, read
from pytest_gpucluster.kit.nccl.nccl_validation import RunSpec, aligned, metrics, validate_nodes, validate_run
from pytest_gpucluster.report.machine.convert import measured_part

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

DATA = TESTS / "data" / "nccl"
H200 = DATA.parent / "h200x4-slurm"
NODES = ("gpu01", "gpu02", "gpu03", "gpu04")
TASKS = {str(task): node for task, node in enumerate(NODES)}
IB = Profile(
    name="ib",
    description="",
    source="",
    gpu=GpuProfile(count=2, name="H200", nvlinks=18),
    fabric=FabricProfile(hcas=8, link_layer="InfiniBand", transport="NET/IB/GDRDMA"),
)
GOOD = Half(100.0, 10.0, 15.0, 0)
SMALL = NcclRow(8, Half(20.5, 0.0, 0.0, 0), GOOD)
LARGE = NcclRow(2**20, GOOD, GOOD)
TWO_NODES = RunSpec(("gpu01", "gpu02"), 2)


def rank_of(number: int, gpus: int) -> RankLine:
    node, gpu = divmod(number, gpus)
    host = f"gpu{node + 1:02}.cluster.local"
    return RankLine(number, 0, host, gpu, f"0000:{gpu + 6:02x}:00", "NVIDIA H200")


def run_of(nodes: int = 2, gpus: int = 2, **change: Any) -> NcclRun:
    world = nodes * gpus
    ranks = tuple(rank_of(number, gpus) for number in range(world))
    run = NcclRun("2.19.6", "all_reduce", ranks, (SMALL, LARGE), 0, 7.5, complete=True, world=world, validation=True)
    return replace(run, **change)


def with_rank(run: NcclRun, *which: int, **change: Any) -> NcclRun:
    ranks = tuple(replace(line, **change) if line.rank in which else line for line in run.ranks)
    return replace(run, ranks=ranks)


def on_one_host(host: str) -> NcclRun:
    ranks = (replace(line, host=host, bus_id=f"0000:{line.rank + 6:02x}:00") for line in run_of().ranks)
    return replace(run_of(), ranks=tuple(ranks))


def judged(run: NcclRun, **change: Any) -> Verdict:
    asked = replace(TWO_NODES, collective="all_reduce", sizes=(2**20,))
    return validate_run(NcclOutput((run,)), replace(asked, **change))


def reported(verdict: Verdict) -> str:
    return "; ".join(f"{found.part}: {found.measured} / {found.expected}" for found in verdict.findings)


@pytest.mark.parametrize(
    ("bus_ids", "devices", "shared"),
    [
        (("0x00", "0x00"), (0, 1), ""),  # before 2.14.1 without the PCI domain: all GPUs of a virtual machine
        (("0x00", "0x00"), (0, 0), ""),  # one GPU a task: NCCL itself finds a GPU that is there twice
        (("0x1b", "0x1b"), (0, 1), ""),  # of two domains
        (("0x1b", "0x1c"), (0, 0), ""),
        (("0x1b", "0x1b"), (0, 0), "gpu01 GPU (0x1b device 0): ranks 0, 1 / one rank per GPU"),
        (("0000:00:00", "0000:00:00"), (0, 1), "gpu01 GPU (0000:00:00): ranks 0, 1 / one rank per GPU"),
    ],
)
def test_a_gpu_is_shared_where_nothing_else_explains_its_name(
    bus_ids: tuple[str, str], devices: tuple[int, int], shared: str
) -> None:
    run = run_of()
    for rank in (0, 1):
        run = with_rank(run, rank, bus_id=bus_ids[rank], device=devices[rank])
    assert reported(judged(run)) == shared
    apart = tuple(replace(run, ranks=run.ranks[at : at + 1], label=f"{at}", world=1) for at in (0, 1))
    found = validate_nodes(NcclOutput(apart), TASKS, RunSpec(("gpu01", "gpu02"), 1))
    assert ("at once" in reported(found["gpu01"])) == bool(shared)


def test_a_good_run_is_believed_and_measured() -> None:
    verdict = judged(run_of())
    assert (verdict.outcome, verdict.cause, verdict.hint) == (Outcome.PASSED, "", "")
    assert Metric("busbw", 15.0, "GB/s", measured_part("all_reduce 1 MiB"), detail=True) in verdict.metrics
    assert Metric("latency", 20.5, "us", measured_part("all_reduce 8 B")) in verdict.metrics
    recorded = read(text_of("nccl-allreduce-g8.txt"), rc=0)
    verdict = validate_run(recorded, RunSpec(("vm",), 8, "all_reduce", (2**30, 2**32)))
    assert verdict.outcome is Outcome.PASSED, reported(verdict)


TIMEOUT, RELAYED = (LaunchFailure("timeout", "gpu02", "Test timeout", "pairs"), LaunchFailure("relayed", "", "x", "h"))
IN_PLACE = replace(LARGE, in_place=replace(GOOD, wrong=5))
OUT_OF_PLACE = replace(LARGE, out_of_place=replace(GOOD, wrong=4))
UNCHECKED = replace(LARGE, out_of_place=replace(GOOD, wrong=None))
ONCE = "ranks 0-3 once each"
GONE = replace(run_of(), ranks=run_of().ranks[:3])
NAMELESS = with_rank(run_of(), 0, 1, bus_id="-")
TWICE, ASTRAY = with_rank(run_of(), 1, bus_id="0000:06:00"), with_rank(run_of(), 3, host="gpu09")
UNEVEN = with_rank(run_of(), 3, host="gpu01", bus_id="x")
WHERE = "ranks on gpu[01-02]"
OF_OTHERS = run_of(failures=(RELAYED, replace(TIMEOUT, host="")))
CUT = run_of(reasons=("line 7: row rejected",))
# run, the first finding and how many, a word of the cause
DOUBTS: list[tuple[NcclRun, str, int, str]] = [
    (GONE, f"ranks 3: missing / {ONCE}", 2, "smaller"),
    (run_of(gpus=3, world=6), f"ranks 4, 5: too many / {ONCE}", 3, "larger"),
    (with_rank(run_of(), 1, rank=0), f"ranks 1: missing / {ONCE}", 2, "smaller"),
    (TWICE, "gpu01 GPU (0000:06:00): ranks 0, 1 / one rank per GPU", 1, "share"),
    (NAMELESS, "ranks 0, 1: no GPU named / one GPU each", 1, "CPUs"),
    (UNEVEN, "gpu01: 3 ranks / 2 ranks", 2, "unevenly"),
    (run_of(out_of_bounds=3), "data: 3 values out of bounds / 0", 1, "corrupted"),
    (run_of(validation=False), "data: not checked (0 of 2 sizes) / checked", 1, "-c 0"),
    (run_of(rows=(UNCHECKED,)), "data: not checked (1 of 1 sizes) / checked", 1, "-c 0"),
    (run_of(collective="all_gather"), "collective: all_gather / all_reduce", 1, "another"),
    (run_of(rows=(SMALL,)), "size 1 MiB: not measured / measured", 1, "does not reach"),
    (CUT, "table: line 7: row rejected / a complete table", 1, "cut"),
    (run_of(rows=(OUT_OF_PLACE,)), "all_reduce 1 MiB out-of-place: 4 wrong elements / 0", 1, "corrupted"),
    (run_of(rows=(IN_PLACE,)), "all_reduce 1 MiB in-place: 5 wrong elements / 0", 1, "corrupted"),
    (run_of(failures=(TIMEOUT,)), "gpu02: timeout: Test timeout / no failure", 1, "timeout"),
    (OF_OTHERS, "run: timeout: Test timeout / no failure", 1, "timeout"),
    (run_of(failures=(RELAYED,)), "run: relayed: x / no failure", 1, "relayed"),
    (ASTRAY, f"nodes: ranks on gpu[01-02,09] / {WHERE}", 1, "requested: gpu09"),
    (on_one_host("gpu01"), f"nodes: ranks on gpu01 / {WHERE}", 1, "without a rank: gpu02"),
    (on_one_host("vm"), f"nodes: ranks on vm / {WHERE}", 1, "without a rank: gpu[01-02]"),
]


@pytest.mark.parametrize(("run", "first", "findings", "cause"), DOUBTS)
def test_a_doubt_names_its_part_alone(run: NcclRun, first: str, findings: int, cause: str) -> None:
    verdict = judged(run)
    assert len(verdict.findings) == findings
    assert reported(verdict).startswith(first)
    assert cause in verdict.cause
    assert (verdict.check, verdict.action, verdict.metrics) == ("nccl.belief", Action.MONITOR, ())


def test_data_that_need_no_check_in_place_or_have_the_old_column_are_checked() -> None:
    inside = replace(LARGE, in_place=replace(GOOD, wrong=None))  # alltoall cannot check in-place
    old = replace(LARGE, out_of_place=Half(100.0, 10.0, 15.0, None, 1e-6))
    for row in (inside, old):
        assert judged(run_of(rows=(row,))).outcome is Outcome.PASSED


def test_virtual_nodes_need_slurms_word() -> None:
    where = {0: "gpu01", 1: "gpu01", 2: "gpu02", 3: "gpu02"}
    assert judged(on_one_host("vm"), node_of_rank=where).outcome is Outcome.PASSED
    assert "gpu01: 3 ranks" in reported(judged(on_one_host("vm"), node_of_rank={**where, 2: "gpu01"}))
    # of all tasks on one node that was asked for, two are astray
    assert "rank 2: on gpu01 / on gpu02" in reported(judged(on_one_host("gpu01"), node_of_rank=where))
    astray = judged(run_of(), node_of_rank={0: "gpu01", 1: "gpu01", 2: "gpu01"})
    assert [(str(it.part), it.measured, it.expected) for it in astray.findings[:2]] == [
        ("rank 2", "on gpu02.cluster.local", "on gpu01"),
        ("rank 3", "on gpu02.cluster.local", "on a node of the job"),
    ]
    five = RunSpec(("gpu01",), 5, node_of_rank=dict.fromkeys(range(5), "gpu02"))
    found = validate_run(NcclOutput((run_of(1, 5),)), five).findings
    assert [it.part.index for it in found if it.code == "elsewhere"] == [*range(4)]


@pytest.mark.parametrize(
    ("name", "mpi", "part", "words", "hint"),
    [
        ("mpi-none.txt", "", "gpu[01-04]", "PMIx 3 (ext3x_client.c); the step ran without", "--mpi=pmix"),
        ("mpi-pmi2.txt", "pmi2", "gpu[01-04]", "the step ran with --mpi=pmi2", "--mpi=pmix"),
        ("mpi-pmix.txt", "pmix", "run", "launch_p_step_launch: StepId=6.0", "slurmd's log"),
        ("torch-duplicate-gpu.txt", None, "gpu[01-04]", "ranks 0 (gpu01), 2 (gpu02), 4 (gpu03)", "own GPU"),
        ("nccl-toomany.txt", None, "run", "9 requested but only 8 were found", "--gpus-per-node"),
    ],
)
def test_recorded_failures_are_judged(name: str, mpi: str | None, part: str, words: str, hint: str) -> None:
    verdict = validate_run(read(text_of(name), rc=1, mpi=mpi), RunSpec(NODES, 2))
    (found,) = verdict.findings
    assert str(found.part) == part
    assert words in str(found.measured)
    assert hint in verdict.hint


OUT_OF_MEMORY = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. "
    "GPU 0 has a total capacity of 139.80 GiB of which 527.56 MiB is free. Process 1142 has 136.86 GiB memory in use."
)
STUB = "Unexpected error from cudaGetDeviceCount(). Error 34: CUDA driver is a stub library (torch 2.11.0+cu130)"
BUSY = "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
NO_SPACE, LIMITS = "Cuda failure 'out of memory'", "limits of this process: 32 GiB of address space"
SHM = "Error while creating shared memory segment /dev/shm/nccl-1enYdo (size 9637888), error: No space left on device (28)"
NO_DEVICE = "torch finds no CUDA device (torch 2.11.0+cu130, CUDA_VISIBLE_DEVICES=4; check --gpus-per-task)"
CPU_BUILD = "torch finds no CUDA device: it is a CPU build"
WARNED, LIMITED = f"n01:7:9 [0] alloc.h:12 NCCL WARN {NO_SPACE}", f"NCCL error: {NO_SPACE}"
NO_MEMLOCK = "Call to ibv_create_cq failed with error Cannot allocate memory"
NO_INTERFACE = "NCCL error: Bootstrap : no socket interface found"


@pytest.mark.parametrize(
    ("code", "what", "cause", "words"),
    [
        ("", OUT_OF_MEMORY, "out of memory", "rank 1 (GPU 0000:00:07): OutOfMemoryError: CUDA out of memory."),
        ("no_gpu", NO_DEVICE, "no GPU", f"rank 1 (GPU 0000:00:07): {NO_DEVICE}"),
        ("", "RuntimeError: odd", "a rank failed", "rank 1 (GPU 0000:00:07): RuntimeError: odd"),
        ("", "No module named 'torch'", "no torch", "No module named 'torch'"),
        ("", NO_INTERFACE, "no network interface", NO_INTERFACE),
        ("no_gpu", f"torch finds no CUDA device: {STUB}", "driver library", STUB),
        ("cpu_build_of_torch", CPU_BUILD, "CPU build of torch", CPU_BUILD),
        ("", BUSY, "low limits", f"busy or unavailable; {LIMITS}"),
        ("", LIMITED, "low limits", f"rank 1 (GPU 0000:00:07): {LIMITED}; {LIMITS}"),
        ("", f"NCCL error: {NO_MEMLOCK}", "low limit of locked memory", NO_MEMLOCK),
        ("", f"NCCL error: {SHM}", "shared memory is full", "/dev/shm/nccl-1enYdo"),
    ],
)
def test_what_a_rank_of_our_payload_says_is_the_cause(code: str, what: str, cause: str, words: str) -> None:
    """Recorded on 4 H200: a GPU whose memory another process held, and a device file without a GPU."""
    follower = rank_row(0, "ranks 1 never came to the rendezvous", "rendezvous")
    limits = f"; {LIMITS}" if cause == "low limits" else ""
    failed = [rank_row(rank, what, code, limits=limits) for rank in (1, 3)]
    text = "\n".join([follower, *([WARNED] if what == LIMITED else []), *failed, ""])
    verdict = validate_run(read(text, rc=137), RunSpec(("n01",), 4))
    (found,) = verdict.findings  # alike on rank 3, and rank 0 only waited
    assert (verdict.cause, str(found.part)) == (cause, "n01")
    assert found.code == cause.lower().replace(" ", "_")
    assert words in str(found.measured)


def test_ranks_that_do_not_fit_are_the_cause_of_what_follows() -> None:
    """Recorded on two H200: an nccl.conf of one node with NCCL_PROTO=LL."""
    text = (H200 / "nccl-proto-of-one-node.txt").read_text()
    verdict = validate_run(read(text, rc=4), RunSpec(("gpu01", "gpu02"), 1))
    assert verdict.cause == "ranks do not fit"
    assert "receiving 131072 bytes instead of 65536" in str(verdict.findings[0].measured)
    assert "nccl.conf" in verdict.hint
    assert not [found for found in verdict.findings if found.code == "nccl"]


def test_a_run_that_was_cut_says_first_why() -> None:
    """Recorded on 4 H200 with NCCL_P2P_DISABLE and NCCL_SHM_DISABLE: too slow for the deadline."""
    log = nccl_log.read(
        "vm:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n"
        "vm:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0\n"
    )
    cut = replace(run_of(1), reasons=("3 rows for 4 sizes: rows are missing",))
    failures = (replace(TIMEOUT, host="vm"), LaunchFailure("exit code", "", "exit 137: signal 9", ""))
    asked = RunSpec(("gpu01",), 2, "all_reduce", log=log, node_of_rank=dict.fromkeys(range(2), "gpu01"))
    verdict = validate_run(NcclOutput((cut,), failures), asked, IB)
    assert verdict.findings[0].measured == "NET/Socket within a node"
    assert "NCCL_P2P_DISABLE=1" in verdict.cause
    assert "NVLink" in verdict.cause


def test_what_was_printed_beside_a_right_table_explains_what_else_is_wrong() -> None:
    said = LaunchFailure("PMIx abort", "", "PMIX ERROR: x in file gds_shmem2.c", "compare")
    verdict = validate_run(NcclOutput((run_of(),), messages=(said,)), TWO_NODES)
    assert (verdict.outcome, [it.text for it in verdict.remarks]) == (
        Outcome.PASSED,
        ["PMIx abort: PMIX ERROR: x in file gds_shmem2.c"],
    )
    gone = validate_run(NcclOutput((GONE,), messages=(said,)), TWO_NODES)
    assert [it.code for it in gone.findings[:2]] == ["pmix_abort", "missing"]


def test_per_node_runs_are_believed_one_by_one() -> None:
    text, asked = text_of("per-node.txt"), RunSpec(NODES, 2, "all_reduce", (2**30,))
    verdicts = validate_nodes(read(text, rc=0), TASKS, asked)
    assert [verdict.outcome for verdict in verdicts.values()] == [Outcome.PASSED] * 4
    assert verdicts["gpu02"].metrics == (
        Metric("busbw", 328.72, "GB/s", measured_part("all_reduce 1 GiB"), detail=True),
    )
    without = "\n".join(line for line in text.split("\n") if not line.startswith("2: "))
    verdicts = validate_nodes(read(without), TASKS, asked)
    assert [node for node, verdict in verdicts.items() if verdict.findings] == ["gpu03"]
    assert reported(verdicts["gpu03"]) == "gpu03: 0 tables / 1 table"


def test_nodes_that_share_gpus_are_not_believed() -> None:
    output = read(text_of("per-node-wrong-gpus.txt"), rc=0)
    for node, verdict in validate_nodes(output, TASKS, RunSpec(NODES, 2)).items():
        used = f"vm GPU (0000:00:06): used by gpu[01-04] at once / used by {node} alone"
        assert reported(verdict).startswith(used)
        assert "TaskProlog" in verdict.hint
    # on different hosts the same bus ids are no fault
    runs = (with_rank(run, *range(2), host=TASKS[run.label]) for run in output.runs)
    verdicts = validate_nodes(NcclOutput(tuple(runs)), TASKS, RunSpec(NODES, 2))
    assert {verdict.outcome for verdict in verdicts.values()} == {Outcome.PASSED}


def test_singletons_are_caught() -> None:
    text = text_of("nccl-allreduce-g1.txt").replace("rc=0\n", "")
    verdict = validate_run(read("".join(f"{it}\n" * 4 for it in text.splitlines()), rc=0), RunSpec(NODES, 1))
    assert "rank 0 alone, 4 times / 1 run of 4 ranks" in reported(verdict)
    assert "--mpi=pmix" in verdict.hint


# --- transports


def line(path: str, source: int = 1, target: int = 2, tag: str = "[send] ") -> str:
    ranks = "".join(
        f"gpu0{r // 2 + 1}:1:1 [0] NCCL INFO comm 0x1 rank {r} nRanks 4 nNodes 2 localRanks 2\n" for r in range(4)
    )
    return ranks + f"gpu01:1:1 [0] NCCL INFO Channel 00/0 : {source}[1] -> {target}[0] {tag}via {path}\n"


DIRECT = line("NET/IB/0/GDRDMA")


def transports(text: str, profile: Profile = IB) -> Verdict:
    return validate_run(NcclOutput((run_of(),)), replace(TWO_NODES, log=nccl_log.read(text)), profile)


def test_socket_between_nodes_of_an_infiniband_profile() -> None:
    def verdict(fabric: FabricProfile, text: str = text_of("torch-net-socket-debug.txt")) -> Verdict:
        where = {rank: NODES[rank // 2] for rank in range(8)}
        asked = RunSpec(NODES, 2, node_of_rank=where, log=nccl_log.read(text))
        profile = IB.model_copy(update={"fabric": fabric})
        return validate_run(NcclOutput((run_of(nodes=4, world=8),)), asked, profile)

    bad = verdict(FabricProfile(hcas=8, link_layer="InfiniBand", transport="NET/IB/GDRDMA"))
    assert "NET/Socket between nodes / NET/IB/GDRDMA" in reported(bad)
    assert "no InfiniBand device" in bad.hint
    assert verdict(FabricProfile(transport="NET/Socket")).outcome is Outcome.PASSED
    assert verdict(FabricProfile()).outcome is Outcome.PASSED
    # a profile that states adapters and no transport accepts any but sockets: plugins have names of their own
    adapters = FabricProfile(hcas=8, link_layer="Ethernet")
    assert "NET/Socket between nodes / a transport over the adapters" in reported(verdict(adapters))
    plugin = text_of("torch-net-socket-debug.txt").replace("NET/Socket", "NET/FasTrak")
    assert verdict(adapters, plugin).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        (DIRECT, "", ""),
        (line("NET/IB/0(3)/GDRDMA(PCI)/Shared"), "", ""),
        (line("P2P/MNNVL"), "", ""),
        (line("NET/IB/0"), "gpu[01-02]: ranks 1->2: NET/IB between nodes", "nvidia_peermem"),
        (line("NET/Socket/0"), "gpu[01-02]: ranks 1->2: NET/Socket between nodes", "InfiniBand"),
        (DIRECT + line("SHM/direct/direct", 0, 1, ""), "gpu01: ranks 0->1: SHM within a node", ""),
        (DIRECT + line("NET/IB/0", 0, 1), "NET/IB within a node", ""),
        (line("P2P/CUMEM", 0, 1, ""), "no connection between nodes was logged", ""),
        ("", "no connection between nodes was logged", ""),
    ],
)
def test_transports_are_held_against_the_profile(text: str, words: str, hint: str) -> None:
    verdict = transports(text)
    assert bool(verdict.findings) is bool(words)
    assert words in reported(verdict)
    assert hint in verdict.hint


def test_a_transport_that_is_better_than_the_profile_passes() -> None:
    socket = IB.model_copy(update={"fabric": FabricProfile(transport="NET/Socket")})
    assert transports(DIRECT, socket).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("nodes", "nvls", "good"),
    [
        (1, "NVLS comm 0x1 headRank 0 nHeads 4", True),
        (0, "NVLS comm 0x1 headRank 0 nHeads 4", False),  # an NCCL that counts no nodes
        (2, "NVLS comm 0x1 headRank 0 nHeads 2", False),
        (1, "Connected all rings", False),
    ],
)
def test_nodes_that_nvlink_joins_need_no_network(nodes: int, nvls: str, *, good: bool) -> None:
    """A pair of one GB200 NVL72: NCCL counts one node, and NVLS alone logs no connection (awsome NVL72 logs, NCCL 2.27)."""
    head = f"nRanks 4 nNodes {nodes} localRanks 4 localRank"
    text = "".join(
        f"gpu0{r // 2 + 1}:1:1 [0] NCCL INFO comm 0x1 rank {r} {head} {r} MNNVL 1\n"
        f"gpu0{r // 2 + 1}:1:1 [0] NCCL INFO {nvls}\n"
        for r in range(4)
    )
    assert ("no connection between nodes was logged" not in reported(transports(text))) is good


@pytest.mark.parametrize(
    ("gpus", "text", "good"),
    [
        (2, line("P2P/CUMEM", 0, 1, ""), True),
        (2, "vm:1:1 [0] NCCL INFO NVLS comm 0x1 headRank 0 nHeads 8\n", True),
        (2, "", False),
        (2, "vm:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n", False),
        (1, "", True),  # it has nobody to connect to
    ],
)
def test_transports_within_a_node_are_proved_or_it_is_no_pass(gpus: int, text: str, *, good: bool) -> None:
    """A task prolog with NCCL_DEBUG=VERSION: nccl.alone passed over whatever way."""
    where = dict.fromkeys(range(gpus), "gpu01")
    asked = RunSpec(("gpu01",), gpus, log=nccl_log.read(text), node_of_rank=where)
    output = NcclOutput((run_of(1, gpus),))
    missing = "transport: no connection within the node was logged / P2P or NVLS"
    assert reported(validate_run(output, asked, IB)) == ("" if good else missing)
    for unasked in (replace(asked, log=None), replace(asked, logged=False)):
        assert validate_run(output, unasked, IB).outcome is Outcome.PASSED


# --- tables


def test_tables_of_a_step() -> None:
    def found(*runs: NcclRun, asked: RunSpec = TWO_NODES, reasons: tuple[str, ...] = ()) -> str:
        return reported(validate_run(NcclOutput(runs, reasons=reasons), asked))

    one = RunSpec(("gpu01",), 1)
    assert found(*[run_of(1, 1)] * 4) == "ranks: rank 0 alone, 4 times / 1 run of 4 ranks"
    assert found(run_of(1, 1), run_of(1, 1), asked=RunSpec(NODES[:1], 2)).startswith("ranks: rank 0 alone,")
    assert found(run_of(1, 1), asked=one) == ""
    assert found() == found(reasons=("a",)) == found(asked=one) == "tables: 0 tables / 1 table"


def nodewise(**change: Any) -> NcclOutput:
    """One table of each of two nodes."""
    runs = [run_of(1, label="0"), with_rank(run_of(1, label="1"), 0, 1, host="gpu02.cluster.local")]
    return NcclOutput((runs[0], replace(runs[1], **change)))


SECOND = nodewise().runs[1]
ELSEWHERE = with_rank(SECOND, 0, 1, host="gpu07").ranks
ON_ONE_GPU = with_rank(SECOND, 1, bus_id="0000:06:00").ranks
# what is wrong with the table of the second node, what is said of it, and a word of the cause
NODEWISE: list[tuple[dict[str, Any], str, str]] = [
    ({}, "", ""),
    ({"label": "9"}, "gpu02: 0 tables / 1 table", "printed nothing"),
    ({"ranks": SECOND.ranks[1:]}, "gpu02: ranks 1 / ranks 0-1", "other GPUs"),
    ({"ranks": ELSEWHERE}, "gpu02: ran on gpu07 / ran on gpu02", "did not run where"),
    ({"ranks": ON_ONE_GPU}, "gpu02 GPU (0000:06:00): ranks 0, 1 / one rank per GPU", "share"),
]


@pytest.mark.parametrize(("change", "said", "cause"), NODEWISE)
def test_the_table_of_one_node_is_proved(change: dict[str, Any], said: str, cause: str) -> None:
    found = validate_nodes(nodewise(**change), {"0": "gpu01", "1": "gpu02", "x": "gpu02"}, TWO_NODES)
    assert reported(found["gpu02"]) == said
    assert cause in found["gpu02"].cause
    assert found["gpu01"].outcome is Outcome.PASSED


def test_transports_of_each_node_by_its_own_log() -> None:
    texts = {"gpu01": line("P2P/CUMEM", 0, 1, ""), "gpu02": line("SHM/direct/direct", 0, 1, "")}
    logs = {node: nccl_log.read(text) for node, text in texts.items()}
    found = validate_nodes(nodewise(), TASKS, TWO_NODES, IB, logs)
    assert found["gpu01"].outcome is Outcome.PASSED
    assert reported(found["gpu02"]) == "gpu02: ranks 0->1: SHM within a node / P2P or NVLS"


@pytest.mark.parametrize(
    ("size", "asked", "ranks", "fits"),
    [
        (100, 100, 2, True),
        (69, 100, 2, True),
        (68, 100, 2, False),
        (101, 100, 2, False),
        (85, 100, 0, True),
        (84, 100, 1, False),
    ],
)
def test_a_row_answers_a_size_that_is_rounded_down(size: int, asked: int, ranks: int, *, fits: bool) -> None:
    assert aligned(size, asked, ranks) is fits


def rows(*values: tuple[int, float, float | None]) -> tuple[NcclRow, ...]:
    halves = ((size, Half(time, 1.0, busbw, 0)) for size, time, busbw in values)
    return tuple(NcclRow(size, half, None) for size, half in halves)


def test_the_metrics_of_a_run() -> None:
    run = run_of(rows=rows((16, 9.0, 3.0), (8, 2.0, 1.0), (8, 4.0, 2.0), (8, 30.0, 30.0), (0, 1.0, None)))
    assert list(metrics(run)) == [
        Metric("busbw", 2.0, "GB/s", measured_part("all_reduce 8 B"), detail=True),
        Metric("latency", 4.0, "us", measured_part("all_reduce 8 B")),
        Metric("busbw", 3.0, "GB/s", measured_part("all_reduce 16 B"), detail=True),
    ]
