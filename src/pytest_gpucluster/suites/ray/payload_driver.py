# Ray may raise anything, and each piece of work is reported by itself (BLE001). mypy does not see what the decorators
# of Ray return.
# mypy: disable-error-code="untyped-decorator, attr-defined, misc"
"""The driver of a Ray cluster under test: nodes, tasks, actors, objects, GPUs, Tune, token; one JSON line each.

Runs by `payload_step.command` next to the head, with one JSON argument:

    {"address": "10.0.0.1:6379", "ip": "10.0.0.1", "nodes": {"gpu01": {"cpus": 2, "gpus": 0}}, "join": 60,
     "temp": "/tmp/...", "work": ["nodes", "tasks"], "elements": 1048576}

A piece of work that fails prints {"kind": ..., "problem": ...}, and the others continue. Exit code 0 if all was printed.
"""

import ctypes
import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
import uuid
from typing import Any, Callable, Dict, Iterator

import ray

from pytest_gpucluster.kit.payloads.c_library import cuda_driver
from pytest_gpucluster.kit.payloads.prelude import error_text, exit_now, node_name, write_line

PATIENCE = 120.0  # seconds for one piece of work
QUALITIES = (4, 3, 2, 1)  # of the trials of Tune; the first is best by construction
ITERATIONS = 8
OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # stdout has the facts only, not the output of Ray and Tune


def report(kind: str, **facts: Any) -> None:
    """Print facts to the original stdout."""
    write_line(json.dumps({"kind": kind, "node": node_name(), **facts}), OUT)


def at(node: str) -> Dict[str, Any]:
    """Return the options that bind a task or an actor to a node."""
    return {"resources": {"gpucluster_" + node: 0.01}}


@ray.remote(num_cpus=1)
def where() -> Any:
    """Return node and pid of the task."""
    return node_name(), os.getpid()


@ray.remote(num_cpus=0)
class Counter:
    """An actor that counts."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> Any:
        """Count one more; return node and count."""
        self.count += 1
        return node_name(), self.count


@ray.remote(num_cpus=0)
def digest(data: bytes) -> Any:
    """Return the node and the digest of an object."""
    return node_name(), hashlib.sha256(data).hexdigest()


@ray.remote(num_cpus=0)
def produce(node: str, size: int) -> bytes:
    """Return an object of known content, made on a node."""
    return content(node, size)


@ray.remote(num_cpus=0, num_gpus=1)
class Holder:
    """An actor that holds one GPU."""

    def device(self) -> Any:
        """Return the node, the number that Ray assigned, and the UUID of the only visible GPU; '' if unknown."""
        return node_name(), os.environ.get("CUDA_VISIBLE_DEVICES", ""), visible_uuid()


def visible_uuid() -> str:
    """Return the UUID of the first visible GPU from the CUDA driver, else from nvidia-smi, which counts all GPUs."""
    try:
        cuda = cuda_driver()
        device = cuda.make("cuDeviceGet", ctypes.c_int, 0)
        raw = cuda.make("cuDeviceGetUuid_v2", ctypes.c_ubyte * 16, device)
        return "GPU-%s" % uuid.UUID(bytes=bytes(raw))
    except (OSError, AttributeError, RuntimeError):
        pass
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", "-i", number]
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=30).decode().strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def content(node: str, size: int) -> bytes:
    """Return `size` bytes that identify this node."""
    seed = hashlib.sha256(node.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def names_of(node: Dict[str, Any]) -> Iterator[str]:
    """Yield the name that a node of Ray has as a resource."""
    return (key[len("gpucluster_") :] for key in node["Resources"] if key.startswith("gpucluster_"))


def nodes(plan: Dict[str, Any]) -> None:
    """Wait until the nodes have joined; report all nodes of Ray."""
    begin = time.monotonic()
    while True:
        alive = {}
        for node in filter(lambda it: it["Alive"], ray.nodes()):
            name = next(names_of(node), node["NodeManagerAddress"])
            share = {key.lower(): node["Resources"].get(key, 0) for key in ("CPU", "GPU")}
            alive[name] = {"address": node["NodeManagerAddress"], **share}
        if set(plan["nodes"]) <= set(alive) or time.monotonic() - begin > plan["join"]:
            break
        time.sleep(0.5)
    report("nodes", alive=alive, seconds=round(time.monotonic() - begin, 1))


def joined() -> list:
    """Return the names of the nodes that Ray can use."""
    return sorted(name for node in ray.nodes() if node["Alive"] for name in names_of(node))


def tasks(plan: Dict[str, Any]) -> None:
    """Run a task on every node."""
    begin = time.monotonic()
    waiting = {node: where.options(**at(node)).remote() for node in joined()}
    ran = {node: answer(ref, lambda it: it[0]) for node, ref in waiting.items()}
    report("tasks", ran=ran, seconds=since(begin))


def actors(plan: Dict[str, Any]) -> None:
    """Start an actor on every node that counts to two."""
    held = {node: Counter.options(**at(node)).remote() for node in joined()}
    first = {node: actor.add.remote() for node, actor in held.items()}
    second = {node: actor.add.remote() for node, actor in held.items()}
    counted = {node: [answer(refs[node], lambda it: it[1]) for refs in (first, second)] for node in held}
    ran = {node: answer(ref, lambda it: it[0]) for node, ref in second.items()}
    report("actors", counted=counted, ran=ran)
    for actor in held.values():
        ray.kill(actor)


def objects(plan: Dict[str, Any]) -> None:
    """Move an object from the driver to every node, and one from every node to the driver."""
    size = plan["elements"]
    data = content("driver", size)
    reference = ray.put(data)
    good = hashlib.sha256(data).hexdigest()
    sent, fetched, rates = {}, {}, {}
    for node in joined():
        begin = time.monotonic()
        sent[node] = answer(digest.options(**at(node)).remote(reference), lambda it: it[1] == good)
        made = produce.options(**at(node)).remote(node, size)
        fetched[node] = answer(made, lambda it, node=node: it == content(node, size))
        rates[node] = round(2 * size / max(1e-6, time.monotonic() - begin) / 1e6, 1)
    report("objects", sent=sent, fetched=fetched, rates=rates, size=size)


def gpus(plan: Dict[str, Any]) -> None:
    """Hold every GPU at once, each with a separate actor."""
    count = int(ray.cluster_resources().get("GPU", 0))
    holders = [Holder.remote() for _ in range(count)]
    held = [answer(holder.device.remote(), list) for holder in holders]
    report("gpus", count=count, held=held)
    for holder in holders:
        ray.kill(holder)


def tune(plan: Dict[str, Any]) -> None:
    """Run four trials under ASHA: the best is known, and the worst must be stopped early."""
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")
    from ray import tune as library
    from ray.tune.schedulers import ASHAScheduler

    def trial(config: Dict[str, Any]) -> None:
        for step in range(1, ITERATIONS + 1):
            library.report({"score": config["quality"] * step, "where": node_name()})

    by = {"metric": "score", "mode": "max"}
    scheduler = ASHAScheduler(max_t=ITERATIONS, grace_period=1, reduction_factor=2, **by)
    tuner = library.Tuner(
        trial,
        param_space={"quality": library.grid_search(list(QUALITIES))},
        tune_config=library.TuneConfig(scheduler=scheduler, max_concurrent_trials=2),
        run_config=run_config(library, plan),
    )
    begin = time.monotonic()
    results = tuner.fit()
    best = results.get_best_result(**by)
    iterations = {str(it.config["quality"]): it.metrics["training_iteration"] for it in results if it.metrics}
    report(
        "tune",
        best=best.config["quality"],
        iterations=iterations,
        errors=[str(error)[:200] for error in results.errors],
        nodes=sorted({it.metrics["where"] for it in results if it.metrics}),
        seconds=since(begin),
    )


def tune_gpus(plan: Dict[str, Any]) -> None:
    """Run one trial per node at once, each with one GPU; the resource of the node places it there."""
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")
    from ray import tune as library

    def trial(config: Dict[str, Any]) -> None:
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        library.report({"where": node_name(), "devices": devices, "uuid": visible_uuid()})

    def resources(config: Dict[str, Any]) -> Any:
        return library.PlacementGroupFactory([{"CPU": 1, "GPU": 1, **at(config["on"])["resources"]}])

    chosen = [node for node in joined() if plan["nodes"][node]["gpus"]]
    tuner = library.Tuner(
        library.with_resources(trial, resources),
        param_space={"on": library.grid_search(chosen)},
        tune_config=library.TuneConfig(time_budget_s=PATIENCE),
        run_config=run_config(library, plan),
    )
    trials = {}
    for one in tuner.fit():
        known = {key: (one.metrics or {}).get(key, "") for key in ("where", "devices", "uuid")}
        trials[one.config["on"]] = {**known, "error": " ".join(str(one.error or "").split())[:200]}
    report("tune_gpus", trials=trials, patience=PATIENCE)


def run_config(library: Any, plan: Dict[str, Any]) -> Any:
    """Return where Tune writes; Ray before 2.42 has RunConfig in ray.air."""
    module = library if hasattr(library, "RunConfig") else importlib.import_module("ray.air")
    return module.RunConfig(storage_path=os.path.join(plan["temp"], "tune"), verbose=0)


def token(plan: Dict[str, Any]) -> None:
    """Run a client of the head without the token."""
    bare = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    home = os.path.join(plan["temp"], "no-token")  # the home of the user may contain .ray/auth_token
    os.makedirs(home, exist_ok=True)
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address=" + plan["address"]]
    done = subprocess.run(
        command,
        env={**bare, "HOME": home, "RAY_AUTH_MODE": "disabled"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE,
        check=False,
    )
    output = " ".join(done.stdout.decode(errors="replace").split())
    refused = done.returncode != 0 and "uth" in output
    report("no_token", refused=refused, rc=done.returncode, output=output[-200:])


def answer(reference: Any, take: Callable[[Any], Any]) -> Any:
    """Return take(result) of a task, or its error as text."""
    try:
        return take(ray.get(reference, timeout=PATIENCE))
    except Exception as error:
        return "%s: %s" % (type(error).__name__, " ".join(str(error).split())[:200])


def since(begin: float) -> float:
    """Return seconds, to a hundredth."""
    return round(time.monotonic() - begin, 2)


WORK = {
    "nodes": nodes,
    "tasks": tasks,
    "actors": actors,
    "objects": objects,
    "gpus": gpus,
    "tune": tune,
    "tune_gpus": tune_gpus,
    "token": token,
}


def connect(plan: Dict[str, Any]) -> None:
    """Connect to the head within `join`: on a busy node its raylet registers long after its port answers."""
    end = time.monotonic() + plan["join"]
    options = {"_node_ip_address": plan["ip"], "log_to_driver": False, "logging_level": "ERROR"}
    while not ray.is_initialized():
        try:
            ray.init(address=plan["address"], **options)
        except ConnectionError as error:
            if time.monotonic() > end:
                raise ConnectionError("%s within %g s" % (error, plan["join"])) from None
            time.sleep(0.5)


def main(plan: Dict[str, Any]) -> int:
    """Do the requested work, piece by piece."""
    connect(plan)
    for name in plan["work"]:
        try:
            WORK[name](plan)
        except Exception as error:
            report(name, problem=error_text(error))
    return 0


if __name__ == "__main__":
    code = main(json.loads(sys.argv[1]))
    exit_now(code)  # the head ends the cluster: a shutdown of the driver only takes time
