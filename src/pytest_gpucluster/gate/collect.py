"""The rows of the gates of a job, one for each node: which nodes are bad, and srun's option that leaves them out. Pure.

A gate prints a row of JSON beside its line for people: {"gate": "gpu01", "fit": true, "why": "..."}. srun may label it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import hostlist, safe_json
from pytest_gpucluster.core.sanitize import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Row = Mapping[str, Any]
    Together = Callable[[Sequence[Row], Sequence[str]], Mapping[str, str]]

_LABELLED = re.compile(r"(?:\s*\d+: )?(\{.*\})\s*")
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
GATE = "gate"  # the key of a row that holds the node
MAX_WHY = 500  # characters
SILENT = "its gate printed no result"


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
    """Read what gates printed; an expected node without a row, or with one that does not state that it is fit, is bad.

    Without expected nodes those with a row are judged. `together`: what finds bad nodes by what the gates have measured together.
    """
    rows = list(filter(None, map(_row, lines)))
    known: dict[str, str] = {}  # '': fit
    for row in rows:
        if not known.get(node := safe_json.text(row.get(GATE))) and _NODE.fullmatch(node):
            why = one_line(printable(safe_json.text(row.get("why"))), MAX_WHY)
            known[node] = "" if row.get("fit") is True else why or SILENT
    nodes = list(dict.fromkeys((*expected, *known)))
    bad = {node: why for node in nodes if (why := known.get(node, SILENT))}
    for bad_nodes in together:
        bad = {**bad_nodes(rows, nodes), **bad}
    return Collected(bad, [node for node in nodes if node not in bad])


def _row(line: str) -> Row | None:
    found = _LABELLED.fullmatch(line)
    try:
        return safe_json.as_dict(safe_json.loads(found[1])) if found else None
    except ValueError:
        return None
