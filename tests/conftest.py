"""Fixtures that several of our own tests use."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from plugin_helpers import left_behind, queue, sandbox_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.sandbox import Sandbox

SANDBOX_NODES = 4
# what takes longest goes to the workers first, so that none of it is left for the end
LONGEST = (
    "test_horovod_suite", "test_ray_suite", "test_nccl_suite", "test_plugin_reports", "test_drain_sandbox",
    "test_payload_collective", "test_plugin_untestable", "test_submitit_suite", "test_tensorflow_suite",
    "test_ddp_suite", "test_fault_matrix", "test_plugin_signals", "test_plugin_selection", "test_sandbox_namespaced",
    "test_plugin_xdist", "test_burnin_suite", "test_examples_ci", "test_mpi_suite", "test_docs", "test_localise",
    "test_other_users", "test_sandbox_models",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """What a test ignores must not be ignored by the processes that later ones start."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def _session_sandbox() -> Iterator[Sandbox]:
    from pytest_gpucluster.sandbox import Sandbox  # pure tests need no sandbox

    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=SANDBOX_NODES)
        yield sandbox


@pytest.fixture
def sandbox(_session_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A running sandbox of 4 nodes with 8 simulated H200 each, healthy, reachable through SLURM_CONF.

    What a test leaves in it fails that test, and is taken away before the next one.
    """
    _session_sandbox.heal()
    for name, value in _session_sandbox.env.items():
        monkeypatch.setenv(name, value)
    before = frozenset(queue(_session_sandbox))
    yield _session_sandbox
    _session_sandbox.heal()
    if left := left_behind(_session_sandbox, before):
        pytest.fail(f"the test has left in the sandbox: {', '.join(left)}")
