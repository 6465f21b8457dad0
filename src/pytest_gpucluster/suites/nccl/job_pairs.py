"""Pairs of the nodes of a job, measured by its gates together: `gpucluster gate --context job --fabric 20s`.

Each gate is one task of a step, and starts one rank of the bundled collective payload. All of them plan the same rounds; each prints
the pairs that its rank has measured, and `--collect` finds the bad nodes as the nccl suite does.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.kit.framework.payload_step import COLLECTIVE, command
from pytest_gpucluster.kit.nccl.localization import Localiser
from pytest_gpucluster.kit.nccl.measurement import Measurement
from pytest_gpucluster.suites.nccl.steps import read_rounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpucluster.cluster.transport.base import Transport

SIZES = {"cuda": 64 << 20, "cpu": 1 << 20}  # bytes of a message
PAIR = 2
MIN_DISTANCE = 0.5  # of the median: the fabric is in use by other jobs, and one message is measured
SHOWN = 120  # characters of a problem
_LINE = re.compile(r"(?:\s*\d+: )?\S+: pair (\S+) (\S+): (?:(?P<rate>[\d.]+) GB/s|(?P<problem>.*))")


def rounds(nodes: Sequence[str]) -> list[list[list[str]]]:
    """Return the rounds of pairs of these nodes: each node has two partners, or as many as there are."""
    batch = Localiser(nodes, alone=False).next_rounds() if len(nodes) >= PAIR else ()
    return [[list(group) for group in one] for one in batch]


def measure(
    nodes: Sequence[str], seconds: float, python: str, device: str, transport: Transport
) -> Iterator[str]:
    """Yield a line for each pair that the rank of this task has measured, or why there is none."""
    if len(nodes) < PAIR:
        return
    limits = ("--deadline", f"{seconds / 2:g}", "--rendezvous", f"{seconds:g}")
    argv = command(
        python, COLLECTIVE, "rounds", "-s", str(SIZES[device]), "--device", device, *limits, "--schedule", "-"
    )
    try:
        done = transport.run(argv, timeout=2 * seconds, input=json.dumps(rounds(nodes)))
    except TransportError as error:
        yield f"note: no pair was measured: {one_line(error, SHOWN)}"
        return
    found = [measured for _, measured in read_rounds(done.stdout)]
    for one in found:
        fine = one.busbw is not None and not one.problem
        result = f"{one.busbw:.2f} GB/s" if fine else one_line(one.problem, SHOWN)
        yield f"pair {' '.join(one.members)}: {result}"
    if not found and done.rc != 0:
        yield f"note: no pair was measured: {one_line(done.stderr.strip().rpartition(chr(10))[2], SHOWN) or f'exit {done.rc}'}"


def bad_nodes(lines: Iterable[str], nodes: Sequence[str]) -> dict[str, str]:
    """Return {bad node: why} from the lines of all gates; a slow pair whose bad end is unknown names no node."""
    found = {}
    for line in lines:
        if match := _LINE.fullmatch(line):
            members, busbw = (match[1], match[2]), float(match["rate"]) if match["rate"] else None
            if set(members) <= set(nodes):
                found[frozenset(members)] = Measurement(members, busbw, match["problem"] or "")
    if len(nodes) < PAIR or not found:
        return {}
    plan = Localiser(nodes, alone=False, min_distance=MIN_DISTANCE)
    plan.next_rounds()
    plan.feed(found.values())
    verdict = plan.verdict()
    return {node: f"pairs: {verdict.why.get(node, 'slow with its partners')}" for node in verdict.bad_nodes}
