"""Ray on each node alone, then as a cluster of a head and workers. Pure.

The facts are those of payload_node.py and payload_driver.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Finding, Metric, check, revised, with_cause
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, NotJudged
from pytest_gpucluster.core.finding import Explanation, Quantity, Quote
from pytest_gpucluster.core.part import Part, named, register
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.kit.framework.payload_result import NO_RESULT, NOT_STARTED
from pytest_gpucluster.kit.gpu.too_few import FEW_GPUS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.check import Judgement, Verdict

register("actor", "actor")
register("trial", "trial")
_DRIVER, _ACTOR, _TRIAL = Part("process", name="driver"), Part("actor"), Part("trial")
_ARRIVED = {None: Explanation("not_arrived", "nothing arrived"), False: Explanation("wrong_data", "other content")}
TOKEN_SINCE = (2, 52)  # Ray's first release with RAY_AUTH_MODE=token
SEE_NODES = "the node was not in a Ray cluster: see ray.nodes"
ONE_NODE = "a cluster needs two nodes"
BEST, ITERATIONS = 4, 8  # of the trials of the driver


@dataclass(frozen=True)
class Share:
    """The CPUs and GPUs that a node must provide to Ray."""

    cpus: int
    gpus: int


@dataclass(frozen=True)
class NodeFacts:
    """The facts of one node, {kind: facts}, with the kind `problem` if it failed. `silent`: why there are none."""

    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    silent: Explanation | None = None

    @property
    def problem(self) -> Explanation | None:
        """Why Ray failed on the node, by the word of its payload; None if it did not."""
        fact = self.facts.get("problem")
        return Explanation(str(fact["what"]), str(fact["problem"])) if fact else self.silent


_UNSTARTED = NodeFacts(silent=NOT_STARTED)


@dataclass(frozen=True)
class ClusterFacts:
    """A Ray cluster: the requested nodes, the facts of each node, and the facts of the driver by kind.

    `obstacle`: why the nodes form no cluster of several; None if they can.
    """

    requested: Mapping[str, Share]
    head: str
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    driver: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: str = ""
    obstacle: NotJudged | None = None

    @property
    def alive(self) -> Mapping[str, Mapping[str, Any]]:
        """The nodes that Ray lists as alive."""
        found: Mapping[str, Mapping[str, Any]] = self.driver.get("nodes", {}).get("alive", {})
        return found


def _port_taken(verdict: Verdict, *_facts: object) -> Verdict:
    """Return the verdict with the cause that another process uses a port; this is no fault of the node."""
    cause = "another process on the node uses a port of Ray"
    return with_cause(verdict, "port_taken", cause, "end the process")


@revised(_port_taken)
@check(
    "ray.alone",
    cause="Ray is not installed for this python, its port is in use, its interface is missing, or its daemons do not "
    "start",
    hint="run the command of the step; ray.environment names the python, ray.interface the network",
    action=Action.CONFIGURE,
)
def alone(node_name: str, node_facts: NodeFacts, share: Share) -> Judgement:
    """Judge Ray on a single node: it starts, has its CPUs and GPUs, runs a task and an actor, and ends."""
    if node_facts.problem:
        yield node_facts.problem.finding(named("software", "Ray"), "Ray runs on the node alone")
        return
    alive = node_facts.facts.get("nodes", {}).get("alive", {})
    if set(alive) != {node_name}:
        yield Finding(Part("node", name="nodes"), listed(alive), node_name, code="other_nodes")
        return
    yield from _share(node_name, alive[node_name], share)
    yield from _ran(Part("task"), node_name, node_facts.facts.get("tasks", {}))
    yield from _ran(_ACTOR, node_name, node_facts.facts.get("actors", {}))
    ended = node_facts.facts.get("ended", {})
    if not ended.get("ended"):
        yield Finding(Part("process", name="ray start"), "did not end on SIGTERM", "ends", code="still_runs")
    yield Metric("outlived", float(ended.get("outlived", 0)), "processes")


@revised(_port_taken)
@check(
    "ray.nodes",
    cause="a worker could not start or reach the head: package, interface, firewall, port; or the head ended",
    hint="ray.alone of the named node first; then from that node the port of the head (nc -zv)",
    action=Action.MONITOR,
    each="clusters",
)
def nodes(facts: ClusterFacts) -> Judgement:
    """Judge that the alive nodes are exactly the requested ones, with their CPUs and GPUs."""
    if len(facts.requested) < 2:
        raise NotApplicable(ONE_NODE)
    head = facts.nodes.get(facts.head, _UNSTARTED)
    if head.problem:
        part = Part("process", name="head", of=Part("node", name=facts.head))
        yield head.problem.finding(part, "a head that the workers can join")
    for node in facts.requested:
        worker = facts.nodes.get(node, _UNSTARTED)
        missing = worker.problem or Explanation("not_joined", "its worker started but did not join")
        if node in facts.alive:
            yield from _share(node, facts.alive[node], facts.requested[node])
        elif node == facts.head and head.problem:
            continue
        elif head.problem and (missing == worker.silent or missing.code in {"head", "not_joined"}):
            continue  # the head failed, not the worker
        else:
            words = Quote(f"missing: {missing.text}")
            yield Finding(Part("node", name=node), words, "alive", code=missing.code)
    others = sorted(set(facts.alive) - set(facts.requested))
    if others:
        measured, part = f"also alive: {listed(others)}", Part("node", name="nodes")
        yield Finding(part, measured, "the requested nodes only", code="other_nodes")
    if "seconds" in facts.driver.get("nodes", {}):
        yield Metric("join", float(facts.driver["nodes"]["seconds"]), "s")


@check(
    "ray.tasks",
    cause="the raylet of this node starts no worker processes, or they cannot reach the head",
    hint="the logs of the raylet and of its workers in the session folder of the node",
    action=Action.MONITOR,
)
def tasks(node_name: str, cluster_facts: ClusterFacts) -> Judgement:
    """Judge that a task bound to the node runs there."""
    yield from _per_node(node_name, cluster_facts, "tasks", Part("task"))


@check(
    "ray.actors",
    cause="an actor's process died or lost its state",
    hint="the logs of the workers in the session folder of the node; memory of the node",
    action=Action.MONITOR,
)
def actors(node_name: str, cluster_facts: ClusterFacts) -> Judgement:
    """Judge that an actor runs on the node and keeps its state."""
    yield from _per_node(node_name, cluster_facts, "actors", _ACTOR)
    fact = cluster_facts.driver.get("actors", {})
    counted = fact.get("counted", {}).get(node_name)
    if counted is not None and counted != [1, 2]:
        yield Finding(_ACTOR, f"counts {counted}", "counts [1, 2]", code="wrong_counts")
    elif counted is None and fact.get("ran", {}).get(node_name) == node_name:
        raise NotAvailable("the actor reported no counts")


@check(
    "ray.objects",
    cause="the object managers of head and node do not reach each other: firewall, MTU, /dev/shm",
    hint="the object-manager ports of both nodes; df /dev/shm",
    action=Action.MONITOR,
)
def objects(node_name: str, cluster_facts: ClusterFacts) -> Judgement:
    """Judge that an object of the driver reaches the node unchanged, and an object of the node the driver."""
    fact = cluster_facts.driver.get("objects", {})
    if (broken := _broken(node_name, cluster_facts, fact)) is not None:
        yield broken
        return
    for key, direction in (("sent", "head to node"), ("fetched", "node to head")):
        arrived = fact[key].get(node_name)
        if arrived is not True:
            failed = _ARRIVED.get(arrived) or Explanation("failed", str(arrived))
            yield failed.finding(Part(name=direction), "the object unchanged")
    if node_name in fact.get("rates", {}):
        yield Metric("object_rate", float(fact["rates"][node_name]), "MB/s")


@check(
    "ray.gpus",
    cause="Ray and Slurm disagree about the GPUs, or two actors have one device",
    hint="CUDA_VISIBLE_DEVICES in the worker's step; ray start --num-gpus; srun --gpus-per-node",
    action=Action.CONFIGURE,
    each="clusters",
)
def gpus(facts: ClusterFacts) -> Judgement:
    """Judge that each of as many actors as GPUs has its own GPU, with the right number per node."""
    requested = {node: share.gpus for node, share in facts.requested.items() if share.gpus}
    if not requested:
        raise NotApplicable("the nodes have no GPUs for Ray")
    fact = facts.driver.get("gpus", {})
    if (broken := _broken("", facts, fact)) is not None:
        yield broken
        return
    good = [tuple(it) for it in fact["held"] if isinstance(it, list)]
    for wrong in (it for it in fact["held"] if not isinstance(it, list)):
        yield Finding(_ACTOR, Quote(str(wrong)), "runs with one GPU", code="failed")
    if unknown := sorted({node for node, _number, uuid in good if not uuid}):
        yield NotAvailable(f"no UUID on {listed(unknown)}: the devices cannot be distinguished", FEW_GPUS)
    for node, count in requested.items():
        if node not in facts.alive:
            yield NotAvailable(f"{node}: see ray.nodes")
            continue
        here = sum(where == node for where, _number, _uuid in good)
        if here != count:
            measured, expected = Quantity(here, "GPUs", f"{here} actors with a GPU"), Quantity(count, "GPUs")
            yield Finding(Part("node", name=node), measured, expected, code="other_gpus")
    devices = Counter(uuid for _node, _number, uuid in good if uuid)
    for uuid, times in devices.items():
        if times > 1:
            holders = listed(sorted({f"{where} ({number})" for where, number, it in good if it == uuid}))
            words = f"held by {times} actors at once: {holders}"
            yield Finding(Part("gpu", name=uuid), words, "one actor", code="shared_gpu")
    yield Metric("gpus", len(devices), "GPUs")


@check(
    "ray.tune",
    cause="ray[tune] is incomplete on the head, or trials fail on a node",
    hint="pip install 'ray[tune]' for this python on every node",
    action=Action.CONFIGURE,
    each="clusters",
)
def tune(facts: ClusterFacts) -> Judgement:
    """Judge a search with ASHA: the known best trial runs to the end and wins, and a worse one is stopped early."""
    fact = facts.driver.get("tune", {})
    if (broken := _broken("", facts, fact)) is not None:
        yield broken
        return
    for error in fact["errors"]:
        yield Finding(_TRIAL, Quote(str(error)), "no error", code="failed")
    iterations = {int(quality): int(count) for quality, count in fact["iterations"].items()}
    if fact["best"] != BEST or iterations.get(BEST) != ITERATIONS:
        measured = f"{fact['best']} is the best ({iterations.get(BEST)} iterations)"
        yield Finding(_TRIAL, measured, f"{BEST} ({ITERATIONS} iterations)", code="other_best")
    if not any(count < ITERATIONS for count in iterations.values()):
        measured = f"ASHA stopped none early: {iterations}"
        yield Finding(_TRIAL, measured, "worse trials are stopped", code="none_stopped")
    yield Metric("tune", float(fact["seconds"]), "s")


@check(
    "ray.tune_gpus",
    cause="Ray cannot place a trial with a GPU on this node, or the trial does not see one GPU",
    hint="ray.gpus first; CUDA_VISIBLE_DEVICES in the worker's step; ray start --num-gpus",
    action=Action.CONFIGURE,
)
def tune_gpus(node_name: str, cluster_facts: ClusterFacts, share: Share, tune_enabled: bool) -> Judgement:
    """A trial of Ray Tune that requests one GPU runs on the node and sees one GPU."""
    if not tune_enabled or not share.gpus:
        why = "the node has no GPUs for Ray" if tune_enabled else "ray.tune does not apply to this cluster"
        raise NotApplicable(why)
    if "problem" in cluster_facts.driver.get("tune", {}):
        raise NotAvailable("Ray Tune does not run: see ray.tune")
    fact = cluster_facts.driver.get("tune_gpus", {})
    if (broken := _broken(node_name, cluster_facts, fact)) is not None:
        yield broken
        return
    trial = fact["trials"].get(node_name)
    if trial is None or trial["error"] or not trial["where"]:
        error = (trial or {}).get("error")
        late = Explanation("not_run", f"did not run within {float(fact['patience']):g} s")
        failed = Explanation("failed", str(error)) if error else late
        yield failed.finding(_TRIAL, f"runs on {node_name} with one GPU")
    elif trial["where"] != node_name:
        yield Finding(_TRIAL, f"runs on {trial['where']}", f"runs on {node_name}", code="other_node")
    elif len(trial["devices"].split(",")) != 1 or not trial["devices"]:
        part = Part("setting", name="CUDA_VISIBLE_DEVICES", of=_TRIAL)
        yield Finding(part, trial["devices"] or "not set", "one GPU", code="other_devices")
    elif not trial["uuid"]:
        raise NotAvailable("the trial does not report the UUID of its GPU")


@check(
    "ray.authentication",
    cause="Ray accepts every client that reaches its port, and runs its commands as this user",
    hint="RAY_AUTH_MODE=token with RAY_AUTH_TOKEN_PATH of mode 0600; never a password on a command line",
    action=Action.CONFIGURE,
    each="clusters",
)
def authentication(facts: ClusterFacts) -> Judgement:
    """Judge that Ray refuses a client without the token, and that the token is on no command line."""
    version = tuple(int(part) for part in facts.version.split(".") if part.isdigit())
    if facts.version and version < TOKEN_SINCE:
        raise NotAvailable(
            f"Ray {facts.version} has no token authentication: install 2.52 or later, or leave the check out by not_applicable"
        )
    fact = facts.driver.get("no_token", {})
    if (broken := _broken("", facts, fact or facts.driver.get("token", {}))) is not None:
        yield broken
        return
    if not fact["refused"]:
        text = Quote(f"was accepted (exit {fact['rc']}): {fact['output']}")
        yield Finding(Part("process", name="an unauthenticated client"), text, "refused", code="accepted")
    tokens = {node: known.facts["token"] for node, known in facts.nodes.items() if "token" in known.facts}
    if not tokens:
        raise NotAvailable("no node reported whether the token is on a command line")
    for node, found in tokens.items():
        part = Part("node", name=node)
        if found["exposed"]:
            measured = f"the token is on {found['exposed']} command lines"
            yield Finding(part, measured, "on none", code="exposed")
        if not found["set"]:
            yield Finding(part, "Ray was started without a token", "with a token", code="no_token")


@check(
    "ray.head_lost",
    cause="raylets outlive their head and occupy the allocation until its time limit",
    hint="RAY_gcs_rpc_server_reconnect_timeout_s; `ray start --block` as the step's own process",
    action=Action.CONFIGURE,
)
def head_lost(node_name: str, cluster_facts: ClusterFacts) -> Judgement:
    """Judge that a worker ends by itself when its head is lost."""
    if node_name == cluster_facts.head and len(cluster_facts.requested) > 1:
        raise NotApplicable("the node was the head")
    head = cluster_facts.nodes.get(cluster_facts.head, NodeFacts())
    _require_cluster(node_name, cluster_facts)
    if "killed" not in head.facts:
        raise NotAvailable(SEE_NODES)
    worker = cluster_facts.nodes.get(node_name, _UNSTARTED)
    if worker.problem or "left" not in worker.facts:
        part = Part("process", name="worker")
        yield (worker.problem or NO_RESULT).finding(part, "ends when its head is lost")
        return
    yield Metric("leave", float(worker.facts["left"]["seconds"]), "s")
    yield Metric("outlived", float(worker.facts.get("ended", {}).get("outlived", 0)), "processes")


@check(
    "ray.left",
    cause="processes or folders outlive their step: ProctrackType does not track them, or the step was killed",
    hint="scontrol show config | grep ProctrackType (proctrack/cgroup tracks all); kill them by their pid",
    action=Action.MONITOR,
)
def left(node_leftovers: str | None) -> Judgement:
    """Judge that no process or folder of the clusters is left on the node; `node_leftovers` has a line for each."""
    if node_leftovers is None:
        raise NotAvailable("the node did not report its processes and folders")
    for line in node_leftovers.splitlines():
        what, _, words = line.partition(" ")  # process or folder
        yield Finding(Part("process", name=what), Quote(words), "nothing is left", code=f"{what}_left")


def _share(node: str, fact: Mapping[str, Any], share: Share) -> Judgement:
    for name, measured, expected in (("CPUs", fact["cpu"], share.cpus), ("GPUs", fact["gpu"], share.gpus)):
        if measured != expected:
            found, stated = Quantity(measured, name), Quantity(expected, name)
            yield Finding(Part("node", name=node), found, stated, code=f"other_{name.lower()}")


def _ran(part: Part, node: str, fact: Mapping[str, Any]) -> Judgement:
    where = fact.get("ran", {}).get(node)
    if "problem" in fact:
        yield Finding(part, Quote(str(fact["problem"])), f"runs on {node}", code="failed")
    elif where != node:
        code = "not_run" if where is None else "other_node"
        yield Finding(part, str(where or "did not run"), f"runs on {node}", code=code)


def _per_node(node: str, facts: ClusterFacts, kind: str, part: Part) -> Judgement:
    fact = facts.driver.get(kind, {})
    if (broken := _broken(node, facts, fact)) is not None:
        yield broken
    else:
        yield from _ran(part, node, fact)


def _require_cluster(node: str, facts: ClusterFacts) -> None:
    """Raise why there is no cluster: of a node what it leaves unproved, of the whole that it does not apply."""
    if len(facts.requested) < 2:
        raise (facts.obstacle if node else None) or NotApplicable(ONE_NODE)
    if not facts.alive or (node and node not in facts.alive):
        raise NotAvailable(SEE_NODES)


def _broken(node: str, facts: ClusterFacts, fact: Mapping[str, Any]) -> Finding | None:
    """Return how the work of the driver failed, None if it did not; NotAvailable or NotApplicable without a cluster."""
    _require_cluster(node, facts)
    if fact and "problem" not in fact:
        return None
    head = facts.nodes.get(facts.head, NodeFacts())
    silent = Explanation("no_result", "the driver sent no report of it")
    failed = Explanation("failed", str(fact["problem"])) if fact else head.problem or silent
    return failed.finding(_DRIVER, "completes it")
