"""Record what a checkout answers in a fixed set of sandbox runs, and compare two such records.

    tools/compare_runs.py record CHECKOUT FOLDER   # one file of lines per run; CHECKOUT has a .venv
    tools/compare_runs.py compare BEFORE AFTER     # exit 1 where items, outcomes, findings, metrics or JUnit names differ

Numbers are masked: measured values differ from run to run, and names of nodes stay apart by their place in the id.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.part import Part
from pytest_gpucluster.report.machine.events import read_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FAULTS = ("gpu_missing gpu[02]", "xid gpu[03]", "nvlink_down gpu[04]", "hca_missing gpu[05]", "drained gpu[06]")
# name: (nodes, faults, arguments of pytest)
RUNS: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "healthy": (4, (), ()),
    "faults": (6, FAULTS, ("--drain=apply",)),
    "xdist": (6, FAULTS, ("-n", "2")),
    "ssh": (4, (), ("--set=access=ssh",)),
    "large": (60, FAULTS, ("-m", "os or gpu or slurm or fabric or versions")),
}
NUMBER = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+(?:\.\d+)?")
FOLDERS = re.compile(r"(?:/[\w.#+-]+)+/(?=[\w.#+-])")


def masked(text: object) -> str:
    """Return a text without numbers and folders."""
    return NUMBER.sub("#", FOLDERS.sub("", " ".join(str(text).split())))


def lines_of(event: dict[str, Any]) -> Iterator[str]:
    """Yield one line for the outcome of an item, and one for each verdict, finding and metric: words are none of them."""
    item = event["nodeid"].rpartition("/")[2]
    yield f"{item} {event['outcome']}"
    for verdict in event.get("verdicts", ()):
        yield f"{item} verdict {verdict['check']} {verdict['outcome']} {verdict['action']}"
        for kind in ("findings", "advisories"):
            for found in verdict[kind]:
                part = Part.read(found["part"]).short
                yield f"{item} {kind} {found['code']} {masked(part)} {found.get('action', '')}"
    metrics = {f"{masked(it['name'])} {it['unit']}" for it in event.get("metrics", ())}
    yield from (f"{item} metric {metric}" for metric in sorted(metrics))


def act_of(event: dict[str, Any]) -> str:
    """Return another event: its name, and what a drain did to which node."""
    return masked(event["event"]) + "".join(f" {event[key]}" for key in ("node", "result") if event.get(key))


def record_run(checkout: Path, name: str, folder: Path) -> None:
    """Run pytest against a sandbox of its own and write what came out."""
    nodes, faults, arguments = RUNS[name]
    with tempfile.TemporaryDirectory(prefix="gpucluster-compare.") as scratch:
        programs = checkout / ".venv/bin"
        env = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin",
            "GPUCLUSTER_SANDBOX": f"{scratch}/sandbox",
        }

        def command(*argv: str) -> None:
            subprocess.run(argv, env=env, cwd=checkout, check=True, stdout=subprocess.DEVNULL)

        command("gpucluster", "sandbox", "up", "--nodes", str(nodes))
        try:
            for fault in faults:
                command("gpucluster", "sandbox", "fault", *fault.split())
            reports = f"--report-dir={scratch}/reports"
            subprocess.run(
                ["pytest", "--cluster=sandbox", "-q", "-p", "no:cacheprovider", reports, *arguments],
                env=env,
                cwd=checkout,
                check=False,
                stdout=subprocess.DEVNULL,
            )
        finally:
            command("gpucluster", "sandbox", "down")
        (log,) = Path(scratch, "reports").glob("2*/events.jsonl")
        events = read_events(log)
        found = [
            line for event in events for line in (lines_of(event) if event["event"] == "result" else [act_of(event)])
        ]
        for case in ET.parse(log.parent / "junit.xml").iter("testcase"):
            parts = sorted(f"{part.tag} {part.get('type')}" for part in case if part.tag != "properties")
            found.append(f"junit {case.get('classname')} {case.get('name')} {parts}")
        (folder / name).write_text("\n".join(sorted(found)) + "\n")


def compare(before: Path, after: Path, names: Iterable[str]) -> int:
    """Print the lines that differ; return how many."""
    count = 0
    for name in names:
        old, new = ((side / name).read_text().splitlines() for side in (before, after))
        changed = [
            line for line in difflib.unified_diff(old, new, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")
        ]
        print(f"{name}: {len(old)} lines before, {len(new)} after, {len(changed)} differ", *changed, sep="\n")
        count += len(changed)
    return count


def main() -> int:
    """Record or compare."""
    what, first, second = sys.argv[1:4]
    names = sys.argv[4:] or RUNS
    if what == "compare":
        return 1 if compare(Path(first), Path(second), names) else 0
    Path(second).mkdir(parents=True, exist_ok=True)
    for name in names:
        record_run(Path(first).resolve(), name, Path(second))
    return 0


if __name__ == "__main__":
    sys.exit(main())
