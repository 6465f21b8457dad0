"""Judge the decisions of tests/corpus/decisions: kernel lines, whole logs and errors of DCGM (see the README there).

Each log is folded by the probe's own command and judged by `gpu.xid` and `os.kernel_log`; the graver of the two counts.
Many decisions are judged in one process: the recorded machine is made once, only its log and its state change.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import corpus_steps
from corpus_cases import Bench, Case, Machine, Result, Section, differing

from pytest_gpucluster.config import load_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

DECISIONS = Path(__file__).parent / "corpus/decisions"
CHECKS = ("gpu.xid", "os.kernel_log")
NODE = "gpu01"
_BOOT = "[    0.000000] Linux version 5.15.0-1061-nvidia (buildd@lcy02) #62-Ubuntu SMP\n"
# what a line begins with where it was quoted as dmesg, journalctl or /dev/kmsg print it
_STAMPED = re.compile(r"\[|<\d+>|\d+,\d+,\d+,|kern +:|[A-Z][a-z]{2} [ \d]\d \d\d:")
_TOGETHER = 20  # quiet logs that are judged as one; each is judged alone where the whole is not quiet


@dataclass(frozen=True)
class Decision:
    """A log and the right verdict; `action` of a failure."""

    name: str
    lines: tuple[str, ...]
    verdict: str
    action: str
    why: str


def rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of one file of decisions."""
    return [json.loads(line) for line in (DECISIONS / f"{name}.jsonl").read_text().splitlines()]


def of_lines() -> Iterator[Decision]:
    """Yield a decision for each row of kernel-lines.jsonl, or for each of its lines where they stand alone."""
    for row in rows("kernel-lines"):
        logs = [[line] for line in row["lines"]] if row.get("each") else [row["lines"]]
        for at, lines in enumerate(logs):
            number = row["id"][at if row.get("each") else 0]
            yield Decision(
                f"line {number}", tuple(lines), row["verdict"], row.get("action", ""), row["source"]
            )


def of_logs() -> Iterator[Decision]:
    """Yield a decision for each kernel log of kernel-logs.jsonl."""
    for row in rows("kernel-logs"):
        if "verdict" in row:
            ((_, text),) = row["sections"]
            lines = tuple(text.splitlines())
            yield Decision(row["id"], lines, row["verdict"], row.get("action", ""), row["source"])


class Judge:
    """One recorded machine whose kernel log is replaced for each decision."""

    def __init__(self, folder: Path) -> None:
        case = _case(())
        self._machine = Machine(case, NODE, folder / NODE)
        self._folder = folder
        file = folder / "corpus.yaml"
        file.write_text(f"nodes: {NODE}\nprofile: generic\n")
        self._cluster = load_cluster(str(file))

    def results(self, lines: Iterable[str]) -> list[Result]:
        """Return how the checks end on a node whose kernel log holds these lines."""
        text = _BOOT + "".join(f"{_stamped(line, at)}\n" for at, line in enumerate(lines))
        self._machine.replace("dmesg", text)
        bench = Bench(_case(()), self._folder, machines={NODE: self._machine})
        bench.cluster = self._cluster
        return [bench.judge(NODE, check) for check in CHECKS]

    def differences(self, decisions: Sequence[Decision]) -> Iterator[tuple[Decision, str]]:
        """Yield each decision that the checks do not share, and what they say."""
        quiet = [decision for decision in decisions if decision.verdict == "quiet"]
        for at in range(0, len(quiet), _TOGETHER):
            part = quiet[at : at + _TOGETHER]
            together = list(itertools.chain.from_iterable(decision.lines for decision in part))
            if _said(self.results(together))[0] != "quiet":
                yield from self._alone(part)
        yield from self._alone([decision for decision in decisions if decision.verdict != "quiet"])

    def _alone(self, decisions: Iterable[Decision]) -> Iterator[tuple[Decision, str]]:
        for decision in decisions:
            results = self.results(decision.lines)
            if not _fits(results, decision.verdict, decision.action):
                yield decision, "; ".join(str(result) for result in results)


def _case(sections: tuple[Section, ...]) -> Case:
    return Case(DECISIONS / "decisions.txt", {"expect": {}}, (Section("", "dmesg", 0, False, ""), *sections))


def _stamped(line: str, seconds: int) -> str:
    return line if _STAMPED.match(line) else f"[{100 + seconds:5}.000000] {line}"


def _fits(results: Iterable[Result], verdict: str, action: str) -> bool:
    return _said(results) == (verdict, action if verdict == "failed" else "")


def _said(results: Iterable[Result]) -> tuple[str, str]:
    """Return (quiet, warning, failed or error; the action of a failure)."""
    results = list(results)
    for result in results:
        if result.outcome == "failed":
            assert result.verdict is not None
            return "failed", result.verdict.action.value
    for outcome in ("error", "not checked"):
        if any(result.outcome == outcome for result in results):
            return outcome, ""
    warned = any(result.verdict and result.verdict.advisories for result in results)
    return ("warning" if warned else "quiet"), ""


def differences(part: int = 0, parts: int = 1) -> tuple[int, list[str]]:
    """Judge one of `parts` parts of all decisions; return their number, and a line for each that the checks do not share."""
    kernel = [*of_lines(), *of_logs()][part::parts]
    others = [row for row in rows("kernel-logs") if "expect" in row][part::parts]
    errors = rows("dcgm-errors")[part::parts]
    with tempfile.TemporaryDirectory() as folder:
        found = [
            f"{it.name} ({it.why}) must be {it.verdict} {it.action}: {it.lines[-1][:120]}; it is {said}"
            for it, said in Judge(Path(folder)).differences(kernel)
        ]
    for row in others:
        with tempfile.TemporaryDirectory() as folder:
            found += [f"{row['id']}: {said}" for said in _of_recording(row, Path(folder))]
    with tempfile.TemporaryDirectory() as folder:
        found += _of_dcgm(errors, Path(folder))
    return len(kernel) + len(others) + len(errors), found


def _of_recording(row: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yield each wrong verdict on the recorded output of other commands; `ok` is any end but a failure."""
    sections = tuple(_section(title, text) for title, text in row["sections"])
    head = {"expect": {}, "profile": row.get("profile", "generic")}
    bench = Bench(Case(DECISIONS / "decisions.txt", head, sections), folder)
    for check, wanted in row["expect"].items():
        result = bench.judge(NODE, check)
        if wanted == "ok" or not wanted:
            if result.outcome in ("failed", "error") and wanted:
                yield f"{check} must not fail; it ended as {result}"
        else:
            for difference in differing(result, wanted):
                yield f"{check} {difference}; it ended as {result}"


def _section(title: str, text: str) -> Section:
    what, _, code = title.partition(" [exit ")
    return Section("", what, int(code.rstrip("]") or 0), False, text)


def _of_dcgm(errors: Iterable[dict[str, Any]], folder: Path) -> Iterator[str]:
    file = folder / "corpus.yaml"
    file.write_text(f"nodes: {NODE}\nprofile: generic\n")
    cluster = load_cluster(str(file))
    for row in errors:
        verdict = corpus_steps.judge("burnin.dcgm", NODE, [_diagnostic(row)], cluster)
        result = Result(verdict.outcome.value, verdict)
        if not _fits([result], row["verdict"], row.get("action", "")):
            wanted = f"{row['verdict']} {row.get('action', '')}"
            yield f"DCGM {row['id']} {row['name']} must be {wanted}; it is {result}"


def _diagnostic(row: dict[str, Any]) -> Section:
    """Return what `dcgmi diag -j` of DCGM 4 prints for one error on GPU 5."""
    message = re.sub(r"%[-.#\d]*(?:l*[dufx]|zu|hu|\.?\d*e)", "5", row["message"]).replace("%s", "x")
    result: dict[str, Any] = {
        "entity_group": "GPU",
        "entity_group_id": 1,
        "entity_id": 5,
        "status": row["status"],
    }
    if row["id"]:
        result["warnings"] = [
            {
                "warning": message or row["name"],
                "error_id": row["id"],
                "error_category": row["number"],
                "error_severity": row["severity"],
            }
        ]
    tests = [{"name": "software", "results": [result]}]
    text = {
        "DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]},
        "metadata": {"DCGM Version": "4.6.0", "Driver Version Detected": "580.95.05"},
    }
    return Section("", "dcgmi *", 226 if row["status"] == "Fail" else 0, False, json.dumps(text, indent=1))
