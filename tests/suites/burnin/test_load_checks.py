"""Each finding of the checks of loads, and every reason for not judging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from burnin_helpers import (
    CONFIG,
    GPU_1,
    NO_DEVICE,
    NO_MEMORY,
    NO_TORCH,
    UUID,
    added,
    failed,
    fleet,
    gpu_of,
    healthy,
    hello,
    idle_gpus,
    load,
    nccl_line,
    one_node,
    problem,
    reason,
    sick,
    trouble,
)
from counter_examples import CONFIGURE, DRAIN, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, VENDOR, CounterExample
from judged import figures, judged
from suite_helpers import considered

from pytest_gpucluster.core.check import CHECKS, Check, Metric, Outcome, Verdict
from pytest_gpucluster.suites.burnin import dcgm, error_checks, stragglers
from pytest_gpucluster.suites.burnin import load_checks as checks
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals

if TYPE_CHECKING:
    from collections.abc import Callable

RESET = "reset gpu"
LOADS: dict[str, tuple[Callable[..., Verdict], str, str]] = {
    "matmul": (checks.matmul, "matmul", DRAIN),
    "memory_bandwidth": (checks.memory_bandwidth, "hbm", RESET),
    "copies": (checks.copies, "copies", DRAIN),
    "peer": (checks.peer, "peer", DRAIN),
    "nccl": (checks.nccl, "nccl", DRAIN),
    "cpu": (checks.cpu, "cpu", MONITOR),
    "memory": (checks.memory, "memory", MONITOR),
    "storage": (checks.storage, "storage", MONITOR),
}
HOST_LOADS = ("cpu", "memory", "storage")
GPU_CHECKS = [name for name in LOADS if name not in HOST_LOADS]
GPU_0 = "GPU 0 (GPU-a-0, 0000:00:00.0)"


def changed(whole: BurninResult, **more: Any) -> NodeTotals:
    """Change the hello of node a."""
    totals = whole.nodes["a"]
    assert totals.hello is not None
    totals.hello |= more
    return totals


@pytest.mark.parametrize(("broken", "why"), [(["", "no CUDA"], "; no CUDA"), ([], "no reason is known")])
def test_a_gpu_that_took_no_part(broken: list[str], why: str) -> None:
    whole = fleet(1)
    totals = changed(whole, devices=hello("a", 3)["devices"], broken=broken)
    verdict = checks.survived(whole, "a")
    assert (judged(verdict), "could be started" in verdict.cause) == ((CONFIGURE, ["GPUs"]), True)
    (found,) = verdict.findings
    assert (found.code, f"{found.measured}, {found.expected}") == ("fewer_gpus", f"3 took part: {why}, 4")
    totals.problems.append(problem("hbm", "the load ended by signal 11", UUID, "crashed"))
    both = checks.survived(whole, "a")
    assert (judged(both), "could be started" in both.cause) == ((DRAIN, [GPU_1, "GPUs"]), False)
    whole.gpus = 3
    assert judged(checks.survived(whole, "a")) == (DRAIN, [GPU_1])


@pytest.mark.parametrize("rounds", [1, 2])
def test_only_one_round_of_a_node_and_its_one_diagnostic_are_repeated_before_a_drain(rounds: int) -> None:
    whole = fleet(1)
    whole.rounds, whole.nodes["a"].rounds = 2, rounds
    made = vars(checks) | vars(error_checks) | vars(dcgm)
    repairs = [it for it in made.values() if isinstance(it, Check) and CHECKS[it.name].never_healthy]
    verdicts = [it.of_facts({"burnin": whole, "node_name": "a", "config": CONFIG}) for it in repairs]
    assert {it.check for it in verdicts if it.repeated != (rounds > 1 and it.check != "burnin.dcgm")} == set()


def test_a_burn_in_without_a_round_is_not_checked() -> None:
    whole, totals = one_node()
    totals.rounds, whole.seconds = 0, 90
    reason(checks.survived(whole, "a"), NOT_CHECKED, "1 min 30 s of 1 h, 0 rounds: the time was too short")
    whole.early = "stopped by Ctrl-C"
    reason(checks.survived(whole, "a"), NOT_CHECKED, "1 min 30 s of 1 h, 0 rounds: stopped by Ctrl-C")
    whole.nodes["a"].rounds = 3
    reason(checks.survived(whole, "a"), NOT_CHECKED, "3 rounds: stopped by Ctrl-C")
    for left in (NodeTotals("a", out="x"), NodeTotals("a", lost="x")):
        assert checks.survived(BurninResult({"a": left}, 60), "a").reason == ""


@pytest.mark.parametrize(("why", "action"), [(NO_TORCH, MONITOR), (NO_MEMORY, CONFIGURE)])
def test_a_node_whose_only_gpu_never_worked_is_no_pass(why: str, action: str) -> None:
    """Recorded on two H200: the burn-in of such a node ended green, all its loads 'not applicable'."""
    whole = idle_gpus(2, why)
    assert judged(checks.survived(whole, "a")) == (action, ["GPUs"])
    assert checks.survived(whole, "b").outcome is Outcome.PASSED
    reason(checks.corruption(whole, "a"), NOT_CHECKED, why)
    reason(error_checks.temperature(whole, "a", CONFIG), NOT_CHECKED, why)


def test_what_all_nodes_lack_is_the_fault_of_none() -> None:
    for reasons, hint in (
        ([NO_TORCH], "name an environment"),
        ([NO_TORCH] * 2, "name an environment"),
        ([NO_DEVICE] * 2, "check burnin.environment"),
    ):
        reason(checks.survived(idle_gpus(len(reasons), *reasons), "a"), NOT_CHECKED, hint)
    for alone in (idle_gpus(1, NO_DEVICE), idle_gpus(2, NO_MEMORY, NO_MEMORY)):
        assert judged(checks.survived(alone, "a"))[1] == ["GPUs"]


def test_a_node_outside_of_the_stated_container_fails_without_a_repair() -> None:
    why = "the task ran on the host, not in the image pt.sqsh: slurmd on a does not load Pyxis"
    nodes = {"a": NodeTotals("a", out=why), "b": NodeTotals("b", hello=hello("b"), rounds=1)}
    whole = BurninResult(nodes, 60, 4)
    assert judged(checks.survived(whole, "a")) == (CONFIGURE, ["node"])
    assert checks.survived(whole, "b").outcome is Outcome.PASSED


@pytest.mark.parametrize("name", LOADS)
def test_a_load_that_reports_a_problem_and_why_one_was_not_measured(name: str) -> None:
    check, kind, action = LOADS[name]
    whole = fleet(2)
    whole.nodes["a"].problems.append(problem(kind, "broken", "" if name in HOST_LOADS else UUID))
    assert judged(check(whole, "a", CONFIG)) == (action, ["node" if name in HOST_LOADS else GPU_1])
    other: Any = "cpu" if kind != "cpu" else "memory"
    nodes = {name: NodeTotals(name, hello=hello(name), rounds=1) for name in "ab"}
    whole = BurninResult(nodes, 3600, 4, seconds=3600)
    reason(check(whole, "a", BurninConfig(loads=(other,))), NOT_APPLICABLE, f"leaves {kind} out")
    reason(check(whole, "a", CONFIG), NOT_CHECKED, f"{kind} was not run in the available time")
    nodes["a"].out = "wrong data"
    reason(check(whole, "a", CONFIG), NOT_CHECKED, f"{kind} was not run: wrong data")
    nodes["a"].skips[kind] = "no room"
    reason(check(whole, "a", CONFIG), NOT_APPLICABLE, "no room")
    for absent, why in (
        (NodeTotals("a"), "its agent sent nothing"),
        (NodeTotals("a", out="left"), "never took part: left"),
        (NodeTotals("a", out="left", lost="silent"), "never took part: silent"),
    ):
        nodes["a"] = absent
        reason(check(whole, "a", CONFIG), NOT_CHECKED, why)
    if name != "nccl":  # another node may be the cause
        nodes["a"] = NodeTotals("a", hello=hello("a"), problems=[problem(kind, "the load ended", code="killed")])
        reason(check(whole, "a", CONFIG), NOT_CHECKED, "see burnin.survived")


@pytest.mark.parametrize("name", GPU_CHECKS)
def test_a_node_without_working_gpus(name: str) -> None:
    for gpus, broken, outcome, words in (
        (2, ["", "no CUDA"], NOT_CHECKED, "no worker on the GPUs: no CUDA"),
        (2, [], NOT_CHECKED, "nvidia-smi shows 2 GPUs"),
        (0, [], NOT_APPLICABLE, "the node has no GPU"),
    ):
        node = NodeTotals("a", hello=hello("a", gpus, devices=[], broken=broken), rounds=1)
        whole = BurninResult({"a": node, "b": NodeTotals("b", hello=hello("b"))}, 60, 4)
        reason(LOADS[name][0](whole, "a", CONFIG), outcome, words)


def test_one_gpu_has_nothing_to_talk_to_unless_another_node_has_one() -> None:
    nodes = {"a": NodeTotals("a", hello=hello("a", 1), rounds=1)}
    whole = BurninResult(nodes, 60, 1)
    reason(checks.peer(whole, "a", CONFIG), NOT_APPLICABLE, "no peer")
    reason(checks.nccl(whole, "a", CONFIG), NOT_APPLICABLE, "nothing to reduce with")
    nodes["b"] = NodeTotals("b", hello("b", 1))
    reason(checks.nccl(whole, "a", CONFIG), NOT_CHECKED, "nccl was not run in the available time")
    reason(checks.rdma(fleet(1), "a", CONFIG), NOT_APPLICABLE, "no partner")


def test_what_was_never_run_is_never_a_pass() -> None:
    nodes = {"a": NodeTotals("a", lost="silent for 60 s"), "b": NodeTotals("b", hello=hello("b"))}
    whole = BurninResult(nodes, 60, 4)
    for node in nodes:
        for judge in (checks.corruption, error_checks.xid, checks.survived):
            assert judge(whole, node).outcome is not Outcome.PASSED
        for check in (error_checks.counters, error_checks.temperature, dcgm.dcgm, stragglers.stragglers):
            assert check(whole, node, CONFIG).outcome is Outcome.NOT_CHECKED, check
    assert dcgm.dcgm(fleet(1), "a", BurninConfig(loads=("matmul",))).outcome is Outcome.NOT_APPLICABLE


def test_a_load_that_left_a_gpu_out_proves_nothing_of_it() -> None:
    whole, totals = one_node()
    totals.rates["hbm"].pop(UUID)
    reason(checks.memory_bandwidth(whole, "a", CONFIG), NOT_CHECKED, f"{GPU_1} has no result")
    totals.lost = "silent for 60 s"
    reason(checks.matmul(whole, "a", CONFIG), NOT_CHECKED, "did not run to its end: see burnin.survived")


def host(kind: str, **fields: Any) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = {
        "cpu": {"rate": 9.0, "key": "cpu/1", "hashes": ["aa"]},
        "memory": {"rate": 9.0},
        "storage": {"write": 1.0, "read": 2.0},
        "rdma": {"rate": 49.0},
    }
    return {"load": kind, "results": [{"load": kind, "wrong": 0, **known[kind], **fields}]}


def test_cpus_that_compute_something_else_are_no_corruption_of_a_gpu() -> None:
    whole = fleet(3, a=[host("cpu", hashes=["bb"])], b=[host("cpu")], c=[host("cpu")])
    verdict = checks.cpu(whole, "a", CONFIG)
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((VENDOR, ["CPUs"]), [2])
    assert checks.cpu(whole, "b", CONFIG).findings == checks.corruption(whole, "a").findings == ()


def test_the_gpu_whose_result_differs_is_named_and_the_others_are_not() -> None:
    whole = fleet(2, a=[load("a", "matmul", own={1: {"hash": "bb", "checking": 0.2}})])
    verdict = checks.corruption(whole, "a")
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((VENDOR, [GPU_1]), [7])
    checked = Metric("burnin_products_checked", 36, "products")
    assert {*verdict.metrics} == {checked, Metric("burnin_checking", 0.2, "of the time", verdict.findings[0].part)}
    assert checks.corruption(whole, "b").outcome is Outcome.PASSED


def test_two_that_differ_accuse_both() -> None:
    whole = fleet(2, a=[load("a", "matmul", 1)], b=[load("b", "matmul", 1, own={0: {"hash": "bb"}})])
    for node in "ab":
        verdict = checks.corruption(whole, node)
        assert judged(verdict) == (MONITOR, [f"GPU 0 (GPU-{node}-0, 0000:00:00.0)"])
        assert str(verdict.findings[0].expected).endswith("aa on a, bb on b")


def test_halves_of_a_fleet_that_differ_in_their_results_drain_nobody() -> None:
    """As where an upgrade has reached five nodes of nine: their library rounds otherwise."""
    for upgraded in (4, 5):
        digests = zip("abcdefgh", ["aa"] * upgraded + ["bb"] * (8 - upgraded), strict=True)
        whole = fleet(8, **{it: [host("cpu", hashes=[own])] for it, own in digests})
        assert {judged(checks.cpu(whole, node, CONFIG))[0] for node in "abcdefgh"} == {MONITOR}


def test_the_first_wrong_word_of_a_gpus_memory_has_its_address() -> None:
    whole = fleet(2)
    part = {"tested": 0.5}
    for own in ({}, {1: {"wrong": 3, "first": FIRST}, 2: part}, {1: {"wrong": 1, "first": "later"}, 2: part}):
        whole.nodes["a"].add(load("a", "gpu_memory", own=own))
    verdict = checks.gpu_memory(whole, "a", CONFIG)
    assert failed(verdict) == [f"{GPU_1}: 4 wrong words of 4 bytes, the first {FIRST}"]
    assert [figures(f"{it.measured} {it.expected}") for it in verdict.advisories] == [[50, 90]]
    reason(checks.gpu_memory(whole, "b", CONFIG), NOT_CHECKED, "gpu_memory was not run")


def test_a_card_without_a_limit_is_measured_with_a_warning_unless_the_cluster_file_has_one() -> None:
    whole, totals = one_node()
    for gpu in changed(whole).hello["gpus"]:  # type: ignore[index]
        gpu |= {"name": "NVIDIA Q9000", "pcie_gen": None}
    for check in (checks.matmul, checks.memory_bandwidth, checks.copies):
        (advisory,) = check(whole, "a", CONFIG).advisories
        assert "NVIDIA Q9000" in str(advisory.measured)
    everyone = [str(totals.part(uuid)) for uuid in totals.gpus]
    for limit, expected in ((600, (PASSED, [])), (800, (MONITOR, everyone))):
        assert judged(checks.matmul(whole, "a", BurninConfig(expect={"bf16": limit}))) == expected


def test_processes_of_others_explain_a_lack_of_memory_and_no_crash() -> None:
    """Recorded on an H200 whose memory another process held: burnin.nccl asked to drain the node."""
    whole = fleet(1, a=[load("a", "matmul", own={1: {"tflops": 340.0}})])
    totals = changed(whole)
    totals.strangers = {UUID: ["b"], gpu_of("a", 0): ["c"]}
    assert totals.hello
    totals.hello["gpus"][1]["processes"] = [{"name": "d", "pid": 4}]
    assert "on it before the burn-in: d (pid 4)" in failed(checks.matmul(whole, "a", CONFIG))[0]
    for judge, kind in ((checks.memory_bandwidth, "hbm"), (checks.peer, "peer"), (checks.nccl, "nccl")):
        totals.problems = [problem(kind, NO_MEMORY, UUID)]
        verdict = judge(whole, "a", CONFIG)
        assert (judged(verdict), "on the GPU: b, d (pid 4);" in verdict.cause) == ((MONITOR, [GPU_1]), True)
        totals.problems = [problem(kind, LAUNCH, UUID)]
        assert "on the GPU: b" not in judge(whole, "a", CONFIG).cause
    totals.problems = []
    changed(whole, devices=totals.hello["devices"][2:], broken=[NO_MEMORY])
    verdict = checks.survived(whole, "a")
    assert (judged(verdict), "on the GPU: b, c, d (pid 4);" in verdict.cause) == ((MONITOR, ["GPUs"]), True)
    changed(whole, broken=["other"])
    assert "(pid 4)" not in checks.survived(whole, "a").cause


def test_wrong_sums_are_blamed_on_a_partner_that_is_bad() -> None:
    whole = fleet(3, a=[nccl_line("a", members=["a", "b"], busbw=90.0, wrong=2)])
    whole.nodes["c"].wrong = {"hbm": {"": 1}}
    verdict = checks.nccl(whole, "a", CONFIG)
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((DRAIN, [GPU_0]), [2])
    whole.nodes["b"].wrong = {"hbm": {"": 1}}
    excused = checks.nccl(whole, "a", CONFIG)
    assert (excused.findings, excused.metrics) == ((), (Metric("burnin_nccl_pairs", 90.0, "GB/s"),))


def excused(*own: str, other: str = "Xid", code: str = "", **more: NodeTotals) -> bool:
    """Return whether node a, whose collectives failed so, is acquitted."""
    nodes = {
        "a": NodeTotals("a", problems=[problem("nccl", text) for text in own]),
        "b": NodeTotals("b", problems=[problem("hbm", "illegal memory access"), problem("nccl", other, code=code)]),
    }
    return not checks.nccl(BurninResult(nodes | more, 60), "a", CONFIG).findings


def test_a_partner_that_broke_excuses_only_who_waited() -> None:
    left, lost, fine = NodeTotals("b", out="x"), NodeTotals("b", lost="gone"), NodeTotals("b")
    wrong, dead = (
        NodeTotals("b", wrong={"cpu": {"": 1}}),
        NodeTotals("b", problems=[problem("hbm", "the load ended", code="exited")]),
    )
    assert excused("timed out (a b)", "connection closed (a b)")
    assert not excused("timed out (a b)", "connection closed (a c)")
    assert not excused("timed out (a b)", "illegal memory access (a b)")
    assert excused("illegal memory access (a b)", b=left)
    assert all(excused("timeout (a b)", b=bad) for bad in (lost, wrong, dead))
    assert not excused("timeout (a b)", b=fine)
    assert not excused("timeout (a b)", b=fine, c=lost)
    assert excused("timeout", b=fine, c=left)
    assert not excused("timed out (a bb)")


WAITED = (*("timed out", "Connection closed by peer", "connection was lost", "Broken pipe", "remote error"),)
BROKE = ("illegal memory access", "Connection")


def test_of_two_that_failed_one_is_acquitted_if_the_other_failed_by_an_error_of_its_own() -> None:
    assert [text for text in WAITED if excused("timed out (a b)", other=text)] == []
    assert [text for text in BROKE if not excused("timed out (a b)", other=text)] == []
    codes = ("hangs", "stopped", "hangs_in_kernel", "killed")
    assert [excused("timed out (a b)", other="x", code=it) for it in codes] == [False, True, True, True]


NO_KERNEL = "AcceleratorError: CUDA error: no kernel image is available for execution on the device"
LAUNCH = "AcceleratorError: CUDA error: unspecified launch failure"
OTHERS = {UUID: ["python3 (pid 7)"]}
FIRST = "at address 0x7f2c40000014: read 0x00000004, expected 0x00000000"
WITH_LIMIT = BurninConfig(expect={"peer": 300.0})


def everywhere(kind: str, text: str, nodes: str = "abc") -> list[Callable[[BurninResult], None]]:
    return [trouble(kind, text, *(gpu_of(node, n) for n in range(4)), node=node) for node in nodes]


def lost(why: str, nodes: str = "a", code: str = "silent") -> Callable[[BurninResult], None]:
    def change(whole: BurninResult) -> None:
        for node in nodes:
            whole.nodes[node].lost, whole.nodes[node].lost_code = why, code

    return change


def measured(kind: str, own: dict[int, Any], nodes: str = "a") -> list[Callable[[BurninResult], None]]:
    """Return changes: three further loads in which these GPUs of the nodes have other results."""
    return [added(*[load(node, kind, own=own)] * 3, node=node) for node in nodes]


def only_gpu(node: str, digest: str) -> Callable[[BurninResult], None]:
    """Return a change: the node has one GPU, whose product has this hash."""

    def change(whole: BurninResult) -> None:
        whole.gpus = 1
        whole.nodes[node] = NodeTotals(node, hello=hello(node, 1), rounds=1)
        whole.nodes[node].add(load(node, "matmul", 1, own={0: {"hash": digest}}))

    return change


def capped(whole: BurninResult) -> None:
    said = whole.nodes["a"].hello
    assert said is not None
    said["gpus"][1] |= {"power_limit": 400.0, "power_default": 700.0}


def digests(node: str, **by_gpu: str) -> Callable[[BurninResult], None]:
    """Return a change: the products of one input have the digest aa, but for some GPUs."""
    own = {n: {"key": "k", "hash": by_gpu.get(f"gpu{n}", "aa")} for n in range(4)}
    return added(load(node, "matmul", own=own), node=node)


def pairs_of(node: str, busbw: float) -> Callable[[BurninResult], None]:
    lines = [nccl_line(node, members=[node, other], busbw=busbw) for other in "abc" if other != node]
    return added(*lines, node=node)


def of_a_load(kind: str, check: Any, rate: dict[str, float], repair: str) -> list[CounterExample]:
    crowd = load("a", kind, own={1: rate}, strangers=OTHERS)
    whole_fleet = measured(kind, dict.fromkeys(range(4), rate), "abc")
    usual = [added(load(node, kind), node=node) for node in "abc"]
    slow = [*usual, *measured(kind, {1: rate})]
    none = "torch: no kernel image"
    return [
        healthy(check, "torch without kernels for all GPUs", none, MONITOR, *everywhere(kind, NO_KERNEL)),
        healthy(check, "one node with an older torch", none, MONITOR, *everywhere(kind, NO_KERNEL, "a")),
        healthy(check, "another process", "a monitor", MONITOR, added(*[crowd] * 3), config=WITH_LIMIT),
        healthy(check, "the whole fleet is below", "another model", MONITOR, *whole_fleet, config=WITH_LIMIT),
        sick(check, "kernels of one GPU fail", "launch failure", repair, trouble(kind, LAUNCH, UUID)),
        sick(check, "one slow GPU of twelve", "half of its peers", repair, *slow, config=WITH_LIMIT),
    ]


def of_load(check: Any, kind: str, *rows: tuple[str, str, str]) -> list[CounterExample]:
    """Return healthy machines on which a load of the host fails."""
    return [healthy(check, machine, text, expected, trouble(kind, text)) for machine, text, expected in rows]


CUBLAS, GH200 = "CUDA library of the node: all its GPUs differ alike", "nothing beside it decides"
CLOSED = "RuntimeError: Connection closed by peer (a b)"
STARVED = trouble("hbm", "the load ended", UUID, code="starved")
STOPPED = trouble("hbm", "the load did not end", UUID, code="stopped")
ANOTHER_CUBLAS = [digests("a", gpu0="zz", gpu1="zz", gpu2="zz", gpu3="zz"), digests("b"), digests("c")]
ONE_GPU_EACH = [only_gpu(node, "zz" if node == "a" else "aa") for node in "abc"]
ONE_DIGEST = [added(host("cpu"), node=node) for node in "abc"]
NO_NCCL = [trouble("nccl", f"{NO_KERNEL} (a b c)", gpu_of(node, 0), node=node) for node in "abc"]
DIED = [added(nccl_line("a", members=["a"], busbw=300.0)), trouble("nccl", CLOSED, UUID), lost("silent", "b")]
SLOW_PAIRS = [pairs_of(node, 10.0) for node in "abc"]
TAKEN = everywhere("gpu_memory", NO_MEMORY)
NO_TEST = everywhere("gpu_memory", NO_KERNEL)
LOSES = [trouble("rdma", "a: Completion with error at client"), added(host("rdma"), node="b")]
RAILS = [added(host("rdma"), node=node) for node in "ab"]
CAPPED = [capped, *measured("matmul", {1: {"tflops": 100.0}})]
KILLED, SIGBUS = (trouble("hbm", "the load ended", UUID, code=it) for it in ("killed", "crashed"))
HANGS = trouble("hbm", "the load did not answer in time", UUID, code="hangs_in_kernel")
SUSPENDED = trouble("nccl", "the load did not answer in time", UUID, code="stopped")
OPERATOR, NETWORK = lost("its agent ended by signal 15", code="ended"), lost("silent for 60 s", "abc")
ITSELF = added(load("a", "matmul", own={1: {"wrong": 3}}))
OTHERWISE = added(load("a", "matmul", own={1: {"hash": "bb"}}))
ONE_OF_TWELVE = [digests("a", gpu1="zz"), digests("b"), digests("c")]
WRONG_SUMS = added(nccl_line("a", members=["a"], busbw=300.0, wrong=4))
BIT = added(load("a", "gpu_memory", own={1: {"wrong": 1, "first": FIRST}}))
IN_PAIRS = BurninConfig(expect={"nccl_pairs": 40.0})
WRONG_CPU, WRONG_MEMORY, WRONG_FILE = (added(host(it, wrong=1)) for it in HOST_LOADS)
EIO = trouble("storage", "[Errno 5] I/O")
survived, corruption, nccl, gpu_memory = checks.survived, checks.corruption, checks.nccl, checks.gpu_memory
cpu, memory, storage, rdma = checks.cpu, checks.memory, checks.storage, checks.rdma
COUNTER_EXAMPLES = [
    *of_a_load("matmul", checks.matmul, {"tflops": 100.0}, DRAIN),
    *of_a_load("hbm", checks.memory_bandwidth, {"gbs": 1000.0}, RESET),
    *of_a_load("copies", checks.copies, {"h2d": 5.0}, DRAIN),
    *of_a_load("peer", checks.peer, {"gbs": 5.0}, DRAIN),
    healthy(checks.matmul, "power limit lowered by the site", "nvidia-smi -pl 400", MONITOR, *CAPPED),
    healthy(survived, "a process killed by the OOM killer", "dmesg", MONITOR, STARVED),
    healthy(survived, "scontrol suspend", "state T in /proc", MONITOR, STOPPED),
    healthy(survived, "kill -9", "no fault sends it", MONITOR, KILLED),
    healthy(survived, "an operator ended the agent", "SIGTERM", MONITOR, OPERATOR),
    healthy(survived, "the login node lost its network", "all silent", MONITOR, NETWORK),
    sick(survived, "a node that fell silent beside two", "a crash", DRAIN, lost("silent for 60 s")),
    sick(survived, "a process that hangs in the kernel", "state D in /proc", DRAIN, HANGS),
    sick(survived, "a bus error", "SIGBUS", DRAIN, SIGBUS),
    healthy(corruption, "three healthy nodes", "equal kernels", PASSED),
    healthy(corruption, "one node with another cuBLAS", CUBLAS, MONITOR, *ANOTHER_CUBLAS),
    healthy(corruption, "GH200: its only GPU differs from two others", GH200, MONITOR, *ONE_GPU_EACH),
    sick(corruption, "a GPU contradicts itself", "no healthy GPU does", VENDOR, ITSELF),
    sick(corruption, "a GPU contradicts itself in another round", "no majority is needed", VENDOR, OTHERWISE),
    sick(corruption, "one GPU of twelve with another result", "SDC", VENDOR, *ONE_OF_TWELVE),
    healthy(nccl, "NCCL has no kernels for this GPU", "torch: no kernel image", MONITOR, *NO_NCCL),
    healthy(nccl, "scontrol suspend amid NCCL", "recorded on an H200", MONITOR, SUSPENDED),
    healthy(nccl, "a partner that died", "NCCL: remote process exited", PASSED, *DIED),
    healthy(nccl, "all nodes are slow in pairs", "another network", MONITOR, *SLOW_PAIRS, config=IN_PAIRS),
    sick(nccl, "wrong sums within the node", "no healthy node has them", DRAIN, WRONG_SUMS),
    *of_load(cpu, "cpu", ("no process can be started", "BlockingIOError: [Errno 11] RLIMIT_NPROC", MONITOR)),
    healthy(cpu, "a machine of a mixed group is faster", "units/s", PASSED, added(host("cpu", rate=1.0))),
    healthy(cpu, "aarch64 beside x86-64, another zlib", "one digest of all", PASSED, *ONE_DIGEST),
    sick(cpu, "a core computes something else", "silent data corruption", VENDOR, WRONG_CPU),
    healthy(gpu_memory, "a healthy GPU", "all memory is tested", PASSED, added(load("a", "gpu_memory"))),
    healthy(gpu_memory, "another process took the memory", "CUDA: out of memory", MONITOR, *TAKEN),
    healthy(gpu_memory, "torch without kernels on all nodes", "torch: no kernel image", MONITOR, *NO_TEST),
    sick(gpu_memory, "a word that lost a bit", "healthy memory keeps it", VENDOR, BIT),
    *of_load(memory, "memory", ("a small limit", "OSError: [Errno 12] Cannot allocate memory", MONITOR)),
    healthy(memory, "three healthy nodes", "GB/s", PASSED, added(host("memory"))),
    healthy(memory, "one NUMA node is slower", "GB/s", PASSED, added(host("memory", rate=2.0))),
    sick(memory, "bytes that changed in memory", "healthy memory keeps them", VENDOR, WRONG_MEMORY),
    *of_load(
        storage,
        "storage",
        ("/tmp is full of data of users", "OSError: [Errno 28] No space left on device", MONITOR),
        ("/tmp that this user may not write", "PermissionError: [Errno 13] Permission denied", MONITOR),
    ),
    healthy(storage, "a file system of 50 MB/s", "GB/s", PASSED, added(host("storage", write=0.05))),
    sick(storage, "a disk with an I/O error", "EIO; a soft NFS mount gives it too", MONITOR, EIO),
    sick(storage, "a file reads otherwise than written", "healthy storage returns it", DRAIN, WRONG_FILE),
    healthy(rdma, "two nodes with all rails at 49 GB/s", "perftest", PASSED, *RAILS),
    healthy(rdma, "a site that did not ask for it", "burnin.loads", NOT_APPLICABLE, added(host("cpu"))),
    sick(rdma, "a transfer that loses data under load", "perftest", MONITOR, *LOSES),
]
test_machines_get_the_verdict_that_a_person_gives_them = considered(COUNTER_EXAMPLES)
