"""Steps inside an allocation: output, exit status and signal of every task, a deadline, a command that reproduces it.

Each task runs under a few lines of sh that mark its start and end on stderr with a nonce, so that rank, node and exit
status are known without shared storage. `wrap=False` omits them (images without sh): then only srun's own messages are
available, which name failed tasks only.
"""

from __future__ import annotations

import base64
import contextlib
import math
import re
import secrets
import shlex
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.cluster.environment import (
    IDENTITY,
    LOCALE,
    OF_STEPS,
    OWN_LIMITS,
    SYSTEM_PATH,
    login_lines,
    variables,
)
from pytest_gpucluster.cluster.slurm import task_place
from pytest_gpucluster.cluster.slurm.client import error_line
from pytest_gpucluster.cluster.slurm.pyxis import PyxisOptions
from pytest_gpucluster.cluster.slurm.result import REVOKED, StepResult, TaskResult, task_numbers
from pytest_gpucluster.cluster.transport import kill_group
from pytest_gpucluster.core import hostlist, redact, units
from pytest_gpucluster.core.errors import SlurmError, StepCancelled, StepError, StepMisplaced, StepTimeout
from pytest_gpucluster.core.run_mark import PREFIX, container_name
from pytest_gpucluster.core.scripts import FIND_MODULE, script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.transport import RemoteProcess
    from pytest_gpucluster.config.models import EnvironmentConfig

AnyFailure = TypeVar("AnyFailure", bound=SlurmError)
MAX_SIGNAL = 64
# a node without a started task counts as hung after these seconds plus a multiple of the time of half of the tasks
STRAGGLER, STRAGGLER_FACTOR = 30.0, 5.0
ENOUGH_GRACE = 10.0  # seconds for a step to end by itself after all wanted output
_POLL = 0.5  # seconds
# slurmstepd sends at most this many bytes of a line at once (SLURM_IO_MAX_MSG_LEN); --label starts a new line after each
PIECE = 1024
# bytes stored of a whole step: with many tasks, less than its cap for each
STEP_CAP, LEAST_CAP = 1 << 29, 1 << 16
# in commands for a person, instead of login_lines(): Debian's /etc/profile forgets the PATH of a TaskProlog
PROFILE = "P=$PATH; . /etc/profile; PATH=$PATH:$P"
_LABEL = re.compile(rb" *(\d{1,7}): ")
_ENDED = re.compile(r"srun: error: (\S+): tasks? ([\d,\-]+): (.+)")
# messages of slurmstepd and srun for a cancelled step (22.05, src/slurmd/slurmstepd/req.c, src/srun)
_CANCELLED = re.compile(r"\*\*\* (?:STEP|JOB) .*CANCELLED AT .*\*\*\*")
_ABORTED = "Job step aborted"
# srun prints strsignal(3)
_SIGNALS = {str(signal.strsignal(number)): number for number in range(1, 32)} | {"Out Of Memory": 9}


@dataclass(frozen=True)
class StepRequest:
    """Options of one step, as in srun. `timeout`: seconds; `cap`: stored bytes of each task's stdout and stderr.

    `nodes` () means the whole allocation. `env` is added to the tasks' environment, and overrides that of an image.
    `input` is every task's stdin. `prelude`: sh lines that `shell` runs first in each task. `environment` of the cluster
    file surrounds the step. `enough` returns, from all tasks' stdout, whether the output is complete: then the step is
    cancelled after ENOUGH_GRACE seconds, before its deadline. `overlap`: share CPUs, memory and GPUs with other steps;
    False: the step has its own, apart from steps that overlap, and waits until they are free. `mark`: each task reports
    its root file system, as those of a step with a container do. `reuse`: the container of an image stays for later steps of
    the job, until remove_containers() removes it.
    """

    argv: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    ntasks_per_node: int | None = None
    ntasks: int | None = None
    gpus_per_task: int | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    distribution: str | None = None
    mpi: str | None = None
    pyxis: PyxisOptions | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    input: bytes | None = None
    prelude: str = ""
    shell: str = "sh"
    wrap: bool = True
    kill_on_bad_exit: bool = False
    time_limit: int | None = None
    timeout: float = 300.0
    cap: int = 4 << 20
    extra_args: tuple[str, ...] = ()
    environment: EnvironmentConfig | None = None
    enough: Callable[[str], bool] | None = None
    overlap: bool = True
    mark: bool = False
    reuse: bool = True

    def options(self) -> list[str]:
        """Return srun's options, without those that select the allocation."""
        nodes = self.nodes
        options: dict[str, object] = {
            "nodelist": hostlist.fold(nodes) if nodes else None,
            "nodes": len(nodes) or None,
            "ntasks": self.ntasks,
            "ntasks-per-node": self.ntasks_per_node,
            "gpus-per-task": self.gpus_per_task,
            "gres": f"gpu:{self.gpus_per_node}" if self.gpus_per_node else None,
            "cpus-per-task": self.cpus_per_task,
            "distribution": self.distribution,
            "mpi": self.mpi,
            "time": self.time_limit,
            "kill-on-bad-exit": int(self.kill_on_bad_exit),
        }
        given = [f"--{key}={value}" for key, value in options.items() if value is not None]
        return [OWN_LIMITS, *given, *(self._pyxis().argv() if self.pyxis else []), *self.extra_args]

    def task_argv(self, nonce: str | None) -> list[str]:
        """Return the command of each task; `nonce` None omits the frames."""
        if nonce and self.wrap:
            mark = task_place.MARK if self.mark or self.container else ""
            wrapper = script(__package__, "task.sh", MARK=mark, PRELUDE=self.prelude)
            return [self.shell, "-c", wrapper, nonce, *self.argv]
        if self.prelude:
            return [self.shell, "-c", f'{self.prelude}; exec "$@"', self.shell, *self.argv]
        return list(self.argv)

    @property
    def container(self) -> task_place.Stated:
        """The container of the tasks; false without one."""
        return task_place.stated(self.options())

    def on_node(self, lines: str) -> StepRequest:
        """Return the request with these lines of sh before those of its tasks, unless they run in a container."""
        if self.container or not self.wrap:
            return self
        return replace(self, prelude=f"{lines}\n{self.prelude}" if self.prelude else lines)

    def _pyxis(self) -> PyxisOptions:
        pyxis = self.pyxis or PyxisOptions()
        return replace(pyxis, env=tuple(dict.fromkeys((*pyxis.env, *self.env))))


def run_step(slurm: Slurm, allocation: Allocation, request: StepRequest) -> StepResult:
    """Run a step and return how each task ended; a failing task is a result, not an exception.

    Raise StepTimeout after `timeout` seconds, or earlier if a node starts no task long after the others, with the
    unfinished tasks and nodes (and their output in `result`); StepError if srun could not start or Slurm started no task;
    StepMisplaced if tasks ran outside of the stated container or in other numbers per node; StepCancelled if the step was
    ended from outside.
    """
    nonce = f"task-{secrets.token_hex(8)}"
    given, request = request, _complete(request, allocation)
    argv = [
        "srun",
        *(["--overlap"] if request.overlap else []),
        f"--jobid={allocation.job_id}",
        "--label",
        f"--input={'none' if request.input is None else 'all'}",
        "--wait=0",  # WaitTime of slurm.conf would end the other tasks that long after the first
        *request.options(),
        *request.on_node(login_lines()).task_argv(nonce),
    ]
    begin = time.monotonic()
    process = slurm.transport.spawn(argv, env={**slurm.env, **OF_STEPS, **request.env})
    reader = _Reader(process, nonce, fair_cap(request))
    try:
        timed_out = not reader.wait(request, begin)
        unended = reader.open_tasks()  # before the kill gives every task an end
        unstarted = reader.unstarted(request.nodes)
        if timed_out:
            _cancel(slurm, allocation, reader, process)
    finally:
        kill_group(process)
    result = reader.result(request, allocation, process.returncode, time.monotonic() - begin)
    if slurm.on_step is not None:
        slurm.on_step(result)
    began = [task for task in result.tasks if task.node and task.rank in reader.began]
    if misplaced := _misplaced(slurm, allocation, given, request, began):
        on = f"on {hostlist.fold(misplaced)}"
        raise _failed(StepMisplaced, next(iter(misplaced.values())), result, argv, on, nodes=misplaced)
    if timed_out:
        after = units.format_duration(round(result.seconds))
        what = f"srun: cancelled after {after}: {_unfinished(request, unended, unstarted, result)}"
        raise _failed(StepTimeout, what, result, argv, rc=None, unstarted=unstarted, unended=unended)
    if result.rc != 0 and not reader.began and not any(_ENDED.search(x) for x in result.stderr.splitlines()):
        what = f"srun: no task started: {result.hint or error_line(result.stderr) or 'no message'}"
        raise _failed(StepError, what, result, argv, f"exit {result.rc}")
    # also if a task was ended before its begin frame
    if why := ended_from_outside(result, request):
        raise _failed(StepCancelled, f"srun: the step was ended from outside: {why}", result, argv)
    return result


def ended_from_outside(result: StepResult, request: StepRequest) -> str:
    """Return what ended a step from outside (no node is at fault); '' if its tasks or this process ended it."""
    if result.rc < 0:
        return f"srun was killed by signal {-result.rc}"
    found = _CANCELLED.search(result.stderr)
    if found and "TASK FAILURE" not in found[0] and "NODE FAILURE" not in found[0]:
        return found[0].strip("* ")
    if REVOKED in result.stderr:
        return f"its job ended ({REVOKED})"
    own = request.kill_on_bad_exit or "launch failed" in result.stderr or "Node failure" in result.stderr
    return "Slurm aborted it (scancel, or a signal to srun)" if _ABORTED in result.stderr and not own else ""


def _complete(request: StepRequest, allocation: Allocation) -> StepRequest:
    if request.environment is not None:
        request = environment_request(request.environment, request)
    if request.pyxis is not None and request.reuse:
        request = replace(request, pyxis=named(request.pyxis, allocation.job_id))
    # with --nodes and --ntasks-per-node alone srun starts one task per node (seen on 22.05.8)
    nodes = request.nodes or allocation.nodes
    ntasks = request.ntasks or len(nodes) * (request.ntasks_per_node or 1)
    return replace(request, nodes=nodes, ntasks=ntasks)


def named(pyxis: PyxisOptions, job: int) -> PyxisOptions:
    """Name the container of an image after its job: the first step unpacks the image on a node, later ones reuse it.

    A container that a step writes to or saves gets no name. suites/container/containers.py removes the others.
    """
    if not pyxis.image or pyxis.name or pyxis.save or pyxis.writable:
        return pyxis
    return replace(pyxis, name=f"{container_name(job, 'step', pyxis.image)}:no_exec")


def fair_cap(request: StepRequest) -> int:
    """Return how many bytes of each of a task's two streams are stored, for a limit on the whole step."""
    return min(request.cap, max(LEAST_CAP, STEP_CAP // (2 * (request.ntasks or 1))))


def environment_request(environment: EnvironmentConfig, request: StepRequest) -> StepRequest:
    """Add a cluster file's environment to a step: container, modules, conda, exports, mpi, srun_args.

    The request's own settings take precedence.
    """
    pyxis = request.pyxis
    if pyxis is None and (environment.container_image or environment.container_name):
        pyxis = PyxisOptions(
            image=environment.container_image,
            mounts=environment.container_mounts,
            name=environment.container_name,
            mount_home=environment.container_mount_home,
        )
    lines = (request.prelude, *_module_lines(environment), _conda_line(environment))
    return replace(
        request,
        environment=None,
        pyxis=pyxis,
        prelude="; ".join(filter(None, lines)),
        shell="bash" if environment.modules or environment.conda else request.shell,
        env={**variables(environment), **request.env},
        mpi=request.mpi or environment.mpi,
        extra_args=(*environment.srun_args, *request.extra_args),
    )


def _module_lines(environment: EnvironmentConfig) -> list[str]:
    if not environment.modules:
        return []
    lines = [FIND_MODULE]
    for name in environment.modules:
        quoted = shlex.quote(name)
        # old module commands exit with 0 also after an error: check LOADEDMODULES
        lines.append(
            f'module load {quoted}; case ":$LOADEDMODULES:" in *:{quoted}:*|*:{quoted}/*) ;; '
            f"*) echo {shlex.quote(f'module load {name}: failed on')} $(hostname) >&2; exit 1;; esac"
        )
    return lines


def _conda_line(environment: EnvironmentConfig) -> str:
    if not environment.conda:
        return ""
    name = shlex.quote(environment.conda)
    none = (
        f"conda activate {environment.conda}: no conda on the PATH of a login: name CONDA_EXE under exports or pass_env"
    )
    return (
        f'command -v "${{CONDA_EXE:-conda}}" >/dev/null || {{ echo {shlex.quote(none)} >&2; exit 1; }}; '
        'eval "$("${CONDA_EXE:-conda}" shell.posix hook)" && '
        f"conda activate {name} || {{ echo {shlex.quote(f'conda activate {environment.conda}: failed')} >&2; exit 1; }}"
    )


class _Task:
    def __init__(self) -> None:
        self.node = ""
        self.rc: int | None = None
        self.signal: int | None = None
        self.text = {"out": bytearray(), "err": bytearray()}
        self.open_line = {"out": bytearray(), "err": bytearray()}
        self.truncated = False
        self.root = self.image = ""

    def add(self, which: str, line: bytes, cap: int) -> None:
        text = self.text[which]
        room = cap - len(text)
        if len(line) > room:
            self.truncated = True
        text += line[: max(0, room)]

    def text_of(self, which: str) -> str:
        return bytes(self.text[which]).decode(errors="replace")

    def result(self, rank: int, nonce: bytes) -> TaskResult:
        out, err = self.text_of("out"), self.text_of("err").replace(f"{nonce.decode()}: ", "sh: ")
        ended = (self.node, self.rc, self.signal, out, err)
        return TaskResult(rank, *ended, self.truncated, self.root, self.image)


class _Reader:
    def __init__(self, process: subprocess.Popen[bytes] | RemoteProcess, nonce: str, cap: int) -> None:
        self.process, self.cap = process, cap
        self.frame = re.compile(
            rb"(.*?)" + nonce.encode() + rb" (begin|end) (\d+) (\S*) (\S*)(?: (\S+) (\S+))?\s*$", re.DOTALL
        )
        self.nonce = nonce.encode()
        self.tasks: dict[int, _Task] = {}
        self.began: set[int] = set()
        self.half_began = 0.0  # time at which half of the tasks have a begin frame
        self.enough_at: float | None = None
        self.step_id = ""
        self.own = bytearray()
        self.unlabelled = bytearray()
        self._lock = threading.Lock()
        assert process.stdout is not None
        assert process.stderr is not None
        pipes = ((process.stdout, "out"), (process.stderr, "err"))
        self._threads = [threading.Thread(target=self._read, args=pipe, daemon=True) for pipe in pipes]
        for thread in self._threads:
            thread.start()

    def wait(self, request: StepRequest, begin: float) -> bool:
        """Feed the input and wait for the end of srun; False if the deadline came first."""
        feeder = threading.Thread(target=self._feed, args=(request.input,), daemon=True)
        feeder.start()
        limit = deadline = begin + request.timeout
        while True:
            try:
                self.process.wait(max(0.1, min(_POLL, limit - time.monotonic())))
            except subprocess.TimeoutExpired:
                # recomputed each time: a node that began late no longer counts
                limit = min(deadline, self._deadline(request, begin))
                if time.monotonic() >= limit:
                    return False
            else:
                self.join()
                return True

    def _deadline(self, request: StepRequest, begin: float) -> float:
        """Return an earlier deadline if the output is complete or a node seems to hang; else infinity."""
        if self.enough_at is None and request.enough is not None:
            with self._lock:
                text = "\n".join(task.text_of("out") for task in self.tasks.values())
            self.enough_at = time.monotonic() if request.enough(text) else None
        deadline = math.inf if self.enough_at is None else self.enough_at + ENOUGH_GRACE
        if self.unstarted(request.nodes):
            if not self.half_began and 2 * len(self.began) >= (request.ntasks or len(request.nodes)):
                self.half_began = time.monotonic()
            if self.half_began:
                patience = STRAGGLER + STRAGGLER_FACTOR * (self.half_began - begin)
                deadline = min(deadline, begin + patience)
        return deadline

    def unstarted(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return the nodes where no task began; () if none began at all, or a task has no known node."""
        with self._lock:
            there = {self.tasks[rank].node for rank in self.began}
        return tuple(node for node in nodes if node not in there) if there and there <= set(nodes) else ()

    def join(self) -> None:
        """Read to the end, for at most 10 s per pipe, which a child of srun may hold open."""
        for thread in self._threads:
            thread.join(10)

    def result(self, request: StepRequest, allocation: Allocation, rc: int | None, seconds: float) -> StepResult:
        """Return the result up to now."""
        with self._lock:
            own = bytes(self.own).decode(errors="replace")
            self._end_lines()
            self._add_srun_endings(own)
            tasks = tuple(task.result(rank, self.nonce) for rank, task in sorted(self.tasks.items()))
            rest = bytes(self.unlabelled).decode(errors="replace")
        return StepResult(-1 if rc is None else rc, tasks, own, seconds, reproduce_command(allocation, request), rest)

    def open_tasks(self) -> dict[int, str]:
        """Return the tasks that began and did not end, with their nodes."""
        with self._lock:
            return {rank: self.tasks[rank].node for rank in sorted(self.began) if self.tasks[rank].rc is None}

    def _feed(self, data: bytes | None) -> None:
        with contextlib.suppress(OSError, ValueError):
            assert self.process.stdin is not None
            if data:
                self.process.stdin.write(data)
            self.process.stdin.close()

    def _read(self, pipe: IO[bytes], which: str) -> None:
        with contextlib.suppress(ValueError, OSError):
            while line := pipe.readline(1 << 20):
                with self._lock:
                    self._take(line, which)

    def _take(self, line: bytes, which: str) -> None:
        label = _LABEL.match(line)
        if label is None:  # srun, slurmstepd and Pyxis themselves
            rest = self.own if which == "err" else self.unlabelled
            if len(rest) < self.cap:
                rest += line
            return
        task = self.tasks.setdefault(int(label[1]), _Task())
        piece, pending = line[label.end() :], task.open_line[which]
        if len(piece) == PIECE + 1 and piece.endswith(b"\n") and len(pending) < self.cap:
            pending += piece[:-1]  # the line continues: the newline is from --label
            return
        text = bytes(pending) + piece
        pending.clear()
        frame = self.frame.match(text) if which == "err" and self.nonce in text else None
        if frame is None:
            task.add(which, text, self.cap)
            return
        if frame[1]:
            task.add(which, frame[1], self.cap)
        task.node = frame[4].decode(errors="replace")
        if frame[2] == b"begin":
            self.began.add(int(label[1]))
            self.step_id = frame[5].decode(errors="replace")
            task.root, task.image = (
                "" if word in (None, b"-") else word.decode(errors="replace") for word in (frame[6], frame[7])
            )
        elif frame[5].isdigit():
            task.rc = int(frame[5])
            task.signal = task.rc - 128 if 128 < task.rc <= 128 + MAX_SIGNAL else None  # sh's rule

    def _end_lines(self) -> None:
        for task in self.tasks.values():
            for which, pending in task.open_line.items():
                task.add(which, bytes(pending), self.cap)
                pending.clear()

    def _add_srun_endings(self, own: str) -> None:
        for node, rank, rc, number in srun_endings(own):
            task = self.tasks.setdefault(rank, _Task())
            if task.rc is None:
                task.node, task.rc, task.signal = task.node or node, rc, number


def srun_endings(stderr: str) -> list[tuple[str, int, int, int | None]]:
    """Return (node, rank, exit status, signal) of each task that srun reports as failed.

    The node is '' if srun folds several nodes into one line.
    """
    endings = []
    for match in _ENDED.finditer(stderr):
        code = re.search(r"Exited with exit code (\d+)", match[3])
        number = re.search(r"[Ss]ignal (\d+)", match[3])
        named = next((sig for name, sig in _SIGNALS.items() if match[3].startswith(name)), None)
        signal = int(number[1]) if number and named is None else named
        if code is None and signal is None:
            continue
        rc = int(code[1]) if code else 128 + (signal or 0)
        node = match[1] if "[" not in match[1] and "," not in match[1] else ""
        endings += [(node, rank, rc, None if code else signal) for rank in task_numbers(match[2])]
    return endings


def reproduce_command(allocation: Allocation, request: StepRequest) -> str:
    """Return a command line that repeats the step outside the allocation."""
    spec = allocation.spec
    wanted = _complete(request, allocation)
    where = {key: getattr(spec, key) for key in ("partition", "account", "qos", "reservation")}
    env = (f"{name}={value}" for name, value in request.env.items())
    words = [f"{name}={value}" for name, value in redact.variables(env).items()]
    # as the step: without the environment and the limits of the shell
    names = [*IDENTITY, f"LANG={LOCALE}", f"PATH={SYSTEM_PATH}", *request.env]
    stated = [f"--{key}={value}" for key, value in where.items() if value]
    wanted = wanted.on_node(PROFILE)
    what = redact.words([*wanted.options(), *wanted.task_argv(None)])
    argv = ["srun", *stated, f"--export={','.join(names)}", *what]
    line = shlex.join([*(["env", *words] if words else []), *argv])
    if request.input is None:
        return line
    return f"printf %s {base64.b64encode(request.input).decode()} | base64 -d | {line}"


def _cancel(
    slurm: Slurm, allocation: Allocation, reader: _Reader, process: subprocess.Popen[bytes] | RemoteProcess
) -> None:
    if reader.step_id:
        with contextlib.suppress(SlurmError):
            slurm.run("scancel", "--signal=KILL", f"{allocation.job_id}.{reader.step_id}", timeout=20)
    else:
        kill_group(process, 15)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _misplaced(
    slurm: Slurm, allocation: Allocation, given: StepRequest, request: StepRequest, began: list[TaskResult]
) -> dict[str, str]:
    """Return {node: why its tasks are not where the step states}; the first time, steps that find what to compare with.

    given: the request before the container got its name. began: the tasks that ran; one whose container did not start
    has another message.
    """
    if not request.wrap:  # the tasks report nothing
        return {}
    found = task_place.miscounted(request.nodes, request.ntasks_per_node, request.ntasks or 0, began)
    container = request.container
    if found or not container or not began:
        return found
    if unknown := [node for node in task_place.undecided(container, began) if node not in allocation.host_roots]:
        plain = StepRequest(("true",), nodes=tuple(unknown), ntasks_per_node=1, mark=True, timeout=60)
        with contextlib.suppress(StepError):  # an unknown root is a finding
            tasks = run_step(slurm, allocation, plain).tasks
            allocation.host_roots.update((task.node, task.root) for task in tasks)
    found = task_place.outside(container, began, allocation.host_roots)
    if found:
        return found
    try:
        expected = _fingerprint(slurm, allocation, given, container)
    except StepError as error:
        return dict.fromkeys({task.node for task in began}, task_place.not_imported(container, str(error)))
    return task_place.other_image(container, began, expected)


def _fingerprint(slurm: Slurm, allocation: Allocation, given: StepRequest, container: task_place.Stated) -> str:
    """Return the fingerprint of the stated image in a new container, where the site names the container; else ''.

    Pyxis ignores the image if a container of this name exists, from whatever image. The first node imports it again.
    """
    environment = given.environment
    name = given.pyxis.name if given.pyxis else environment.container_name if environment else None
    if not (name and container.image) or name.startswith(PREFIX):
        return ""
    if container.image not in allocation.fingerprints:
        new = StepRequest(("true",), nodes=given.nodes[:1] or allocation.nodes[:1], timeout=given.timeout)
        result = run_step(slurm, allocation, replace(new, pyxis=PyxisOptions(image=container.image)))
        if not result.ok:
            raise StepError(result.hint or result.first_error, rc=result.rc, stderr=result.stderr)
        allocation.fingerprints[container.image] = result.tasks[0].image if result.tasks else ""
    return allocation.fingerprints[container.image]


def _failed(
    kind: type[AnyFailure], what: str, result: StepResult, argv: list[str], more: str = "", **facts: object
) -> AnyFailure:
    repeat = f"repeat: {_shorten(result.command)}"
    shown = f"{what} ({more}; {repeat})" if more else f"{what} ({repeat})"
    error = kind(shown, argv=argv, rc=result.rc, stderr=result.stderr)
    vars(error).update(result=result, brief=f"{what} ({more})" if more else what, **facts)
    return error


def _unfinished(
    request: StepRequest, open_tasks: dict[int, str], unstarted: tuple[str, ...], result: StepResult
) -> str:
    """Return which tasks did not start or end."""
    what = []
    if unstarted or not any(task.node for task in result.tasks):
        what.append(f"no task started on {hostlist.fold(unstarted or request.nodes)}")
    if open_tasks:
        nodes = hostlist.fold(sorted({node for node in open_tasks.values() if node})) or "?"
        which = ",".join(map(str, list(open_tasks)[:16]))
        what.append(f"{len(open_tasks)} of {len(result.tasks)} tasks did not end, on {nodes}: task {which}")
    if not what:
        what.append("srun itself did not end" if request.wrap else "it did not end")
    return "; ".join(what)


def _shorten(command: str) -> str:
    line, _, more = command.partition("\n")  # a payload's source
    return line if len(line) <= 300 and not more else line[:297] + "..."  # a few terminal lines
