"""How many nodes may be out of service at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How many nodes of a partition gpucluster may drain at a time: a number, or percent of its nodes."""

    count: int | None = None
    percent: float | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read '3' or '10%'; ValueError for anything else."""
        match = re.fullmatch(r"(\d{1,6})|(100(?:\.0+)?|\d{1,2}(?:\.\d+)?)%", text.strip(), re.ASCII)
        if match is None:
            raise ValueError(f"must be a number of nodes or percent of the partition like 10%, not {text!r}")
        count, percent = match.groups()
        return cls(int(count)) if count else cls(percent=float(percent))

    def of(self, nodes: int) -> int:
        """Return how many nodes may be drained: a percentage is rounded down, but to no less than 1."""
        if self.count is not None:
            return self.count
        return max(1, int(nodes * self.percent / 100 + 1e-9)) if self.percent and nodes else 0

    def __str__(self) -> str:
        return str(self.count) if self.count is not None else f"{self.percent:g}%"
