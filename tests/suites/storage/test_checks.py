"""Verdicts on what the tasks of the step report: eight nodes on one shared file system."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from constants import with_constants
from counter_examples import CONFIGURE, DRAIN, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, CounterExample
from judged import figures, judged, parts
from suite_helpers import considered

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.common_cause import Place, common_findings
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.storage import checks
from pytest_gpucluster.suites.storage.config import StorageConfig
from pytest_gpucluster.suites.storage.facts import read_mounts, read_quotas, usual_mounts
from pytest_gpucluster.suites.storage.payload import named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.check import Verdict

    Facts = list[dict[str, Any]]

SIZE = 8
NODES = tuple(f"gpu{number:02}" for number in range(1, SIZE + 1))
PATH = "/shared"
LATENCY = {"50": 1.0, "95": 2.0, "99": 3.0}


def config(
    *others: dict[str, Any], keys: Mapping[str, Any] | None = None, files: int = 10_000, **system: Any
) -> StorageConfig:
    """Return a section of this file system, after others; `files` is a constant of it."""
    systems = [*others, {"path": PATH, **system}]
    return with_constants(StorageConfig, {"files": files}, filesystems=systems, **(keys or {}))


CONFIG, LOCAL = config(), config(kind="local")
TWO = config({"path": "/absent"})


def facts_of(rank: int) -> Facts:
    """Return what a healthy task reports; rates vary by some percent."""
    vary = 1 + 0.01 * (rank % 5)
    after, second = (rank + 1) % SIZE, (rank + 2) % SIZE
    room = {"free": 9 * 10**12, "size": 10**13, "room": 8 * 10**12, "inodes": 10**9, "inodes_free": 9 * 10**8}
    fsync: dict[str, Any] = {"storage": "fsync", "latency": LATENCY}
    found: Facts = [{"storage": "space", **room}, fsync, {"storage": "done"}]
    for what in ("write", "read"):
        found.append({"storage": what, "how": "together", "rate": 2.0 * vary, "seconds": 3.0})
        found.append({"storage": "random", "what": what, "iops": 9000 * vary, "latency": LATENCY})
        if rank in (0, 1, 4):  # the fastest and the slowest ones
            found.append({"storage": what, "how": "alone", "rate": 7.0 * vary, "seconds": 3.0})
    for what in ("create", "stat", "list", "remove"):
        found.append({"storage": "metadata", "what": what, "count": 100, "seconds": 0.5 / vary})
    for writer in (after, second):
        right: dict[str, Any] = {"blocks": 8, "wrong": [], "again": [], "other": []}
        found.append({"storage": "verified", "writer": writer, **right})
    found.append({"storage": "listed", "writer": after, "seen": 100, "made": 100})
    for change in ("create", "overwrite", "rename"):
        found.append({"storage": "seen", "change": change, "writer": after, "seconds": 0.01})
    found.append({"storage": "locked", "problems": {"flock": "", "fcntl": ""}})
    for lock in ("flock", "fcntl"):
        for state, problem in (("held", "held"), ("released", "")):
            found.append({"storage": "lock", "lock": lock, "state": state, "problem": problem, "holder": after})
    return found + ([{"storage": "appended", "records": 800, "lost": 0}] if rank == 0 else [])


Change = Any  # (rank, fact) -> the fact, another one, or None without it


def step(change: Change = None, size: int = SIZE) -> PayloadResult:
    """Return a step; `change` replaces a fact of a rank, None removes it."""
    tasks = []
    for rank in range(size):
        facts = [{"path": PATH, "rank": rank, "node": NODES[rank], **fact} for fact in facts_of(rank)]
        changed = [fact if change is None else change(rank, fact) for fact in facts]
        tasks.append(PayloadTask(rank, NODES[rank], 0, None, tuple(fact for fact in changed if fact)))
    return PayloadResult("storage", NODES[:size], size, tuple(tasks))


def of(rank: int, kind: str, where: Mapping[str, Any] | None = None, **values: Any) -> Change:
    """Change the facts of one kind of one rank that have the values of `where`."""

    def change(number: int, fact: dict[str, Any]) -> dict[str, Any]:
        chosen = (fact["storage"], number) == (kind, rank)
        return {**fact, **values} if chosen and {**fact, **(where or {})} == fact else fact

    return change


def both(*changes: Change) -> Change:
    def change(rank: int, fact: dict[str, Any]) -> dict[str, Any] | None:
        found: dict[str, Any] | None = fact
        for one in changes:
            found = one(rank, found) if found else None
        return found

    return change


def without(**values: Any) -> Change:
    """Remove the facts with these values, of all tasks."""
    return lambda _rank, fact: None if {**fact, **values} == fact else fact


def silent(*ranks: int) -> Change:
    return lambda rank, fact: None if rank in ranks else fact


def with_fact(rank: int, **values: Any) -> PayloadResult:
    """Return a healthy step in which a task reports one fact more."""
    whole = step()
    tasks = list(whole.tasks)
    more = {"path": PATH, "rank": rank, "node": NODES[rank], **values}
    tasks[rank] = replace(tasks[rank], facts=(*tasks[rank].facts, more))
    return replace(whole, tasks=tuple(tasks))


def answer(text: str) -> Answer:
    return Answer("gpu01", 0, text.encode())


def mounted(text: str) -> Any:
    return read_mounts(answer(text), (PATH,))


def found(verdict: Verdict) -> list[tuple[str, list[float]]]:
    """Return part and measured figures of each finding."""
    return [(str(it.part).removeprefix(f"{PATH} "), figures(it.measured)) for it in verdict.findings]


OF_NODES = (
    *(checks.operations_end, checks.space, checks.bandwidth, checks.latency),
    *(checks.metadata, checks.visibility, checks.locks, checks.integrity),
)


def of_node(check: Any, node: str, result: PayloadResult) -> Verdict:
    given: dict[Any, tuple[Any, ...]] = {checks.operations_end: (), checks.space: (CONFIG, {})}
    verdict: Verdict = check(node, result, *given.get(check, (CONFIG,)))
    return verdict


def failures(result: PayloadResult) -> dict[tuple[str, str], list[tuple[str, list[float]]]]:
    """Return {(check, node): findings} of all checks on all nodes."""
    ends = {(check.name, node): of_node(check, node, result) for check in OF_NODES for node in result.nodes}
    return {
        (check.removeprefix("storage."), node): found(verdict)
        for (check, node), verdict in ends.items()
        if verdict.outcome is Outcome.FAILED
    }


TOGETHER, ALONE = {"how": "together"}, {"how": "alone"}
SLOW_BOTH = both(*(of(0, what, TOGETHER, rate=0.2) for what in ("write", "read")))
SLOW_ALONE = both(SLOW_BOTH, *(of(0, what, ALONE, rate=0.25) for what in ("write", "read")))


def test_healthy_nodes_pass_every_check() -> None:
    for size in (SIZE, 2):
        whole = step(size=size)
        ends = {judged(of_node(check, node, whole))[0] for check in OF_NODES for node in whole.nodes}
        assert ends == {PASSED}
        assert judged(checks.aggregate(whole, CONFIG)) == (PASSED, [])
        assert judged(checks.append(whole, CONFIG, {PATH: "lustre"})) == (PASSED, [])


def test_a_node_that_is_slow_fails_if_it_is_so_alone_or_in_both_directions() -> None:
    alone = [("write", [0.2, 0.25, 7.28]), ("read", [0.2, 0.25, 7.28])]
    assert failures(step(SLOW_ALONE)) == {("bandwidth", "gpu01"): alone}
    assert failures(step(SLOW_BOTH)).keys() == {("bandwidth", "gpu01")}
    once = step(of(0, "read", TOGETHER, rate=0.2))
    assert failures(once) == {}
    (warning,) = checks.bandwidth("gpu01", once, CONFIG).advisories
    assert figures(warning.measured)[:2] == [0.2, 7]
    again = with_fact(0, storage="read", how="together", rate=0.2, seconds=3.0)
    assert checks.bandwidth("gpu01", again, CONFIG).advisories == (), "of two readings the better counts"
    brief = both(SLOW_ALONE, *(of(0, what, seconds=0.05) for what in ("write", "read")))
    assert failures(step(brief)) == {}, "some milliseconds name no node"
    assert failures(step(SLOW_BOTH, size=2)) == {}, "of two nodes none is an outlier"


def test_nodes_with_other_adapters_are_compared_with_their_own_group() -> None:
    def half(rank: int, fact: dict[str, Any]) -> dict[str, Any]:
        """Give two nodes of eight half of every rate, together and alone."""
        scaled: dict[str, Any] = {key: fact[key] / 2 for key in ("rate", "iops") if key in fact}
        return {**fact, **scaled} if rank in (0, 1) else fact

    mixed = step(half)
    assert {node for _, node in failures(mixed)} == {"gpu01", "gpu02"}
    for check in (checks.bandwidth, checks.latency, checks.metadata):
        for node, peers in (("gpu01", NODES[:2]), ("gpu03", NODES[2:])):
            assert judged(check(node, mixed, CONFIG, peers)) == (PASSED, [])


def test_slow_nodes_without_a_faster_majority_are_a_warning() -> None:
    """Three of eight nodes with half of the rate: a leaf, a server, or another kind of node."""
    mixed = step(both(*(of(rank, what, rate=0.9) for rank in (0, 1, 2) for what in ("write", "read"))))
    assert failures(mixed) == {}
    assert [len(checks.bandwidth(node, mixed, CONFIG).advisories) for node in NODES[:4]] == [2, 2, 2, 0]


def test_a_local_disk_that_is_slow_in_one_direction_fails() -> None:
    on_disk = step(both(without(how="alone"), of(0, "write", TOGETHER, rate=0.2)))
    assert found(checks.bandwidth("gpu01", on_disk, LOCAL)) == [("write", [0.2])]
    assert checks.bandwidth("gpu02", on_disk, LOCAL).outcome is Outcome.PASSED


def test_a_rate_that_the_spread_hides_fails_if_the_node_is_slow_alone_too() -> None:
    rates = (0.3, 1.2, 2.8, 1.0, 2.9, 1.1, 3.0, 2.7)
    spread = both(*(of(rank, "write", TOGETHER, rate=rate) for rank, rate in enumerate(rates)))
    assert failures(step(spread)) == {}
    slow = step(both(spread, of(0, "write", ALONE, rate=0.3)))
    assert failures(slow).keys() == {("bandwidth", "gpu01")}


def test_a_node_that_is_slow_alone_is_compared_with_one_other_node_that_was_measured_alone() -> None:
    def change(rank: int, fact: dict[str, Any]) -> dict[str, Any] | None:
        if fact.get("how") == "alone":
            return {**fact, "rate": 0.1 if rank == 0 else 7.0} if rank in (0, 1) else None
        return {**fact, "rate": 1.0} if rank == 0 and fact["storage"] == "read" else fact

    assert failures(step(change)) == {("bandwidth", "gpu01"): [("read", [1, 0.1, 7])]}
    only = step(lambda rank, fact: None if rank and fact.get("how") == "alone" else change(rank, fact))
    (warning,) = checks.bandwidth("gpu01", only, CONFIG).advisories  # nothing to compare
    assert (figures(warning.measured), figures(warning.expected)) == ([1, 0.1], [2.03, 8])


@pytest.mark.parametrize(
    ("size", "alone", "measured", "limit"),
    [
        (1, 4.0, [2], ""),
        (2, 4.0, [4.02, 2, 4], "the server or a shared link limits"),
        (2, 2.8, [4.02, 2, 2.8], "each client limits"),  # 72% of two
        (2, 0.0, [4.02, 2, 0], "each client limits"),
        (8, 7.0, [16.3, 8, 7], "the server or a shared link limits"),
    ],
)
def test_the_sum_and_its_limit_are_judged(size: int, alone: float, measured: list[float], limit: str) -> None:
    whole = step(lambda _, fact: {**fact, "rate": alone} if fact.get("how") == "alone" else fact, size)
    verdict = checks.aggregate(whole, config(expect={"read": "100 GB/s", "write": "5.3 GB/s"}))
    (finding,) = (it for it in verdict.findings if str(it.part) == "/shared read")
    assert (figures(finding.measured), str(finding.measured).endswith(limit)) == (measured, True)
    assert figures(finding.expected) == [100]
    assert checks.aggregate(whole, LOCAL).outcome is Outcome.NOT_APPLICABLE


def test_each_node_must_reach_the_figures_of_a_local_file_system() -> None:
    stated = config(kind="local", expect={"read": "2.01 GB/s", "read_iops": 100, "creates": 9000})
    whole = step()
    assert found(checks.bandwidth("gpu01", whole, stated)) == [("read", [2])]
    assert checks.bandwidth("gpu02", whole, stated).outcome is Outcome.PASSED
    assert checks.latency("gpu01", whole, stated).outcome is Outcome.PASSED
    assert found(checks.metadata("gpu01", whole, stated)) == [("create_files", [200])]


@pytest.mark.parametrize("check", [checks.bandwidth, checks.latency, checks.metadata])
def test_a_file_system_that_was_not_measured_hides_no_slow_node_on_another_one(check: Any) -> None:
    slow = both(SLOW_ALONE, of(0, "random", iops=9.0), of(0, "metadata", seconds=50.0))
    verdict = check("gpu01", step(slow), TWO)
    assert (judged(verdict)[0], "/absent: not measured" in verdict.reason) == (MONITOR, True)
    space = checks.space("gpu01", step(of(0, "space", room=0)), TWO, {})
    assert (judged(space), "/absent: not measured" in space.reason) == ((CONFIGURE, [PATH]), True)


def test_figures_of_short_operations_need_two_measurements_except_on_a_disk_of_the_node() -> None:
    once = step(of(0, "fsync", latency={"50": 90.0}))
    assert failures(once) == {}
    assert len(checks.latency("gpu01", once, CONFIG).advisories) == 1
    twice = step(both(of(0, "fsync", latency={"50": 90.0}), of(0, "random", {"what": "read"}, iops=90.0)))
    assert failures(twice).keys() == {("latency", "gpu01")}
    files = step(both(*(of(0, "metadata", {"what": it}, seconds=50.0) for it in ("create", "stat"))))
    assert failures(files).keys() == {("metadata", "gpu01")}
    # accesses per second and their median time are one measurement: other load of 3 s is in both
    burst = step(of(0, "random", {"what": "read"}, iops=900.0, latency={"50": 9.0}))
    assert failures(burst) == {}
    assert len(checks.latency("gpu01", burst, CONFIG).advisories) == 2
    assert len(checks.latency("gpu01", burst, LOCAL).findings) == 2
    slow = both(*(of(0, "metadata", {"what": what}, seconds=50.0) for what in ("list", "remove")))
    assert judged(checks.metadata("gpu01", step(slow), CONFIG)) == (WARNING, ["/shared remove files"])


NO_OPERATION = named(OSError(errno.EOPNOTSUPP, "Operation not supported"))["code"]


@pytest.mark.parametrize(
    ("code", "action"),
    [
        *((code, CONFIGURE) for code in ("ENOSPC", "EDQUOT", "", "ENOSYS", NO_OPERATION, "ValueError")),
        *((code, MONITOR) for code in ("EIO", "ESTALE", "Failure")),
    ],
)
def test_an_error_is_a_failure_of_its_node_with_the_part_in_which_it_came(code: str, action: str) -> None:
    result = with_fact(2, storage="problem", step="write", reason="No space left on device", code=code)
    verdict = checks.operations_end("gpu03", result)
    assert (parts(verdict), verdict.findings[0].code) == (["/shared: write"], code.lower() or "refused")
    assert (verdict.findings[0].action or verdict.action).value == action
    assert failures(result).keys() == {("operations", "gpu03")}


def test_a_node_that_hangs_fails_and_one_that_lost_the_first_node_is_not_checked() -> None:
    hung = with_fact(1, storage="stuck", phase="/shared: read", seconds=45.0)
    verdict = checks.operations_end("gpu02", replace(hung, tasks=hung.tasks[1:]))
    assert (found(verdict), verdict.reason) == ([("/shared: read", [45])], "")
    endless = with_fact(1, storage="stuck", phase="read", seconds=45.0)
    without_end = replace(endless, tasks=tuple(replace(it, facts=it.facts[3:]) for it in endless.tasks))
    assert checks.operations_end("gpu02", without_end).reason == ""
    lost = with_fact(1, storage="unconnected", reason="the first node of the step went away: closed")
    assert checks.operations_end("gpu02", lost).outcome is Outcome.NOT_CHECKED


def test_what_was_not_measured_never_passes_and_has_its_reason() -> None:
    for check in OF_NODES:
        assert of_node(check, "gpu02", step(silent(1))).outcome is Outcome.NOT_CHECKED, check.name
    none, alone = step(silent(*range(SIZE))), step(size=1)
    stopped = PayloadResult("storage", NODES, SIZE, problem="srun: no")
    for verdict, expected, words in (
        (checks.aggregate(none, CONFIG), NOT_CHECKED, "not measured"),
        (checks.append(none, CONFIG, {}), NOT_CHECKED, "not measured"),
        (checks.aggregate(step(), LOCAL), NOT_APPLICABLE, "is shared"),
        (checks.locks("gpu01", step(), LOCAL), NOT_APPLICABLE, "is shared"),
        (checks.space("gpu01", none, CONFIG, {}), NOT_CHECKED, "/shared: not measured"),
        (checks.mount({}, {}, CONFIG), NOT_CHECKED, "no mount of the node holds it"),
        (checks.operations_end("gpu01", stopped), NOT_CHECKED, "srun: no"),
        (checks.operations_end("gpu01", replace(stopped, problem="")), NOT_CHECKED, "no result"),
        (checks.visibility("gpu01", alone, CONFIG), NOT_APPLICABLE, "one node"),
        (checks.locks("gpu01", alone, CONFIG), NOT_APPLICABLE, "one node"),
        (checks.append(alone, CONFIG, {}), NOT_APPLICABLE, "one node"),
    ):
        assert (judged(verdict)[0], words in verdict.reason) == (expected, True), verdict


def test_a_full_file_system_and_one_without_inodes_fail() -> None:
    def space(**values: Any) -> Verdict:
        return checks.space("gpu01", step(of(0, "space", **values)), CONFIG, {})

    full, few = space(room=0, free=5 * 10**11), space(inodes_free=10**7 - 1)
    assert (found(full), figures(full.findings[0].expected)) == ([(PATH, [95, 9.095])], [90])
    assert (found(few), figures(few.findings[0].expected)) == ([(PATH, [9999999])], [1, 10**9, 10000])
    assert space(inodes=0, inodes_free=0).outcome is Outcome.PASSED
    assert space(inodes_free=10**7).outcome is Outcome.PASSED


# rows as quota.c of linuxquota 4 prints them, and lfs.c of Lustre 2.1 to 2.15: a name of more than 15 letters has a line of its own
NFS = "server:/export /shared nfs4 rw,relatime,vers=4.2,nconnect=16,proto=tcp,{more} 0 0\n"
ROWS = "Disk quotas for user ops (uid 1000): \n     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace\n{source} {row}\n"
LFS = "fs /shared lustre rw 0 0\nlfs quota /scratch\n/scratch 7 0 8 - 1 0 9 -\nlfs quota /shared\n{row}\n"
LIMITED = "20971520   10485760 31457280       {}  90000        0  100000       {}"
TEN_GIB = [("quota", [10]), ("quota", [10000])]


def of_nfs(row: str, source: str = "server:/export") -> str:
    return NFS + ROWS.format(source=source, row=row)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (of_nfs(LIMITED.format(0, 0)), TEN_GIB),
        (of_nfs(LIMITED.format(0, 0), "server:/export2"), []),
        (of_nfs("0  0 0  0  0  0  0  0"), []),
        (of_nfs("9* 8 0 1764322000 3* 1 2 0"), [("quota", [0]), ("quota", [0])]),
        (NFS + "Disk quotas for user ops (uid 1000): none\n", []),
        (NFS, []),
        (LFS.format(row=f"/shared {LIMITED.format('-', '-')}"), TEN_GIB),
        (LFS.format(row="/shared/a/long/path\n   5  0 6  6d23h59m 1 0 3 -"), [("quota", [1]), ("quota", [2])]),
        (LFS.format(row="/shared [5]  0 [6]  - 1 0 3 -"), []),
        (LFS.format(row=""), []),
    ],
)
def test_a_quota_that_leaves_less_than_the_run_needs_fails_and_without_one_nothing_is_stated(
    text: str, left: list[tuple[str, list[float]]]
) -> None:
    quotas = read_quotas(answer(text), (PATH,))
    verdict = checks.space("gpu01", step(), config(keys={"budget": "11 GiB"}, files=10001), quotas)
    assert found(verdict) == left
    recorded = {it.name: it.value for it in verdict.metrics if "quota" in it.name}
    assert list(recorded) == (["storage_quota_left", "storage_quota_files_left"] if left else [])
    if left == TEN_GIB:
        assert [*recorded.values()] == [10.73741824, 10000]
        enough = config(keys={"budget": "10 GiB"})
        assert checks.space("gpu01", step(), enough, quotas).outcome is Outcome.PASSED
        full = step(of(0, "space", room=2**30))  # the run writes half of what is free
        assert checks.space("gpu01", full, CONFIG, quotas).outcome is Outcome.PASSED


@pytest.mark.parametrize(("seconds", "late"), [(1.1, False), (1.2, True), (None, True)])
def test_a_change_seen_after_more_than_a_caches_second_fails(seconds: float | None, *, late: bool) -> None:
    result = step(of(0, "seen", {"change": "rename"}, seconds=seconds))
    expected = {("visibility", "gpu01"): [("rename", [seconds or 10])]}
    assert failures(result) == (expected if late else {})


HELD = {"lock": "flock", "state": "held"}


def test_the_node_whose_locks_are_its_own_fails_and_its_neighbours_do_not() -> None:
    # gpu04 takes what gpu05 holds, and gpu03 takes what gpu04 holds
    alone = step(both(of(3, "lock", HELD, problem=""), of(2, "lock", HELD, problem="")))
    assert failures(alone) == {("locks", "gpu04"): [("flock", [])]}
    # no node can be named: the one that took it has the finding
    assert failures(step(of(3, "lock", HELD, problem=""))).keys() == {("locks", "gpu04")}
    stays = step(of(0, "lock", {"lock": "fcntl", "state": "released"}, problem="held"))
    assert failures(stays) == {("locks", "gpu01"): [("fcntl", [])]}
    none = step(of(0, "locked", problems={"flock": "OSError: [Errno 38] not implemented", "fcntl": ""}))
    assert failures(none) == {("locks", "gpu01"): [("flock", [38])]}


def test_lost_records_are_a_finding_of_the_cluster_except_where_each_client_appends_by_itself() -> None:
    lost = step(of(0, "appended", lost=3))
    assert found(checks.append(lost, CONFIG, {PATH: "gpfs"})) == [("append", [3, 800])]
    for fstype in ("nfs4", "beegfs", "fuse.juicefs", "cifs"):
        assert checks.append(lost, CONFIG, {PATH: fstype}).outcome is Outcome.NOT_APPLICABLE


def wrong(reader: int, again: Any = (3,), other: Any = (3,), writer: int | None = None) -> Change:
    where = {} if writer is None else {"writer": writer}
    return of(reader, "verified", where, wrong=[3], again=list(again), other=list(other))


@pytest.mark.parametrize(
    ("again", "other", "second"), [([3], [3], "other_bytes"), ([3], [], "bytes_missing"), ([], [], "right_later")]
)
def test_wrong_bytes_name_the_blocks_and_the_writer(again: list[int], other: list[int], second: str) -> None:
    (first, _) = checks.integrity("gpu01", step(wrong(0, again, other)), CONFIG).findings
    assert (figures(first.measured), "gpu02" in str(first.measured), first.code) == ([3, 8], True, second)


def test_one_file_whose_bytes_have_not_arrived_spares_a_node_that_reads_other_bytes_in_another_one() -> None:
    verdict = checks.integrity("gpu01", step(both(wrong(0, writer=1), wrong(0, other=(), writer=2))), CONFIG)
    assert judged(verdict) == (MONITOR, ["/shared checksums"] * 2)


def test_imports_are_recorded_a_module_that_is_missing_fails_and_a_slow_import_is_a_warning() -> None:
    stated = config(keys={"imports": ["torch", "ray"]})
    assert checks.imports("gpu01", step(), CONFIG).outcome is Outcome.NOT_APPLICABLE
    assert checks.imports("gpu01", step(), stated).outcome is Outcome.NOT_CHECKED
    missing = with_fact(0, storage="imported", seconds=0.1, problem="No module named 'torch'", code="failed")
    assert judged(checks.imports("gpu01", missing, stated)) == (CONFIGURE, ["import torch, ray"])

    def change(rank: int, fact: dict[str, Any]) -> dict[str, Any]:
        imported = {"storage": "imported", "problem": "", "seconds": 4.0 + rank / 10 if rank else 60.0}
        return {**fact, **imported} if fact["storage"] == "done" else fact

    verdict = checks.imports("gpu01", step(change), stated)
    (warning,) = verdict.advisories
    assert figures(f"{warning.measured} {warning.expected}") == [60, 4.5, 8]
    assert recorded(verdict) == {"import": (60.0, "s", "", "")}
    assert judged(checks.imports("gpu02", step(change), stated)) == (PASSED, [])


def mount_verdict(mine: str, *others: str) -> Verdict:
    nodes = {node: mounted(text) for node, text in zip(NODES, (mine, *others), strict=False)}
    return checks.mount(nodes["gpu01"], usual_mounts(nodes), CONFIG)


def test_options_that_only_a_newer_kernel_prints_are_a_warning() -> None:
    old, new, newer = (f"\nkernel 6.{number}.0\n" for number in (8, 15, 16))
    plain = NFS.format(more="hard,addr=10.1.0.1")
    more = plain.replace("nconnect=16", "nconnect=16,fatal_neterrors=none")
    most = more.replace("nconnect=16", "nconnect=16,future")
    nodes = (more + new, plain + old, plain + old, most + newer)
    verdict = mount_verdict(*nodes)
    assert verdict.outcome is Outcome.PASSED
    (warning,) = verdict.advisories
    assert "fatal_neterrors=none" in str(warning.measured)
    assert mount_verdict(*nodes[1:], nodes[0]).advisories == ()
    # of one node of this kernel: it is no word of the kernel
    assert mount_verdict(more + old, *nodes[1:3]).outcome is Outcome.FAILED
    # an option instead of another one, and another value, are no words of a kernel either
    for mine in (plain.replace("hard", "soft"), plain.replace("nconnect=16", "nconnect=8")):
        assert mount_verdict(mine + new, plain + old, plain + old).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("usual", "mine"),
    [
        *(("hard", f"hard,{option}") for option in ("nocto", "noac", "sync", "acregmin=30", "nconnect=8")),
        ("hard,nconnect=8", "hard"),
        ("writecache", "readcache"),
        ("noquota", "prjquota,future"),
        ("acl", "noacl"),
    ],
)
def test_an_option_that_all_kernels_print_or_that_replaces_one_fails_so_too(usual: str, mine: str) -> None:
    line = "server:/x /shared nfs4 rw,{0},addr=10.1.0.1 0 0\nkernel {0}\n"
    old, new = line.format(usual), line.format(mine)
    (finding,) = mount_verdict(new, old, old).findings
    assert "future" not in str(finding.measured)
    assert mount_verdict(old, old, new).outcome is Outcome.PASSED


def test_kernels_may_print_other_options_in_place_of_old_ones() -> None:
    line = "/dev/md0 /shared xfs rw,{0},noquota 0 0\nkernel {0}\n"
    old, middle, new = map(line.format, ("attr2", "attr2,logbufs=8,logbsize=32k", "logbufs=8,logbsize=32k"))
    for nodes in ((old, middle, new), (new, old, old), (old, new, middle)):
        assert mount_verdict(*nodes).outcome is Outcome.PASSED


def test_a_node_without_the_mount_has_no_options_of_a_kernel() -> None:
    """Its kernel is another one, for which there is no module of the file system."""
    lustre = "fs /shared lustre rw,flock,more 0 0\nkernel 4\n"
    verdict = mount_verdict("/dev/sda2 / ext4 rw,errors=remount-ro 0 0\nkernel 5\n", lustre, lustre)
    assert (judged(verdict), verdict.advisories) == ((CONFIGURE, [PATH]), ())
    assert str(verdict.findings[0].measured) == "ext4 errors=remount-ro,rw"
    assert str(verdict.findings[0].expected).startswith("lustre flock,more,rw")


def test_an_nfs_client_that_gives_up_is_a_warning_and_a_file_system_that_is_read_only_fails() -> None:
    for option in ("soft", "softerr"):
        soft = NFS.format(more=option)
        assert judged(mount_verdict(soft, soft, soft)) == (WARNING, [PATH])
        assert mount_verdict(soft.replace(" rw,", " ro,"), soft).advisories == ()
    for options in ("ro", "emergency_ro", "shutdown", "emergency_ro,shutdown"):
        disk = f"/dev/md0 /shared ext4 {options},noatime 0 0\n"
        (finding,) = mount_verdict(disk, disk, disk, disk).findings
        assert str(finding.measured).endswith(options.replace(",", ", "))


DF = "UUID                   1K-blocks        Used   Available Use% Mounted on\nfs-MDT0000_UUID   9174328  1020024  8154304  11% /shared[MDT:0]\n"
OST = "fs-OST0000_UUID  94181368 56330708 37850660  59% /shared[OST:0]\n"
SUM = "\nfilesystem_summary:  94181368 56330708 37850660  59% /shared\n\n"
ABSENT = "fs-OST0001_UUID     : inactive device\nOST0002             : Resource temporarily unavailable\n"


def lustre(df: str) -> str:
    head = "10.0.0.1@o2ib:/fs /shared lustre rw,flock,lazystatfs 0 0\n"
    return f"{head}lfs df /shared\n{df}lfs getstripe /shared\n4\n" if df else head


def test_an_absent_target_of_lustre_fails() -> None:
    absent = checks.lustre(mounted(lustre(DF + OST + ABSENT + SUM)))
    assert parts(absent) == ["/shared fs-OST0001_UUID", "/shared OST0002"]
    assert checks.lustre(mounted(lustre(""))).outcome is Outcome.NOT_CHECKED


@pytest.mark.parametrize(
    ("letters", "expected", "states"),
    [
        ("f", PASSED, []),
        ("Df", WARNING, ["degraded"]),
        ("NS", WARNING, ["no_new_files", "out_of_space"]),
        ("X", WARNING, ["unknown_state"]),
        ("R", MONITOR, ["read_only"]),
    ],
)
def test_only_a_read_only_target_of_lustre_fails(letters: str, expected: str, states: list[str]) -> None:
    target = OST.replace("[OST:0]", f"[OST:0] {letters}")
    verdict = checks.lustre(mounted(lustre(DF + target + SUM)))
    assert judged(verdict) == (expected, ["/shared fs-OST0000_UUID"] * len(states))
    assert [it.code for it in (*verdict.findings, *verdict.advisories)] == states


def recorded(verdict: Verdict) -> dict[str, tuple[float, str, str, str]]:
    return {m.name.removeprefix("storage_"): (m.value, m.unit, m.device, m.better) for m in verdict.metrics}


def machine(
    check: Any, words: str, source: str, expected: str, change: Change = None, node: str = "gpu01", **more: bool
) -> CounterExample:
    return CounterExample(check.name, words, source, expected, lambda: of_node(check, node, step(change)), **more)


def of_mounts(words: str, source: str, expected: str, text: str, **more: bool) -> CounterExample:
    return CounterExample("storage.lustre", words, source, expected, lambda: checks.lustre(mounted(text)), **more)


def busy(rank: int, fact: Mapping[str, Any]) -> dict[str, Any]:
    """All nodes have a fifth of the rate, and latencies of a busy server."""
    scaled: dict[str, Any] = {key: fact[key] / 5 for key in ("rate", "iops") if key in fact}
    slow = {"latency": {"50": 30.0 + rank, "95": 90.0, "99": 300.0}} if "latency" in fact else {}
    return {**fact, **scaled, **slow}


def broken(rank: int, fact: dict[str, Any]) -> dict[str, Any]:
    problem = {"storage": "problem", "step": "read", "reason": "Input/output error", "code": "EIO"}
    return {**fact, **problem} if rank == 0 and fact["storage"] == "locked" else fact


INTEGRITY, BANDWIDTH, LATE, FILES = checks.integrity, checks.bandwidth, checks.latency, checks.metadata
NOISE = of(2, "read", TOGETHER, rate=1.0)
NEIGHBOUR = both(wrong(0, writer=1), wrong(7, writer=1))
FAR = of(0, "random", iops=90.0, latency={"50": 90.0, "99": 99.0})
SHARED = "shared storage in production"
COUNTER_EXAMPLES = (
    machine(INTEGRITY, "Lustre with checksums on the wire", "lustre manual", PASSED),
    machine(INTEGRITY, "a cache, right at the second reading", "NFS", MONITOR, wrong(0, again=(), other=())),
    machine(INTEGRITY, "a cache that has not got the bytes", "gcsfuse", MONITOR, wrong(0, other=())),
    machine(INTEGRITY, "a reader of what a neighbour wrote wrong", "the writer's memory", MONITOR, NEIGHBOUR),
    machine(INTEGRITY, "a node beside one with broken memory", "gpu02 is at fault", PASSED, wrong(1)),
    machine(INTEGRITY, "wrong bytes where others read right", "DIMM", DRAIN, wrong(0), sick=True),
    machine(BANDWIDTH, "a busy server serves all nodes slowly", SHARED, PASSED, busy),
    machine(BANDWIDTH, "slow once, in one direction", "traffic of another job", WARNING, NOISE, "gpu03"),
    machine(BANDWIDTH, "a cable at a tenth of speed", "link trained down", MONITOR, SLOW_ALONE, sick=True),
    machine(LATE, "a busy server", SHARED, PASSED, busy),
    machine(LATE, "a node behind a slow switch", "each access takes 90 ms", MONITOR, FAR, sick=True),
    machine(FILES, "a metadata server that is busy", "many users", PASSED, busy),
    machine(FILES, "an old folder in a cache", "NFS, acdirmax", MONITOR, of(0, "listed", seen=0), sick=True),
    machine(checks.operations_end, "a file system without errors", "GPFS, Lustre, NFS", PASSED),
    machine(checks.operations_end, "a node with a broken disk", "EIO", MONITOR, broken, sick=True),
    of_mounts("no Lustre", "NFS", NOT_APPLICABLE, NFS.format(more="hard")),
    of_mounts("all targets answer", "lfs df", PASSED, lustre(DF + OST + SUM)),
    of_mounts("a target that recovers", "failover of an OSS", MONITOR, lustre(DF + ABSENT), sick=True),
)
test_machine_is_judged_as_an_operator_would = considered(COUNTER_EXAMPLES)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("seen", {"seconds": None}),
        ("lock", {"problem": ""}),
        ("verified", {"wrong": [3], "again": [3], "other": [3]}),
        ("problem", {}),
    ],
)
def test_a_fault_of_all_nodes_is_one_finding_without_a_repair(kind: str, values: dict[str, Any]) -> None:
    def change(_rank: int, fact: dict[str, Any]) -> dict[str, Any]:
        if kind == "problem":
            return broken(0, fact)
        return {**fact, **values} if fact["storage"] == kind else fact

    whole = step(change)
    verdicts = {(check, node): of_node(check, node, whole) for check in OF_NODES for node in NODES}
    failed = {key: it for key, it in verdicts.items() if it.outcome is Outcome.FAILED}
    (check,) = {check for check, _ in failed}
    assert not any(it.action.is_repair for it in failed.values())
    findings = [(node, finding) for (_, node), it in failed.items() for finding in it.findings]
    places = {node: Place(group="all", partition="batch") for node in NODES}
    (common,) = common_findings(check.name, findings, NODES, places)
    assert set(common.nodes) == set(NODES)
