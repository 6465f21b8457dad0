"""Programs and processes of munged, slurmctld and one slurmd per node."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_sandbox import commands, processes, slurmconf
from slurm_sandbox.errors import CommandError, SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slurm_sandbox.commands import Completed
    from slurm_sandbox.layout import Layout
    from slurm_sandbox.namespaces import Namespaces
    from slurm_sandbox.processes import DaemonProcess

_CLIENTS = ("srun", "salloc", "sbatch", "sinfo", "squeue", "scancel", "scontrol", "sdiag")
_FURTHER_CLIENTS = ("sacct", "sacctmgr", "sattach", "sbcast", "sprio", "sreport", "sshare", "sstat")
_PACKAGES = {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "slurmstepd": "slurm-wlm"}
_STARTERS = 4  # concurrent starts of slurmd, which mostly waits
_SOCKET_PATH_LIMIT = 107  # sun_path of unix(7), less the final NUL
_LAST_STEP = "999999.4294967291"  # the batch step of a job, as slurmstepd names its socket
_LOG_LINES = 3
BACKUP = "slurmctld-backup"


def search_path() -> str:
    """Return PATH with the folders of system daemons, which are often missing in a user's PATH."""
    entries = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    return os.pathsep.join(dict.fromkeys([*entries, *commands.SYSTEM_PATH]))


def find_programs() -> dict[str, Path]:
    """Return {program: path}; SandboxError names the packages of missing programs."""
    found, absent = {}, []
    for name in (*_PACKAGES, *_CLIENTS):
        path = shutil.which(name, path=search_path()) or shutil.which(f"{name}-wlm", path=search_path())
        if path:
            found[name] = Path(path)
        else:
            absent.append(name)
    if absent:
        packages = sorted({_PACKAGES.get(name, "slurm-wlm") for name in absent}, reverse=True)
        raise SandboxError(
            f"the sandbox needs {', '.join(absent)}: apt-get install --no-install-recommends {' '.join(packages)}"
        )
    return found


def unusual_folder() -> Path | None:
    """Return the folder of Slurm's commands, None if it is a system folder: the cluster file must name the former."""
    folder = find_programs()["srun"].parent
    return None if str(folder) in commands.SYSTEM_PATH else folder


def client_programs(programs: dict[str, Path]) -> dict[str, Path]:
    """Return {command: path} of Slurm: the required commands, and the optional ones if installed."""
    further = {name: shutil.which(name, path=search_path()) for name in _FURTHER_CLIENTS}
    installed = {name: Path(path) for name, path in further.items() if path}
    return {name: programs[name] for name in _CLIENTS} | installed


class SlurmDaemons:
    """The daemons of one sandbox. `programs` comes from find_programs; `namespaces` are those of namespaced nodes."""

    def __init__(self, layout: Layout, programs: dict[str, Path], namespaces: Namespaces | None = None) -> None:
        self._layout = layout
        self._programs = programs
        self._namespaces = namespaces
        self._sbin = layout.root / "sbin"

    def version(self) -> tuple[int, int]:
        """Return Slurm's version, as (22, 5)."""
        return slurmconf.parse_version(self._run([str(self._programs["slurmctld"]), "-V"], "slurmctld").stdout)

    def refuse_long_paths(self, nodes: Sequence[str]) -> None:
        """Raise SandboxError where a socket would not fit: Slurm starts, and its jobs fail."""
        root, name = self._layout.root, max(nodes, key=len)
        sockets = (self._layout.munge_socket, root / "spool" / name / f"{name}_{_LAST_STEP}")
        most = _SOCKET_PATH_LIMIT - max(len(str(it)) - len(str(root)) for it in sockets)
        if len(str(root)) > most:
            raise SandboxError(
                f"state folder {root}: {len(str(root))} characters are too long for the sockets in it, of which the system "
                f"allows {_SOCKET_PATH_LIMIT}: choose a path of at most {most}"
            )

    def start_munged(self) -> None:
        """Start munged with a new key."""
        layout = self._layout
        key = layout.etc / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        files = {
            "--socket": layout.munge_socket,
            "--key-file": key,
            "--pid-file": layout.pid_file("munged"),
            "--log-file": layout.log_file("munged"),
            "--seed-file": layout.run / "munged.seed",
        }
        # --force: state folders may be below a group-writable one
        options = [f"{option}={path}" for option, path in files.items()]
        self._run([str(self._programs["munged"]), *options, "--force"], "munged")

    def start_slurmctld(self) -> None:
        """Start slurmctld with a clean state."""
        self._link_programs()
        conf = str(self._layout.conf)
        where = self._namespaces.on_login() if self._namespaces else []
        self._run([str(self._sbin / "slurmctld"), "-c", "-f", conf], "slurmctld", where)

    def start_backup(self) -> None:
        """Start a second slurmctld, which has a hostname, an address, a pid file and a log of its own."""
        layout, own = self._layout, self._layout.root / "etc.backup"
        own.mkdir(exist_ok=True)
        text = layout.conf.read_text()
        for file in (layout.pid_file, layout.log_file):
            text = text.replace(str(file("slurmctld")), str(file(BACKUP)))
        (own / "slurm.conf").write_text(text)
        for path in layout.etc.iterdir():
            if path.name != "slurm.conf" and not (own / path.name).exists():
                (own / path.name).symlink_to(path)
        hosts = own / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{slurmconf.BACKUP_ADDRESS} {slurmconf.BACKUP_HOST}\n")
        # slurmctld finds its place in slurm.conf by its hostname, and the address to listen on by /etc/hosts
        enter = 'mount --bind "$1" /etc/hosts && hostname "$0" && shift && exec "$@"'
        where = ["unshare", "--uts", "--mount", "sh", "-c", enter, slurmconf.BACKUP_HOST, str(hosts)]
        self._run([str(self._sbin / "slurmctld"), "-f", str(own / "slurm.conf")], BACKUP, where)

    def start_slurmds(self, nodes: Sequence[str]) -> None:
        """Start one slurmd per node, a few at a time."""
        with ThreadPoolExecutor(_STARTERS) as pool:
            list(pool.map(self.start_slurmd, nodes))

    def start_slurmd(self, node: str, conf: Path | None = None) -> None:
        """Start the slurmd of one node; `conf` is the node's own slurm.conf, if it has one."""
        stepd = str(self._sbin / "slurmstepd")
        argv = [str(self._sbin / "slurmd"), "-N", node, "-d", stepd, "-f", str(conf or self._layout.conf)]
        self._run(argv, f"slurmd-{node}", self._namespaces.on_node(node) if self._namespaces else [])

    def wait_idle(self, nodes: Sequence[str], *, patience: float) -> None:
        """Wait until all nodes are idle in Slurm; SandboxError shows the log of a daemon that did not start."""
        deadline = time.monotonic() + patience
        states: dict[str, str] = {}
        while time.monotonic() < deadline:
            states = self.states()
            if states and all(states.get(node) == "idle" for node in nodes):
                return
            time.sleep(0.1)
        late = next((node for node in nodes if states.get(node) != "idle"), nodes[0])
        daemon = f"slurmd-{late}" if states else "slurmctld"
        what = f"node {late} is {states[late]}" if late in states else "slurmctld does not answer"
        raise SandboxError(f"the sandbox did not start within {patience:.0f} s: {what}: {self.last_log(daemon)}")

    def states(self) -> dict[str, str]:
        """Return {node: short state}, like idle, alloc, down*; {} while slurmctld does not answer."""
        try:
            done = self.client("sinfo", "-N", "-h", "-p", slurmconf.PARTITION.name, "-o", "%N %t")
        except CommandError:
            return {}
        return dict(line.split()[:2] for line in done.stdout.splitlines()) if done.rc == 0 else {}

    def cancel_jobs(self, *, patience: float) -> None:
        """Cancel all jobs: an srun waits long for a job that vanishes with Slurm."""
        deadline = time.monotonic() + patience
        with contextlib.suppress(CommandError):
            # no job may start after the last scancel
            for partition in (slurmconf.PARTITION, slurmconf.SMALL_PARTITION):
                closed = f"PartitionName={partition.name}", "State=INACTIVE"
                self.client("scontrol", "update", *closed, timeout=patience)
            while time.monotonic() < deadline:
                jobs = self.client("squeue", "-h", "-o", "%A", timeout=patience).stdout.split()
                if not jobs:
                    return
                self.client("scancel", *jobs, timeout=patience)
                time.sleep(0.1)

    def client(self, *argv: str, timeout: float = 30.0, conf: Path | None = None) -> Completed:
        """Run one of Slurm's commands in this sandbox. `conf`: another slurm.conf than the sandbox's."""
        program = self._layout.bin / argv[0] if self._namespaces else self._programs[argv[0]]
        return commands.run(
            [str(program), *argv[1:]], timeout=timeout, env={"SLURM_CONF": str(conf or self._layout.conf)}
        )

    def last_log(self, daemon: str) -> str:
        """Return the last lines of a daemon's log, joined in one line."""
        path = self._layout.log_file(daemon)
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            return f"no log at {path}"
        return " | ".join(line.strip() for line in lines[-_LOG_LINES:]) or f"empty log at {path}"

    def find(self, daemon: str) -> DaemonProcess | None:
        """Return the running process of munged, slurmctld or slurmd-NODE."""
        pid_file = self._layout.pid_file(daemon)
        if self._namespaces is not None and daemon.startswith("slurmd-"):
            return self._namespaces.find(daemon.removeprefix("slurmd-"), pid_file)
        return processes.from_pid_file(pid_file, str(self._layout.root))

    def wait_for(self, daemons: Iterable[str], *, patience: float = 30.0) -> dict[str, DaemonProcess]:
        """Return {daemon: process}; daemons write their pid files shortly after their start."""
        deadline = time.monotonic() + patience
        found: dict[str, DaemonProcess] = {}
        for daemon in daemons:
            process = self.find(daemon)
            while process is None and time.monotonic() < deadline:
                time.sleep(0.02)
                process = self.find(daemon)
            if process is None:
                raise SandboxError(f"{daemon} ended at once: {self.last_log(daemon)}")
            found[daemon] = process
        return found

    def _link_programs(self) -> None:
        # Slurm's daemons depend on their own names: one started as slurmctld-wlm ignores Gres on node lines
        self._sbin.mkdir(exist_ok=True)
        for name in ("slurmctld", "slurmd", "slurmstepd"):
            (self._sbin / name).symlink_to(self._programs[name].resolve())

    def _run(self, argv: Sequence[str], daemon: str, where: Sequence[str] = ()) -> Completed:
        # env -i: the caller's settings for Slurm or munge must not affect the sandbox's daemons
        clean = [
            "env",
            "-i",
            f"PATH={self._layout.enroot / 'bin' / daemon.removeprefix('slurmd-')}:{search_path()}",
            f"HOME={Path.home()}",
            f"SLURM_CONF={self._layout.conf}",
        ]
        try:
            done = commands.run([*where, *clean, *argv], timeout=60.0)
        except CommandError as error:
            raise SandboxError(f"{daemon} could not be started: {error}") from error
        if done.rc != 0:
            errors = done.stderr.strip().splitlines()
            why = " | ".join(errors[-2:]) or self.last_log(daemon)  # the cause and its consequence
            raise SandboxError(f"{daemon} could not be started (exit {done.rc}): {why}")
        return done
