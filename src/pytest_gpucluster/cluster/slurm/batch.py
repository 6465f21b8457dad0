"""The command that submits a small batch job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.environment import OWN_LIMITS

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import SlurmConfig

# one task for at most one minute, whose output goes nowhere
SMALL_JOB = ("sbatch", OWN_LIMITS, "--parsable", "--nodes=1", "--ntasks=1", "--time=1", "--output=/dev/null")


def submission(config: SlurmConfig, name: str, *options: str, partition: str | None = None) -> tuple[str, ...]:
    """Return the sbatch command of a job of one task and at most one minute; its script comes from stdin or --wrap.

    `partition` is that of the cluster file by default.
    """
    stated = {key: getattr(config, key) for key in ("partition", "account", "qos", "reservation", "comment")}
    where = stated | ({"partition": partition} if partition else {})
    given = (f"--{key}={value}" for key, value in where.items() if value)
    return (*SMALL_JOB, f"--job-name={name}", *given, *options)
