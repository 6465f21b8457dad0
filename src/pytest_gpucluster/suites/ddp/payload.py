# A broken framework may raise anything (BLE001).
"""torch.distributed as users start it: rank variables, process group, all-reduce, a training step, a lost rank.

Runs on the nodes, one process per rank, under the python of the site or of a container (LOADER, SOURCE: `payload_step.command`):

    srun --ntasks-per-node=2 python3 -c LOADER place PAYLOAD SOURCE
    srun --ntasks-per-node=2 python3 -c LOADER work --backend gloo PAYLOAD SOURCE
    srun --ntasks-per-node=1 python3 -m torch.distributed.run ... --no-python python3 -c LOADER work PAYLOAD SOURCE

`place` needs the standard library only. It reports which of WORLD_SIZE, RANK, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
the task has, the addresses of MASTER_ADDR, whether rank 0 can bind the port, the interfaces, and whether torch is
installed. `work` sets missing variables from Slurm's and computes; `lose` does so and then kills the last rank.

Each fact is one line of JSON that starts with {"ddp": . Exit codes: 0 done, 1 failed, 3 port taken, 4 deadline,
9 a rank was lost and the others noticed it (`lose`).
"""

import argparse
import datetime as dt
import errno
import hashlib
import os
import re
import signal
import socket
import time
from typing import Any, Dict, List, Optional, Sequence

from pytest_gpucluster.kit.payloads.prelude import (
    FewGpus,
    Watch,
    exit_now,
    gpu_facts,
    installed,
    no_device,
    nodes_of_step,
    number_of,
    own_port,
    port_in_use,
    reporter,
    run_phases,
)

EXIT_PORT, EXIT_LOST = 3, 9
VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
SLURMS = {
    "RANK": ("SLURM_PROCID",),
    "WORLD_SIZE": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    "LOCAL_RANK": ("SLURM_LOCALID",),
}
PERIOD = 31  # ranks at this distance have the same data
ELEMENTS = 1 << 20
STEPS = 3  # of training

report = reporter("ddp", "RANK")  # torchrun sets it


# -- rank variables ---------------------------------------------------------------------------------------------


def from_slurm(env: Dict[str, str], address: str) -> Dict[str, str]:
    """Return the five variables, derived from Slurm's."""
    return {
        **{name: next(filter(None, map(env.get, names)), "") for name, names in SLURMS.items()},
        "MASTER_ADDR": address or next(iter(nodes_of_step(env)), "") or socket.gethostname(),
        "MASTER_PORT": str(own_port(env)),
    }


def one_line(error: BaseException) -> str:
    """Return type and message of an exception on one line, with the lines that name NCCL's error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"Last error|ncclSystemError|Duplicate GPU", line)]
    text = "; ".join((lines[:1] + named[:2]) or [type(error).__name__])
    return "%s: %s" % (type(error).__name__, text[:400])


# -- place ------------------------------------------------------------------------------------------------------


def resolve(name: str) -> Dict[str, Any]:
    """Return {addresses, error} of a host name."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return {"addresses": [], "error": str(error)}
    return {"addresses": sorted({str(entry[4][0]) for entry in found}), "error": ""}


def try_port(addresses: Sequence[str], port: int) -> str:
    """Return '' if this process can listen there, else 'taken', 'not local' or the error."""
    for address in ["", *addresses]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
                probe.listen(1)
            except (OSError, OverflowError) as error:
                known = {errno.EADDRINUSE: "taken", errno.EADDRNOTAVAIL: "not local"}
                return known.get(getattr(error, "errno", 0) or 0, str(error))
    return ""


def place(address: str) -> int:
    """Report the variables, addresses and packages of this task."""
    env = dict(os.environ)
    own = from_slurm(env, address)
    given = {name: env[name] for name in VARIABLES if name in env}
    final = {**own, **given}
    found = resolve(final["MASTER_ADDR"])
    port = ""
    if own["RANK"] == "0":
        number = final["MASTER_PORT"]
        port = try_port(found["addresses"], int(number)) if re.fullmatch("[0-9]{1,5}", number) else "no number"
    report(
        "place",
        task=number_of(env, "SLURM_PROCID", default="-1"),
        host=socket.gethostname(),
        slurm=own,
        given=given,
        pytorch_version=env.get("PYTORCH_VERSION", ""),
        job=env.get("SLURM_JOB_ID", ""),
        first=next(iter(nodes_of_step(env)), ""),
        master=found,
        port=port,
        interfaces=[name for _, name in socket.if_nameindex()],
        interface_variables={name: env[name] for name in INTERFACES if env.get(name)},
        torch=installed("torch"),
    )
    return 0


# -- work -------------------------------------------------------------------------------------------------------


class RankWorker:
    """The phases of one rank."""

    def __init__(self, args: argparse.Namespace, watch: Watch) -> None:
        self.args, self.watch = args, watch
        self.rank, self.size, self.local = (number_of(os.environ, name) for name in SLURMS)

    def run(self) -> int:
        """Run the phases; return the exit code."""
        self.load()
        self.join()
        if self.args.mode == "lose":
            return self.lose()
        self.all_reduce()
        self.train()
        self.part()
        report("done")
        return 0

    def load(self) -> None:
        """Import torch and select a device."""
        self.watch.enter("import torch")
        import torch  # `place` runs without

        self.torch, self.dist = torch, torch.distributed
        if not self.dist.is_available():
            raise RuntimeError("torch %s was built without torch.distributed" % torch.__version__)
        took = self.watch.took()
        self.device = torch.device("cpu")
        facts = {"name": "CPU", "uuid": "", "bus": "", "visible": 0}  # type: Dict[str, Any]
        if self.args.backend == "nccl":
            self.watch.enter("take a GPU")
            facts = self._take_gpu()
        report("loaded", torch=torch.__version__, cuda=torch.version.cuda or "", seconds=took, device=facts)

    def _take_gpu(self) -> Dict[str, Any]:
        cuda = self.torch.cuda
        visible = cuda.device_count() if cuda.is_available() else 0
        if not visible:
            shown = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
            why, code = no_device(self.torch)
            text = "torch %s sees no GPU: %s (CUDA_VISIBLE_DEVICES=%s)"
            raise FewGpus(text % (self.torch.__version__, why, shown), code)
        # with --gpus-per-task each task sees its own GPU only
        index = 0 if visible == 1 else self.local
        if index >= visible:
            raise FewGpus("LOCAL_RANK is %d, but only %d GPUs are visible" % (index, visible))
        cuda.set_device(index)
        self.device = self.torch.device("cuda", index)
        return {**gpu_facts(cuda.get_device_properties(index)), "visible": visible}

    def join(self) -> None:
        """Form the process group, as users do: init_method env://."""
        self.watch.enter("process group", self.args.deadline + 15)
        seconds = self.args.deadline
        try:
            timeout = dt.timedelta(seconds=seconds)
            self.dist.init_process_group(self.args.backend, init_method="env://", timeout=timeout)
        except Exception as error:
            if self.rank == 0 and port_in_use(error):
                port = os.environ["MASTER_PORT"]
                report("failed", phase=self.watch.phase, reason=one_line(error), port=port)
                exit_now(EXIT_PORT)
            raise
        report("joined", size=self.dist.get_world_size(), group_rank=self.dist.get_rank(), seconds=self.watch.took())

    def all_reduce(self) -> None:
        """Sum data of which the sum is known, and count what is wrong."""
        self.watch.enter("all_reduce")
        index = self.torch.arange(ELEMENTS, device=self.device, dtype=self.torch.int64)
        mine = ((index * 7 + self.rank * 13) % PERIOD).float()
        total = self.torch.zeros_like(mine)
        for rank in range(min(self.size, PERIOD)):
            alike = (self.size - rank + PERIOD - 1) // PERIOD
            total += ((index * 7 + rank * 13) % PERIOD).float() * alike
        result = mine.clone()
        self.dist.all_reduce(result)
        wrong = int((result != total).sum().item())
        begin = time.monotonic()
        for _ in range(3):
            result.copy_(mine)
            self.dist.all_reduce(result)
        float(result[0].item())  # a GPU computes asynchronously until a value is read
        each = (time.monotonic() - begin) / 3
        report("reduced", elements=ELEMENTS, wrong=wrong, seconds=round(each, 6), bytes=ELEMENTS * 4)

    def train(self) -> None:
        """Train a model with different weights and data on each rank: DDP must make the weights equal."""
        self.watch.enter("training step")
        torch = self.torch
        torch.manual_seed(1000 + self.rank)
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        model = model.to(self.device)
        own = self.digest(model)
        devices = [self.device.index] if self.device.type == "cuda" else None
        ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=devices)
        synced = self.digest(model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
        inputs = torch.randn(32, 64).to(self.device)
        wanted = torch.randint(0, 10, (32,)).to(self.device)
        losses: List[float] = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(ddp(inputs), wanted)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.item()))
        report("trained", own=own, synced=synced, after=self.digest(model), losses=losses, seconds=self.watch.took())

    def digest(self, model: Any) -> str:
        """Return a hash of all parameters, exact to the bit."""
        values = [p.detach().double().flatten().tolist() for p in model.parameters()]
        return hashlib.sha256(repr(values).encode()).hexdigest()[:16]

    def part(self) -> None:
        """Leave the group together."""
        self.watch.enter("barrier")
        self.dist.barrier()
        self.watch.enter("destroy the process group")
        self.dist.destroy_process_group()

    def lose(self) -> int:
        """Kill the last rank; return the exit code of the others, which must notice it."""
        data = self.torch.ones(1024, device=self.device)
        self.dist.all_reduce(data)
        float(data[0].item())
        self.watch.enter("collective with a lost rank", self.args.notice)
        if self.rank == self.size - 1:
            report("lost")
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        try:
            while True:
                self._all_reduce_within(data, max(5, self.args.notice / 3))
                float(data[0].item())
                data.fill_(1)
        except Exception as error:
            report("noticed", seconds=round(time.monotonic() - begin, 3), reason=one_line(error))
        return EXIT_LOST

    def _all_reduce_within(self, data: Any, seconds: float) -> None:
        """Sum; raise if it takes longer. Only a timeout shows NCCL that a peer is dead.

        Without this wait torch ends the process a minute after the timeout of the group (2.11, measured).
        """
        if self.args.backend != "nccl":
            self.dist.all_reduce(data)
            return
        self.dist.all_reduce(data, async_op=True).wait(dt.timedelta(seconds=seconds))


def work(args: argparse.Namespace) -> int:
    """Set the missing variables and run the phases; return the exit code."""
    own = from_slurm(dict(os.environ), args.address)
    if os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("RANK"):  # torchrun sets both
        own = {}
        report("given", given={name: os.environ.get(name, "") for name in VARIABLES})
    for name, names in SLURMS.items():
        number_of(os.environ, name, *names)  # the variable that is wrong is named
    for name, value in own.items():
        os.environ.setdefault(name, value)
    watch = Watch(args.deadline, report)
    return run_phases(report, watch, lambda: RankWorker(args, watch).run(), one_line)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the payload; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("place", "work", "lose"))
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--address", default="", help="MASTER_ADDR if none is set")
    parser.add_argument("--deadline", type=float, default=60, help="seconds per phase")
    parser.add_argument("--notice", type=float, default=60, help="seconds within which a lost rank must be noticed")
    args = parser.parse_args(argv)
    return place(args.address) if args.mode == "place" else work(args)


if __name__ == "__main__":
    exit_now(main())
