"""TensorFlow's distribution strategies, with a separate training loop: fit() of Keras 3 does not support them.

Runs on the nodes, under the python of the site or of a container (LOADER, SOURCE: `payload_step.command`):

    srun --ntasks-per-node=1 python3 -c LOADER mirrored PAYLOAD SOURCE
    srun --ntasks-per-node=2 python3 -c LOADER workers --hosts gpu01=10.0.0.1,gpu02=10.0.0.2 PAYLOAD SOURCE

`find` reports whether tensorflow is installed, without importing it. `mirrored` uses all devices of one process (two
logical CPUs without GPUs). `workers` derives TF_CONFIG from the allocation: one worker per task, in rank order, at the
address of its node, with a port derived from job and step.

Each fact is one line of JSON that starts with {"tensorflow": . Exit codes: 0 done, 1 failed, SIGKILL deadline.
"""

import argparse
import hashlib
import json
import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Sequence

from pytest_gpucluster.kit.payloads.prelude import exit_now, installed, number_of, own_port, reporter, run_phases

ELEMENTS = 1 << 16
STEPS = 3  # of training

report = reporter("tensorflow")


class ChildWatch:
    """Kills this process when a phase exceeds its deadline: TensorFlow waits for a missing worker without end.

    TensorFlow holds the interpreter's lock meanwhile, so a child process watches; it ends with this process.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.phase, self.began = seconds, "start", time.monotonic()
        listen, self._write = os.pipe()
        parent = os.getpid()
        if os.fork() == 0:
            os.close(self._write)
            self._guard(listen, parent)
        os.close(listen)

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase, self.began = phase, time.monotonic()
        os.write(self._write, (phase + "\n").encode())

    def took(self) -> float:
        """Return seconds since the phase began."""
        return round(time.monotonic() - self.began, 4)

    def _guard(self, listen: int, parent: int) -> None:
        phase, until = "start", time.monotonic() + self.seconds
        while True:
            ready, _, _ = select.select([listen], [], [], max(0.0, until - time.monotonic()))
            phases = os.read(listen, 4096) if ready else b""
            if ready and not phases:
                os._exit(0)
            if not ready:
                report("stuck", phase=phase, seconds=self.seconds)
                os.kill(parent, signal.SIGKILL)
                os._exit(0)
            phase, until = phases.decode().split("\n")[-2], time.monotonic() + self.seconds


def cluster(hosts: str, ports: int, env: Dict[str, str]) -> Dict[str, Any]:
    """Return TF_CONFIG for this task: one worker per task, in rank order. `hosts` is NODE=ADDRESS, in rank order."""
    tasks, rank = number_of(env, "SLURM_STEP_NUM_TASKS"), number_of(env, "SLURM_PROCID")
    addresses = [entry.partition("=")[2] for entry in hosts.split(",")]
    per_node = tasks // len(addresses)
    workers = ["%s:%d" % (addresses[task // per_node], ports + task) for task in range(tasks)]
    return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}


class TrainingWork:
    """The phases of one process under a strategy."""

    def __init__(self, tf: Any, strategy: Any, watch: ChildWatch) -> None:
        self.tf, self.strategy, self.watch = tf, strategy, watch

    def all_reduce(self) -> None:
        """Sum data with a known sum over all replicas of all workers."""
        tf, strategy = self.tf, self.strategy
        self.watch.enter("all_reduce")
        size = strategy.num_replicas_in_sync

        @tf.function
        def summed() -> Any:
            def replica() -> Any:
                context = tf.distribute.get_replica_context()
                number = tf.cast(context.replica_id_in_sync_group, tf.float32)
                values = tf.cast(tf.range(ELEMENTS) % 31, tf.float32) + number
                return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

            return strategy.experimental_local_results(strategy.run(replica))

        expected = tf.cast(tf.range(ELEMENTS) % 31, tf.float32) * size + size * (size - 1) / 2
        results = summed()
        wrong = sum(int(tf.reduce_sum(tf.cast(got != expected, tf.int32))) for got in results)
        took = self.watch.took()
        report("reduced", replicas=size, local=len(results), elements=ELEMENTS, wrong=wrong, seconds=took)

    def train(self, seed: int) -> None:
        """Train on different data in each replica: afterwards all have equal, changed weights."""
        tf, strategy = self.tf, self.strategy
        self.watch.enter("training step")
        with strategy.scope():
            first = tf.random.stateless_uniform((16, 4), seed=(1, 2), minval=-0.5, maxval=0.5)
            weights = tf.Variable(first)
            bias = tf.Variable(tf.zeros((4,)))
        before = self.digest(weights, bias)
        size = strategy.num_replicas_in_sync

        @tf.function
        def step(number: Any) -> Any:
            def replica() -> Any:
                context = tf.distribute.get_replica_context()
                seeds = tf.stack([context.replica_id_in_sync_group + seed, number])
                inputs = tf.random.stateless_normal((8, 16), seed=seeds)
                wanted = tf.random.stateless_normal((8, 4), seed=seeds + 7)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(inputs @ weights + bias - wanted))
                gradients = tape.gradient(loss, [weights, bias])
                mean = [context.all_reduce(tf.distribute.ReduceOp.SUM, g) / size for g in gradients]
                return loss, mean

            losses, means = strategy.run(replica)
            return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None), means

        losses: List[float] = []
        for number in range(STEPS):
            loss, means = step(tf.constant(number))
            losses.append(float(loss))
            for variable, gradient in zip((weights, bias), means):  # Python 3.6 has no strict zip
                one = strategy.experimental_local_results(gradient)[0]
                variable.assign(variable.read_value() - 0.1 * one)
        after, took = self.digest(weights, bias), self.watch.took()
        report("trained", before=before, after=after, losses=losses, seconds=took)

    def digest(self, *variables: Any) -> str:
        """Return a hash of the values of all local replicas, '' if they differ."""
        hashes = set()
        copies = [self.strategy.experimental_local_results(variable) for variable in variables]
        for replica in range(len(copies[0])):
            values = [copy[replica].numpy().tobytes() for copy in copies]
            hashes.add(hashlib.sha256(b"".join(values)).hexdigest()[:16])
        return hashes.pop() if len(hashes) == 1 else ""


def work(args: argparse.Namespace, watch: ChildWatch) -> int:
    """Run the phases; return the exit code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if args.mode == "workers":
        given = os.environ.get("TF_CONFIG", "")
        env = dict(os.environ)
        made = cluster(args.hosts, own_port(env, number_of(env, "SLURM_STEP_NUM_TASKS")), env)
        os.environ["TF_CONFIG"] = json.dumps(made)
        report("config", config=made, given=given)
    watch.enter("import tensorflow")
    import tensorflow as tf  # `find` runs without

    report(
        "loaded",
        version=tf.__version__,
        python=sys.executable,
        seconds=watch.took(),
        gpus=len(tf.config.list_physical_devices("GPU")),
    )
    watch.enter("strategy")
    if args.mode == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = tf.distribute.MirroredStrategy(devices(tf))
    report("joined", replicas=strategy.num_replicas_in_sync, seconds=watch.took())
    job = TrainingWork(tf, strategy, watch)
    job.all_reduce()
    job.train(seed=100)
    watch.enter("last all-reduce")
    job.all_reduce()  # no worker ends before all are done
    report("done")
    return 0


def devices(tf: Any) -> List[str]:
    """Return the devices of this process; without GPUs two logical CPUs."""
    gpus = tf.config.list_logical_devices("GPU") if tf.config.list_physical_devices("GPU") else []
    if gpus:
        return [device.name for device in gpus]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(2)])
    return [device.name for device in tf.config.list_logical_devices("CPU")]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the payload; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("find", "mirrored", "workers"))
    parser.add_argument("--hosts", default="", help="NODE=ADDRESS,... in rank order, for `workers`")
    parser.add_argument("--deadline", type=float, default=90, help="seconds per phase")
    args = parser.parse_args(argv)
    if args.mode == "find":
        report("found", **installed("tensorflow", "tensorflow", "tensorflow-cpu", "tensorflow_gpu"))
        return 0
    watch = ChildWatch(args.deadline)
    return run_phases(report, watch, lambda: work(args, watch))


if __name__ == "__main__":
    exit_now(main())
