"""Facts of a sound node of four, and what tests of the os checks share."""

from __future__ import annotations

from typing import Any

from pytest_gpucluster.config.models import Group, Profile
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.facts import Cpus, MemoryInfo, Mount
from pytest_gpucluster.suites.os.storage_facts import Disk

GIB = 1 << 30
PLAIN = Profile(name="p", description="", source="test")
GROUP = Group(nodes="n[1-4]", profile=PLAIN)
CPUS = Cpus(8, "", 2, "2", "2", "EPYC", "x86_64")
MEMORY = MemoryInfo(64 * GIB, 60 * GIB, 3 << 20, 1 << 20, 4, 2 << 20)
DISK = Disk(100 * GIB, 50 * GIB, 1000, 900)
DISKS = dict.fromkeys(("/", "/tmp", "/dev/shm"), DISK)
ROOT = Mount("/dev/sda1", "/", "ext4", ("rw", "relatime"))
HOME = Mount("fs1:/home", "/home", "nfs4", ("rw", "hard"))
ALONE: Norm[Any] = norm({"n1": "x"})
NONE: Norm[Any] = Norm()


def peers(odd: object, usual: object) -> Norm[Any]:
    return norm({"n1": odd, "n2": usual, "n3": usual, "n4": usual})
