"""Does torch.distributed start, find its ranks and talk? Judged on what the payload ddp.py told. Pure."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import (
    NO_MEMORY,
    Action,
    Finding,
    Metric,
    NotChecked,
    check,
    revised,
    with_cause,
)
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.kit.mpi_errors import with_software_cause
from pytest_gpucluster.kit.payload_result import most_common

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.kit.payload_result import Fact, PayloadResult, PayloadTask

VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
HOOK_FIRST_PORT, HOOK_PORTS = 61000, 4536  # Enroot's 50-slurm-pytorch.sh: 61000 + job id % 4536
MAX_PORT = 65535
EXIT_PORT = 3  # the payload's
_SEE = "no node is fit for it: see ddp.framework, ddp.environment, ddp.master_addr, ddp.master_port, ddp.interface"
_FOLLOWS = re.compile(
    r"[Tt]imed? ?out|[Cc]onnection (?:closed|reset|refused|was)|[Bb]roken pipe|clients joined"
)


@dataclass(frozen=True)
class Setters:
    """Where a variable may come from: the environment's exports, the shell that runs pytest, a container."""

    exports: Mapping[str, str] = field(default_factory=dict)
    shell: Mapping[str, str] = field(default_factory=dict)
    contained: bool = False


def who_set(name: str, fact: Fact, setters: Setters) -> str:
    """Say who gave a task one of the five variables."""
    value = fact["given"].get(name)
    if value is None:
        return "this suite, from Slurm's variables"
    if setters.exports.get(name) == value:
        return "exports of the environment in the cluster file"
    if setters.shell.get(name) == value and not setters.contained:
        return "the shell that runs pytest"
    if fact.get("pytorch_version") and name in {"RANK", "LOCAL_RANK"}:
        return "Pyxis"
    hook_port = str(HOOK_FIRST_PORT + int(fact.get("job") or 0) % HOOK_PORTS)
    if fact.get("pytorch_version") and fact["given"].get("MASTER_PORT") == hook_port:
        return "Enroot's hook 50-slurm-pytorch.sh"
    return "the image or a hook of Enroot" if setters.contained else "a task prolog or the site's profile"


@check(
    "ddp.framework",
    cause="torch is not installed for this python on the node, or the environment differs between nodes",
    hint="PYTHON -c 'import torch; print(torch.__version__)' on the node; or name another python: ddp.environment, "
    "environments.NAME.python",
)
def framework(node_name: str, placed: PayloadResult) -> Judgement:
    """Judge that torch is there for every task of the node, in the version of the others."""
    told = placed.of_node(node_name, "place")
    if not told:
        yield Finding("tasks", placed.silence(node_name), "every task starts and tells what it finds")
        return
    lacking = next((fact for fact in told if fact["torch"]["error"]), None)
    if lacking is not None:
        yield Finding("package torch", lacking["torch"]["error"], "installed")
        return
    there = (fact for fact in placed.facts("place") if not fact["torch"]["error"])
    versions = {fact["node"]: fact["torch"]["version"] for fact in there}
    yield from norm(versions.items()).judge("package torch", versions[node_name])


@check(
    "ddp.environment",
    cause="an export, an image, a hook or a prolog sets rank variables that do not fit the step",
    hint="srun --ntasks-per-node=2 env | grep -E 'WORLD_SIZE|RANK|MASTER_'; unset what sets them",
)
def environment(
    node_name: str, placed: PayloadResult, setters: Setters, provided: Sequence[str] = ()
) -> Judgement:
    """Judge the five variables in each task: those that were given are exact, the promised ones are there."""
    told = placed.of_node(node_name, "place")
    if not told:
        yield NotChecked(f"the node's tasks told nothing: {placed.silence(node_name)}")
        return
    yield Metric("ddp_variables_given", len(told[0]["given"]), "of 5")
    locals_: dict[str, list[int]] = {}
    for fact in told:
        expected = fact["slurm"]
        for name in VARIABLES:
            part = f"{name} of task {fact['task']}"
            given = fact["given"].get(name)
            if given is None and name in provided:
                yield Finding(part, "not set", f"set by the site ({_how(name)})")
            elif (
                given is not None and name in {"WORLD_SIZE", "RANK", "LOCAL_RANK"} and given != expected[name]
            ):
                yield Finding(part, f"{given} (set by {who_set(name, fact, setters)})", expected[name])
        locals_.setdefault(fact["given"].get("LOCAL_RANK", expected["LOCAL_RANK"]), []).append(fact["task"])
    for local, tasks in sorted(locals_.items()):
        if len(tasks) > 1:
            yield Finding(
                f"LOCAL_RANK {local}", f"tasks {listed(tasks)}", "one task: two ranks take one device"
            )


@check(
    "ddp.master_addr",
    cause="the node resolves MASTER_ADDR otherwise than the fleet, or not at all",
    hint="getent hosts $MASTER_ADDR on every node; mend /etc/hosts or DNS",
)
def master_addr(node_name: str, placed: PayloadResult) -> Judgement:
    """Judge that the node's tasks have the fleet's MASTER_ADDR, and that it resolves as elsewhere."""
    told = placed.of_node(node_name, "place")
    if not told:
        yield NotChecked(f"the node's tasks told nothing: {placed.silence(node_name)}")
        return
    everyone = placed.facts("place")
    usual = norm(((fact["node"], _final(fact, "MASTER_ADDR")) for fact in everyone), "tasks")
    leader = next((fact["node"] for fact in everyone if fact["task"] == 0), "")
    others = (fact for fact in everyone if fact["node"] != leader and not fact["master"]["error"])
    seen = norm(((fact["node"], _addresses(fact)) for fact in others), "tasks of other nodes")
    hosts = {fact["host"] for fact in everyone}
    for fact in told:
        name, resolved = _final(fact, "MASTER_ADDR"), _addresses(fact)
        yield from usual.judge(f"MASTER_ADDR of task {fact['task']}", name)
        if fact["master"]["error"]:
            yield Finding(f"MASTER_ADDR {name}", f"does not resolve: {fact['master']['error']}", "resolves")
        elif node_name == leader:
            continue  # many sites map a node's own name to loopback there; ddp.master_port tries to listen on it
        elif len(hosts) > 1 and all(
            ipaddress.ip_address(ip.partition("%")[0]).is_loopback for ip in resolved.split()
        ):
            yield Finding(f"MASTER_ADDR {name}", f"{resolved}: this node itself", f"an address of {leader}")
        else:
            yield from seen.judge(f"MASTER_ADDR {name}", resolved, measured=f"resolves to {resolved}")


@check(
    "ddp.interface",
    cause="a variable names a network interface that the node does not have",
    hint="ip -br link on the node; set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to what every node has",
)
def interface(node_name: str, placed: PayloadResult) -> Judgement:
    """Judge that the interfaces named by GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME are there."""
    told = placed.of_node(node_name, "place")
    if not told:
        yield NotChecked(f"the node's tasks told nothing: {placed.silence(node_name)}")
        return
    for name, value in sorted(told[0]["asked"].items()):
        for wanted in _lacking(name, value, told[0]["interfaces"]):
            there = ", ".join(told[0]["interfaces"][:8])
            yield Finding(
                name, f"{wanted}: no such interface (there are {there})", "an interface of the node"
            )


@check(
    "ddp.master_port",
    cause="another process listens on rank 0's port, or MASTER_ADDR is not rank 0's node",
    hint="ss -ltnp on the node of rank 0; let MASTER_PORT come from the job id",
    each="all_placed",
)
def master_port(placed: PayloadResult) -> Judgement:
    """Judge that all tasks have one MASTER_PORT and that rank 0 can listen on it."""
    everyone = placed.facts("place")
    leader = next((fact for fact in everyone if fact["task"] == 0), None)
    if leader is None:
        yield NotChecked("task 0 told nothing")
        return
    port, at = _final(leader, "MASTER_PORT"), f"on {leader['node']}"
    if not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        yield Finding(f"MASTER_PORT {at}", port, "a number from 1 to 65535")
    elif leader["port"] == "taken":
        yield Finding(f"MASTER_PORT {port} {at}", "taken by another process", "free")
    elif leader["port"] == "not ours":
        addresses = ", ".join(leader["master"]["addresses"])
        yield Finding(
            f"MASTER_ADDR {_final(leader, 'MASTER_ADDR')}", f"{addresses}: not of {leader['node']}", "its own"
        )
    elif leader["port"] and not leader["master"]["error"]:
        yield Finding(f"MASTER_PORT {port} {at}", leader["port"], "rank 0 can listen there")
    for fact in everyone:
        if _final(fact, "MASTER_PORT") != port:
            where = f"MASTER_PORT of task {fact['task']} on {fact['node']}"
            yield Finding(where, _final(fact, "MASTER_PORT"), f"{port}, as rank 0 has")


def own_port_taken(told: PayloadResult) -> bool:
    """Whether the port that we drew from the step's id happens to be taken: another step draws another."""
    placed = any(f["port"] == "taken" and "MASTER_PORT" not in f["given"] for f in told.facts("place"))
    given = any("MASTER_PORT" in f["given"] for f in told.facts("place"))
    failed = any("port" in fact for fact in told.facts("failed"))
    return placed or (failed and not given)


def _not_hardware(verdict: Verdict, *_facts: object) -> Verdict:
    """Return the causes that are no fault of the node's hardware: memory that is taken already, software."""
    taken = with_cause(
        verdict,
        NO_MEMORY,
        "the memory of the GPU was taken before the rank came: a process of a former job, or past Slurm",
        "pytest -m gpu -k 'stray or idle_memory' says who holds it; nvidia-smi",
    )
    return with_software_cause(taken)


@revised(_not_hardware)
@check(
    "ddp.devices",
    cause="tasks share GPUs, or torch cannot use them: no --gpus-per-task, a GPU that is not there, memory that "
    "another process holds, a CPU build of torch, an old driver",
    hint="srun --ntasks-per-node=N --gpus-per-task=1 sh -c 'echo $CUDA_VISIBLE_DEVICES; nvidia-smi'; gres.conf; is "
    "torch a CUDA build (torch.version.cuda)?",
)
def devices(node_name: str, on_gpus: PayloadResult) -> Judgement:
    """Judge that every rank of the node took a GPU, and that no other rank of the fleet has the same."""
    if not on_gpus.tasks and not on_gpus.problem:
        yield NotChecked(_SEE)
        return
    mine = [task for task in on_gpus.tasks if task.node == node_name]
    owners: dict[str, list[tuple[int, str]]] = {}
    for fact in on_gpus.facts("loaded"):
        key = fact["device"]["uuid"] or f"{fact['node']} {fact['device']['bus']}"
        owners.setdefault(key, []).append((int(fact["rank"]), str(fact["node"])))
    loaded = {int(fact["rank"]) for fact in on_gpus.of_node(node_name, "loaded")}
    yield Metric(
        "ddp_devices",
        len({key for key, ranks in owners.items() if any(n == node_name for _, n in ranks)}),
        "GPUs",
    )
    if not mine:
        yield Finding("tasks", on_gpus.silence(node_name), "one task a GPU")
    for task in mine:
        if task.task not in loaded:
            yield Finding(f"rank {task.task}", why(task, on_gpus), "a GPU of its own")
    for key, ranks in sorted(owners.items()):
        if len(ranks) > 1 and any(where == node_name for _, where in ranks):
            users = ", ".join(f"{rank} ({where})" for rank, where in ranks)
            yield Finding(key if key.startswith("GPU-") else f"GPU {key}", f"ranks {users}", "one rank")


@check(
    "ddp.group",
    cause="ranks cannot reach rank 0 or each other, one never came, or the backend is not in this build of torch",
    hint="look at the first rank of the list; GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, firewall; NCCL_DEBUG=INFO",
    each="worked",
)
def group(worked: PayloadResult) -> Judgement:
    """Judge that all ranks form one process group."""
    if not worked.ntasks:
        yield NotChecked(_SEE)
        return
    joined = worked.by_rank("joined")
    if joined:
        yield Metric("ddp_init", max(float(fact["seconds"]) for fact in joined.values()), "s")
    if loaded := worked.facts("loaded"):
        yield Metric("ddp_import", max(float(fact["seconds"]) for fact in loaded), "s")
    yield from _absent(worked, "joined")
    for rank, fact in joined.items():
        if (fact["size"], fact["group_rank"]) != (worked.ntasks, rank):
            place = f"rank {fact['group_rank']} of {fact['size']}"
            yield Finding(_rank(rank, fact["node"]), place, f"rank {rank} of {worked.ntasks}")


@check(
    "ddp.all_reduce",
    cause="a rank, a link or a network card spoils or loses data, or a rank died",
    hint="each node alone, then pairs: the nccl suite names the part",
    each="worked",
)
def all_reduce(worked: PayloadResult) -> Judgement:
    """Judge the sum of all ranks' data, element by element, against its closed form."""
    if not worked.by_rank("joined"):
        yield NotChecked("no process group: see ddp.group" if worked.ntasks else _SEE)
        return
    reduced = worked.by_rank("reduced")
    if reduced:
        yield Metric("ddp_all_reduce", 1e3 * max(float(fact["seconds"]) for fact in reduced.values()), "ms")
    yield from _absent(worked, "reduced", among=worked.by_rank("joined"))
    for rank, fact in reduced.items():
        if fact["wrong"]:
            yield Finding(
                _rank(rank, fact["node"]), f"{fact['wrong']} of {fact['elements']} elements wrong", "none"
            )


@check(
    "ddp.training",
    cause="DistributedDataParallel does not keep the ranks together: gradients are lost or wrong, or a rank died",
    hint="run it with the other backend: gloo tells torch's part from NCCL's",
    each="worked",
)
def training(worked: PayloadResult) -> Judgement:
    """Judge that training on other data from other weights leaves equal, changed parameters on all ranks."""
    if not worked.by_rank("reduced"):
        yield NotChecked("no all-reduce: see ddp.group and ddp.all_reduce" if worked.ntasks else _SEE)
        return
    trained = worked.by_rank("trained")
    yield from _absent(worked, "trained", among=worked.by_rank("reduced"))
    for stage, what in (("synced", "after the start"), ("after", "after training")):
        usual = most_common(str(fact[stage]) for fact in trained.values())
        differing = [rank for rank, fact in trained.items() if fact[stage] != usual]
        for rank in differing:
            other = trained[rank]
            yield Finding(
                _rank(rank, other["node"]),
                f"parameters {what}: {other[stage]}",
                usual or "equal on all ranks",
            )
    for rank, fact in trained.items():
        if fact["after"] == fact["synced"]:
            yield Finding(_rank(rank, fact["node"]), "training changed no parameter", "other parameters")
        if not all(math.isfinite(float(loss)) for loss in fact["losses"]):
            yield Finding(_rank(rank, fact["node"]), f"losses {listed(fact['losses'])}", "finite numbers")
    if trained:
        yield Metric("ddp_training", max(float(fact["seconds"]) for fact in trained.values()), "s")
        yield from _absent(worked, "done", among=trained)


@check(
    "ddp.torchrun",
    cause="torchrun's agents do not find each other, or number their ranks wrongly",
    hint="the first rank or agent of the list; is the host name of the first node resolved everywhere?",
    each="under_torchrun",
)
def torchrun(launched: tuple[PayloadResult, int]) -> Judgement:
    """Judge ranks, local ranks and data with torchrun as the launcher: one agent a node, `per_node` ranks each."""
    told, per_node = launched
    if not told.ntasks:
        yield NotChecked(_SEE)
        return
    size = told.ntasks * per_node
    given = told.facts("given")
    ranks = [int(fact["rank"]) for fact in given]
    if sorted(ranks) != list(range(size)):
        yield from _agents(told)
        yield Finding("ranks", listed(sorted(ranks)), f"0 to {size - 1}, once each")
        if told.problem:
            yield Finding("step", told.problem, "ends by itself")
        return
    for node in told.nodes:
        locals_ = sorted(fact["given"]["LOCAL_RANK"] for fact in given if fact["node"] == node)
        if locals_ != sorted(str(number) for number in range(per_node)):
            yield Finding(f"LOCAL_RANK on {node}", listed(locals_), f"0 to {per_node - 1}, once each")
    for name, expected in (("WORLD_SIZE", str(size)), ("MASTER_ADDR", None), ("MASTER_PORT", None)):
        values = sorted({fact["given"][name] for fact in given})
        if len(values) > 1 or (expected and values != [expected]):
            yield Finding(name, listed(values), expected or "the same on all ranks")
    work = tuple(_work_of(told, size))
    yield from work
    if not work:  # an agent that fails after all ranks have done their work says nothing of the hardware
        yield from _agents(told, Action.MONITOR)
        if told.problem:
            yield Finding("step", told.problem, "ends by itself", Action.MONITOR)


def _agents(told: PayloadResult, action: Action | None = None) -> Judgement:
    for task in _causes_first(told.tasks, told):
        if task.rc != 0 and why(task, told) != told.problem:  # that is said once, of the step
            yield Finding(f"agent on {task.node}", why(task, told), "ends with 0", action)


def _work_of(told: PayloadResult, size: int) -> Judgement:
    for kind in ("joined", "reduced", "trained", "done"):
        lacking = sorted(set(range(size)) - set(told.by_rank(kind)))
        if lacking:
            failed = {int(fact["rank"]): fact for name in ("failed", "stuck") for fact in told.facts(name)}
            for rank in lacking:
                fact = failed.get(rank)
                said = (
                    f"{fact['phase']}: {fact.get('reason', 'did not end')}"
                    if fact
                    else "ended without a word"
                )
                yield Finding(f"rank {rank}", said, f"{kind}")
            return
    wrong = sum(int(fact["wrong"]) for fact in told.facts("reduced"))
    if wrong:
        yield Finding("all_reduce", f"{wrong} elements wrong", "none")
    after = {str(fact["after"]) for fact in told.facts("trained")}
    if len(after) > 1:
        yield Finding("parameters", f"{len(after)} different sets after training", "equal on all ranks")


@check(
    "ddp.lost_rank",
    cause="the survivors wait for the dead rank: no timeout of the process group, or its watchdog is off",
    hint="TORCH_NCCL_ASYNC_ERROR_HANDLING, the timeout of init_process_group, srun --kill-on-bad-exit=1",
    action=Action.MONITOR,
    each="lost",
)
def lost_rank(lost: PayloadResult, lost_rank_deadline: float) -> Judgement:
    """Judge that all ranks end, and not with 0, within `lost_rank_deadline` seconds after one was killed."""
    if not lost.ntasks:
        yield NotChecked(_SEE)
        return
    if not lost.facts("lost"):
        yield NotChecked(
            f"no rank was lost: {lost.problem or 'the process group was not formed: see ddp.group'}"
        )
        return
    noticed = lost.by_rank("noticed")
    if noticed:
        yield Metric("ddp_lost_rank", max(float(fact["seconds"]) for fact in noticed.values()), "s")
    stuck = lost.by_rank("stuck")
    for task in lost.tasks:
        if task.task in stuck or task.rc is None:
            yield Finding(_rank(task.task, task.node), f"still waits after {lost_rank_deadline:g} s", "ends")
        elif task.rc == 0:
            yield Finding(_rank(task.task, task.node), "exit status 0", "another than 0: a rank was lost")
    if not lost.problem and lost.rc == 0:
        yield Finding("step", "exit status 0", "another than 0: a rank was lost")


# -- what ranks did not get to --------------------------------------------------------------------------------------


STILL = (
    "had not ended when the step's time was up, nor told of a deadline of its own: it was stopped, or hangs"
)


def why(task: PayloadTask, told: PayloadResult) -> str:
    """Say why a task did not get further, in its own words where it has any."""
    for fact in task.facts:
        if fact.get(told.key) == "failed":
            return f"{fact['phase']}: {fact['reason']}"
        if fact.get(told.key) == "stuck":
            return f"{fact['phase']}: no end after {fact['seconds']:g} s"
    if task.signal is not None and told.problem:
        if any(other.signal is None for other in told.tasks):
            return STILL  # the others have ended by themselves
        return told.problem  # Slurm ended all tasks: whose death was the first is not known
    return task.ending() if task.rc != 0 or task.rc is None else "ended without a word"


def _absent(told: PayloadResult, kind: str, among: Mapping[int, object] | None = None) -> Judgement:
    """Yield a finding for each rank that did not get there: causes first, those that only felt it after them."""
    there = told.by_rank(kind)
    wanted = set(range(told.ntasks)) if among is None else set(among)
    lacking = wanted - set(there)
    known = {task.task: task for task in told.tasks}
    for task in _causes_first([known[rank] for rank in sorted(lacking) if rank in known], told):
        yield Finding(_rank(task.task, task.node), why(task, told), _EXPECTED[kind])
    for rank in sorted(lacking - set(known)):
        yield Finding(f"rank {rank}", told.problem or "did not start", _EXPECTED[kind])


_EXPECTED = {
    "joined": "joins the process group",
    "reduced": "ends the all-reduce",
    "trained": "ends the training step",
    "done": "leaves the group and ends",
}


def _causes_first(tasks: Sequence[PayloadTask], told: PayloadResult) -> list[PayloadTask]:
    def order(task: PayloadTask) -> tuple[int, int]:
        said = why(task, told)
        killed = task.signal is not None and not told.problem
        weight = 0 if killed else 2 if "no end after" in said else 1 if _FOLLOWS.search(said) else 0
        return weight, task.task

    return sorted(tasks, key=order)


def _final(fact: Fact, name: str) -> str:
    return str(fact["given"].get(name, fact["slurm"][name]))


def _addresses(fact: Fact) -> str:
    return " ".join(fact["master"]["addresses"])


def _how(name: str) -> str:
    return "Pyxis" if name in {"RANK", "LOCAL_RANK"} else "Enroot's hook 50-slurm-pytorch.sh"


def _lacking(variable: str, value: str, there: Sequence[str]) -> list[str]:
    """Return the names that fit no interface. NCCL's are prefixes, '=' makes them exact and '^' leaves out."""
    if variable != "NCCL_SOCKET_IFNAME":
        return [name for name in value.split(",") if name and name not in there]
    if value.startswith("^"):
        left_out = value[1:].split(",")
        rest = [name for name in there if name != "lo" and not name.startswith(tuple(left_out))]
        return [] if rest else [value]
    exact, names = value.startswith("="), value.lstrip("=").split(",")
    fits = [name for name in names if any(t == name or (not exact and t.startswith(name)) for t in there)]
    return [] if fits else names


def _rank(rank: int, node: object) -> str:
    return f"rank {rank} ({node})" if node else f"rank {rank}"


def folded(nodes: Sequence[str]) -> str:
    """Fold node names for a message."""
    return hostlist.fold(nodes) or "none"
