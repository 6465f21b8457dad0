"""Facts of a sound node of four, and what tests of the os checks share."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.config.models import Group, Profile
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.facts import Cpus, MemoryInfo, Mount
from pytest_gpucluster.suites.os.storage_facts import Disk

if TYPE_CHECKING:
    from pathlib import Path

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


def answer(out: str = "", rc: int | None = 0, err: str = "", **more: Any) -> Answer:
    return Answer("n1", rc, out.encode(), err.encode(), **more)


def of(**parts: Any) -> Answer:
    """Return an answer in sections; a pair is text and exit status."""
    told = {name: part if isinstance(part, tuple) else (part, 0) for name, part in parts.items()}
    return answer("".join(f"\x1e{name}\n{text}\x1e={rc}\n" for name, (text, rc) in told.items()))


def run(command: str, **env: str) -> Answer:
    """Return the answer of this machine."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=os.environ | env, timeout=60, check=False)
    return Answer("here", done.returncode, done.stdout, done.stderr)


def with_tools(folder: Path, **bodies: str) -> str:
    """Write these programs of sh, and return a PATH that finds them first."""
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
