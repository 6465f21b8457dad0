"""Burn-in of one node: an agent that runs commands from stdin, a worker process per GPU and one for the host.

It runs under the site's python, 3.6 or later; the workers of the GPUs need torch. srun copies its stdin to the agent
of every node (LOADER and SOURCE: `payload_step.command`):

    srun --ntasks-per-node=1 --gres=gpu:8 python3 -c LOADER agent OPTIONS PAYLOAD SOURCE

OPTIONS is a JSON object (see `Agent`). A command is one line of JSON:

    {"do": "round", "id": 3, "round": 1, "loads": [{"load": "matmul", "seconds": 10, "dtypes": ["bf16"], "seed": 1}]}
    {"do": "leave", "nodes": ["gpu07"]}        the agents of these nodes end
    {"do": "stop"}                             all agents end

The agent prints lines of JSON {"burnin": KIND, "node": ...} of the kinds `hello` (GPUs and their limits), `beat` (the
heartbeat), `load` (results of one load, readings of the sensors, increase of the error counters), `done` (all loads of
a command) and `bye`. A worker that dies or hangs loses its load; the agent starts it again. No file is left after a
SIGKILL: files are unlinked before they are written.
"""

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from pytest_gpucluster.kit.payloads.prelude import again, exit_now, low_limits_hint, node_name, print_json
from pytest_gpucluster.suites.burnin.payload_counters import SMI, SMI_LATE, Counters, deltas, other_processes
from pytest_gpucluster.suites.burnin.payload_gpu import GpuWorker
from pytest_gpucluster.suites.burnin.payload_host import HostWorker
from pytest_gpucluster.suites.burnin.payload_process import die_with_parent, output_of, reason_of, signal_code
from pytest_gpucluster.suites.burnin.payload_sensors import Sensors

SLACK = 90.0  # seconds beyond its own time after which a load hangs: the first one loads libraries
LATE = {"hbm": 30.0, "copies": 30.0, "peer": 30.0}  # of loads that wait for no library, disk or other node
# Prefixes of variables that change results or speed of a GPU; a shell profile or a prolog may set them on some nodes
UNSET_VARIABLES = (
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32", "TORCH_BLAS_", "CUBLAS", "PYTORCH_TUNABLEOP_", "DISABLE_ADDMM_CUDA_LT",
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)  # fmt: skip
START = 240.0  # seconds for a worker to come up; torch from a slow file system takes its time
RESTARTS = 3
MAX_GPUS = 128  # of a node, MIG instances too: each has a worker


class WorkerProcess:
    """One worker: reads commands and writes results, a line of JSON each."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.name, self.argv, self.env = name, list(argv), dict(env)
        self.about = []  # type: List[Dict[str, Any]]
        self.broken, self.restarts = "", -1
        self.fault = {}  # type: Dict[str, Any]
        self.busy = 0  # loads that have not ended
        self.pids: Set[int] = set()  # of all its processes so far
        self.start()

    def start(self) -> None:
        """Start the process, or start it again."""
        self.restarts, self.busy = self.restarts + 1, 0
        self.lines = queue.Queue()  # type: queue.Queue[Optional[Dict[str, Any]]]
        self.process = subprocess.Popen(
            self.argv,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - it takes no lock
        )
        self.pids.add(self.process.pid)
        self.ready = False
        threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True).start()

    def _read(self, process: Any, lines: Any) -> None:
        for raw in process.stdout:
            try:
                found = json.loads(raw.decode(errors="replace"))
            except ValueError:
                continue  # output of a library
            if isinstance(found, dict):
                lines.put(found)
                self.busy = max(0, self.busy - ("end" in found))
        lines.put(None)

    def wait_ready(self, end: float) -> None:
        """Wait until it is ready or until `end`; `broken` is the reason if it cannot be used."""
        if self.ready or self.broken:
            return
        line = self.next(end)
        if line is None:
            self.broken = "%s: %s" % (self.name, self.exit_reason()[1])
        elif "broken" in line:
            self.broken, self.fault = str(line.pop("broken")), line
        else:
            self.about, self.ready = line.get("ready", []), True

    def next(self, end: float) -> Optional[Dict[str, Any]]:
        """Return its next line, None if it ended or the time is up."""
        try:
            return self.lines.get(timeout=max(0.01, end - time.monotonic()))
        except queue.Empty:
            return None

    def send(self, command: Mapping[str, Any]) -> None:
        """Start a load."""
        assert self.process.stdin is not None
        self.busy += 1
        with contextlib.suppress(OSError):  # `results` reports a worker that ended
            self.process.stdin.write((json.dumps(command) + "\n").encode())
            self.process.stdin.flush()

    def exit_reason(self) -> Tuple[str, str]:
        """Return how it ended, or that it hangs: a code and text."""
        try:
            rc = self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            code, why = self.hang_reason()
            return code, "did not answer in time" + why
        if rc >= 0:
            return "exited", "ended with %d" % rc
        starved = self.oom_kill()
        return "starved" if starved else signal_code(-rc), "ended by signal %d%s" % (-rc, starved)

    def oom_kill(self) -> str:
        """Return that the OOM killer ended it if the kernel log shows this, else ''."""
        rc, out, _ = output_of(["dmesg"], 10)
        hit = re.search(r"(Memory cgroup )?[Oo]ut of memory: Killed process %d " % self.process.pid, out)
        if rc or not hit:
            return ""
        return ": by the OOM killer" + (", at the memory limit of its cgroup" if hit.group(1) else "")

    def hang_reason(self) -> Tuple[str, str]:
        """Return why the process does not run, from its state in /proc: a code and text, which is '' if it runs."""
        try:
            with open("/proc/%d/stat" % self.process.pid) as file:
                state = file.read().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            state = ""
        return {
            "T": ("stopped", ": its process is stopped by a signal"),
            "D": ("hangs_in_kernel", ": its process hangs in the kernel (state D)"),
        }.get(state, ("hangs", ""))

    def part(self) -> Dict[str, Any]:
        """Return the part that its results are about: its GPU if it has one."""
        about = self.about[0] if len(self.about) == 1 else {}
        return {"worker": self.name, **{key: about[key] for key in ("gpu", "uuid") if key in about}}

    def kill(self) -> None:
        """Kill it and its children."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def results(self, command: Mapping[str, Any], end: float) -> Iterator[Dict[str, Any]]:
        """Yield the results of a load; restart a worker that died or hangs, at most RESTARTS times."""
        failed = False
        while True:
            line = self.next(end)
            if line is None:
                code, why = self.exit_reason()
                self.kill()
                # nccl ends its worker after a problem, which was yielded
                if not (failed and command["load"] == "nccl"):
                    about = {"members": command["members"]} if "members" in command else {}
                    problem = {"problem": "the load %s" % why, "code": code}
                    yield dict(self.part(), load=command["load"], **problem, **about)
                if self.restarts >= RESTARTS:
                    self.broken = "%s was started %d times and %s" % (self.name, self.restarts + 1, why)
                else:
                    self.start()
                return
            if line.get("id") != command["id"]:
                continue
            if "end" in line:
                return
            line.pop("id")
            failed = failed or bool(line.get("problem"))
            yield line


class Agent:
    """Runs the loads of a command on its workers and reports their results.

    Options: `gpus` (None: all visible), `sample` and `beat` (seconds), `sudo`, `worker` (command instead of the bundled
    workers), `storage` and `storage_bytes`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.node = node_name()
        self.counters = Counters(bool(options.get("sudo")))
        self.sensors = Sensors(options.get("sample", 2.0))
        self.hottest = ""  # the data type whose products draw the most power
        self.commands = queue.Queue()  # type: queue.Queue[Optional[Dict[str, Any]]]
        self.stopped = threading.Event()
        self.at = "starting"
        self.workers = []  # type: List[WorkerProcess]
        self.host = None  # type: Optional[WorkerProcess]
        self.before = {}  # type: Dict[str, Any]
        self.diag = None  # type: Any
        self.waiting: List[Tuple[WorkerProcess, Mapping[str, Any], float]] = []

    def report(self, kind: str, **fields: Any) -> None:
        """Print a line about this node."""
        print_json(burnin=kind, node=self.node, **fields)

    def run(self) -> int:
        """Run commands until `stop`, or until stdin ends because the controller is gone."""
        for number_ in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number_, self._killed)
        self.before = self.counters.snapshot()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        self._start_workers()
        self._hello()
        if not self.stopped.is_set():
            self.sensors.start()
        while not self.stopped.is_set():
            command = self.commands.get()
            if command is None:
                break
            self._run_command(command)
        self.stop()
        self.report("bye")
        return 0

    def _killed(self, number_: int, _frame: Any) -> None:
        self._kill_workers()
        os._exit(128 + number_)

    def stop(self) -> None:
        """Kill all loads."""
        if not self.stopped.is_set():
            self._report_late()
        self.stopped.set()
        self._kill_workers()
        self.commands.put(None)

    def _report_late(self) -> None:
        """Report loads that are overdue; of other loads that are killed there is no result."""
        late = []
        for worker, load, began in self.waiting:
            took, planned = time.monotonic() - began, float(load["seconds"])
            if took > 2 * planned + LATE.get(load["load"], SLACK) and worker.busy:
                problem = "the load did not end after %.0f s instead of %.0f s" % (took, planned)
                code, why = worker.hang_reason()
                late.append(dict(worker.part(), load=load["load"], problem=problem + why, code=code))
        if late:
            self.report("load", load=late[0]["load"], results=late)
        if SMI.silence() > SMI_LATE:
            unread = {"hung": "nvidia-smi: no answer for %.0f s (%s)" % (SMI.silence(), self.at)}
            self.report("load", load="", results=[], unread=unread)

    def _kill_workers(self) -> None:
        if self.diag is not None:
            with contextlib.suppress(OSError):
                self.diag.send_signal(signal.SIGTERM)  # dcgmi then stops the diagnostic of the host engine
        for worker in [*self.workers, *([self.host] if self.host else [])]:
            with contextlib.suppress(OSError):
                os.killpg(worker.process.pid, signal.SIGKILL)

    def _read(self) -> None:
        for line in sys.stdin:
            try:
                command = json.loads(line)
            except ValueError:
                continue
            if command.get("do") == "stop" or self.node in command.get("nodes", ()):
                self.stop()
                return
            if command.get("do") == "round":
                self.commands.put(command)
        self.stop()

    def _beat(self) -> None:
        while not self.stopped.wait(self.options.get("beat", 5.0)):
            self.report("beat", at=self.at)

    def _start_workers(self) -> None:
        site_worker = list(self.options.get("worker") or [])
        env = {name: value for name, value in os.environ.items() if not name.startswith(UNSET_VARIABLES)}
        env.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUBLAS_WORKSPACE_CONFIG=":4096:8")
        # the agent ends a hung collective; torch would abort without a message
        env.update(TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0")
        env.setdefault("NCCL_DEBUG", "WARN")
        env.setdefault("NCCL_DEBUG_FILE", "/dev/stderr")

        def worker(name: str, *words: str) -> WorkerProcess:
            words = (*words, json.dumps(self.options))
            return WorkerProcess(name, [*site_worker, *words] if site_worker else again(*words), env)

        self.host = worker("host", "host")
        count = self.gpu_count()
        if site_worker:  # one process for all GPUs
            self.workers = [worker("gpus", "gpu", "all")] if count else []
        else:
            self.workers = [worker("gpu%d" % index, "gpu", str(index)) for index in range(count)]

    def gpu_count(self) -> int:
        """Return the number of GPUs of this step."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return min(MAX_GPUS, len([word for word in visible.split(",") if word.strip()]))
        return len(self.before["gpus"])

    def _hello(self) -> None:
        end = time.monotonic() + START
        for worker in [self.host, *self.workers]:
            assert worker is not None
            self.at = "starting " + worker.name
            worker.wait_ready(end)
        if self.stopped.is_set():
            return  # workers that were still starting were killed: that is no fault of theirs
        devices = [about for worker in self.workers for about in worker.about]
        broken = sorted({it.broken for it in [self.host, *self.workers] if it and it.broken})
        self.report(
            "hello",
            host=socket.gethostname(),
            step=os.environ.get("SLURM_STEP_ID", ""),
            cpus=len(os.sched_getaffinity(0)),
            gpus=[{key: gpu[key] for key in gpu if key != "counters"} for gpu in self.before["gpus"]],
            devices=devices,
            counted=sorted({name for part in self.before["parts"].values() for name in part}),
            kernel=self.before["kernel"] is not None,
            unread=self.counters.unread,
            port_rates=self.counters.port_rates,
            broken=broken or self._no_gpu_reason(),
            fault=next((it.fault for it in [self.host, *self.workers] if it and it.fault), {}),
            simulated=any(about.get("simulated") for about in devices),
        )

    def _no_gpu_reason(self) -> List[str]:
        """Return why no worker of a GPU runs if Slurm assigned no GPU to the step."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        empty = self.options.get("gpus") and not self.workers and visible is not None
        return ["CUDA_VISIBLE_DEVICES=%s in the step" % visible] if empty else []

    def _run_command(self, command: Mapping[str, Any]) -> None:
        for load in command["loads"]:
            if self.stopped.is_set():
                return
            self._run_load(load, command)
        if not self.stopped.is_set():
            self.report("done", id=command["id"], round=command["round"])

    def _run_load(self, load: Mapping[str, Any], command: Mapping[str, Any]) -> None:
        self.at = "round %s %s" % (command["round"], load["load"])
        begin = time.monotonic()
        self.sensors.loaded = True
        results = self._dcgm(load) if load["load"] == "dcgm" else self._on_workers(load, command)
        self._find_hottest(results)
        sensors = self.sensors.summary()
        seconds = time.monotonic() - begin
        if self.stopped.is_set():
            return  # the results of a killed load prove nothing
        after = self.counters.snapshot()
        self.report(
            "load", round=command["round"], load=load["load"], seconds=round(seconds, 2), results=results,
            sensors=sensors, deltas=deltas(self.before, after), unread=self.counters.unread,
            strangers=other_processes(after["gpus"], {pid for worker in self.workers for pid in worker.pids}),
        )  # fmt: skip
        if after["gpus"] or not self.before["gpus"]:
            self.before = after

    def _on_workers(self, load: Mapping[str, Any], command: Mapping[str, Any]) -> List[Dict[str, Any]]:
        started, results = [], []  # type: List[Any], List[Dict[str, Any]]
        for part in [load, *load.get("beside", ())]:  # `beside`: loads of the host while the GPUs work
            node_load = self._load_of_node(part, command["id"])
            of_host = part["load"] in ("cpu", "memory", "storage", "rdma")
            workers = [self.host] if of_host and self.host else self.workers
            for worker in workers:
                worker.wait_ready(time.monotonic() + START)
            able = [worker for worker in workers if not worker.broken] if node_load is not None else []
            if not able:
                broken = [worker.broken for worker in workers if worker.broken]
                reason = broken[0] if broken else "nothing to do on this node"
                results.append({"load": part["load"], "lacks": reason})
            for worker in able:
                worker.send(node_load or {})
                started.append((worker, node_load))
        self.waiting = [(worker, node_load, time.monotonic()) for worker, node_load in started]
        for worker, node_load in started:
            end = time.monotonic() + float(load["seconds"]) * 2 + float(load.get("slack", SLACK))
            results += list(worker.results(node_load, end))
        self.waiting = []
        return results

    def _find_hottest(self, results: Sequence[Dict[str, Any]]) -> None:
        """Find the data type whose products draw the most power on this node, if it is known of all."""
        watts = {}  # type: Dict[str, List[Optional[float]]]
        for result in results:
            begin, end = result.pop("window", (0.0, 0.0))
            if end:
                mean = self.sensors.watts_between(result["uuid"], begin, end)
                watts.setdefault(result["dtype"], []).append(mean)
        known = {dtype: [it for it in values if it is not None] for dtype, values in watts.items()}
        if known and all(known.values()):
            self.hottest = max(known, key=lambda dtype: sum(known[dtype]) / len(known[dtype]))

    def _load_of_node(self, load: Mapping[str, Any], command_id: int) -> Optional[Dict[str, Any]]:
        """Return the load in the form that the workers of this node read; None if the node has no part in it."""
        node_load = {key: value for key, value in load.items() if key not in ("beside", "groups")}
        node_load["id"] = command_id
        if load["load"] in ("matmul", "bursts") and self.hottest:
            node_load["hottest"] = self.hottest
        if load["load"] in ("nccl", "rdma"):
            group = next((group for group in load["groups"] if self.node in group["members"]), None)
            if group is None:
                return None
            node_load.update(group)
        if load["load"] == "nccl":
            position = node_load["members"].index(self.node)
            node_load.update(first=sum(node_load["ranks"][:position]), size=sum(node_load["ranks"]))
        return node_load

    def _dcgm(self, load: Mapping[str, Any]) -> List[Dict[str, Any]]:
        if shutil.which("dcgmi") is None:
            lacks = "dcgmi is not installed on the node: install DCGM, or leave dcgm out of burnin.loads"
            return [{"load": "dcgm", "lacks": lacks}]
        argv = ["dcgmi", "diag", "-r", str(load.get("level", 1)), "-j"]
        rc, out, err = output_of(argv, float(load["timeout"]), lambda process: setattr(self, "diag", process))
        self.diag = None
        return [{"load": "dcgm", "rc": rc, "out": out[: 1 << 18], "err": err[-2000:]}]


def commands_of(burn: Optional[Callable[[], bool]]) -> Iterator[Dict[str, Any]]:
    """Yield the commands of stdin until its end; call `burn` from the first one on until the next one comes, while it returns True."""
    lines = queue.Queue()  # type: queue.Queue[str]
    threading.Thread(target=_copy, args=(sys.stdin, lines), daemon=True).start()
    line = lines.get()
    while line:
        yield json.loads(line)
        while burn and lines.empty() and burn():
            pass
        line = lines.get()


def _copy(source: Iterable[str], lines: "queue.Queue[str]") -> None:
    for line in source:
        lines.put(line)
    lines.put("")


def serve(worker: Any, burn: Optional[Callable[[], bool]] = None) -> None:
    """Run the loads that stdin names, until its end, and `burn` between them."""
    for command in commands_of(burn):
        try:
            for found in worker.loads(command):
                print_json(id=command["id"], **found)
                if command["load"] == "nccl" and found.get("problem"):
                    os._exit(3)  # its communicator is no longer usable; the agent starts another worker
        except Exception as error:
            print_json(id=command["id"], load=command["load"], problem=reason_of(error))
        print_json(id=command["id"], end=True)


def main(argv: Sequence[str]) -> int:
    """Run as `agent OPTIONS`, `host OPTIONS` or `gpu INDEX OPTIONS`."""
    if argv[0] == "agent":
        return Agent(json.loads(argv[1])).run()
    try:
        worker = HostWorker(json.loads(argv[1])) if argv[0] == "host" else GpuWorker(int(argv[1]))  # type: Any
    except BaseException as error:
        code, limits = getattr(error, "code", ""), low_limits_hint()
        print_json(broken=reason_of(error) + limits, code=str(code or ""), low_limits=bool(limits))
        return 1
    print_json(ready=[worker.about()] if argv[0] == "gpu" else [])
    serve(worker, getattr(worker, "burn", None))
    return 0


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
