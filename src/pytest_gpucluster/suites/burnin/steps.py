"""Burn-in: one long step with an agent a node, told round by round what to do.

The agents measure, this side decides: which loads a round has, who pairs with whom, who is out (its results are
wrong, its GPU broke), who is lost (silent for too long, or srun says that its task ended), and when the time is up.
Every node is one independent task: none takes another with it.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.cluster.slurm.streaming_step import StreamingStep
from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.errors import SlurmError, StepError
from pytest_gpucluster.core.units import format_duration, parse_duration
from pytest_gpucluster.kit.pairing import circle
from pytest_gpucluster.kit.payload_step import COLLECTIVE, environment_named, sent, source_of
from pytest_gpucluster.suites.burnin import checks, payload
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster

EVENT = "burnin"
EARLY = "it ended early"
TICK = 0.5
MISSED = 3  # signs of life, fewer of which nobody minds
STARTING = 300.0  # seconds for an agent and its workers to come up: containers, torch from a slow file system
RESERVE = 60.0  # seconds kept of the allocation for judging and letting go
ROUND_SLACK = 300.0  # seconds beyond its loads' time after which a round goes on without who is still in it
SEEDS = 4  # inputs that take turns, so that rounds can be compared


@dataclass
class Progress:
    """How far it is: seconds, rounds, and how many nodes are well, suspect (found fault with) and lost."""

    elapsed: float
    total: float
    rounds: int
    well: int
    suspect: int
    lost: int
    at: str = ""

    def __str__(self) -> str:
        left = format_duration(max(0.0, round(self.total - self.elapsed)))
        return (
            f"burn-in {format_duration(round(self.elapsed))} of {format_duration(round(self.total))}, round "
            f"{self.rounds + 1}: {self.well} well, {self.suspect} suspect, {self.lost} lost, {left} left"
        )


@dataclass
class ResumeState:
    """What an earlier burn-in left in its event log: seconds spent, seconds asked, rounds, and the sums of nodes."""

    seconds: float = 0.0
    asked: float = 0.0
    rounds: int = 0
    nodes: dict[str, NodeTotals] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any]) -> None:
        """Add a burn-in event of a log; where a log has none, `asked` stays 0."""
        if event["what"] == "begin":
            self.asked = max(self.asked, float(event["asked"]))
        self.seconds = max(self.seconds, float(event.get("seconds", 0.0)))
        self.rounds = max(self.rounds, int(event.get("rounds", 0)))
        if event["what"] == "told":
            told = NodeTotals.from_dict(event["told"])
            self.nodes.setdefault(told.node, NodeTotals(told.node)).merge(told)


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
    ) -> None:
        self._slurm, self._allocation, self._inventory = slurm, allocation, inventory
        self.config = cluster.section(BurninConfig)
        self.cluster, self.gpus = cluster, gpus
        self.environment = environment_named(cluster, self.config.environment, "burnin")
        self.before = before or ResumeState()
        used = gpus if set(self.config.loads) & set(checks.GPU_LOADS) else 0  # else none needs to work
        self.told = BurninResult({}, seconds, used)
        for node in nodes:
            known = self.before.nodes.get(node)
            self.told.nodes[node] = known or NodeTotals(node)
        self.told.rounds = self.before.rounds
        self.started = time.monotonic()
        self._turn = {node: NodeTotals(node) for node in nodes}  # since the last event
        self._heard: dict[str, float] = {}
        self._task_of: dict[int, str] = {}
        self._done: dict[int, set[str]] = {}
        self._suspect: set[str] = set()
        self._commands = 0
        self._group = 0
        self._step: StreamingStep | None = None
        self._tell: Callable[..., None] = lambda **_: None
        self._show: Callable[[Progress], None] = lambda _: None
        self.end = 0.0

    # --- who takes part

    @property
    def live(self) -> list[str]:
        """The nodes that are in the burn-in now, in the allocation's order."""
        return [node for node, told in self.told.nodes.items() if not told.out and not told.lost]

    @property
    def elapsed(self) -> float:
        """Seconds of burn-in so far, those of before included."""
        return self.before.seconds + time.monotonic() - self.started

    def progress(self, at: str = "") -> Progress:
        """Return how far it is."""
        nodes = self.told.nodes.values()
        lost = sum(bool(told.lost) for told in nodes)
        suspect = sum(told.node in self._suspect and not told.lost for told in nodes)
        return Progress(
            self.elapsed,
            self.told.asked,
            self.told.rounds,
            len(self.told.nodes) - lost - suspect,
            suspect,
            lost,
            at,
        )

    # --- the run

    def run(self, tell: Callable[..., None], show: Callable[[Progress], None]) -> BurninResult:
        """Run until the time is up, nobody is left, or it is stopped; `tell` gets events, `show` the progress.

        A KeyboardInterrupt ends it: what was found so far stands, and `ended` says so.
        """
        self._tell, self._show = tell, show
        self.started = time.monotonic()
        left = self.told.asked - self.before.seconds
        self.end = self.started + left
        why = self._bound_by_allocation()
        tell(
            what="begin", asked=self.told.asked, seconds=self.before.seconds, rounds=self.told.rounds,
            nodes=list(self.told.nodes), loads=list(self.config.loads),
        )  # fmt: skip
        try:
            if left > 0 and self.live:
                self._step = self._start()
                self.told.command = " ".join(self._step.argv[:12]) + " ..."
                self._rounds()
            none_left = "" if self.live else "no node is left in the burn-in"
            self.told.ended = self.told.ended or none_left or why
        except KeyboardInterrupt as stopped:
            self.told.ended = f"{EARLY}: {stopped}" if str(stopped) else f"{EARLY}: stopped by Ctrl-C"
        finally:
            self._finish()
        return self.told

    def _bound_by_allocation(self) -> str:
        """End before Slurm takes the nodes back; say why it ends then."""
        with contextlib.suppress(SlurmError, ValueError):
            left = self._slurm.run("squeue", "-h", "-j", str(self._allocation.job_id), "-o", "%L").strip()
            end = time.monotonic() + parse_duration(left) - min(RESERVE, parse_duration(left) / 4)
            if end < self.end:
                self.end = end
                return f"{EARLY}: the time limit of the allocation ({left} were left of it)"
        return "the time is up"

    def _start(self) -> StreamingStep:
        config, live = self.config, self.live
        options = {
            "gpus": self.gpus, "sample": min(config.sample, max(0.2, self.load_seconds / 3)), "beat": config.beat,
            "sudo": self.cluster.sudo, "worker": list(config.payload), "storage": config.storage,
            "storage_bytes": config.storage_size, "memory_bytes": config.memory or 0, "cpus": config.cpus or 0,
        }  # fmt: skip
        python = self.environment.python if self.environment else "python3"
        # the payload of the nccl suite brings collectives and their checks
        argv = (
            *(python, "-c", payload.BOOT, payload.packed(source_of(__file__)), "agent"),
            *(json.dumps(options), payload.packed(sent(COLLECTIVE))),
        )
        request = StepRequest(
            argv=argv,
            nodes=tuple(live),
            ntasks_per_node=1,
            gpus_per_node=self.gpus or None,
            environment=self.environment,
            mpi="none",
        )
        return StreamingStep(self._slurm, self._allocation, request)

    @property
    def load_seconds(self) -> float:
        """Seconds of one load."""
        return self.config.load_seconds(self.before.seconds + max(0.0, self.end - self.started))

    def _rounds(self) -> None:
        if not self._wait(lambda: all(self._greeted(node) for node in self.live), STARTING, "start"):
            return
        while self.live and not self._over:
            number = self.told.rounds
            if not self._command(self._loads(number), self._work_seconds()):
                return
            collectives = self._collectives(number)
            if collectives and not self._command(collectives, 2 * self.load_seconds):
                return
            self.told.rounds += 1
            for node in self.live:
                self._turn[node].rounds += 1
                self.told.nodes[node].rounds += 1
                self._flush(node)

    @property
    def _over(self) -> bool:
        return time.monotonic() >= self.end or self._step is None

    def _greeted(self, node: str) -> bool:
        return node in self._heard and (self._turn[node].hello is not None)

    # --- what a round is made of

    def _loads(self, number: int) -> list[dict[str, Any]]:
        """Return the loads of a round, without the collectives; inputs take turns."""
        config, seconds, seed = self.config, self.load_seconds, number % SEEDS
        asked = [load for load in config.loads if load != "nccl"]
        made = []
        for load in ("dcgm", "matmul", "hbm", "copies", "peer", "memory", "storage"):
            if load not in asked or (load == "dcgm" and number):
                continue
            if load in checks.GPU_LOADS and not self.gpus:
                continue
            one: dict[str, Any] = {"load": load, "seconds": seconds, "seed": seed}
            if load == "dcgm":
                one |= {"level": config.dcgm, "timeout": config.dcgm_timeout}
            if load == "matmul":
                one |= {"seconds": 4 * seconds, "dtypes": list(config.dtypes)}
                if "cpu" in asked:  # while the GPUs multiply the CPUs have time
                    one["beside"] = [{"load": "cpu", "seconds": 4 * seconds, "seed": seed}]
            if load == "peer":
                one["pairs"] = _pairs(self.gpus, number)
            made.append(one)
        if "cpu" in asked and ("matmul" not in asked or not self.gpus):  # nothing that it could run beside
            made.append({"load": "cpu", "seconds": seconds, "seed": seed})
        return made

    def _work_seconds(self) -> float:
        first = self.config.dcgm_timeout if not self.told.rounds and "dcgm" in self.config.loads else 0.0
        return first + 12 * self.load_seconds

    def _collectives(self, number: int) -> list[dict[str, Any]]:
        if "nccl" not in self.config.loads:
            return []
        # ranks are numbered by GPU: a node that lacks one cannot take part
        able = [node for node in self.live if self.gpus and len(self.told.nodes[node].used) == self.gpus]
        alone = [(node,) for node in able]
        turns = circle(able) if len(able) > 1 else ()
        pairs = turns[number % len(turns)] if turns else ()
        return [self._collective(groups, number) for groups in (alone, pairs) if groups]

    def _collective(self, groups: Sequence[Sequence[str]], number: int) -> dict[str, Any]:
        made = []
        for members in groups:
            self._group += 1
            info = self._inventory.get(members[0])
            made.append({
                "members": list(members),
                "address": (info.address if info is not None else "") or members[0],
                # below 32768, where Linux begins to hand out ports by itself; nodes may share a host
                "port": 20000 + (self._allocation.job_id * 131 + self._group) % 12000,
                "ranks": [len(self.told.nodes[node].used) for node in members],
            })  # fmt: skip
        return {
            "load": "nccl", "seconds": self.load_seconds, "seed": number % SEEDS, "bytes": self.config.nccl_size,
            "groups": made,
        }  # fmt: skip

    def _command(self, loads: list[dict[str, Any]], seconds: float) -> bool:
        """Have all live nodes do these loads; False where the burn-in is over before they are done."""
        if not loads:
            return True
        assert self._step is not None
        self._commands += 1
        number = self._commands
        self._done[number] = set()
        self._step.send(json.dumps({"do": "round", "id": number, "round": self.told.rounds, "loads": loads}))
        patience = 2 * seconds + ROUND_SLACK
        if not self._wait(lambda: set(self.live) <= self._done[number], patience, f"command {number}"):
            return False
        for node, why in checks.lying(self.told).items():
            if node in self.live:
                self._leave(node, why)
        return True

    # --- listening

    def _wait(self, reached: Callable[[], bool], patience: float, what: str) -> bool:
        """Listen until something is reached; who keeps all waiting for longer than `patience` is lost."""
        assert self._step is not None
        limit = time.monotonic() + patience
        while not reached() or not self.live:
            if not self.live or time.monotonic() >= self.end:
                return False
            for task, line in self._step.lines(TICK):
                self._take(task, line)
                if reached():
                    break
            self._miss_the_silent()
            if self._step.ended and not reached():
                self._step_ended()
                return False
            if time.monotonic() > limit:
                self._lose_the_late(what, patience)
                limit = time.monotonic() + patience
            self._show(self.progress())
        return True

    def _take(self, task: int, line: str) -> None:
        try:
            said = jsontext.loads(line)
        except ValueError:
            return
        node = said.get("node") if isinstance(said, dict) else None
        if node not in self.told.nodes or "burnin" not in said:
            return
        self._task_of[task] = node
        self._heard[node] = time.monotonic()
        told, turn = self.told.nodes[node], self._turn[node]
        kind = said["burnin"]
        if kind == "hello":
            if self._step is not None:
                self._step.step_id = str(said.get("step", ""))
            turn.hello = told.hello = {
                key: value for key, value in said.items() if key not in ("burnin", "node")
            }
        elif kind == "load":
            turn.add(said)
            told.add(said)
            if checks.suspicious(self.told, node, self.config, self.elapsed):
                self._suspect.add(node)
            if not told.out and not told.lost and (why := checks.fatal(told)):
                self._leave(node, why)
        elif kind == "done":
            self._done.setdefault(int(said["id"]), set()).add(node)

    def _leave(self, node: str, why: str) -> None:
        """Take a node out; the others go on."""
        self.told.nodes[node].out = self._turn[node].out = why
        self._suspect.add(node)
        self._flush(node)
        if self._step is not None:
            self._step.send(json.dumps({"do": "leave", "nodes": [node]}))

    def _lose(self, node: str, why: str) -> None:
        self.told.nodes[node].lost = self._turn[node].lost = why
        self._flush(node)

    def _miss_the_silent(self) -> None:
        assert self._step is not None
        for named, task, rc, number in self._step.endings():
            node = named or self._task_of.get(task, "")
            if node in self.live:
                how = f"by signal {number}" if number else f"with {rc}"
                self._lose(node, f"its agent ended {how}")
        silence = max(self.config.silence, MISSED * self.config.beat)
        now = time.monotonic()
        for node in self.live:
            since = now - self._heard.get(node, self.started)
            if since > (silence if node in self._heard else STARTING):
                self._lose(node, f"silent for {format_duration(round(since))}")

    def _lose_the_late(self, what: str, patience: float) -> None:
        late = [
            node
            for node in self.live
            if (
                not self._greeted(node) if what == "start" else node not in self._done.get(self._commands, ())
            )
        ]
        for node in late:
            self._lose(node, f"{what} took it longer than {format_duration(round(patience))}")
            if self._step is not None:
                self._step.send(json.dumps({"do": "leave", "nodes": [node]}))

    def _step_ended(self) -> None:
        """The step ended as a whole, which no node's failure can bring about."""
        assert self._step is not None
        said = [line for line in self._step.stderr if line.strip()]
        words = said[-1] if said else f"srun exited {self._step.process.returncode}"
        if not self._heard:
            raise StepError(
                f"burn-in: no agent started: {words[:300]}", argv=self._step.argv[:3], stderr="\n".join(said)
            )
        self.told.ended = f"{EARLY}: the step ended: {words[:200]}"

    # --- the end

    def _flush(self, node: str) -> None:
        turn = self._turn[node]
        self._turn[node] = NodeTotals(node)
        self._tell(what="told", told=turn.as_dict(), seconds=round(self.elapsed, 1), rounds=self.told.rounds)

    def _wait_for_the_silent(self, step: StreamingStep) -> None:
        """Give nodes that miss signs of life at the end as long as any other time: who died last is no pass."""
        missed, now = MISSED * self.config.beat, time.monotonic()
        before = {node: self._heard.get(node, now) for node in self.live}
        before = {node: heard for node, heard in before.items() if now - heard > missed}
        try:
            while quiet := [node for node, heard in before.items() if self._heard[node] == heard]:
                for task, line in step.lines(TICK):
                    self._take(task, line)
                silent = time.monotonic() - min(before[node] for node in quiet)
                if silent > max(self.config.silence, missed):
                    first = min(quiet, key=before.__getitem__)
                    self._lose(first, f"silent for {format_duration(round(silent))} at the end")
                    del before[first]
        except KeyboardInterrupt:
            self.told.ended = f"{EARLY}: stopped by Ctrl-C"

    def _finish(self) -> None:
        if self._step is not None:
            self._step.send(json.dumps({"do": "stop"}))
            if not self.told.ended.startswith(EARLY):
                self._wait_for_the_silent(self._step)
            self._step.stop()
            for task, line in self._step.lines(0.2):  # what was on its way
                self._take(task, line)
        self.told.seconds = self.elapsed
        for node, turn in self._turn.items():
            if turn.ran or turn.problems or turn.hello:
                self._flush(node)
        self._tell(
            what="end", why=self.told.ended, seconds=round(self.told.seconds, 1), rounds=self.told.rounds,
            out={node: told.out for node, told in self.told.nodes.items() if told.out},
            lost={node: told.lost for node, told in self.told.nodes.items() if told.lost},
        )  # fmt: skip


def _pairs(gpus: int, number: int) -> list[tuple[int, int]]:
    """Return (from, to) of the GPUs of a node in this round: each pair both ways at once."""
    turns = circle([str(gpu) for gpu in range(gpus)]) if gpus > 1 else ()
    pairs = turns[number % len(turns)] if turns else ()
    return [way for a, b in pairs for way in ((int(a), int(b)), (int(b), int(a)))]
