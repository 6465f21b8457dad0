"""Images as named containers: imported once per node, reused by name, removed at the end.

The name contains the job that created it, so that no later run reuses the containers of a crashed run, and cleanup
can tell whether the job has ended. A step without a node list must not use such a name, since each node has its own names.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shlex
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.leftovers import Leftover
from pytest_gpucluster.cluster.slurm.pyxis import PyxisOptions, explain, unexplained
from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.core import hostlist, units
from pytest_gpucluster.core.errors import GpuClusterError, NotAvailable, StepError, StepMisplaced, StepTimeout
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.majority import owners
from pytest_gpucluster.core.probe import last_line
from pytest_gpucluster.core.run_mark import PREFIX, container_name, digest
from pytest_gpucluster.core.secure_tempfile import open_own
from pytest_gpucluster.kit.container import enroot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.kit.suite_work import SuiteContext

PROGRESS = 15.0  # seconds between progress lines
# seconds for the nodes to list their containers, and again to remove them; HURRY in an interrupted run
PATIENCE, HURRY = 60.0, 10.0
_UPTIME = "read -r up _ < /proc/uptime; echo up $up"
_EXISTS = re.compile(r"\[ERROR\].*File (?:already )?exists|but the container already exists")


@dataclass(frozen=True)
class ImageImport:
    """An image on the nodes. `seconds`: {node: duration of the import by the node's clock}, without reused containers.

    `size`: {node: bytes of the .sqsh}. `failed`: {node: why}.
    """

    image: str
    name: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    size: Mapping[str, int] = field(default_factory=dict)
    reused: tuple[str, ...] = ()
    failed: Mapping[str, Explanation] = field(default_factory=dict)
    command: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that have the image now."""
        return (*self.seconds, *self.reused)

    def throughput(self, node: str) -> float | None:
        """Return MB/s of the packed image; None if its size or its time is unknown."""
        seconds, size = self.seconds.get(node), self.size.get(node)
        return size / 1e6 / seconds if seconds and size else None


class NamedContainers:
    """The images of one allocation. `report` gets progress lines; `env`: variables of the steps that import, like a proxy's."""

    def __init__(
        self,
        slurm: Slurm,
        allocation: Allocation,
        channel: Channel,
        *,
        deadline: float = 600.0,
        env: Mapping[str, str] | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._slurm, self._allocation, self._channel = slurm, allocation, channel
        self._env = env or {}
        self._deadline = deadline
        self._report = report or (lambda _line: None)
        self._known: dict[str, ImageImport] = {}
        self._count = itertools.count()

    # -- containers on the nodes -----------------------------------------------------------------------------------

    def ask(self, command: str, nodes: Iterable[str], *, timeout: float = 60.0) -> dict[str, Answer]:
        """Return uncached answers of the nodes: their containers change."""
        wanted = set(nodes)
        answers = self._channel.ask(f"{command}\n# {os.getpid()}.{next(self._count)}", timeout=timeout)
        return {node: answer for node, answer in answers.items() if node in wanted}

    def listed(self, nodes: Sequence[str]) -> dict[str, tuple[str, ...] | None]:
        """Return {node: Enroot's names of its containers, None if unknown}."""
        return {node: _names(answer) for node, answer in self.ask(enroot.NAMES.command, nodes).items()}

    def remove(self, name: str, nodes: Sequence[str]) -> dict[str, str]:
        """Remove a container by Pyxis's name; return {node: why it failed}."""
        problems = {}
        for node, names in self.listed(nodes).items():
            if names is None:
                problems[node] = enroot.UNKNOWN
                continue
            own = enroot.enroot_names(names, name)
            if not own:
                continue
            answer = self._channel.ask_node(node, enroot.remove_command(own), timeout=120.0, fresh=True)
            if answer.rc != 0:
                problems[node] = answer.problem or last_line(answer.err) or f"exit {answer.rc}"
        return problems

    # -- import -------------------------------------------------------------------------------------------------

    def ensure(self, image: str, nodes: Sequence[str] | None = None) -> ImageImport:
        """Import the image on those of the nodes (default: all) that lack it; the result is cached."""
        wanted = tuple(nodes or self._allocation.nodes)
        known = self._known.get(image)
        if known is None or not set(wanted) <= {*known.nodes, *known.failed}:
            with _shared(self._share(image)) as users:
                self._known[image] = self._ensure(image, wanted)
                users.add(os.getpid())
        return self._known[image]

    def options(self, image: str) -> PyxisOptions:
        """Return the options of a step that reuses an image after ensure()."""
        return PyxisOptions(name=f"{self._known[image].name}:no_exec")

    def _ensure(self, image: str, nodes: tuple[str, ...]) -> ImageImport:
        stat = f"stat -L -c 'stat %s' {shlex.quote(image)} 2>/dev/null"
        is_file = image.startswith(("/", "."))  # another name is a registry's
        command = f"{stat if is_file else ':'}; {_UPTIME}; {enroot.NAMES.command} 2>/dev/null"
        answers = self.ask(command, nodes)
        name = container_name(self._allocation.job_id, image)
        lines = {node: tuple(map(str.strip, it.out.splitlines())) for node, it in answers.items()}
        there = tuple(node for node, printed in lines.items() if enroot.enroot_names(printed, name))
        missing = tuple(node for node in nodes if node not in there)
        sizes = {
            node: int(found[1])
            for node, answer in answers.items()
            if (found := re.search(r"^stat (\d+)$", answer.out, re.MULTILINE))
        }
        if not missing:
            return ImageImport(image, name, size=sizes, reused=there)
        result, problem = self._import(image, name, missing)
        before = {node: _uptime(answer.out) for node, answer in answers.items()}
        seconds, failed = _outcome(result, missing, before, problem)
        lost_race = [node for node in failed if result and _EXISTS.search(messages_of(result, node))]
        imported_by_other = {
            node: 0.0
            for node, names in (self.listed(lost_race).items() if lost_race else ())
            if names is None or enroot.enroot_names(names, name)
        }
        failed = {node: why for node, why in failed.items() if node not in imported_by_other}
        command = result.command if result else ""
        return ImageImport(image, name, seconds, sizes, (*there, *imported_by_other), failed, command)

    def _import(self, image: str, name: str, nodes: tuple[str, ...]) -> tuple[StepResult | None, Explanation | None]:
        request = StepRequest(
            argv=("sh", "-c", _UPTIME),
            nodes=nodes,
            ntasks_per_node=1,
            # create: fails if another process has imported it
            pyxis=PyxisOptions(image=image, name=f"{name}:create"),
            env=self._env,
            timeout=self._deadline,
        )
        begin = time.monotonic()
        with self._progress(f"importing {image} on {hostlist.fold(nodes)}"):
            try:
                result = run_step(self._slurm, self._allocation, request)
            except StepTimeout as error:
                late = error.result if isinstance(error.result, StepResult) else None
                why = f"not imported within {units.format_duration(self._deadline)}"
                return late, Explanation("timed_out", why)
            except StepMisplaced as error:  # the container suite judges where the tasks ran
                if error.result is None:
                    raise
                result = error.result
            except StepError as error:
                # no task started: the messages of Slurm and Pyxis apply to every node
                result = StepResult(error.rc or 1, (), error.stderr, 0.0, " ".join(error.argv))
                return result, unexplained(str(error))
        of = f"{sum(task.ok for task in result.tasks)} of {len(nodes)} nodes"
        self._report(f"imported {image} on {of}: {time.monotonic() - begin:.1f} s")
        return result, None

    @contextlib.contextmanager
    def _progress(self, what: str) -> Iterator[None]:
        done, begin = threading.Event(), time.monotonic()

        def report() -> None:
            while not done.wait(PROGRESS):
                self._report(f"{what}: {time.monotonic() - begin:.0f} s so far")

        self._report(what)
        thread = threading.Thread(target=report, name="import", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _share(self, image: str) -> str:
        return f"{self._allocation.job_id}-{digest(image)}"

    def close(self) -> None:
        """Remove the imported containers, unless another process of this run uses them."""
        for image, imported in self._known.items():
            with _shared(self._share(image)) as users:
                users.discard(os.getpid())
                if not users:
                    self.remove(imported.name, self._allocation.nodes)
        self._known.clear()


def why_failed(result: StepResult, node: str) -> Explanation | None:
    """Return why a step failed on a node, from the messages of srun, slurmstepd and Pyxis; None if they state nothing."""
    own = messages_of(result, node)
    errors = (line.split("error: ", 1)[-1].strip() for line in own.splitlines() if "error: " in line)
    return explain(own) or next(map(unexplained, filter(None, errors)), None)


def messages_of(result: StepResult, node: str) -> str:
    """Return the error output about a node: of its tasks, its slurmstepd and srun; lines without a node are included."""
    own = [task.stderr for task in result.of_node(node)]
    others = re.compile(r"slurmstepd-(\S+?):|srun: error: (\S+?): tasks? ")
    for line in result.stderr.splitlines():
        match = others.match(line)
        if match is None or match[1] == node or node in hostlist.expand(match[2] or ""):
            own.append(line)
    return "\n".join(own)


def _outcome(
    result: StepResult | None, nodes: Sequence[str], before: Mapping[str, float | None], problem: Explanation | None
) -> tuple[dict[str, float], dict[str, Explanation]]:
    """Return {node: seconds} of the imports, and {node: why} of the failures."""
    seconds: dict[str, float] = {}
    failed: dict[str, Explanation] = {}
    for node in nodes:
        tasks = result.of_node(node) if result else ()
        if tasks and all(task.ok for task in tasks):
            begin, end = before.get(node), _uptime(tasks[0].stdout)
            seconds[node] = max(0.0, end - begin) if begin is not None and end is not None else 0.0
        else:
            silent = Explanation("no_message", "the import ended without a message")
            failed[node] = (why_failed(result, node) if result else None) or problem or silent
    return seconds, failed


def _uptime(text: str) -> float | None:
    match = re.search(r"^up ([\d.]+)", text, re.MULTILINE)
    return float(match[1]) if match else None


def _names(answer: Answer) -> tuple[str, ...] | None:
    try:
        return enroot.read_names(answer) if answer.rc is not None else None
    except NotAvailable:
        return None


def remove_containers(slurm: Slurm, channel: Channel, jobs: Collection[int], *, hurry: bool = False) -> list[str]:
    """Remove the containers of these jobs and of ended jobs of the suites; return what could not be removed.

    `hurry`: an interrupted run waits for seconds, not for minutes.
    """
    patience = HURRY if hurry else PATIENCE
    found, unknown = containers_of_ended_jobs(slurm, channel, jobs, patience)
    return [*remove_found(channel, found, patience), *unknown]


def clear_nodes(run: SuiteContext, *, hurry: bool) -> list[str]:
    """Remove the containers that this run, or a killed one, left; return those that could not be removed."""
    if run.slurm is None or run.channel is None or not run.cluster.starts_containers:
        return []
    return remove_containers(run.slurm, run.channel, {held.job_id for held in run.allocations}, hurry=hurry)


def containers_of_ended_jobs(
    slurm: Slurm, channel: Channel, jobs: Collection[int], patience: float = PATIENCE
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return {node: containers of these jobs and of ended jobs of the suites}, and messages about unknown nodes.

    Only names with a job of the suites count, and only if Slurm does not know the job any more.
    """
    lost = set(channel.lost)  # reported by the run itself
    answers = channel.ask(f"{enroot.NAMES.command}\n# at the end of jobs {sorted(jobs)}", timeout=patience)
    listed = {node: names for node, answer in answers.items() if (names := _names(answer)) is not None}
    of_suites = {node: enroot.suite_containers(names) for node, names in listed.items()}
    live: set[int] = set()
    if any(job not in jobs for its in of_suites.values() for job in its.values()):
        live = {int(job) for job in slurm.run("squeue", "-h", "-a", "-o", "%A").split() if job.isdigit()}
    over = {
        node: tuple(sorted(name for name, job in its.items() if job in jobs or job not in live))
        for node, its in of_suites.items()
    }
    unknown = grouped(
        (f"{answer.problem}." if answer.problem else enroot.UNKNOWN, node)
        for node, answer in answers.items()
        if node not in listed and node not in lost
    )
    problems = [
        f"{hostlist.fold(nodes)} may still have containers named {PREFIX}-JOB-...: {why} "
        f"Run enroot list and enroot remove -f there"
        for why, nodes in unknown.items()
    ]
    return {node: names for node, names in over.items() if names}, problems


def remove_found(channel: Channel, found: Mapping[str, tuple[str, ...]], patience: float = PATIENCE) -> list[str]:
    """Remove these containers with one command for all nodes; return what could not be removed."""
    every = sorted({name for names in found.values() for name in names})
    removed = channel.ask(enroot.remove_present_command(every), timeout=patience) if every else {}
    return [
        f"{node} still has containers of ended jobs: {answer.problem or last_line(answer.err) or f'exit {answer.rc}'}: run "
        f"there: {enroot.remove_command(found[node])}"
        for node, answer in removed.items()
        if answer.rc != 0 and node in found
    ]


def of_ended_jobs(slurm: Slurm, channel: Channel, _cluster: object = None) -> tuple[list[Leftover], list[str]]:
    """Return the containers of ended jobs of the suites one by one, and messages about unknown nodes."""
    found, problems = containers_of_ended_jobs(slurm, channel, ())
    return as_leftovers(channel, found), problems


def as_leftovers(channel: Channel, found: Mapping[str, tuple[str, ...]]) -> list[Leftover]:
    """Return these containers one by one, for the list of leftovers."""

    def remove(name: str, nodes: Sequence[str]) -> None:
        if problems := remove_found(channel, dict.fromkeys(nodes, (name,))):
            raise GpuClusterError("; ".join(problems))

    return [
        Leftover(f"container {name} on {hostlist.fold(nodes)}, whose job has ended", partial(remove, name, nodes))
        for name, nodes in owners(found).items()
    ]


def stale_user_files() -> list[Leftover]:
    """Return the files of _shared() that killed processes left: unlocked, and without a living process."""
    prefix = f"{PREFIX}-{os.getuid()}"
    return [
        Leftover(f"file {path}, whose processes have ended", partial(_is_unused, path, remove=True))
        for path in sorted(Path(tempfile.gettempdir()).glob(f"{prefix}-*.users"))
        if re.fullmatch(rf"{prefix}-\d+-[0-9a-f]{{8}}\.users", path.name) and _is_unused(path)
    ]


def _is_unused(path: Path, *, remove: bool = False) -> bool:
    """Return whether no process uses a file of _shared() any more; `remove`: delete it then."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unused = os.fstat(handle).st_uid == os.geteuid() and not _users(handle)
        if unused and remove:
            path.unlink(missing_ok=True)
    except BlockingIOError:  # a process imports this very image
        return False
    finally:
        os.close(handle)
    return unused


@contextlib.contextmanager
def _shared(name: str) -> Iterator[set[int]]:
    """Yield the processes of this machine that use an image, under a lock.

    Concurrent imports of one name on a node race in Enroot, and xdist workers share the imported containers.
    """
    path, handle = _open_locked(name)
    try:
        users = _users(handle)
        yield users
        os.ftruncate(handle, 0)
        os.pwrite(handle, " ".join(map(str, sorted(users))).encode(), 0)
        if not users:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _open_locked(name: str) -> tuple[Path, int]:
    while True:
        path, handle = open_own(f"{PREFIX}-{os.getuid()}-{name}.users")
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)  # the previous holder of the lock deleted the file


def _users(handle: int) -> set[int]:
    """Return the living processes that a file names."""
    text = os.pread(handle, 1 << 16, 0).decode(errors="replace")
    return {int(word) for word in text.split() if word.isdigit() and Path("/proc", word).exists()}
