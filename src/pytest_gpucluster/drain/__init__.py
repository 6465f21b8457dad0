"""Drain and resume of nodes through scontrol.

- `reason`: the reason text in Slurm, written and parsed.
- `policy`: which nodes may be drained or resumed, and why others are spared.
- `executor`: runs scontrol between a fresh read of the node's state and a read of the result; one drain per user at a time.
- `retest`: nodes that gpucluster drained, tested inside a reservation, and drained again unless they pass.
- `table`: rows and held jobs for `gpucluster drains`.
"""

from pytest_gpucluster.core.budget import Budget
from pytest_gpucluster.drain.executor import DrainExecutor, Limits, LockError, lock_path, locked, why_no_rights
from pytest_gpucluster.drain.policy import Grounds, why_not_resume
from pytest_gpucluster.drain.reason import PREFIX, DrainReason, read_reason, write_reason
from pytest_gpucluster.drain.retest import Retest, fit_for_retest

__all__ = [
    "PREFIX",
    "Budget",
    "DrainExecutor",
    "DrainReason",
    "Grounds",
    "Limits",
    "LockError",
    "Retest",
    "fit_for_retest",
    "lock_path",
    "locked",
    "read_reason",
    "why_no_rights",
    "why_not_resume",
    "write_reason",
]
