"""Collectives on the nodes: by nccl-tests or by our payload on torch.distributed, read by the same reader.

Three measurements, each one Slurm step: `alone` (every node by itself, all at once), `whole` (one collective over all
nodes), `rounds` (disjoint groups of nodes, round by round; the payload re-forms its groups without a restart). Where
only nccl-tests is there, `rounds` costs one step a pair, since its binaries cannot re-form their communicators.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.pyxis import PyxisOptions
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.core import hostlist, units
from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, SlurmError, StepError, StepTimeout
from pytest_gpucluster.kit import nvidia_smi
from pytest_gpucluster.kit.payload_step import COLLECTIVE, sent
from pytest_gpucluster.kit.payloads.collective import CONCLUDED, GIVEN_UP
from pytest_gpucluster.suites.nccl import log_reader as nccl_log
from pytest_gpucluster.suites.nccl import table_reader as nccl_tests
from pytest_gpucluster.suites.nccl.localization import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig, NcclConfig
    from pytest_gpucluster.core.probe import Answer

SUFFIX = "_perf"
LATENCY_SIZE = 8
UNDEALT = ("all_reduce", "broadcast", "sendrecv")  # collectives whose message is not dealt out to the ranks
SIDE_BY_SIDE = 8  # steps of single pairs at once, where nccl-tests has to be started anew for each
PATIENCE = 120.0  # seconds for one size of the payload, and for all its ranks to come

NO_WORLD = (
    "each process ran alone: MPI was started without PMI or PMIx: name nccl.mpi, one of `srun --mpi=list`"
)

# srun's words for a node that went away, as 22.05 writes them
_FALLEN = re.compile(r"srun: error: (?:Task launch for \S+ failed on node (\S+): (.+)|Node failure on (\S+))")
_FEWER = re.compile(r"Only allocated \d+ nodes asked for \d+")  # Slurm has taken a dead node out of the job

# Each node is a world of its own: its tasks count from 0, and its first task is the rendezvous.
_ALONE = (
    "export SLURM_PROCID=$SLURM_LOCALID SLURM_STEP_NUM_TASKS={gpus} SLURM_NTASKS={gpus}; "
    # a port of this step's own, below 32768, where Linux gives out its own
    'exec "$@" --address 127.0.0.1 --port '
    "$((20000 + (SLURM_JOB_ID * 131 + ${SLURM_STEP_ID:-$SLURM_STEPID} * 17 + SLURM_NODEID) % 12000))"
)

# A binary built with MPI would join the tasks of all nodes: without the words of Slurm and PMI it is a singleton
_SINGLETON = (
    "for name in $(env | sed -n 's/^\\(SLURM_[A-Za-z0-9_]*\\|PMI[A-Za-z0-9_]*\\)=.*/\\1/p'); do unset \"$name\"; done; "
    'exec "$@"'
)
# NCCL's log proves the transports: it is told, and to us, whatever a task prolog or nccl.conf has set
_LOGGED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": "/dev/stderr"}


def refuse_command(cluster: Cluster) -> None:
    """Raise ConfigError where nccl.command is no command of nccl-tests."""
    Sweep.parse(cluster.nccl.command)


@dataclass(frozen=True)
class Sweep:
    """The sizes of a run, as nccl-tests names them: -b, -e (bytes), -f; `rest` are its other words."""

    program: str
    begin: int
    end: int
    factor: int
    rest: tuple[str, ...] = ()

    @classmethod
    def parse(cls, command: str) -> Sweep:
        """Read `nccl.command`; ConfigError where it is no command of nccl-tests."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"nccl.command {command!r}: {error}") from error
        if not words:
            raise ConfigError("nccl.command is empty: write it like 'all_reduce_perf -b 1M -e 4G -f 2 -g 1'")
        taken = {"-b": "32M", "-e": "32M", "-f": "2"}
        rest: list[str] = []
        pairs = iter(words[1:])
        for word in pairs:
            if word in taken:
                taken[word] = next(pairs, "")
            elif word == "-g":
                next(pairs, "")  # one GPU a rank; alone, all GPUs of the node
            else:
                rest.append(word)
        try:
            begin, end = units.parse_size(taken["-b"]), units.parse_size(taken["-e"])
        except ValueError as error:
            raise ConfigError(f"nccl.command {command!r}: {error}") from error
        if not 0 < begin <= end:
            raise ConfigError(f"nccl.command {command!r}: -b must be greater than 0, and not greater than -e")
        if not re.fullmatch("[2-9]|[1-9][0-9]{1,3}", taken["-f"]):
            raise ConfigError(f"nccl.command {command!r}: -f must be a number from 2 to 9999")
        return cls(words[0], begin, end, int(taken["-f"]), tuple(rest))

    def reaching(self, sizes: Iterable[int]) -> Sweep:
        """Return a sweep that ends no earlier than any of these sizes: a threshold is judged at its own size."""
        return replace(self, end=max([self.end, *sizes]))

    def with_latency(self, collective: str) -> Sweep:
        """Return a sweep from 8 bytes on, the size of the latency, where the steps from there meet the asked begin.

        Collectives that deal a part to each rank have no 8 bytes: nccl-tests rounds them down to 16 bytes a rank.
        """
        size = LATENCY_SIZE
        while size < self.begin and self.factor > 1:
            size *= self.factor
        return replace(self, begin=LATENCY_SIZE) if size == self.begin and collective in UNDEALT else self

    def words(self) -> tuple[str, ...]:
        """Return the options, sizes in bytes."""
        return ("-b", str(self.begin), "-e", str(self.end), "-f", str(self.factor))


@dataclass(frozen=True)
class Measured:
    """One step, read: the tables, NCCL's log, which rank ran where, and the step itself.

    `problem` says why the step did not end by itself.
    """

    output: nccl_tests.Output
    log: nccl_log.Log
    node_of_rank: Mapping[int, str]
    command: str
    seconds: float
    text: str = ""
    problem: str = ""
    tasks: tuple[TaskResult, ...] = ()


class Nccl:
    """Runs collectives in an allocation, as the cluster file's `nccl:` says."""

    def __init__(
        self,
        slurm: Slurm,
        allocation: Allocation,
        cluster: Cluster,
        channel: Channel,
        inventory: Mapping[str, NodeInfo],
        *,
        gpus_per_node: int,
    ) -> None:
        self._slurm, self._allocation, self._channel = slurm, allocation, channel
        self._cluster, self._inventory = cluster, inventory
        self.config: NcclConfig = cluster.nccl
        self.gpus = self.config.gpus_per_node or gpus_per_node
        self.sweep = Sweep.parse(self.config.command)
        self.steps = 0
        self.paired: tuple[TaskResult, ...] = ()  # the tasks of the last rounds of pairs
        self.fallen: dict[str, str] = {}  # nodes that Slurm could not start a step on any more, and why

    # --- which program

    @cached_property
    def runner(self) -> str:
        """Return nccl-tests or payload; NotAvailable names the nodes that have neither."""
        if self.config.runner != "auto":
            return self.config.runner
        find = f"command -v {shlex.quote(self.sweep.program)}"
        if self.config.container or not (without_tests := self._lacking(find)):
            return "nccl-tests"
        without_torch, asked = self._without_torch, self._channel.ask(find)
        if {*without_tests} & {*without_torch} >= {*asked}:
            raise NotAvailable(
                f"neither {self.sweep.program} nor torch on {hostlist.fold(asked)}: install nccl-tests, or name "
                "under nccl.environment an environment whose python has torch"
            )
        # the few nodes that lack what most have are told one by one, by their own step
        return "payload" if len(without_torch) <= len(without_tests) else "nccl-tests"

    @cached_property
    def can_re_form(self) -> bool:
        """Whether our payload runs there: then all rounds of pairs fit into one step."""
        return bool(self.config.payload) or self.runner == "payload" or not self._without_torch

    @cached_property
    def _without_torch(self) -> tuple[str, ...]:
        """The nodes whose python has no torch."""
        if self.config.payload:
            return ()  # it stands for ours, and needs none
        environment = self.environment
        if environment is not None and (
            environment.container_image or environment.conda or environment.modules
        ):
            # an image for nccl-tests alone has no torch
            return () if self.config.container is None else self._allocation.nodes
        python = shlex.quote(environment.python if environment else "python3")
        find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
        return tuple(self._lacking(f"{python} -c {shlex.quote(find)}"))

    @property
    def logs_transports(self) -> bool:
        """Whether the steps print NCCL's log, which proves the transports."""
        own = self.runner == "payload" and bool(self.config.payload)  # a stand-in for the payload may not log
        return self.config.exports.get("NCCL_DEBUG", "INFO") in {"INFO", "TRACE"} and not own

    def _lacking(self, command: str) -> list[str]:
        return [node for node, answer in self._channel.ask(command).items() if answer.rc != 0]

    def survey(self, node: str) -> Answer:
        """Ask a node's nvidia-smi anew."""
        return self._channel.ask_node(node, nvidia_smi.SURVEY, timeout=nvidia_smi.GPUS.timeout, fresh=True)

    @cached_property
    def environment(self) -> EnvironmentConfig | None:
        """The environment of the cluster file that the steps run in."""
        name = self.config.environment
        if name is None:
            return None
        if name not in self._cluster.environments:
            known = ", ".join(sorted(self._cluster.environments)) or "none"
            raise ConfigError(f"nccl.environment {name!r} is not among the environments: {known}")
        return self._cluster.environments[name]

    # --- the three measurements

    def alone(self, nodes: Sequence[str], sizes: Iterable[int] = ()) -> Measured:
        """Measure all-reduce within every node, all nodes at once in one step; one table a node."""
        sweep = self.sweep.reaching(sizes).with_latency("all_reduce")
        if self.runner == "nccl-tests":
            argv = (
                "sh",
                "-c",
                _SINGLETON,
                "sh",
                sweep.program,
                *sweep.words(),
                "-g",
                str(self.gpus),
                *sweep.rest,
            )
            request = self._request(nodes, argv, ntasks_per_node=1, gpus_per_node=self.gpus)
            request = replace(request, mpi="none")
        else:
            script = _ALONE.replace("{gpus}", str(self.gpus))
            inner = self._payload("sweep", "-c", "all_reduce", *sweep.words(), *self._patient())
            argv = ("sh", "-c", script, "sh", *inner)
            request = self._request(nodes, argv, ntasks_per_node=self.gpus, gpus_per_task=1)
            request = replace(request, enough=_all_told(len(nodes)))
        return self._measure(request, "all_reduce", apart=True)

    def whole(
        self, nodes: Sequence[str], collective: str = "all_reduce", sizes: Iterable[int] = ()
    ) -> Measured:
        """Measure one collective over all the nodes together."""
        sweep = self.sweep.reaching(sizes).with_latency(collective)
        if self.runner == "payload":
            words = (*sweep.words(), *self._patient(), *self._rendezvous(nodes))
            argv = self._payload("sweep", "-c", collective, *words)
        else:
            argv = (self._program(collective), *sweep.words(), "-g", "1", *sweep.rest)
            if self.config.launcher == "mpirun":
                # Slurm knows the task of mpirun alone: the ranks tell their hosts by themselves
                return replace(self._measure(self._under_mpirun(nodes, argv), collective), node_of_rank={})
        request = self._request(nodes, argv, ntasks_per_node=self.gpus, gpus_per_task=1)
        if self.runner == "payload":
            request = replace(request, enough=_all_told(1))
        return self._measure(request, collective)

    def rounds(self, nodes: Sequence[str], batch: Sequence[Sequence[Sequence[str]]]) -> list[Measurement]:
        """Measure disjoint groups, round by round; every group gets a measurement, if only its problem.

        Where nodes went away meanwhile (`fallen` has grown), that is what their groups say.
        """
        if self.can_re_form:
            before = len(self.fallen)
            found = self._rounds_in_one_step(nodes, batch)
            spoilt = any(it.problem and not self._lost_of(it.members) for it in found)
            again = spoilt and len(self.fallen) > before
            return self._rounds_in_one_step(nodes, batch) if again else found
        return [found for groups in batch for found in self._round_by_steps(groups)]

    def _rounds_in_one_step(
        self, nodes: Sequence[str], batch: Sequence[Sequence[Sequence[str]]]
    ) -> list[Measurement]:
        whole = [[group for group in groups if not self._lost_of(group)] for groups in batch]
        used = {member.partition(":")[0] for groups in whole for group in groups for member in group}
        there = tuple(node for node in nodes if node in used)
        if not there:
            return [
                Measurement(tuple(group), problem=self._lost_of(group))
                for groups in batch
                for group in groups
            ]
        size = ("-s", str(self.config.pair_size), "--deadline", str(self.round_deadline))
        argv = self._payload("rounds", *size, "--schedule", "-", *self._rendezvous(there))
        request = self._request(there, argv, ntasks_per_node=self.gpus, gpus_per_task=1)
        wanted = {(number, tuple(group)) for number, groups in enumerate(whole) for group in groups}
        request = replace(
            request,
            input=json.dumps(whole).encode(),
            timeout=self._patience(batch),
            enough=lambda text: wanted <= dict(read_rounds(text)).keys(),
        )
        result, problem = self._run(request)
        self.paired = result.tasks
        told = dict(read_rounds("\n".join(task.stdout for task in result.tasks)))
        why = problem or failure_of(result)
        return [
            told.get((number, tuple(group)), Measurement(tuple(group), problem=why))
            if not (lost := self._lost_of(group))
            else Measurement(tuple(group), problem=lost)
            for number, groups in enumerate(batch)
            for group in groups
        ]

    def _lost_of(self, group: Iterable[str]) -> str:
        hosts = (member.partition(":")[0] for member in group)
        return "; ".join(f"{node} is lost: {self.fallen[node]}" for node in hosts if node in self.fallen)

    def _note_hung(self, error: StepTimeout, request: StepRequest, *, apart: bool) -> None:
        """Note the nodes that alone kept a step from ending: those without a task, or with tasks that never ended.

        In a collective that hangs, no rank ends, or those that broke end badly: then no node is to blame for not
        ending, and the rounds of pairs have to tell. `apart`: each node is a world of its own and judged by itself.
        """
        after = units.format_duration(round(error.result.seconds if error.result else request.timeout))
        for node in error.unstarted:
            self.fallen.setdefault(node, f"a step started no task there within {after}")
        tasks = error.result.tasks if error.result else ()
        # the first task waits for the others: while it has not ended, nothing is told by theirs
        held = Counter(error.unended.values()) if 0 not in error.unended else Counter()
        others = [task for task in tasks if task.node not in held]
        if apart or error.unstarted or not others or not all(task.ok for task in others):
            return
        for node, count in held.items():
            what = f"{count} of its tasks did not end within {after}, those of other nodes did"
            self.fallen.setdefault(node, what)

    def _note_fallen(self, stderr: str, nodes: Sequence[str]) -> None:
        for launch, why, node in _FALLEN.findall(stderr):
            self.fallen.setdefault(launch or node, f"srun: {why or 'Node failure'}")
        if _FEWER.search(stderr):
            with contextlib.suppress(SlurmError):
                now = self._slurm.nodes()
                self.fallen |= {
                    node: now[node].why_unavailable()
                    for node in nodes
                    if node not in self.fallen and node in now and now[node].base_state == "DOWN"
                }

    def _round_by_steps(self, groups: Sequence[Sequence[str]]) -> list[Measurement]:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
            return list(threads.map(self._measure_group, groups))

    def _measure_group(self, group: Sequence[str]) -> Measurement:
        members = tuple(group)
        if any(":" in member for member in members):
            return Measurement(members, skipped=True)  # single GPUs are not nccl-tests' to choose
        if lost := self._lost_of(members):
            return Measurement(members, problem=lost)
        size = self.config.pair_size
        argv = (self.sweep.program, "-b", str(size), "-e", str(size), "-f", "2", "-g", "1", *self.sweep.rest)
        request = self._request(members, argv, ntasks_per_node=self.gpus, gpus_per_task=1)
        found = self._measure(replace(request, timeout=self.round_deadline), "all_reduce")
        if found.output.singletons and not found.problem:
            return Measurement(members, problem=NO_WORLD, skipped=True)  # nothing went from node to node
        runs = found.output.runs
        wrong = [row.out_of_place.wrong for run in runs for row in run.rows if row.out_of_place.wrong]
        if found.problem or found.output.problems or wrong or len(runs) != 1 or not runs[0].rows:
            why = (
                found.problem or "; ".join(found.output.problems[:2]) or f"wrong data: {sum(wrong)} elements"
            )
            return Measurement(members, problem=why)
        return Measurement(members, runs[0].rows[-1].out_of_place.busbw)

    @property
    def round_deadline(self) -> float:
        """Seconds for one round: a tenth of a step's deadline, so that a hang costs no more."""
        return max(20.0, self.config.deadline / 10)

    def _patience(self, batch: Sequence[object]) -> float:
        return self.config.deadline + len(batch) * self.round_deadline

    # --- steps

    def _payload(self, *words: str) -> tuple[str, ...]:
        if self.config.payload:
            return (*self.config.payload, *words)
        source = sent(COLLECTIVE)
        python = self.environment.python if self.environment else "python3"
        level = self.config.exports.get("NCCL_DEBUG", "INFO")
        return (python, "-c", source, *words, *(("--nccl-debug", level) if level else ()))

    def _patient(self) -> tuple[str, ...]:
        """Have the payload give up before the step is cancelled: it knows the rank or the size that hangs."""
        seconds = f"{min(PATIENCE, self.config.deadline / 2):g}"
        return ("--deadline", seconds, "--rendezvous", seconds)

    def _rendezvous(self, nodes: Sequence[str]) -> tuple[str, ...]:
        # Slurm knows the address of a node even where its name does not resolve
        info = self._inventory.get(nodes[0])
        return ("--address", info.address) if info is not None and info.address else ()

    @property
    def _logging(self) -> dict[str, str]:
        return {name: self.config.exports.get(name, value) for name, value in _LOGGED.items()}

    def _program(self, collective: str) -> str:
        folder, _, name = self.sweep.program.rpartition("/")
        swapped = collective + SUFFIX if name.endswith(SUFFIX) else name
        return f"{folder}/{swapped}" if folder else swapped

    def _request(self, nodes: Sequence[str], argv: Sequence[str], **options: Any) -> StepRequest:
        pyxis = None
        environment = self.environment
        if self.config.container and self.runner == "nccl-tests":
            base = environment or None
            pyxis = PyxisOptions(
                image=self.config.container,
                mounts=base.container_mounts if base else (),
                remap_root=base.container_remap_root if base else None,
            )
        exports = {"NCCL_DEBUG": "INFO", **self.config.exports}
        # in the task itself, since a task prolog goes after what srun exports
        prelude = [f"export {name}={shlex.quote(value)}" for name, value in self._logging.items()]
        # one of the site's hooks may be taken, and is for the ddp suite to judge
        prelude.append("unset MASTER_PORT")
        if self.config.hostid_from_slurm:
            prelude.append('export NCCL_HOSTID="$SLURMD_NODENAME"')
        mpi = self.config.mpi if self.runner == "nccl-tests" else None
        return StepRequest(
            argv=tuple(argv),
            nodes=tuple(nodes),
            env=exports,
            prelude="; ".join(prelude),
            environment=environment,
            pyxis=pyxis,
            mpi=mpi,
            timeout=self.config.deadline,
            extra_args=self.config.srun_args,
            **options,
        )

    def _under_mpirun(self, nodes: Sequence[str], argv: Sequence[str]) -> StepRequest:
        hosts = ",".join(f"{node}:{self.gpus}" for node in nodes)
        names = dict.fromkeys((*self._logging, *self.config.exports))
        exports = [word for name in names for word in ("-x", name)]
        launch = ("mpirun", "-np", str(len(nodes) * self.gpus), "--host", hosts, "--tag-output", *exports)
        request = self._request(nodes[:1], (*launch, *argv), ntasks_per_node=1, gpus_per_node=self.gpus)
        return replace(
            request, mpi="none", prelude="; ".join(filter(None, (request.prelude, self._job(nodes))))
        )

    def _job(self, nodes: Sequence[str]) -> str:
        """Return the sh line that shows mpirun the nodes to use: Slurm's variables speak of its own step of one task.

        Open MPI reads them in place of --host, and refuses the ranks for want of slots (seen with 4.1.4).
        """
        folded, each = hostlist.fold(nodes), f"{self.gpus}(x{len(nodes)})"
        words = {
            **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), folded),
            **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(len(nodes))),
            "SLURM_TASKS_PER_NODE": each,
        }
        return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in words.items())

    def _run(self, request: StepRequest, *, apart: bool = False) -> tuple[StepResult, str]:
        self.steps += 1
        result, problem = self._try(request, apart=apart)
        self._note_fallen(result.stderr, request.nodes)
        if problem:  # only then: nodes that the channel has lost may have finished their part before
            lost = self._channel.lost
            self.fallen |= {
                node: lost[node] for node in request.nodes if node in lost and node not in self.fallen
            }
        return result, problem

    def _try(self, request: StepRequest, *, apart: bool) -> tuple[StepResult, str]:
        try:
            return run_step(self._slurm, self._allocation, request), ""
        except StepTimeout as error:
            self._note_hung(error, request, apart=apart)
            if isinstance(error.result, StepResult):
                return error.result, str(error)
            return StepResult(-1, (), error.stderr, request.timeout, " ".join(error.argv[:3])), str(error)
        except StepError as error:
            return StepResult(error.rc or -1, (), error.stderr, 0.0, " ".join(error.argv[:3])), str(error)

    def _measure(self, request: StepRequest, collective: str, *, apart: bool = False) -> Measured:
        result, problem = self._run(request, apart=apart)
        text, errors = labelled(result.tasks), labelled(result.tasks, "stderr")
        worst = max((task.rc for task in result.tasks if task.rc is not None), default=result.rc)
        output = nccl_tests.read_tasks(
            {str(task.rank): task.stdout for task in result.tasks},
            stderr="\n".join((result.stderr, *(task.stderr for task in result.tasks))),
            rc=worst,
            collective=collective,
            mpi=request.mpi,
        )
        return Measured(
            output=output,
            log=nccl_log.read(text + errors),
            node_of_rank={task.rank: task.node for task in result.tasks},
            command=result.command,
            seconds=result.seconds,
            text=text,
            problem=problem,
            tasks=result.tasks,
        )

    # --- the image

    def prepare_image(self) -> str:
        """Compile nccl-tests into `nccl.container` where `nccl.compile` asks for it; say what was done.

        The image is saved once (--container-save) and re-used as long as the file is there.
        """
        config = self.config
        if not (config.compile and config.container):
            return ""
        if not config.base_container or not config.source:
            raise ConfigError("nccl.compile needs nccl.base_container and nccl.source")
        first = self._allocation.nodes[0]
        if self._channel.ask_node(first, f"test -s {shlex.quote(config.container)}", fresh=True).rc == 0:
            return f"{config.container} is there and re-used"
        build = (
            "cp -r /nccl-tests /opt/nccl-tests && make -C /opt/nccl-tests -j MPI=1 MPI_HOME=${MPI_HOME:-/usr/local/mpi}"
            " && ln -sf /opt/nccl-tests/build/*_perf /usr/local/bin/"
        )
        pyxis = PyxisOptions(
            image=config.base_container,
            mounts=(f"{config.source}:/nccl-tests:ro",),
            save=config.container,
            writable=True,
            remap_root=True,
        )
        request = StepRequest(argv=("sh", "-c", build), nodes=(first,), pyxis=pyxis, timeout=config.deadline)
        result = run_step(self._slurm, self._allocation, request)
        if not result.ok:
            raise StepError(
                f"compiling nccl-tests in {config.base_container} failed: {result.hint or failure_of(result)}",
                argv=(result.command,),
                rc=result.rc,
                stderr=result.stderr,
            )
        return f"compiled nccl-tests in {config.base_container} and saved it as {config.container}"

    def clean_up(self) -> None:
        """Delete the image that `compile` has saved, where `nccl.cleanup` asks for it."""
        if self.config.compile and self.config.cleanup and self.config.container:
            remove = f"rm -f -- {shlex.quote(self.config.container)}"
            self._channel.ask_node(self._allocation.nodes[0], remove, fresh=True)


def _all_told(worlds: int) -> Callable[[str], bool]:
    """Return what tells that so many sweeps of the payload are over, and not all of them well: who is left hangs."""
    return lambda text: GIVEN_UP in text and text.count(CONCLUDED) + text.count(GIVEN_UP) >= worlds


def labelled(tasks: Iterable[TaskResult], stream: str = "stdout") -> str:
    """Put the tasks' output together, each line with its task's number before it, as `srun --label` does.

    A last line that was never ended is left out: it may be cut.
    """
    return "".join(
        f"{task.rank}: {line}\n" for task in tasks for line in getattr(task, stream).split("\n")[:-1]
    )


def log_of(tasks: Iterable[TaskResult]) -> nccl_log.Log:
    """Return NCCL's log of these tasks, from both streams: nccl-tests logs to stdout, our payload to stderr."""
    known = list(tasks)
    return nccl_log.read(labelled(known) + labelled(known, "stderr"))


def output_of(tasks: Iterable[TaskResult], collective: str) -> nccl_tests.Output:
    """Read what these tasks printed, with their own exit status."""
    known = list(tasks)
    statuses = [task.rc for task in known if task.rc is not None]
    return nccl_tests.read_tasks(
        {str(task.rank): task.stdout for task in known},
        stderr="\n".join(task.stderr for task in known),
        rc=max(statuses, default=None),
        collective=collective,
    )


def read_rounds(text: str) -> Iterable[tuple[tuple[int, tuple[str, ...]], Measurement]]:
    """Yield ((round, members), measurement) of the payload's JSON lines; other lines are not ours."""
    for line in text.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                said = jsontext.loads(line)
                measurement = Measurement.from_dict(said)
                yield (int(said["round"]), measurement.members), measurement


def failure_of(result: StepResult) -> str:
    """Return the first thing that a failed step said, in one line."""
    for task in result.tasks:
        if task.rc not in (0, None) and task.stderr.strip():
            return task.stderr.strip().splitlines()[0][:300]
    words = [line for line in result.stderr.splitlines() if line.strip()]
    return words[0][:300] if words else f"the step exited {result.rc} and said nothing of this group"
