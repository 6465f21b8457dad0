"""Burn-in: one long step with an agent per node, which runs the loads of each round.

The agents measure. This module chooses the loads and pairs of each round, detects lost nodes (no heartbeat, or srun
reports the end of the task) and ends the burn-in. Every node is an independent task of the step.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.cluster.slurm.streaming_step import StreamingStep
from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import SlurmError, StepError, StepMisplaced
from pytest_gpucluster.core.units import format_duration, parse_duration
from pytest_gpucluster.kit.fabric.perftest_plan import gid_index, node_plan
from pytest_gpucluster.kit.framework.payload_step import command, environment_named, sent
from pytest_gpucluster.kit.nccl.pairing import circle
from pytest_gpucluster.kit.payloads.prelude import SECRET
from pytest_gpucluster.suites.burnin import payload
from pytest_gpucluster.suites.burnin.config import GPU_LOADS, BurninConfig
from pytest_gpucluster.suites.burnin.error_checks import counters, temperature, xid
from pytest_gpucluster.suites.burnin.payload_process import signal_code
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.kit.fabric.rails import RailPort

EVENT = "burnin"
CTRL_C = "stopped by Ctrl-C"
TICK = 0.5
SIMULATED = "sim-burnin"  # worker of the simulated GPUs of a sandbox
MISSED = 3  # heartbeats after which a node counts as silent
STARTING = 300.0  # seconds for an agent and its workers to start: containers, torch from a slow file system
RESERVE = 60.0  # seconds of the allocation that remain for the verdicts and the release
# seconds beyond the time of its loads after which a round continues without the late nodes
ROUND_SLACK = 300.0
MEMORY_TESTS = 3600.0  # seconds in which each round tests the memory of the GPUs
_T = TypeVar("_T")
# partners that a GPU or a node meets in a round that takes their rates; a slow pair is judged with 3
QUIET_TURNS = 3
SEEDS = 4  # inputs, used in turn so that rounds can be compared


@dataclass
class Progress:
    """Progress in seconds and rounds, and the number of healthy, suspect (with a finding) and lost nodes."""

    elapsed: float
    total: float
    rounds: int
    healthy: int
    suspect: int
    lost: int
    at: str = ""

    def __str__(self) -> str:
        left = format_duration(max(0.0, round(self.total - self.elapsed)))
        return (
            f"burn-in {format_duration(round(self.elapsed))} of {format_duration(round(self.total))}, round "
            f"{self.rounds + 1}: {self.healthy} healthy, {self.suspect} suspect, {self.lost} lost, {left} left"
        )


@dataclass
class ResumeState:
    """State of an earlier burn-in, read from its event log: actual and requested seconds, rounds, sums of the nodes."""

    seconds: float = 0.0
    requested: float = 0.0
    rounds: int = 0
    nodes: dict[str, NodeTotals] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any]) -> None:
        """Add a burn-in event of a log."""
        if event["what"] == "begin":
            self.requested = max(self.requested, float(event["requested"]))
        self.seconds = max(self.seconds, float(event.get("seconds", 0.0)))
        self.rounds = max(self.rounds, int(event.get("rounds", 0)))
        if event["what"] == "totals":
            totals = NodeTotals.from_dict(event["totals"])
            self.nodes.setdefault(totals.node, NodeTotals(totals.node)).merge(totals)


class Burnin:
    """The burn-in of one allocation's nodes."""

    def __init__(
        self,
        slurm: Slurm,
        allocation: Allocation,
        cluster: Cluster,
        inventory: Mapping[str, NodeInfo],
        *,
        nodes: Sequence[str],
        gpus: int,
        seconds: float,
        before: ResumeState | None = None,
        rails: Mapping[str, Mapping[str, RailPort]] | None = None,
    ) -> None:
        self.rails = rails or {}  # of the load `rdma`
        self._slurm, self._allocation, self._inventory = slurm, allocation, inventory
        self.config = cluster.section(BurninConfig)
        self.cluster, self.gpus = cluster, gpus
        self.environment = environment_named(cluster, self.config.environment, "burnin")
        self.before = before or ResumeState()
        used = gpus if set(self.config.loads) & set(GPU_LOADS) else 0
        self.result = BurninResult({}, seconds, used)
        for node in nodes:
            self.result.nodes[node] = self.before.nodes.get(node) or NodeTotals(node)
        self.result.rounds = self.before.rounds
        self.started = time.monotonic()
        self._recent = {node: NodeTotals(node) for node in nodes}  # since the last event
        self._last_line: dict[str, float] = {}  # time of the last line of each node
        self._task_of: dict[int, str] = {}
        self._done: dict[int, set[str]] = {}
        self._suspect: set[str] = set()
        self._commands = 0
        self._group = 0
        self._step: StreamingStep | None = None
        self._write_event: Callable[..., None] = lambda **_: None
        self._show: Callable[[Progress], None] = lambda _: None
        self.end = 0.0

    # --- state

    @property
    def live(self) -> list[str]:
        """The nodes that take part, in the allocation's order."""
        return [node for node, totals in self.result.nodes.items() if not totals.out and not totals.lost]

    @property
    def elapsed(self) -> float:
        """Seconds of burn-in, with those of a resumed one."""
        return self.before.seconds + time.monotonic() - self.started

    def progress(self, at: str = "") -> Progress:
        """Return the state for the progress line."""
        nodes = self.result.nodes.values()
        lost = sum(bool(totals.lost) for totals in nodes)
        suspect = sum(totals.node in self._suspect and not totals.lost for totals in nodes)
        healthy = len(nodes) - lost - suspect
        total, rounds = self.result.requested, self.result.rounds
        return Progress(self.elapsed, total, rounds, healthy, suspect, lost, at)

    # --- the run

    def run(self, write_event: Callable[..., None], show: Callable[[Progress], None]) -> BurninResult:
        """Run until the time is up, no node is left, or it is stopped.

        A KeyboardInterrupt ends it: the results so far are valid, and `ended` is the reason.
        """
        self._write_event, self._show = write_event, show
        self.started = time.monotonic()
        left = self.result.requested - self.before.seconds
        self.end = self.started + left
        why = self._limit_to_allocation()
        write_event(
            what="begin", requested=self.result.requested, seconds=self.before.seconds, rounds=self.result.rounds,
            nodes=list(self.result.nodes), loads=list(self.config.loads), profile=self.config.profile,
        )  # fmt: skip
        try:
            self._leave_out_misplaced()
            if left > 0 and self.live:
                self._step = self._start()
                self.result.command = " ".join(self._step.argv[:12]) + " ..."
                self._rounds()
            if not self.result.ended and self.live and why:
                self._end_early(why)
            none_left = "" if self.live else "no node is left in the burn-in"
            self.result.ended = self.result.ended or none_left or "the time is up"
        except KeyboardInterrupt as stopped:
            self._end_early(str(stopped) or CTRL_C)
        finally:
            self._finish()
        return self.result

    def _leave_out_misplaced(self) -> None:
        """Leave out the nodes on which tasks run outside of the stated container, or in another image."""
        if self.environment is None or not self.environment.in_container or not self.live:
            return
        request = StepRequest(
            ("true",), tuple(self.live), 1, environment=self.environment, mpi="none", timeout=STARTING
        )
        try:
            run_step(self._slurm, self._allocation, request)
        except StepMisplaced as error:
            for node, why in error.nodes.items():
                self.result.nodes[node].out = why
        except StepError:
            return  # the step of the agents fails alike, and reports it

    def _limit_to_allocation(self) -> str:
        """Move the end before the time limit of the allocation; return the reason of the end."""
        with contextlib.suppress(SlurmError, ValueError):
            left = self._slurm.run("squeue", "-h", "-j", str(self._allocation.job_id), "-o", "%L").strip()
            end = time.monotonic() + parse_duration(left) - min(RESERVE, parse_duration(left) / 4)
            if end < self.end:
                self.end = end
                return f"the time limit of the allocation ({left} were left)"
        return ""

    def _start(self) -> StreamingStep:
        config, live = self.config, self.live
        options = {
            "gpus": self.gpus, "sample": min(config.sample, max(0.2, self.load_seconds / 3)), "beat": config.beat,
            "sudo": self.cluster.sudo, "worker": [SIMULATED] * self.cluster.simulated, "storage": config.storage,
            "storage_bytes": config.storage_size,
        }  # fmt: skip
        python = self.environment.python if self.environment else "python3"
        request = StepRequest(
            argv=command(python, Path(payload.__file__), "agent", json.dumps(options)),
            nodes=tuple(live),
            ntasks_per_node=1,
            gpus_per_node=self.gpus or None,
            env={SECRET: secrets.token_hex(16)},
            environment=self.environment,
            mpi="none",
        )
        return StreamingStep(self._slurm, self._allocation, request)

    @property
    def load_seconds(self) -> float:
        """Duration of one load."""
        return self.config.load_seconds(self.before.seconds + max(0.0, self.end - self.started))

    def _rounds(self) -> None:
        if not self._wait(lambda: all(map(self._has_started, self.live)), STARTING, "start"):
            return
        if self._is_impossible(self._broken_workers()):
            return
        took, needed, heated = dict[bool, float](), 0.0, time.monotonic()  # took: hot -> seconds of a round
        while self.live and not self._over:
            number, began = self.result.rounds, time.monotonic()
            # figures of single parts need a quiet GPU: they are taken before the heat and after it
            hot = bool(took) and self.end - began >= needed and "matmul" in self.config.loads
            for loads in (self._loads(number, hot=hot), self._collectives(number, hot=hot)):
                if not self._command(loads):
                    return
            took[hot] = max(took.get(hot, 0.0), time.monotonic() - began)
            needed = took[False] + took.get(True, took[False] / 2)
            self.result.rounds += 1
            for node in self.live:
                self._recent[node].rounds += 1
                self.result.nodes[node].rounds += 1
                self._write_totals(node)
            if self._is_impossible(self._lacking()):
                return
            if self.config.profile == "cycles" and time.monotonic() - heated >= self.config.cycle_heat:
                if not self._cool(needed):
                    return
                heated = time.monotonic()

    def _is_impossible(self, why: str) -> bool:
        """End a burn-in that can prove no node, however long it runs."""
        self.result.impossible = why
        if why:
            self._end_early(why)
        return bool(why)

    def _end_early(self, why: str) -> None:
        self.result.early, self.result.ended = why, f"it ended early: {why}"

    def _broken_workers(self) -> str:
        """Return why no node has a worker on its GPUs; '' where one has, or where none is needed."""
        totals = [self.result.nodes[node] for node in self.live]
        if not self.result.gpus or any(one.used for one in totals):
            return ""
        broken = next((str(why) for one in totals for why in (one.hello or {}).get("broken", ()) if why), "")
        way_out = "burnin.environment names the Python or image that has what the loads need"
        return broken and f"no node can load its GPUs: {broken}; {way_out}"

    def _lacking(self) -> str:
        """Return what a load needs that every node lacks; '' without such a load."""
        totals = [self.result.nodes[node] for node in self.live]
        for load in self.config.loads:
            # dcgm is no part of the proof
            if load != "dcgm" and totals and all(load in one.lacks and not one.ran[load] for one in totals):
                return f"no node can run the load {load}: {totals[0].lacks[load]}"
        return ""

    def _cool(self, needed: float) -> bool:
        """Leave the GPUs alone, but not in the last `needed` seconds; return False if the burn-in ended before."""
        seconds = min(self.config.cycle_idle, self.end - time.monotonic() - needed)
        idle = [{"load": "idle", "seconds": seconds}] if seconds > 0 and self.gpus else []
        return self._command(idle)

    @property
    def _over(self) -> bool:
        return time.monotonic() >= self.end or self._step is None

    def _has_started(self, node: str) -> bool:
        return node in self._last_line and self._recent[node].hello is not None

    # --- the loads of a round

    def _loads(self, number: int, *, hot: bool = False) -> list[dict[str, Any]]:
        """Return the loads of a round, without the collectives; a hot one never pauses the products."""
        config, seconds, seed = self.config, self.load_seconds, number % SEEDS
        made = []
        beside = self._beside(4 * seconds, seed, number)
        for load in ("dcgm", "matmul", "bursts", "gpu_memory", "hbm", "copies", "peer"):
            if not self._wanted(load, number, hot):
                continue
            one: dict[str, Any] = {"load": load, "seconds": seconds, "seed": seed}
            if load == "dcgm":
                one |= {"level": config.dcgm, "timeout": config.dcgm_timeout}
            if load == "matmul":
                one |= {"seconds": 4 * seconds, "dtypes": list(config.dtypes), "beside": beside}
                one["copies"] = "copies" in config.loads
            if load == "bursts":
                one |= {"seconds": 4 * seconds, "period": config.burst_period}
            turns = self._turns(_pairs(self.gpus), number, hot) if load == "peer" else ()
            made += [{**one, "pairs": pairs, "hot": hot} for pairs in turns] or [one]
        if "matmul" not in config.loads or not self.gpus:
            made += [{**one, "seconds": seconds} for one in beside]
        return made

    @staticmethod
    def _turns(turns: Sequence[_T], number: int, hot: bool) -> list[_T]:
        """Return who meets whom in a round: one turn of the circle beside products, several where rates are taken."""
        first, count = (number, 1) if hot else (number * QUIET_TURNS, QUIET_TURNS)
        return [turns[(first + it) % len(turns)] for it in range(min(count, len(turns)))]

    def _wanted(self, load: str, number: int, hot: bool) -> bool:
        """Return whether a round has a load."""
        config = self.config
        if load == "bursts":
            return config.profile == "bursts" and bool(self.gpus)
        if load not in config.loads or (load in GPU_LOADS and not self.gpus):
            return False
        if load == "dcgm":
            return not number
        if load == "gpu_memory":
            return not hot or self.elapsed <= MEMORY_TESTS
        return not hot or load not in ("hbm", "copies")

    def _beside(self, seconds: float, seed: int, number: int = 0) -> list[dict[str, Any]]:
        """Return the loads of the host, one after the other, which run while the GPUs multiply for `seconds`."""
        pairs = self._rdma_pairs(number)
        of_host = [load for load in ("cpu", "memory", "storage") if load in self.config.loads]
        chosen = [*of_host, *(["rdma"] if pairs else [])]
        share = seconds / max(1, len(chosen))
        made: list[dict[str, Any]] = [{"load": load, "seconds": share, "seed": seed} for load in chosen]
        if pairs:
            made[-1] |= {"groups": pairs, "gid": gid_index(self.cluster, self.environment)}
        return made

    def _rdma_pairs(self, number: int) -> list[dict[str, Any]]:
        """Return the pairs of a round with the rails that both nodes have, as kit/payloads/perftest.py takes them."""
        able = [node for node in self.live if self.rails.get(node)] if "rdma" in self.config.loads else []
        turns = circle(able) if len(able) > 1 else ()
        places = {node: place for place, node in enumerate(self.result.nodes)}
        found = []
        for pair in turns[number % len(turns)] if turns else ():
            common = self.rails[pair[0]].keys() & self.rails[pair[1]].keys()
            nodes = {}
            for node in pair:
                rails = {it: self.rails[node][it] for it in sorted(common)}
                nodes[node] = node_plan(self._address(node), places[node], rails)
            found += [{"members": list(pair), "nodes": nodes}] if common else []
        return found

    def _address(self, node: str) -> str:
        info = self._inventory.get(node)
        return (info.address if info is not None else "") or node

    def _collectives(self, number: int, *, hot: bool = False) -> list[dict[str, Any]]:
        if "nccl" not in self.config.loads:
            return []
        # ranks are numbered by GPU: a node that lacks one cannot take part
        able = [node for node in self.live if self.gpus and len(self.result.nodes[node].used) == self.gpus]
        alone = [(node,) for node in able]
        turns = self._turns(circle(able) if len(able) > 1 else (), number, hot)
        if hot and turns:
            alone = []  # the pairs load the links of the node as well
        return [self._collective(groups, number, hot) for groups in (alone, *turns) if groups]

    def _collective(self, groups: Sequence[Sequence[str]], number: int, hot: bool) -> dict[str, Any]:
        made = []
        for members in groups:
            self._group += 1
            made.append({
                "members": list(members),
                "address": self._address(members[0]),
                # below 32768, the first ephemeral port of Linux; nodes may share a host
                "port": 20000 + (self._allocation.job_id * 131 + self._group) % 12000,
                "ranks": [len(self.result.nodes[node].used) for node in members],
            })  # fmt: skip
        return {
            "load": "nccl", "seconds": self.load_seconds, "seed": number % SEEDS, "bytes": self.config.nccl_size,
            "groups": made, "hot": hot,
        }  # fmt: skip

    def _command(self, loads: list[dict[str, Any]]) -> bool:
        """Run loads on all live nodes; return False if the burn-in ended before."""
        if not loads:
            return True
        assert self._step is not None
        self._commands += 1
        number = self._commands
        self._done[number] = set()
        command = {"do": "round", "id": number, "round": self.result.rounds, "loads": loads}
        self._step.send(json.dumps(command))
        timeout = 3 * sum(float(load.get("timeout", load["seconds"])) for load in loads) + ROUND_SLACK
        return self._wait(lambda: set(self.live) <= self._done[number], timeout, f"command {number}")

    # --- lines of the agents

    def _wait(self, reached: Callable[[], bool], timeout: float, what: str) -> bool:
        """Read lines until a state is reached; nodes that have not reached it within `timeout` seconds are lost."""
        assert self._step is not None
        limit = time.monotonic() + timeout
        while not reached() or not self.live:
            if not self.live or time.monotonic() >= self.end:
                return False
            for task, line in self._step.lines(TICK):
                self._read_line(task, line)
                if reached():
                    break
            self._find_lost_nodes()
            if self._step.ended and not reached():
                self._step_ended()
                return False
            if time.monotonic() > limit:
                self._lose_late_nodes(what, timeout)
                limit = time.monotonic() + timeout
            self._show(self.progress())
        return True

    def _read_line(self, task: int, text: str) -> None:
        try:
            line = safe_json.loads(text)
        except ValueError:
            return
        node = line.get("node") if isinstance(line, dict) else None
        if node not in self.result.nodes or "burnin" not in line:
            return
        self._task_of[task] = node
        self._last_line[node] = time.monotonic()
        totals, recent = self.result.nodes[node], self._recent[node]
        kind = line["burnin"]
        if kind == "hello":
            if self._step is not None:
                self._step.step_id = str(line.get("step", ""))
            recent.hello = totals.hello = {key: line[key] for key in line if key not in ("burnin", "node")}
        elif kind == "load":
            recent.add(line)
            totals.add(line)
            if self._is_suspect(node):
                self._suspect.add(node)
        elif kind == "done":
            self._done.setdefault(int(line["id"]), set()).add(node)

    def _is_suspect(self, node: str) -> bool:
        """Return whether the node has wrong data or fails a check of errors already, for the progress line."""
        self.result.seconds = self.elapsed
        found = self.result, node
        verdicts = (counters(*found, self.config), xid(*found), temperature(*found, self.config))
        wrong = any(any(parts.values()) for parts in self.result.nodes[node].wrong.values())
        return wrong or any(verdict.findings for verdict in verdicts)

    def _lose(self, node: str, why: str, code: str) -> None:
        for totals in (self.result.nodes[node], self._recent[node]):
            totals.lost, totals.lost_code = why, code
        self._write_totals(node)

    def _find_lost_nodes(self) -> None:
        assert self._step is not None
        for named, task, rc, number in self._step.endings():
            node = named or self._task_of.get(task, "")
            if node in self.live:
                how = f"by signal {number}" if number else f"with {rc}"
                code = signal_code(number) if number else "exited"
                self._lose(node, f"its agent ended {how}", code)
        silence = max(self.config.silence, MISSED * self.config.beat)
        now = time.monotonic()
        for node in self.live:
            since = now - self._last_line.get(node, self.started)
            if since > (silence if node in self._last_line else STARTING):
                self._lose(node, f"silent for {format_duration(round(since))}", "silent")

    def _lose_late_nodes(self, what: str, timeout: float) -> None:
        done = self._done.get(self._commands, set())
        in_time = self._has_started if what == "start" else done.__contains__
        for node in [node for node in self.live if not in_time(node)]:
            self._lose(node, f"{what} took longer than {format_duration(round(timeout))}", "late")
            if self._step is not None:
                self._step.send(json.dumps({"do": "leave", "nodes": [node]}))

    def _step_ended(self) -> None:
        """Record that the whole step ended, which no failure of a node can cause."""
        assert self._step is not None
        output = [line for line in self._step.stderr if line.strip()]
        message = output[-1] if output else f"srun exited {self._step.process.returncode}"
        if not self._last_line:
            argv, stderr = self._step.argv[:3], "\n".join(output)
            raise StepError(f"burn-in: no agent started: {message[:300]}", argv=argv, stderr=stderr)
        self._end_early(f"the step ended: {message[:200]}")

    # --- the end

    def _write_totals(self, node: str) -> None:
        recent = self._recent[node]
        self._recent[node] = NodeTotals(node)
        self._write_event(
            what="totals", totals=recent.as_dict(), seconds=round(self.elapsed, 1), rounds=self.result.rounds
        )

    def _wait_for_silent_nodes(self, step: StreamingStep) -> None:
        """Wait for nodes without a heartbeat: a node that died shortly before the end must not pass."""
        missed, now = MISSED * self.config.beat, time.monotonic()
        before = {node: self._last_line.get(node, now) for node in self.live}
        before = {node: last for node, last in before.items() if now - last > missed}
        try:
            while quiet := [node for node, last in before.items() if self._last_line[node] == last]:
                for task, line in step.lines(TICK):
                    self._read_line(task, line)
                silent = time.monotonic() - min(before[node] for node in quiet)
                if silent > max(self.config.silence, missed):
                    first = min(quiet, key=before.__getitem__)
                    self._lose(first, f"silent for {format_duration(round(silent))} at the end", "silent")
                    del before[first]
        except KeyboardInterrupt:
            self._end_early(CTRL_C)

    def _finish(self) -> None:
        if self._step is not None:
            self._step.send(json.dumps({"do": "stop"}))
            if not self.result.early:
                self._wait_for_silent_nodes(self._step)
            self._step.stop()
            for task, line in self._step.lines(0.2):  # lines that were sent before
                self._read_line(task, line)
        self.result.seconds = self.elapsed
        for node, recent in self._recent.items():
            if recent.ran or recent.problems or recent.hello:
                self._write_totals(node)
        self._write_event(
            what="end", why=self.result.ended, seconds=round(self.result.seconds, 1), rounds=self.result.rounds,
            out={node: totals.out for node, totals in self.result.nodes.items() if totals.out},
            lost={node: totals.lost for node, totals in self.result.nodes.items() if totals.lost},
        )  # fmt: skip


def _pairs(gpus: int) -> list[list[tuple[int, int]]]:
    """Return the turns of the GPUs of a node as (from, to): each pair in both directions; one empty turn without a pair."""
    turns = circle([str(gpu) for gpu in range(gpus)]) if gpus > 1 else [()]
    return [[copy for a, b in turn for copy in ((int(a), int(b)), (int(b), int(a)))] for turn in turns]


def simulated_payload() -> str:
    """Return the agent with its worker, which the sandbox runs on simulated GPUs."""
    return sent(Path(payload.__file__))
