"""Verdicts on what the tasks of the step report: eight nodes on one shared file system."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_APPLICABLE,
    PASSED,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)
from judged import figures

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.common_cause import Place, common_findings
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.storage import checks
from pytest_gpucluster.suites.storage.config import LocalLimit, StorageConfig
from pytest_gpucluster.suites.storage.facts import Quota, read_mounts, read_quotas, usual_mounts
from pytest_gpucluster.suites.storage.payload import named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.core.check import Verdict

    Facts = list[dict[str, Any]]

SIZE = 8
NODES = tuple(f"gpu{number:02}" for number in range(1, SIZE + 1))
PATH = "/shared"
CONFIG = StorageConfig.model_validate({"filesystems": [{"path": PATH}]})
LATENCY = {"50": 1.0, "95": 2.0, "99": 3.0}


def facts_of(rank: int) -> Facts:
    """Return what a healthy task reports; rates vary by some percent."""
    vary = 1 + 0.01 * (rank % 5)
    after, second = (rank + 1) % SIZE, (rank + 2) % SIZE
    found: Facts = [
        {"storage": "space", "free": 9 * 10**12, "size": 10**13, "room": 8 * 10**12, "inodes": 10**9, "inodes_free": 9 * 10**8},
        *({"storage": what, "how": "together", "rate": 2.0 * vary, "seconds": 3.0} for what in ("write", "read")),
        *({"storage": "random", "what": what, "iops": 9000 * vary, "latency": LATENCY} for what in ("read", "write")),
        {"storage": "fsync", "latency": LATENCY},
        *({"storage": "metadata", "what": what, "count": 100, "seconds": 0.5 / vary} for what in ("create", "stat", "list", "remove")),
        {"storage": "listed", "writer": after, "seen": 100, "made": 100},
        *({"storage": "verified", "writer": writer, "blocks": 8, "wrong": [], "again": [], "other": []} for writer in (after, second)),
        *({"storage": "seen", "change": change, "writer": after, "seconds": 0.01} for change in ("create", "overwrite", "rename")),
        {"storage": "locked", "problems": {"flock": "", "fcntl": ""}},
        *(
            {"storage": "lock", "lock": lock, "state": state, "problem": problem, "holder": after}
            for lock in ("flock", "fcntl")
            for state, problem in (("held", "held"), ("released", ""))
        ),
        {"storage": "done"},
    ]  # fmt: skip
    if rank in (0, 1, 4):  # the fastest and the slowest ones
        found += [
            {"storage": what, "how": "alone", "rate": 7.0 * vary, "seconds": 3.0}
            for what in ("write", "read")
        ]
    return found + ([{"storage": "appended", "records": 800, "lost": 0}] if rank == 0 else [])


def step(
    change: Callable[[int, dict[str, Any]], dict[str, Any] | None] | None = None, size: int = SIZE
) -> PayloadResult:
    """Return a step; `change` replaces a fact of a rank, None removes it."""
    tasks = []
    for rank in range(size):
        facts = [{"path": PATH, "rank": rank, "node": NODES[rank], **fact} for fact in facts_of(rank)]
        changed = [fact if change is None else change(rank, fact) for fact in facts]
        tasks.append(PayloadTask(rank, NODES[rank], 0, None, tuple(fact for fact in changed if fact)))
    return PayloadResult("storage", NODES[:size], size, tuple(tasks))


def of(rank: int, kind: str, **values: Any) -> Callable[[int, dict[str, Any]], dict[str, Any]]:
    """Change the facts of one kind of one rank; `where_` selects those with these values."""
    where = values.pop("where", {})

    def change(number: int, fact: dict[str, Any]) -> dict[str, Any]:
        chosen = (
            fact["storage"] == kind and number == rank and all(fact[key] == it for key, it in where.items())
        )
        return {**fact, **values} if chosen else fact

    return change


def both(
    *changes: Callable[[int, dict[str, Any]], dict[str, Any] | None],
) -> Callable[[int, dict[str, Any]], Any]:
    def change(rank: int, fact: dict[str, Any]) -> dict[str, Any] | None:
        found: dict[str, Any] | None = fact
        for one in changes:
            found = one(rank, found) if found else None
        return found

    return change


def with_fact(rank: int, **values: Any) -> PayloadResult:
    """Return a healthy step in which a task reports one fact more."""
    whole = step()
    task = whole.tasks[rank]
    more = {"path": PATH, "rank": rank, "node": task.node, **values}
    tasks = list(whole.tasks)
    tasks[rank] = PayloadTask(rank, task.node, 0, None, (*task.facts, more))
    return PayloadResult("storage", NODES, SIZE, tuple(tasks))


NO_OPERATION = named(OSError(errno.EOPNOTSUPP, "Operation not supported"))["code"]
NFS = "server:/export /shared nfs4 rw,relatime,vers=4.2,nconnect=16,proto=tcp,{more} 0 0\n"
LUSTRE = (
    "10.0.0.1@o2ib:/fs /shared lustre rw,flock,lazystatfs 0 0\nlfs df /shared\n{df}lfs getstripe /shared\n4\n"
)
DF = "UUID                   1K-blocks        Used   Available Use% Mounted on\nfs-MDT0000_UUID   9174328  1020024  8154304  11% /shared[MDT:0]\n"
OST = "fs-OST0000_UUID  94181368 56330708 37850660  59% /shared[OST:0]\n"
SUM = "\nfilesystem_summary:  94181368 56330708 37850660  59% /shared\n\n"


def mounted(text: str) -> Any:
    return read_mounts(Answer("gpu01", 0, text.encode()), (PATH,))


def quotas(text: str) -> Any:
    return read_quotas(Answer("gpu01", 0, text.encode()), (PATH,))


def found(verdict: Verdict) -> list[str]:
    return [f"{it.part}: {it.measured}" for it in verdict.findings]


OF_NODES = (
    checks.operations_end, checks.space, checks.bandwidth, checks.latency, checks.metadata, checks.visibility, checks.locks,
    checks.integrity,
)  # fmt: skip


def judged(check: Any, node: str, result: PayloadResult) -> Verdict:
    given: dict[Any, tuple[Any, ...]] = {checks.operations_end: (), checks.space: (CONFIG, {})}
    verdict: Verdict = check(node, result, *given.get(check, (CONFIG,)))
    return verdict


def failures(result: PayloadResult) -> dict[tuple[str, str], list[str]]:
    """Return {(check, node): findings} of all checks on all nodes."""
    ends = {(check.name, node): judged(check, node, result) for check in OF_NODES for node in result.nodes}
    return {key: found(verdict) for key, verdict in ends.items() if verdict.outcome is Outcome.FAILED}


SLOW_BOTH = both(
    of(0, "write", rate=0.2, where={"how": "together"}), of(0, "read", rate=0.2, where={"how": "together"})
)
SLOW_ALONE = both(
    SLOW_BOTH,
    of(0, "write", rate=0.25, where={"how": "alone"}),
    of(0, "read", rate=0.25, where={"how": "alone"}),
)


def test_healthy_nodes_pass_every_check() -> None:
    whole = step()
    ends = [judged(check, node, whole) for check in OF_NODES for node in NODES]
    assert {verdict.outcome for verdict in ends} == {Outcome.PASSED}
    assert [verdict.advisories for verdict in ends if verdict.advisories] == []
    assert checks.aggregate(whole, CONFIG).outcome is Outcome.PASSED
    assert checks.append(whole, CONFIG, {PATH: "lustre"}).outcome is Outcome.PASSED


def test_a_node_that_is_slow_alone_too_fails_and_both_rates_are_stated() -> None:
    failed = failures(step(SLOW_ALONE))
    assert failed.keys() == {("storage.bandwidth", "gpu01")}
    assert failed["storage.bandwidth", "gpu01"] == [
        "/shared write: 0.2 GB/s with all nodes; alone 0.25, the fastest node alone 7.28",
        "/shared read: 0.2 GB/s with all nodes; alone 0.25, the fastest node alone 7.28",
    ]


def test_a_node_that_is_slow_only_beside_the_others_fails_in_both_directions_and_warns_in_one() -> None:
    assert failures(step(SLOW_BOTH)).keys() == {("storage.bandwidth", "gpu01")}
    once = step(of(0, "read", rate=0.2, where={"how": "together"}))
    assert failures(once) == {}
    (warning,) = checks.bandwidth("gpu01", once, CONFIG).advisories
    assert warning.measured.startswith("0.2 GB/s with all nodes; alone 7, ")


def test_nodes_with_other_adapters_are_compared_with_their_own_group() -> None:
    def half(rank: int, fact: dict[str, Any]) -> dict[str, Any]:
        """Give two nodes of eight half of every rate, together and alone."""
        scaled: dict[str, Any] = {key: fact[key] / 2 for key in ("rate", "iops") if key in fact}
        return {**fact, **scaled} if rank in (0, 1) else fact

    mixed = step(half)
    assert {node for _, node in failures(mixed)} == {"gpu01", "gpu02"}
    for check in (checks.bandwidth, checks.latency, checks.metadata):
        for node, peers in (("gpu01", NODES[:2]), ("gpu03", NODES[2:])):
            verdict = check(node, mixed, CONFIG, (), peers)
            assert (verdict.outcome, verdict.advisories) == (Outcome.PASSED, ())


def test_slow_nodes_without_a_faster_majority_are_a_warning() -> None:
    """Three of eight nodes with half of the rate: a leaf, a server, or another kind of node."""
    half = both(*(of(rank, what, rate=0.9) for rank in (0, 1, 2) for what in ("write", "read")))
    mixed = step(half)
    assert failures(mixed) == {}
    assert [len(checks.bandwidth(node, mixed, CONFIG).advisories) for node in NODES[:4]] == [2, 2, 2, 0]


def test_a_measurement_of_some_milliseconds_names_no_node() -> None:
    brief = both(SLOW_ALONE, *(of(0, what, seconds=0.05) for what in ("write", "read")))
    assert failures(step(brief)) == {}


def test_a_local_disk_that_is_slow_in_one_direction_fails() -> None:
    local = StorageConfig.model_validate({"filesystems": [{"path": PATH, "kind": "local"}]})
    slow = of(0, "write", rate=0.2, where={"how": "together"})
    on_disk = step(both(lambda _rank, fact: None if fact.get("how") == "alone" else fact, slow))
    assert found(checks.bandwidth("gpu01", on_disk, local)) == ["/shared write: 0.2 GB/s with all nodes"]
    assert checks.bandwidth("gpu02", on_disk, local).outcome is Outcome.PASSED


def test_a_rate_that_the_spread_hides_fails_if_the_node_is_slow_alone_too() -> None:
    def spread(rank: int, fact: dict[str, Any]) -> dict[str, Any]:
        if fact["storage"] == "write" and fact["how"] == "together":
            return {**fact, "rate": (0.3, 1.2, 2.8, 1.0, 2.9, 1.1, 3.0, 2.7)[rank]}
        return fact

    assert failures(step(spread)) == {}
    slow = step(both(spread, of(0, "write", rate=0.3, where={"how": "alone"})))
    assert failures(slow).keys() == {("storage.bandwidth", "gpu01")}


@pytest.mark.parametrize(
    ("alone", "limit"), [(7.0, "the server or a shared link limits"), (2.1, "each client limits")]
)
def test_the_sum_is_compared_with_the_figures_and_what_limits_is_named(alone: float, limit: str) -> None:
    def change(_rank: int, fact: dict[str, Any]) -> dict[str, Any]:
        return {**fact, "rate": alone} if fact.get("how") == "alone" else fact

    section = {"path": PATH, "preset": "together", "expect": {"read": "100 GB/s"}}
    stated = StorageConfig.model_validate({"filesystems": [section]})
    verdict = checks.aggregate(step(change), stated)
    assert found(verdict) == [f"/shared read: 16.3 GB/s by 8 nodes, one alone {alone:g}; {limit}"]
    assert verdict.findings[0].expected == "at least 100 GB/s (storage.expect.read)"
    metrics = {metric.name: metric.value for metric in verdict.metrics}
    assert metrics["storage_all_write"] == pytest.approx(16.26)
    assert metrics["storage_all_read_alone"] == alone
    assert metrics["storage_all_creates"] == pytest.approx(1626)


def test_each_node_must_reach_the_figures_of_a_local_file_system() -> None:
    section = {
        "path": PATH,
        "kind": "local",
        "expect": {"read": "2.01 GB/s", "read_iops": 100, "creates": 9000},
    }
    stated = StorageConfig.model_validate({"filesystems": [section]})
    whole = step()
    assert found(checks.bandwidth("gpu01", whole, stated)) == ["/shared read: 2 GB/s"]
    assert checks.bandwidth("gpu02", whole, stated).outcome is Outcome.PASSED
    assert checks.latency("gpu01", whole, stated).outcome is Outcome.PASSED
    assert found(checks.metadata("gpu01", whole, stated)) == ["/shared create_files: 200 files/s"]
    assert checks.aggregate(whole, stated).outcome is Outcome.NOT_APPLICABLE


def test_each_node_must_reach_the_figures_of_its_profile_on_a_local_file_system() -> None:
    local = StorageConfig.model_validate({"filesystems": [{"path": PATH, "kind": "local"}]})
    row = {"path": PATH, "write": "2.01 GB/s", "write_iops": 9001, "creates": 201, "source": "lab"}
    rows = (LocalLimit.model_validate(row),)
    whole = step()
    for check, limit in ((checks.bandwidth, 2.01), (checks.latency, 9000), (checks.metadata, 201)):
        (finding,) = check("gpu01", whole, local, rows).findings
        assert (figures(finding.expected), "row of storage: lab" in finding.expected) == ([limit], True)
        assert check("gpu02", whole, local, rows).outcome is Outcome.PASSED
        assert check("gpu01", whole, CONFIG, rows).outcome is Outcome.PASSED  # shared


@pytest.mark.parametrize(
    ("code", "action"),
    [
        *((code, CONFIGURE) for code in ("ENOSPC", "EDQUOT", "", "ENOSYS", NO_OPERATION, "ValueError")),
        *((code, MONITOR) for code in ("EIO", "ESTALE", "ESHUTDOWN", "Failure")),
    ],
)
def test_an_error_is_a_failure_of_its_node_with_the_part_in_which_it_came(code: str, action: str) -> None:
    result = with_fact(2, storage="problem", step="write", reason="No space left on device", code=code)
    verdict = checks.operations_end("gpu03", result)
    assert found(verdict) == ["/shared: write: No space left on device"]
    assert (verdict.findings[0].action or verdict.action).value == action
    assert failures(result).keys() == {("storage.operations", "gpu03")}


def test_a_node_that_hangs_fails_and_one_that_lost_the_first_node_is_not_checked() -> None:
    hung = with_fact(1, storage="stuck", phase="/shared: read", seconds=45.0)
    assert found(checks.operations_end("gpu02", hung)) == ["/shared: read: no end after 45 s"]
    lost = with_fact(1, storage="unconnected", reason="the first node of the step went away: closed")
    assert checks.operations_end("gpu02", lost).outcome is Outcome.NOT_CHECKED
    silent = step(lambda rank, fact: None if rank == 1 else fact)
    assert checks.operations_end("gpu02", silent).outcome is Outcome.NOT_CHECKED


def test_what_was_not_measured_never_passes() -> None:
    silent = step(lambda rank, fact: None if rank == 1 else fact)
    for check in OF_NODES:
        assert judged(check, "gpu02", silent).outcome is Outcome.NOT_CHECKED, check.name
    none = step(lambda _rank, _fact: None)
    assert checks.aggregate(none, CONFIG).outcome is Outcome.NOT_CHECKED
    assert checks.append(none, CONFIG, {}).outcome is Outcome.NOT_CHECKED


def test_a_full_file_system_and_one_without_inodes_fail() -> None:
    full = step(of(0, "space", room=0, free=5 * 10**11))
    assert found(judged(checks.space, "gpu01", full)) == ["/shared: 95% of 9.095 TiB used"]
    few = step(of(0, "space", inodes_free=10**6))
    assert found(judged(checks.space, "gpu01", few)) == ["/shared: 1000000 inodes left"]
    uncounted = step(of(0, "space", inodes=0, inodes_free=0))
    assert judged(checks.space, "gpu01", uncounted).outcome is Outcome.PASSED


# rows as quota.c of linuxquota 4 prints them, and lfs.c of Lustre 2.1 to 2.15: a name of more than 15 letters has a line of its own
ROWS = "Disk quotas for user ops (uid 1000): \n     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace\n{source} {row}\n"
LFS = "lfs quota /scratch\n/scratch 7 0 8 - 1 0 9 -\nlfs quota /shared\n{row}\n"
LIMITED = "20971520   10485760 31457280       0  90000        0  100000       0"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (NFS + ROWS.format(source="server:/export", row=LIMITED), ["10 GiB left", "10000 files left"]),
        (NFS + ROWS.format(source="server:/export2", row=LIMITED), []),
        (NFS + ROWS.format(source="server:/export", row="0  0 0  0  0  0  0  0"), []),
        (NFS + ROWS.format(source="server:/export", row="9* 8 0 1764322000 3* 1 2 0"), ["0 B left", "0 files left"]),
        (NFS + "Disk quotas for user ops (uid 1000): none\n", []),
        (NFS, []),
        ("fs /shared lustre rw 0 0\n" + LFS.format(row="/shared 20971520  10485760 31457280       -  90000        0  100000       -"), ["10 GiB left", "10000 files left"]),
        ("fs /shared lustre rw 0 0\n" + LFS.format(row="/shared/a/long/path\n   5  0 6  6d23h59m 1 0 3 -"), ["1 KiB left", "2 files left"]),
        ("fs /shared lustre rw 0 0\n" + LFS.format(row="/shared [5]  0 [6]  - 1 0 3 -"), []),
        ("fs /shared lustre rw 0 0\n" + LFS.format(row=""), []),
    ],
)  # fmt: skip
def test_a_quota_that_leaves_less_than_the_run_needs_fails_and_without_one_nothing_is_stated(
    text: str, left: list[str]
) -> None:
    stated = StorageConfig.model_validate(
        {"filesystems": [{"path": PATH}], "budget": "11 GiB", "files": 10001}
    )
    verdict = checks.space("gpu01", step(), stated, quotas(text))
    assert found(verdict) == [f"/shared quota: {it}" for it in left]
    recorded = [it.name for it in verdict.metrics if "quota" in it.name]
    assert recorded == (["storage_quota_left", "storage_quota_files_left"] if left else [])
    assert verdict.action.value == CONFIGURE


def test_a_quota_that_leaves_enough_is_recorded() -> None:
    text = NFS + ROWS.format(source="server:/export", row=LIMITED)
    stated = StorageConfig.model_validate(
        {"filesystems": [{"path": PATH}], "budget": "10 GiB", "files": 10000}
    )
    verdict = checks.space("gpu01", step(), stated, quotas(text))
    assert verdict.outcome is Outcome.PASSED
    values = {it.name: it.value for it in verdict.metrics}
    assert (values["storage_quota_left"], values["storage_quota_files_left"]) == (10.73741824, 10000)
    full = step(of(0, "space", room=2**30))  # the run writes half of what is free
    much = StorageConfig.model_validate({"filesystems": [{"path": PATH}]})
    assert checks.space("gpu01", full, much, quotas(text)).outcome is Outcome.PASSED


def test_a_node_that_is_slow_in_one_figure_of_short_operations_is_a_warning() -> None:
    once = step(of(0, "fsync", latency={"50": 90.0}))
    assert failures(once) == {}
    assert len(checks.latency("gpu01", once, CONFIG).advisories) == 1
    twice = step(
        both(of(0, "fsync", latency={"50": 90.0}), of(0, "random", iops=90.0, where={"what": "read"}))
    )
    assert failures(twice).keys() == {("storage.latency", "gpu01")}
    files = step(
        both(
            of(0, "metadata", seconds=50.0, where={"what": "create"}),
            of(0, "metadata", seconds=50.0, where={"what": "stat"}),
        )
    )
    assert failures(files).keys() == {("storage.metadata", "gpu01")}


def test_two_figures_of_one_measurement_are_one_except_on_a_disk_of_the_node() -> None:
    """Accesses per second and their median time: other load of 3 s is in both."""
    burst = step(of(0, "random", iops=900.0, latency={"50": 9.0}, where={"what": "read"}))
    assert failures(burst) == {}
    assert len(checks.latency("gpu01", burst, CONFIG).advisories) == 2
    local = StorageConfig.model_validate({"filesystems": [{"path": PATH, "kind": "local"}]})
    assert len(checks.latency("gpu01", burst, local).findings) == 2


def test_a_folder_that_does_not_list_all_files_of_another_node_fails() -> None:
    assert failures(step(of(3, "listed", seen=90))) == {
        ("storage.metadata", "gpu04"): ["/shared list: 90 files"]
    }


@pytest.mark.parametrize(("seconds", "late"), [(1.006, False), (1.2, True), (None, True)])
def test_a_change_that_is_seen_late_fails_but_not_when_a_cache_of_one_second_ends(
    seconds: float | None, *, late: bool
) -> None:
    result = step(of(0, "seen", seconds=seconds, where={"change": "rename"}))
    assert list(failures(result)) == [("storage.visibility", "gpu01")] * late
    verdict = checks.visibility("gpu01", result, CONFIG)
    assert [(it.part, figures(it.measured)) for it in verdict.findings] == [
        ("/shared rename", [seconds or 10])
    ] * late


def test_the_node_whose_locks_are_its_own_fails_and_its_neighbours_do_not() -> None:
    held = {"lock": "flock", "state": "held"}
    # gpu04 takes what gpu05 holds, and gpu03 takes what gpu04 holds
    alone = step(both(of(3, "lock", problem="", where=held), of(2, "lock", problem="", where=held)))
    assert failures(alone) == {("storage.locks", "gpu04"): ["/shared flock: taken while gpu05 holds it"]}
    # no node can be named: the one that took it has the finding
    one = step(of(3, "lock", problem="", where=held))
    assert failures(one).keys() == {("storage.locks", "gpu04")}


def test_a_lock_that_stays_and_a_file_system_without_locks_fail() -> None:
    stays = step(of(0, "lock", problem="held", where={"state": "released", "lock": "fcntl"}))
    assert failures(stays) == {("storage.locks", "gpu01"): ["/shared fcntl: held after gpu02 released it"]}
    without = step(
        of(0, "locked", problems={"flock": "OSError: [Errno 38] Function not implemented", "fcntl": ""})
    )
    assert failures(without).keys() == {("storage.locks", "gpu01")}


def test_lost_records_are_a_finding_of_the_cluster_except_where_each_client_appends_by_itself() -> None:
    lost = step(of(0, "appended", lost=3))
    assert found(checks.append(lost, CONFIG, {PATH: "gpfs"})) == ["/shared append: 3 of 800 records are lost"]
    for fstype in ("nfs4", "beegfs", "fuse.juicefs", "cifs"):
        assert checks.append(lost, CONFIG, {PATH: fstype}).outcome is Outcome.NOT_APPLICABLE


def wrong(
    reader: int, again: Any = (3,), other: Any = (3,), writer: int | None = None
) -> Callable[[int, dict[str, Any]], dict[str, Any]]:
    where = {} if writer is None else {"writer": writer}
    return of(reader, "verified", wrong=[3], again=list(again), other=list(other), where=where)


@pytest.mark.parametrize(
    ("again", "other", "second"),
    [([3], [3], "other bytes"), ([3], [], "not all bytes have arrived"), ([], [], "right")],
)
def test_wrong_bytes_name_the_blocks_and_the_writer(again: list[int], other: list[int], second: str) -> None:
    (first, _) = failures(step(wrong(0, again, other)))["storage.integrity", "gpu01"]
    assert (
        first == f"/shared checksums: MiB 3 of 8 that gpu02 wrote are wrong; at the second reading: {second}"
    )


def test_one_file_whose_bytes_have_not_arrived_spares_a_node_that_reads_other_bytes_in_another_one() -> None:
    result = step(both(wrong(0, writer=1), wrong(0, other=(), writer=2)))
    verdict = checks.integrity("gpu01", result, CONFIG)
    assert len(verdict.findings) == 2
    assert verdict.action.value == MONITOR


def test_with_one_node_nothing_between_nodes_is_judged() -> None:
    alone = step(size=1)
    for check in (checks.visibility, checks.locks):
        assert check("gpu01", alone, CONFIG).outcome is Outcome.NOT_APPLICABLE
    assert checks.append(alone, CONFIG, {}).outcome is Outcome.NOT_APPLICABLE


def test_imports_are_recorded_and_a_module_that_is_missing_fails() -> None:
    stated = StorageConfig.model_validate({"filesystems": [{"path": PATH}], "imports": ["torch"]})
    assert checks.imports("gpu01", step(), CONFIG).outcome is Outcome.NOT_APPLICABLE
    assert checks.imports("gpu01", step(), stated).outcome is Outcome.NOT_CHECKED
    done = checks.imports("gpu01", with_fact(0, storage="imported", seconds=4.0, problem=""), stated)
    assert [(it.name, it.value) for it in done.metrics] == [("storage_import", 4.0)]
    missing = with_fact(0, storage="imported", seconds=0.1, problem="No module named 'torch'")
    assert found(checks.imports("gpu01", missing, stated)) == ["import torch: No module named 'torch'"]


# -- mounts


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
    assert warning.measured == "fatal_neterrors=none on all nodes with kernel 6.15.0"
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
def test_an_option_that_every_kernel_prints_or_that_replaces_its_like_fails_with_a_new_kernel(
    usual: str, mine: str
) -> None:
    old, new = (
        f"server:/x /shared nfs4 rw,{options},addr=10.1.0.1 0 0\nkernel {options}\n"
        for options in (usual, mine)
    )
    (finding,) = mount_verdict(new, old, old).findings
    assert "future" not in finding.measured
    assert mount_verdict(old, old, new).outcome is Outcome.PASSED


def test_kernels_may_print_other_options_in_place_of_old_ones() -> None:
    old, middle, new = (
        f"/dev/md0 /shared xfs rw,{options},noquota 0 0\nkernel {options}\n"
        for options in ("attr2", "attr2,logbufs=8,logbsize=32k", "logbufs=8,logbsize=32k")
    )
    for nodes in ((old, middle, new), (new, old, old), (old, new, middle)):
        assert mount_verdict(*nodes).outcome is Outcome.PASSED


def test_a_node_without_the_mount_has_no_options_of_a_kernel() -> None:
    """Its kernel is another one, for which there is no module of the file system."""
    lustre, root = (
        "fs /shared lustre rw,flock,more 0 0\nkernel 4\n",
        "/dev/sda2 / ext4 rw,errors=remount-ro 0 0\nkernel 5\n",
    )
    verdict = mount_verdict(root, lustre, lustre)
    assert found(verdict) == ["/shared: ext4 errors=remount-ro,rw"]
    assert verdict.findings[0].expected.startswith("lustre flock,more,rw")
    assert verdict.advisories == ()


def test_another_option_of_one_mount_fails_and_addresses_may_differ() -> None:
    nfs = [NFS.format(more=f"clientaddr=10.0.0.{number},addr=10.1.0.{number % 2}") for number in range(4)]
    assert mount_verdict(*nfs).outcome is Outcome.PASSED
    assert [(it.name, it.value) for it in mount_verdict(*nfs).metrics] == [("storage_nconnect", 16.0)]
    udp = nfs[0].replace("vers=4.2", "vers=3")
    (finding,) = mount_verdict(udp, *nfs[1:]).findings
    assert "vers=3" in finding.measured
    assert finding.expected.endswith("as on 3 of 4 nodes")
    assert (
        "mounted read-only"
        in mount_verdict(nfs[0].replace(" rw,relatime", " ro,relatime"), *nfs[1:]).findings[0].measured
    )


@pytest.mark.parametrize("option", ["soft", "softerr"])
def test_an_nfs_client_that_gives_up_is_a_warning(option: str) -> None:
    soft = NFS.format(more=option)
    (warning,) = mount_verdict(soft, soft, soft).advisories
    assert warning.measured == f"{option}, so that writes may be lost while the server is away"
    assert mount_verdict(soft.replace(" rw,", " ro,"), soft).advisories == ()


@pytest.mark.parametrize("option", ["ro", "emergency_ro", "shutdown"])
def test_a_local_file_system_that_the_kernel_made_read_only_fails(option: str) -> None:
    disk = f"/dev/md0 /shared ext4 {option},noatime 0 0\n"
    assert found(mount_verdict(disk, disk, disk, disk)) == [f"/shared: mounted read-only: {option}"]


def test_an_absent_target_of_lustre_fails() -> None:
    healthy = mounted(LUSTRE.format(df=DF + OST + SUM))
    assert checks.lustre(healthy).outcome is Outcome.PASSED
    assert healthy[PATH].stripes == 4
    absent = "fs-OST0001_UUID     : inactive device\nOST0002             : Resource temporarily unavailable\n"
    assert found(checks.lustre(mounted(LUSTRE.format(df=DF + OST + absent + SUM)))) == [
        "/shared fs-OST0001_UUID: inactive device",
        "/shared OST0002: Resource temporarily unavailable",
    ]
    assert checks.lustre(mounted(NFS.format(more="hard"))).outcome is Outcome.NOT_APPLICABLE
    unread = mounted(LUSTRE.partition("\n")[0] + "\n")
    assert checks.lustre(unread).outcome is Outcome.NOT_CHECKED


@pytest.mark.parametrize(
    ("letters", "outcome", "warnings"),
    [
        ("f", Outcome.PASSED, []),
        ("Df", Outcome.PASSED, ["degraded, as while its RAID is rebuilt"]),
        ("NS", Outcome.PASSED, ["takes no new files", "out of space"]),
        ("X", Outcome.PASSED, ["state X"]),
        ("R", Outcome.FAILED, []),
    ],
)
def test_a_read_only_target_of_lustre_fails_and_another_state_is_a_warning(
    letters: str, outcome: Outcome, warnings: list[str]
) -> None:
    target = OST.replace("[OST:0]", f"[OST:0] {letters}")
    verdict = checks.lustre(mounted(LUSTRE.format(df=DF + target + SUM)))
    assert (verdict.outcome, [it.measured for it in verdict.advisories]) == (outcome, warnings)
    if verdict.findings:
        assert found(verdict) == ["/shared fs-OST0000_UUID: read-only"]


# -- what is recorded and stated


def recorded(verdict: Verdict) -> dict[str, tuple[float, str, str, str]]:
    return {it.name: (it.value, it.unit, it.device, it.better) for it in verdict.metrics}


def test_each_figure_of_a_node_is_recorded_with_its_unit_and_direction() -> None:
    whole = step()
    assert recorded(checks.bandwidth("gpu01", whole, CONFIG)) == {
        f"storage_{what}": (2.0, "GB/s", PATH, "higher") for what in ("write", "read")
    }
    assert recorded(checks.latency("gpu01", whole, CONFIG)) == {
        "storage_read_iops": (9000.0, "IO/s", PATH, "higher"),
        "storage_read_p50": (1.0, "ms", PATH, ""),
        "storage_read_p99": (3.0, "ms", PATH, ""),
        "storage_write_iops": (9000.0, "IO/s", PATH, "higher"),
        "storage_write_p50": (1.0, "ms", PATH, ""),
        "storage_write_p99": (3.0, "ms", PATH, ""),
        "storage_fsync_p50": (1.0, "ms", PATH, ""),
    }
    assert recorded(checks.metadata("gpu01", whole, CONFIG)) == {
        f"storage_{what}_files": (200.0, "files/s", PATH, "higher")
        for what in ("create", "stat", "list", "remove")
    }
    assert recorded(checks.visibility("gpu01", whole, CONFIG)) == {
        f"storage_seen_{change}": (0.01, "s", PATH, "") for change in ("create", "overwrite", "rename")
    }
    left = {PATH: Quota(2 * 10**13, 10**6)}
    assert recorded(checks.space("gpu01", whole, CONFIG, left)) == {
        "storage_free": (9000.0, "GB", PATH, "neither"),
        "storage_quota_left": (20000.0, "GB", PATH, "neither"),
        "storage_quota_files_left": (10**6, "files", PATH, "neither"),
    }
    nfs, lustre = NFS.format(more="hard"), LUSTRE.format(df=DF)
    assert recorded(mount_verdict(nfs)) == {"storage_nconnect": (16.0, "connections", PATH, "neither")}
    assert recorded(mount_verdict(lustre)) == {"storage_stripes": (4, "OSTs", PATH, "neither")}


def test_the_figures_of_all_nodes_are_recorded_with_their_unit() -> None:
    found = recorded(checks.aggregate(step(), CONFIG))
    units = {name.removeprefix("storage_all_"): it[1] for name, it in found.items()}
    assert units == {
        **dict.fromkeys(("write", "read", "write_alone", "read_alone"), "GB/s"),
        **dict.fromkeys(("read_iops", "write_iops"), "IO/s"),
        **dict.fromkeys(("creates", "stat_files", "list_files", "remove_files"), "files/s"),
    }
    assert {it[2:] for it in found.values()} == {(PATH, "higher")}


TWO = StorageConfig.model_validate({"filesystems": [{"path": "/absent"}, {"path": PATH}]})


@pytest.mark.parametrize("check", [checks.bandwidth, checks.latency, checks.metadata])
def test_a_file_system_that_was_not_measured_hides_no_slow_node_on_another_one(check: Any) -> None:
    slow = both(
        SLOW_ALONE,
        of(0, "random", iops=9.0),
        of(0, "metadata", seconds=50.0),
    )
    verdict = check("gpu01", step(slow), TWO)
    assert verdict.findings
    assert "/absent: not measured: see storage.operations and storage.space" in verdict.reason
    space = step(of(0, "space", room=0, free=5 * 10**11))
    verdict = checks.space("gpu01", space, TWO, {})
    assert "/absent: not measured" in verdict.reason
    assert [it.expected for it in verdict.findings] == ["at most 90% used"]


def test_figures_of_a_file_system_that_was_not_measured_hide_none_of_another_one() -> None:
    expect = {"write": 99, "write_iops": 10**6, "creates": 9999}
    systems = [{"path": "/absent"}, {"path": PATH, "expect": expect}]
    verdict = checks.aggregate(step(), StorageConfig.model_validate({"filesystems": systems}))
    assert [(it.part, figures(it.measured)[0], *figures(it.expected)) for it in verdict.findings] == [
        ("/shared write", 16.3, 99),
        ("/shared write_iops", 7.32e04, 1e06),
        ("/shared creates", 1.63e03, 1e04),
    ]
    assert "/absent: not measured" in verdict.reason


def test_a_stated_figure_that_was_not_measured_is_not_checked() -> None:
    stated = StorageConfig.model_validate({"filesystems": [{"path": PATH, "expect": {"read_alone": 1}}]})
    quiet = step(lambda _rank, fact: None if fact.get("how") == "alone" else fact)
    verdict = checks.aggregate(quiet, stated)
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert "/shared read_alone: not measured" in verdict.reason


@pytest.mark.parametrize(
    ("size", "alone", "measured"),
    [
        (1, 4.0, "2 GB/s"),
        (2, 4.0, "4.02 GB/s by 2 nodes, one alone 4; the server or a shared link limits"),
        (2, 2.8, "4.02 GB/s by 2 nodes, one alone 2.8; each client limits"),  # 72% of two
        (2, 0.0, "4.02 GB/s by 2 nodes, one alone 0; each client limits"),
    ],
)
def test_what_limits_is_named_from_two_nodes_on(size: int, alone: float, measured: str) -> None:
    stated = StorageConfig.model_validate({"filesystems": [{"path": PATH, "expect": {"write": 9}}]})
    whole = step(lambda _rank, fact: {**fact, "rate": alone} if fact.get("how") == "alone" else fact, size)
    assert [it.measured for it in checks.aggregate(whole, stated).findings] == [measured]


def test_a_node_that_is_slow_alone_is_compared_with_one_other_node_that_was_measured_alone() -> None:
    def change(rank: int, fact: dict[str, Any]) -> dict[str, Any] | None:
        if fact.get("how") == "alone":
            return {**fact, "rate": 0.1 if rank == 0 else 7.0} if rank in (0, 1) else None
        return {**fact, "rate": 1.0} if rank == 0 and fact["storage"] == "read" else fact

    assert failures(step(change))["storage.bandwidth", "gpu01"] == [
        "/shared read: 1 GB/s with all nodes; alone 0.1, the fastest node alone 7"
    ]
    alone = step(lambda rank, fact: None if rank and fact.get("how") == "alone" else change(rank, fact))
    (warning,) = checks.bandwidth("gpu01", alone, CONFIG).advisories  # nothing to compare
    assert warning.measured == "1 GB/s with all nodes; alone 0.1"
    assert warning.expected == "about 2.03 GB/s, the median of 8 nodes"


def test_a_node_that_is_slow_to_list_has_no_warning_for_it() -> None:
    slow = both(*(of(0, "metadata", seconds=50.0, where={"what": what}) for what in ("list", "remove")))
    verdict = checks.metadata("gpu01", step(slow), CONFIG)
    assert [(it.part, it.expected) for it in verdict.advisories] == [
        ("/shared remove files", "about 203 files/s, the median of 8 nodes")
    ]
    assert verdict.outcome is Outcome.PASSED


def test_a_node_that_imports_slowly_is_a_warning() -> None:
    stated = StorageConfig.model_validate({"filesystems": [{"path": PATH}], "imports": ["torch", "ray"]})

    def change(rank: int, fact: dict[str, Any]) -> dict[str, Any]:
        took = 4.0 + rank / 10 if rank else 60.0
        imported = {"storage": "imported", "problem": "", "seconds": took}
        return {**fact, **imported} if fact["storage"] == "done" else fact

    verdict = checks.imports("gpu01", step(change), stated)
    (warning,) = verdict.advisories
    assert (verdict.outcome, warning.part) == (Outcome.PASSED, "import torch, ray")
    assert figures(f"{warning.measured} {warning.expected}") == [60, 4.5, 8]
    assert recorded(verdict) == {"storage_import": (60.0, "s", "", "")}
    assert checks.imports("gpu02", step(change), stated).advisories == ()


def test_two_nodes_see_each_other() -> None:
    pair = step(size=2)
    for check in (checks.visibility, checks.locks):
        assert check("gpu01", pair, CONFIG).outcome is Outcome.PASSED
    assert checks.append(pair, CONFIG, {}).outcome is Outcome.PASSED


def test_what_cannot_be_judged_has_its_reason() -> None:
    local = StorageConfig.model_validate({"filesystems": [{"path": PATH, "kind": "local"}]})
    silent = PayloadResult("storage", NODES, SIZE, problem="srun: no")
    none = step(lambda _rank, _fact: None)
    for verdict, outcome, words in (
        (checks.aggregate(step(), local), Outcome.NOT_APPLICABLE, "is shared"),
        (checks.locks("gpu01", step(), local), Outcome.NOT_APPLICABLE, "is shared"),
        (checks.space("gpu01", none, CONFIG, {}), Outcome.NOT_CHECKED, "/shared: not measured"),
        (checks.mount({}, {}, CONFIG), Outcome.NOT_CHECKED, "no mount of the node holds it"),
        (checks.operations_end("gpu01", silent), Outcome.NOT_CHECKED, "srun: no"),
        (checks.operations_end("gpu01", replace(silent, problem="")), Outcome.NOT_CHECKED, "no result"),
    ):
        assert (verdict.outcome, words in verdict.reason) == (outcome, True), verdict


def test_a_step_that_is_stuck_and_one_without_an_end_are_no_pass() -> None:
    hung = step(lambda rank, fact: None if (rank, fact["storage"]) == (1, "done") else fact)
    said = {"storage": "stuck", "rank": 1, "node": "gpu02", "phase": "read", "seconds": 45}
    stuck = PayloadTask(1, "gpu02", 0, None, (said,))
    verdict = checks.operations_end("gpu02", PayloadResult("storage", NODES, SIZE, (*hung.tasks, stuck)))
    assert (found(verdict), verdict.reason) == (["read: no end after 45 s"], "")
    few = checks.space("gpu01", step(of(0, "space", inodes_free=9)), CONFIG, {PATH: Quota(0, 1)})
    assert [figures(it.expected) for it in few.findings] == [[1, 10**9, 10000], [16], [10000]]
    disk = mounted("/dev/md0 /shared ext4 rw,emergency_ro,shutdown 0 0\n")
    (only,) = found(checks.mount(disk, usual_mounts({"gpu01": disk}), TWO))
    assert only.endswith("emergency_ro, shutdown")


# -- machines that were considered


def at(check: Any, change: Any = None, node: str = "gpu01") -> Callable[[], Verdict]:
    return lambda: judged(check, node, step(change))


def busy(rank: int, fact: Mapping[str, Any]) -> dict[str, Any]:
    """All nodes have a fifth of the rate, and latencies of a busy server."""
    scaled = {key: fact[key] / 5 for key in ("rate", "iops") if key in fact}
    return {
        **fact,
        **scaled,
        **({"latency": {"50": 30.0 + rank, "95": 90.0, "99": 300.0}} if "latency" in fact else {}),
    }


_NOISE = of(2, "read", rate=1.0, where={"how": "together"})
_ONE = checks.integrity.name
COUNTER_EXAMPLES = (
    CounterExample(_ONE, "eight nodes on Lustre with checksums on the wire", "lustre manual, osc.*.checksums", PASSED, at(checks.integrity)),
    CounterExample(
        _ONE, "a client cache that is corrected by a second reading", "NFS: data cached before a change of the attributes", MONITOR,
        at(checks.integrity, wrong(0, again=(), other=())),
    ),
    CounterExample(
        _ONE, "a client cache that has not got the bytes yet", "NFS with nocto, gcsfuse, fscache: short blocks, zeros", MONITOR,
        at(checks.integrity, wrong(0, other=())),
    ),
    CounterExample(
        _ONE, "a node that reads what a sick neighbour has written wrong", "the writer's memory", MONITOR,
        at(checks.integrity, both(wrong(0, writer=1), wrong(7, writer=1))),
    ),
    CounterExample(
        _ONE, "a node beside one whose memory is broken", "the reader gpu02 is at fault", PASSED, at(checks.integrity, wrong(1))
    ),
    CounterExample(_ONE, "a node that reads wrong bytes where others read the right ones", "DIMM or adapter", DRAIN, at(checks.integrity, wrong(0)), sick=True),
    CounterExample("storage.bandwidth", "a busy server serves all nodes slowly", "shared storage in production", PASSED, at(checks.bandwidth, busy)),
    CounterExample("storage.bandwidth", "a node that was slow once, in one direction", "traffic of another job", WARNING, at(checks.bandwidth, _NOISE, "gpu03")),
    CounterExample("storage.bandwidth", "a node with a cable at a tenth of its speed", "link trained down", MONITOR, at(checks.bandwidth, SLOW_ALONE), sick=True),
    CounterExample("storage.latency", "a busy server", "shared storage in production", PASSED, at(checks.latency, busy)),
    CounterExample(
        "storage.latency", "a node behind a slow switch", "each access takes 90 ms", MONITOR,
        at(checks.latency, of(0, "random", iops=90.0, latency={"50": 90.0, "99": 99.0})), sick=True,
    ),
    CounterExample("storage.metadata", "a metadata server that is busy", "many users", PASSED, at(checks.metadata, busy)),
    CounterExample("storage.metadata", "a node with an old folder in its cache", "NFS, acdirmax", MONITOR, at(checks.metadata, of(0, "listed", seen=0)), sick=True),
    CounterExample("storage.operations", "a file system without errors", "GPFS, Lustre, NFS", PASSED, at(checks.operations_end)),
    CounterExample(
        "storage.operations", "a node with a broken disk", "EIO", MONITOR,
        lambda: checks.operations_end("gpu01", with_fact(0, storage="problem", step="read", reason="Input/output error", code="EIO")), sick=True,
    ),
    CounterExample("storage.lustre", "no Lustre", "NFS", NOT_APPLICABLE, lambda: checks.lustre(mounted(NFS.format(more="hard")))),
    CounterExample("storage.lustre", "a target that recovers", "failover of an OSS", MONITOR, lambda: checks.lustre(mounted(LUSTRE.format(df=DF + "OST0000             : Resource temporarily unavailable\n"))), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_machine_is_judged_as_an_operator_would(example: CounterExample) -> None:
    assert_as_expected(example)


def test_of_two_nodes_none_is_an_outlier() -> None:
    assert failures(step(SLOW_BOTH, size=2)) == {}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("seen", {"seconds": None}),
        ("lock", {"problem": ""}),
        ("verified", {"wrong": [3], "again": [3], "other": [3]}),
        ("problem", {}),
    ],
)
def test_a_fault_of_all_nodes_is_one_finding_of_the_cluster_and_asks_for_no_repair(
    kind: str, values: dict[str, Any]
) -> None:
    def change(rank: int, fact: dict[str, Any]) -> dict[str, Any]:
        if kind == "problem" and fact["storage"] == "locked":
            return {**fact, "storage": kind, "step": "write", "reason": "Input/output error", "code": "EIO"}
        return {**fact, **values} if fact["storage"] == kind else fact

    whole = step(change)
    verdicts = {(check, node): judged(check, node, whole) for check in OF_NODES for node in NODES}
    failed = {key: it for key, it in verdicts.items() if it.outcome is Outcome.FAILED}
    (check,) = {check for check, _ in failed}
    assert not any(it.action.is_repair for it in failed.values())
    findings = [(node, finding) for (_, node), it in failed.items() for finding in it.findings]
    places = {node: Place(group="all", partition="batch") for node in NODES}
    (common,) = common_findings(check.name, findings, NODES, places)
    assert set(common.nodes) == set(NODES)
