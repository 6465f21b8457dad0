"""A fabric by simulation: what groups would measure on nodes, GPUs, links and leaf switches of given health. Pure.

A group's bus bandwidth is that of its slowest part: its kind's healthy value times the worst factor among its
nodes, GPUs, the link between them and their leaves, times log-normal noise. A crashed or hung group takes its
members out of the rest of the step, as processes that have ended are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.kit.nccl.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.kit.nccl.pairing import Batch, Group, Round

_Name = TypeVar("_Name", str, frozenset[str])
ALONE, WITHIN, ACROSS, RAIL, LOCAL = 365.0, 95.0, 90.0, 47.0, 345.0  # GB/s, of a fabric of 400 Gb/s adapters


@dataclass
class LinkModel:
    """Health of the parts: 1.0 or absent is healthy, 0.5 is half the bandwidth.

    `network`: {node: factor}, seen in pairs only. `gpus`: {'node:rank': factor}, seen alone too. `adapters`:
    {'node:rank': factor}, seen in pairs. `links`: {two nodes: factor}. `bad_leaves`: {leaf: factor}, pairs across it.
    `crashes`, `hangs`: {node: when}, when is 'alone' (always) or 'pair' (only with another node).
    `shares`: {a part of network, adapters or links: share of the measurements in which it is not healthy}; else it always is not.
    `noise`: standard deviation of the logarithm. `traffic`: share of the groups of several nodes that other jobs slow meanwhile.
    """

    leaves: Mapping[str, str] = field(default_factory=dict)
    network: dict[str, float] = field(default_factory=dict)
    gpus: dict[str, float] = field(default_factory=dict)
    adapters: dict[str, float] = field(default_factory=dict)
    links: dict[frozenset[str], float] = field(default_factory=dict)
    bad_leaves: dict[str, float] = field(default_factory=dict)
    crashes: dict[str, str] = field(default_factory=dict)
    hangs: dict[str, str] = field(default_factory=dict)
    shares: dict[str | frozenset[str], float] = field(default_factory=dict)
    noise: float = 0.02
    traffic: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.deadlines = 0  # rounds that waited for a hung group

    def run(self, batch: Batch) -> list[Measurement]:
        """Measure the rounds of one step."""
        gone: dict[str, str] = {}
        return [measured for groups in batch for measured in self._round(groups, gone)]

    def _round(self, groups: Round, gone: dict[str, str]) -> Iterator[Measurement]:
        hung = False
        fallen: dict[str, str] = {}
        for members in groups:
            missing = [member for member in members if gone.keys() & {member, member.partition(":")[0]}]
            if missing:
                yield Measurement(members, problem=f"{missing[0]} had ended", skipped=True)
                continue
            problem = self._problem(members)
            hung |= problem.startswith("hung")
            fallen.update(dict.fromkeys(members, problem) if problem else {})
            yield Measurement(members, None if problem else self._busbw(members), problem)
        gone.update(fallen)
        self.deadlines += hung

    def _problem(self, members: Group) -> str:
        nodes = {member.partition(":")[0] for member in members}
        for what, faults in (("crashed", self.crashes), ("hung", self.hangs)):
            for node in nodes:
                if node in faults and (faults[node] == "alone" or len(nodes) > 1):
                    return f"{what}: the group of {' '.join(members)}"
        return ""

    def _busbw(self, members: Group) -> float:
        nodes = [member.partition(":")[0] for member in members]
        healthy, factors = (ALONE, [1.0]) if len(set(nodes)) == 1 else (self._healthy(nodes), self._way(nodes))
        if ":" in members[0]:
            healthy = LOCAL if len(set(nodes)) == 1 else RAIL
            parts = set(members)
        else:
            parts = {part for part in (*self.gpus, *self.adapters) if part.partition(":")[0] in nodes}
        factors += [self.gpus.get(part, 1.0) for part in parts]
        if len(set(nodes)) > 1:
            factors += [self._now(self.adapters, part) for part in parts]
        return healthy * min(factors) * self._random.lognormvariate(0.0, self.noise)

    def _healthy(self, nodes: list[str]) -> float:
        return ACROSS if len({self.leaves.get(node) for node in nodes}) > 1 else WITHIN

    def _way(self, nodes: list[str]) -> list[float]:
        """Return the factors of what lies between two nodes, the nodes' own network included."""
        leaves = {self.leaves.get(node, "") for node in nodes}
        crossed = [self.bad_leaves.get(leaf, 1.0) for leaf in leaves] if len(leaves) > 1 else []
        busy = self.traffic and self._random.random() < self.traffic
        return [
            self._random.uniform(0.5, 0.85) if busy else 1.0,
            self._now(self.links, frozenset(nodes)),
            *(self._now(self.network, n) for n in nodes),
            *crossed,
        ]

    def _now(self, of: Mapping[_Name, float], part: _Name) -> float:
        """Return the factor of a part in this measurement."""
        if part not in of:
            return 1.0
        share = self.shares.get(part, 1.0)
        return of[part] if share == 1.0 or self._random.random() < share else 1.0
