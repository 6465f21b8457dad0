"""Comparison of a node with the other nodes of its group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.finding import measure
from pytest_gpucluster.core.majority import Norm, differs, near
from pytest_gpucluster.core.majority import norm as fleet_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.config.models import Group
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.common_cause import PeerGroup
    from pytest_gpucluster.core.finding import Measure
    from pytest_gpucluster.core.part import Part

T = TypeVar("T")


@dataclass(frozen=True)
class Peers(Generic[T]):
    """The facts of all nodes that could provide them, and the norm of each group, computed once."""

    facts: Mapping[str, T]
    _norms: dict[tuple[str, str, float], Norm[Any]] = field(default_factory=dict, compare=False)

    def of(self, group: PeerGroup | Group, attribute: str = "", tolerance: float = 0.0) -> Norm[Any]:
        """Return the norm of an attribute of the facts, or of the facts; values within `tolerance` count as equal."""
        key = (group.nodes, attribute, tolerance)
        if key not in self._norms:
            known = {name: self.facts[name] for name in group.names if name in self.facts}
            values: dict[str, Any] = known
            if attribute:
                values = {name: getattr(value, attribute) for name, value in known.items()}
            self._norms[key] = norm(near(values, tolerance) if tolerance else values)
        return self._norms[key]


def norm(values: Mapping[str, T]) -> Norm[T]:
    """Return the norm of {node: value} of a group."""
    return fleet_norm(values.items(), "nodes of its group")


def alike(
    part: Part | str,
    value: T,
    peers: Norm[Any],
    *,
    worse: Callable[[T, T], bool] = differs,
    shown: Callable[[T], Measure] = measure,
    harmless: str = "",
) -> Judgement:
    """Judge that a value is not worse than that of most nodes; not applicable without other nodes."""
    if peers.absent:
        yield NotApplicable(peers.absent)
    yield from peers.judge(part, value, worse=worse, shown=shown, harmless=harmless)
