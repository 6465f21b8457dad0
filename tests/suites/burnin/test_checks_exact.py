"""Each word of the burn-in's verdicts, and who of a fleet is judged by what."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from burnin_helpers import CONFIG, NAME, failed, fleet, gpu_of, hello, load

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Outcome
from pytest_gpucluster.core.outliers import Halves, Outliers
from pytest_gpucluster.suites.burnin import checks as burnin
from pytest_gpucluster.suites.burnin import limits as burnin_limits
from pytest_gpucluster.suites.burnin import results as burnin_told
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.dcgm import DcgmResult, DcgmWarning
from pytest_gpucluster.suites.burnin.results import BurninResult, GpuInfo, Mismatch, NodeTotals, Peaks

PART = "GPU 1 (GPU-a-1, 0000:10:00.0)"
UUID = gpu_of("a", 1)


def one(**lines: list[dict[str, Any]]) -> tuple[BurninResult, NodeTotals]:
    whole = fleet(1, **lines)
    return whole, whole.nodes["a"]


# --- who has to leave


@pytest.mark.parametrize(
    ("counter", "said"),
    [
        ("gone", "gone rose by 2"), ("ecc_uncorrected_volatile", "ecc_uncorrected_volatile rose by 2"),
        ("ecc_uncorrected_aggregate", "ecc_uncorrected_aggregate rose by 2"),
        ("remapped_uncorrectable", "remapped_uncorrectable rose by 2"),
        ("remapped_failure", "remapped_failure rose by 2"), ("xid_79", "xid_79 rose by 2"),
        ("remapped_pending", ""), ("pcie_replay", ""), ("xid_31", ""), ("link_downed", ""),
    ],
)  # fmt: skip
def test_a_counter_after_which_a_node_leaves(counter: str, said: str) -> None:
    told = NodeTotals("a", hello("a"), rose={"": {"pcie_replay": 1}, UUID: {"xid_31": 1, counter: 2}})
    assert burnin.fatal(told) == (f"{PART}: {said}" if said else "")


def test_wrong_data_after_which_a_node_leaves() -> None:
    assert burnin.fatal(NodeTotals("a", hello("a"), wrong={"hbm": {gpu_of("a", 0): 0, UUID: 1}})) == (
        f"wrong data: hbm, {PART}"
    )
    assert burnin.fatal(NodeTotals("a", wrong={"nccl": {"": 1}})) == "wrong data: nccl, node"
    assert burnin.fatal(NodeTotals("a", wrong={"nccl": {"": 1}}, partners={"b": [1.0]})) == ""
    assert (
        burnin.fatal(NodeTotals("a", wrong={"cpu": {"": 1}}, partners={"b": [1.0]}))
        == "wrong data: cpu, node"
    )
    assert burnin.fatal(NodeTotals("a", wrong={"cpu": {"": 0}})) == ""


def test_deaths_after_which_a_node_leaves() -> None:
    told = NodeTotals("a", problems=[("hbm", "", "the load ended")] * 2 + [("hbm", "", "no CUDA")])
    told.problems.append(("nccl", "", "the load ended"))  # another node may be the cause
    assert burnin.fatal(told) == ""
    told.problems.append(("cpu", "", "the load did not answer in time"))
    assert burnin.fatal(told) == "3 processes of its loads died: cpu: the load did not answer in time"


def test_who_leaves_for_another_result() -> None:
    whole = fleet(2, a=[load("a", "matmul", own={1: {"hash": "bb"}})])
    assert burnin.corrupt_nodes(whole) == {"a": f"wrong data: {PART}: bf16: another result than 7 others"}
    halves = fleet(2, a=[load("a", "matmul", own={at: {"hash": "bb"} for at in range(4)})])
    assert burnin.corrupt_nodes(halves) == {}
    assert burnin._lied("p", [Mismatch("a", "x"), Mismatch("b")], "GPUs") == Finding(
        "p", "b", "the result of the other GPUs for the same input"
    )
    lies = [Mismatch(word, f"{word}?") for word in "abcde"]
    assert burnin._lied("p", lies, "GPUs") == Finding("p", "a; b; c; d", "a?", Action.MONITOR)


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({}, False), ({"out": "x"}, True), ({"lost": "x"}, True), ({"rose": {UUID: {"nvlink_crc_errors": 99}}}, False),
        ({"rose": {UUID: {"nvlink_crc_errors": 100}}}, True), ({"rose": {UUID: {"pcie_replay": 16}}}, False),
        ({"rose": {UUID: {"pcie_replay": 17}}}, True), ({"unread": {"gpu": "Failed"}}, True),
        ({"unread": {"xid": "no answer"}}, False), ({"wrong": {"hbm": {UUID: 1}}}, True),
        ({"peaks": {UUID: Peaks(10, 81.0)}}, True), ({"peaks": {UUID: Peaks(10, 80.0)}}, False),
        ({"rates": {"h2d": {UUID: [9.0]}}}, True), ({"rates": {"peer": {UUID: [9.0]}}}, False),
        ({"rates": {"hbm": {UUID: [9.0]}}}, True), ({"rates": {"fp8": {UUID: [9.0]}}}, True),
    ],
)  # fmt: skip
def test_what_the_progress_line_takes_for_a_failure(change: dict[str, Any], *, seen: bool) -> None:
    whole, told = one()
    for name, value in change.items():
        setattr(told, name, value)
    strict = BurninConfig(max_temperature=80, expect={"peer": 10.0})
    assert burnin.suspicious(whole, "a", strict, 120.0) is seen


@pytest.mark.parametrize(
    ("seconds", "limit"), [(0.0, 8.0), (59.0, 8.0), (60.0, 8.0), (90.0, 12.0), (120.0, 16.0)]
)
def test_replays_are_counted_by_the_minute_and_at_least_for_one(seconds: float, limit: float) -> None:
    rose = {
        "b": {"x": 1, "pcie_replay": 3},
        "a": {"symbol_error": 1, "ecc_corrected_volatile": 2, "xid_79": 1},
    }
    assert list(burnin._risen(NodeTotals("a", rose=rose), seconds, BurninConfig(max_corrected=5))) == [
        ("a", "ecc_corrected_volatile", 2, 5), ("a", "symbol_error", 1, 119), ("b", "pcie_replay", 3, limit)
    ]  # fmt: skip


# --- others at work


@pytest.mark.parametrize(
    ("kind", "check", "slow"),
    [
        ("matmul", burnin.matmul, {"tflops": 9.0}), ("hbm", burnin.memory_bandwidth, {"gbs": 9.0}),
        ("copies", burnin.copies, {"h2d": 9.0}), ("peer", burnin.peer, {"gbs": 9.0}),
    ],
)  # fmt: skip
def test_a_load_that_is_slow_beside_others_drains_nobody(
    kind: str, check: Any, slow: dict[str, float]
) -> None:
    strict = BurninConfig(expect={"peer": 10.0})
    names = {UUID: ["z (pid 2)", "b (pid 1)"]}
    whole, told = one(a=[load("a", kind, own={1: slow}, strangers=names)])
    verdict = check(whole, "a", strict)
    assert [(it.part, it.action) for it in verdict.findings] == [(PART, None)]
    assert verdict.cause == (
        "others are at work on the GPU: b (pid 1), z (pid 2); the hardware alone was not measured"
    )
    assert verdict.action is Action.MONITOR
    told.shared.clear()
    assert "others" not in check(whole, "a", strict).cause
    told.shared = {UUID: {kind: 1}}
    told.problems.append((kind, gpu_of("a", 0), "RuntimeError: x"))
    assert "others" not in check(whole, "a", strict).cause, "a GPU that fails is not slow"


def test_whose_processes_explain_a_finding() -> None:
    told = NodeTotals(
        "a", hello("a"), strangers={UUID: ["b"], gpu_of("a", 0): ["c"]}, shared={UUID: {"hbm": 1}}
    )
    assert told.hello
    told.hello["gpus"][1]["processes"] = [{"name": "d", "pid": 4}]
    full = "CUDA error: out of memory"

    def others(part: str, measured: str = "slow", load: str = "hbm") -> tuple[str, ...]:
        return burnin._others_of(told, Finding(part, measured, ""), load)

    assert others(PART, full) == others(PART, full, "") == ("d (pid 4)", "b")
    assert others("GPUs", full) == ()
    told.hello["devices"] = told.hello["devices"][2:]
    assert others("GPUs", full) == ("c", "d (pid 4)", "b")
    assert others(PART) == ("d (pid 4)",)
    assert others("node") == others(PART, load="") == ()
    told.problems.append(("hbm", UUID, "slow"))
    assert others(PART) == ()


def test_processes_that_were_starved_or_stopped() -> None:
    whole, told = one()
    told.problems = [("hbm", UUID, "the load was ended by the OOM killer")]
    verdict = burnin.survived(whole, "a")
    assert (verdict.cause, verdict.hint, verdict.action) == (
        "the kernel ended our processes: the host's memory, or the job's limit of it, does not suffice",
        "dmesg -T | grep -i 'killed process'; free -h; DefMemPerNode, DefMemPerGPU, RealMemory of slurm.conf",
        Action.MONITOR,
    )
    told.problems = [("hbm", UUID, "the load did not answer in time: its process is stopped by a signal")]
    verdict = burnin.survived(whole, "a")
    assert (verdict.cause, verdict.hint, verdict.action) == (
        "our processes on the node were stopped by a signal: scontrol suspend, a debugger, or a kill -STOP",
        "scontrol show job of this run; ps -eo pid,stat,lstart,cmd on the node; repeat",
        Action.MONITOR,
    )


def test_a_gpu_that_never_began_and_a_load_that_died() -> None:
    whole, told = one()
    assert told.hello
    told.hello["devices"].pop()
    verdict = burnin.survived(whole, "a")
    assert verdict.cause == (
        "no work could be started on the GPU: the driver, CUDA_VISIBLE_DEVICES, or memory that is taken"
    )
    assert verdict.hint == (
        "in a step on the node: nvidia-smi; python3 -c 'import torch; torch.zeros(1).cuda()'; -m 'gpu or ddp'"
    )
    told.problems.append(("hbm", UUID, "the load ended by signal 11"))
    both = burnin.survived(whole, "a")
    assert both.cause == "the node died, hung or lost its processes under load"
    assert [it.part for it in both.findings] == [PART, "GPUs"]
    whole.gpus = 3
    assert [it.part for it in burnin.survived(whole, "a").findings] == [PART]
    for left in (NodeTotals("a", out="x"), NodeTotals("a", lost="x")):
        assert burnin.survived(BurninResult({"a": left}, 60), "a").reason == ""


# --- what was not measured


def test_some_loads_of_several_were_run() -> None:
    whole, told = one(a=[load("a", "hbm")])
    verdict = burnin.corruption(whole, "a")
    assert (verdict.outcome, verdict.metrics) == (
        Outcome.PASSED,
        (Metric("burnin_products_checked", 0, "products"),),
    )
    told.ran.clear()
    assert burnin.corruption(whole, "a").reason == "matmul was not run in the time there was"
    told.skips["copies"] = "no room"
    assert (burnin.corruption(whole, "a").outcome, burnin.corruption(whole, "a").reason) == (
        Outcome.NOT_APPLICABLE, "no room"
    )  # fmt: skip
    told.skips.clear()
    told.problems.append(("copies", UUID, "x"))
    assert burnin.corruption(whole, "a").reason == "", "the problem is told by burnin.copies"
    told.problems = [("cpu", "", "the load ended")]
    assert burnin.corruption(whole, "a").reason == "matmul was not run in the time there was"
    config = BurninConfig(loads=("cpu", "hbm"))
    assert burnin.memory_bandwidth(whole, "a", config).reason == "hbm was not run in the time there was"
    assert burnin.matmul(whole, "a", config).reason == "burnin.loads of the cluster file leaves matmul out"


def test_results_of_the_host_are_no_corruption_of_a_gpu() -> None:
    found_by = {"a": "x", "b": "y", "c": "y"}
    whole = BurninResult(
        {name: NodeTotals(name, hello(name), hashes={"cpu/1": {"": [it]}}) for name, it in found_by.items()},
        60,
    )
    assert burnin.corruption(whole, "a").findings == ()
    assert burnin.cpu(whole, "b", CONFIG).findings == ()
    (found,) = burnin.cpu(whole, "a", CONFIG).findings
    assert found == Finding(
        "CPUs", "cpu: another result than 2 others", "the result of the other nodes for the same input"
    )
    told = NodeTotals(
        "a", hello("a"), wrong={"hbm": {UUID: 0, gpu_of("a", 0): 0}}, checked={"hbm": {UUID: 7}}
    )
    assert burnin.corruption(BurninResult({"a": told}, 60), "a").findings == ()


def test_several_wrong_results_are_each_told() -> None:
    whole, told = one()
    told.wrong = {"peer": {UUID: 2}, "matmul": {gpu_of("a", 0): 0, UUID: 1}}
    told.checked = {"matmul": {UUID: 3, gpu_of("a", 0): 4}, "hbm": {UUID: 9}}
    verdict = burnin.corruption(whole, "a")
    assert [it.measured for it in verdict.findings] == ["matmul: 1 wrong elements", "peer: 2 wrong elements"]
    assert verdict.metrics == (Metric("burnin_products_checked", 7, "products"),)
    told.wrong = {"memory": {"": 0, "x": 2}, "cpu": {"": 0, "x": 3}, "storage": {"": 0, "x": 4}}
    assert [it.measured for it in burnin.memory(whole, "a", CONFIG).findings] == [
        "2 blocks of 1 MiB read back changed"
    ]
    assert [it.measured for it in burnin.cpu(whole, "a", CONFIG).findings] == [
        "3 repetitions gave another result"
    ]
    assert [it.measured for it in burnin.storage(whole, "a", CONFIG).findings] == [
        "4 blocks of 4 MiB read back changed"
    ]


def test_rates_are_measured_by_gpu() -> None:
    whole, told = one(a=[load("a", "matmul", gpus=2), load("a", "copies", gpus=1), load("a", "peer", gpus=1)])
    first = "GPU 0 (GPU-a-0, 0000:00:00.0)"
    assert burnin.matmul(whole, "a", CONFIG).metrics == (
        Metric("burnin_bf16", 700.0, "TFLOP/s", first), Metric("burnin_bf16", 700.0, "TFLOP/s", PART)
    )  # fmt: skip
    assert burnin.copies(whole, "a", CONFIG).metrics == (
        Metric("burnin_h2d", 54.0, "GB/s", first), Metric("burnin_d2h", 55.0, "GB/s", first)
    )  # fmt: skip
    assert burnin.peer(whole, "a", CONFIG).metrics == (Metric("burnin_peer", 380.0, "GB/s", first),)
    assert burnin.peer(whole, "a", CONFIG).outcome is Outcome.PASSED
    told.rates["fp8"] = {UUID: [1900.0, 1000.0, 1800.0]}
    assert burnin.matmul(whole, "a", CONFIG).metrics[-1] == Metric("burnin_fp8", 1800.0, "TFLOP/s", PART)
    assert told.hello
    told.hello["gpus"][0]["name"] = "NVIDIA Q1"
    assert burnin.matmul(whole, "a", CONFIG).reason == "", "one of them has a figure"
    told.hello["gpus"], told.hello["devices"][0] = [], {"gpu": 0, "uuid": gpu_of("a", 0), "name": "NVIDIA Q1"}
    assert burnin.matmul(whole, "a", CONFIG).reason == (
        "no TFLOP/s is known of NVIDIA Q1: say it under burnin.expect; the fleet is compared by burnin.stragglers"
    )


# --- collectives


def nccl(*members: str, problem: str = "", **more: Any) -> dict[str, Any]:
    result = {"load": "nccl", "gpu": 0, "uuid": gpu_of("a", 0), "members": [*members], **more}
    return {"load": "nccl", "results": [{**result, **({"problem": problem} if problem else {"busbw": 90.0})}]}


def test_wrong_sums_are_blamed_on_a_partner_that_is_bad() -> None:
    whole = fleet(3, a=[nccl("a", "b", wrong=2)])
    assert failed(burnin.nccl(whole, "a", CONFIG)) == ["GPU 0 (GPU-a-0, 0000:00:00.0): 2 wrong elements"]
    whole.nodes["c"].out = "wrong data"
    assert burnin.nccl(whole, "a", CONFIG).findings != ()
    whole.nodes["b"].out = "wrong data"
    verdict = burnin.nccl(whole, "a", CONFIG)
    assert (verdict.findings, verdict.metrics) == ((), (Metric("burnin_nccl_pairs", 90.0, "GB/s"),))
    assert not burnin._blamed_on_others(fleet(1, a=[nccl("a", wrong=2)]), "a")


def test_a_partner_that_broke_excuses_only_who_waited() -> None:
    def blamed(*own: str, other: str = "Xid", out: str = "") -> bool:
        nodes = {
            "a": NodeTotals("a", problems=[("nccl", "", text) for text in own]),
            "b": NodeTotals("b", problems=[("nccl", "", other)] if other else [], out=out),
        }
        return burnin._blamed_on_others(BurninResult(nodes, 60), "a")

    assert blamed("timed out (a b)")
    assert blamed("timed out (a b)", "connection closed (a b)")
    assert not blamed("timed out (a b)", "connection closed (a c)")
    assert not blamed("timed out (a b)", "illegal memory access (a b)")
    assert blamed("illegal memory access (a b)", out="x")
    assert not blamed("timed out (a b)", other="timed out (a b)")
    assert not blamed("timed out (a b)", other="")
    assert not blamed("timed out (a bb)")


def test_one_gpu_of_two_nodes_has_a_partner() -> None:
    nodes = {name: NodeTotals(name, hello(name, 1)) for name in "ab"}
    assert (
        burnin.nccl(BurninResult(nodes, 60), "a", CONFIG).reason == "nccl was not run in the time there was"
    )
    assert nodes["a"].hello
    nodes["a"].hello["devices"] = []
    assert burnin.nccl(BurninResult(nodes, 60), "a", CONFIG).reason == "the node has no GPU in this step"
    assert (
        burnin.nccl(BurninResult(nodes, 60), "b", CONFIG).reason == "one GPU alone has nothing to reduce with"
    )
    silent = BurninResult({"a": NodeTotals("a")}, 60)
    assert burnin.peer(silent, "a", CONFIG).reason == "the node never took part: no word from it"


def test_the_figure_of_pairs_is_the_best_median() -> None:
    told = NodeTotals("a", partners={"b": [10.0, 30.0, 20.0], "c": [5.0, 6.0, 100.0]})
    assert burnin._best_pair(told) == 20.0
    assert burnin._best_pair(NodeTotals("a")) is None
    whole = fleet(2, a=[nccl("a", "b"), nccl("a")])
    whole.nodes["a"].rates["nccl_alone"][UUID] = [300.0]
    whole.nodes["a"].rates["nccl_alone"][gpu_of("a", 0)] = [340.0]
    assert burnin.nccl(whole, "a", CONFIG).metrics == (
        Metric("burnin_nccl_alone", 300.0, "GB/s"), Metric("burnin_nccl_pairs", 90.0, "GB/s")
    )  # fmt: skip
    (found,) = burnin.nccl(whole, "a", BurninConfig(expect={"nccl_alone": 301.0})).findings
    assert (found.part, found.measured) == ("node", "nccl_alone 300 GB/s")


# --- counters and Xids


def test_counters_of_several_parts() -> None:
    whole, told = one(a=[load("a", "matmul", deltas={UUID: {"link_downed": 1, "symbol_error": 9}}),
                         load("a", "hbm", deltas={UUID: {"link_downed": 1}, "mlx5_0/1": {"gone": 1}})])  # fmt: skip
    verdict = burnin.counters(whole, "a", CONFIG)
    assert verdict.metrics == (
        Metric("burnin_rose_link_downed", 2, "", PART), Metric("burnin_rose_symbol_error", 9, "", PART),
        Metric("burnin_rose_gone", 1, "", "mlx5_0/1"), Metric("burnin_counters_read", 1, "counters"),
    )  # fmt: skip
    assert verdict.findings == (
        Finding(PART, "link_downed rose by 2 during matmul, hbm", "by at most 0"),
        Finding("mlx5_0/1", "vanished from nvidia-smi during hbm", "by at most 0"),
    )
    told.unread["gpu"] = "Failed"
    both = burnin.counters(whole, "a", CONFIG)
    assert both.findings[0] == Finding("nvidia-smi", "Failed", "answers, also under load")
    assert both.cause == verdict.cause
    assert verdict.cause == (
        "errors that only show under load: failing memory, a link that replays, a port that loses symbols"
    )
    told.rose.clear()
    alone = burnin.counters(whole, "a", CONFIG)
    assert (alone.cause, alone.hint, alone.action) == (
        "the driver does not answer any more: a GPU hangs or fell off the bus, or its device files are gone",
        (
            "nvidia-smi on the node; dmesg | grep -i -e xid -e nvrm; ps -eo pid,stat,wchan:30,args | grep nvidia; "
            "reset the GPU or reboot"
        ),
        Action.DRAIN,
    )


def test_how_nvidia_smi_fails() -> None:
    def mute(later: str = "", first: str = "", **more: Any) -> str:
        unread = {"gpu": later} if later else {}
        return burnin._mute(
            NodeTotals("a", hello("a", unread={"gpu": first} if first else {}, **more), unread=unread)
        )

    assert mute() == mute(first="Failed") == mute("Failed", gpus=0) == ""
    assert mute("Failed") == "Failed"
    assert mute(first="no end after 60 s") == "no end after 60 s"
    assert mute("no answer for 9 s", gpus=0) == "no answer for 9 s"
    assert mute("Failed", "no end after 60 s") == "Failed"
    assert burnin._mute(NodeTotals("a")) == ""


def test_xids_in_words() -> None:
    whole, told = one(a=[load("a", "matmul", deltas={UUID: {"xid_79": 2, "xid_31": 1, "pcie_replay": 1}}),
                         load("a", "hbm", deltas={UUID: {"xid_79": 1}, "": {"sxid_7": 3}})])  # fmt: skip
    verdict = burnin.xid(whole, "a")
    assert verdict.findings == (
        Finding(
            PART, "Xid 79: GPU has fallen off the bus (restart the node) 3 times during matmul, hbm", "none",
            Action.REBOOT,
        ),
    )  # fmt: skip
    assert verdict.metrics == (
        Metric("burnin_sxid", 3, "", "node"), Metric("burnin_xid", 1, "", PART), Metric("burnin_xid", 3, "", PART)
    )  # fmt: skip
    assert [(it.part, it.measured) for it in verdict.advisories] == [
        ("node", "SXid 7:  (no action known) 3 times during hbm")
    ]
    told.rose = {UUID: {"xid_31": 1}}
    assert burnin.xid(whole, "a").outcome is Outcome.PASSED


# --- temperature


def test_each_gpu_and_reason_is_told() -> None:
    whole, told = one()
    told.peaks = {
        UUID: Peaks(10, 91.0, slow=Counter({"power": 3, "heat": 4, "x": 2})),
        gpu_of("a", 0): Peaks(10, 91.5, watts=5.0),
        "gone": Peaks(0, None, slow=Counter({"heat": 4})),
        "hidden": Peaks(1, None, slow=Counter({"heat": 1})),
    }
    verdict = burnin.temperature(whole, "a", BurninConfig(max_temperature=90))
    assert [(it.part, it.measured) for it in verdict.findings] == [
        ("GPU 0 (GPU-a-0, 0000:00:00.0)", "91.5 C under load"),
        (PART, "91 C under load"),
        (PART, "heat in 4 of 10 samples, up to 91 C"),
        (PART, "power in 3 of 10 samples, up to 91 C"),
        ("hidden", "heat in 1 of 1 samples, up to 0 C"),
    ]
    assert [(it.name, it.value) for it in verdict.metrics] == [
        ("burnin_celsius", 91.5), ("burnin_watts", 5.0), ("burnin_celsius", 91.0)
    ]  # fmt: skip
    idle = BurninResult({"a": NodeTotals("a", hello("a"))}, 60)
    assert burnin.temperature(idle, "a", CONFIG).reason == "matmul was not run in the time there was"


# --- the diagnostic


def test_what_a_result_of_dcgm_asks_for() -> None:
    def told(status: str, *warnings: DcgmWarning, test: str = "memory", where: str = "GPU 1") -> Any:
        return next(burnin._of_dcgm(DcgmResult("Hardware", test, where, status, warnings)), None)

    grave, mild = DcgmWarning("ECC", 2, 5), DcgmWarning("mode", 5, 3)
    assert told("fail") == Finding("GPU 1", "memory (Hardware): fail", "pass")
    assert told("error", mild, where="") == Finding(
        "node", "memory (Hardware): error: mode", "pass", Action.MONITOR
    )
    assert told("warn", grave) == Finding("GPU 1", "memory (Hardware): warn: ECC", "pass")
    assert told("warn", mild) == Advisory("GPU 1", "memory (Hardware): warn: mode", "pass without a warning")
    assert told("pass", mild) == Advisory("GPU 1", "memory (Hardware): pass: mode", "pass without a warning")
    assert told("pass") is told("skip") is told("not run") is told("passed") is None
    assert told("odd").reason == "dcgmi diag: the status 'odd' of memory on GPU 1 is not known"
    assert told("fail", grave, mild).action is None
    assert told("fail", DcgmWarning("r", 6, 5), mild).action is Action.RESET_GPU
    assert told("fail", mild, DcgmWarning("x")).action is None
    assert told("fail", DcgmWarning("x"), test="Fabric Manager").action is Action.MONITOR


def test_how_grave_each_severity_and_category_is() -> None:
    mild = {(severity, category) for severity in range(8) for category in range(18)}
    found = {pair: burnin._graveness(DcgmWarning("", *pair)) for pair in mild}
    assert {pair for pair, action in found.items() if action is Action.MONITOR} == {
        (severity, category)
        for severity, category in mild
        if severity in (0, 1, 5) or (severity != 2 and category in (3, 4, 6, 7, 8, 16))
    }
    assert {severity for (severity, _), action in found.items() if action is Action.RESET_GPU} == {6}
    assert found[6, 5] is Action.RESET_GPU
    assert found[2, 3] is found[3, 5] is None


def test_a_node_whose_software_alone_fails_the_diagnostic() -> None:
    whole, told = one()
    for said, words in (({}, "no message"), ({"err": "boom"}, "boom")):
        told.dcgm = {"rc": 1, "out": "", **said}
        verdict = burnin.dcgm(whole, "a", CONFIG)
        assert (verdict.outcome, verdict.metrics, verdict.reason) == (
            Outcome.NOT_CHECKED,
            (),
            f"dcgmi diag: no JSON (exit 1): {words}",
        )
    told.dcgm = {"rc": 226, "out": (
        '{"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [{"name": "Denylist", "results": '
        '[{"status": "Fail", "warnings": "x"}]}]}]}}')}  # fmt: skip
    verdict = burnin.dcgm(whole, "a", CONFIG)
    assert (verdict.cause, verdict.hint, verdict.action) == (
        "settings or software of the node that NVIDIA's diagnostic minds; its hardware passed",
        "what DCGM says above; dcgmi diag -r 1",
        Action.MONITOR,
    )
    assert verdict.metrics == (Metric("dcgm_passed", 0, "tests"),)


# --- stragglers


def test_a_straggler_in_words() -> None:
    whole = fleet(2, a=[load("a", "matmul", own={1: {"tflops": 560.0}}), load("a", "hbm")])
    verdict = burnin.stragglers(whole, "a", CONFIG)
    assert verdict.findings == (
        Finding(PART, "bf16 560 TFLOP/s, 20% below", "about the median of 8: 700 TFLOP/s"),
    )
    assert (verdict.reason, verdict.action) == ("", Action.MONITOR)
    assert burnin.stragglers(whole, "b", CONFIG).outcome is Outcome.PASSED
    assert burnin.stragglers(whole, "a", BurninConfig(expect={"bf16": 561.0})).findings == ()


def test_who_stands_apart_and_who_is_of_the_slow_half() -> None:
    told = NodeTotals("a", hello("a"))
    rate = burnin_limits.Rate("a", UUID, "bf16", 500.0)
    low = Outliers(700.0, 1.0, {f"a\n{UUID}": -0.25}, {})
    assert burnin._slower(told, rate, low, 9) == Finding(
        PART, "bf16 500 TFLOP/s, 25% below", "about the median of 9: 700 TFLOP/s"
    )
    halves = Halves((f"a\n{UUID}", "b\nx"), ("c\nx", "c\ny", "d\nx"), 500.0, 700.0)
    assert burnin._slower(told, rate, Outliers(600.0, 1.0, {}, {}, "", halves), 5) == Finding(
        PART,
        "bf16 500 TFLOP/s, as the slow half of the fleet",
        "one speed in the fleet; it has two: 3 about 700 TFLOP/s on c,d; 2 about 500 TFLOP/s on a,b",
    )
    other = burnin_limits.Rate("a", gpu_of("a", 0), "bf16", 500.0)
    assert burnin._slower(told, other, Outliers(600.0, 1.0, {}, {}, "", halves), 5) is None
    assert burnin._slower(told, other, low, 9) is None


@pytest.mark.parametrize(("gpus", "shared"), [(2, True), (3, True), (4, False)])
def test_a_slow_partner_is_not_told_from_its_peer_where_there_are_few(gpus: int, *, shared: bool) -> None:
    told = NodeTotals("a", hello("a", gpus))
    low = Outliers(700.0, 1.0, {f"a\n{UUID}": -0.25}, {})
    for metric, either in (("peer", shared), ("bf16", False)):
        found = burnin._slower(told, burnin_limits.Rate("a", UUID, metric, 5.0), low, 9)
        assert found is not None
        assert found.part == (f"{PART} or its partner" if either else PART)


def test_equals_are_of_one_kind() -> None:
    nodes = {
        "a": NodeTotals("a", hello("a", 2)),
        "b": NodeTotals("b", hello("b", 2, cpus=32)),
        "c": NodeTotals("c"),
    }
    for name, told in nodes.items():
        told.rates = {metric: {gpu_of(name, 0): [1.0]} for metric in ("bf16", "hbm", "h2d")} | {
            "cpu": {"": [2.0]}
        }
    whole = BurninResult(nodes, 60)

    def kinds(metric: str) -> dict[str, list[str]]:
        return {kind: [node for node, _ in values] for kind, values in burnin._equals(whole, metric).items()}

    assert kinds("bf16") == kinds("hbm") == {NAME: ["a", "b"], " None CPUs, 0 GPUs": ["c"]}
    assert kinds("h2d") == {
        f"{NAME} 64 CPUs, 2 GPUs": ["a"], f"{NAME} 32 CPUs, 2 GPUs": ["b"], " None CPUs, 0 GPUs": ["c"]
    }  # fmt: skip
    assert kinds("cpu") == {" 64 CPUs, 2 GPUs": ["a"], " 32 CPUs, 2 GPUs": ["b"], " None CPUs, 0 GPUs": ["c"]}


def test_pairs_are_compared_from_three_partners_on() -> None:
    def fleet_of(partners: int) -> BurninResult:
        nodes = {name: NodeTotals(name, hello(name)) for name in "abcdefgh"}
        for name, told in nodes.items():
            told.rates = {"nccl_pairs": {gpu_of(name, 0): [50.0 if name == "a" else 90.0]}}
            told.partners = {f"x{n}": [90.0] for n in range(partners)}
        return BurninResult(nodes, 60)

    assert failed(burnin.stragglers(fleet_of(3), "a", CONFIG)) == [
        "GPU 0 (GPU-a-0, 0000:00:00.0): nccl_pairs 50 GB/s, 44% below"
    ]
    assert burnin.stragglers(fleet_of(2), "a", CONFIG).reason == "nothing was measured that could be compared"


@pytest.mark.parametrize(("metric", "own", "host"), [("hbm", 0.19, 0.5), ("h2d", 0.5, 0.19)])
def test_gpus_and_hosts_have_a_least_distance_each(metric: str, own: float, host: float) -> None:
    nodes = {name: NodeTotals(name, hello(name)) for name in "abcdefgh"}
    for name, told in nodes.items():
        told.rates = {metric: {gpu_of(name, 0): [4000.0 if name == "a" else 5000.0]}}
    whole = BurninResult(nodes, 60)
    strict = BurninConfig(min_relative=own, min_relative_host=host)
    assert len(burnin.stragglers(whole, "a", strict).findings) == 1
    wide = BurninConfig(min_relative=own + 0.02, min_relative_host=host + 0.02)
    assert burnin.stragglers(whole, "a", wide).outcome is Outcome.PASSED


# --- sums


def test_a_gpu_without_its_own_words() -> None:
    assert str(GpuInfo(3, "U", "b")) == "GPU 3 (U, b)"
    assert str(GpuInfo(3, "U")) == "GPU 3 (U)"
    whole = BurninResult(
        {"a": NodeTotals("a", rates={"bf16": {"U": [3.0, 1.0, 2.0], "V": []}}), "b": NodeTotals("b")}, 60
    )
    assert (whole.median("bf16", "a"), whole.median("bf16", "b")) == ({"U": 2.0}, {})
    assert whole.fleet("bf16") == {("a", "U"): 2.0}


def test_a_metric_of_each_result() -> None:
    rates = {
        ("matmul", "tflops"): "fp8", ("hbm", "gbs"): "hbm", ("copies", "h2d"): "h2d", ("copies", "d2h"): "d2h",
        ("peer", "gbs"): "peer", ("cpu", "rate"): "cpu", ("memory", "rate"): "memory",
        ("storage", "write"): "storage_write", ("storage", "read"): "storage_read",
    }  # fmt: skip
    for (kind, key), metric in rates.items():
        assert list(burnin_told._rates_of(kind, {"dtype": "fp8", "tflops": 1.0, key: 5.0, "other": 1})) == (
            [(metric, 5.0)]
        )
    assert list(burnin_told._rates_of("dcgm", {"gbs": 1.0})) == []


def test_what_a_problem_says() -> None:
    assert burnin_told._problem({"problem": "x" * 301}) == "x" * 300
    assert burnin_told._problem({"problem": "x", "dtype": "fp8", "members": ["a"]}) == "x (fp8)"
    assert burnin_told._problem({"problem": "x", "members": ["a", "b"]}) == "x (a b)"
    assert burnin_told._problem({"problem": "x", "members": []}) == "x"
    assert burnin_told._problem({"problem": 7, "members": ["n" * 400]}) == f"7 ({'n' * 298}"


def test_a_sum_without_anything_is_short() -> None:
    assert NodeTotals("a").as_dict() == {"node": "a"}
    told = NodeTotals("a", lost="x")
    told.add({"load": "hbm", "deltas": {"U": {}}, "sensors": {"U": {"samples": "3", "slow": {"heat": 0.5}}}})
    assert told.as_dict() == {
        "node": "a", "lost": "x",
        "peaks": {"U": {"samples": 3, "celsius": None, "memory_celsius": None, "watts": None, "sm_mhz": [],
                        "slow": {"heat": 2}}},
    }  # fmt: skip
    assert NodeTotals.from_dict({**told.as_dict(), "of_a_later_release": 1}) == told
