"""Nodes like real ones: each has its own network, hostname, processes, /tmp, /dev/shm and sshd.

All addresses lie in a network of the sandbox's own, a bridge in a namespace that nothing leads out of: the host's
interfaces, routes and mounts stay what they are. Slurm's commands enter that network by wrappers of the same names.
"""

from __future__ import annotations

import getpass
import os
import pwd
import re
import shlex
import shutil
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_sandbox import commands, processes, scripts
from slurm_sandbox.errors import CommandError, SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slurm_sandbox.layout import Layout
    from slurm_sandbox.processes import DaemonProcess

NETWORK, PREFIX = "10.1.0", 16  # the simulated getent returns the same addresses
LOGIN_ADDRESS = "10.1.255.254"
MAX_NODES = 254  # one byte of the address
_SCRIPTS = Path(__file__).parent / "data" / "namespaced"
_MISSED = 3  # checks of a process in a row without a result, 20 ms apart
_PACKAGES = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "hostname": "hostname",
    "ip": "iproute2",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
_SEPARATE = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc")
# the caller's user in a new user namespace, with all capabilities there
_OWN_USER = ("--user", "--map-current-user", "--keep-caps")
_NO_CAPS = ("setpriv", "--ambient-caps=-all", "--inh-caps=-all")
_SYSCTLS = (  # settings that may forbid user namespaces: path, forbidding value, sysctl to set
    ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
)


def find_programs(path: str) -> dict[str, str]:
    """Return {program: path} for namespaced nodes; SandboxError names the packages of missing programs."""
    return commands.find_programs(_PACKAGES, path, "namespaced nodes need")


def as_localhost() -> list[str]:
    """Return a command prefix that sets the hostname `localhost`.

    With NoInAddrAny Slurm's daemons listen only on the address of their hostname.
    """
    return ["unshare", *_user_options(), "--uts", "sh", "-c", 'hostname localhost && exec "$@"', "sh"]


def why_not(path: str) -> str:
    """Return why this user may not create namespaced nodes on this machine; '' if it may."""
    try:
        find_programs(path)
        done = commands.run(
            ["unshare", *_user_options(), *_SEPARATE, "sh", "-c", _TRIAL], timeout=30.0, env={"PATH": path}
        )
    except (SandboxError, CommandError) as error:
        return str(error)
    if done.rc == 0:
        return ""
    message = " ".join(done.stderr.split()) or f"exit {done.rc}"
    return f"{getpass.getuser()} may not create namespaces on this machine ({message}): {_remedy()}"


# each of these may be forbidden separately
_TRIAL = (
    "ip link add br0 type bridge && ip link add veth0 type veth peer name veth1"
    " && mount -t tmpfs tmpfs /tmp && mount -t sysfs sysfs /sys"
)


def _user_options() -> tuple[str, ...]:
    return () if os.geteuid() == 0 else _OWN_USER


def _remedy() -> str:
    for name, forbids, setting in _SYSCTLS:
        try:
            value = Path("/proc/sys", name).read_text().strip()
        except OSError:
            continue
        if value == forbids:
            return f"sysctl -w {setting}, or run as root, or use --kind plain"
    if os.geteuid() == 0:
        return "in a container it needs --privileged (CAP_SYS_ADMIN and CAP_NET_ADMIN); or use --kind plain"
    return "run as root, or use --kind plain"


@dataclass(frozen=True)
class Namespaces:
    """The namespaces of one sandbox: one process holds the login node's network, two hold those of each node."""

    layout: Layout
    path: str

    def prepare(self, nodes: Sequence[str], share: Sequence[Path]) -> None:
        """Write the configuration of the nodes: hosts, nsswitch.conf, keys, configuration of ssh."""
        layout = self.layout
        (layout.etc / "hosts").write_text(hosts_file(nodes, socket.gethostname()))
        (layout.etc / "nsswitch.conf").write_text(nsswitch(_text("/etc/nsswitch.conf")))
        shadow = layout.etc / "shadow"
        shadow.touch(mode=0o600)
        shadow.write_text(shadow_file({entry.pw_name for entry in pwd.getpwall()} | {getpass.getuser()}))
        for node in nodes:
            for folder in ("sys", "run", "tmp"):
                (layout.disk(node) / folder).mkdir(parents=True)
        (layout.root / "keep").write_text("".join(f"{path}\n" for path in self._visible_paths(share)))
        layout.bin.mkdir()
        (layout.root / "bin.node").mkdir()
        os.mkfifo(layout.run / "login.hold", 0o600)
        self._write_keys(nodes)

    def _visible_paths(self, share: Sequence[Path]) -> list[Path]:
        """Return the paths that stay visible below /tmp or /run: the state folder, this Python, this package."""
        python = {Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[1]}
        wanted = [self.layout.root, *sorted(python), *share]
        return list(dict.fromkeys(path.resolve() for path in wanted if path.exists()))

    def _write_keys(self, nodes: Sequence[str]) -> None:
        folder = self.layout.ssh
        folder.mkdir(mode=0o700)
        for name in ("host_key", "id_ed25519"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "sandbox", "-f", str(folder / name)]
            self._run(argv, "ssh-keygen")
        host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
        names = ",".join(f"{node},{address(number)}" for number, node in enumerate(nodes, 1))
        (folder / "known_hosts").write_text(f"{names} {host_key}\n")
        shutil.copy(folder / "id_ed25519.pub", folder / "authorized_keys")
        (folder / "config").write_text(ssh_config(folder))
        (folder / "config.login").write_text(_login_ssh_config(folder, nodes))
        (folder / "sshd_config").write_text(sshd_config(folder))

    def start(self, nodes: Sequence[str], *, patience: float) -> None:
        """Create the networks and start every node's first process and sshd; return when all are ready."""
        programs = find_programs(self.path)
        layout = self.layout
        settings = {
            "PATH": self.path,
            "HOME": str(Path.home()),
            "LOGIN_ADDRESS": LOGIN_ADDRESS,
            "NETWORK": NETWORK,
            "PREFIX": str(PREFIX),
            "KEEP": (layout.root / "keep").read_text().rstrip("\n"),
            "SSHD": programs["sshd"],
            # SHLVL: bash reads no ~/.bashrc for a command, which is the host's
            "SSH_ENVIRONMENT": f"SLURM_CONF={layout.conf} PATH={layout.simbin}:{self.path} SHLVL=1",
            "DROP": "" if os.geteuid() == 0 else " ".join(_NO_CAPS),
        }
        command = shlex.join(
            [
                *("env", "-i", *(f"{name}={value}" for name, value in settings.items())),
                *("unshare", *_user_options(), "--net"),
                *("sh", str(_SCRIPTS / "login.sh"), str(layout.root.resolve()), *nodes),
            ]
        )
        log, pid = shlex.quote(str(layout.log_file("login"))), shlex.quote(str(layout.pid_file("login")))
        # setsid: independent of the caller's terminal and Ctrl-C
        self._run(["sh", "-c", f"setsid {command} </dev/null >{log} 2>&1 & echo $! >{pid}"], "login")
        deadline = time.monotonic() + patience
        for name in ("login", *(f"node-{node}" for node in nodes)):
            self._wait(name, deadline)

    def _wait(self, name: str, deadline: float) -> None:
        pid_file, ready = self.layout.pid_file(name), self.layout.run / f"{name}.ready"
        grace = time.monotonic() + 10.0  # until the pid file is written
        missed = 0  # the process may be in execve
        while not ready.exists():
            begun = bool(_text(pid_file).strip())  # empty: the pid is being written
            missed = missed + 1 if begun and not processes.from_pid_file(pid_file, str(self._root)) else 0
            if (missed > _MISSED and not ready.exists()) or time.monotonic() > max(deadline, grace):
                log = _text(self.layout.log_file(name)).strip().splitlines()
                why = " | ".join(log[-3:]) or "no message"
                raise SandboxError(f"namespaces of {name.removeprefix('node-')} could not be created: {why}")
            time.sleep(0.02)

    @property
    def _root(self) -> Path:
        return self.layout.root.resolve()

    # -- commands inside -----------------------------------------------------------------------------------------

    def on_login(self) -> list[str]:
        """Return a command prefix that enters the network of the login node."""
        holder = self._holder("login")
        return ["nsenter", *_enter_user(), f"--target={holder.pid}", "--net"]

    def on_node(self, node: str) -> list[str]:
        """Return a command prefix that enters the namespaces of a node."""
        first = self.first_process(node)
        if first is None:
            raise SandboxError(f"{node} does not run: stop the sandbox and start it again")
        spaces = ("--net", "--mount", "--uts", "--ipc", "--pid")
        return ["nsenter", *_enter_user(), f"--target={first.pid}", *spaces]

    def first_process(self, node: str) -> DaemonProcess | None:
        """Return the process with pid 1 on a node."""
        holder = processes.from_pid_file(self.layout.pid_file(f"node-{node}"), str(self._root))
        return next(iter(processes.children(holder.pid)), None) if holder else None

    def find(self, node: str, pid_file: Path) -> DaemonProcess | None:
        """Return the process of a pid file that was written on a node, with a pid of the node."""
        first = self.first_process(node)
        if first is None:
            return None
        try:
            inside = int(pid_file.read_text().strip())
        except (OSError, ValueError):
            return None
        return next((p for p in processes.children(first.pid) if processes.inner_pid(p.pid) == inside), None)

    def _holder(self, name: str) -> DaemonProcess:
        holder = processes.from_pid_file(self.layout.pid_file(name), str(self._root))
        if holder is None:
            raise SandboxError(f"the network of the sandbox in {self.layout.root} is gone: stop the sandbox")
        return holder

    def stop(self) -> None:
        """Kill all processes of the nodes. The login node's network ends with its process."""
        found = []
        for path in self.layout.run.glob("node-*.pid"):
            holder = processes.from_pid_file(path, str(self._root))
            if holder is not None:
                found += [*processes.children(holder.pid), holder]
        processes.kill(found, patience=10.0)

    def write_commands(self, programs: Mapping[str, Path]) -> None:
        """Write wrappers of Slurm's commands that enter the login node's network; on a node they run directly."""
        layout = self.layout
        holder = self._holder("login")
        network = str(Path(f"/proc/{holder.pid}/ns/net").readlink())
        values = {"PID": str(holder.pid), "NETWORK": shlex.quote(network), "ENTER": shlex.join(self.on_login())}
        for name, program in programs.items():
            values["PROGRAM"] = shlex.quote(str(program))
            scripts.write(_SCRIPTS / "command.sh", layout.bin / name, values)
            (layout.root / "bin.node" / name).symlink_to(program)
        scripts.write(_SCRIPTS / "command.sh", layout.bin / "sandbox-login", values | {"PROGRAM": ""})

    def _run(self, argv: Sequence[str], what: str) -> None:
        try:
            done = commands.run(argv, timeout=60.0, env={"PATH": self.path})
        except CommandError as error:
            raise SandboxError(f"{what} could not be started: {error}") from error
        if done.rc != 0:
            raise SandboxError(f"{what} could not be started (exit {done.rc}): {' '.join(done.stderr.split())}")


def address(number: int) -> str:
    """Return the address of a node, counted from 1."""
    return f"{NETWORK}.{number}"


def hosts_file(nodes: Sequence[str], login: str) -> str:
    """Return /etc/hosts of the nodes; the login node has the name of this machine."""
    names = " ".join(dict.fromkeys((login, login.partition(".")[0], "login")))
    rows = [f"{address(number)}\t{node}" for number, node in enumerate(nodes, 1)]
    return "\n".join(["127.0.0.1\tlocalhost", f"{LOGIN_ADDRESS}\t{names}", *rows, ""])


def nsswitch(text: str) -> str:
    """Return the host's nsswitch.conf with host names only from files: no name server is reachable."""
    others = [line for line in text.splitlines() if not re.match(r"\s*hosts\s*:", line)]
    return "\n".join([*others, "hosts: files", ""])


def shadow_file(users: Iterable[str]) -> str:
    """Return /etc/shadow of the nodes: no valid password, but no locked account ('!'), which sshd would reject."""
    return "".join(f"{user}:*:19000:0:99999:7:::\n" for user in sorted(users))


def ssh_config(folder: Path) -> str:
    """Return the nodes' /etc/ssh/ssh_config: the sandbox's keys, and no prompts."""
    return f"""\
Host *
  IdentityFile {folder}/id_ed25519
  IdentitiesOnly yes
  GlobalKnownHostsFile {folder}/known_hosts
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  UpdateHostKeys no
  BatchMode yes
"""


def _login_ssh_config(folder: Path, nodes: Sequence[str]) -> str:
    """Return ssh_config for the login node, where the nodes' names do not resolve."""
    hosts = [f"Host {node}\n  HostName {address(number)}\n" for number, node in enumerate(nodes, 1)]
    return "".join(hosts) + ssh_config(folder)


def sshd_config(folder: Path) -> str:
    """Return the nodes' sshd_config: one user, one key."""
    return f"""\
Port 22
ListenAddress 0.0.0.0
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
AllowUsers {getpass.getuser()}
PermitRootLogin prohibit-password
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
PidFile none
PrintMotd no
PrintLastLog no
MaxStartups 100
"""


def _enter_user() -> tuple[str, ...]:
    return () if os.geteuid() == 0 else ("--user", "--preserve-credentials")


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
