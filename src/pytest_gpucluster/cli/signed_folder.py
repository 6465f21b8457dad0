"""The folder of a run or of a campaign, signed as a whole: SHA256SUMS has the sum of every file, ssh-keygen signs that file.

Nothing that the folder states as a verdict is believed. The verdict is judged again from the event logs; a folder whose logs
have gaps, or whose reports or campaign.json state anything else, is refused. Each byte that is judged is compared with its sum.
The format of SHA256SUMS is that of sha256sum(1), of a signature PROTOCOL.sshsig of OpenSSH.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.campaign import state_file
from pytest_gpucluster.campaign.child import outcome_in
from pytest_gpucluster.campaign.model import NodeResult
from pytest_gpucluster.campaign.summary import UNDER_TEST, WAITING, CampaignState, Summary, judge, summarize
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.safe_json import as_list
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.report.history.run_snapshot import JUDGED_EXITS
from pytest_gpucluster.report.machine import acceptance_record as record
from pytest_gpucluster.report.machine import junit, prom
from pytest_gpucluster.report.machine.events import events_of, read_run
from pytest_gpucluster.report.machine.run_folder import EVENTS, MANIFEST, SIGNATURE, is_written
from pytest_gpucluster.report.page import html
from pytest_gpucluster.report.proof import FAILED, FIT
from pytest_gpucluster.report.verdict import counts_of, judged_suites, narrowing
from pytest_gpucluster.report.verdict import judge as judge_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pytest_gpucluster.campaign.model import RunGroup
    from pytest_gpucluster.campaign.state_file import StatedCampaign
    from pytest_gpucluster.campaign.store import CampaignStore
    from pytest_gpucluster.kit.suite_work import PairResult
    from pytest_gpucluster.report.run_model import Run

PAGE, CASES, METRICS = "report.html", "junit.xml", "metrics.prom"
_OLD = re.compile(r"(?:.*/)?record(?:\.intoto|-\d{8}T\d{6})\.json")  # of version 0.3: each states a verdict
_VERDICTS = ("gpucluster_run_success", "gpucluster_run_exit", "gpucluster_node", "gpucluster_check")
_LINE = re.compile(r"([0-9a-f]{64})  ([^\x00-\x1f\x7f\\]+)\n")
_NAME = re.compile(r"[^\x00-\x1f\x7f\\]+")
_CHUNK = 1 << 20
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_NEEDED = "signatures need OpenSSH 8.2 or later"
_TIMEOUT = 60.0  # seconds for a command without a passphrase


@dataclass(frozen=True)
class Found:
    """The verdict that the logs of a folder give, and what it is about."""

    subject: str
    verdict: str


# --- the files and their sums


class Files:
    """The files of a folder, each with the sum that its bytes must have. Every reader raises GpuClusterError for other bytes."""

    def __init__(self, root: Path, sums: Mapping[str, str]) -> None:
        self.root, self.sums = root, sums

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines of a file; the error comes after the last one."""
        found = hashlib.sha256()
        for line in _lines(self.root / name):
            found.update(line)
            yield line
        if found.hexdigest() != self.sums[name]:
            raise GpuClusterError(f"{self.root / name}: has another sha256 than {MANIFEST} states: it was changed")

    def content(self, name: str) -> bytes:
        """Return the content of a file."""
        return b"".join([*self.lines(name)])


def _lines(path: Path) -> Iterator[bytes]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise GpuClusterError(f"{path}: is not a plain file")
        while line := file.readline(_CHUNK):
            yield line


def names_in(root: Path) -> list[str]:
    """Return the paths of all files of a folder but manifest and signature. GpuClusterError for a link, socket or device."""
    found = sorted(_walk(root, ""), key=os.fsencode)
    return [name for name in found if name not in (MANIFEST, SIGNATURE)]


def _walk(root: Path, folder: str) -> Iterator[str]:
    with os.scandir(root / folder) as entries:
        for entry in entries:
            name = f"{folder}{entry.name}"
            if not _NAME.fullmatch(name) or not _is_utf8(name):
                raise GpuClusterError(f"{root / folder}: the name of a file has control characters: {entry.name!r}")
            if entry.is_symlink():
                raise GpuClusterError(f"{root / name}: is a link; a signed folder has none")
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(root, f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                yield name
            else:
                raise GpuClusterError(f"{root / name}: is neither a plain file nor a folder")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sums_of(root: Path) -> dict[str, str]:
    """Return the sha256 of every file of a folder, by its path in it."""
    found = {}
    for name in names_in(root):
        one = hashlib.sha256()
        for line in _lines(root / name):
            one.update(line)
        found[name] = one.hexdigest()
    return found


def write_manifest(sums: Mapping[str, str]) -> bytes:
    """Return the bytes of SHA256SUMS."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums, key=str.encode)).encode()


def parse_manifest(data: bytes, path: Path) -> dict[str, str]:
    """Return the sums that SHA256SUMS states. GpuClusterError where it is not written as `write_manifest` writes it."""
    sums = {name: sha256 for sha256, name in _LINE.findall(data.decode(errors="replace"))}
    if not sums or write_manifest(sums) != data:
        raise GpuClusterError(f"{path}: is not written as gpucluster writes it: it was changed")
    return sums


def signed_files(root: Path, data: bytes) -> Files:
    """Return the files of a folder, which are exactly those of its manifest. GpuClusterError where they are not."""
    sums, there = parse_manifest(data, root / MANIFEST), names_in(root)
    if added := [name for name in there if name not in sums]:
        raise GpuClusterError(f"{root / added[0]}: {MANIFEST} does not list it: it was added{_more(added)}")
    if gone := sorted(sums.keys() - set(there)):
        raise GpuClusterError(f"{root / gone[0]}: is missing, and {MANIFEST} lists it{_more(gone)}")
    files = Files(root, sums)
    for name in sums:
        for _ in files.lines(name):
            pass
    return files


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if names[1:] else ""


# --- what the files prove


def assess(files: Files, *, reports: bool = False, store: CampaignStore | None = None) -> Found:
    """Judge the logs of a folder. GpuClusterError where one is missing, has gaps, or something else is stated.

    reports: compare page, JUnit and metrics too, which needs the version that wrote them. store: compare campaign.json with
    the history of its campaign.
    """
    if reports and (old := [name for name in files.sums if _OLD.fullmatch(name)]):
        raise GpuClusterError(
            f"{files.root / old[0]}: version 0.3 wrote it; nothing checks what it states: remove it{_more(old)}"
        )
    if state_file.NAME in files.sums:
        return _assess_campaign(files, reports=reports, store=store)
    logs = [name for name in files.sums if name.rpartition("/")[2] in (EVENTS, state_file.NAME)]
    if logs != [EVENTS]:
        raise GpuClusterError(
            f"{files.root}: is neither the folder of one run (with one {EVENTS}) nor that of a campaign that came to its "
            f"end (with {state_file.NAME})"
        )
    run, problem = _read(files, "")
    problem = problem or (_misreported(files, "", run) if reports else "")
    if problem:
        raise GpuClusterError(problem)
    judged = judge_run(run)
    simulated = ", SIMULATED hardware" if run.simulated else ""
    subject = f"cluster {one_line(run.start.get('cluster'))}, run {run.run}"
    scope = f"judged by {', '.join(judged_suites(run)) or 'no suite'}"
    narrowed = f", narrowed by {options}" if (options := narrowing(run)) else ""
    return Found(subject, f"{judged.title}, {judged.nodes}, {scope}{narrowed}{simulated}")


def _read(files: Files, folder: str) -> tuple[Run, str]:
    """Return the run of a log, and what is missing in the log, '' for nothing."""
    path, broken = files.root / folder / EVENTS, list[int]()
    lines = (line.decode(errors="replace") for line in _joined(files.lines(f"{folder}{EVENTS}")))
    run = read_run(_of_one_run(events_of(lines, broken), path))
    problem = _gap(run, broken)
    return run, problem and f"{path}: {problem}"


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join the pieces of long lines."""
    held: list[bytes] = []
    for piece in pieces:
        held.append(piece)
        if piece.endswith(b"\n"):
            yield b"".join(held)
            held.clear()
    if held:
        yield b"".join(held)


def _of_one_run(events: Iterable[dict[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    run: object = None
    for event in events:
        run = event.get("run") if run is None else run
        if not isinstance(run, str) or event.get("run") != run:
            raise GpuClusterError(f"{path}: an event is of another run than the first one")
        yield event


def _gap(run: Run, broken: list[int]) -> str:
    if not run.start or not run.nodes:
        return "it lacks the event `start` or `nodes`"
    if broken:
        return f"line {broken[0]} is cut or no event: what it held is lost"
    if run.finish is None or run.exit is None:
        return "it has no event `finish`: the run did not come to its end"
    if run.silent:
        return f"it has neither a result of {hostlist.shown(run.silent)} nor a reason why there is none"
    counts = counts_of(run)
    wrong = next((key for key, number in counts.items() if run.finish.get(key) != number), None)
    if wrong is not None:
        stated = run.finish.get(wrong)
        return f"its event `finish` states {wrong}: {stated}, its results are {counts[wrong]}: lines were changed or removed"
    return ""


def _misreported(files: Files, folder: str, run: Run) -> str:
    """Return which report states something else than the log, '' for none."""
    stated = record.render(run)
    said: dict[str, Callable[[bytes], bool]] = {
        PAGE: lambda data: data == html.render(run, stated).encode(),
        record.RECORD: lambda data: data == stated,
        CASES: lambda data: _is_junit_of(data, run),
        METRICS: lambda data: _metrics(data.decode(errors="replace")) == _metrics(prom.render(run)),
    }
    for name, is_said in said.items():
        if f"{folder}{name}" in files.sums and not is_said(files.content(f"{folder}{name}")):
            path = files.root / folder
            return (
                f"{path / name}: states something else than {EVENTS} beside it; if another version wrote it, "
                f"`gpucluster report {path} --force` writes it again"
            )
    return ""


def _is_junit_of(data: bytes, run: Run) -> bool:
    """Return whether a JUnit file states the properties of a run and the red testcases that its log makes."""
    if b"<!DOCTYPE" in data:  # its entities could be without end
        return False
    try:
        found = ET.fromstring(data)  # noqa: S314 - it has no entities
    except ET.ParseError:
        return False
    return _claims(found) == _claims(ET.fromstring(b"".join(junit.pieces(run))))  # noqa: S314 - of our own


def _claims(root: ET.Element) -> tuple[object, ...]:
    properties = Counter(
        (one.get("name"), one.get("value"))
        for one in root.iterfind("*/properties/property")
        if one.get("name") in ("run", "cluster", "simulated", "verdict") or str(one.get("name")).startswith("nodes")
    )
    counts = [(suite.get("failures"), suite.get("errors")) for suite in root.iter("testsuite")]
    red = Counter(
        (case.get("classname"), case.get("name"), inside.tag)
        for case in root.iter("testcase")
        for inside in case
        if inside.tag in ("failure", "error")
    )
    return properties, counts, red


def _metrics(text: str) -> list[str]:
    """Return the lines of metrics that state verdicts."""
    return [line for line in text.splitlines() if line.lstrip().startswith(_VERDICTS)]


# --- campaigns


def _assess_campaign(files: Files, *, reports: bool, store: CampaignStore | None) -> Found:
    path = files.root / state_file.NAME
    stated = state_file.parse_state(files.content(state_file.NAME), path)
    if store is not None:
        _refuse_other_state(stated, store, path)
    _refuse_strangers(files, stated, path)
    found = [_of_group(files, group, stated, reports=reports) for group in stated.groups]
    results = [result for results, _ in found for result in results]
    pairs: dict[str, list[PairResult]] = {}
    for _, measured in found:
        for suite, more in measured.items():
            pairs.setdefault(suite, []).extend(more)
    counted = [it for it in results if stated.outcomes[it.group]]
    summary = _judged(stated, counted, pairs)
    wrong = [node for node, state in _states(summary).items() if state != _settled(stated.states[node])]
    if wrong:
        raise GpuClusterError(
            f"{path}: states that {wrong[0]} is {stated.states[wrong[0]]}; the logs of its groups say {_states(summary)[wrong[0]]}"
        )
    if (summary.verdict, list(summary.problems)) != stated.verdict:
        raise GpuClusterError(
            f"{path}: states {stated.verdict[0]}; by the logs of its groups the campaign is {summary.verdict}"
        )
    if summary.accepted and not _judged(stated, _unexcused(results, counted), pairs).accepted:
        raise GpuClusterError(f"{path}: leaves out a failure after which no group has passed the node")
    fit = sum(row.state == FIT for row in summary.rows)
    simulated = ", SIMULATED hardware" if stated.campaign.simulated else ""
    subject = f"cluster {stated.campaign.cluster}, campaign {stated.campaign.name}"
    suites = dict.fromkeys(suite for kind in stated.campaign.kinds for suite in kind.suites or (kind.name,))
    return Found(
        subject, f"{summary.verdict}, {fit} of {len(summary.rows)} nodes fit, judged by {', '.join(suites)}{simulated}"
    )


def _refuse_other_state(stated: StatedCampaign, store: CampaignStore, path: Path) -> None:
    campaign = store.campaign(stated.campaign.cluster, stated.campaign.name)
    if campaign is None:
        raise GpuClusterError(f"{path}: the history {store.path} has no such campaign")
    kept = state_file.document_of(summarize(store, campaign, now=0.0))
    if key := state_file.difference(stated.document, kept):
        raise GpuClusterError(f"{path}: states something else than the history {store.path} ({key})")


def _refuse_strangers(files: Files, stated: StatedCampaign, path: Path) -> None:
    """Refuse logs and groups that do not belong to one another, one to one, and groups of other nodes or kinds."""
    logs = {_log_of(group) for group in stated.groups if group.run}
    there = {name for name in files.sums if name.rpartition("/")[2] == EVENTS}
    if missing := sorted(logs - there):
        raise GpuClusterError(f"{files.root / missing[0]}: is missing, and {path.name} names it as the log of a group")
    empty = {group.folder for group in stated.groups if not group.run}
    if strange := [it for it in sorted(there - logs) if not _is_unused(files, it, empty)]:
        raise GpuClusterError(f"{files.root / strange[0]}: is the log of no group of {path.name}")
    same = len(logs) != sum(bool(group.run) for group in stated.groups)
    if not stated.campaign.nodes or not stated.campaign.kinds or same:
        raise GpuClusterError(f"{path}: it has no node or no suite, or two groups have the same log")
    kinds = {kind.name for kind in stated.campaign.kinds}
    for group in stated.groups:
        if unknown := {*group.nodes, *stated.outcomes[group.number]} - {*stated.campaign.nodes, ""}:
            raise GpuClusterError(f"{path}: lacks the node {min(unknown)}, which group {group.number} has tested")
        if group.kind not in kinds or not group.nodes or group.ended is None:
            raise GpuClusterError(f"{path}: group {group.number} has not ended, has no node, or its kind is unknown")


def _is_unused(files: Files, name: str, empty: set[str]) -> bool:
    """Return whether a log is of a run that was killed before its first result, and so is no run of its group."""
    folder, _, rest = name.partition("/")
    if folder not in empty or rest.count("/") != 1:
        return False
    run, _ = _read(files, name.rpartition("/")[0] + "/")
    return not run.results and run.finish is None


def _log_of(group: RunGroup) -> str:
    return f"{group.folder}/{group.run}/{EVENTS}"


def _of_group(
    files: Files, group: RunGroup, stated: StatedCampaign, *, reports: bool
) -> tuple[list[NodeResult], Mapping[str, list[PairResult]]]:
    """Return what the log of a group says of each node and pair. GpuClusterError where campaign.json says otherwise."""
    where, run = files.root / (_log_of(group) if group.run else group.folder), None
    if group.run:
        run = _run_of_group(files, group, stated, where, reports=reports)
    kind = next(kind for kind in stated.campaign.kinds if kind.name == group.kind)
    own = replace(group, folder=str(files.root / group.folder) if group.folder else "")
    found = outcome_in(run, own, kind)
    outcomes = {node: state for node, (state, _) in found.nodes.items()}
    if stated.outcomes[group.number] not in ({}, outcomes):  # none: the campaign began anew after this group
        raise GpuClusterError(f"{where}: says {outcomes}, {state_file.NAME} states {stated.outcomes[group.number]}")
    left = stated.left[group.number]
    results = [
        NodeResult(group.kind, node, group.number, group.nodes, group.ended or 0.0, *end, left=node in left)
        for node, end in found.nodes.items()
    ]
    pairs = {suite: [it for it in more if not left & {*it.nodes}] for suite, more in found.pairs.items()}
    return results, pairs


def _run_of_group(files: Files, group: RunGroup, stated: StatedCampaign, where: Path, *, reports: bool) -> Run:
    folder = f"{group.folder}/{group.run}/"
    run, problem = _read(files, folder)
    if run.exit in JUDGED_EXITS:  # any other run judges no node
        problem = problem or (_misreported(files, folder, run) if reports else "")
        if problem:
            raise GpuClusterError(problem)
    if files.sums[_log_of(group)] != group.sha256:
        raise GpuClusterError(
            f"{where}: has another sha256 than {state_file.NAME} states: it was changed after the run"
        )
    start = run.start
    if (run.run, start.get("cluster")) != (group.run, stated.campaign.cluster):
        raise GpuClusterError(f"{where}: is of another run or cluster than {state_file.NAME} states")
    if run.simulated and not stated.campaign.simulated:
        raise GpuClusterError(f"{where}: is of simulated hardware, and {state_file.NAME} states real hardware")
    if run.nodes and {*map(str, as_list(run.nodes.get("selected")))} != {*group.nodes}:
        raise GpuClusterError(f"{where}: is of other nodes than group {group.number} of {state_file.NAME}")
    return run


def _judged(stated: StatedCampaign, results: Iterable[NodeResult], pairs: Mapping[str, list[PairResult]]) -> Summary:
    state = CampaignState(stated.campaign, stated.groups, tuple(results), pairs, stated.seen)
    return judge(state, now=0.0)


def _states(summary: Summary) -> dict[str, str]:
    return {row.node: _settled(row.state) for row in summary.rows}


def _settled(state: str) -> str:
    """Return a state without what other campaigns do to the node."""
    return WAITING if state == UNDER_TEST else state


def _unexcused(results: list[NodeResult], counted: list[NodeResult]) -> list[NodeResult]:
    """Return the results with each failure that is stated as repaired, and that no later group of its kind contradicts."""
    passed: dict[tuple[str, str], int] = {}
    for it in results:
        if it.outcome == FIT:
            passed[it.kind, it.node] = max(it.group, passed.get((it.kind, it.node), it.group))
    unexcused = [it for it in results if it.outcome == FAILED and it.group > passed.get((it.kind, it.node), -1)]
    others = [it for it in counted if it not in unexcused]
    return [*others, *(replace(it, left=False) for it in unexcused)]


# --- signatures


def sign(data: bytes, key: Path, namespace: str) -> bytes:
    """Return the signature of data by a private key, or by the agent's key of a public one. GpuClusterError with the reason."""
    if not key.is_file():
        raise GpuClusterError(
            f"--key {key} is no file; it must be a private key, or a public key whose private key is in ssh-agent"
        )
    done = _keygen("sign", "-f", str(key), "-n", namespace, data=data, timeout=None)
    if done.returncode:
        raise GpuClusterError(f"ssh-keygen did not sign with {key} ({_why(done)})")
    return done.stdout


def signer_of(data: bytes, signature: Path, signers: Path, identity: str | None, namespace: str) -> str:
    """Check that an allowed signer signed the data; return who, and with which key. GpuClusterError if not.

    `signers`: a file as ALLOWED SIGNERS of ssh-keygen(1) describes it. `identity`: the only one that is accepted.
    """
    if not signers.is_file():
        raise GpuClusterError(f"{signers}: is no file; --signers names a file of allowed signers (ssh-keygen(1))")
    if not is_armored(b"".join(_lines(signature)).decode(errors="replace")):
        raise GpuClusterError(f"{signature}: is not a signature as ssh-keygen writes it; it was changed")
    file = ("-f", str(signers))
    if identity is None:
        found = _keygen("find-principals", *file, "-s", str(signature))
        names = found.stdout.decode(errors="replace").splitlines()
        if found.returncode or not names:
            raise GpuClusterError(f"{signature}: {signers} does not allow the key that signed: {_why(found)}")
        identity = names[0]
    done = _keygen("verify", *file, "-I", identity, "-n", namespace, "-s", str(signature), data=data)
    if done.returncode:
        raise GpuClusterError(
            f"{signature}: {signers} does not accept it as a signature of {one_line(identity)}: {_why(done)}"
        )
    return one_line(f"{identity} with {done.stdout.decode(errors='replace').strip().rpartition(' with ')[2]}")


def _keygen(
    verb: str, *words: str, data: bytes = b"", timeout: float | None = _TIMEOUT
) -> subprocess.CompletedProcess[bytes]:
    try:
        done = subprocess.run(
            ("ssh-keygen", "-Y", verb, *words), input=data, capture_output=True, timeout=timeout, check=False
        )
    except FileNotFoundError:
        raise GpuClusterError(
            f"ssh-keygen is not installed here: {_NEEDED}; install the package openssh-client or openssh-clients, or "
            "use another machine"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuClusterError(f"ssh-keygen: {error}") from error
    if done.returncode and b"usage: ssh-keygen" in done.stderr:
        raise GpuClusterError(f"this ssh-keygen is too old for -Y {verb}: {_NEEDED}")
    return done


def _why(done: subprocess.CompletedProcess[bytes]) -> str:
    printed = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
    return one_line(printed, 300) or f"exit status {done.returncode}"


def is_armored(text: str) -> bool:
    """Return whether a signature is written as ssh-keygen writes it, which reads more: unused bits of base64, words around it."""
    if text.count("\n") < 3:
        return False
    first, *lines, last, rest = text.split("\n")
    body = "".join(lines)
    try:
        is_plain = base64.b64encode(base64.b64decode(body, validate=True)).decode() == body
    except ValueError:
        return False
    return is_plain and (first, last, rest) == (_BEGIN, _END, "") and len({*map(len, lines[:-1])}) < 2


def verify(root: Path, signers: Path, *, identity: str | None, namespace: str) -> tuple[Found, str]:
    """Return what a signed folder proves, and who signed it. GpuClusterError with the first thing that is wrong."""
    manifest = root / MANIFEST
    for path in (manifest, root / SIGNATURE):
        if path.is_symlink() or not path.is_file():
            raise GpuClusterError(f"{path}: is missing or no plain file: the folder is not signed")
    if signers.resolve().is_relative_to(root):
        raise GpuClusterError(
            f"{signers}: lies in the folder that is verified; whoever changes that could allow himself"
        )
    data = b"".join(_lines(manifest))
    who = signer_of(data, root / SIGNATURE, signers, identity, namespace)
    return assess(signed_files(root, data)), who


def manifest_of(root: Path, store: CampaignStore | None) -> tuple[bytes, Found]:
    """Return the manifest of a folder that is fit to be signed, and what it proves. GpuClusterError with what is wrong."""
    if (root / EVENTS).is_file() and is_written(root / EVENTS):
        raise GpuClusterError(f"{root / EVENTS}: the run still writes it")
    sums = sums_of(root)
    return write_manifest(sums), assess(Files(root, sums), reports=True, store=store)
