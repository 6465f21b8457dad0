"""Judge the decisions of tests/corpus/decisions: kernel lines, whole logs and errors of DCGM (see the README there).

Each log is folded by the probe's own command and judged by `gpu.xid` and `os.kernel_log`; the graver of the two counts.
Many decisions are judged in one process: the recorded machine is made once, only its log and its state change.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import corpus_steps
from corpus_cases import Bench, Case, Machine, Result, Section, differing, load

from pytest_gpucluster.config import load_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

DECISIONS = Path(__file__).parent / "corpus/decisions"
CHECKS = ("gpu.xid", "os.kernel_log")
NODE = "gpu01"
_BOOT = "[    0.000000] Linux version 5.15.0-1061-nvidia (buildd@lcy02) #62-Ubuntu SMP\n"
# what a line begins with where it was quoted as dmesg, journalctl or /dev/kmsg print it
_STAMPED = re.compile(r"\[|<\d+>|\d+,\d+,\d+,|kern +:|[A-Z][a-z]{2} [ \d]\d \d\d:")
_ANSWERS = "nvidia-smi sees this GPU and it answers"
_RECORDED = DECISIONS.parent / "nvidia_smi/healthy-h100-sxm-driver-565.txt"
_MDSTAT = "Personalities : [raid1]\n{array} : active raid1 sdb1[1] sda1[0](F)\n      1024 blocks super 1.2 [2/1] [_U]\n"
# what of a log names the thing whose state decides
_NAMED = {
    "gpu": r"PCI:([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})",
    "array": r"md/raid\d*:?(md\d+)",
    "device": r"(?:\()(md\d+|sd[a-z]+\d*|nvme\d+n\d+(?:p\d+)?|dm-\d+)\b",
}
_ROOT = "/dev/nvme9n1p2 / ext4 rw,relatime 0 0\n"
# a node beside its log: a file system, and an adapter
_HEALTHY = {
    "dmesg": "",
    "/proc/mounts": _ROOT,
    "/sys/bus/pci/devices/0000:f8:00.0/uevent": "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\n",
}
_OF_A_STATE = 3  # rows of one state that are judged in it
_TOGETHER = 20  # logs that are judged as one; each is judged alone where the whole does not show its verdict


@dataclass(frozen=True)
class Decision:
    """A log and the right verdict; `action` of a failure."""

    name: str
    lines: tuple[str, ...]
    verdict: str
    action: str
    why: str
    sections: tuple[Section, ...] = ()


def rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of one file of decisions."""
    return [json.loads(line) for line in (DECISIONS / f"{name}.jsonl").read_text().splitlines()]


def of_lines() -> Iterator[Decision]:
    """Yield a decision for each row of kernel-lines.jsonl, or for each of its lines where they stand alone."""
    for row in rows("kernel-lines"):
        logs = [[line] for line in row["lines"]] if row.get("each") else [row["lines"]]
        for at, lines in enumerate(logs):
            number = row["id"][at if row.get("each") else 0]
            yield Decision(f"line {number}", tuple(lines), row["verdict"], row.get("action", ""), row["source"])


def of_logs() -> Iterator[Decision]:
    """Yield a decision for each kernel log of kernel-logs.jsonl."""
    for row in rows("kernel-logs"):
        if "verdict" in row:
            ((_, text),) = row["sections"]
            lines = tuple(text.splitlines())
            yield Decision(row["id"], lines, row["verdict"], row.get("action", ""), row["source"])


def of_states() -> Iterator[Decision]:
    """Yield the decisions of the first rows of each state that a recorded machine can have: `then` is the verdict."""
    judged: Counter[str] = Counter()
    for row in rows("kernel-lines"):
        state = row.get("state", "")
        sections = tuple(_sections_of(state, "\n".join(row["lines"])))
        if sections and judged[state] < _OF_A_STATE:
            judged[state] += 1
            verdict, _, action = row["then"].partition(": ")
            why = f"{row['source']}; {state}"
            yield Decision(f"line {row['id'][0]}", tuple(row["lines"]), verdict, action, why, sections)


def _sections_of(state: str, text: str) -> Iterator[Section]:
    """Yield what a machine in this state has beside the log; nothing where the log names no device or state is unknown."""
    found = {name: match[1] for name, pattern in _NAMED.items() if (match := re.search(pattern, text))}
    if state in ("recovery action None", "recovery action Reset", _ANSWERS) and "gpu" in found:
        yield Section("", "nvidia-smi -q", 0, False, _nvidia_smi(found["gpu"], state == "recovery action Reset"))
    elif state == "mounted read-only" and "device" in found:
        yield _mounted(f"/dev/{found['device']}", "ro")
    elif state == "array degraded" and "array" in found:
        yield _mounted(f"/dev/{found['array']}", "rw")
        yield Section("", "/proc/mdstat", 0, False, _MDSTAT.format(array=found["array"]))


def _mounted(source: str, mode: str) -> Section:
    return Section("", "/proc/mounts", 0, False, f"{_ROOT}{source} /data ext4 {mode},relatime 0 0\n")


def _nvidia_smi(address: str, reset: bool) -> str:
    """Return `nvidia-smi -q` of a recorded H100 as if it were the GPU at this address."""
    (section,) = (it for it in load(_RECORDED).sections if it.what == "nvidia-smi -q")
    bus = address.upper().rjust(8 + len(":00:00"), "0") + ".0"
    text = re.sub(r"[0-9A-F]{8}:[0-9A-F]{2}:00\.0", bus, section.text, flags=re.IGNORECASE)
    return re.sub(r"(GPU Recovery Action +: )\w+", rf"\1{'Reset' if reset else 'None'}", text)


class Judge:
    """One recorded machine whose kernel log is replaced for each decision."""

    def __init__(self, folder: Path, sections: tuple[Section, ...] = ()) -> None:
        folder.mkdir(exist_ok=True)
        changed = {it.what for it in sections}
        healthy = (Section("", what, 0, False, it) for what, it in _HEALTHY.items() if what not in changed)
        self._case = Case(DECISIONS, {"expect": {}}, (*healthy, *sections))
        self._machine = Machine(self._case, NODE, folder / NODE)
        self._folder = folder
        self._has_gpus = any(it.what == "nvidia-smi -q" for it in sections)
        file = folder / "corpus.yaml"
        file.write_text(f"nodes: {NODE}\nprofile: generic\n")
        self._cluster = load_cluster(str(file))

    def results(self, lines: Iterable[str]) -> list[Result]:
        """Return how the checks end on a node whose kernel log holds these lines."""
        text = _BOOT + "".join(f"{_stamped(line, at)}\n" for at, line in enumerate(lines))
        self._machine.replace("dmesg", text)
        bench = Bench(self._case, self._folder, machines={NODE: self._machine})
        bench.cluster = self._cluster
        checks = (*CHECKS, "gpu.recovery_action") if self._has_gpus else CHECKS
        return [bench.judge(NODE, check) for check in checks]

    def differences(self, decisions: Sequence[Decision]) -> Iterator[tuple[Decision, str]]:
        """Yield each decision that the checks do not share, and what they say."""
        logs = [it for it in decisions if it.verdict == "passed" and not it.sections]
        for at in range(0, len(logs), _TOGETHER):
            together = logs[at : at + _TOGETHER]
            results = self.results(itertools.chain.from_iterable(it.lines for it in together))
            if not _fits(results, "passed", ""):
                yield from self._alone(together)
        yield from self._alone([it for it in decisions if it.verdict != "passed" or it.sections])

    def _alone(self, decisions: Iterable[Decision]) -> Iterator[tuple[Decision, str]]:
        for decision in decisions:
            judge = (
                self
                if not decision.sections
                else Judge(self._folder / decision.name.replace(" ", "-"), decision.sections)
            )
            results = judge.results(decision.lines)
            if not _fits(results, decision.verdict, decision.action):
                yield decision, "; ".join(str(result) for result in results)


def _stamped(line: str, seconds: int) -> str:
    return line if _STAMPED.match(line) else f"[{100 + seconds:5}.000000] {line}"


def _fits(results: Iterable[Result], verdict: str, action: str) -> bool:
    """Return whether checks end so; `passed` is quiet, or a warning."""
    said = _said(results)
    return (
        said[0] in ("quiet", "warning")
        if verdict == "passed"
        else said == (verdict, action if verdict == "failed" else "")
    )


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
    kernel = [*of_lines(), *of_logs(), *of_states()][part::parts]
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
    result: Any = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 5, "status": row["status"]}
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
