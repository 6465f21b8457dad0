"""The cause that the GPUs of a node give for a failure of any suite: one is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core import given
from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.fact import of_fleet
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.too_few import TOO_FEW
from pytest_gpucluster.suites.gpu.missing_gpus import MissingGpus, missing_gpus, usual_buses, with_missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.core.part import Part
    from pytest_gpucluster.run.session import ClusterSession


def with_known_cause(verdict: Verdict, session: ClusterSession, own: str) -> Verdict:
    """Return a verdict that missing GPUs explain with them as its cause; `own`: the node of the item, '' without one.

    A run without facts of GPUs reads them from all nodes once a program reports too few, at no other failure.
    """
    failed = verdict.outcome is Outcome.FAILED
    few = not {verdict.reason_code, *(it.code for it in verdict.findings)}.isdisjoint(TOO_FEW)
    if not few and not (failed and session.facts.is_requested(nvidia_smi.GPUS)):
        return verdict
    parts = {name for it in verdict.findings for name in _names(it.part)}
    named = [own] if own else [node for node in session.nodes if node in parts]
    for node in named or session.nodes:
        found = _missing_of(session, node)
        if found is None:
            continue
        found = found if own else replace(found, cause=f"{node}: {found.cause}")
        if not failed:
            return replace(verdict, reason=f"{verdict.reason}; {found.cause}")
        changed = with_missing(verdict, found)
        if changed is not verdict:
            return changed
    return verdict


def _names(part: Part) -> Iterator[str]:
    yield from (part.name, *part.nodes, *(_names(part.of) if part.of else ()))


def _missing_of(session: ClusterSession, node: str) -> MissingGpus | None:
    profile = session.nodes[node].profile.gpu
    if profile is None:
        return None
    try:
        gpus = session.facts(node, nvidia_smi.GPUS)
    except GpuClusterError:
        return None
    if sum(not gpu.lost for gpu in gpus) >= profile.count:
        return None
    return missing_gpus(gpus, profile.count, session.made.once(_USUAL_BUSES, lambda _: [session]))


_USUAL_BUSES = of_fleet(given.session)(lambda session: usual_buses(session.facts.of_fleet(nvidia_smi.GPUS)))
