"""What a task can reach: CPUs, device files, temporary folders. Two steps run it at the same time on every node.

usage: payload.py ROLE TOKEN JSON with patterns of device files, folders, and whether sudo may be used
"""

import contextlib
import glob
import json
import os
import re
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List

from pytest_gpucluster.kit.payloads.prelude import exit_now, node_name, reporter

MEETING = 20.0  # seconds in which the other step must begin
SIBLINGS = "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list"


def reachable_cpus() -> List[int]:
    """Return the CPUs that this process can get: it requests all, and the kernel leaves those of its cpuset."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
    return sorted(os.sched_getaffinity(0))


def cores_of(cpus: List[int]) -> int:
    """Return the number of cores of these CPUs; 0 if the kernel does not show which are threads of one core."""
    cores = set()
    for cpu in cpus:
        try:
            with open(SIBLINGS % cpu) as file:
                cores.add(file.read().strip())
        except OSError:
            return 0
    return len(cores)


def opened(path: str) -> int:
    """Return 0 if this process can open a device file, else the error number."""
    try:
        # the driver need not initialise the GPU before open(2) returns
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or -1
    return 0


def identity(path: str) -> str:
    """Return DEVICE:INODE of a folder."""
    about = os.stat(path)
    return "%d:%d" % (about.st_dev, about.st_ino)


def node_of(folder: str, sudo: bool) -> str:
    """Return DEVICE:INODE of a folder as the first process of the node sees it; '' if that is not known."""
    path = "/proc/1/root" + folder
    try:
        with open("/proc/1/cgroup") as file:
            if re.search(r"/job_\d", file.read()):
                return ""  # this job has its own process namespace
        return identity(path)
    except OSError:
        if not sudo:
            return ""
    try:
        argv = ["sudo", "-n", "stat", "-c", "%d:%i", path]
        return subprocess.check_output(argv, stderr=subprocess.DEVNULL, timeout=10).decode().strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def mount_root(folder: str) -> Any:
    """Return the folder of the file system that is mounted here; None if nothing is (field 4 of mountinfo)."""
    found = None
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            if len(fields) > 4 and fields[4] == folder:
                found = fields[3]  # the last one is on top
    return found


def folder_facts(folder: str, sudo: bool) -> Dict[str, Any]:
    """Return how a temporary folder appears in this job."""
    try:
        return {
            "error": "",
            "own": identity(folder),
            "node": node_of(folder, sudo),
            "root": mount_root(folder),
            "age": age(folder),
            "uptime": uptime(),
        }
    except OSError as error:
        return {"error": str(error)}


def age(folder: str) -> float:
    """Return the seconds since a folder was created; -1 if the kernel does not show it."""
    try:
        argv = ["stat", "-c", "%W", folder]
        born = float(subprocess.check_output(argv, stderr=subprocess.DEVNULL, timeout=10))
    except (OSError, ValueError, subprocess.SubprocessError):
        return -1.0
    return time.time() - born if born > 0 else -1.0


def uptime() -> float:
    """Return the seconds since the node started."""
    with open("/proc/uptime") as file:
        return float(file.read().split()[0])


def address(token: str, role: str) -> str:
    """Return an abstract socket of this node (several virtual nodes may share a network); it ends with its process."""
    return "\0gpucluster-%s-%s-%s" % (token, node_name(), role)


def calls(other: str) -> bool:
    """Return whether the task of the other step waits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(other) == 0


def answers(server: socket.socket) -> bool:
    """Return whether the task of the other step has called."""
    try:
        server.accept()[0].close()
    except OSError:  # a timeout
        return False
    return True


def meets(token: str, role: str, other: str) -> bool:
    """Return whether this task and that of the other step have run at the same time."""
    deadline = time.monotonic() + MEETING
    called = answered = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(address(token, role))
        server.listen(1)
        server.settimeout(0.1)
        while time.monotonic() < deadline and not (called and answered):
            called = called or calls(address(token, other))
            answered = answered or answers(server)
    return called and answered


def main(report: Callable[..., None], role: str, token: str, options: Dict[str, Any]) -> int:
    """Report what this task can reach, and whether the other step ran at the same time."""
    bound = sorted(os.sched_getaffinity(0))
    reach = reachable_cpus()
    report("cpus", bound=bound, reach=reach, cores=cores_of(reach))
    files = sorted(glob.glob(options["device_files"]))
    report("devices", files={path: opened(path) for path in files})
    report("folders", found={path: folder_facts(path, options["sudo"]) for path in options["folders"]})
    report("met", met=meets(token, role, "second" if role == "first" else "first"))
    return 0


if __name__ == "__main__":
    exit_now(main(reporter("isolation"), sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
