"""The fleet channel without Slurm: one SSH connection and one agent per node.

Together the connections have the interface of one srun process, as `Fleet` needs it: input goes to the agents of all
nodes, and each output line starts with the number of its node. A node that cannot be reached is lost and delays no
other.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

from pytest_gpucluster.cluster.channel.channel import Fleet, new_nonce
from pytest_gpucluster.cluster.channel.protocol import agent_argv
from pytest_gpucluster.cluster.environment import session_lines
from pytest_gpucluster.cluster.transport.remote_process import SshProcess
from pytest_gpucluster.cluster.transport.ssh_connect import address_of, connect, gateway_to
from pytest_gpucluster.core.errors import GpuClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.config.models import HostAddress, SshConfig

AT_ONCE = 32  # connections that are made side by side
BEGIN = 60.0  # seconds for a login shell to start the agent
_LINE = 1 << 16
_EXIT_TIMEOUT = 5.0  # seconds for an agent to exit


def fleet_over_ssh(nodes: Sequence[str], settings: SshConfig, hosts: Mapping[str, HostAddress]) -> Fleet:
    """Open a channel to nodes over one SSH connection per node; `hosts` are the addresses of an inventory."""
    agents = _Agents(nodes, settings, hosts)
    fleet = Fleet(agents, nodes, agents.nonce)
    agents.start(fleet.give_up)
    return fleet


def settings_of(node: str, settings: SshConfig, hosts: Mapping[str, HostAddress]) -> tuple[str, SshConfig]:
    """Return host name and settings of one node: the inventory takes precedence over the cluster file."""
    address = hosts.get(node)
    if address is None:
        return node, settings
    stated = {"port": address.port, "user": address.user, "key_file": address.key_file}
    return address.host, settings.model_copy(update={key: value for key, value in stated.items() if value})


class _Lines(queue.SimpleQueue[bytes]):
    """A stream of lines from many writers; b'' at the end."""

    def readline(self, _limit: int = -1) -> bytes:
        return self.get()

    def close(self) -> None:
        self.put(b"")


class _Input:
    """Writes to all nodes through one queue per node, so that a node that hangs delays no other."""

    def __init__(self, nodes: Sequence[_Agent]) -> None:
        self._nodes = nodes

    def write(self, data: bytes) -> int:
        for node in self._nodes:
            node.inbox.put(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: write() does not buffer."""

    def close(self) -> None:
        for node in self._nodes:
            node.inbox.put(None)


class _Agent:
    """One node: its connection, the agent there, a thread that feeds it and one that reads it."""

    def __init__(self, task: int, node: str, out: _Lines) -> None:
        self.task, self.node = task, node
        self.inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.ended = threading.Event()
        self._out = out
        self._connection: Any = None
        self._process: SshProcess | None = None

    def run(self, make: Callable[[], Any], where: str, nonce: str, lose: Callable[[str, str], None]) -> None:
        """Connect, feed the agent until the input ends, and wait for its exit."""
        try:
            connection = self._connection = make()
            channel = connection.transport.open_session(timeout=BEGIN)
            process = SshProcess(channel, agent_argv(nonce), where, merged=True)
            env = {"SLURM_PROCID": str(self.task), "SLURMD_NODENAME": self.node}
            process.begin(env, timeout=BEGIN, base=session_lines())
            self._process = process
            reader = threading.Thread(target=self._read, args=(process, lose), daemon=True)
            reader.start()
            while (data := self.inbox.get()) is not None:
                process.stdin.write(data)
                process.stdin.flush()
            process.stdin.close()
            reader.join(_EXIT_TIMEOUT)
        except GpuClusterError as error:
            lose(self.node, str(error))
        except Exception as error:  # noqa: BLE001 - paramiko raises many kinds; each is the end of this node alone
            why = " ".join(str(error).split()) or type(error).__name__
            lose(self.node, f"its SSH connection was lost: {why}")
        finally:
            self.close()
            self.ended.set()

    def _read(self, process: SshProcess, lose: Callable[[str, str], None]) -> None:
        label = b"%d: " % self.task
        try:
            while line := process.stdout.readline(_LINE):
                self._out.put(label + line)
        except (OSError, ValueError):
            pass  # close() was called
        why = "its SSH connection was lost" if process.lost else f"its agent ended (exit {process.poll()})"
        lose(self.node, why)
        self.inbox.put(None)

    def close(self) -> None:
        """Let go of the connection, and of the agent with it."""
        if self._process is not None:
            self._process.close()
        if self._connection is not None:
            with contextlib.suppress(EOFError, OSError):  # of a jump host that was first to go
                self._connection.client.close()


class _Agents:
    """All agents, with the interface of one remote process."""

    def __init__(self, nodes: Sequence[str], settings: SshConfig, hosts: Mapping[str, HostAddress]) -> None:
        self.nonce = new_nonce()
        self.pid = 0
        self._out, self._err = _Lines(), _Lines()
        self._agents = [_Agent(task, node, self._out) for task, node in enumerate(nodes)]
        self._settings, self._hosts = settings, hosts
        self._room = threading.Semaphore(AT_ONCE)
        self._gateway: Any = None
        self._gateway_lock = threading.Lock()
        # streams as far as Fleet uses them
        self.stdin = cast("IO[bytes]", _Input(self._agents))
        self.stdout, self.stderr = cast("IO[bytes]", self._out), cast("IO[bytes]", self._err)

    def start(self, lose: Callable[[str, str], None]) -> None:
        """Connect to all nodes; `lose` is called with (node, why) for each lost one."""
        for agent in self._agents:
            host, settings = settings_of(agent.node, self._settings, self._hosts)
            make = partial(self._connect, host, settings)
            args = (make, address_of(host, settings), self.nonce, lose)
            threading.Thread(target=agent.run, args=args, name=f"ssh-{agent.node}", daemon=True).start()

    def _connect(self, host: str, settings: SshConfig) -> Any:
        with self._room:
            return connect(host, settings, gateway=self._jump_connection(settings))

    def _jump_connection(self, settings: SshConfig) -> Any:
        """Return the connection to the jump host, which all nodes share; None without a jump host."""
        if not settings.jump:
            return None
        with self._gateway_lock:
            if self._gateway is None or not self._gateway.is_connected:
                self._gateway = gateway_to(settings)
            return self._gateway

    @property
    def returncode(self) -> int | None:
        """0 once every agent has ended."""
        return 0 if all(agent.ended.is_set() for agent in self._agents) else None

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for all agents to end; subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for agent in self._agents:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not agent.ended.wait(left):
                raise subprocess.TimeoutExpired(("ssh",), timeout or 0.0)
        self._finish()
        return 0

    def kill_group(self, _sig: int) -> None:
        """End every connection; the agents exit when their input ends."""
        for agent in self._agents:
            agent.inbox.put(None)
            agent.close()
        self._finish()

    def _finish(self) -> None:
        if self._gateway is not None:
            self._gateway.close()
        self._out.close()
        self._err.close()
