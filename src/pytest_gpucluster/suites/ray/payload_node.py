# A broken Ray may raise anything (BLE001); /proc is read by the thousand, as plain strings (PTH).
"""One node of a Ray cluster: runs `ray start --block`, and ends all processes that it started.

Runs on the nodes by `payload_step.command`, one task per node, under the python that has Ray.

    alone   the node is the head of a separate cluster and is ended in order
    head    the first node: runs the driver on all nodes, then is killed like a lost node
    worker  any other node: joins, and reports how it ended after the loss of its head
    driver  the program that the head starts: payload_driver.py

Prints JSON lines {"kind": ..., "node": ...}; a failure has the kind "problem". A marker in the environment and open
files in the temporary folder of the task identify its Ray processes: `ray stop` would also end the Ray of other jobs.
The token for Ray's authentication is in RAY_AUTH_TOKEN and on no command line. Exit code 1: see "problem".
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Tuple

from pytest_gpucluster.kit.payloads.own_folder import make_folder, remove_folder
from pytest_gpucluster.kit.payloads.prelude import (
    Failure,
    address_of,
    address_towards,
    again,
    error_text,
    interfaces,
    node_name,
    print_json,
    text_of,
)

MARK = "GPUCLUSTER_RAY_TASK"
PORTS = (
    "port",
    "node-manager-port",
    "object-manager-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
    "runtime-env-agent-port",
    "ray-client-server-port",
)
HEAD_ONLY = ("port", "ray-client-server-port")
FIRST_WORKER_PORT = 10  # after the fixed ones
LAST_PORT = 32767  # the ephemeral ports of Linux follow
TAIL = 3
# bytes; if /dev/shm is smaller, often 64 MiB in a container, Ray uses its folder
OBJECT_STORE = 100 * 1024 * 1024


def report(kind: str, **facts: Any) -> None:
    """Print facts of this task."""
    print_json(kind=kind, node=node_name(), **facts)


# -- addresses and ports -----------------------------------------------------------------------------------------


def own_address(plan: Dict[str, Any]) -> str:
    """Return this node's address for Ray: of the requested interface, or the one towards the others.

    Nodes that share a host reach each other by loopback: each uses a different address in 127.0.0.0/8.
    """
    names = list(plan["nodes"])
    number = names.index(node_name())
    wanted = plan.get("interface")
    if wanted:
        own = address_of(wanted)
    else:
        other = next((name for name in names if name != node_name()), None)
        own = address_towards(plan["nodes"][other]["address"]) if other else "127.0.0.1"
    if own.startswith("127.") and len(names) > 1:
        return "127.0.%d.%d" % (1 + number // 200, 2 + number % 200)
    return own


def width_of(plan: Dict[str, Any]) -> int:
    """Return the number of ports of one node."""
    cpus = max(node["cpus"] + node["gpus"] for node in plan["nodes"].values())
    return FIRST_WORKER_PORT + 20 + 2 * int(cpus)


def block_of(plan: Dict[str, Any], address: str) -> int:
    """Return the first port of the node; nodes that share a host have different ports."""
    shift = list(plan["nodes"]).index(node_name()) if address.startswith("127.") else 0
    first = plan["port"] + shift * width_of(plan)
    if first + width_of(plan) > LAST_PORT:
        raise Failure("port", "ports %d and more are above %d" % (first, LAST_PORT))
    return int(first)


def taken(port: int) -> bool:
    """Return whether another process listens on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def holder_of(port: int) -> str:
    """Return ' by PROGRAM (pid N)' for the listener on a port, '' if it is not visible."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in read(table).decode().splitlines()[1:]:
            cells = row.split()
            if cells[3] == "0A" and int(cells[1].rpartition(":")[2], 16) == port:
                inodes.add("socket:[%s]" % cells[9])
    for pid in pids():
        if any(link in inodes for link in open_files(pid)):
            return " by %s (pid %d)" % (read("/proc/%d/comm" % pid).decode(errors="replace").strip(), pid)
    return ""


def unused(block: int) -> int:
    """Return the first port of the block; Failure names a port of it that is taken, and the program."""
    for number, name in enumerate(PORTS):
        if taken(block + number):
            port = block + number
            raise Failure("port_taken", "port %d (%s) is taken%s" % (port, name, holder_of(port)))
    return block


def free_ports(plan: Dict[str, Any], address: str) -> int:
    """Return the first port of the first free block, of at most `blocks` of the plan."""
    first, width = block_of(plan, address), width_of(plan)
    stride = width * (len(plan["nodes"]) if address.startswith("127.") else 1)
    for block in range(first + stride, LAST_PORT - width, stride)[: plan["blocks"] - 1]:
        with contextlib.suppress(Failure):
            return unused(first)
        first = block
    return unused(first)


# -- processes ---------------------------------------------------------------------------------------------------


def read(path: str) -> bytes:
    """Return the content of a file of /proc; b'' if the process has ended or belongs to another user."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def pids() -> List[int]:
    """Return every process but this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def open_files(pid: int) -> List[str]:
    """Return the targets of the descriptors of a process."""
    folder, found = "/proc/%d/fd" % pid, []
    try:
        numbers = os.listdir(folder)
    except OSError:
        return []
    for number in numbers:
        try:
            found.append(os.readlink("%s/%s" % (folder, number)))
        except OSError:
            continue
    return found


class Daemons:
    """The Ray processes of this task: their folder, their marker, and `ray start --block`, their parent."""

    def __init__(self, plan: Dict[str, Any], role: str) -> None:
        self.parent, self.prefix = plan["temp"], "r%s%s" % (plan["marker"][:6], role[0])
        self.temp = self.log = ""
        self.mark = "%s/%s/%s" % (plan["marker"], role, node_name())
        self.env = {**os.environ, MARK: self.mark, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        # by default a worker tries to reach its head for a minute; it must give up before the deadline
        self.env.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(max(2, int(plan["leave"] / 6))))
        self.env.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if self.env.get("RAY_AUTH_TOKEN"):
            self.env["RAY_AUTH_MODE"] = "token"
        self.process = None  # type: Any

    def make_folder(self) -> None:
        """Create the folder; its path is short, since that of a socket in it may have 107 characters."""
        self.temp = make_folder(self.parent, self.prefix)
        self.log = os.path.join(self.temp, "start.log")

    def mine(self) -> List[int]:
        """Return the processes of this task, without zombies.

        Some Ray processes overwrite their environment by their title: their open files identify them.
        """
        mark = ("%s=%s" % (MARK, self.mark)).encode()
        found = []
        for pid in pids():
            inside = self.temp and any(path.startswith(self.temp + "/") for path in open_files(pid))
            if inside or mark in read("/proc/%d/environ" % pid).split(b"\0"):
                found.append(pid)
        return [pid for pid in found if b") Z " not in read("/proc/%d/stat" % pid)]

    def start(self, words: List[str]) -> None:
        """Start `ray start --block` with these options."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words]
        own = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(own, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.env
            )

    def last_lines(self) -> str:
        """Return the last lines of `ray start`, joined."""
        lines = list(filter(None, map(str.strip, read(self.log).decode(errors="replace").splitlines())))
        errors = [line for line in lines if "rror" in line]
        return " / ".join((errors or lines)[-TAIL:])[-600:]

    def wait_for(self, address: str, port: int, seconds: float) -> None:
        """Wait until Ray answers on a port; Failure if it ended or took too long."""
        end = time.monotonic() + seconds
        while not reachable(address, port):
            if self.process.poll() is not None:
                raise self.ended()
            if time.monotonic() > end:
                text = "ray start was not up within %g s: %s" % (seconds, self.last_lines())
                raise Failure("start_late", text)
            time.sleep(0.2)

    def ended(self) -> Failure:
        """Return the failure that `ray start` ended by itself."""
        text = "ray start ended with %s: %s" % (self.process.returncode, self.last_lines())
        return Failure("start_ended", text)

    def kill(self) -> None:
        """Kill all processes at once, like a lost node."""
        for pid in self.mine():
            signal_to(pid, signal.SIGKILL)

    def end(self, patience: float) -> Tuple[int, bool]:
        """End `ray start`, then kill the rest; return the number of the rest, and whether `ray start` ended on SIGTERM."""
        ended = True
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                ended = False
        return self.clean(), ended

    def clean(self) -> int:
        """Kill the remaining processes and remove the folder; return how many there were."""
        time.sleep(1)  # agents check every second whether their raylet runs
        outlived = len(self.mine())
        for _ in range(50):
            left = self.mine()
            if not left:
                break
            for pid in left:
                signal_to(pid, signal.SIGKILL)
            time.sleep(0.1)
        if self.temp:
            remove_folder(self.temp)
        return outlived


def signal_to(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def adopt() -> None:
    """Become the parent of the orphans of this process, if Linux permits, so that the end of the step finds them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def reachable(address: str, port: int) -> bool:
    """Return whether a program listens there."""
    try:
        socket.create_connection((address, port), 2).close()
    except OSError:
        return False
    return True


def report_token() -> None:
    """Report whether Ray has a token, and how many processes have it on their command line."""
    token = os.environ.get("RAY_AUTH_TOKEN", "").encode()
    lines = [read("/proc/%d/cmdline" % pid) for pid in [*pids(), os.getpid()]] if token else []
    report("token", set=bool(token), exposed=sum(token in line for line in lines))


# -- the three roles ---------------------------------------------------------------------------------------------


def options(plan: Dict[str, Any], address: str, first: int, temp: str, *, head: bool) -> List[str]:
    """Return the options of `ray start`."""
    name = node_name()
    share = plan["nodes"][name]
    words = ["--node-ip-address=" + address, "--temp-dir=" + temp, "--disable-usage-stats"]
    ports = [(first + number, name) for number, name in enumerate(PORTS) if head or name not in HEAD_ONLY]
    words += ["--%s=%d" % (name, port) for port, name in ports]
    last = first + width_of(plan) - 1
    words += ["--min-worker-port=%d" % (first + FIRST_WORKER_PORT), "--max-worker-port=%d" % last]
    words += ["--num-cpus=%d" % share["cpus"], "--num-gpus=%d" % share["gpus"]]
    words += ["--object-store-memory=%d" % OBJECT_STORE]
    words += ["--resources=" + json.dumps({"gpucluster_" + name: 1})]
    return words + (["--head", "--include-dashboard=false"] if head else [])


def versions() -> str:
    """Return Ray's version; Failure names the python that lacks it."""
    try:
        import ray
    except Exception as error:
        text = "Ray cannot be imported by %s: %s" % (sys.executable, error)
        raise Failure("not_importable", text) from None
    return str(ray.__version__)


def lead(plan: Dict[str, Any], daemons: Daemons, *, alone: bool) -> None:
    """Start a head, run the driver, end the head."""
    members = {node_name(): plan["nodes"][node_name()]} if alone else plan["nodes"]
    version = versions()
    address = own_address(plan)
    first = free_ports(plan, address) if alone else unused(plan["head"][1])  # the workers have this port
    later = free_ports({**plan, "port": plan["later"]}, address) if alone else first
    report("place", address=address, port=first, later=later, version=version, interfaces=interfaces())
    daemons.start(options(plan, address, first, daemons.temp, head=True))
    daemons.wait_for(address, first, plan["join"])
    report("up", address=address)
    driver_plan = {
        "address": "%s:%d" % (address, first),
        "ip": address,
        "nodes": members,
        "join": plan["join"],
        "temp": daemons.temp,
        "work": ["nodes", "tasks", "actors"] if alone else plan["work"],
        "elements": plan["elements"],
    }
    argv, pipe = again("driver", json.dumps(driver_plan)), subprocess.PIPE
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=pipe, env=daemons.env)
    try:
        _, errors = process.communicate(timeout=plan["work_deadline"])
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failure("driver_late", "the driver did not end within %g s" % plan["work_deadline"]) from None
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise Failure("driver", "the driver ended with %d: %s" % (process.returncode, last[0][-400:]))
    if daemons.process.poll() is not None:
        raise daemons.ended()
    report_token()
    if not alone:
        daemons.kill()
        report("killed")


def follow(plan: Dict[str, Any], daemons: Daemons) -> None:
    """Start a worker, wait until its head is lost, and report how long Ray took to end."""
    versions()
    address = own_address(plan)
    first = free_ports(plan, address)
    head, port = plan["head"]
    end = time.monotonic() + plan["join"]
    while not reachable(head, port):
        if time.monotonic() > end:
            raise Failure("head", "no head answered on %s:%d within %g s" % (head, port, plan["join"]))
        time.sleep(0.3)
    words = options(plan, address, first, daemons.temp, head=False)
    daemons.start(["--address=%s:%d" % (head, port), *words])
    started = time.monotonic()
    while reachable(head, port):
        if daemons.process.poll() is not None:
            raise daemons.ended()
        if time.monotonic() - started > plan["join"] + plan["work_deadline"]:
            raise Failure("head", "the head still ran at the deadline of this worker")
        time.sleep(0.5)
    lost = time.monotonic()
    report_token()
    try:
        daemons.process.wait(plan["leave"])
    except subprocess.TimeoutExpired:
        raise Failure("leave", "Ray still ran %g s after the head was lost" % plan["leave"]) from None
    report("left", seconds=round(time.monotonic() - lost, 1))


def main(argv: List[str]) -> int:
    """Run one role; report its failure."""
    parser = argparse.ArgumentParser(prog="ray_node")
    parser.add_argument("role", choices=("alone", "head", "worker", "driver"))
    parser.add_argument("plan", help="JSON: marker, temp, nodes, port, head, interface, deadlines in seconds")
    args = parser.parse_args(argv)
    if args.role == "driver":
        sys.argv[1:] = [args.plan]
        source = text_of("suites/ray/payload_driver.py")
        exec(compile(source, "payload_driver.py", "exec"), {"__name__": "__main__"})
        return 0
    plan = json.loads(args.plan)
    daemons = Daemons(plan, args.role)
    adopt()

    def leave(*_: Any) -> None:
        daemons.kill()
        daemons.clean()
        os._exit(3)

    signal.signal(signal.SIGTERM, leave)
    # if a call of Ray hangs: ends before Slurm kills the step, and removes the folder
    watch = threading.Timer(plan["join"] + plan["work_deadline"] + plan["leave"] + 20, leave)
    watch.daemon = True
    watch.start()
    code = 0
    try:
        daemons.make_folder()
        if args.role == "worker":
            follow(plan, daemons)
        else:
            lead(plan, daemons, alone=args.role == "alone")
    except Failure as error:
        report("problem", what=error.kind, problem=" ".join(str(error).split()))
        code = 1
    except Exception as error:
        report("problem", what="ray", problem=error_text(error))
        code = 1
    finally:
        outlived, ended = daemons.end(plan["leave"])
        report("ended", outlived=outlived, ended=ended)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
