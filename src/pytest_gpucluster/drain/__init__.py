"""Drain and resume: the policy (pure), and the act through scontrol.

- `reason`: what we write into a node's reason, and how it is read again.
- `policy`: which nodes may be drained or resumed, and why the others are left alone.
- `act`: reads Slurm anew, says what it will do, does it, reads what came of it.
- `trial`: drained nodes of ours, undrained inside a reservation for a test, and drained again unless they are kept.
"""

from pytest_gpucluster.drain.executor import Actor, Limits, why_no_rights
from pytest_gpucluster.drain.lock import lock_path, locked
from pytest_gpucluster.drain.policy import Budget, Grounds, why_not_resume
from pytest_gpucluster.drain.reason import PREFIX, Reason, read_reason, write_reason
from pytest_gpucluster.drain.retest import Trial, fit_for_trial
from pytest_gpucluster.drain.table import listed

__all__ = [
    "PREFIX",
    "Actor",
    "Budget",
    "Grounds",
    "Limits",
    "Reason",
    "Trial",
    "fit_for_trial",
    "listed",
    "lock_path",
    "locked",
    "read_reason",
    "why_no_rights",
    "why_not_resume",
    "write_reason",
]
