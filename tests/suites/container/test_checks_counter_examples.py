"""Healthy nodes whose Enroot looks broken, and broken ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from typing import Any

import pytest
from counter_examples import MONITOR, PASSED, WARNING, CounterExample, assert_as_expected, name

from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.container.enroot import read_names, read_space
from pytest_gpucluster.suites.container import checks
from pytest_gpucluster.suites.container.config import ContainerConfig

ENROOT = "https://github.com/NVIDIA/enroot/blob/master/doc/configuration.md"
PYXIS = "https://github.com/NVIDIA/pyxis/wiki/Usage"
GIB = 2**30
CONFIG = ContainerConfig(image="/shared/ubuntu.sqsh")


def space(
    what: str = "data",
    free: float = 900,
    size: float = 1000,
    inodes: tuple[int, int] = (40_000_000, 60_000_000),
    rights: str = "rw",
    path: str = "/raid/enroot",
) -> str:
    """Return a line of the probe: free and whole size in GiB, free and all inodes."""
    return f"{what} {int(free * GIB / 4096)} {int(size * GIB / 4096)} 4096 {inodes[0]} {inodes[1]} {rights} {path}\n"


def room(*lines: str) -> Any:
    return lambda: checks.room(read_space(Answer("gpu01", 0, "".join(lines).encode(), b"")), CONFIG)


def left(*names: str, live: tuple[int, ...] = (77,)) -> Any:
    return lambda: checks.leftovers(read_names(Answer("gpu01", 0, "\n".join(names).encode(), b"")), live)


def machine(
    check: str, name: str, source: str, expected: str, judged: Any, *, sick: bool = False
) -> CounterExample:
    return CounterExample(f"container.{check}", name, source, expected, judged, sick=sick)


COUNTER_EXAMPLES = (
    machine("room", "an empty /tmp of 1 GiB", ENROOT, PASSED, room(space(), space("temp", 0.99, 1, path="/tmp"))),
    machine("room", "a file system that counts no inodes", "https://btrfs.readthedocs.io/en/latest/btrfs-man5.html", PASSED, room(space(inodes=(0, 0)))),
    machine("room", "a shared file system, 97% used, with 60 TiB free", ENROOT, PASSED, room(space(free=60_000, size=2_000_000))),
    machine("room", "a full disk", ENROOT, MONITOR, room(space(free=0.2)), sick=True),
    machine("room", "a full /tmp of 1 GiB", ENROOT, MONITOR, room(space(), space("temp", 0.1, 1, path="/tmp")), sick=True),
    machine("room", "no inode is left, and 900 GiB are", "https://www.kernel.org/doc/html/latest/filesystems/ext4/index.html", MONITOR, room(space(inodes=(0, 60_000_000))), sick=True),
    machine("room", "the user may not write", ENROOT, MONITOR, room(space(rights="ro")), sick=True),
    machine("leftovers", "a named container that stays, of the scope global", PYXIS, PASSED, left("pyxis_pytorch")),
    machine("leftovers", "a user's own container", ENROOT, PASSED, left("ubuntu", "nvidia+cuda+12.4.1")),
    machine("leftovers", "containers of running jobs, one with a name", PYXIS, PASSED, left("pyxis_77.0", "pyxis_77_torch", "pyxis_77_77.3")),
    machine("leftovers", "a named container whose name begins with a number, of the scope global", PYXIS, WARNING, left("pyxis_2024_torch")),
    machine("leftovers", "of a job that is over", PYXIS, MONITOR, left("pyxis_77.0", "pyxis_76.0"), sick=True),
    machine("leftovers", "of a step of a job that is over, of the scope job", PYXIS, MONITOR, left("pyxis_76_76.1"), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_nodes_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
