"""The lines of the gates of a job, one for each node: which nodes are bad, and srun's option that leaves them out. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.sanitize import printable
from pytest_gpucluster.drain.reason import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Together = Callable[[Sequence[str], Sequence[str]], Mapping[str, str]]

# a line may have srun's label before it
_LINE = re.compile(rf"(?:\s*\d+: )?(?P<node>[A-Za-z0-9_][A-Za-z0-9_.-]*): {PREFIX}(?P<text>.*)")
FIT = " OK"
SILENT = "its gate printed nothing"


@dataclass(frozen=True)
class Collected:
    """{bad node: why}, and the nodes that are fit."""

    bad: Mapping[str, str]
    fit: Sequence[str]

    @property
    def option(self) -> str:
        """Srun's option, '' where every node is fit."""
        return f"--exclude={hostlist.fold(self.bad)}" if self.bad else ""


def collect(lines: Iterable[str], expected: Sequence[str], together: Iterable[Together] = ()) -> Collected:
    """Read what gates printed; an expected node without a line, or with one bad line, is bad.

    Without expected nodes those with a line are judged. `together`: what finds bad nodes by what the gates have measured together.
    """
    read = [printable(line.rstrip("\n")) for line in lines]
    known: dict[str, str] = {}
    for found in filter(None, map(_LINE.fullmatch, read)):
        if known.get(found["node"], FIT).startswith(FIT):
            known[found["node"]] = found["text"]
    nodes = list(dict.fromkeys((*expected, *known)))
    bad = {node: known.get(node, SILENT).strip() for node in nodes if not known.get(node, "").startswith(FIT)}
    for bad_nodes in together:
        bad = {**bad_nodes(read, nodes), **bad}
    return Collected(bad, [node for node in nodes if node not in bad])
