"""One message about a run that changed something, for people and programs. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.sanitize import printable, shorten
from pytest_gpucluster.report.describe import folded, labelled
from pytest_gpucluster.report.history.run_snapshot import node_acts
from pytest_gpucluster.report.proof import CLUSTER
from pytest_gpucluster.report.result import RED
from pytest_gpucluster.report.terminal.last_screen import counts
from pytest_gpucluster.report.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.report.run_model import Run

MAX_LINES = 20  # of the text, besides the verdict
MAX_LINE = 300  # characters


def notice(run: Run, earlier: Run | None, folder: str) -> dict[str, Any] | None:
    """Return the message of a run, None where nothing changed since the earlier one.

    Only what both runs judged is compared, so that the rerun of one check heals no other. Without an earlier run
    everything is new. Keys: cluster, run, simulated, verdict (accepted, not accepted, ...), text, new, healed and acts
    (lists of lines), report (folder).
    """
    before = {(it.node, it.check): it for it in earlier.results} if earlier is not None else {}
    new: dict[str, dict[str, str]] = defaultdict(dict)
    healed: dict[str, dict[str, str]] = defaultdict(dict)
    for result in run.results:
        was = before.get((result.node, result.check))
        if result.outcome in RED and (was is None or was.outcome not in RED):
            new[result.check][result.node] = result.brief
        elif result.outcome == "passed" and was is not None and was.outcome in RED:
            healed[result.check][result.node] = ""
    acts = [f"{act.node} {act.result}: {act.reason}".rstrip(": ") for act in node_acts(run)]
    if earlier is not None and not (new or healed or acts):
        return None
    judged = judge(run)
    found = {"new": list(_lines(new)), "healed": list(_lines(healed)), "acts": acts}
    found = {name: [shorten(printable(line), MAX_LINE) for line in lines] for name, lines in found.items()}
    cluster, simulated = run.start.get("cluster"), run.start.get("simulated") is not False
    first = f"{labelled(cluster, simulated=simulated)}: {judged.title}: {judged.nodes}"
    return {
        "cluster": cluster,
        "run": run.start.get("run"),
        "simulated": simulated,
        "verdict": judged.title.lower(),
        "text": "\n".join([first, counts(run), *_text(found), f"report: {folder}"]),
        **{name: lines[:MAX_LINES] for name, lines in found.items()},
        "report": folder,
    }


def _lines(checks: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """Yield one line for each check, with its nodes and the message of the first."""
    for check, nodes in sorted(checks.items()):
        message = next(iter(nodes.values()))
        yield f"{check} on {folded(node or CLUSTER for node in nodes)}{': ' if message else ''}{message}"


def _text(found: Mapping[str, list[str]]) -> list[str]:
    lines = [f"{name}: {line}" if name != "acts" else line for name, lines in found.items() for line in lines]
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], *([f"and {more} more: see the report"] if more > 0 else [])]
