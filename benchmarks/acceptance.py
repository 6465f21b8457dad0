"""How long the acceptance of a fleet takes, and which part of it takes longest: by the plans that the suites make.

    PYTHONPATH=src python benchmarks/acceptance.py [NODES...]

Counted are items, steps, rounds and readings; minutes are these numbers times what each took where it was measured, see the constants.
Localisation runs against the link model, healthy and with one fault. What all nodes do at the same time counts once.
Not in it: the wait for nodes, the start of containers, and the start of NCCL on more than 8 GPUs, of which no measurement is known here.
"""

from __future__ import annotations

import sys
from typing import Any

from link_model import LinkModel
from localisation import fabric, took
from stamp import stamp
from tabulate import tabulate

SIZES = (16, 64, 256, 1000, 10_000)
# seconds on a real H200, all default suites but nccl: the whole run of one node less its items (2026-11-30)
ANSWERS = 9.0
ITEMS, ITEM = 120, 0.55e-3  # of one node, there; seconds of CPU of each: controller.py
# seconds of one step with torch and NCCL: localisation.py; all sizes from 1 MiB to 4 GiB, 21 times, on 8 H200
STEP, SWEEP = 5.3, 1.8
COLLECTIVES = 1
# storage: most seconds of a file system: rates together, alone and random, fsync, metadata, integrity, visibility, locks
FILE_SYSTEM, FILE_SYSTEMS = 75.0, 2
# ibfabric: seconds per 10,000 ports of a discovery, of which the suite needs three (links, twice the counters), and between the counters
DISCOVERY, DISCOVERIES, BETWEEN = 10.0, 3, 5.0
PORTS, MODULE = (
    9,
    1.0,
)  # of a node with its share of the switches; seconds of ethtool for each of 8 modules, all nodes at once


def parts(nodes: list[str], model: LinkModel) -> dict[str, float]:
    """Return seconds by part of the acceptance."""
    size = len(nodes)
    return {
        "answers of the nodes": ANSWERS,
        "judging and reports": size * ITEMS * ITEM,
        "nccl alone and whole": (1 + COLLECTIVES) * (STEP + SWEEP),
        "nccl pairs": took(nodes, model),
        "storage": FILE_SYSTEM * FILE_SYSTEMS,
        "ibfabric": size * PORTS / 10_000 * DISCOVERY * DISCOVERIES + BETWEEN + 8 * MODULE,
    }


def row(size: int) -> list[object]:
    """Return a row: minutes of a healthy fleet and with faults, node-hours, and the two longest parts."""
    nodes, leaves = fabric(size)
    faults: tuple[dict[str, Any], ...] = (
        {},
        {"network": {nodes[size // 3]: 0.5}},
        {"links": {frozenset(nodes[:2]): 0.5}},
        {"bad_leaves": {"leaf0": 0.5}},
    )
    found = [parts(nodes, LinkModel(leaves=leaves, seed=size, **fault)) for fault in faults]
    seconds = [sum(it.values()) for it in found]
    longest = sorted(found[0], key=found[0].__getitem__, reverse=True)[:2]
    shares = "; ".join(f"{name} {found[0][name] / seconds[0]:.0%}" for name in longest)
    return [f"{size:,}", *(f"{it / 60:.1f}" for it in seconds), f"{size * seconds[0] / 3600:,.1f}", shares]


def main() -> None:
    """Print the table."""
    sizes = [int(it) for it in sys.argv[1:]] or SIZES
    head = ["nodes", "min: healthy", "one sick node", "one slow link", "one bad leaf", "node-hours", "longest"]
    print(tabulate([row(size) for size in sizes], head, disable_numparse=True))
    print(stamp())


if __name__ == "__main__":
    main()
