"""perftest between pairs of nodes, rail by rail: a shared part of payloads. Python 3.6.

A plan is {"nodes": {NODE: {"address": ..., "place": NUMBER, "rails": {RAIL: [DEVICE, PORT, GPU or null]}}}, "gid": INDEX or null,
"limit": SECONDS}, with "seconds" where a test has a duration. The place is the number of the node in its run.

A slot is what all pairs do at the same time: the tests in turn, each over all its rails at once. The second node of a pair is the
server, of `send` the first one, so that both directions are measured. The two payloads meet over TCP for each slot: the server says that
its tools listen, or why they do not, and ends them when the client has finished. All nodes go through the slots in the same order, and wait
in slot N until MEETING_TIME + N x SLOT_LIMITS x limit seconds after their start: a node that waited for a lost partner is late by less, so no sound pair gives up.
"""

import contextlib
import os
import shutil
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from pytest_gpucluster.kit.payloads.perftest_output import error_of, read_perftest
from pytest_gpucluster.kit.payloads.prelude import PORT_SPREAD, Door, JsonLink, dial, expand, node_name, own_port

MEETING_TIME = 60.0  # seconds for the last task of a step to start
PORTS = 24  # of a node: one for its payload, one per rail
SLOT_LIMITS = 3  # times the limit of a test: the longest that a slot takes
# as NVIDIA's ngc_multinode_perf, whose limit is judged by: with 1 MiB few queue pairs reach less, and some platforms fail (perftest issue
# 394); a fifth of a second at 400 Gb/s
BANDWIDTH_OPTIONS = ("-F", "--report_gbits", "-s", "65536", "-n", "40000", "-q", "4")
PERFTESTS = {
    "write": ("ib_write_bw", BANDWIDTH_OPTIONS),
    "send": ("ib_send_bw", BANDWIDTH_OPTIONS),
    "read": ("ib_read_lat", ("-F", "-s", "8", "-n", "5000")),
}
JSON_REPORT = ("--out_json", "--out_json_file=/dev/stdout")  # a pipe here
PEER_MODULES = ("/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem")
DRIVER = "/proc/driver/nvidia/version"
NEAR = "/sys/class/infiniband/%s/device/local_cpulist"


def printed_by(*argv: str) -> str:
    """Return what a command prints; its exit status says nothing (--help ends with 1)."""
    found = subprocess.run(
        argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    return found.stdout.decode(errors="replace")


def absent_tools() -> List[str]:
    """Return the tools of perftest that are not installed here."""
    return [tool for tool, _ in PERFTESTS.values() if not shutil.which(tool)]


def gpu_memory_options(usage: str) -> Optional[List[str]]:
    """Return the options beside --use_cuda; None for host memory, where the kernel cannot register GPU memory."""
    if "--use_cuda=" in usage and any(map(os.path.exists, PEER_MODULES)):
        return []
    is_open = "--use_cuda_dmabuf" in usage and "Open Kernel Module" in printed_by("cat", DRIVER)
    return ["--use_cuda_dmabuf"] if is_open else None


def near_cpus(device: str, allowed: Set[int]) -> Set[int]:
    """Return the allowed processors of the adapter's socket, else all: elsewhere a tool measures the link between sockets."""
    text = printed_by("cat", NEAR % device).strip()  # 0-31,64-95
    near = set(map(int, expand("[%s]" % text))) if text[:1].isdigit() else set()
    return near & allowed or allowed


class PerftestNode:
    """This node in the plan; it reports each result of which it is the client."""

    def __init__(self, plan: Dict[str, Any], report: Callable[..., None]) -> None:
        self.plan, self.report, self.name, self.began = plan, report, node_name(), time.monotonic()
        self.rails = sorted(plan["nodes"][self.name]["rails"])
        self.limit = float(plan["limit"])
        text = printed_by("ib_write_bw", "--help")
        self.cuda = gpu_memory_options(text)
        self.json = JSON_REPORT if "--out_json_file" in text else ()
        self.waiting = {}  # type: Dict[int, JsonLink]
        self.meeting = Door(self.port_of(self.name))

    def port_of(self, node: str, rail: int = -1) -> int:
        """Return the port of a node's payload, or of a rail's test: nodes of one host have ports of their own."""
        places = PORT_SPREAD // 2 // PORTS
        place = int(self.plan["nodes"][node]["place"]) % places
        return own_port(os.environ, places * PORTS) + place * PORTS + 1 + rail

    def meet(self, number: int, pair: Sequence[str]) -> JsonLink:
        """Return the connection to the partner in a slot: the first node of a pair calls, the second one answers."""
        until = self.began + MEETING_TIME + number * SLOT_LIMITS * self.limit
        if self.name == pair[1]:
            while number not in self.waiting:
                slot, caller = self.meeting.next(until)
                caller.settimeout(MEETING_TIME + self.limit)
                self.waiting[slot] = JsonLink(caller)
            return self.waiting.pop(number)
        # later, it has ended
        address, end = (self.plan["nodes"][pair[1]]["address"], self.began + MEETING_TIME)
        called = JsonLink(dial(address, self.port_of(pair[1]), number, min(until, end)))
        called.link.settimeout(max(MEETING_TIME, until - time.monotonic()) + self.limit)
        return called

    def slot(self, number: int, rails: List[str], tests: List[str], pair: Sequence[str]) -> None:
        """Run the tests of a slot with the partner, and report a result for each test and rail of which this node is the client.

        After a test that failed the others of the slot are left out: they would fail for the same reason, and later.
        """
        with contextlib.closing(self.meet(number, pair)) as both:
            for test in tests:
                server = pair[0] if test == "send" else pair[1]
                if server == self.name:
                    good = self.serve(both, test, rails)
                else:
                    good = self.call(both, number, test, rails, server)
                if not good:
                    return

    def start(self, test: str, rail: str, server: str, host: str = "") -> "subprocess.Popen[bytes]":
        """Start a tool of perftest over a rail of this node: as the server, or with a host as its client."""
        tool, words = PERFTESTS[test]
        device, port, gpu = self.plan["nodes"][self.name]["rails"][rail]
        argv = [tool, "-d", device, "-i", str(port), "-p", str(self.port_of(server, self.rails.index(rail)))]
        argv += words
        argv += ["-D", str(self.plan["seconds"])] if self.plan.get("seconds") and test != "read" else []
        argv += ["-x", str(self.plan["gid"])] if self.plan["gid"] is not None else []
        if self.cuda is not None and gpu is not None and test != "read":
            argv += ["--use_cuda=%d" % gpu, *self.cuda]
        argv += [*self.json, host] if host else []
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, near_cpus(device, allowed))  # of this thread; the tool inherits it
        try:
            # nvidia-smi counts GPUs by PCI address
            env, pipe = dict(os.environ, CUDA_DEVICE_ORDER="PCI_BUS_ID"), subprocess.PIPE
            return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env)
        finally:
            os.sched_setaffinity(0, allowed)

    def serve(self, both: JsonLink, test: str, rails: List[str]) -> bool:
        """Run the servers of a test until the client has finished; return whether all its tests worked."""
        tools = {rail: self.start(test, rail, self.name) for rail in rails}
        try:
            both.send({rail: self.listens(tool, rail) for rail, tool in tools.items()})
            good = bool(both.receive())
            both.send({rail: "" if good else error_of(end_of(tool, 1.0)[1]) for rail, tool in tools.items()})
            return good
        finally:
            for tool in tools.values():
                end_of(tool, 1.0)

    def listens(self, tool: "subprocess.Popen[bytes]", rail: str) -> str:
        """Wait until a server listens; return why it does not, '' if it does."""
        port, until = self.port_of(self.name, self.rails.index(rail)), time.monotonic() + self.limit
        while time.monotonic() < until and tool.poll() is None:
            if is_listening(port):
                return ""
            time.sleep(0.02)
        return error_of(end_of(tool, 0.0)[1]) or "the server did not listen within %g s" % self.limit

    def call(self, both: JsonLink, number: int, test: str, rails: List[str], server: str) -> bool:
        """Run the clients of a test and report their results; return whether all worked."""
        refused = both.receive()
        host = self.plan["nodes"][server]["address"]
        tools = {rail: self.start(test, rail, server, host) for rail in rails if not refused.get(rail)}
        until = time.monotonic() + self.limit
        found = {}  # type: Dict[str, Dict[str, Any]]
        for rail in rails:
            if refused.get(rail):
                found[rail] = {"problem": "%s: %s" % (server, refused[rail])}
                continue
            out, error = end_of(tools[rail], max(0.1, until - time.monotonic()))
            ended = tools[rail].returncode
            found[rail] = read_perftest(out) if ended == 0 else {}
            if not found[rail]:
                late = "no end after %g s" % self.limit if ended < 0 else "no result, exit status %d" % ended
                why = error_of(error) or late
                found[rail] = {"problem": "%s: %s" % (self.name, why)}
        good = not any("problem" in one for one in found.values())
        both.send(good)
        there = both.receive()
        for rail, one in found.items():
            if "problem" in one and there.get(rail) and not refused.get(rail):
                one["problem"] += "; %s: %s" % (server, there[rail])
            self.report("result", slot=number, rail=rail, test=test, client=self.name, server=server, **one)
        return good


def end_of(tool: "subprocess.Popen[bytes]", seconds: float) -> Tuple[str, str]:
    """Wait for a tool, and kill it after some seconds; return what it printed."""
    try:
        out, error = tool.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        tool.kill()
        out, error = tool.communicate()
    except ValueError:  # it was read before
        return "", ""
    return out.decode(errors="replace"), error.decode(errors="replace")


def is_listening(port: int) -> bool:
    """Return whether a socket of this network listens on a port, without connecting to it: state 0A of /proc/net/tcp."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open("/proc/net/" + name) as table:
            for line in table:
                words = line.split()
                if words[3] == "0A" and words[1].endswith(":%04X" % port):
                    return True
    return False
