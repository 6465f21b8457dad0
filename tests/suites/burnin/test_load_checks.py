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
    example,
    failed,
    fleet,
    gpu_of,
    hello,
    idle_gpus,
    load,
    nccl_line,
    one_node,
    reason,
    trouble,
)
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    VENDOR,
    CounterExample,
    assert_as_expected,
    name,
)
from judged import figures, judged

from pytest_gpucluster.core.check import Metric, Outcome, Verdict
from pytest_gpucluster.suites.burnin import dcgm, error_checks, load_checks, removal, stragglers
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals

if TYPE_CHECKING:
    from collections.abc import Callable

RESET = "reset gpu"
LOADS: dict[str, tuple[Callable[..., Verdict], str, str]] = {
    "matmul": (load_checks.matmul, "matmul", DRAIN),
    "memory_bandwidth": (load_checks.memory_bandwidth, "hbm", RESET),
    "copies": (load_checks.copies, "copies", DRAIN),
    "peer": (load_checks.peer, "peer", DRAIN),
    "nccl": (load_checks.nccl, "nccl", DRAIN),
    "cpu": (load_checks.cpu, "cpu", MONITOR),
    "memory": (load_checks.memory, "memory", MONITOR),
    "storage": (load_checks.storage, "storage", MONITOR),
}
HOST_LOADS = ("cpu", "memory", "storage")
GPU_CHECKS = [name for name in LOADS if name not in HOST_LOADS]


# --- the node took part


def test_a_node_that_is_lost_or_lacks_a_gpu() -> None:
    whole = fleet(2)
    whole.nodes["a"].lost, whole.nodes["a"].rounds = "silent for 60 s", 7
    verdict = load_checks.survived(whole, "a")
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((DRAIN, ["node"]), [7, 60])
    assert verdict.metrics == (Metric("burnin_rounds", 7, "rounds"),)


@pytest.mark.parametrize(("broken", "why"), [(["", "no CUDA"], "; no CUDA"), ([], "no reason is known")])
def test_a_gpu_that_took_no_part(broken: list[str], why: str) -> None:
    whole, totals = one_node()
    assert totals.hello
    totals.hello |= {"devices": totals.hello["devices"][:3], "broken": broken}
    verdict = load_checks.survived(whole, "a")
    assert (judged(verdict), verdict.cause[:26]) == ((CONFIGURE, ["GPUs"]), "no work could be started o")
    assert (verdict.findings[0].measured, verdict.findings[0].expected) == (f"3 took part: {why}", "4")
    totals.problems.append(("hbm", UUID, "the load ended by signal 11"))
    both = load_checks.survived(whole, "a")
    assert (judged(both), both.cause[:13]) == ((DRAIN, [GPU_1, "GPUs"]), "the node died")
    whole.gpus = 3
    assert judged(load_checks.survived(whole, "a")) == (DRAIN, [GPU_1])


def test_a_burn_in_without_a_round_is_not_checked() -> None:
    whole, totals = one_node()
    totals.rounds, whole.seconds = 0, 90
    reason(load_checks.survived(whole, "a"), NOT_CHECKED, "the time was too short (1 min 30 s)")
    whole.ended = "stopped by Ctrl-C"
    reason(load_checks.survived(whole, "a"), NOT_CHECKED, "stopped by Ctrl-C (1 min 30 s)")
    for left in (NodeTotals("a", out="x"), NodeTotals("a", lost="x")):
        assert load_checks.survived(BurninResult({"a": left}, 60), "a").reason == ""


@pytest.mark.parametrize("why", [NO_TORCH, NO_DEVICE, NO_MEMORY])
def test_a_node_whose_only_gpu_never_worked_is_no_pass(why: str) -> None:
    """Recorded on two H200: the burn-in of such a node ended green, all its loads 'not applicable'."""
    whole = idle_gpus(2, why)
    assert judged(load_checks.survived(whole, "a")) == (MONITOR if why == NO_TORCH else CONFIGURE, ["GPUs"])
    assert load_checks.survived(whole, "b").outcome is Outcome.PASSED
    reason(load_checks.corruption(whole, "a"), NOT_CHECKED, why)
    reason(error_checks.temperature(whole, "a", CONFIG), NOT_CHECKED, why)


def test_what_all_nodes_lack_is_the_fault_of_none() -> None:
    for whole, hint in (
        (idle_gpus(1, NO_TORCH), "name an environment"),
        (idle_gpus(2, NO_TORCH, NO_TORCH), "name an environment"),
        (idle_gpus(2, NO_DEVICE, NO_DEVICE), "check burnin.environment"),
    ):
        reason(load_checks.survived(whole, "a"), NOT_CHECKED, hint)
    assert failed(load_checks.survived(idle_gpus(1, NO_DEVICE), "a"))
    assert failed(load_checks.survived(idle_gpus(2, NO_MEMORY, NO_MEMORY), "a"))


def test_a_node_outside_of_the_stated_container_fails_without_a_repair() -> None:
    why = "the task ran on the host, not in the image pt.sqsh: slurmd on a does not load Pyxis"
    nodes = {"a": NodeTotals("a", out=why), "b": NodeTotals("b", hello=hello("b"), rounds=1)}
    whole = BurninResult(nodes, 60, 4)
    assert judged(load_checks.survived(whole, "a")) == (CONFIGURE, ["node"])
    assert load_checks.survived(whole, "b").outcome is Outcome.PASSED


# --- why a load was not judged


@pytest.mark.parametrize("name", LOADS)
def test_a_load_that_reports_a_problem(name: str) -> None:
    check, kind, action = LOADS[name]
    whole = fleet(2)
    whole.nodes["a"].problems.append((kind, "" if name in HOST_LOADS else UUID, "broken"))
    assert judged(check(whole, "a", CONFIG)) == (action, ["node" if name in HOST_LOADS else GPU_1])


@pytest.mark.parametrize("name", LOADS)
def test_why_a_load_was_not_measured(name: str) -> None:
    check, kind, _ = LOADS[name]
    other: Any = "cpu" if kind != "cpu" else "memory"
    nodes = {name: NodeTotals(name, hello=hello(name), rounds=1) for name in "ab"}
    whole = BurninResult(nodes, 3600, 4, seconds=3600)
    reason(check(whole, "a", BurninConfig(loads=(other,))), NOT_APPLICABLE, f"leaves {kind} out")
    reason(check(whole, "a", CONFIG), NOT_CHECKED, f"{kind} was not run in the available time")
    nodes["a"].out = "wrong data"
    reason(check(whole, "a", CONFIG), NOT_CHECKED, f"{kind} was not run: wrong data")
    nodes["a"].skips[kind] = "no room"
    reason(check(whole, "a", CONFIG), NOT_APPLICABLE, "no room")
    nodes["a"] = NodeTotals("a")
    reason(check(whole, "a", CONFIG), NOT_CHECKED, "its agent sent nothing")
    nodes["a"].out = "left"
    reason(check(whole, "a", CONFIG), NOT_CHECKED, "never took part: left")
    nodes["a"].lost = "silent"
    reason(check(whole, "a", CONFIG), NOT_CHECKED, "never took part: silent")
    if name == "nccl":  # another node may be the cause
        return
    nodes["a"] = NodeTotals("a", hello=hello("a"), problems=[(kind, "", "the load ended by signal 9")])
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
    reason(load_checks.peer(whole, "a", CONFIG), NOT_APPLICABLE, "no peer")
    reason(load_checks.nccl(whole, "a", CONFIG), NOT_APPLICABLE, "nothing to reduce with")
    nodes["b"] = NodeTotals("b", hello("b", 1))
    reason(load_checks.nccl(whole, "a", CONFIG), NOT_CHECKED, "nccl was not run in the available time")


def test_what_was_never_run_is_never_a_pass() -> None:
    nodes = {"a": NodeTotals("a", lost="silent for 60 s"), "b": NodeTotals("b", hello=hello("b"))}
    whole = BurninResult(nodes, 60, 4)
    for node in nodes:
        for judge in (load_checks.corruption, error_checks.xid, load_checks.survived):
            assert judge(whole, node).outcome is not Outcome.PASSED
        for check in (error_checks.counters, error_checks.temperature, dcgm.dcgm, stragglers.stragglers):
            assert check(whole, node, CONFIG).outcome is Outcome.NOT_CHECKED, check
    only = BurninConfig(loads=("matmul",))
    assert load_checks.matmul(fleet(1), "a", only).outcome is Outcome.PASSED
    assert dcgm.dcgm(fleet(1), "a", only).outcome is Outcome.NOT_APPLICABLE


def test_some_loads_of_several_were_run() -> None:
    whole, totals = one_node(a=[load("a", "hbm")])
    verdict = load_checks.corruption(whole, "a")
    assert judged(verdict) == (PASSED, [])
    assert verdict.metrics == (Metric("burnin_products_checked", 0, "products"),)
    totals.ran.clear()
    reason(load_checks.corruption(whole, "a"), NOT_CHECKED, "matmul was not run")
    totals.skips["copies"] = "no room"
    reason(load_checks.corruption(whole, "a"), NOT_APPLICABLE, "no room")
    totals.add({"load": "peer", "results": [{"lacks": "torch"}]})
    reason(load_checks.corruption(whole, "a"), NOT_CHECKED, "torch")
    totals.skips.clear()
    totals.lacks.clear()
    totals.problems.append(("copies", UUID, "x"))
    assert load_checks.corruption(whole, "a").reason == "", "burnin.copies reports the problem"
    totals.problems = [("cpu", "", "the load ended")]
    reason(load_checks.corruption(whole, "a"), NOT_CHECKED, "matmul was not run")
    config = BurninConfig(loads=("cpu", "hbm"))
    reason(load_checks.memory_bandwidth(whole, "a", config), NOT_CHECKED, "hbm was not run")
    reason(load_checks.matmul(whole, "a", config), NOT_APPLICABLE, "leaves matmul out")


def test_a_load_that_left_a_gpu_out_proves_nothing_of_it() -> None:
    whole, totals = one_node()
    totals.rates["hbm"].pop(UUID)
    reason(load_checks.memory_bandwidth(whole, "a", CONFIG), NOT_CHECKED, f"{GPU_1} has no result")


# --- wrong results


def host(kind: str, **fields: Any) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = {
        "cpu": {"rate": 9.0, "key": "cpu/1", "hashes": ["aa"]},
        "memory": {"rate": 9.0},
        "storage": {"write": 1.0, "read": 2.0},
        "rdma": {"rate": 49.0},
    }
    return {"load": kind, "results": [{"load": kind, "wrong": 0, **known[kind], **fields}]}


@pytest.mark.parametrize(
    ("kind", "part", "action"),
    [("cpu", "CPUs", VENDOR), ("memory", "memory", VENDOR), ("storage", "/tmp", DRAIN)],
)
def test_wrong_results_of_the_host(kind: str, part: str, action: str) -> None:
    verdict = LOADS[kind][0](fleet(1, a=[host(kind, wrong=3)]), "a", CONFIG)
    assert (judged(verdict), figures(verdict.findings[0].measured)[0]) == ((action, [part]), 3)
    assert LOADS[kind][0](fleet(1, a=[host(kind)]), "a", CONFIG).outcome is Outcome.PASSED
    several, totals = one_node()
    totals.wrong = {kind: {"": 0, "x": 2}}
    assert len(LOADS[kind][0](several, "a", CONFIG).findings) == 1


def test_storage_without_a_folder_of_its_own_has_a_name() -> None:
    config = BurninConfig(storage=None, storage_size=2**20)
    (found,) = load_checks.storage(fleet(1, a=[host("storage", wrong=1)]), "a", config).findings
    assert (found.part, "(1 MiB per round)" in found.expected) == ("storage", True)


def test_cpus_that_compute_something_else_are_no_corruption_of_a_gpu() -> None:
    whole = fleet(3, a=[host("cpu", hashes=["bb"])], b=[host("cpu")], c=[host("cpu")])
    verdict = load_checks.cpu(whole, "a", CONFIG)
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((VENDOR, ["CPUs"]), [2])
    assert load_checks.cpu(whole, "b", CONFIG).findings == ()
    assert load_checks.corruption(whole, "a").findings == ()


def test_the_gpu_whose_result_differs_is_named_and_the_others_are_not() -> None:
    whole = fleet(2, a=[load("a", "matmul", own={1: {"hash": "bb"}})])
    verdict = load_checks.corruption(whole, "a")
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((VENDOR, [GPU_1]), [7])
    assert verdict.metrics == (Metric("burnin_products_checked", 36, "products"),)
    assert load_checks.corruption(whole, "b").outcome is Outcome.PASSED
    assert list(removal.corrupt_nodes(whole)) == ["a"]


def test_two_that_differ_accuse_both_and_neither_has_to_leave() -> None:
    whole = fleet(2, a=[load("a", "matmul", 1)], b=[load("b", "matmul", 1, own={0: {"hash": "bb"}})])
    for node in "ab":
        verdict = load_checks.corruption(whole, node)
        assert judged(verdict) == (MONITOR, [f"GPU 0 (GPU-{node}-0, 0000:00:00.0)"])
        assert verdict.findings[0].expected.endswith("aa on a, bb on b")
    assert removal.corrupt_nodes(whole) == {}


@pytest.mark.parametrize("upgraded", [4, 5])
def test_halves_of_a_fleet_that_differ_in_their_results_drain_nobody(upgraded: int) -> None:
    """As where an upgrade has reached five nodes of nine: their library rounds otherwise."""
    lines: dict[str, Any] = {
        name: [host("cpu", hashes=["aa" if at < upgraded else "bb"])] for at, name in enumerate("abcdefgh")
    }
    whole = fleet(8, **lines)
    assert removal.corrupt_nodes(whole) == {}
    assert [judged(load_checks.cpu(whole, node, CONFIG)) for node in "abcdefgh"] == [(MONITOR, ["CPUs"])] * 8


def test_a_gpu_that_contradicts_itself_needs_no_majority() -> None:
    whole = fleet(1, a=[load("a", "matmul", 1), load("a", "matmul", 1, own={0: {"hash": "bb"}})])
    assert judged(load_checks.corruption(whole, "a"))[0] == VENDOR


def test_several_wrong_results_are_each_reported() -> None:
    whole, totals = one_node()
    totals.wrong = {"peer": {UUID: 2}, "matmul": {gpu_of("a", 0): 0, UUID: 1}}
    totals.checked = {"matmul": {UUID: 3, gpu_of("a", 0): 4}, "hbm": {UUID: 9}}
    verdict = load_checks.corruption(whole, "a")
    assert [it.measured for it in verdict.findings] == ["matmul: 1 wrong elements", "peer: 2 wrong elements"]
    assert verdict.metrics == (Metric("burnin_products_checked", 7, "products"),)
    for kind in ("matmul", "beside", "hbm", "copies", "peer"):
        totals.wrong = {kind: {UUID: 5}}
        assert judged(load_checks.corruption(whole, "a")) == (VENDOR, [GPU_1])


def test_the_first_wrong_word_of_a_gpus_memory_has_its_address() -> None:
    whole = fleet(2)
    for own in (
        {},
        {1: {"wrong": 3, "first": FIRST}, 2: {"tested": 0.5}},
        {1: {"wrong": 1, "first": "later"}, 2: {"tested": 0.5}},
    ):
        whole.nodes["a"].add(load("a", "gpu_memory", own=own))
    verdict = load_checks.gpu_memory(whole, "a", CONFIG)
    assert failed(verdict) == [f"{GPU_1}: 4 wrong words of 4 bytes, the first {FIRST}"]
    assert verdict.outcome is Outcome.FAILED
    assert [(it.measured[:3], it.expected[:12]) for it in verdict.advisories] == [("50%", "at least 90%")]
    reason(load_checks.gpu_memory(whole, "b", CONFIG), NOT_CHECKED, "gpu_memory was not run")


# --- rates


def test_rates_are_measured_by_gpu() -> None:
    lines = [load("a", "matmul", gpus=2), load("a", "copies", gpus=1), load("a", "peer", gpus=1)]
    whole, totals = one_node(a=lines)
    first = "GPU 0 (GPU-a-0, 0000:00:00.0)"
    assert load_checks.matmul(whole, "a", CONFIG).metrics == (
        Metric("burnin_bf16", 700.0, "TFLOP/s", first),
        Metric("burnin_bf16", 700.0, "TFLOP/s", GPU_1),
    )
    assert load_checks.copies(whole, "a", CONFIG).metrics == (
        Metric("burnin_h2d", 54.0, "GB/s", first),
        Metric("burnin_d2h", 55.0, "GB/s", first),
    )
    assert load_checks.peer(whole, "a", CONFIG).metrics == (Metric("burnin_peer", 380.0, "GB/s", first),)
    totals.rates["fp8"] = {UUID: [1900.0, 1000.0, 1800.0]}
    assert load_checks.matmul(whole, "a", CONFIG).metrics[-1].value == 1800.0
    assert totals.hello
    totals.hello["gpus"][0]["name"] = "NVIDIA Q1"
    assert not load_checks.matmul(whole, "a", CONFIG).advisories, "one of them has a figure"


def test_a_card_without_a_limit_is_measured_with_a_warning_unless_the_cluster_file_has_one() -> None:
    whole, totals = one_node()
    assert totals.hello
    for gpu in totals.hello["gpus"]:
        gpu |= {"name": "NVIDIA Q9000", "pcie_gen": None}
    for check in (load_checks.matmul, load_checks.memory_bandwidth, load_checks.copies):
        (advisory,) = check(whole, "a", CONFIG).advisories
        assert "NVIDIA Q9000" in advisory.measured
    for limit, expected in (
        (600, (PASSED, [])),
        (800, (MONITOR, [str(gpu) for gpu in totals.gpus.values()])),
    ):
        assert judged(load_checks.matmul(whole, "a", BurninConfig(expect={"bf16": limit}))) == expected


@pytest.mark.parametrize(
    ("kind", "check", "slow"),
    [
        ("matmul", load_checks.matmul, {"tflops": 9.0}),
        ("hbm", load_checks.memory_bandwidth, {"gbs": 9.0}),
        ("copies", load_checks.copies, {"h2d": 9.0}),
        ("peer", load_checks.peer, {"gbs": 9.0}),
    ],
)
def test_a_load_that_is_slow_beside_others_drains_nobody(
    kind: str, check: Any, slow: dict[str, float]
) -> None:
    strict = BurninConfig(expect={"peer": 10.0})
    names = {UUID: ["z (pid 2)", "b (pid 1)"]}
    whole, totals = one_node(a=[load("a", kind, own={1: slow}, strangers=names)])
    verdict = check(whole, "a", strict)
    assert judged(verdict) == (MONITOR, [GPU_1])
    assert "others are at work on the GPU: b (pid 1), z (pid 2)" in verdict.cause
    totals.shared.clear()
    assert "others" not in check(whole, "a", strict).cause
    totals.shared = {UUID: {kind: 1}}
    totals.problems.append((kind, gpu_of("a", 0), "RuntimeError: x"))
    assert "others" not in check(whole, "a", strict).cause, "a GPU that fails is not slow"


def test_processes_of_others_explain_a_lack_of_memory_and_no_crash() -> None:
    """Recorded on an H200 whose memory another process held: burnin.nccl asked to drain the node."""
    whole, totals = one_node()
    totals.strangers = {UUID: ["b"], gpu_of("a", 0): ["c"]}
    assert totals.hello
    totals.hello["gpus"][1]["processes"] = [{"name": "d", "pid": 4}]
    for judge, kind in (
        (load_checks.memory_bandwidth, "hbm"),
        (load_checks.peer, "peer"),
        (load_checks.nccl, "nccl"),
    ):
        totals.problems = [(kind, UUID, NO_MEMORY)]
        verdict = judge(whole, "a", CONFIG)
        assert (judged(verdict), "on the GPU: b, d (pid 4);" in verdict.cause) == ((MONITOR, [GPU_1]), True)
        totals.problems = [(kind, UUID, LAUNCH)]
        assert "on the GPU: b" not in judge(whole, "a", CONFIG).cause
    totals.problems = []
    totals.hello |= {"devices": totals.hello["devices"][2:], "broken": [NO_MEMORY]}
    verdict = load_checks.survived(whole, "a")
    assert (judged(verdict), "on the GPU: b, c, d (pid 4);" in verdict.cause) == ((MONITOR, ["GPUs"]), True)
    totals.hello |= {"broken": ["other"]}
    assert "(pid 4)" not in load_checks.survived(whole, "a").cause


def test_the_process_that_was_there_before_us_is_named() -> None:
    whole, totals = one_node(a=[load("a", "matmul", own={1: {"tflops": 340.0}})])
    assert totals.hello
    totals.hello["gpus"][1]["processes"] = [{"pid": 7, "name": "python3"}]
    assert "on it before the burn-in: python3 (pid 7)" in failed(load_checks.matmul(whole, "a", CONFIG))[0]


def test_a_healthy_node_passes() -> None:
    whole = fleet()
    for verdict in (
        load_checks.survived(whole, "a"),
        load_checks.corruption(whole, "a"),
        load_checks.matmul(whole, "a", CONFIG),
        load_checks.memory_bandwidth(whole, "a", CONFIG),
        load_checks.copies(whole, "a", CONFIG),
        error_checks.counters(whole, "a", CONFIG),
        error_checks.xid(whole, "a"),
        stragglers.stragglers(whole, "a", CONFIG),
    ):
        assert verdict.outcome is Outcome.PASSED, verdict


# --- collectives


def pair_of(*members: str, **more: Any) -> dict[str, Any]:
    return nccl_line("a", members=[*members], **{"busbw": 90.0, **more})


def test_wrong_sums_are_blamed_on_a_partner_that_is_bad() -> None:
    whole = fleet(3, a=[pair_of("a", "b", wrong=2)])
    verdict = load_checks.nccl(whole, "a", CONFIG)
    assert judged(verdict) == (DRAIN, ["GPU 0 (GPU-a-0, 0000:00:00.0)"])
    assert figures(verdict.findings[0].measured) == [2]
    whole.nodes["c"].out = "wrong data"
    assert load_checks.nccl(whole, "a", CONFIG).findings != ()
    whole.nodes["b"].out = "wrong data"
    excused = load_checks.nccl(whole, "a", CONFIG)
    assert (excused.findings, excused.metrics) == ((), (Metric("burnin_nccl_pairs", 90.0, "GB/s"),))


def excused(*own: str, other: str = "Xid", **more: NodeTotals) -> bool:
    """Return whether node a, whose collectives failed so, is acquitted."""
    nodes = {
        "a": NodeTotals("a", problems=[("nccl", "", text) for text in own]),
        "b": NodeTotals("b", problems=[("hbm", "", "illegal memory access"), ("nccl", "", other)]),
    }
    return not load_checks.nccl(BurninResult(nodes | more, 60), "a", CONFIG).findings


def test_a_partner_that_broke_excuses_only_who_waited() -> None:
    left, lost = NodeTotals("b", out="x"), NodeTotals("b", lost="gone")
    assert excused("timed out (a b)")
    assert excused("timed out (a b)", "connection closed (a b)")
    assert not excused("timed out (a b)", "connection closed (a c)")
    assert not excused("timed out (a b)", "illegal memory access (a b)")
    assert excused("illegal memory access (a b)", b=left)
    assert excused("timeout (a b)", b=lost)
    assert not excused("timeout (a b)", b=NodeTotals("b"))
    assert not excused("timeout (a b)", b=NodeTotals("b"), c=lost)
    assert excused("timeout", b=NodeTotals("b"), c=left)
    assert not excused("timed out (a bb)")


@pytest.mark.parametrize(
    ("text", "waited"),
    [
        *((text, True) for text in ("timed out", "Time out", "timeout", "Connection closed by peer")),
        *((text, True) for text in ("connection reset", "Connection refused", "connection was lost")),
        *((text, True) for text in ("Broken pipe", "remoteError", "Remote process exited", "remote error")),
        *((text, True) for text in ("did not answer in time", "did not answer in time (a b)")),
        *((text, True) for text in ("had not ended after 5 s (a b)", "had not ended after 5 s")),
        ("did not answer in time: its process is stopped by a signal", False),
        ("did not answer in time or later", False),
        ("illegal memory access", False),
        ("Connection", False),
    ],
)
def test_how_a_rank_ends_that_waited_for_another(text: str, *, waited: bool) -> None:
    """Of two that failed, one is acquitted if the other failed by an error of its own."""
    assert excused("timed out (a b)", other=text) is not waited


def test_the_figure_of_pairs_is_the_best_median() -> None:
    whole, totals = one_node(a=[pair_of("a", busbw=340.0)])
    totals.rates["nccl_alone"][UUID] = [300.0]
    totals.rates["nccl_pairs"] = {UUID: [90.0]}
    totals.partners = {"b": [10.0, 30.0, 20.0], "c": [5.0, 6.0, 100.0]}
    verdict = load_checks.nccl(whole, "a", BurninConfig(expect={"nccl_alone": 301.0, "nccl_pairs": 21.0}))
    assert judged(verdict)[1] == ["node", "node"]
    assert [figures(it.measured)[0] for it in verdict.findings] == [300, 20]
    assert verdict.metrics == (
        Metric("burnin_nccl_alone", 300.0, "GB/s"),
        Metric("burnin_nccl_pairs", 90.0, "GB/s"),
    )


ALL_A = [gpu_of("a", n) for n in range(4)]
NO_KERNEL = "AcceleratorError: CUDA error: no kernel image is available for execution on the device"
LAUNCH = "AcceleratorError: CUDA error: unspecified launch failure"
FULL = "OSError: [Errno 28] No space left on device"
OTHERS = {UUID: ["python3 (pid 7)"]}


def everywhere(kind: str, text: str, nodes: str = "abc") -> list[Callable[[BurninResult], None]]:
    return [trouble(kind, text, *(gpu_of(node, n) for n in range(4)), node=node) for node in nodes]


def lost(why: str, nodes: str = "a") -> Callable[[BurninResult], None]:
    def change(whole: BurninResult) -> None:
        for node in nodes:
            whole.nodes[node].lost = why

    return change


def slow(kind: str, own: dict[str, float], node: str = "a") -> Callable[[BurninResult], None]:
    """Return a change: three further loads in which one GPU of the node has this rate."""
    return added(*[load(node, kind, own={1: own})] * 3, node=node)


def slow_everywhere(kind: str, own: dict[str, float]) -> list[Callable[[BurninResult], None]]:
    return [added(*[load(node, kind, own=dict.fromkeys(range(4), own))] * 3, node=node) for node in "abc"]


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


SLOW_LOADS = {
    "matmul": (load_checks.matmul, {"tflops": 100.0}, DRAIN),
    "hbm": (load_checks.memory_bandwidth, {"gbs": 1000.0}, "reset gpu"),
    "copies": (load_checks.copies, {"h2d": 5.0}, DRAIN),
    "peer": (load_checks.peer, {"gbs": 5.0}, DRAIN),
}
WITH_LIMIT = BurninConfig(expect={"peer": 300.0})
FIRST = "at address 0x7f2c40000014: read 0x00000004, expected 0x00000000"
COUNTER_EXAMPLES = [
    row
    for kind, (check, rate, repair) in SLOW_LOADS.items()
    for row in (
        example(check, "torch without kernels for this GPU on all nodes", "torch: no kernel image", MONITOR,
                *everywhere(kind, NO_KERNEL)),
        example(check, "one node alone with an older torch", "torch: no kernel image", MONITOR, *everywhere(kind, NO_KERNEL, "a")),
        example(check, "another process on the GPU", "a prolog that starts a monitor", MONITOR,
                added(*[load("a", kind, own={1: rate}, strangers=OTHERS)] * 3), config=WITH_LIMIT),
        example(check, "the whole fleet below a limit of the site", "a limit of another model", MONITOR,
                *slow_everywhere(kind, rate), config=WITH_LIMIT),
        example(check, "one GPU whose kernels fail, beside eleven", "CUDA: unspecified launch failure", repair,
                trouble(kind, LAUNCH, UUID), sick=True),
        example(check, "one slow GPU of twelve", "half of its peers", repair, *(added(load(node, kind), node=node) for node in "abc"),
                slow(kind, rate), config=WITH_LIMIT, sick=True),
    )
] + [
    example(load_checks.matmul, "power limit lowered by the site", "nvidia-smi -pl 400", MONITOR, capped,
            slow("matmul", {"tflops": 100.0})),
    example(load_checks.survived, "a process killed by the OOM killer", "kernel log", MONITOR,
            trouble("hbm", "the load ended by signal 9: by the OOM killer", UUID)),
    example(load_checks.survived, "scontrol suspend during the burn-in", "state T in /proc", MONITOR,
            trouble("hbm", "the load did not end after 99 s: its process is stopped by a signal", UUID)),
    example(load_checks.survived, "an operator killed a process", "kill -9: no fault of hardware sends it", MONITOR,
            trouble("hbm", "the load ended by signal 9", UUID)),
    example(load_checks.survived, "an operator ended the agent of one node", "kill, scancel: SIGTERM", MONITOR,
            lost("its agent ended by signal 15")),
    example(load_checks.survived, "the network of the login node failed", "all nodes are silent at once", MONITOR,
            lost("silent for 60 s", "abc")),
    example(load_checks.survived, "a node that fell silent beside two that go on", "a node that crashed", DRAIN,
            lost("silent for 60 s"), sick=True),
    example(load_checks.survived, "a load that ended by a bus error", "SIGBUS: memory that failed", DRAIN,
            trouble("hbm", "the load ended by signal 7", UUID), sick=True),
    example(load_checks.corruption, "three healthy nodes", "equal kernels", PASSED),
    example(load_checks.corruption, "one node with another cuBLAS", "CUDA library of the node: all its GPUs differ alike", MONITOR,
            *(added(load(node, "matmul", own={n: {"key": "k", "hash": "zz" if node == "a" else "aa"} for n in range(4)}), node=node)
              for node in "abc")),
    example(load_checks.corruption, "GH200: its only GPU differs from two others", "library or GPU: nothing beside it decides", MONITOR,
            *(only_gpu(node, "zz" if node == "a" else "aa") for node in "abc")),
    example(load_checks.corruption, "a GPU that contradicts itself", "no healthy GPU does", VENDOR,
            added(load("a", "matmul", own={1: {"wrong": 3}})), sick=True),
    example(load_checks.corruption, "one GPU of twelve with another result", "silent data corruption", VENDOR,
            added(load("a", "matmul", own={1: {"key": "k", "hash": "zz"}, 0: {"key": "k"}, 2: {"key": "k"}, 3: {"key": "k"}})),
            *(added(load(node, "matmul", own={n: {"key": "k"} for n in range(4)}), node=node) for node in "bc"), sick=True),
    example(load_checks.nccl, "torch whose NCCL has no kernels for this GPU", "torch: no kernel image", MONITOR,
            *(trouble("nccl", f"{NO_KERNEL} (a b c)", gpu_of(node, 0), node=node) for node in "abc")),
    example(load_checks.nccl, "a partner that died", "NCCL: remote process exited", PASSED,
            added(nccl_line("a", members=["a"], busbw=300.0)), trouble("nccl", "RuntimeError: Connection closed by peer (a b)", UUID),
            lost("silent for 60 s", "b")),
    example(load_checks.nccl, "all nodes are slow in pairs", "a limit of another network", MONITOR,
            *(added(*(nccl_line(node, members=[node, other], busbw=10.0) for other in "abc" if other != node), node=node)
              for node in "abc"), config=BurninConfig(expect={"nccl_pairs": 40.0})),
    example(load_checks.nccl, "wrong sums within the node", "no healthy node has them", DRAIN,
            added(nccl_line("a", members=["a"], busbw=300.0, wrong=4)), sick=True),
    example(load_checks.cpu, "no process can be started", "RLIMIT_NPROC: BlockingIOError", MONITOR,
            trouble("cpu", "BlockingIOError: [Errno 11] Resource temporarily unavailable")),
    example(load_checks.cpu, "another machine of a mixed group is faster", "units per second", PASSED, added(host("cpu", rate=1.0))),
    example(load_checks.cpu, "aarch64 beside x86-64", "one digest of integers and IEEE arithmetic", PASSED,
            added(host("cpu")), *(added(host("cpu"), node=node) for node in "bc")),
    example(load_checks.cpu, "distribution whose zlib compresses otherwise", "the digest is of the decompressed bytes", PASSED,
            added(host("cpu")), added(host("cpu"), node="b")),
    example(load_checks.cpu, "a core that computes something else", "silent data corruption", VENDOR, added(host("cpu", wrong=1)),
            sick=True),
    example(load_checks.gpu_memory, "another process holds most of the memory", "cudaMemGetInfo", PASSED,
            added(load("a", "gpu_memory"))),
    example(load_checks.gpu_memory, "a GPU whose memory another process took meanwhile", "CUDA: out of memory", MONITOR,
            *everywhere("gpu_memory", NO_MEMORY)),
    example(load_checks.gpu_memory, "torch without kernels for this GPU on all nodes", "torch: no kernel image", MONITOR,
            *everywhere("gpu_memory", NO_KERNEL)),
    example(load_checks.gpu_memory, "a word that lost a bit", "healthy memory keeps it", VENDOR,
            added(load("a", "gpu_memory", own={1: {"wrong": 1, "first": FIRST}})), sick=True),
    example(load_checks.memory, "a job with a small memory limit", "MemoryError, ENOMEM", MONITOR,
            trouble("memory", "OSError: [Errno 12] Cannot allocate memory")),
    example(load_checks.memory, "one NUMA node is slower", "GB/s", PASSED, added(host("memory", rate=2.0))),
    example(load_checks.memory, "a process of the load was killed", "cgroup limit", MONITOR, trouble("memory", "ended with status 9")),
    example(load_checks.memory, "bytes that changed in memory", "healthy memory keeps them", VENDOR, added(host("memory", wrong=1)),
            sick=True),
    example(load_checks.storage, "/tmp is full of data of users", "ENOSPC", MONITOR, trouble("storage", FULL)),
    example(load_checks.storage, "quota of the user", "EDQUOT", MONITOR,
            trouble("storage", "OSError: [Errno 122] Disk quota exceeded")),
    example(load_checks.storage, "/tmp that this user may not write", "EACCES", MONITOR,
            trouble("storage", "PermissionError: [Errno 13] Permission denied: '/tmp/burnin-x'")),
    example(load_checks.storage, "a network file system of 50 MB/s", "GB/s", PASSED, added(host("storage", write=0.05))),
    example(load_checks.storage, "a disk that answers with an I/O error", "EIO; a soft NFS mount gives it too", MONITOR,
            trouble("storage", "OSError: [Errno 5] Input/output error"), sick=True),
    example(load_checks.storage, "a file that reads otherwise than written", "healthy storage returns it", DRAIN,
            added(host("storage", wrong=1)), sick=True),
    example(load_checks.rdma, "two nodes with all rails at 49 GB/s", "perftest under the heat of the GPUs", PASSED,
            added(host("rdma")), added(host("rdma"), node="b")),
    example(load_checks.rdma, "a site that did not ask for it", "burnin.loads", NOT_APPLICABLE,
            added(host("cpu")), added(host("cpu"), node="b")),
    example(load_checks.rdma, "a transfer that loses data under load", "perftest: Completion with error", MONITOR,
            trouble("rdma", "a: Completion with error at client Failed status 12"), added(host("rdma"), node="b"), sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)
