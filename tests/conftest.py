"""Fixtures that several of our own tests use."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
from hypothesis import settings
from sandbox_fixtures import SANDBOX_NODES, own_signals, sandbox
from sandbox_helpers import sandbox_folder
from suite_helpers import cluster_of

from pytest_gpucluster.cluster.calling_shell import unpassed
from pytest_gpucluster.cluster.environment import CLIENT
from pytest_gpucluster.plugin import marker_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.sandbox import Sandbox

__all__ = ["own_signals", "sandbox"]  # fixtures
# {module: seconds}, of those that take more than a few; `make test` writes it anew with RECORD=1
DURATIONS = Path(__file__).with_name("durations.json")
WORTH_RECORDING = 5  # seconds
# on real parts: only what is marked essential there belongs to `make test`
THOROUGH = ("tests/system/", "tests/first_night/", "slurm-sandbox/tests/")
OWN_FOLDERS, NEW_MOUNTS = 0x200, 0x20000  # CLONE_FS and CLONE_NEWNS of sched.h
READ_ONLY, RECURSIVE, SLAVE = 1, 0x4000, 1 << 19  # of sys/mount.h
OUR_MOUNTS = Path("/proc/thread-self/ns/mnt")
LIBC = ctypes.CDLL(None, use_errno=True)
MACHINE = pytest.StashKey[IO[bytes] | None]()

os.umask(0o022)  # an ordinary user's may be 002, and a gate refuses files that a group may write to
# how long an example takes is no property of the code
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def _hide_profile() -> IO[bytes] | None:
    """Hide this machine's /etc/profile.d from us and the processes we start: each task of a step runs it as a login does.

    A task costs 20 ms without it and 200 ms with environment-modules, which tests of the suite software need. Only root can.
    Return the namespace that we left.
    """
    machine = OUR_MOUNTS.open("rb")
    if LIBC.unshare(NEW_MOUNTS):
        machine.close()
        return None
    if LIBC.mount(b"none", b"/", None, RECURSIVE | SLAVE, None) == 0:
        LIBC.mount(b"none", b"/etc/profile.d", b"tmpfs", READ_ONLY, None)
    return machine


def _enter(mounts: int) -> None:
    # a thread that shares its current folder with others cannot enter other mounts
    folder = Path.cwd()
    if LIBC.unshare(OWN_FOLDERS) or LIBC.setns(mounts, NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "the mounts of another namespace cannot be entered")
    os.chdir(folder)  # setns went to /


@pytest.fixture(scope="module")
def mounts_of_machine(pytestconfig: pytest.Config) -> Iterator[None]:
    """Tests whose jobs have mounts of their own: Linux 6.18 often refuses them in the namespace of a worker, as it does to nodes."""
    machine = pytestconfig.stash.get(MACHINE, None)
    if machine is None:
        yield
        return
    with OUR_MOUNTS.open("rb") as own_mounts:
        _enter(machine.fileno())
        yield
        _enter(own_mounts.fileno())


def pytest_configure(config: pytest.Config) -> None:
    """Some tests import shipped suites, whose markers a run without --cluster does not register."""
    for name in (*unpassed(cluster_of(), os.environ), *CLIENT):  # a login node, a job, a machine with CUDA set some
        os.environ.pop(name, None)
    if not config.getoption("collectonly") and not config.getoption("numprocesses", None):
        config.stash[MACHINE] = _hide_profile()
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # in the background of a script: what tests start would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "thorough: `make test` leaves it to `make test-all`")
    config.addinivalue_line("markers", "essential: of `make test`, on one real Slurm")
    config.addinivalue_line("markers", "alone: it loads all cores, and runs beside no other test")
    for line in marker_lines():
        config.addinivalue_line("markers", line)


def pytest_sessionstart() -> None:
    """Collect without garbage collection: 12,000 items stay until the end, and each cycle would visit them all."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was collected out of later cycles."""
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make test RECORD=1`."""
    parser.addoption("--record-durations", action="store_true", help=f"write {DURATIONS.name}")
    parser.addoption("--write-messages", action="store_true", help="write tests/suites/*/messages.txt")


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs real parts. Sort: what takes longest goes to the workers first, so that none of it is left for the end."""
    for item in items:
        if item.nodeid.startswith(THOROUGH) and item.get_closest_marker("essential") is None:
            item.add_marker(pytest.mark.thorough)
    seconds = json.loads(DURATIONS.read_text())
    items.sort(key=lambda item: -seconds.get(_module(item.nodeid), 0))


_spent: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Sum up what each module takes, its fixtures included."""
    _spent[_module(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was recorded, in the process that has all reports."""
    if session.config.getoption("--record-durations") and not hasattr(session.config, "workerinput"):
        known = json.loads(DURATIONS.read_text()) | {name: round(spent) for name, spent in _spent.items()}
        kept = {
            name: spent
            for name, spent in sorted(known.items())
            if spent >= WORTH_RECORDING and (session.config.rootpath / name).exists()
        }
        DURATIONS.write_text(json.dumps(kept, indent=1) + "\n")


@pytest.fixture(scope="session")
def _session_sandbox() -> Iterator[Sandbox]:
    from pytest_gpucluster.sandbox import Sandbox  # pure tests need no sandbox

    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=SANDBOX_NODES)
        yield sandbox
