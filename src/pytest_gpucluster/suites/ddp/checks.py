"""torch.distributed starts, finds its ranks and computes correct results. Pure; the facts are those of payload.py."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, check, revised, with_cause
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.kit.framework.between import judge_between
from pytest_gpucluster.kit.framework.payload_result import (
    NO_MESSAGE,
    between_check,
    framework_check,
    judge_package,
    rank_part,
    transport_check,
    unequal,
    untrained,
    wrong_data,
)
from pytest_gpucluster.kit.mpi.mpi_errors import with_software_cause
from pytest_gpucluster.kit.nccl.nccl_transport import judge_transport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.kit.framework.between import Reach
    from pytest_gpucluster.kit.framework.payload_result import Fact, PayloadResult

VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
HOOK_FIRST_PORT, HOOK_PORTS = 61000, 4536  # Enroot's 50-slurm-pytorch.sh: 61000 + job id % 4536
MAX_PORT = 65535
_SEE = "no node can take part: see ddp.framework, ddp.environment, ddp.master_addr, ddp.master_port, ddp.interface"


@dataclass(frozen=True)
class Setters:
    """Possible origins of a variable: exports and pass_env of the environment, a container."""

    exports: Mapping[str, str] = field(default_factory=dict)
    contained: bool = False


def who_set(name: str, fact: Fact, setters: Setters) -> str:
    """Return the program or setting that set one of the five variables of a task."""
    value = fact["given"].get(name)
    if value is None:
        return "this suite, from Slurm's variables"
    if setters.exports.get(name) == value:
        return "exports or pass_env of the environment in the cluster file"
    if fact.get("pytorch_version") and name in {"RANK", "LOCAL_RANK"}:
        return "Pyxis"
    hook_port = str(HOOK_FIRST_PORT + int(fact.get("job") or 0) % HOOK_PORTS)
    if fact.get("pytorch_version") and fact["given"].get("MASTER_PORT") == hook_port:
        return "Enroot's hook 50-slurm-pytorch.sh"
    return "the image or a hook of Enroot" if setters.contained else "a task prolog or the site's profile"


@framework_check("ddp.framework", "torch")
def framework(node_name: str, placement: PayloadResult, peers: Collection[str] | None = None) -> Judgement:
    """Judge that every task of the node has torch, in the version of the other nodes of its kind (`peers`)."""
    yield from judge_package(node_name, placement, "torch", peers, kind="place")


@check(
    "ddp.environment",
    cause="an export, an image, a hook or a prolog sets rank variables that differ from Slurm's",
    hint="srun --ntasks-per-node=2 env | grep -E 'WORLD_SIZE|RANK|MASTER_'; remove the setting that the failure names",
    action=Action.CONFIGURE,
)
def environment(node_name: str, placement: PayloadResult, setters: Setters) -> Judgement:
    """Judge the five variables of each task: those that are set are right."""
    tasks = _placed(placement, node_name)
    yield Metric("ddp_variables_given", len(tasks[0]["given"]), "of 5")
    locals_: dict[str, list[int]] = {}
    for fact in tasks:
        expected = fact["slurm"]
        for name in VARIABLES:
            given = fact["given"].get(name)
            if given is not None and name in {"WORLD_SIZE", "RANK", "LOCAL_RANK"} and given != expected[name]:
                measured = f"{given} (set by {who_set(name, fact, setters)})"
                yield Finding(_of_task(name, fact), measured, expected[name], code="not_of_slurm")
        locals_.setdefault(fact["given"].get("LOCAL_RANK", expected["LOCAL_RANK"]), []).append(fact["task"])
    for local, sharing in sorted(locals_.items()):
        if len(sharing) > 1:
            measured = f"{local} in tasks {listed(sharing)}: two ranks would use one device"
            yield Finding(named("setting", "LOCAL_RANK"), measured, "one task", code="shared_gpu")


@check(
    "ddp.master_addr",
    cause="the node resolves MASTER_ADDR differently from the other nodes, or not at all",
    hint="getent hosts $MASTER_ADDR on every node; correct /etc/hosts or DNS",
    action=Action.CONFIGURE,
)
def master_addr(node_name: str, placement: PayloadResult) -> Judgement:
    """Judge that the tasks of the node have the MASTER_ADDR of the others, and that it resolves as on other nodes."""
    tasks = _placed(placement, node_name)
    everyone = placement.facts("place")
    usual = norm(((fact["node"], _final(fact, "MASTER_ADDR")) for fact in everyone), "tasks")
    leader = next((fact["node"] for fact in everyone if fact["task"] == 0), "")
    others = (fact for fact in everyone if fact["node"] != leader and not fact["master"]["error"])
    seen = norm(((fact["node"], _addresses(fact)) for fact in others), "tasks of other nodes")
    hosts = {fact["host"] for fact in everyone}
    for fact in tasks:
        name, resolved = _final(fact, "MASTER_ADDR"), _addresses(fact)
        yield from usual.judge_result(_of_task("MASTER_ADDR", fact), name)
        part = named("setting", f"MASTER_ADDR {name}")
        if fact["master"]["error"]:
            measured = Quote(f"does not resolve: {fact['master']['error']}")
            yield Finding(part, measured, "resolves", code="unresolved")
        elif node_name == leader:
            continue  # many sites map the name of a node to loopback there; ddp.master_port listens on it
        elif len(hosts) > 1 and all(ipaddress.ip_address(ip.partition("%")[0]).is_loopback for ip in resolved.split()):
            yield Finding(part, f"{resolved}: this node itself", f"an address of {leader}", code="loopback")
        else:
            yield from seen.judge_result(part, resolved, measured=f"resolves to {resolved}")


@check(
    "ddp.interface",
    cause="a variable names a network interface that the node does not have",
    hint="ip -br link on the node; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME must name interfaces of every node",
    action=Action.CONFIGURE,
)
def interface(node_name: str, placement: PayloadResult) -> Judgement:
    """Judge that the node has the interfaces that GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name."""
    tasks = _placed(placement, node_name)
    interfaces = tasks[0]["interfaces"]
    for variable, value in sorted(tasks[0]["interface_variables"].items()):
        for name in _lacking(variable, value, interfaces):
            measured = f"{name}: no such interface (the node has {listed(interfaces[:8])})"
            yield Finding(named("setting", variable), measured, "an interface of the node", code="absent")


@check(
    "ddp.master_port",
    cause="another process listens on the port of rank 0, or MASTER_ADDR is not the node of rank 0",
    hint="ss -ltnp on the node of rank 0; derive MASTER_PORT from the job id",
    action=Action.CONFIGURE,
    each="placements",
)
def master_port(placement: PayloadResult) -> Judgement:
    """Judge that all tasks have one MASTER_PORT and that rank 0 can listen on it."""
    everyone = placement.facts("place")
    leader = next((fact for fact in everyone if fact["task"] == 0), None)
    if leader is None:
        raise NotAvailable("task 0 reported nothing")
    port, part = _final(leader, "MASTER_PORT"), _on_node("MASTER_PORT", leader["node"])
    if not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        yield Finding(part, Quote(port), "a number from 1 to 65535", code="not_a_port")
    elif leader["port"] == "taken":
        yield Finding(part, f"port {port} is taken by another process", "free", code="port_taken")
    elif leader["port"] == "not local":
        name, addresses = _final(leader, "MASTER_ADDR"), ", ".join(leader["master"]["addresses"])
        measured = f"{name} ({addresses}): not of {leader['node']}"
        yield Finding(named("setting", "MASTER_ADDR"), measured, "an address of the node", code="not_local")
    elif leader["port"] and not leader["master"]["error"]:
        found = Quote(f"port {port}: {leader['port']}")
        yield Finding(part, found, "rank 0 can listen there", code="cannot_listen")
    for fact in everyone:
        if _final(fact, "MASTER_PORT") != port:
            other = Part("setting", name="MASTER_PORT", of=rank_part(int(fact["task"]), fact["node"]))
            measured = _final(fact, "MASTER_PORT")
            yield Finding(other, measured, f"{port}, as on rank 0", code="not_of_rank_0")


def _placed(placement: PayloadResult, node: str) -> list[Fact]:
    """Return the facts of the tasks of a node; NotAvailable without any."""
    if tasks := placement.of_node(node, "place"):
        return tasks
    raise NotAvailable(f"the tasks of the node reported nothing: {placement.silence(node)}")


def own_port_taken(result: PayloadResult) -> bool:
    """Return whether the port that the payload derived from the step id is in use; a new step derives another."""
    tasks = result.facts("place")
    taken = any(fact["port"] == "taken" and "MASTER_PORT" not in fact["given"] for fact in tasks)
    given = any("MASTER_PORT" in fact["given"] for fact in tasks)
    failed = any("port" in fact for fact in result.facts("failed"))
    return taken or (failed and not given)


def _on_node(variable: str, node: str) -> Part:
    return Part("setting", name=variable, of=Part("node", name=node))


def _of_task(variable: str, fact: Fact) -> Part:
    return Part("setting", name=variable, of=Part("task", int(fact["task"])))


def _not_hardware(verdict: Verdict, *_facts: object) -> Verdict:
    """Return the verdict with a cause outside the node's hardware, if it has one: memory in use, software."""
    memory_in_use = with_cause(
        verdict,
        "out_of_memory",
        "another process uses the memory of the GPU: of an earlier job, or started without Slurm",
        "pytest -m gpu -k 'stray or idle_memory' names the process; nvidia-smi",
    )
    return with_software_cause(memory_in_use)


@revised(_not_hardware)
@check(
    "ddp.devices",
    cause="tasks share GPUs, or torch cannot use them: no --gpus-per-task, a missing GPU, memory that another "
    "process uses, a CPU build of torch, an old driver",
    hint="srun --ntasks-per-node=2 --gpus-per-task=1 sh -c 'echo $CUDA_VISIBLE_DEVICES; nvidia-smi'; gres.conf; is "
    "torch a CUDA build (torch.version.cuda)?",
    action=Action.CONFIGURE,
)
def devices(node_name: str, nccl_work: PayloadResult) -> Judgement:
    """Judge that every rank of the node has a GPU that no other rank uses."""
    if not nccl_work.tasks and not nccl_work.problem:
        raise NotAvailable(_SEE)
    mine = [task for task in nccl_work.tasks if task.node == node_name]
    owners: dict[Part, list[tuple[int, str]]] = {}
    for fact in nccl_work.facts("loaded"):
        uuid, bus, node = fact["device"]["uuid"], fact["device"]["bus"], Part("node", name=str(fact["node"]))
        device = Part("gpu", name=uuid) if uuid else Part("gpu", address=bus or "unknown", of=node)
        owners.setdefault(device, []).append((int(fact["rank"]), node.name))
    loaded = {int(fact["rank"]) for fact in nccl_work.of_node(node_name, "loaded")}
    yield Metric("ddp_devices", sum(any(where == node_name for _, where in ranks) for ranks in owners.values()), "GPUs")
    if not mine:
        yield nccl_work.silent(node_name).finding(Part("task"), "one task per GPU")
    for task in mine:
        if task.task not in loaded:
            yield nccl_work.why(task).finding(rank_part(task.task), "its own GPU")
    for device, ranks in sorted(owners.items(), key=lambda pair: str(pair[0])):
        if len(ranks) > 1 and any(where == node_name for _, where in ranks):
            users = ", ".join(f"{rank} ({where})" for rank, where in ranks)
            yield Finding(device, f"ranks {users}", "one rank", code="shared_gpu")


@check(
    "ddp.group",
    cause="ranks cannot reach rank 0 or each other, one did not start, or this build of torch lacks the backend",
    hint="the first rank of the list; GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, firewall; NCCL_DEBUG=INFO",
    action=Action.MONITOR,
    each="work_results",
)
def group(result: PayloadResult) -> Judgement:
    """Judge that all ranks form one process group."""
    result.require_tasks(_SEE)
    joined = result.by_rank("joined")
    if joined:
        yield Metric("ddp_init", max(float(fact["seconds"]) for fact in joined.values()), "s")
    if loaded := result.facts("loaded"):
        yield Metric("ddp_import", max(float(fact["seconds"]) for fact in loaded), "s")
    yield from _absent(result, "joined")
    for rank, fact in joined.items():
        if (fact["size"], fact["group_rank"]) != (result.ntasks, rank):
            part, measured = rank_part(rank, fact["node"]), f"rank {fact['group_rank']} of {fact['size']}"
            yield Finding(part, measured, f"rank {rank} of {result.ntasks}", code="other_group")


@check(
    "ddp.all_reduce",
    cause="a rank, a link or a network card corrupts or loses data, or a rank died",
    hint="each node alone, then pairs: the nccl suite names the part",
    action=Action.CONFIGURE,
    each="work_results",
)
def all_reduce(result: PayloadResult) -> Judgement:
    """Judge each element of the sum over all ranks against its closed form."""
    result.require_tasks(_SEE)
    if not result.by_rank("joined"):
        raise NotAvailable("no process group: see ddp.group")
    reduced = result.by_rank("reduced")
    if reduced:
        yield Metric("ddp_all_reduce", 1e3 * max(float(fact["seconds"]) for fact in reduced.values()), "ms")
    yield from _absent(result, "reduced", among=result.by_rank("joined"))
    for rank, fact in reduced.items():
        if fact["wrong"]:
            words = f"{fact['wrong']} of {fact['elements']} elements wrong"
            yield wrong_data(rank_part(rank, fact["node"]), int(fact["wrong"]), words)


@check(
    "ddp.training",
    cause="DistributedDataParallel does not keep the ranks equal: gradients are lost or wrong, or a rank died",
    hint="run the other backend: if gloo fails too, NCCL is not the cause",
    action=Action.MONITOR,
    each="work_results",
)
def training(result: PayloadResult) -> Judgement:
    """Judge that ranks with different data and weights have equal, changed parameters after training."""
    result.require_tasks(_SEE)
    if not result.by_rank("reduced"):
        raise NotAvailable("no all-reduce: see ddp.group and ddp.all_reduce")
    trained = result.by_rank("trained")
    yield from _absent(result, "trained", among=result.by_rank("reduced"))
    for stage, what in (("synced", "after the start"), ("after", "after training")):
        values = {rank_part(rank, fact["node"]): str(fact[stage]) for rank, fact in trained.items()}
        yield from unequal(values, what, code=f"unequal_{stage}")
    yield from _untrained(trained)
    if trained:
        yield Metric("ddp_training", max(float(fact["seconds"]) for fact in trained.values()), "s")
        yield from _absent(result, "done", among=trained)


def _untrained(trained: Mapping[int, Fact]) -> Iterator[Finding]:
    for rank, fact in trained.items():
        yield from untrained(rank_part(rank, fact["node"]), fact["synced"], fact["after"], fact["losses"])


@transport_check("ddp.transport")
def transport(node_name: str, nccl_work: PayloadResult, profile: Profile) -> Judgement:
    """Judge that NCCL connects the ranks of the node by the transports of the profile, or faster ones."""
    yield from judge_transport(node_name, nccl_work.connections, profile, "ddp.group")


@between_check("ddp.between")
def between(node_name: str, reach: Reach, own_results: Sequence[PayloadResult]) -> Judgement:
    """Judge that ranks of the node summed and trained with ranks of other nodes, by each backend."""
    exchanged = frozenset.intersection(*(result.exchanged for result in own_results))
    yield from judge_between(node_name, reach, exchanged, "ddp.group and ddp.all_reduce")


@check(
    "ddp.torchrun",
    cause="the agents of torchrun do not find each other, or number their ranks wrongly",
    hint="the first rank or agent of the list; every node must resolve the host name of the first node",
    action=Action.MONITOR,
    each="torchrun_results",
)
def torchrun(launched: tuple[PayloadResult, int]) -> Judgement:
    """Judge ranks, local ranks and data with torchrun as the launcher: one agent per node, `per_node` ranks each."""
    result, per_node = launched
    result.require_tasks(_SEE)
    size = result.ntasks * per_node
    given = result.facts("given")
    ranks = [int(fact["rank"]) for fact in given]
    if sorted(ranks) != list(range(size)):
        yield from _agents(result)
        expected = f"0 to {size - 1}, once each"
        yield Finding(Part("rank", name="ranks"), listed(sorted(ranks)), expected, code="other_ranks")
        if result.stopped:
            yield result.stopped.finding(Part("step"), "ends by itself")
        return
    for node in result.nodes:
        locals_ = sorted(fact["given"]["LOCAL_RANK"] for fact in given if fact["node"] == node)
        if locals_ != sorted(str(number) for number in range(per_node)):
            expected = f"0 to {per_node - 1}, once each"
            yield Finding(_on_node("LOCAL_RANK", node), listed(locals_), expected, code="other_ranks")
    for name, stated in (("WORLD_SIZE", str(size)), ("MASTER_ADDR", ""), ("MASTER_PORT", "")):
        values = sorted({fact["given"][name] for fact in given})
        if len(values) > 1 or (stated and values != [stated]):
            expected = stated or "the same on all ranks"
            yield Finding(named("setting", name), listed(values), expected, code="other_values")
    work = tuple(_work_of(result, size))
    yield from work
    if not work:  # an agent that fails after all ranks have finished proves no fault of the hardware
        yield from _agents(result, Action.MONITOR)
        if result.stopped:
            yield result.stopped.finding(Part("step"), "ends by itself", Action.MONITOR)


def _agents(result: PayloadResult, action: Action | None = None) -> Judgement:
    for task in result.causes_first(result.tasks):
        if task.rc != 0 and result.why(task) != result.stopped:  # reported once, for the step
            agent = Part("process", name="agent", of=Part("node", name=task.node))
            yield result.why(task).finding(agent, "ends with 0", action)


def _work_of(result: PayloadResult, size: int) -> Iterator[Finding]:
    for kind in ("joined", "reduced", "trained", "done"):
        lacking = sorted(set(range(size)) - set(result.by_rank(kind)))
        if lacking:
            failed = {int(fact["rank"]): fact for name in ("failed", "stuck") for fact in result.facts(name)}
            for rank in lacking:
                reason = result.reported(failed.get(rank, {})) or NO_MESSAGE
                yield reason.finding(rank_part(rank), _EXPECTED[kind])
            return
    everyone = Part("rank", name="all ranks")
    wrong = sum(int(fact["wrong"]) for fact in result.facts("reduced"))
    if wrong:
        yield wrong_data(everyone, wrong, f"{wrong} elements of the all-reduce wrong")
    after = {str(fact["after"]) for fact in result.facts("trained")}
    if len(after) > 1:
        measured = f"{len(after)} different sets of parameters after training"
        yield Finding(everyone, measured, "equal on all ranks", code="unequal_after")
    yield from _untrained(result.by_rank("trained"))


@check(
    "ddp.lost_rank",
    cause="the other ranks wait for the dead rank: no timeout of the process group, or its watchdog is off",
    hint="TORCH_NCCL_ASYNC_ERROR_HANDLING, the timeout of init_process_group, srun --kill-on-bad-exit=1",
    action=Action.MONITOR,
    each="lost_rank_results",
)
def lost_rank(result: PayloadResult, lost_rank_deadline: float) -> Judgement:
    """Judge that all ranks end, and not with 0, within `lost_rank_deadline` seconds after one was killed."""
    result.require_tasks(_SEE)
    if not result.facts("lost"):
        raise NotAvailable(f"no rank was lost: {result.problem or 'the process group was not formed: see ddp.group'}")
    noticed = result.by_rank("noticed")
    if noticed:
        yield Metric("ddp_lost_rank", max(float(fact["seconds"]) for fact in noticed.values()), "s")
    # where Slurm ended the step, a rank that noticed nothing until then still waited
    ended = noticed.keys() | result.by_rank("lost").keys()
    stuck = result.by_rank("stuck")
    for task in result.tasks:
        part = rank_part(task.task, task.node)
        hung = bool(result.problem) and task.signal is not None and task.task not in ended
        if task.task in stuck or task.rc is None or hung:
            yield Finding(part, f"still waits after {lost_rank_deadline:g} s", "ends", code="waits")
        elif task.rc == 0:
            yield Finding(part, "exit status 0", "not 0: a rank was lost", code="ended_with_0")
    if not result.problem and result.rc == 0:
        yield Finding(Part("step"), "exit status 0", "not 0: a rank was lost", code="ended_with_0")


# -- ranks that did not finish ------------------------------------------------------------------------------------


def _absent(result: PayloadResult, kind: str, among: Mapping[int, object] | None = None) -> Iterator[Finding]:
    """Yield a finding for each rank without a fact of this kind: causes first, then ranks that only waited."""
    wanted = set(range(result.ntasks)) if among is None else set(among)
    yield from result.absent(wanted - set(result.by_rank(kind)), _EXPECTED[kind])


_EXPECTED = {
    "joined": "joins the process group",
    "reduced": "ends the all-reduce",
    "trained": "ends the training step",
    "done": "leaves the group and ends",
}


def _final(fact: Fact, name: str) -> str:
    return str(fact["given"].get(name, fact["slurm"][name]))


def _addresses(fact: Fact) -> str:
    return " ".join(fact["master"]["addresses"])


def _lacking(variable: str, value: str, interfaces: Sequence[str]) -> list[str]:
    """Return the names that match no interface. NCCL's are prefixes; '=' requires equality, '^' excludes."""
    if variable != "NCCL_SOCKET_IFNAME":
        return [name for name in value.split(",") if name and name not in interfaces]
    if value.startswith("^"):
        excluded = tuple(value[1:].split(","))
        return [] if any(it != "lo" and not it.startswith(excluded) for it in interfaces) else [value]
    exact, names = value.startswith("="), value.lstrip("=").split(",")
    if any(it == name or (not exact and it.startswith(name)) for name in names for it in interfaces):
        return []
    return names
