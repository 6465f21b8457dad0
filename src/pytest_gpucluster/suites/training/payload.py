"""A short pre-training of a transformer on torch: replay, speed, loss curves, a checkpoint.

Runs on the nodes, one process per rank, under the python of the site or of a container (LOADER, SOURCE: `payload_step.command`):

    srun --ntasks-per-node=1 python3 -c LOADER find PAYLOAD SOURCE
    srun --ntasks-per-node=8 python3 -c LOADER alone --per-node 8 PAYLOAD SOURCE
    srun --ntasks-per-node=8 python3 -c LOADER together --per-node 8 --address 10.0.0.1 PAYLOAD SOURCE

`find` reports whether torch is installed. `alone` has one process group per node. It replays the first steps with
deterministic algorithms, then trains without collectives (plain), with DistributedDataParallel and with FSDP.
`together` trains with one group of all ranks. With a folder in FOLDER of the environment, which other users cannot read,
the FSDP state is written, and read by another node. `remove` removes the folder that a dead step left.

Each fact is one line of JSON that starts with {"training": . Exit codes: 0 done, 1 failed, 4 deadline.
"""

import argparse
import contextlib
import datetime as dt
import gc
import hashlib
import inspect
import os
import platform
import re
import subprocess
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence

from pytest_gpucluster.kit.payloads.own_folder import checked_folder, own_descriptor, remove_named
from pytest_gpucluster.kit.payloads.prelude import (
    Failure,
    FewGpus,
    Watch,
    error_text,
    exit_now,
    gpu_facts,
    installed,
    no_device,
    number_of,
    own_port,
    reporter,
    run_phases,
)
from pytest_gpucluster.kit.payloads.tensor_bits import digest_of
from pytest_gpucluster.suites.training.payload_model import NAMES, SHAPES, chosen, decoder, flops_of, tokens_of

RATE = 3e-4  # of AdamW
REPLAYS = 2
MPS = "nvidia-cuda-mps-server"  # where a site runs it, it has a context on every GPU
SEEN = 10.0  # seconds for a file of another node to appear: NFS caches folders
FOLDER = "GPUCLUSTER_CHECKPOINT"  # the folder that is created for the checkpoint and removed

report = reporter("training")


def age() -> float:
    """Return seconds since this process started (proc(5): starttime in clock ticks since boot)."""
    with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
        return round(float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK"), 3)


def cpu_name() -> str:
    """Return the CPU's model name: results are equal bit by bit on equal CPUs only."""
    with open("/proc/cpuinfo") as lines:
        named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def driver() -> str:
    """Return the version of NVIDIA's driver; '' if it is not known."""
    try:
        with open("/proc/driver/nvidia/version") as text:
            found = re.search(r" (\d+\.\d+[.\d]*) ", text.readline())
    except OSError:
        found = None
    return found.group(1) if found else ""


def gpu_processes() -> Optional[List[List[str]]]:
    """Return [UUID, pid, name, memory] of each process on a GPU; None if nvidia-smi does not answer."""
    query = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"], stdout=subprocess.PIPE, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [[word.strip() for word in line.split(",")] for line in done.stdout.decode().splitlines() if line]


class DeviceTimer:
    """Marks on the device's time line; reading them waits for the device, taking them does not."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch, self.cuda = torch, device.type == "cuda"

    def mark(self) -> Any:
        """Return a mark: a CUDA event, or times of wall clock and of this thread's CPU."""
        if not self.cuda:
            return time.perf_counter(), time.thread_time()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Wait for the device."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def seconds(self, start: Any, end: Any, *, busy: bool = False) -> float:
        """Return the time between two marks; `busy`: on a CPU that of the thread, without waiting."""
        if self.cuda:
            return float(start.elapsed_time(end)) / 1e3
        return float(end[int(busy)] - start[int(busy)])


class Trainer:
    """The phases of one rank."""

    def __init__(self, args: argparse.Namespace, watch: Watch) -> None:
        self.args, self.watch = args, watch
        env = os.environ
        self.world = args.mode == "together"
        self.local = number_of(env, "SLURM_LOCALID", default="0")
        self.node = number_of(env, "SLURM_NODEID", default="0")
        self.rank = number_of(env, "SLURM_PROCID", default="0") if self.world else self.local
        self.size = number_of(env, "SLURM_STEP_NUM_TASKS", default="1") if self.world else args.per_node
        self.first = 0.0

    def run(self) -> int:
        """Run the phases; return the exit code."""
        self.load()
        self.join()
        if not self.world:
            self.replay()
            self.train("plain")
        self.train("ddp")
        state = self.train("fsdp")
        if FOLDER in os.environ:
            self.checkpoint(state)
        self.watch.enter("leave the group")
        self.dist.barrier()
        others = self.others(gpu_processes() if self.args.gpus else None, started=True)
        report("done", age=age(), first=self.first, others=others)
        self.dist.destroy_process_group()
        return 0

    # -- start

    def load(self) -> None:
        """Import torch and select a device."""
        self.watch.enter("import torch")
        # read when cuBLAS starts; deterministic products need it, and on Hopper it is torch's own size
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self.before = gpu_processes() if self.args.gpus else None
        import torch
        import torch.distributed

        self.torch, self.dist = torch, torch.distributed
        self.watch.enter("take a device")
        self.device, self.dtype, gib = torch.device("cpu"), torch.float32, 0.0
        facts = {"name": cpu_name(), "uuid": "", "bus": ""}
        hardware = "%s/%d" % (torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
        if self.args.gpus:
            about = self.take_gpu()
            facts, gib = gpu_facts(about), about.total_memory / 2.0**30
            if about.major >= 8:  # older GPUs have no bf16
                self.dtype = torch.bfloat16
            libraries = (torch.version.cuda, torch.backends.cudnn.version(), driver())
            hardware = "%d/%s/%s/%s" % (about.multi_processor_count, *libraries)
        self.clock, self.uuid = DeviceTimer(torch, self.device), facts["uuid"]
        self.fitting = chosen(self.args.model, gib)
        self.alike = "%s/%s/%s" % (facts["name"], torch.__version__, hardware)
        report("loaded", torch=torch.__version__, device=facts, seconds=self.watch.took())

    def take_gpu(self) -> Any:
        """Select this rank's GPU; return its properties."""
        cuda = self.torch.cuda
        visible = cuda.device_count() if cuda.is_available() else 0
        index = 0 if visible == 1 else self.local  # with a GPU bound to each task there is only one
        if index >= visible:
            shown = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
            why, code = "the rank is number %d of its node" % self.local, ""
            if not visible:
                why, code = no_device(self.torch)
            raise FewGpus("torch sees %d GPUs (CUDA_VISIBLE_DEVICES=%s): %s" % (visible, shown, why), code)
        cuda.set_device(index)
        self.device = self.torch.device("cuda", index)
        return cuda.get_device_properties(index)

    def others(self, known: Optional[List[List[str]]], *, started: bool) -> Optional[List[str]]:
        """Return the processes on this rank's GPU other than this one; None if they are not known.

        `started`: this process uses CUDA, so it must be among them; otherwise its pid is one of another namespace.
        """
        if known is None or not self.uuid:
            return None
        mine = [row for row in known if row[0] == self.uuid and len(row) > 2 and not row[2].endswith(MPS)]
        if started and str(os.getpid()) not in [row[1] for row in mine]:
            return None
        return ["%s (pid %s)" % (row[2], row[1]) for row in mine if row[1] != str(os.getpid())]

    def join(self) -> None:
        """Form the process group, and choose the model size that fits all its ranks."""
        others = self.others(self.before, started=False)
        self.watch.enter("process group", self.args.deadline + 15)
        # virtual nodes share loopback: each node alone has a port of its own
        offset = 0 if self.world else 1 + self.node
        port = own_port(dict(os.environ), 1024) + offset % 1024
        options = {
            "init_method": "tcp://%s:%d" % (self.args.address if self.world else "127.0.0.1", port),
            "rank": self.rank, "world_size": self.size, "timeout": dt.timedelta(seconds=self.args.deadline),
        }  # fmt: skip
        if self.args.gpus and "device_id" in inspect.signature(self.dist.init_process_group).parameters:
            options["device_id"] = self.device
        self.dist.init_process_group("nccl" if self.args.gpus else "gloo", **options)
        smallest = self.torch.tensor([self.fitting], device=self.device)
        self.dist.all_reduce(smallest, op=self.dist.ReduceOp.MIN)
        self.shape = SHAPES[int(smallest.item())]
        report(
            "joined", size=self.size, group_rank=self.dist.get_rank(), model=self.shape.name, alike=self.alike,
            dtype=str(self.dtype).partition(".")[2], others=others, seconds=self.watch.took(),
        )  # fmt: skip

    def build(self) -> Any:
        """Return a new model with seeded parameters."""
        return decoder(self.torch, self.shape, self.device, self.dtype)

    def optimizer(self, model: Any) -> Any:
        """Return AdamW, as one kernel on GPUs."""
        fused = {"fused": True} if self.args.gpus else {}
        return self.torch.optim.AdamW(model.parameters(), lr=RATE, **fused)

    def data(self, steps: int, slot: int) -> Any:
        """Return the tokens of all steps on the device."""
        return tokens_of(self.torch, self.shape, steps, slot).to(self.device)

    def digest(self, model: Any) -> str:
        """Return a digest of all parameters, exact to the bit."""
        return self.digest_all(parameter.detach() for parameter in model.parameters())

    def digest_all(self, tensors: Iterator[Any]) -> str:
        """Return a digest of tensors, made on the device: one thread of a CPU takes 20 s per GB."""
        parts = [digest_of(self.torch, tensor.to(self.device)) for tensor in tensors]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]

    # -- replay

    def replay(self) -> None:
        """Run the first steps with deterministic algorithms, twice; no rank depends on another."""
        results, reason = [], ""
        for _ in range(REPLAYS):
            self.watch.enter("replay")
            self.free()
            self.torch.use_deterministic_algorithms(True)
            try:
                results.append(self.replayed())
            except RuntimeError as error:
                if "determinis" not in str(error):
                    raise
                reason = error_text(error)
                break
            finally:
                self.torch.use_deterministic_algorithms(False)
        steps, seconds = self.args.replay_steps, self.watch.took()
        report("replayed", steps=steps, runs=results, reason=reason, seconds=seconds)

    def replayed(self) -> Dict[str, Any]:
        """Return losses and the digest of the parameters after the first steps."""
        model = self.build()
        optimizer, losses = self.optimizer(model), []
        for tokens in self.data(self.args.replay_steps, 0):
            optimizer.zero_grad(set_to_none=True)
            loss = model(tokens)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return {"digest": self.digest(model), "losses": [repr(float(loss)) for loss in losses]}

    # -- speed

    def train(self, mode: str) -> Dict[str, Any]:
        """Train in a mode: warm up, then time the steps; return the state of the rank."""
        self.watch.enter(mode)
        self.free()
        model = self.build()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        inner, start = model, self.digest(model)
        model, how = self.wrapped(mode, model)
        optimizer = self.optimizer(model)
        # equal data on all nodes: the mean loss does not depend on their number
        tokens = self.data(self.args.warmup + self.args.steps, 0 if mode == "plain" else self.local)
        marks, computed, losses = [], [], []  # type: List[Any], List[Any], List[Any]
        for number, batch in enumerate(tokens):
            if number == self.args.warmup:
                self.clock.settle()
                self.dist.barrier()
                inner.on_input = None if mode == "fsdp" else lambda _: computed.append(self.clock.mark())
            marks.append(self.clock.mark())
            optimizer.zero_grad(set_to_none=True)
            loss = model(batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if not self.first:
                self.clock.settle()
                self.first = age()
        marks = [*marks[self.args.warmup :], self.clock.mark()]
        self.clock.settle()
        report(
            "trained", mode=mode, how=how, parameters=parameters, flops=flops_of(self.shape, parameters),
            tokens=self.shape.batch * self.shape.tokens,
            steps=[round(self.clock.seconds(marks[it], marks[it + 1]), 6) for it in range(self.args.steps)],
            compute=[round(self.clock.seconds(*pair, busy=True), 6) for pair in zip(marks, computed)],
            losses=[round(float(loss), 6) for loss in losses], before=start,
            after="" if mode == "fsdp" else self.digest(inner), seconds=self.watch.took(),
        )  # fmt: skip
        return {"model": model, "optimizer": optimizer} if FOLDER in os.environ and mode == "fsdp" else {}

    def free(self) -> None:
        """Return the memory of the last model to the GPU."""
        gc.collect()  # wrappers refer to themselves
        if self.args.gpus:
            self.clock.settle()
            self.torch.cuda.empty_cache()

    def wrapped(self, mode: str, model: Any) -> Any:
        """Return the model for the mode, and the name of its wrapper."""
        if mode == "plain":
            return model, "none"
        if mode == "ddp":
            devices = [self.device.index] if self.args.gpus else None
            parallel = self.torch.nn.parallel.DistributedDataParallel
            wrapped = parallel(model, device_ids=devices, gradient_as_bucket_view=True)
            return wrapped, "DistributedDataParallel"
        shard = fully_shard_of()
        if shard is not None:
            for part in (*model.blocks, model):
                shard(part)
            return model, "fully_shard"
        from torch.distributed.fsdp import FullyShardedDataParallel

        options = {"use_orig_params": True, "device_id": self.device}
        for index, part in enumerate(model.blocks):
            model.blocks[index] = FullyShardedDataParallel(part, **options)
        return FullyShardedDataParallel(model, **options), "FullyShardedDataParallel"

    # -- checkpoint

    def checkpoint(self, state: Dict[str, Any]) -> None:
        """Write this rank's part of the FSDP state, and restore that of a rank of the next node, bit by bit."""
        self.watch.enter("checkpoint")
        folder, size = os.environ[FOLDER], self.size
        self.storage = CheckpointFolder(folder)
        tensors = list(self.limited(local_tensors(self.torch, state), self.args.checkpoint_size // size))
        mine = self.digest_all(iter(tensors))
        partner = (self.rank + self.args.per_node) % size
        facts = {"bytes": sum(it.numel() * it.element_size() for it in tensors)}  # type: Dict[str, Any]
        try:
            self.together(lambda: self.make_folder(folder))
            self.together(self.storage.enter)
            facts["write"] = self.together(lambda: self.write(self.rank, tensors))
            digests = [None] * size  # type: List[Any]
            self.dist.all_gather_object(digests, mine)
            restored = []  # type: List[Any]
            facts["read"] = self.together(lambda: restored.extend(self.read(partner)))
            found = self.digest_all(iter(restored))
            facts.update(written=digests[partner], restored=found, of=partner, problem="")
        except Failure as error:
            facts["problem"] = str(error)
        finally:
            facts["removed"] = self.remove()
        report("checkpoint", **dict(facts, folder=folder, seconds=self.watch.took()))

    def together(self, work: Any) -> float:
        """Run a part on all ranks, return its seconds; Failure with the reason of each rank that cannot do it."""
        self.dist.barrier()
        begin, problem = time.monotonic(), ""
        try:
            work()
        except Exception as error:
            problem = error_text(error)
        took = time.monotonic() - begin
        reasons = [None] * self.size  # type: List[Any]
        self.dist.all_gather_object(reasons, problem)
        if problem or any(reasons):
            raise Failure("checkpoint", problem)
        return max(round(took, 6), 1e-6)

    def make_folder(self, folder: str) -> None:
        """Create the folder on the first rank, in a folder of the site with enough room."""
        if self.rank:
            return
        room = os.statvfs(os.path.dirname(folder))
        if room.f_bavail * room.f_frsize < 2 * self.args.checkpoint_size:
            where = os.path.dirname(folder)
            raise OSError("less than twice the size of the checkpoint is free in %s" % where)
        self.storage.make()

    def limited(self, tensors: Iterator[Any], limit: int) -> Iterator[Any]:
        """Yield copies of tensors with at most `limit` bytes together."""
        for tensor in tensors:
            count = min(tensor.numel(), limit // tensor.element_size())
            limit -= count * tensor.element_size()
            if count:
                yield tensor.detach().reshape(-1)[:count].to("cpu", copy=True)

    def write(self, rank: int, tensors: List[Any]) -> None:
        """Write tensors to storage, not only to the cache of this node."""
        with self.storage.new_file(rank) as file:
            self.torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, rank: int) -> Any:
        """Return the tensors of a rank's part, which another node may have written just now."""
        with self.storage.file(rank) as file:
            return self.torch.load(file, map_location="cpu", weights_only=True)

    def remove(self) -> bool:
        """Remove this rank's file, then the folder; return whether nothing of this rank is left."""
        self.dist.barrier()
        gone = self.storage.remove_files()
        self.dist.barrier()
        self.storage.remove()
        return gone


class CheckpointFolder:
    """The folder of a checkpoint: reached by descriptors, and only what its ranks created is removed.

    Each file has the name of the folder: the owner of the place may move another folder of this user here.
    """

    def __init__(self, path: str) -> None:
        self.path, self.name = os.path.split(path)
        self.parent = self.folder = -1
        self.created, self.made = False, []  # type: bool, List[str]

    def make(self) -> None:
        """Create the folder, on one rank."""
        self.parent = checked_folder(self.path)
        os.mkdir(self.name, 0o700, dir_fd=self.parent)
        self.created = True

    def enter(self) -> None:
        """Open the folder, which another node may have created just now."""
        if self.parent < 0:
            self.parent = checked_folder(self.path)
        options = os.O_RDONLY | os.O_DIRECTORY
        self.folder = self.awaited(lambda: own_descriptor(self.parent, self.name, options))

    def new_file(self, rank: int) -> Any:
        """Create a rank's part."""
        name = self.file_name(rank)
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.folder)
        self.made.append(name)
        return os.fdopen(handle, "wb")

    def file(self, rank: int) -> Any:
        """Open a rank's part."""
        name = self.file_name(rank)
        return os.fdopen(self.awaited(lambda: own_descriptor(self.folder, name, os.O_RDONLY)), "rb")

    def file_name(self, rank: int) -> str:
        """Return the name of a rank's part."""
        return "%s.rank%d.pt" % (self.name, rank)

    @staticmethod
    def awaited(opened: Any) -> int:
        """Return the descriptor of something that appears within SEEN seconds."""
        until = time.monotonic() + SEEN
        while True:
            try:
                return int(opened())
            except FileNotFoundError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def remove_files(self) -> bool:
        """Remove what this rank created; return whether nothing of it is left."""
        for name in list(self.made):
            with contextlib.suppress(OSError):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self.folder)
                self.made.remove(name)
        return not self.made

    def remove(self) -> None:
        """Remove the folder, if this step created it."""
        if self.created or self.folder >= 0:
            with contextlib.suppress(OSError):
                # the last rank succeeds: NFS may show files of others for a while
                os.rmdir(self.name, dir_fd=self.parent)


def fully_shard_of() -> Any:
    """Return torch's fully_shard: public since torch 2.6, before in a private module; None without it."""
    for name in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp"):
        with contextlib.suppress(ImportError, AttributeError):
            module = __import__(name, fromlist=["fully_shard"])
            return module.fully_shard
    return None


def local_tensors(torch: Any, state: Dict[str, Any]) -> Iterator[Any]:
    """Yield this rank's part of parameters and optimizer."""
    held = list(state["model"].parameters())
    for values in state["optimizer"].state.values():
        held += [value for value in values.values() if torch.is_tensor(value)]
    for tensor in held:
        local = getattr(tensor, "to_local", None)
        yield local() if local is not None else tensor


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the payload; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("find", "alone", "together", "remove"))
    parser.add_argument("--per-node", type=int, default=1, help="ranks per node")
    parser.add_argument("--gpus", action="store_true", help="one GPU per rank, and NCCL")
    parser.add_argument("--address", default="127.0.0.1", help="address of the first node")
    parser.add_argument("--model", choices=["auto", *NAMES], default="auto")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--replay-steps", type=int, default=3)
    parser.add_argument("--checkpoint-size", type=int, default=1 << 32)
    parser.add_argument("--deadline", type=float, default=60, help="seconds per phase")
    args = parser.parse_args(argv)
    if args.mode == "find":
        report("found", **installed("torch"))
        return 0
    if args.mode == "remove":
        parent, name = os.path.split(os.environ[FOLDER])
        remove_named(checked_folder(parent), name)
        return 0
    watch = Watch(args.deadline, report)
    return run_phases(report, watch, lambda: Trainer(args, watch).run())


if __name__ == "__main__":
    exit_now(main())
