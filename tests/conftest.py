"""Fixtures that several of our own tests use."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from sandbox_fixtures import SANDBOX_NODES, own_signals, sandbox
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.plugin import marker_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.sandbox import Sandbox

__all__ = ["own_signals", "sandbox"]  # fixtures
# what takes longest, by measured time, goes to the workers first, so that none of it is left for the end; at the
# beginning few modules that load the CPUs meet many that wait
LONGEST = (
    "system/test_ray", "system/test_drain", "system/test_untestable", "system/test_horovod",
    "system/test_fault_matrix", "system/test_accounting", "system/test_signals",
    "system/test_plugin_reports", "system/test_nccl", "system/test_kubernetes", "system/test_isolation",
    "kit/payloads/test_collective", "system/test_corpus", "system/test_other_users",
    "system/test_last_screen", "system/test_burnin", "system/test_tensorflow", "plugin/test_node_items",
    "system/test_submitit", "test_sandbox", "system/test_ddp", "project/test_docs",
    "system/test_models", "suites/nccl/test_localization", "system/test_plugin_bad_input",
    "test_namespaces", "system/test_mpi", "system/test_node_partition", "system/test_selection",
    "system/test_ssh", "system/test_training", "system/test_examples_ci", "system/test_chaos",
    "project/test_benchmarks", "cluster/channel/test_channel", "suites/monitoring/test_checks",
    "system/test_controller", "cluster/transport/test_ssh", "system/test_reachable", "system/test_xdist",
    "system/test_matrix", "spank/test_registry", "report/test_history_runs",
    "system/test_nccl_environment", "cluster/channel/test_over_ssh", "report/test_junit",
    "system/test_container", "project/test_architecture", "system/test_software",
    "suites/nccl/test_stages", "system/test_known_cause", "cluster/slurm/test_step",
)  # fmt: skip


# how long an example takes is no property of the code
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Some tests import shipped suites, whose markers a run without --cluster does not register."""
    for line in marker_lines():
        config.addinivalue_line("markers", line)


def pytest_sessionstart() -> None:
    """Collect without garbage collection: 12,000 items stay until the end, and each cycle would visit them all."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was collected out of later cycles."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        name = str(item.path.with_suffix("")).rpartition("/tests/")[2]  # here, or of slurm-sandbox
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)


@pytest.fixture(scope="session")
def _session_sandbox() -> Iterator[Sandbox]:
    from pytest_gpucluster.sandbox import Sandbox  # pure tests need no sandbox

    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=SANDBOX_NODES)
        yield sandbox
