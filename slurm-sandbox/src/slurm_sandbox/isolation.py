"""Jobs of the sandbox that Slurm isolates: cgroups, device files, a private /tmp, pam_slurm_adopt. It needs root.

Every sandbox has cgroups of its own, in which the slurmds of its nodes create theirs; without that, two sandboxes on one
machine would use the same cgroups, since their nodes have the same names.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_sandbox import commands
from slurm_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slurm_sandbox.layout import Layout

CONTROLLERS = ("freezer", "cpuset", "memory", "devices")
MODULE = "pam_slurm_adopt.so"
PAM_FOLDER = "root/etc/pam.d"  # in the folder of a node
_CGROUPS = Path("/sys/fs/cgroup")
_DEVICE_MAJOR = 120  # for local use (Documentation/admin-guide/devices.txt): no driver, so that open(2) ends with ENXIO
_HIDDEN = Path("/tmp")  # the jobs have another one
_EMPTY = 5.0  # seconds until the processes of a cgroup that were killed are gone
_STACK = """\
auth       required     pam_permit.so
account    required     pam_nologin.so
@include common-account
{adopt}session    required     pam_permit.so
"""


def why_not(root: Path, kind: str) -> str:
    """Return why a sandbox in this state folder, of this kind of nodes, cannot isolate jobs; '' if it can."""
    if kind != "plain":  # Linux 6.18 often refuses a mount namespace of a job within that of a node
        return "isolation needs plain nodes"
    if os.geteuid() != 0:
        return "isolation needs root: it creates cgroups and device files"
    absent = [name for name in CONTROLLERS if not (_CGROUPS / name / "cgroup.procs").exists()]
    if absent:
        return f"isolation needs cgroup v1, and this machine has no controller {', '.join(absent)} in {_CGROUPS}"
    if root.resolve().is_relative_to(_HIDDEN):
        return f"isolation hides {_HIDDEN} from the jobs: use a state folder elsewhere, not {root}"
    return ""


@dataclass(frozen=True)
class Isolation:
    """The isolation of one sandbox."""

    layout: Layout

    @property
    def cgroup(self) -> str:
        """The name of the sandbox's cgroup in each controller."""
        digest = hashlib.sha256(str(self.layout.root.resolve()).encode()).hexdigest()
        return f"slurm-sandbox-{digest[:12]}"

    def prepare(self, nodes: Sequence[str], gpus: int, module: Path | None) -> tuple[Path, ...]:
        """Create cgroups, folders and device files; return the latter. SandboxError if that fails.

        `module`: the installed pam_slurm_adopt.so, None if no sshd reads the PAM files.
        """
        try:
            (self.layout.root / "cgroup").mkdir()
            for controller in CONTROLLERS:
                self._create_cgroup(_CGROUPS / controller)
                (self.layout.root / "cgroup" / controller).symlink_to(_CGROUPS / controller / self.cgroup)
            (self.layout.root / "security").mkdir()
            own = self.layout.root / "security" / MODULE
            own.symlink_to(module) if module else own.touch()
            for node in nodes:
                (self.layout.root / "private" / node).mkdir(parents=True)
            return self._create_devices(gpus)
        except OSError as error:
            raise SandboxError(f"isolation could not be prepared: {error}") from error

    def _create_cgroup(self, controller: Path) -> None:
        own = controller / self.cgroup
        own.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cgroup, which then accepts no process
            if (controller / name).exists():
                (own / name).write_text((controller / name).read_text())

    def _create_devices(self, count: int) -> tuple[Path, ...]:
        folder = self.layout.root / "dev"
        folder.mkdir()
        paths = tuple(folder / f"nvidia{number}" for number in range(count))
        for number, path in enumerate(paths):
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(_DEVICE_MAJOR, number))
            path.chmod(0o666)
        return paths

    def write_pam(self, node: str, *, adopts: bool) -> None:
        """Write the node's /etc/pam.d, which the simulated tools show: sshd adopts sessions or does not."""
        folder = self.layout.node(node) / PAM_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "common-account").write_text("account    required     pam_permit.so\n")
        module = f"{self.layout.root / 'security' / MODULE} nodename={node}"
        adopt = f"account    required     {module}\n" if adopts else ""
        (folder / "sshd").write_text(_STACK.format(adopt=adopt))

    def configuration(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return {file of Slurm's configuration: text}."""
        return {
            "cgroup.conf": self.cgroup_conf(),
            "job_container.conf": job_container_conf({node: self.base_path(node) for node in nodes}),
        }

    def cgroup_conf(self, *, cores: bool = True, devices: bool = True, memory: bool = True) -> str:
        """Return cgroup.conf."""
        constrained = {"ConstrainCores": cores, "ConstrainDevices": devices, "ConstrainRAMSpace": memory}
        lines = [f"{name}={'yes' if on else 'no'}\n" for name, on in constrained.items()]
        return f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={self.layout.root}/cgroup\n" + "".join(lines)

    def base_path(self, node: str) -> Path:
        """Return the folder with the private /tmp of the node's jobs."""
        return self.layout.root.resolve() / "private" / node

    def deny(self, node: str, device: str) -> None:
        """Deny a device, in the words of devices.deny, to all steps of a node."""
        own = self._devices(node)
        own.mkdir(exist_ok=True)  # slurmd creates it with the first step
        (own / "devices.deny").write_text(device)

    def allow(self, node: str, device: str) -> None:
        """Allow a device again."""
        (self._devices(node) / "devices.allow").write_text(device)

    def _devices(self, node: str) -> Path:
        return _CGROUPS / "devices" / self.cgroup / f"slurm_{node}"

    def remove(self) -> None:
        """Kill what still runs in the cgroups and remove them; unmount what jobs that were killed have left."""
        for controller in CONTROLLERS:
            _remove_cgroup(_CGROUPS / controller / self.cgroup)
        for path in reversed(_mounts(str(self.layout.root.resolve() / "private"))):
            commands.run([shutil.which("umount") or "umount", "-l", path], timeout=30.0)


def _remove_cgroup(top: Path) -> None:
    if not top.exists():
        return
    deadline = time.monotonic() + _EMPTY
    while True:
        for folder, _, _ in os.walk(top, topdown=False):
            for process in _processes(Path(folder)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            with contextlib.suppress(OSError):  # a killed process is still there
                Path(folder).rmdir()
        if not top.exists() or time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _mounts(below: str) -> list[str]:
    """Return the mount points below a folder, in the order of their mounts."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    paths = [fields[4] for line in lines if len(fields := line.split()) > 4]
    return [path for path in paths if path.startswith(f"{below}/")]


def _processes(cgroup: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]
    return []


def job_container_conf(base_paths: dict[str, Path]) -> str:
    """Return job_container.conf: the folder with the private /tmp of each node."""
    return "".join(f"NodeName={node} AutoBasePath=true BasePath={path}\n" for node, path in base_paths.items())


def slurm_conf(version: tuple[int, int]) -> dict[str, str]:
    """Return the keys of slurm.conf that isolate jobs."""
    # 25.11 has renamed it
    renamed = version >= (25, 11)
    private_tmp = {"NamespaceType": "namespace/tmpfs"} if renamed else {"JobContainerType": "job_container/tmpfs"}
    return {
        "ProctrackType": "proctrack/cgroup",
        "TaskPlugin": "task/cgroup,task/affinity",
        "SelectTypeParameters": "CR_Core_Memory",
        "PrologFlags": "Contain",
        **private_tmp,
    }
