"""How the items of each check are made: their marks, by which runs choose them."""

from __future__ import annotations

import sys

from pytest_gpucluster.core.check import Check
from pytest_gpucluster.core.registry import import_checks

MARKS = {
    "exclusive": "kubernetes.job_gpus kubernetes.job_nccl",
    "intrusive": "isolation.login isolation.memory",
    "inventory": "controller.errors controller.load controller.ping slurm.cpus slurm.gres slurm.limits slurm.memory slurm.version",
    "inventory exclusive": "slurm.prolog",
    "inventory judges_node": "slurm.completing slurm.known slurm.responding slurm.schedulable",
    "judges_node": "os.responds",
    "slow": "os.bmc_events os.bmc_sensors slurm.time_limit",
}


def by_name(groups: dict[str, str]) -> dict[str, str]:
    return {check: value for value, checks in groups.items() for check in checks.split()}


def test_the_items_of_each_check() -> None:
    import_checks()
    modules = [module for name, module in sys.modules.items() if name.startswith("pytest_gpucluster.")]
    checks = {it.name: it for module in modules for it in vars(module).values() if isinstance(it, Check)}
    assert {name: " ".join(it.marks) for name, it in checks.items() if it.marks} == by_name(MARKS)
    assert sorted(name for name, it in checks.items() if not it.item) == ["matrix.work", "nccl.bandwidth"]
