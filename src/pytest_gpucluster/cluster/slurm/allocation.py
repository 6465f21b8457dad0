"""One allocation that cannot leak.

A guard shell starts `salloc ... sh -c HOLDER` (both are allocation.sh); the holder and the guard read a pipe from this
process. When the process ends, for any reason, the pipe closes: the holder ends and Slurm releases the nodes; the guard withdraws a request that
is still in the queue. `salloc --no-shell` would leak instead. If this process and the guard are killed at once, salloc
ends by itself: with the holder, which finds the pipe closed, or else after its longest wait (--immediate). The kernel
could signal the end of its parent (setpriv --pdeathsig), but a signal that arrives while nodes are granted makes salloc
wait busily and forever for a child that has ended (22.05.8).
"""

from __future__ import annotations

import contextlib
import math
import queue
import re
import secrets
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.client import error_line, outage
from pytest_gpucluster.cluster.slurm.error_hints import (
    advice,
    end_explanation,
    hopeless,
    partition_limits,
    with_meaning,
)
from pytest_gpucluster.cluster.slurm.inventory import seen_from_inside
from pytest_gpucluster.cluster.transport import kill_group
from pytest_gpucluster.core import hostlist, units
from pytest_gpucluster.core import run_mark as runmark
from pytest_gpucluster.core.errors import AllocationError, SlurmError, in_vain
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO

    from typing_extensions import Self

    from pytest_gpucluster.cluster.slurm.client import Slurm

SPARE = 60  # seconds that salloc waits longer than this process
PROMPT = 3.0  # seconds; salloc usually ends within one
_COMPLETES = 5.0  # seconds of the state COMPLETING, which hides the final state
_JOB = re.compile(r"(?:Pending|Granted) job allocation (\d+)")

# slurm_errno.c; QOSMaxMemoryPerJob, AssocMaxMemPerNode and the like as reason or in stderr. MaxMemPerCPU makes more CPUs
# of more memory, which no node has; the same words have other reasons too, so that a request without --mem=0 decides
_MEMORY_LIMIT = re.compile(
    r"Memory required by task is not available|(QOS|Assoc)Max\w*Mem|Requested node configuration is not available"
)
# squeue's reason (%r) if requested nodes are out of service or reserved
_NODES_OUT = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")


@dataclass(frozen=True)
class AllocationRequest:
    """Options of salloc. `nodes` by name, else any `count`; times in seconds.

    `exclusive` alone allocates whole nodes with all CPUs and GPUs, and by --mem=0 all memory instead of DefMemPerNode,
    also for different nodes (tested on 22.05.8): steps with `--overlap --gpus-per-task=1` or `--gres=gpu:8` run beside a
    step without gres. A step without gres has no GPU then.
    """

    nodes: tuple[str, ...] = ()
    count: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    comment: str | None = None
    constraint: str | None = None
    time: float = 3600
    queue_wait: float = 600
    exclusive: bool = True
    gpus_per_node: int | None = None
    job_name: str = field(default_factory=lambda: runmark.name_of_run(suffix=secrets.token_hex(4)))
    dependency: str | None = field(default=None, metadata={"example": "afterany:12:13"})
    extra_args: tuple[str, ...] = ()
    all_memory: bool = True  # of whole nodes
    beside: tuple[int, ...] = ()  # jobs that this run holds while it waits

    def argv(self) -> list[str]:
        """Return salloc's options."""
        options: dict[str, object] = {
            "nodelist": hostlist.fold(self.nodes) if self.nodes else None,
            "nodes": len(self.nodes) or self.count,
            **{key: getattr(self, key) for key in ("partition", "account", "qos", "reservation", "comment")},
            "constraint": self.constraint,
            "time": max(1, math.ceil(self.time / 60)),  # Slurm counts minutes
            "gpus-per-node": self.gpus_per_node,
            "job-name": self.job_name,
            "immediate": math.ceil(self.queue_wait) + SPARE,
            "dependency": self.dependency,
        }
        flags = ["--no-kill", "--kill-command=TERM"]  # without -K the holder survives a cancelled job
        if self.exclusive:
            flags += ["--exclusive", "--mem=0"] if self.all_memory else ["--exclusive"]
        given = [f"--{key}={value}" for key, value in options.items() if value is not None]
        return [*flags, *given, *self.extra_args]

    def limited_in_memory(self, error: AllocationError) -> bool:
        """Return whether a memory limit is the error of a request for all memory."""
        return self.exclusive and self.all_memory and bool(_MEMORY_LIMIT.search(f"{error} {error.stderr}"))


class Allocation:
    """Nodes that Slurm allocated: `job_id`, `nodes` in Slurm's (rank) order.

    Worker processes attach by job id and nodes; only the process that requested the allocation releases it.
    """

    def __init__(
        self,
        slurm: Slurm,
        job_id: int,
        nodes: Sequence[str],
        *,
        request: AllocationRequest | None = None,
        holder: _Holder | None = None,
    ) -> None:
        self.slurm = slurm
        self.job_id = job_id
        self.nodes = tuple(nodes)
        self.spec = request or AllocationRequest(nodes=self.nodes)
        self.env = {"SLURM_JOB_ID": str(job_id)}
        self.host_roots: dict[str, str] = {}  # of run_step: {node: root of a task without a container}
        self.fingerprints: dict[str, str] = {}  # of run_step: {image: fingerprint of a new container}
        self.end_state = ""  # of a job that ended too early, once `why_ended` has read it
        self._holder = holder

    @classmethod
    def request(
        cls, slurm: Slurm, request: AllocationRequest, *, progress: Callable[[str], None] | None = None
    ) -> Allocation:
        """Request nodes and wait up to `queue_wait` seconds; `progress` is called with the reason of the wait.

        Raise AllocationError with one line if Slurm refuses or the wait is over; no job is left then.
        If a limit (MaxMemPerNode, a QOS) excludes all memory, request the partition's default.
        """
        show = progress or (lambda _line: None)
        holder = _Holder(slurm, request)
        try:
            job_id, nodes = holder.wait(show)
        except BaseException as error:
            holder.end()
            if not (isinstance(error, AllocationError) and request.limited_in_memory(error)):
                raise
            less = "requesting the default memory instead (slurm.extra_args: --mem=SIZE requests more)"
            show(f"{error}: {less}")
            return cls.request(slurm, replace(request, all_memory=False), progress=progress)
        return cls(slurm, job_id, nodes, request=request, holder=holder)

    @classmethod
    def attach(cls, slurm: Slurm, job_id: int, nodes: Sequence[str]) -> Allocation:
        """Use an allocation that another process owns and releases."""
        return cls(slurm, job_id, nodes)

    @property
    def owned(self) -> bool:
        """This object holds the allocation."""
        return self._holder is not None

    @property
    def alive(self) -> bool:
        """Whether the allocation is still held; always True for an attached one, since Slurm is not queried."""
        return self._holder is None or self._holder.running

    @property
    def ended(self) -> str:
        """The last output of salloc after its end; '' while it runs."""
        return "" if self._holder is None or self._holder.running else self._holder.last_error()

    def why_ended(self) -> str:
        """Return the state of a job that ended too early with its meaning, or else salloc's last output."""
        self.end_state = self._last_state()
        return end_explanation(self.end_state) or self.ended or "salloc printed nothing"

    def _last_state(self) -> str:
        """Return the final state of the job, after COMPLETING; '' if Slurm does not report it."""
        deadline = time.monotonic() + _COMPLETES
        while True:
            try:
                job = str(self.job_id)
                state = self.slurm.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()
            except SlurmError:  # purged already (MinJobAge), or the controller does not answer
                return ""
            if state != "COMPLETING" or time.monotonic() > deadline:
                return state
            time.sleep(0.2)

    def release(self) -> None:
        """Release the nodes. Idempotent; does nothing for an attached allocation.

        Raise AllocationError, in one line, if the job may still hold the nodes.
        """
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.end(self.job_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Holder:
    """The guard shell with salloc under it."""

    def __init__(self, slurm: Slurm, request: AllocationRequest) -> None:
        self.slurm, self.request = slurm, request
        self.unknown = False
        self.nonce = f"held-{secrets.token_hex(8)}"
        program = script(__package__, "allocation.sh")
        self.argv = ("salloc", *request.argv(), "sh", "-c", program, "hold", self.nonce)
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.errors: list[str] = []
        guard = ("sh", "-c", program, "guard", request.job_name)
        self.process = slurm.transport.spawn((*guard, *self.argv[1:]), env=slurm.env)
        slurm.transport.count("salloc")
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        work = ((self.process.stdout, self.lines.put), (self.process.stderr, self.errors.append))
        self._threads = [threading.Thread(target=self._read, args=args, daemon=True) for args in work]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self, progress: Callable[[str], None]) -> tuple[int, tuple[str, ...]]:
        """Return job id and nodes once they are granted."""
        deadline = time.monotonic() + self.request.queue_wait
        pause = 5.0 if self.request.dependency else 2.0  # dependencies usually end within seconds
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._too_late()
            try:
                line = self.lines.get(timeout=min(left, pause))
            except queue.Empty:
                pause = min(pause * 1.5, 15.0)
                why = self._waits_for()
                left = max(0.0, deadline - time.monotonic())
                ends = f"gives up in {units.format_duration(left)} (slurm.queue_wait)"
                progress(f"waiting for job {self._job() or '?'}: {why}; {ends}")
                self._give_up_if_hopeless(why)
                continue
            if line is None:
                raise self._refused()
            _, _, held = line.strip().partition(f"{self.nonce} ")
            if held:  # anything else is of a wrapper of salloc
                self.slurm.transport.count("scontrol")  # the holder's own
                job, *nodes = held.split()
                if set(nodes) == set(self.request.nodes or nodes) and nodes:
                    return int(job), tuple(nodes)
                found = hostlist.fold(nodes) if nodes else "no node"
                raise self._error(f"scontrol show hostnames listed {found} in the job; run again")

    def end(self, job_id: int | None = None) -> None:
        """Close the pipe and wait for the end of salloc; cancel the job if it may still run."""
        with contextlib.suppress(OSError):
            if self.process.stdin:
                self.process.stdin.close()
        job_id = job_id or self._job()
        known_errors, begin = len(self.errors), time.monotonic()
        try:
            code = self.process.wait(15)
            killed = code > 128 or code < 0  # by a signal
        except subprocess.TimeoutExpired:
            killed = True
        # a controller that restarted meanwhile may have lost the release of the nodes
        slow = time.monotonic() - begin > PROMPT
        unsure = killed or slow or outage("\n".join(self.errors[known_errors:]))
        try:
            if unsure and job_id:
                self._cancel(job_id)
        finally:
            kill_group(self.process)
            for thread in self._threads:
                thread.join(5)

    def _cancel(self, job_id: int) -> None:
        try:
            self.slurm.run("scancel", str(job_id))
        except SlurmError as error:
            if "Invalid job id" in error.stderr or "already completing" in error.stderr:
                return
            held = f"job {job_id} may still hold them: {error}"
            raise self._error(f"{held}: run scancel {job_id} once Slurm answers") from error

    def last_error(self) -> str:
        """Return the last error of salloc."""
        return error_line("\n".join(self.errors[-20:]))

    def _job(self) -> int | None:
        found = [int(match[1]) for line in list(self.errors) if (match := _JOB.search(line))]
        return found[-1] if found else None

    def _waits_for(self) -> str:
        job = self._job()
        if job is None:
            return self.last_error() or "salloc has printed nothing yet"
        try:
            answer = self.slurm.run("squeue", "-h", "-j", str(job), "-o", "%r").strip()
        except SlurmError as error:
            return f"unknown, squeue failed: {error}"
        return with_meaning(answer) + (self._jobs_wait_for() if answer == "Dependency" else "")

    def _jobs_wait_for(self) -> str:
        jobs = ",".join(re.findall(r"\d+", re.sub(r"_\d+", "", self.request.dependency or "")))
        try:
            reasons = self.slurm.run("squeue", "-h", "-t", "PD", "-j", jobs, "-o", "%r").splitlines()
        except SlurmError:  # all of them have ended and are purged
            return ""
        others = dict.fromkeys(reasons).keys() - {"Dependency", "BeginTime", "None"}
        return "".join(f": {with_meaning(reason)}" for reason in sorted(others))

    def _give_up_if_hopeless(self, why: str) -> None:
        unknown = "Invalid job id" in why
        if unknown and self.unknown:  # twice: the first time the job may just have been granted
            raise self._error(
                "Slurm no longer has the request: slurmctld lost its latest state, or the job was cancelled"
            )
        self.unknown = unknown
        if self.request.beside and re.match(r"(QOS|Assoc)\w*Job", why):
            held = ", ".join(map(str, self.request.beside))
            raise self._error(
                f"{why}: this run already holds job {held}, and each partition and number of GPUs per node needs its "
                "own job: test them one after another, with --nodes"
            )
        if hopeless(why):
            raise self._error(f"Slurm will not allocate these nodes: {why}{self._limits(why)}")
        if why.startswith(_NODES_OUT) and (bad := self._out() or self._reserved_soon()):
            raise self._without(bad, "nodes cannot be allocated")

    def _too_late(self) -> AllocationError:
        """Return the error of a request that waited too long, with the nodes that were not free."""
        message = f"no nodes within {units.format_duration(self.request.queue_wait)}: {self._waits_for()}"
        bad = self._out(busy=True)
        return in_vain(self._without(bad, message) if bad else self._error(message))

    def _out(self, *, busy: bool = False) -> dict[str, str]:
        """Return {node: why Slurm cannot allocate it now}; with `busy`, also those with other jobs."""
        self.slurm.refresh()
        try:
            known = self.slurm.nodes()
        except SlurmError:
            return {}
        if self.request.reservation:  # else all its nodes would be unavailable, as reserved
            known = seen_from_inside(known, self.request.nodes)
        requested = {node: known[node] for node in self.request.nodes if node in known}
        return {
            node: info.why_unavailable()
            for node, info in requested.items()
            if not (info.available if busy else info.schedulable)
        }

    def _reserved_soon(self) -> dict[str, str]:
        """Return {node: message} of nodes with a reservation that begins before the job would end."""
        try:
            # in the format and time zone of scontrol's times, since both run on one machine
            submitted = self.slurm.run("squeue", "-h", "-j", str(self._job()), "-o", "%V").strip()
            end = datetime.fromisoformat(submitted) + timedelta(seconds=self.request.time)
            reservations = self.slurm.reservations().values()
            soon = [one for one in reservations if datetime.fromisoformat(one.start) < end]
        except (SlurmError, ValueError):
            return {}
        length = units.format_duration(self.request.time)
        return {
            node: f"reservation {one.name} begins {one.start}, before a job of {length} would end: use a shorter --time, or "
            f"--set slurm.reservation={one.name}"
            for one in soon
            for node in self.request.nodes
            if node in one.nodes and one.name != self.request.reservation
        }

    def _without(self, bad: Mapping[str, str], message: str) -> AllocationError:
        nodes_of: dict[str, list[str]] = {}
        for node, why in bad.items():
            nodes_of.setdefault(why, []).append(node)
        reasons = "; ".join(f"{hostlist.fold(nodes)}: {why}" for why, nodes in nodes_of.items())
        error = self._error(f"{message}: {reasons}")
        error.nodes = bad
        return error

    def _refused(self) -> AllocationError:
        self.process.wait()
        for thread in self._threads:
            thread.join(5)
        words = self.last_error() or f"salloc ended with exit {self.process.returncode}"
        hint = advice("\n".join(self.errors))
        error = self._error(words + (f": {hint}" if hint else "") + self._limits(words))
        return in_vain(error) if outage(error.stderr) else error

    def _limits(self, words: str) -> str:
        try:
            partitions = self.slurm.partitions()
        except SlurmError:
            return ""
        default = next((name for name, one in partitions.items() if one.default), "")
        partition = partitions.get(self.request.partition or default)
        found = partition_limits(partition, self.request, words) if partition else ""
        return f" ({found})" if found else ""

    def _error(self, message: str) -> AllocationError:
        request = self.request
        what = hostlist.fold(request.nodes) if request.nodes else f"{request.count or 1} nodes"
        where = f" in partition {request.partition}" if request.partition else ""
        return AllocationError(
            f"salloc of {what}{where}: {message}", argv=self.argv, rc=self.process.poll(), stderr="\n".join(self.errors)
        )

    def _read(self, pipe: IO[bytes], take: Callable[[str], object]) -> None:
        with contextlib.suppress(ValueError, OSError):
            for raw in pipe:
                take(raw.decode(errors="replace").rstrip())
        if pipe is self.process.stdout:
            self.lines.put(None)
