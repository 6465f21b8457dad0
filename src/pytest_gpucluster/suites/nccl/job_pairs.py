"""Pairs of the nodes of a job, measured by its gates together: `gpucluster gate --context job --fabric 20s`.

Each gate is one task of a step, and starts one rank of the bundled collective payload. All of them plan the same rounds; each prints
the pairs that its rank has measured, and `--collect` finds the bad nodes as the nccl suite does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.kit.framework.payload_step import COLLECTIVE, command
from pytest_gpucluster.kit.nccl.localization import Localiser
from pytest_gpucluster.kit.nccl.measurement import Measurement
from pytest_gpucluster.kit.nccl.nccl_failures import rank_failures
from pytest_gpucluster.suites.nccl.steps import read_rounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.transport.base import Transport

SIZES = {"cuda": 64 << 20, "cpu": 1 << 20}  # bytes of a message
PAIR = 2
MIN_DISTANCE = 0.5  # of the median: the fabric is in use by other jobs, and one message is measured
SHOWN = 120  # characters of a problem
UNMEASURED = "note: no pair was measured"


def rounds(nodes: Sequence[str]) -> list[list[list[str]]]:
    """Return the rounds of pairs of these nodes: each node has two partners, or as many as there are."""
    batch = Localiser(nodes, alone=False).next_rounds() if len(nodes) >= PAIR else ()
    return [[list(group) for group in one] for one in batch]


def measure(nodes: Sequence[str], seconds: float, python: str, device: str, transport: Transport) -> Iterator[str]:
    """Yield a row for each pair that the rank of this task has measured, or why there is none."""
    if len(nodes) < PAIR:
        return
    limits = ("--deadline", f"{seconds / 2:g}", "--rendezvous", f"{seconds:g}")
    argv = command(
        python, COLLECTIVE, "rounds", "-s", str(SIZES[device]), "--device", device, *limits, "--schedule", "-"
    )
    try:
        done = transport.run(argv, timeout=2 * seconds, input=json.dumps(rounds(nodes)))
    except TransportError as error:
        yield f"{UNMEASURED}: {one_line(error, SHOWN)}"
        return
    found = [measured for _, measured in read_rounds(done.stdout)]
    for one in found:
        problem = one_line(one.problem, SHOWN)
        yield json.dumps({"pair": one.members, "busbw_gb_s": one.busbw, "problem": problem})
    if not found and done.rc != 0:
        printed = rank_failures(done.stderr).shown.strip().rpartition("\n")[2]
        yield f"{UNMEASURED}: {one_line(printed, SHOWN) or f'exit {done.rc}'}"


def bad_nodes(rows: Iterable[Mapping[str, Any]], nodes: Sequence[str]) -> dict[str, str]:
    """Return {bad node: why} from the rows of all gates; a slow pair whose bad end is unknown names no node."""
    found = {}
    for row in rows:
        members = tuple(map(safe_json.text, safe_json.as_list(row.get("pair"))))
        if len(members) == PAIR and set(members) <= set(nodes):
            busbw, problem = safe_json.finite(row.get("busbw_gb_s")), safe_json.text(row.get("problem"))
            found[frozenset(members)] = Measurement(members, busbw, problem)
    if len(nodes) < PAIR or not found:
        return {}
    plan = Localiser(nodes, alone=False, min_distance=MIN_DISTANCE)
    plan.next_rounds()
    plan.feed(found.values())
    verdict = plan.verdict()
    return {node: f"pairs: {verdict.why.get(node, 'slow with its partners')}" for node in verdict.bad_nodes}
