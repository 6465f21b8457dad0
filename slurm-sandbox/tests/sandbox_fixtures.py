"""A running sandbox that several tests use."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from sandbox_helpers import left_behind, queue, sandbox_folder

from slurm_sandbox.api import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

SANDBOX_NODES = 4


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """What a test ignores must not be ignored by the processes that later ones start."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def _session_sandbox() -> Iterator[Sandbox]:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=SANDBOX_NODES)
        yield sandbox


@pytest.fixture
def sandbox(_session_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A running sandbox of 4 nodes with 8 simulated H200 each, healthy, reachable through SLURM_CONF.

    What a test leaves in it fails that test, and is removed before the next one.
    """
    _session_sandbox.heal()
    for name, value in _session_sandbox.env.items():
        monkeypatch.setenv(name, value)
    before = frozenset(queue(_session_sandbox))
    yield _session_sandbox
    _session_sandbox.heal()
    if left := left_behind(_session_sandbox, before):
        pytest.fail(f"the test has left in the sandbox: {', '.join(left)}")
