"""Ray: each node alone, then a head and its workers: who is there, what works on it, what is left. Pure.

The facts are what suites/ray/payload_node.py and suites/ray/payload_driver.py tell.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import (
    Action,
    Finding,
    Metric,
    NotApplicable,
    NotChecked,
    check,
    revised,
    with_cause,
)
from pytest_gpucluster.core.text import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.core.check import Judgement, Verdict

TOKEN_SINCE = (2, 52)  # Ray's first release with RAY_AUTH_MODE=token
SEE_NODES = "there was no cluster: see ray.nodes"
BEST, ITERATIONS = 4, 8  # of the driver's trials


@dataclass(frozen=True)
class Share:
    """What one node was asked to give to Ray."""

    cpus: int
    gpus: int


@dataclass(frozen=True)
class NodeFacts:
    """What one node told: {kind: facts}; `problem` with its kind where it failed, `silent` where it told nothing."""

    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    silent: str = ""

    @property
    def problem(self) -> str:
        """Why Ray did not work there, '' where it did."""
        said = self.told.get("problem")
        return str(said["problem"]) if said else self.silent

    @property
    def what(self) -> str:
        """The kind of the problem: interface, port, ray, head, driver, leave; '' where there is none."""
        said = self.told.get("problem")
        return str(said["what"]) if said else ("step" if self.silent else "")


@dataclass(frozen=True)
class ClusterFacts:
    """A Ray cluster over several nodes: what it was to be, what each node told, what the driver told by kind."""

    asked: Mapping[str, Share]
    head: str
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    driver: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: str = ""
    token: bool = True

    @property
    def alive(self) -> Mapping[str, Mapping[str, Any]]:
        """The nodes that Ray called alive."""
        found: Mapping[str, Mapping[str, Any]] = self.driver.get("nodes", {}).get("alive", {})
        return found


def _port_taken(verdict: Verdict, *_facts: object) -> Verdict:
    """Return the cause of a port that another process holds: no fault of the node."""
    return with_cause(
        verdict,
        ") is taken",
        "another process of the node holds a port that Ray was given",
        "the process named; ray.port in the cluster file moves all ports, without it free ones are sought",
    )


@revised(_port_taken)
@check(
    "ray.alone",
    cause="Ray is not installed for this python, its port or interface is not there, or its daemons cannot start",
    hint="run the step by hand; ray.environment names the python, ray.interface the network, ray.port the ports",
)
def alone(node_name: str, lone: NodeFacts, share: Share) -> Judgement:
    """Judge Ray on one node by itself: it starts, sees its shares, runs a task and an actor, and ends."""
    if lone.problem:
        yield Finding(_part(lone.what), lone.problem, "Ray runs on the node alone")
        return
    alive = lone.told.get("nodes", {}).get("alive", {})
    if set(alive) != {node_name}:
        yield Finding("nodes", listed(alive), node_name)
        return
    yield from _share(node_name, alive[node_name], share)
    yield from _ran("task", node_name, lone.told.get("tasks", {}), "ran")
    yield from _ran("actor", node_name, lone.told.get("actors", {}), "ran")
    ended = lone.told.get("ended", {})
    if not ended.get("ended"):
        yield Finding("ray start", "did not end when it was told to", "ends")
    yield Metric("outlived", float(ended.get("outlived", 0)), "processes")


@revised(_port_taken)
@check(
    "ray.nodes",
    cause="a worker could not start or reach the head: package, interface, firewall, port; or the head ended",
    hint="ray.alone of the named node first; then the port of the head from that node: nc -zv HEAD PORT",
    each="clusters",
)
def nodes(facts: ClusterFacts) -> Judgement:
    """Judge that the alive nodes are exactly those asked for, with their CPUs and GPUs."""
    if len(facts.asked) < 2:  # a cluster
        yield NotApplicable("one node alone makes no cluster: see ray.alone")
        return
    head = facts.nodes.get(facts.head, NodeFacts(silent="it was never started"))
    if head.problem:
        yield Finding(f"head on {facts.head}", head.problem, "a head that the workers can join")
    for node in facts.asked:
        here = facts.nodes.get(node, NodeFacts(silent="it was never started"))
        if node in facts.alive:
            yield from _share(node, facts.alive[node], facts.asked[node])
        elif node == facts.head and head.problem:
            continue
        elif head.problem and here.what in {"head", "step", ""}:
            continue  # the head's fault is not the worker's
        else:
            why = f": {here.problem}" if here.problem else ": its worker was started and never joined"
            yield Finding(node, f"missing{why}", "alive")
    strangers = sorted(set(facts.alive) - set(facts.asked))
    if strangers:
        yield Finding("nodes", f"also alive: {listed(strangers)}", "the asked ones only")
    if "seconds" in facts.driver.get("nodes", {}):
        yield Metric("join", float(facts.driver["nodes"]["seconds"]), "s")


@check(
    "ray.tasks",
    cause="the raylet of this node starts no worker processes, or they cannot reach the head",
    hint="the logs of the raylet and of its workers in the session folder of the node",
)
def tasks(node_name: str, formed: ClusterFacts) -> Judgement:
    """Judge that a task that is bound to the node runs there."""
    yield from _per_node(node_name, formed, "tasks", ("ran",))


@check(
    "ray.actors",
    cause="an actor's process died or lost its state",
    hint="the logs of the workers in the session folder of the node; memory of the node",
)
def actors(node_name: str, formed: ClusterFacts) -> Judgement:
    """Judge that an actor lives on the node and keeps its count."""
    yield from _per_node(node_name, formed, "actors", ("ran",))
    told = formed.driver.get("actors", {})
    counted = told.get("counted", {}).get(node_name)
    if counted is not None and counted != [1, 2]:
        yield Finding("counts", str(counted), "[1, 2]")
    elif counted is None and told.get("ran", {}).get(node_name) == node_name:
        yield NotChecked("the actor told no counts")


@check(
    "ray.objects",
    cause="the object managers of head and node do not reach each other: firewall, MTU, /dev/shm",
    hint="the object-manager ports of both nodes; df /dev/shm",
)
def objects(node_name: str, formed: ClusterFacts) -> Judgement:
    """Judge that an object arrives whole from the driver on the node, and from the node at the driver."""
    told = formed.driver.get("objects", {})
    if (reason := _absent(node_name, formed, told)) is not None:
        yield reason
        return
    for key, way in (("sent", "head to node"), ("fetched", "node to head")):
        if told[key].get(node_name) is not True:
            measured = told[key].get(node_name, "nothing arrived")
            yield Finding(
                way, "other content" if measured is False else str(measured), "the object as it was"
            )
    if node_name in told.get("rates", {}):
        yield Metric("object_rate", float(told["rates"][node_name]), "MB/s")


@check(
    "ray.gpus",
    cause="Ray and Slurm disagree about the GPUs, or two actors were given one device",
    hint="CUDA_VISIBLE_DEVICES in the worker's step; ray start --num-gpus; srun --gpus-per-node",
    each="clusters",
)
def gpus(facts: ClusterFacts) -> Judgement:
    """Judge that as many actors as there are GPUs hold one each, all distinct, the right number a node."""
    asked = {node: share.gpus for node, share in facts.asked.items() if share.gpus}
    if not asked:
        yield NotApplicable("the nodes have no GPUs for Ray")
        return
    told = facts.driver.get("gpus", {})
    if (reason := _absent("", facts, told)) is not None:
        yield reason
        return
    good = [tuple(it) for it in told["held"] if isinstance(it, list)]
    for wrong in (it for it in told["held"] if not isinstance(it, list)):
        yield Finding("actor with one GPU", str(wrong), "runs")
    if unknown := sorted({node for node, _number, uuid in good if not uuid}):
        yield NotChecked(f"no UUID was told on {listed(unknown)}: the devices cannot be told apart")
    for node, count in asked.items():
        if node not in facts.alive:
            yield NotChecked(f"{node}: see ray.nodes")
            continue
        here = sum(where == node for where, _number, _uuid in good)
        if here != count:
            yield Finding(node, f"{here} actors with a GPU", f"{count}")
    devices = Counter(uuid for _node, _number, uuid in good if uuid)
    for uuid, times in devices.items():
        if times > 1:
            holders = listed(sorted({f"{where} ({number})" for where, number, it in good if it == uuid}))
            yield Finding(f"GPU {uuid}", f"held by {times} actors at once: {holders}", "one actor")
    yield Metric("gpus", len(devices), "GPUs")


@check(
    "ray.tune",
    cause="ray[tune] is not whole on the head, or trials fail on a node",
    hint="pip install 'ray[tune]' for this python on every node",
    action=Action.MONITOR,
    each="clusters",
)
def tune(facts: ClusterFacts, tune_claimed: bool) -> Judgement:
    """Judge a search with ASHA: the known best wins and runs to the end, and a worse trial is stopped early."""
    if not tune_claimed:
        yield NotApplicable("the cluster file does not claim Ray Tune (ray.tune)")
        return
    told = facts.driver.get("tune", {})
    if (reason := _absent("", facts, told)) is not None:
        yield reason
        return
    for error in told["errors"]:
        yield Finding("trial", str(error), "no error")
    iterations = {int(quality): int(count) for quality, count in told["iterations"].items()}
    if told["best"] != BEST or iterations.get(BEST) != ITERATIONS:
        yield Finding(
            "best trial",
            f"{told['best']} ({iterations.get(BEST)} iterations)",
            f"{BEST} ({ITERATIONS} iterations)",
        )
    if not any(count < ITERATIONS for count in iterations.values()):
        yield Finding("ASHA", f"stopped no trial early: {iterations}", "worse trials are stopped")
    yield Metric("tune", float(told["seconds"]), "s")


@check(
    "ray.token",
    cause="Ray is open to everyone who reaches its port: whoever does runs commands as this user",
    hint="RAY_AUTH_MODE=token with RAY_AUTH_TOKEN_PATH of mode 0600; never a password on a command line",
    action=Action.MONITOR,
    each="clusters",
)
def token(facts: ClusterFacts, token_claimed: bool) -> Judgement:
    """Judge that who has no token is refused, and that the token is on no command line."""
    if not token_claimed:
        yield NotApplicable("the cluster file does without Ray's token (ray.token)")
        return
    if facts.version and _version(facts.version) < TOKEN_SINCE:
        yield NotApplicable(f"Ray {facts.version} has no token authentication (2.52 and later)")
        return
    told = facts.driver.get("stranger", {})
    if (reason := _absent("", facts, told or facts.driver.get("token", {}))) is not None:
        yield reason
        return
    if not told["refused"]:
        yield Finding("a client without token", f"was let in (exit {told['rc']}): {told['said']}", "refused")
    seen = {node: here.told["token"] for node, here in facts.nodes.items() if "token" in here.told}
    if not seen:
        yield NotChecked("no node told whether the token is on a command line")
    for node, said in seen.items():
        if said["exposed"]:
            yield Finding(node, f"the token is on {said['exposed']} command lines", "on none")
        if not said["set"]:
            yield Finding(node, "Ray was started without a token", "with a token")


@check(
    "ray.head_lost",
    cause="raylets outlive their head and hold the allocation until its time limit",
    hint="RAY_gcs_rpc_server_reconnect_timeout_s; `ray start --block` as the step's own process",
    action=Action.MONITOR,
)
def head_lost(node_name: str, formed: ClusterFacts) -> Judgement:
    """Judge that a worker leaves by itself when its head is lost."""
    if node_name == formed.head:
        yield NotApplicable("the node was the head")
        return
    here = formed.nodes.get(node_name, NodeFacts(silent="never started"))
    if node_name not in formed.alive or "killed" not in formed.nodes.get(formed.head, NodeFacts()).told:
        yield NotApplicable(SEE_NODES)
        return
    if here.problem or "left" not in here.told:
        yield Finding("worker", here.problem or "told nothing of its end", "leaves when its head is lost")
        return
    yield Metric("leave", float(here.told["left"]["seconds"]), "s")
    yield Metric("outlived", float(here.told.get("ended", {}).get("outlived", 0)), "processes")


@check(
    "ray.left",
    cause="processes or folders outlive their step: ProctrackType does not track them, or the step was killed",
    hint="scontrol show config | grep ProctrackType (proctrack/cgroup keeps hold of all); kill them by their pid",
    action=Action.MONITOR,
)
def left(left_here: str | None) -> Judgement:
    """Judge that nothing of the clusters is left on the node; `left_here` has a line a process or folder."""
    if left_here is None:
        yield NotChecked("the node did not tell what is left")
        return
    for line in left_here.splitlines():
        yield Finding("left behind", line, "nothing")


def _part(what: str) -> str:
    return {"interface": "network interface", "port": "port", "driver": "driver"}.get(what, "Ray")


def _share(node: str, told: Mapping[str, Any], share: Share) -> Judgement:
    for name, measured, expected in (("CPUs", told["cpu"], share.cpus), ("GPUs", told["gpu"], share.gpus)):
        if measured != expected:
            yield Finding(f"{name} of {node}", f"{measured:g}", str(expected))


def _ran(what: str, node: str, told: Mapping[str, Any], key: str) -> Judgement:
    if "problem" in told:
        yield Finding(what, str(told["problem"]), f"runs on {node}")
    elif told.get(key, {}).get(node) != node:
        yield Finding(what, str(told.get(key, {}).get(node, "did not run")), f"runs on {node}")


def _per_node(node: str, facts: ClusterFacts, kind: str, keys: Iterable[str]) -> Judgement:
    told = facts.driver.get(kind, {})
    if (reason := _absent(node, facts, told)) is not None:
        yield reason
        return
    for key in keys:
        yield from _ran(kind.removesuffix("s"), node, told, key)


def _absent(
    node: str, facts: ClusterFacts, told: Mapping[str, Any]
) -> Finding | NotApplicable | NotChecked | None:
    """Return why the work of the driver cannot be judged; None where it can."""
    if len(facts.asked) < 2:  # a cluster
        return NotApplicable("one node alone makes no cluster: see ray.alone")
    if not facts.alive or (node and node not in facts.alive):
        return NotApplicable(SEE_NODES)
    if "problem" in told:
        return Finding("driver", str(told["problem"]), "it could be done")
    if not told:
        why = facts.nodes.get(facts.head, NodeFacts()).problem or "the driver told nothing of it"
        return Finding("driver", why, "it could be done")
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
