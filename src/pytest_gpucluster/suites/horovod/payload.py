# A framework may raise anything (BLE001); the python of the nodes may lack zip(strict=) (B905).
"""One rank of a Horovod job: its place, all-reduce, broadcast and a training step, each checked against closed forms.

Runs by `payload_step.command` under srun (rank 0 runs Horovod's rendezvous server), or under horovodrun,
which sets all variables itself. Prints one JSON line per rank:

    {"kind": "rank", "node": "gpu01", "rank": 0, "size": 4, "local_rank": 0, ..., "wrong": {"float32": 0}, ...}

or {"kind": "problem", "what": "interface"|"port_taken"|"framework"|"deadline"|..., "stage": ..., "problem": ...}.
Exit codes: 0 done, 1 see "problem", 4 deadline.
"""

import argparse
import hashlib
import os
import socket
import sys
import threading
import time
import urllib.request
from typing import Any, Dict, List

from pytest_gpucluster.kit.payloads.prelude import (
    Failure,
    address_towards,
    error_text,
    exit_now,
    interfaces,
    node_name,
    number_of,
    print_json,
)

ELEMENTS = 10007  # prime: no size of a ring divides it
TIMED = 4 << 20  # float32 elements of the timed all-reduce: 16 MiB
ROUNDS = 5
EXACT_IN_HALF = 2048  # float16 holds whole numbers up to here; the sums of many ranks are larger
FEATURES, CLASSES, BATCH, RATE = 16, 4, 8, 0.1
STAGE = ["start"]
UNDER_HOROVODRUN = "--launcher=horovodrun" in sys.argv


def report(kind: str, **facts: Any) -> None:
    """Print facts of this rank; horovodrun copies the first node's variables, so there the host name is the node."""
    print_json(kind=kind, node=socket.gethostname() if UNDER_HOROVODRUN else node_name(), **facts)


def fail(what: str, problem: str, code: int) -> None:
    """Report a problem and end at once: a normal exit would wait for a hung collective."""
    rank = os.environ.get("SLURM_PROCID") or os.environ.get("HOROVOD_RANK") or "?"
    report("problem", rank=rank, what=what, stage=STAGE[0], problem=" ".join(problem.split())[:400])
    exit_now(code)


# -- interface and rendezvous ------------------------------------------------------------------------------------


def interface_of(other: str) -> str:
    """Return the interface towards another node; nothing is sent."""
    own = address_towards(other)
    if own.startswith("127."):
        return "lo"
    return next((name for name, address in interfaces().items() if address == own), "lo")


def rendezvous(hosts: List[str], per_node: int, port: int, nonce: str) -> None:
    """Start Horovod's rendezvous server in this process, with a nonce that identifies it."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class Quiet(RendezvousHandler):
        def log_message(self, *_: Any) -> None:
            """Print nothing: a request of a key that does not exist yet is no error."""

    try:
        server = RendezvousHTTPServer(("", port), Quiet, 0)
    except OSError as error:
        raise Failure("port_taken", "port %d for the rendezvous is taken: %s" % (port, error)) from None
    slots = ",".join("%s:%d" % (host, per_node) for host in hosts)
    server.init(get_host_assignments(parse_hosts(slots), len(hosts) * per_node))
    server.cache["gpucluster"] = {"nonce": nonce.encode()}
    threading.Thread(target=server.serve_forever, daemon=True).start()


def find_rendezvous(address: str, port: int, nonce: str, patience: float) -> None:
    """Wait until the rendezvous server of rank 0 answers."""
    end = time.monotonic() + patience
    problem = "no answer"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < end:
        try:
            url = "http://%s:%d/gpucluster/nonce" % (address, port)
            answer = opener.open(url, timeout=5).read()
            if answer == nonce.encode():
                return
            problem = "another program answered"
        except (OSError, ValueError) as error:
            problem = str(error)
        time.sleep(0.2)
    text = "rendezvous of rank 0 on %s:%d: %s within %g s" % (address, port, problem, patience)
    raise Failure("rendezvous", text)


def under_gloo(args: argparse.Namespace) -> str:
    """Set the variables that horovodrun would set; return the interface."""
    env = os.environ
    hosts, per_node = args.hosts.split(","), args.per_node
    rank = number_of(env, "SLURM_PROCID")
    host_index, local = divmod(rank, per_node)
    nonce = "%s.%s" % (env.get("SLURM_JOB_ID", ""), env.get("SLURM_STEP_ID", ""))
    other = args.second if rank < per_node and args.second else args.address
    interface = interface_of(other)
    STAGE[0] = "rendezvous"
    if rank == 0:
        rendezvous(hosts, per_node, args.port, nonce)
    find_rendezvous(args.address, args.port, nonce, args.deadline)
    env.update(
        HOROVOD_GLOO_RENDEZVOUS_ADDR=socket.gethostbyname(args.address),
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(args.port),
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE=interface,
        HOROVOD_GLOO_TIMEOUT_SECONDS=str(int(args.deadline)),
        HOROVOD_HOSTNAME=hosts[host_index],
        HOROVOD_RANK=str(rank),
        HOROVOD_SIZE=str(len(hosts) * per_node),
        HOROVOD_LOCAL_RANK=str(local),
        HOROVOD_LOCAL_SIZE=str(per_node),
        HOROVOD_CROSS_RANK=str(host_index),
        HOROVOD_CROSS_SIZE=str(len(hosts)),
    )
    return interface


# -- the frameworks ----------------------------------------------------------------------------------------------


class Torch:
    """PyTorch; the device is the GPU of the local rank, if there is one."""

    types = ("float32", "float64", "int32", "int64", "float16")

    def __init__(self) -> None:
        import horovod.torch as hvd
        import torch

        self.hvd, self.torch, self.version = hvd, torch, str(torch.__version__)

    def choose_device(self) -> str:
        """Choose the device; return an identifier of it."""
        torch = self.torch
        self.device = torch.device("cpu")
        if not torch.cuda.is_available():
            return "cpu"
        number = self.hvd.local_rank() % torch.cuda.device_count()
        torch.cuda.set_device(number)
        self.device = torch.device("cuda", number)
        return str(getattr(torch.cuda.get_device_properties(number), "uuid", "") or "cuda:%d" % number)

    def all_reduce(self, dtype: str, values: List[int]) -> List[float]:
        """Return the sum over the ranks."""
        tensor = self.torch.tensor(values, dtype=getattr(self.torch, dtype), device=self.device)
        return self.hvd.allreduce(tensor, op=self.hvd.Sum, name="sum." + dtype).tolist()

    def broadcast(self, root: int, values: List[int]) -> List[float]:
        """Return the data of the root."""
        tensor = self.torch.tensor(values, dtype=self.torch.int64, device=self.device)
        return self.hvd.broadcast(tensor, root, name="root.%d" % root).tolist()

    def timed(self) -> float:
        """Return seconds of one all-reduce of 16 MiB, the median of a few."""
        tensor = self.torch.ones(TIMED, dtype=self.torch.float32, device=self.device)
        seconds = []
        for number in range(ROUNDS):
            begin = time.perf_counter()
            self.hvd.allreduce(tensor, op=self.hvd.Sum, name="timed.%d" % number).sum().item()
            seconds.append(time.perf_counter() - begin)
        return sorted(seconds)[ROUNDS // 2]

    def train(self) -> Dict[str, Any]:
        """Take one step; return the hashes of the parameters before and after, and their distance from the closed form."""
        torch, hvd = self.torch, self.hvd
        # ranks begin with different parameters: the broadcast makes them equal
        torch.manual_seed(1000 + hvd.rank())
        model = torch.nn.Linear(FEATURES, CLASSES).to(self.device)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        begin = [parameter.detach().clone() for parameter in model.parameters()]
        # the mean of the gradients of all ranks, computed locally
        of_ranks = [self.gradients(begin, rank) for rank in range(hvd.size())]
        reference = [sum(gradients) / hvd.size() for gradients in zip(*of_ranks)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=RATE), named_parameters=model.named_parameters()
        )
        self.loss(model, hvd.rank()).backward()
        optimizer.step()
        after = [parameter.detach() for parameter in model.parameters()]
        error = max(float((now - (old - RATE * mean)).abs().max()) for now, old, mean in zip(after, begin, reference))
        return {"before": self.digest(begin), "after": self.digest(after), "error": error}

    def loss(self, model: Any, rank: int) -> Any:
        """Return the loss on the data of a rank."""
        torch = self.torch
        made = torch.Generator().manual_seed(rank)
        inputs = torch.randn(BATCH, FEATURES, generator=made).to(self.device)
        targets = torch.randint(CLASSES, (BATCH,), generator=made).to(self.device)
        return torch.nn.functional.cross_entropy(model(inputs), targets)

    def gradients(self, parameters: Any, rank: int) -> Any:
        """Return the gradients on the data of a rank, from a separate model."""
        model = self.torch.nn.Linear(FEATURES, CLASSES).to(self.device)
        with self.torch.no_grad():
            for own, given in zip(model.parameters(), parameters):
                own.copy_(given)
        return self.torch.autograd.grad(self.loss(model, rank), list(model.parameters()))

    @staticmethod
    def digest(parameters: Any) -> str:
        """Return a hash of the parameters' bytes."""
        joined = b"".join(parameter.cpu().numpy().tobytes() for parameter in parameters)
        return hashlib.sha256(joined).hexdigest()[:16]


class TensorFlow:
    """TensorFlow 2, eager."""

    types = ("float32", "float64", "int32", "int64")

    def __init__(self) -> None:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        self.hvd, self.tf, self.version = hvd, tf, str(tf.__version__)

    def choose_device(self) -> str:
        """Choose the device; return an identifier of it."""
        devices = self.tf.config.list_physical_devices("GPU")
        if not devices:
            return "cpu"
        number = self.hvd.local_rank() % len(devices)
        self.tf.config.set_visible_devices(devices[number], "GPU")
        return "%s of %s" % (devices[number].name, os.environ.get("CUDA_VISIBLE_DEVICES", "all"))

    def all_reduce(self, dtype: str, values: List[int]) -> List[float]:
        """Return the sum over the ranks."""
        tensor = self.tf.constant(values, dtype=getattr(self.tf, dtype))
        return self.hvd.allreduce(tensor, op=self.hvd.Sum, name="sum." + dtype).numpy().tolist()

    def broadcast(self, root: int, values: List[int]) -> List[float]:
        """Return the data of the root."""
        tensor = self.tf.constant(values, dtype=self.tf.int64)
        return self.hvd.broadcast(tensor, root, name="root.%d" % root).numpy().tolist()

    def timed(self) -> float:
        """Return seconds of one all-reduce of 16 MiB, the median of a few."""
        tensor = self.tf.ones((TIMED,), dtype=self.tf.float32)
        seconds = []
        for number in range(ROUNDS):
            begin = time.perf_counter()
            self.hvd.allreduce(tensor, op=self.hvd.Sum, name="timed.%d" % number).numpy()
            seconds.append(time.perf_counter() - begin)
        return sorted(seconds)[ROUNDS // 2]

    def train(self) -> Dict[str, Any]:
        """Take one step; return the hashes of the parameters before and after, and their distance from the closed form."""
        tf, hvd = self.tf, self.hvd
        start = tf.random.stateless_normal((FEATURES, CLASSES), seed=(1000 + hvd.rank(), 0))
        weights = tf.Variable(start)
        hvd.broadcast_variables([weights], root_rank=0)
        begin = tf.identity(weights)
        mean = sum(self.gradient(tf.Variable(begin), rank, None) for rank in range(hvd.size())) / hvd.size()
        weights.assign_sub(RATE * self.gradient(weights, hvd.rank(), hvd.DistributedGradientTape))
        error = float(tf.reduce_max(tf.abs(weights - (begin - RATE * mean))))
        return {"before": self.digest(begin), "after": self.digest(weights), "error": error}

    def gradient(self, weights: Any, rank: int, wrap: Any) -> Any:
        """Return the gradient on the data of a rank, through Horovod's tape if one is given."""
        tf = self.tf
        inputs = tf.random.stateless_normal((BATCH, FEATURES), seed=(rank, 1))
        targets = tf.random.stateless_uniform((BATCH,), seed=(rank, 2), maxval=CLASSES, dtype=tf.int32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=inputs @ weights)
            )
        return (wrap(tape) if wrap else tape).gradient(loss, [weights])[0]  # Horovod accepts lists only

    @staticmethod
    def digest(weights: Any) -> str:
        """Return a hash of the parameters' bytes."""
        return hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]


FRAMEWORKS = {"pytorch": Torch, "tensorflow": TensorFlow}


# -- the work ----------------------------------------------------------------------------------------------------


def pattern(factor: int) -> List[int]:
    """Return small integers, which every type sums exactly."""
    return [factor * (index % 3 + 1) for index in range(ELEMENTS)]


def differing(values: List[float], expected: List[int]) -> int:
    """Return how many elements differ."""
    return sum(one != other for one, other in zip(values, expected)) + abs(len(values) - len(expected))


def measure(framework: Any, interface: str) -> None:
    """Run all phases and report the results."""
    hvd = framework.hvd
    STAGE[0] = "init"
    hvd.init()
    device = framework.choose_device()
    rank, size = hvd.rank(), hvd.size()
    STAGE[0] = "all-reduce"
    total = size * (size + 1) // 2
    types = [dtype for dtype in framework.types if dtype != "float16" or max(pattern(total)) <= EXACT_IN_HALF]
    wrong = {dtype: differing(framework.all_reduce(dtype, pattern(rank + 1)), pattern(total)) for dtype in types}
    seconds = framework.timed()
    STAGE[0] = "broadcast"
    roots = sorted({0, size - 1})
    sent = {str(root): differing(framework.broadcast(root, pattern(rank + 7)), pattern(root + 7)) for root in roots}
    STAGE[0] = "training"
    trained = framework.train()
    STAGE[0] = "shutdown"
    report(
        "rank",
        rank=rank,
        size=size,
        local_rank=hvd.local_rank(),
        local_size=hvd.local_size(),
        cross_rank=hvd.cross_rank(),
        cross_size=hvd.cross_size(),
        host=socket.gethostname(),
        procid=os.environ.get("SLURM_PROCID", ""),
        controller="mpi" if hvd.mpi_enabled() else "gloo" if hvd.gloo_enabled() else "none",
        interface=interface,
        device=device,
        nccl=bool(hvd.nccl_built()),
        version=framework.version,
        wrong=wrong,
        sent=sent,
        trained=trained,
        seconds=round(seconds, 5),
    )
    hvd.shutdown()


def main(argv: List[str]) -> int:
    """Run one rank."""
    parser = argparse.ArgumentParser(prog="horovod_world")
    parser.add_argument("--framework", choices=sorted(FRAMEWORKS), required=True)
    parser.add_argument("--launcher", choices=("srun", "horovodrun"), required=True)
    parser.add_argument("--hosts", default="", help="the nodes in rank order, separated by commas")
    parser.add_argument("--per-node", type=int, default=1)
    parser.add_argument("--address", default="", help="address of the node of rank 0")
    parser.add_argument("--second", default="", help="address of another node, to find the interface between them")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=120.0, help="seconds for all phases")
    args = parser.parse_args(argv)

    def late() -> None:
        fail("deadline", "not done within %g s, in %s" % (args.deadline, STAGE[0]), 4)

    watch = threading.Timer(args.deadline, late)
    watch.daemon = True
    watch.start()
    try:
        STAGE[0] = "import"
        try:
            framework = FRAMEWORKS[args.framework]()
        except Exception as error:
            message = "Horovod for %s cannot be imported by %s: %s" % (args.framework, sys.executable, error)
            raise Failure("framework", message) from None
        interface = ""
        if args.launcher == "srun":
            interface = under_gloo(args)
        measure(framework, interface or os.environ.get("HOROVOD_GLOO_IFACE", ""))
    except Failure as error:
        fail(error.kind, str(error), 1)
    except Exception as error:
        fail("horovod", error_text(error), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
