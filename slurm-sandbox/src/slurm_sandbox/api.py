"""The interface of slurm-sandbox: what software that uses it imports. All else may change.

>>> from pathlib import Path
>>> sandbox = Sandbox(Path("/var/tmp/box"))                           # doctest: +SKIP
>>> sandbox.up(nodes=4, model="h200")                                 # doctest: +SKIP
>>> subprocess.run(["sinfo"], env={**os.environ, **sandbox.env})      # doctest: +SKIP
>>> sandbox.fault("gpu_missing", "gpu03", gpu=5)                      # doctest: +SKIP
>>> sandbox.down()                                                    # doctest: +SKIP
"""

from slurm_sandbox.description import ContainerImage, Description, JobIsolation
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.faults import FAULTS, Fault
from slurm_sandbox.hardware import SimulatedNode
from slurm_sandbox.hostlist import expand, fold
from slurm_sandbox.sandbox import Sandbox
from slurm_sandbox.slurm_faults import COMPLETING
from slurm_sandbox.slurmconf import Partition

__all__ = [
    "COMPLETING",
    "FAULTS",
    "ContainerImage",
    "Description",
    "Fault",
    "JobIsolation",
    "Partition",
    "Sandbox",
    "SandboxError",
    "SimulatedNode",
    "expand",
    "fold",
]
