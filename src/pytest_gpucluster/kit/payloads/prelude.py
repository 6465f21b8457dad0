# A broken framework may raise anything (BLE001).
"""Functions that the payloads share. `payload_step.sent` replaces a payload's import of this module by its text.

Python 3.6 and the standard library only. A payload must not redefine a name of it: both are sent as one module.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import resource
import secrets
import select
import socket
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, TextIO, Tuple

SIOCGIFADDR = 0x8915
FEW_FILES = 1024  # open files: the default of Linux; CUDA and NCCL fail with fewer
FIRST_PORT, PORT_SPREAD = 20000, 12000  # below 32768, where the ephemeral ports of Linux begin
EXIT_STUCK = 4
NODE_NAME = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}"
MAX_RANKS, MAX_NODES, MAX_ID = 1 << 20, 1 << 16, (1 << 32) - 1  # above any step; ids of Slurm have 32 bits
BRACKETS = 3  # of one name
MAX_SHOWN = 80  # characters of a variable
# in the environment of a step's tasks, whose command line other users can read
SECRET = "GPUCLUSTER_STEP_SECRET"
_HELLO = 256  # bytes at most of the line with which a task of the step introduces itself
_OUTSIDE = 256  # connections that have said nothing; the oldest goes, so that strangers use up no files
_WRITING = threading.Lock()


class Failure(Exception):
    """A message of one line. `kind`: the kind of the fault, as the checks name it, or the exit code; `code` is that of a finding."""

    def __init__(self, kind: Any, message: str, code: str = "") -> None:
        super().__init__(message)
        self.kind, self.code = kind, code


class FewGpus(RuntimeError):
    """A rank finds fewer GPUs than it was started for, or none. `code` is that of a finding."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code or "too_few_gpus"


# -- the payload itself ---------------------------------------------------------------------------------------------


def again(*words: str) -> List[str]:
    """Return the command line that runs this payload with other words; see `payload_step.command`."""
    with open("/proc/self/cmdline", "rb") as own:
        command = os.fsdecode(own.read()).split("\0")[:-1]
    begin, end = command.index("-c") + 2, command.index("PAYLOAD")
    return [sys.executable or command[0], *command[1:begin], *words, *command[end:]]


def text_of(path: str) -> str:
    """Return the text of a file of the package; `payload_step.sent` replaces the call by the text."""
    with open(os.path.join(os.path.dirname(__file__), "..", "..", path)) as file:
        return file.read()


# -- results ------------------------------------------------------------------------------------------------------


def write_line(text: str, stream: Optional[TextIO] = None) -> None:
    """Print a line at once, in one piece."""
    with _WRITING:
        out = stream or sys.stdout
        out.write(text + "\n")
        out.flush()


def print_json(**facts: Any) -> None:
    """Print one line of JSON; the reader finds it by its first key."""
    write_line(json.dumps(facts))


def exit_now(code: int) -> None:
    """End this process at once: a normal exit would wait for the threads of a hung collective."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def error_text(error: BaseException) -> str:
    """Return type and message of an exception as one line."""
    return " ".join(("%s: %s" % (type(error).__name__, error)).split())[:400]


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message that is not empty, '' where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # torch adds advice on its own allocator
    return lines[0].partition(" Of the allocated memory")[0] if lines else ""


def reporter(key: str, *names: str) -> Callable[..., None]:
    """Return report(kind, **facts), which prints facts of this rank under `key`. `names`: variables that hold the rank before Slurm's."""

    def report(kind: str, **facts: Any) -> None:
        rank = number_of(os.environ, *names, "SLURM_PROCID", default="0")
        print_json(**dict({key: kind, "rank": rank, "node": node_name()}, **facts))

    return report


def installed(module: str, *distributions: str) -> Dict[str, str]:
    """Return {version, error} of a framework without importing it, which takes seconds; the version may be 'unknown'."""
    found = {"version": "unknown", "error": ""}
    try:
        if importlib.util.find_spec(module) is None:
            return {"version": "", "error": "No module named '%s' (%s)" % (module, sys.executable)}
        from importlib import metadata  # Python 3.6 and 3.7 have none

        for name in distributions or (module,):
            with contextlib.suppress(metadata.PackageNotFoundError):
                return {"version": metadata.version(name), "error": ""}
    except ImportError:
        pass
    except Exception as error:
        found["error"] = error_text(error)
    return found


class Watch:
    """Reports a phase that exceeds its deadline, and ends this process."""

    def __init__(self, seconds: float, report: Callable[..., None]) -> None:
        self.seconds, self.report = seconds, report
        self.enter("start")
        threading.Thread(target=self._guard, daemon=True).start()

    def enter(self, phase: str, seconds: Optional[float] = None) -> None:
        """Begin a phase with its own deadline."""
        self.phase, self.began = phase, time.monotonic()
        self.until = self.began + (seconds or self.seconds)

    def took(self) -> float:
        """Return seconds since the phase began."""
        return round(time.monotonic() - self.began, 4)

    def _guard(self) -> None:
        while time.monotonic() <= self.until:
            time.sleep(0.2)
        self.report("stuck", phase=self.phase, seconds=self.until - self.began)
        exit_now(EXIT_STUCK)


def run_phases(
    report: Callable[..., None], watch: Any, work: Callable[[], int], text: Callable[[BaseException], str] = error_text
) -> int:
    """Return work(), 1 if it fails; report a Failure by its kind, another exception with the phase and its text."""
    try:
        return work()
    except Failure as error:
        report(error.kind, reason=str(error))
    except BaseException as error:
        code = error.code if isinstance(error, FewGpus) else ""
        limits = low_limits_hint()
        report("failed", phase=watch.phase, reason=text(error) + limits, code=code, low_limits=bool(limits))
    return 1


# -- nodes and addresses ------------------------------------------------------------------------------------------


def refuse(name: str, text: str, what: str) -> None:
    """End this process because of a variable of the environment, in one line that names it."""
    shown = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
    replaced = "a prolog, a profile or an export replaces what srun sets"
    sys.exit("%s is %s, %s: %s" % (name, ascii(shown), what, replaced))


def node_name() -> str:
    """Return Slurm's name of this node."""
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    if not re.fullmatch(NODE_NAME, name):
        refuse("SLURMD_NODENAME", name, "no node's name")
    return name


def nodes_of_step(env: Mapping[str, str]) -> List[str]:
    """Return the nodes of the step, else of the job; where the variable holds no list of nodes, the process ends and names it."""
    name = next(filter(env.get, ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")), "")
    names = []  # type: List[str]
    with contextlib.suppress(ValueError):
        names = expand(env.get(name, ""))
    if name and not (names and all(re.fullmatch(NODE_NAME, it) for it in names)):
        refuse(name, env[name], "no list of nodes")
    return names


def expand(hostlist: str) -> List[str]:
    """Return the names of a Slurm bracket list in its order: 'gpu[01-02,7],login' gives gpu01 gpu02 gpu7 login. ValueError for another text."""
    names = []  # type: List[str]
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", hostlist):
        if part.count("[") > BRACKETS:
            raise ValueError("too many brackets")
        found = re.search(r"\[([^\]]*)\]", part)
        if not found:
            names.append(part)
            continue
        before, after = part[: found.start()], part[found.end() :]
        for span in found.group(1).split(","):
            first, _, last = span.partition("-")
            if not (re.fullmatch("[0-9]{1,9}", first) and re.fullmatch("[0-9]{1,9}", last or first)):
                raise ValueError("no range: %s" % span[:MAX_SHOWN])
            for number in range(int(first), int(last or first) + 1):
                names += expand(before + str(number).zfill(len(first)) + after)
                if len(names) > MAX_NODES:
                    raise ValueError("too many nodes")
    return names


def number_of(env: Mapping[str, str], *names: str, default: str = "", most: int = MAX_RANKS) -> int:
    """Return the number in the first of these variables that is set; where it holds none up to `most`, the process ends and names it."""
    name = next((it for it in names if env.get(it)), "")
    if default and not name:
        return int(default)
    text, name = env.get(name, ""), name or ", ".join(names)
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > most:
        refuse(name, text, "no number up to %d" % most)
    return int(text)


def own_port(env: Mapping[str, str], width: int = 0) -> int:
    """Return the first of `width` ports, derived from job and step id: no two steps share them."""
    step = number_of(env, "SLURM_STEP_ID", "SLURM_STEPID", default="0", most=MAX_ID)
    seed = number_of(env, "SLURM_JOB_ID", default="0", most=MAX_ID) * 131 + step * 17
    return FIRST_PORT + seed % max(1, PORT_SPREAD - width)


def interfaces() -> Dict[str, str]:
    """Return {interface: IPv4 address} of this node."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no IPv4 address
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface of this node."""
    known = interfaces()
    if interface not in known:
        there = ", ".join(sorted(known)) or "none"
        text = "interface %s has no IPv4 address here; there are: %s" % (interface, there)
        raise Failure("interface", text)
    return known[interface]


def address_towards(other: str) -> str:
    """Return the address from which this node reaches another; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))
        return str(probe.getsockname()[0])


# -- GPUs ---------------------------------------------------------------------------------------------------------


def low_limits_hint() -> str:
    """Return the limits of this process that are too low for CUDA, whose error messages do not mention them; '' if none."""
    files, space = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS))
    found = ["%d open files" % files] if 0 <= files < FEW_FILES else []
    found += ["%.3g GiB of address space" % (space / 2.0**30)] if space != resource.RLIM_INFINITY else []
    return "; limits of this process: " + ", ".join(found) if found else ""


def no_device(torch: Any) -> Tuple[str, str]:
    """Return why torch finds no CUDA device, by the message of torch, and the code of a finding, '' without one of its own."""
    if torch.version.cuda is None and not getattr(torch.version, "hip", None):
        return "it is a CPU build", "cpu_build_of_torch"
    try:
        torch.cuda.init()
    except Exception as error:
        return (first_line(error) or type(error).__name__)[:200], ""
    return "no reason is known", ""


def port_in_use(error: BaseException) -> bool:
    """Return whether an error of torch or of a socket is that another process listens at the port."""
    return bool(re.search("EADDRINUSE|[Aa]ddress already in use", str(error)))


def gpu_facts(about: Any) -> Dict[str, str]:
    """Return name, UUID (as nvidia-smi writes it) and PCI address of torch's device properties; '' where unknown."""
    uuid, bus = str(getattr(about, "uuid", "")), ""
    if uuid and not uuid.startswith("GPU-"):
        uuid = "GPU-" + uuid
    if hasattr(about, "pci_bus_id"):
        domain = getattr(about, "pci_domain_id", 0)
        bus = "%04x:%02x:%02x" % (domain, about.pci_bus_id, about.pci_device_id)
    return {"name": about.name, "uuid": uuid, "bus": bus}


class Door:
    """A listening socket for the other tasks of the step. Who does not know the step's secret stays outside and holds up nobody."""

    def __init__(self, port: int) -> None:
        self.socket, self.callers = socket.socket(), []  # type: socket.socket, List[socket.socket]
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("", port))
        self.socket.listen(socket.SOMAXCONN)

    def close(self) -> None:
        """Close it, and the connections that were not let in."""
        for one in [self.socket, *self.callers]:
            one.close()

    def next(self, until: float) -> Tuple[int, socket.socket]:
        """Return the number with which the next task introduces itself, and its connection; OSError after `until`."""
        while True:
            left = until - time.monotonic()
            ready = select.select([self.socket, *self.callers], [], [], max(0.0, left))[0]
            if self.socket in ready:
                self.callers.append(self.socket.accept()[0])
                while len(self.callers) > _OUTSIDE:
                    self.callers.pop(0).close()
            for caller in [one for one in self.callers if one in ready]:
                number = self._number(caller)
                if number is not None:
                    return number, caller
            if left <= 0:
                raise OSError("no task of the step called in time")
            if self.socket not in ready:
                time.sleep(0.002)  # a line of which only a part has come is ready all the time

    def _number(self, caller: socket.socket) -> Optional[int]:
        """Return the number that a caller has said; None, and it is gone, if it says anything else, or nothing yet."""
        with contextlib.suppress(OSError, ValueError):
            seen = caller.recv(_HELLO, socket.MSG_PEEK)
            line, complete, _ = seen.partition(b"\n")
            if seen and not complete and len(seen) < _HELLO:
                return None
            secret, _, number = line.partition(b" ")
            if secrets.compare_digest(secret, os.environ[SECRET].encode()):
                found = int(number)
                caller.recv(len(line) + 1)
                self.callers.remove(caller)
                return found
        self.callers.remove(caller)
        caller.close()
        return None


def knock(link: socket.socket, number: int) -> None:
    """Introduce this task to a Door by the secret of the step."""
    link.sendall(("%s %d\n" % (os.environ[SECRET], number)).encode())


def dial(address: str, port: int, number: int, until: float) -> socket.socket:
    """Return a connection to a Door, which may open later, to which this task is introduced; OSError after `until`."""
    while True:
        try:
            link = socket.create_connection((address, port), 5.0)
            knock(link, number)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return link


class JsonLink:
    """A connection to another task that carries lines of JSON."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.lines = link, link.makefile()

    def send(self, value: Any) -> None:
        """Send a value."""
        self.link.sendall((json.dumps(value) + "\n").encode())

    def receive(self) -> Any:
        """Return the next value. EOFError if the other task has ended."""
        line = self.lines.readline()
        if not line:
            raise EOFError("the payload of the other node has ended")
        return json.loads(line)

    def close(self) -> None:
        """Close it."""
        self.lines.close()
        self.link.close()
