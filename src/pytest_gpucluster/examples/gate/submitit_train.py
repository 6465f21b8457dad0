"""A training with submitit that leaves bad nodes out: the gates run in the job, before the training."""

from __future__ import annotations

import subprocess

import submitit

CLUSTER = "/etc/gpucluster/prod.yaml"
NODES = 8


def bad_nodes() -> str:
    """Return srun's option without the bad nodes of this job, '' where all are fit."""
    gate = ["srun", "--overlap", "--ntasks-per-node=1", "gpucluster", "gate", "--cluster", CLUSTER]
    lines = subprocess.run([*gate, "--context", "job"], capture_output=True, text=True, check=False).stdout
    collect = ["gpucluster", "gate", "--collect"]
    return subprocess.run(collect, input=lines, capture_output=True, text=True, check=True).stdout.strip()


def train() -> None:
    """Start the training on the nodes that are fit."""
    chosen = ["srun", "--overlap", f"--nodes={NODES}", "--ntasks-per-node=8"]
    subprocess.run([*chosen, *filter(None, [bad_nodes()]), "python", "train.py"], check=True)


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="jobs")
    executor.update_parameters(nodes=NODES + 1, gpus_per_node=8, timeout_min=60)
    print(executor.submit(train).job_id)
