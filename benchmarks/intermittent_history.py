"""How long `gpucluster history --intermittent` takes over a year: 365 runs x 1,000 nodes, one metric of the node and one of its 8 GPUs.

    PYTHONPATH=src python benchmarks/intermittent_history.py [RUNS NODES]

The rows are written into the tables of the history directly, as `History.add` stores them. Noise 3%; one GPU is slow in 3%, another
in 10% of its runs, each by 30%. Prints the seconds of CPU and the memory of the query, and what it found.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stamp import stamp

from pytest_gpucluster.cli.intermittent import show_intermittent
from pytest_gpucluster.core.finding import NODE
from pytest_gpucluster.core.part import gpu
from pytest_gpucluster.report.history.slow_series import intermittent
from pytest_gpucluster.report.history.store import History

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = 86_400.0
NOISE, SLOWER = 0.03, 0.7
FAULTS = {("gpu0007", 3): 0.03, ("gpu0042", 5): 0.1}  # share of the runs
METRICS = (("nccl.alone", "busbw", "GB/s", 470.0, (None,)), ("gpu.bandwidth", "hbm", "GB/s", 3900.0, range(8)))


class GeneratedHistory(History):
    """A history whose rows are made up."""

    def fill(self, runs: int, nodes: int) -> None:
        """Store so many runs of so many nodes."""
        dice = random.Random(1)
        with self._transaction():
            for run in range(runs):
                self._db.execute(
                    "INSERT INTO runs VALUES (?, ?, 'large', 0, ?, ?, 1, 1, 0, '', 0, 0, 0, 0, ?)",
                    (run + 1, f"night{run}", run * DAY, run * DAY, nodes),
                )
            for number in range(nodes):
                self._db.execute("INSERT INTO nodes VALUES (?, 'large', 0, ?)", (number + 1, f"gpu{number:04}"))
            for key, (number, check, name, unit, base, index) in enumerate(self._series_of(nodes)):
                part = NODE if index is None else gpu(index)
                self._db.execute(
                    "INSERT INTO series VALUES (?, ?, ?, ?, ?, ?, '', 0, ?)",
                    (key + 1, number + 1, check, name, unit, part.place, json.dumps(part.as_dict())),
                )
                share = FAULTS.get((f"gpu{number:04}", -1 if index is None else index), 0.0)
                self._db.executemany(
                    "INSERT INTO metrics VALUES (?, ?, ?, ?, 1)",
                    [
                        (key + 1, run * DAY, run + 1,
                         base * dice.lognormvariate(0.0, NOISE) * (SLOWER if dice.random() < share else 1.0))
                        for run in range(runs)
                    ],
                )  # fmt: skip

    @staticmethod
    def _series_of(nodes: int) -> Iterator[tuple[int, str, str, str, float, int | None]]:
        for number in range(nodes):
            for check, name, unit, base, parts in METRICS:
                for index in parts:
                    yield number, check, name, unit, base, index


def main() -> None:
    """Fill a history, and query it."""
    runs, nodes = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (365, 1000)
    with tempfile.TemporaryDirectory() as folder:
        history = GeneratedHistory(Path(folder, "history.sqlite"), create=True)
        history.fill(runs, nodes)
        ((values,),) = history.query("SELECT count(*) FROM metrics")
        before, began = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        table = intermittent(history, "large", most=runs)
        seconds, peak = time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        history.close()
    show_intermittent(table, "large", as_json=False)
    print(f"{values:,} values: {seconds:.1f} s of CPU, {peak / 1024:.0f} MB of memory ({began / 1024:.0f} MB before)")
    print(stamp())


if __name__ == "__main__":
    main()
