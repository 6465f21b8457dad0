"""Checks of ddp on plain facts: each wrong environment, rank and result has its own verdict."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, MONITOR, PASSED
from framework_helpers import Table, decided, told
from judged import parts
from payload_helpers import NCCL_LOG, connected, fabric
from suite_helpers import allocation_of, cluster_of, considered, machine

from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.ddp import checks as ddp
from pytest_gpucluster.suites.ddp import payload
from pytest_gpucluster.suites.ddp import steps as runner
from pytest_gpucluster.suites.ddp.config import DdpConfig

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.step import StepRequest


NODES = ("gpu01", "gpu02")


def placed(**changes: Any) -> PayloadResult:
    """Return four healthy tasks on two nodes; `task2={...}` changes the facts of one."""
    tasks = []
    for number in range(4):
        node = NODES[number // 2]
        slurm = {"WORLD_SIZE": "4", "RANK": f"{number}", "LOCAL_RANK": f"{number % 2}"}
        fact = {
            "ddp": "place",
            "rank": number,
            "task": number,
            "node": node,
            "host": node,
            "slurm": {**slurm, "MASTER_ADDR": "gpu01", "MASTER_PORT": "20100"},
            "given": {},
            "pytorch_version": "",
            "job": "7",
            "first": "gpu01",
            "port": "",
            **resolving("10.0.0.1"),
            "interfaces": ["lo", "eth0"],
            "interface_variables": {},
            "torch": {"version": "2.13.0", "error": ""},
            **changes.get(f"task{number}", {}),
        }
        tasks.append(PayloadTask(number, node, 0, None, (fact,)))
    return PayloadResult("ddp", NODES, 4, tuple(tasks))


def resolving(*addresses: str, error: str = "") -> dict[str, Any]:
    return {"master": {"addresses": [*addresses], "error": error}}


def worked(ends: dict[int, dict[str, Any]] | None = None, /, **changes: Any) -> PayloadResult:
    """Return four ranks that did all; `rank3=[...]` gives one other facts, `rank3={kind: values}` changes its own."""
    tasks = []
    for rank in range(4):
        node = NODES[rank // 2]
        common = {"rank": rank, "node": node}
        trained = {"own": f"{rank}", "synced": "a", "after": "b", "losses": [2.0, 1.0], "seconds": 1}
        facts: list[dict[str, Any]] = [
            {"ddp": "loaded", "seconds": 1.0, "device": {"uuid": f"GPU-{rank}", "bus": ""}},
            {"ddp": "joined", "size": 4, "group_rank": rank, "seconds": 0.1},
            {"ddp": "reduced", "elements": 10, "wrong": 0, "seconds": 0.01},
            {"ddp": "trained", **trained},
            {"ddp": "done"},
        ]
        own = changes.get(f"rank{rank}", {})
        if isinstance(own, list):
            facts = own
        else:
            kept = [fact for fact in facts if own.get(fact["ddp"], fact) is not None]
            facts = [{**fact, **own.get(fact["ddp"], {})} for fact in kept]
        task = PayloadTask(rank, node, 0, None, tuple({**common, **fact} for fact in facts))
        tasks.append(replace(task, **(ends or {}).get(rank, {})))
    return PayloadResult("ddp", NODES, 4, tuple(tasks))


def test_a_rank_that_was_stopped_is_distinguished_from_those_that_waited_for_it() -> None:
    """Recorded on 2 H200: SIGSTOP to rank 1 in the training step; rank 0 ended by its own deadline."""
    done = worked()
    first, second, *others = done.tasks
    stuck = {"ddp": "stuck", "rank": 0, "phase": "training step", "seconds": 20.0}
    waited = replace(first, rc=4, facts=(*first.facts[:3], stuck))
    stopped = replace(second, rc=137, signal=9, facts=second.facts[:3])
    reported = replace(done, tasks=(waited, stopped, *others), problem="srun: cancelled after 1 min")
    verdict = ddp.training(reported)
    assert told(verdict, codes=True) == "monitor: gpu01 rank 1 hung; gpu01 rank 0 stuck [20, 1]"


def _mixed(other: dict[str, Any]) -> PayloadResult:
    reported = placed(task2=other, task3=other)
    more = (replace(t, node="gpu03", facts=({**t.facts[0], "node": "gpu03"},)) for t in reported.tasks[:2])
    return replace(reported, tasks=(*reported.tasks, *more))


BUSY = "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"


@pytest.mark.parametrize(
    ("reason", "end", "code", "cause"),
    [
        ("CUDA error: out of memory", MONITOR, "out_of_memory", "another process uses the memory"),
        ("torch 2.11.0+cu130 sees no GPU: none is known", CONFIGURE, "too_few_gpus", "tasks share GPUs"),
        (f"{BUSY}; limits of this process: 40 open files", MONITOR, "low_limits", "low limits"),
        ("torch sees no GPU: CUDA driver is a stub library", MONITOR, "driver_library", "driver library"),
        ("torch sees no GPU: it is a CPU build", MONITOR, "cpu_build_of_torch", "CPU build of torch"),
        (BUSY, CONFIGURE, "failed", "tasks share GPUs"),
        ("CUDA error: invalid device ordinal", CONFIGURE, "too_few_gpus", "tasks share GPUs"),
    ],
)
def test_memory_in_use_and_software_drain_nobody(reason: str, end: str, code: str, cause: str) -> None:
    """Recorded on H200s: the check demanded a drain for a low ulimit and for a stub of libcuda."""
    # of the payload; what torch printed comes first
    own = code if code == "cpu_build_of_torch" else "too_few_gpus" if "sees no GPU" in reason else ""
    limited = code == "low_limits"
    fact = {"ddp": "failed", "phase": "take a GPU", "reason": reason, "code": own, "low_limits": limited}
    verdict = ddp.devices("gpu02", worked(rank2=[fact]))
    assert told(verdict, codes=True).startswith(f"{end}: rank 2 {code} [")
    assert verdict.cause.startswith(cause)


@pytest.mark.parametrize(("took", "problem", "timeout"), [(15, "", 300), (120, "", 480), (300, "hung", 300)])
def test_on_a_slow_machine_torchrun_has_more_time(
    monkeypatch: pytest.MonkeyPatch, took: float, problem: str, timeout: float
) -> None:
    asked: list[StepRequest] = []

    def attempt(steps: runner.Ddp, request: StepRequest) -> PayloadResult:
        asked.append(request)
        return steps.nothing()

    monkeypatch.setattr(runner.Ddp, "attempt", attempt)
    steps = runner.Ddp(allocation_of(), cluster_of(simulated=True), {}, DdpConfig(), NODES)
    monkeypatch.setattr(runner.Ddp, "fit_nodes", NODES)
    steps.done["work", "gloo"] = PayloadResult("ddp", NODES, 4, seconds=took, problem=problem)
    assert steps.torchrun.ntasks == 0
    assert asked[0].timeout == timeout
    assert float(asked[0].argv[asked[0].argv.index("PAYLOAD") - 1]) == timeout / 3


def test_a_port_that_is_taken_is_seen() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        assert payload.try_port(["127.0.0.1"], port) == "taken"
    assert payload.try_port(["127.0.0.1"], port) == ""
    assert payload.try_port(["192.0.2.1"], port) == "not local"


LOOP = resolving("127.0.1.1")
LOOPS = ("gpu02", placed(task2=LOOP, task3=LOOP))

OTHER = {"given": {"MASTER_ADDR": "gpu02"}}
NOTHING, SILENT = PayloadResult("ddp", (), 0), PayloadResult("ddp", NODES, 2)


def using(**variables: str) -> dict[str, Any]:
    return {"interface_variables": variables}


def everywhere(**fact: Any) -> PayloadResult:
    return placed(**{f"task{number}": fact for number in range(4)})


def trained_as(rank: int, **changed: Any) -> list[dict[str, Any]]:
    """Return the facts of a rank that trained with another result."""
    trained = {"ddp": "trained", "synced": "a", "after": "b", "losses": [1.0], "seconds": 1, **changed}
    return [*first_facts(rank, 3), trained, {"ddp": "done"}]


def first_facts(rank: int, count: int) -> list[dict[str, Any]]:
    return [dict(fact) for fact in worked().tasks[rank].facts[:count]]


def agents(
    drop: str = "",
    more: dict[str, Any] | None = None,
    first: dict[str, str] | None = None,
    ranks: tuple[int, ...] = (0, 1, 2, 3),
    **change: Any,
) -> PayloadResult:
    """Return two torchrun agents with two ranks each; the rest changes what rank 0 reported."""
    tasks = []
    for agent, node in enumerate(NODES):
        facts: list[dict[str, Any]] = []
        for local in range(2):
            rank = ranks[2 * agent + local]
            given = {"LOCAL_RANK": str(local), "WORLD_SIZE": "4", "MASTER_ADDR": "gpu01", "MASTER_PORT": "1"}
            own = first or {} if rank == 0 else {}
            reported: dict[str, dict[str, Any]] = {
                "given": {"given": {**given, **own}},
                "joined": {},
                "reduced": {"wrong": 0},
                "done": {},
                "trained": {"synced": "a", "after": "b", "losses": [1.0]},
            }
            for kind, fact in reported.items():
                if rank or kind != drop:
                    extra = change.get(kind, {}) if rank == 0 else {}
                    facts.append({"ddp": kind, "rank": rank, "node": node, **fact, **extra})
        if more and not agent:
            facts.append({"rank": 0, "node": node, **more})
        tasks.append(PayloadTask(agent, node, 0, None, tuple(facts)))
    return PayloadResult("ddp", NODES, 2, tuple(tasks))


LOST = {"ddp": "lost", "rank": 1, "node": "gpu02"}


def losing(rc: int = 1, problem: str = "", dead: dict[str, Any] | None = None, **alive: Any) -> PayloadResult:
    """Return two ranks of which the second was killed, and the first noticed."""
    noticed = {"ddp": "noticed", "rank": 0, "node": "gpu01", "seconds": 2.5}
    killed = replace(PayloadTask(1, "gpu02", 137, 9, (LOST, LOST)), **(dead or {}))
    waits = replace(PayloadTask(0, "gpu01", 1, None, (noticed,)), **alive)
    tasks = (waits, killed)
    return PayloadResult("ddp", NODES, 2, tasks, problem, rc=rc)


def given(**variables: str) -> dict[str, Any]:
    return {"given": variables}


def port(number: str) -> PayloadResult:
    return everywhere(given={"MASTER_PORT": number})


def on_gpu(uuid: str, bus: str = "") -> list[dict[str, Any]]:
    return [{"ddp": "loaded", "seconds": 1.0, "device": {"uuid": uuid, "bus": bus}}]


def joined(size: int, rank: int, seconds: float) -> list[dict[str, Any]]:
    return [{"ddp": "joined", "size": size, "group_rank": rank, "seconds": seconds}]


def ended(*which: int, problem: str = "", **how: Any) -> PayloadResult:
    """Return agents of which these ended otherwise."""
    whole = agents()
    tasks = tuple(replace(task, **how) if task.task in which else task for task in whole.tasks)
    return replace(whole, problem=problem, tasks=tasks)


HOSTS = {"task2": resolving("127.0.1.1", "::1"), "task3": resolving("127.0.1.1", "10.0.0.1")}
NO_NAME, ABSENT = resolving(error="unknown"), {"torch": {"version": "", "error": "No module"}}
BOTH = {**using(NCCL_SOCKET_IFNAME="ib0,ib1", GLOO_SOCKET_IFNAME="eth0"), "interfaces": [f"e{n}" for n in range(9)]}
ONE_BUS = {f"rank{n}": on_gpu("", "0000:1b") for n in (0, 2, 3)}
WRONG = [*first_facts(1, 2), {"ddp": "reduced", "elements": 10, "wrong": 3, "seconds": 0.5}]
UNTOLD, ONE = ended(0, 1, problem="late", rc=None, signal=9, facts=()), "gpu01 rank 1"
NO_NUMBER = trained_as(1, after="a", losses=[float("nan"), 1.0])
FAILED = {"ddp": "failed", "phase": "train", "reason": "NaN"}
STUCK = {"ddp": "stuck", "phase": "reduce", "seconds": 3}
GLOO, NCCL, HOST = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MASTER_ADDR gpu01"
OLD_TORCH, SETTERS = {"torch": {"version": "1.13.0", "error": ""}}, ddp.Setters()
STARTS = [{"ddp": "loaded", "seconds": 3, "device": {}}]
OF_THREE = replace(worked(), tasks=worked().tasks[1:], problem="timed out")
CASES: Table = {
    ddp.framework: [
        ("passed", "gpu01", placed()),
        ("configure: python no_task", "gpu09", placed()),
        ("configure: package torch not_installed", "gpu02", placed(task3=ABSENT)),
        ("configure: package torch differs_from_peers [1.13, 2.13, 2, 3]", "gpu02", _mixed(OLD_TORCH)),
    ],
    ddp.environment: [
        ("configure: task 3 RANK not_of_slurm [2, 3, 0]", "gpu02", placed(task3=given(RANK="2")), SETTERS),
        ("passed [0]", "gpu01", placed(), SETTERS),
        (
            "configure: task 0 LOCAL_RANK not_of_slurm; LOCAL_RANK shared_gpu [1, 0, 1, 0, 1, 1]",
            *("gpu01", placed(task0=given(LOCAL_RANK="1")), ddp.Setters({"LOCAL_RANK": "1"})),
        ),
    ],
    ddp.master_addr: [
        ("configure: MASTER_ADDR gpu01; MASTER_ADDR gpu01 loopback [127, 127]", *LOOPS),
        ("passed", "gpu02", placed()),
        ("configure: MASTER_ADDR gpu01 unresolved", "gpu02", placed(task2=NO_NAME)),
        (
            f"configure: {HOST} loopback; {HOST} no_majority [127, 1, 127, 10, 127, 1, 127, 10]",
            *("gpu02", placed(**HOSTS)),
        ),
        ("passed", "gpu02", everywhere(host="one", **resolving("127.0.0.1"))),
        ("configure: task 3 MASTER_ADDR differs_from_peers [3, 4]", "gpu02", placed(task3=OTHER)),
    ],
    ddp.master_port: [
        ("passed", port("1")),
        ("not checked [0]", replace(placed(), tasks=placed().tasks[1:])),
        ("configure: gpu01 MASTER_PORT not_a_port [0, 1, 65535]", port("0")),
        ("configure: gpu01 MASTER_PORT not_a_port [65536, 1, 65535]", port("65536")),
        ("configure: gpu01 MASTER_PORT port_taken [20100]", placed(task0={"port": "taken"})),
        ("configure: MASTER_ADDR not_local [10]", placed(task0={"port": "not local"})),
        ("configure: gpu01 MASTER_PORT cannot_listen [20100, 0]", placed(task0={"port": "Permission"})),
    ],
    ddp.interface: [
        ("configure: NCCL_SOCKET_IFNAME absent", "gpu01", placed(task0=using(NCCL_SOCKET_IFNAME="=eth"))),
        (f"configure: {GLOO}; {NCCL}; {NCCL} absent", "gpu01", placed(task0=BOTH)),
        ("configure: NCCL_SOCKET_IFNAME absent", "gpu01", placed(task0=using(NCCL_SOCKET_IFNAME="^eth"))),
        ("passed", "gpu01", placed(task0=using(NCCL_SOCKET_IFNAME="^ib"))),
        ("passed", "gpu01", placed(task0=using(NCCL_SOCKET_IFNAME="=eth0,ib0"))),
    ],
    ddp.devices: [
        ("configure: task no_task [0]", "gpu09", worked()),
        ("passed [2]", "gpu01", worked()),
        ("configure: GPU-0 shared_gpu [0, 2, 2]", "gpu02", worked(rank2=on_gpu("GPU-0"))),
        ("configure: gpu02 GPU (0000:1b) shared_gpu [2, 3, 1]", "gpu02", worked(**ONE_BUS)),
        ("configure: rank 2 no_message [1]", "gpu02", worked(rank2=[])),
    ],
    ddp.group: [
        ("passed [0.1, 1]", worked()),
        ("monitor: gpu02 rank 3 other_group [2, 4, 3, 4, 0.1, 1]", worked(rank3=joined(4, 2, 0.1))),
        ("monitor: gpu02 rank 3 no_message [0.1, 3]", worked(rank3=STARTS)),
        ("monitor: rank 0 timed_out [0.1, 1]", OF_THREE),
        ("monitor: rank 0; rank 1 not_started", SILENT),
    ],
    ddp.all_reduce: [
        ("passed [10]", worked()),
        ("configure: gpu01 rank 1 wrong_data [3, 10, 500]", worked(rank1=WRONG)),
        ("configure: gpu01 rank 1 no_message [10]", worked(rank1=first_facts(1, 2))),
    ],
    ddp.training: [
        ("monitor: gpu01 rank 1 no_message [1]", worked(rank1=first_facts(1, 3))),
        ("monitor: gpu01 rank 1 unequal_synced [5]", worked(rank1=trained_as(1, synced="z", seconds=5))),
        ("passed [1]", worked()),
        (f"monitor: {ONE} unequal_after; {ONE} unchanged; {ONE} not_finite [1, 1]", worked(rank1=NO_NUMBER)),
    ],
    ddp.torchrun: [
        ("monitor: rank 0 no_message", (agents(drop="joined"), 2)),
        ("monitor: rank 0 failed", (agents(drop="trained", more=FAILED), 2)),
        ("passed", (agents(), 2)),
        ("monitor: ranks other_ranks [0, 1, 2, 3, 0, 5]", (agents(), 3)),
        ("monitor: gpu01 LOCAL_RANK other_ranks [1, 1, 0, 1]", (agents(first={"LOCAL_RANK": "1"}), 2)),
        ("monitor: WORLD_SIZE other_values [4, 8, 4]", (agents(first={"WORLD_SIZE": "8"}), 2)),
        ("monitor: ranks other_ranks; step timed_out [0, 3]", (UNTOLD, 2)),
        # of ranks that are done: it is reported and drains nobody
        ("monitor: gpu02 agent exit_status [1, 0]", (ended(1, rc=1, error="store is gone"), 2)),
        ("monitor: step timed_out", (ended(0, 1, problem="timed out", rc=137, signal=9), 2)),
        ("monitor: rank 0 stuck [3]", (agents(drop="reduced", more=STUCK), 2)),
        ("monitor: all ranks wrong_data [4]", (agents(reduced={"wrong": 4}), 2)),
        ("monitor: all ranks unequal_after [2]", (agents(trained={"after": "c"}), 2)),
    ],
    ddp.lost_rank: [
        ("not checked", PayloadResult("ddp", NODES, 2, problem="refused"), 30),
        ("monitor: step ended_with_0 [0, 0, 2.5]", losing(rc=0), 30),
        ("monitor: gpu02 rank 1 ended_with_0 [0, 0, 2.5]", losing(dead={"rc": 0}), 30),
        ("monitor: gpu02 rank 1 waits [30, 2.5]", losing(dead={"rc": None}), 30),
        ("monitor: gpu02 rank 1 waits [7.5, 2.5]", losing(dead={"facts": (LOST, {**LOST, **STUCK})}), 7.5),
    ],
}
test_each_case_has_its_verdict = decided(CASES)


def test_who_set_a_variable_of_a_job() -> None:
    for variable, value, version, job, by in (
        ("WORLD_SIZE", "9", "2.1", "7", "exports or pass_env of the environment in the cluster file"),
        ("MASTER_PORT", "61007", "2.1", "7", "Enroot's hook 50-slurm-pytorch.sh"),
        ("MASTER_PORT", "65535", "2.1", "4535", "Enroot's hook 50-slurm-pytorch.sh"),
        ("MASTER_PORT", "61001", "2.1", None, "the image or a hook of Enroot"),
        ("MASTER_ADDR", None, "2.1", "7", "this suite, from Slurm's variables"),
    ):
        given = {} if value is None else {variable: value}
        setters = ddp.Setters({"WORLD_SIZE": "9"}, contained=not by.startswith("a task"))
        assert ddp.who_set(variable, {"given": given, "pytorch_version": version, "job": job}, setters) == by


def test_a_port_that_was_drawn_and_is_taken() -> None:
    def taken(*facts: dict[str, Any]) -> bool:
        task = PayloadTask(0, "n", 3, None, tuple({"ddp": "place", "port": "", "given": {}} | f for f in facts))
        return ddp.own_port_taken(PayloadResult("ddp", ("n",), 1, (task,)))

    failed = {"ddp": "failed", "port": 1}
    assert taken({"port": "taken"})
    assert not taken({"port": "taken", "given": {"MASTER_PORT": "1"}})
    assert not taken({})
    assert taken({}, failed)


def test_causes_come_before_what_follows_from_them() -> None:
    def failed(number: int, **fact: Any) -> PayloadTask:
        return PayloadTask(number, "n", 1, None, ({"rank": number, "phase": "init", **fact},))

    follows = (
        *("timeout", "Timeout", "timed out", "time out", "Timedout", "3 of 4 clients joined", "broken pipe"),
        *("connection closed", "Connection reset", "Connection refused", "connection was", "Broken pipe"),
    )
    tasks = (
        failed(0, ddp="stuck", seconds=60.0),
        *(failed(number, ddp="failed", reason=reason) for number, reason in enumerate(follows, 1)),
        failed(13, ddp="failed", reason="no CUDA"),
        PayloadTask(14, "n", None, 9, ()),
    )
    ranks = [f"n rank {number}" for number in (13, 14, *range(1, 13), 0)]
    assert parts(ddp.group(PayloadResult("ddp", ("n",), 15, tasks))) == ranks


def every_rank(**kinds: Any) -> dict[str, Any]:
    return {f"rank{rank}": kinds for rank in range(4)}


def over(between: str) -> PayloadResult:
    return replace(worked(), connections=connected(between))


TORCH = "https://docs.pytorch.org/docs/stable/distributed.html"
ELASTIC = "https://docs.pytorch.org/docs/stable/elastic/run.html"
HOOK = "https://github.com/pytorch/pytorch/issues/67616"
SRUN = "https://slurm.schedmd.com/srun.html"
PLUGIN, EFA = "https://github.com/Mellanox/nccl-rdma-sharp-plugins", "https://github.com/aws/aws-ofi-nccl"
RAISED = {"rc": 1, "error": "RuntimeError: Connection closed by peer"}
LATE = worked(rank2={"loaded": {"seconds": 124.0}})
MISSING = worked({3: RAISED}, rank3={"joined": None})
TWO_GROUPS = worked(**every_rank(joined={"size": 2}))
RISES = worked(**every_rank(trained={"losses": [1.0, 4.0]}))
OWN_DATA = worked(rank1={"trained": {"losses": [0.1, 0.05]}})
WARNS = ended(1, error="failed to shutdown the rendezvous: RendezvousConnectionError")
NOTHING_CHANGED, INFINITE = agents(trained={"after": "a"}), agents(trained={"losses": [float("inf")]})
HANGS = {"ddp": "stuck", "rank": 0, "node": "gpu01", "phase": "all_reduce", "seconds": 60}
KILLED = losing(137, "exceeded the time limit of 70 s", signal=9, facts=())
IB, LIBFABRIC = fabric("NET/IB/GDRDMA"), fabric("NET/Libfabric/GDRDMA")
SRUN_ENDS = replace(losing(137), tasks=tuple(replace(it, rc=143) for it in losing(137).tasks))
ENDS_WELL = replace(losing(137), tasks=(replace(losing().tasks[0], rc=0), losing().tasks[1]))
lost, transport = ddp.lost_rank, ddp.transport
COUNTER_EXAMPLES = (
    machine(ddp.group, "one rank imports torch for two minutes", TORCH, PASSED, LATE),
    machine(ddp.group, "a task ends with an error after its work", TORCH, PASSED, worked({1: RAISED})),
    machine(ddp.group, "a rank is missing", TORCH, MONITOR, MISSING, sick=True),
    machine(ddp.group, "two groups of two ranks", TORCH, MONITOR, TWO_GROUPS, sick=True),
    machine(ddp.training, "the loss rises in one step", TORCH, PASSED, RISES),
    machine(ddp.training, "losses of the ranks differ: their data do", TORCH, PASSED, OWN_DATA),
    machine(ddp.training, "a loss is no number", TORCH, MONITOR, worked(rank1=NO_NUMBER), sick=True),
    machine(ddp.torchrun, "ranks in another order", ELASTIC, PASSED, (agents(ranks=(2, 3, 0, 1)), 2)),
    machine(ddp.torchrun, "an agent warns of the rendezvous at its end", HOOK, PASSED, (WARNS, 2)),
    machine(ddp.torchrun, "training changed nothing", ELASTIC, MONITOR, (NOTHING_CHANGED, 2), sick=True),
    machine(ddp.torchrun, "a loss is no number", ELASTIC, MONITOR, (INFINITE, 2), sick=True),
    machine(lost, "srun ends the others", SRUN, PASSED, SRUN_ENDS, 60.0),
    machine(lost, "the others raise an error", TORCH, PASSED, losing(137, error=RAISED["error"]), 60.0),
    machine(lost, "NCCL's watchdog aborts them", TORCH, PASSED, losing(137, signal=6), 60.0),
    machine(lost, "one ends with 0", SRUN, MONITOR, ENDS_WELL, 60.0, sick=True),
    machine(lost, "a rank waits", TORCH, MONITOR, losing(137, signal=9, facts=(HANGS,)), 60.0, sick=True),
    machine(lost, "one hung until Slurm ended the step", SRUN, MONITOR, KILLED, 60.0, sick=True),
    machine(transport, "NVIDIA's plugin", PLUGIN, PASSED, "gpu01", over("NET/IBext_v8/0/GDRDMA"), IB),
    machine(transport, "EFA", EFA, PASSED, "gpu01", over("NET/Libfabric/0/GDRDMA"), LIBFABRIC),
    machine(transport, "NVLink between nodes", NCCL_LOG, PASSED, "gpu01", over("P2P/MNNVL"), IB),
    machine(transport, "GPUDirect by PCIe", NCCL_LOG, PASSED, "gpu01", over("NET/IB/0/GDRDMA(PCI)"), IB),
    machine(transport, "sockets", NCCL_LOG, MONITOR, "gpu01", over("NET/Socket/0"), IB, sick=True),
    machine(transport, "no GPUDirect", NCCL_LOG, MONITOR, "gpu01", over("NET/IB/0"), IB, sick=True),
)
test_runs_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)
