"""Verdicts on what the tasks of the step report: eight nodes on one shared file system."""

from __future__ import annotations

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

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.common_cause import Place, common_findings
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.storage import checks
from pytest_gpucluster.suites.storage.config import StorageConfig
from pytest_gpucluster.suites.storage.facts import read_mounts, usual_mounts

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
        *({"storage": what, "how": "together", "rate": 2.0 * vary} for what in ("write", "read")),
        *({"storage": "random", "what": what, "iops": 9000 * vary, "latency": LATENCY} for what in ("read", "write")),
        {"storage": "fsync", "latency": LATENCY},
        *({"storage": "metadata", "what": what, "count": 100, "seconds": 0.5 / vary} for what in ("create", "stat", "list", "remove")),
        {"storage": "listed", "writer": after, "seen": 100, "made": 100},
        *({"storage": "verified", "writer": writer, "blocks": 8, "wrong": [], "again": []} for writer in (after, second)),
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
        found += [{"storage": what, "how": "alone", "rate": 7.0 * vary} for what in ("write", "read")]
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


def found(verdict: Verdict) -> list[str]:
    return [f"{it.part}: {it.measured}" for it in verdict.findings]


OF_NODES = (
    checks.operations_end, checks.space, checks.bandwidth, checks.latency, checks.metadata, checks.visibility, checks.locks,
    checks.integrity,
)  # fmt: skip


def judged(check: Any, node: str, result: PayloadResult) -> Verdict:
    verdict: Verdict = check(node, result) if check is checks.operations_end else check(node, result, CONFIG)
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
    assert found(verdict) == [f"/shared read: 16.3 GB/s by 8 nodes, one alone {alone:g}: {limit}"]
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


@pytest.mark.parametrize(
    ("code", "action"),
    [("ENOSPC", CONFIGURE), ("EDQUOT", CONFIGURE), ("EIO", MONITOR), ("ESTALE", MONITOR), ("", CONFIGURE)],
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
    assert found(checks.space("gpu01", full, CONFIG)) == ["/shared: 95% of 9.095 TiB used"]
    few = step(of(0, "space", inodes_free=10**6))
    assert found(checks.space("gpu01", few, CONFIG)) == ["/shared: 1000000 inodes left"]
    uncounted = step(of(0, "space", inodes=0, inodes_free=0))
    assert checks.space("gpu01", uncounted, CONFIG).outcome is Outcome.PASSED


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


def test_a_folder_that_does_not_list_all_files_of_another_node_fails() -> None:
    assert failures(step(of(3, "listed", seen=90))) == {
        ("storage.metadata", "gpu04"): ["/shared list: 90 files"]
    }


@pytest.mark.parametrize(
    ("seconds", "measured"),
    [
        (1.2, "the change of gpu02 was seen after 1.2 s"),
        (None, "the change of gpu02 was not seen within 10 s"),
    ],
)
def test_a_change_that_is_seen_late_fails(seconds: float | None, measured: str) -> None:
    late = step(of(0, "seen", seconds=seconds, where={"change": "rename"}))
    assert failures(late) == {("storage.visibility", "gpu01"): [f"/shared rename: {measured}"]}


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


def test_lost_records_are_a_finding_of_the_cluster_except_on_nfs() -> None:
    lost = step(of(0, "appended", lost=3))
    assert found(checks.append(lost, CONFIG, {PATH: "gpfs"})) == ["/shared append: 3 of 800 records are lost"]
    assert checks.append(lost, CONFIG, {PATH: "nfs4"}).outcome is Outcome.NOT_APPLICABLE


def wrong(
    reader: int, again: Any = (3,), writer: int | None = None
) -> Callable[[int, dict[str, Any]], dict[str, Any]]:
    where = {} if writer is None else {"writer": writer}
    return of(reader, "verified", wrong=[3], again=list(again), where=where)


def test_wrong_bytes_name_the_blocks_and_the_writer() -> None:
    (first, _) = failures(step(wrong(0)))["storage.integrity", "gpu01"]
    assert first == "/shared checksums: MiB 3 of 8 that gpu02 wrote are wrong, again at the second reading"


def test_with_one_node_nothing_between_nodes_is_judged() -> None:
    alone = step(size=1)
    for check in (checks.visibility, checks.locks):
        assert check("gpu01", alone, CONFIG).outcome is Outcome.NOT_APPLICABLE
    assert checks.append(alone, CONFIG, {}).outcome is Outcome.NOT_APPLICABLE


def test_imports_are_recorded_and_a_module_that_is_missing_fails() -> None:
    stated = StorageConfig.model_validate({"filesystems": [{"path": PATH}], "imports": ["torch"]})
    assert checks.imports("gpu01", step(), CONFIG).outcome is Outcome.NOT_APPLICABLE
    assert checks.imports("gpu01", step(), stated).outcome is Outcome.NOT_CHECKED
    done = with_fact(0, storage="imported", seconds=4.0, problem="")
    assert [(it.name, it.value) for it in checks.imports("gpu01", done, stated).metrics] == [
        ("storage_import", 4.0)
    ]
    missing = with_fact(
        0, storage="imported", seconds=0.1, problem="ModuleNotFoundError: No module named 'torch'"
    )
    assert found(checks.imports("gpu01", missing, stated)) == [
        "import torch: ModuleNotFoundError: No module named 'torch'"
    ]


# -- mounts

NFS = "server:/export /shared nfs4 rw,relatime,vers=4.2,nconnect=16,proto=tcp,{more} 0 0\n"
LUSTRE = (
    "10.0.0.1@o2ib:/fs /shared lustre rw,flock,lazystatfs 0 0\nlfs df /shared\n{df}lfs getstripe /shared\n4\n"
)
DF = "UUID                   1K-blocks        Used   Available Use% Mounted on\nfs-MDT0000_UUID   9174328  1020024  8154304  11% /shared[MDT:0]\n"
OST = "fs-OST0000_UUID  94181368 56330708 37850660  59% /shared[OST:0]\n"


def mounted(text: str) -> Any:
    return read_mounts(Answer("gpu01", 0, text.encode()), (PATH,))


def mount_verdict(mine: str, *others: str) -> Verdict:
    nodes = {node: mounted(text) for node, text in zip(NODES, (mine, *others), strict=False)}
    return checks.mount(nodes["gpu01"], usual_mounts(nodes), CONFIG)


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


def test_an_absent_target_of_lustre_fails() -> None:
    healthy = mounted(LUSTRE.format(df=DF + OST))
    assert checks.lustre(healthy).outcome is Outcome.PASSED
    assert healthy[PATH].stripes == 4
    sick = mounted(
        LUSTRE.format(
            df=DF
            + OST
            + "fs-OST0001_UUID     : inactive device\nOST0002             : Resource temporarily unavailable\n\nfilesystem_summary:  94181368 1 1 1% /shared\n"
        )
    )
    assert found(checks.lustre(sick)) == [
        "/shared fs-OST0001_UUID: inactive device", "/shared OST0002: Resource temporarily unavailable",
    ]  # fmt: skip
    assert checks.lustre(mounted(NFS.format(more="hard"))).outcome is Outcome.NOT_APPLICABLE
    unread = mounted(LUSTRE.partition("\n")[0] + "\n")
    assert checks.lustre(unread).outcome is Outcome.NOT_CHECKED


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
        at(checks.integrity, wrong(0, again=())),
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
        ("verified", {"wrong": [3], "again": [3]}),
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
