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
    judged,
    load,
    nccl_line,
    one_node,
    reason,
    trouble,
)
from counter_examples import (
    DRAIN,
    MONITOR,
    NOT_APPLICABLE,
    PASSED,
    VENDOR,
    CounterExample,
    assert_as_expected,
    name,
)

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.suites.burnin import dcgm, error_checks, load_checks, removal, stragglers
from pytest_gpucluster.suites.burnin.config import GPU_LOADS, BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, Mismatch, NodeTotals

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_node_that_is_lost() -> None:
    whole = fleet(2)
    whole.nodes["a"].lost, whole.nodes["a"].rounds = "silent for 60 s", 7
    verdict = load_checks.survived(whole, "a")
    judged(
        verdict,
        Finding("node", "lost after 7 rounds: silent for 60 s", "answers to the end"),
        action=Action.DRAIN,
    )
    assert verdict.metrics == (Metric("burnin_rounds", 7, "rounds"),)


def test_a_load_whose_process_died() -> None:
    whole = fleet(1)
    whole.nodes["a"].problems.append(("hbm", gpu_of("a", 1), "the load ended by signal 11"))
    found = Finding(GPU_1, "hbm: the load ended by signal 11", "the load runs to its end")
    judged(load_checks.survived(whole, "a"), found, action=Action.DRAIN)


@pytest.mark.parametrize(("broken", "why"), [(["", "no CUDA"], "; no CUDA"), ([], "no reason is known")])
def test_a_gpu_that_took_no_part(broken: list[str], why: str) -> None:
    whole = fleet(2)
    said = whole.nodes["a"].hello
    assert said is not None
    said["devices"], said["broken"] = said["devices"][:3], broken
    verdict = load_checks.survived(whole, "a")
    finding = Finding("GPUs", f"3 took part: {why}", "4", Action.CONFIGURE)
    judged(verdict, finding, action=Action.CONFIGURE)
    assert verdict.cause.startswith("no work could be started on the GPU")


def test_what_no_node_could_do_is_not_checked() -> None:
    whole = BurninResult(
        {name: NodeTotals(name, hello=hello(name, devices=[], broken=["x"]), rounds=1) for name in "ab"},
        60,
        4,
    )
    words = "no GPU of any node was loaded: x: check burnin.environment, or run -m gpu"
    reason(load_checks.survived(whole, "a"), NotAvailable(words))


def test_a_burn_in_without_a_round_is_not_checked() -> None:
    whole = fleet(1)
    whole.nodes["a"].rounds, whole.seconds = 0, 90
    reason(
        load_checks.survived(whole, "a"),
        NotAvailable("not one round was finished: the time was too short (1 min 30 s)"),
    )
    whole.ended = "stopped by Ctrl-C"
    reason(
        load_checks.survived(whole, "a"),
        NotAvailable("not one round was finished: stopped by Ctrl-C (1 min 30 s)"),
    )


LOADS: dict[str, tuple[Callable[..., Verdict], str, Action]] = {
    "matmul": (load_checks.matmul, "matmul", Action.DRAIN),
    "memory_bandwidth": (load_checks.memory_bandwidth, "hbm", Action.RESET_GPU),
    "copies": (load_checks.copies, "copies", Action.DRAIN),
    "peer": (load_checks.peer, "peer", Action.DRAIN),
    "nccl": (load_checks.nccl, "nccl", Action.DRAIN),
    "cpu": (load_checks.cpu, "cpu", Action.MONITOR),
    "memory": (load_checks.memory, "memory", Action.MONITOR),
    "storage": (load_checks.storage, "storage", Action.MONITOR),
}


HOST_LOADS = ("cpu", "memory", "storage")


@pytest.mark.parametrize("name", LOADS)
def test_a_load_that_reports_a_problem(name: str) -> None:
    check, kind, action = LOADS[name]
    whole = fleet(2)
    part = "" if name in HOST_LOADS else gpu_of("a", 1)
    whole.nodes["a"].problems.append((kind, part, "broken"))
    own = Action.MONITOR if name in HOST_LOADS else None
    found = Finding(GPU_1 if part else "node", f"{kind}: broken", "the load runs to its end", own)
    verdict = check(whole, "a", CONFIG)
    assert verdict.findings == (found,)
    assert verdict.action is action


@pytest.mark.parametrize("name", LOADS)
def test_why_a_load_was_not_measured(name: str) -> None:
    check, kind, _ = LOADS[name]
    other: Any = "cpu" if kind != "cpu" else "memory"
    bare = BurninResult(
        {name: NodeTotals(name, hello=hello(name), rounds=1) for name in "ab"}, 3600, 4, seconds=3600
    )
    left_out = BurninConfig(loads=(other,))
    reason(check(bare, "a", left_out), NotApplicable(f"burnin.loads of the cluster file leaves {kind} out"))
    reason(check(bare, "a", CONFIG), NotAvailable(f"{kind} was not run in the available time"))
    bare.nodes["a"].out = "wrong data"
    reason(check(bare, "a", CONFIG), NotAvailable(f"{kind} was not run: wrong data"))
    bare.nodes["a"].skips[kind] = "no room"
    reason(check(bare, "a", CONFIG), NotApplicable("no room"))
    silent = BurninResult({"a": NodeTotals("a"), "b": bare.nodes["b"]}, 3600, 4)
    reason(check(silent, "a", CONFIG), NotAvailable("the node never took part: its agent sent nothing"))
    silent.nodes["a"].out = "left"
    reason(check(silent, "a", CONFIG), NotAvailable("the node never took part: left"))
    silent.nodes["a"].lost = "silent"
    reason(check(silent, "a", CONFIG), NotAvailable("the node never took part: silent"))


@pytest.mark.parametrize("name", [name for name in LOADS if name not in HOST_LOADS])
def test_a_node_without_working_gpus(name: str) -> None:
    check = LOADS[name][0]
    shown = "nvidia-smi shows 2 GPUs, the step has none: check the profile and gres.conf"
    for gpus, broken, expected in (
        (2, ["", "no CUDA"], NotAvailable("no worker on the GPUs: no CUDA")),
        (2, [], NotAvailable(shown)),
        (0, [], NotApplicable("the node has no GPU")),
    ):
        node = NodeTotals("a", hello=hello("a", gpus, devices=[], broken=broken), rounds=1)
        reason(
            check(BurninResult({"a": node, "b": NodeTotals("b", hello=hello("b"))}, 60, 4), "a", CONFIG),
            expected,
        )


@pytest.mark.parametrize("name", [name for name in LOADS if name != "nccl"])
def test_a_load_whose_process_ended_is_judged_by_survived(name: str) -> None:
    check, kind, _ = LOADS[name]
    whole = BurninResult({"a": NodeTotals("a", hello=hello("a"), rounds=1)}, 60, 4)
    whole.nodes["a"].problems.append((kind, "", "the load ended by signal 9"))
    reason(check(whole, "a", CONFIG), NotAvailable(f"{kind} did not run to its end: see burnin.survived"))


@pytest.mark.parametrize("kind", ["matmul", "hbm", "copies", "peer"])
def test_wrong_elements(kind: str) -> None:
    whole = fleet(1, a=[load("a", kind, own={1: {"wrong": 3}})])
    found = Finding(GPU_1, f"{kind}: 3 wrong elements", "bit by bit the same")
    judged(load_checks.corruption(whole, "a"), found, action=Action.VENDOR)


def test_a_gpu_that_computes_something_else() -> None:
    whole = fleet(2, a=[load("a", "matmul", own={1: {"hash": "bb"}})])
    found = Finding(
        GPU_1, "bf16: another result than 7 others", "the result of the other GPUs for the same input"
    )
    judged(load_checks.corruption(whole, "a"), found, action=Action.VENDOR)
    assert load_checks.corruption(whole, "a").metrics == (Metric("burnin_products_checked", 36, "products"),)
    assert load_checks.corruption(whole, "b").outcome is Outcome.PASSED


def host(kind: str, **fields: Any) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = {
        "cpu": {"rate": 9.0, "key": "cpu/1", "hashes": ["aa"]},
        "memory": {"rate": 9.0},
        "storage": {"write": 1.0, "read": 2.0},
        "rdma": {"rate": 49.0},
    }
    return {"load": kind, "results": [{"load": kind, "wrong": 0, **known[kind], **fields}]}


@pytest.mark.parametrize(
    ("kind", "found", "action"),
    [
        ("cpu", Finding("CPUs", "3 repetitions gave another result", "the same result"), Action.VENDOR),
        ("memory", Finding("memory", "3 blocks of 1 MiB read back changed", "what was written"), Action.VENDOR),
        ("storage", Finding("/tmp", "3 blocks of 4 MiB read back changed", "what was written (1 GiB per round)"),
         Action.DRAIN),
    ],
)  # fmt: skip
def test_wrong_results_of_the_host(kind: str, found: Finding, action: Action) -> None:
    whole = fleet(1, a=[host(kind, wrong=3)])
    judged(LOADS[kind][0](whole, "a", CONFIG), found, action=action)
    assert LOADS[kind][0](fleet(1, a=[host(kind)]), "a", CONFIG).outcome is Outcome.PASSED


def test_storage_without_a_folder_of_its_own_has_a_name() -> None:
    verdict = load_checks.storage(
        fleet(1, a=[host("storage", wrong=1)]), "a", BurninConfig(storage=None, storage_size=2**20)
    )
    words = "what was written (1 MiB per round)"
    assert verdict.findings == (Finding("storage", "1 blocks of 4 MiB read back changed", words),)


def test_cpus_that_compute_something_else() -> None:
    whole = fleet(3, a=[host("cpu", hashes=["bb"])], b=[host("cpu")], c=[host("cpu")])
    found = Finding(
        "CPUs", "cpu: another result than 2 others", "the result of the other nodes for the same input"
    )
    judged(load_checks.cpu(whole, "a", CONFIG), found, action=Action.VENDOR)
    assert load_checks.cpu(whole, "b", CONFIG).outcome is Outcome.PASSED


def test_wrong_sums_of_a_collective() -> None:
    results = [
        {"load": "nccl", "gpu": 1, "uuid": gpu_of("a", 1), "members": ["a"], "busbw": 300.0, "wrong": 3}
    ]
    whole = fleet(1, a=[{"load": "nccl", "results": results}])
    judged(
        load_checks.nccl(whole, "a", CONFIG),
        Finding(GPU_1, "3 wrong elements", "right sums"),
        action=Action.DRAIN,
    )
    assert load_checks.nccl(whole, "a", CONFIG).metrics == (Metric("burnin_nccl_alone", 300.0, "GB/s"),)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (load_checks.peer, "one GPU alone has no peer"),
        (load_checks.nccl, "one GPU alone has nothing to reduce with"),
    ],
)
def test_one_gpu_has_nothing_to_talk_to(check: Callable[..., Verdict], words: str) -> None:
    whole = BurninResult({"a": NodeTotals("a", hello=hello("a", gpus=1), rounds=1)}, 60, 1)
    reason(check(whole, "a", CONFIG), NotApplicable(words))


UNKNOWN = "no limit is known for NVIDIA Q9000: compared with the other GPUs only (burnin.stragglers)"


def test_a_card_without_a_limit_is_measured_with_a_warning() -> None:
    whole = fleet(1)
    said = whole.nodes["a"].hello
    assert said is not None
    for gpu in said["gpus"]:
        gpu["name"] = "NVIDIA Q9000"
    for check, what in ((load_checks.matmul, "TFLOP/s"), (load_checks.memory_bandwidth, "memory bandwidth")):
        verdict = check(whole, "a", CONFIG)
        assert verdict.outcome is Outcome.PASSED
        assert verdict.advisories == (Advisory(what, UNKNOWN, "a limit in burnin.expect"),)
    for gpu in said["gpus"]:
        gpu["pcie_gen"] = None
    assert [it.part for it in load_checks.copies(whole, "a", CONFIG).advisories] == ["PCIe bandwidth"]


def test_a_load_that_left_a_gpu_out_proves_nothing_of_it() -> None:
    whole = fleet(1)
    whole.nodes["a"].rates["hbm"].pop("GPU-a-1")
    reason(
        load_checks.memory_bandwidth(whole, "a", CONFIG),
        NotAvailable(f"{GPU_1} has no result: the load ran on other GPUs of the node only"),
    )


@pytest.mark.parametrize(
    ("kind", "check", "slow"),
    [
        ("matmul", load_checks.matmul, {"tflops": 9.0}), ("hbm", load_checks.memory_bandwidth, {"gbs": 9.0}),
        ("copies", load_checks.copies, {"h2d": 9.0}), ("peer", load_checks.peer, {"gbs": 9.0}),
    ],
)  # fmt: skip
def test_a_load_that_is_slow_beside_others_drains_nobody(
    kind: str, check: Any, slow: dict[str, float]
) -> None:
    strict = BurninConfig(expect={"peer": 10.0})
    names = {UUID: ["z (pid 2)", "b (pid 1)"]}
    whole, totals = one_node(a=[load("a", kind, own={1: slow}, strangers=names)])
    verdict = check(whole, "a", strict)
    assert [(it.part, it.action) for it in verdict.findings] == [(GPU_1, None)]
    assert verdict.cause == (
        "others are at work on the GPU: b (pid 1), z (pid 2); the hardware alone was not measured"
    )
    assert verdict.action is Action.MONITOR
    totals.shared.clear()
    assert "others" not in check(whole, "a", strict).cause
    totals.shared = {UUID: {kind: 1}}
    totals.problems.append((kind, gpu_of("a", 0), "RuntimeError: x"))
    assert "others" not in check(whole, "a", strict).cause, "a GPU that fails is not slow"


def test_whose_processes_explain_a_finding() -> None:
    totals = NodeTotals(
        "a", hello("a"), strangers={UUID: ["b"], gpu_of("a", 0): ["c"]}, shared={UUID: {"hbm": 1}}
    )
    assert totals.hello
    totals.hello["gpus"][1]["processes"] = [{"name": "d", "pid": 4}]
    full = "CUDA error: out of memory"

    def others(part: str, measured: str = "slow", load: str = "hbm") -> tuple[str, ...]:
        return load_checks._other_processes(totals, Finding(part, measured, ""), load)

    assert others(GPU_1, full) == others(GPU_1, full, "") == ("d (pid 4)", "b")
    assert others("GPUs", full) == ()
    totals.hello["devices"] = totals.hello["devices"][2:]
    assert others("GPUs", full) == ("c", "d (pid 4)", "b")
    assert others(GPU_1) == ("d (pid 4)",)
    assert others("node") == others(GPU_1, load="") == ()
    totals.problems.append(("hbm", UUID, "slow"))
    assert others(GPU_1) == ()


def test_processes_that_were_starved_or_stopped() -> None:
    whole, totals = one_node()
    totals.problems = [("hbm", UUID, "the load was ended by the OOM killer")]
    verdict = load_checks.survived(whole, "a")
    assert (verdict.cause, verdict.hint, verdict.action) == (
        "the kernel killed processes of the burn-in: the host's memory or the job's memory limit is too small",
        "dmesg -T | grep -i 'killed process'; free -h; DefMemPerNode, DefMemPerGPU, RealMemory of slurm.conf",
        Action.MONITOR,
    )
    totals.problems = [("hbm", UUID, "the load did not answer in time: its process is stopped by a signal")]
    verdict = load_checks.survived(whole, "a")
    assert (verdict.cause, verdict.hint, verdict.action) == (
        "a signal stopped processes of the burn-in on the node: scontrol suspend, a debugger, or kill -STOP",
        "scontrol show job of this run; ps -eo pid,stat,lstart,cmd on the node; repeat",
        Action.MONITOR,
    )


def test_a_gpu_that_never_began_and_a_load_that_died() -> None:
    whole, totals = one_node()
    assert totals.hello
    totals.hello["devices"].pop()
    verdict = load_checks.survived(whole, "a")
    assert verdict.cause == (
        "no work could be started on the GPU: the driver, CUDA_VISIBLE_DEVICES, or memory that is taken"
    )
    assert verdict.hint == (
        "in a step on the node: nvidia-smi; python3 -c 'import torch; torch.zeros(1).cuda()'; -m 'gpu or ddp'"
    )
    totals.problems.append(("hbm", UUID, "the load ended by signal 11"))
    both = load_checks.survived(whole, "a")
    assert both.cause == "the node died, hung or lost its processes under load"
    assert [it.part for it in both.findings] == [GPU_1, "GPUs"]
    whole.gpus = 3
    assert [it.part for it in load_checks.survived(whole, "a").findings] == [GPU_1]
    for left in (NodeTotals("a", out="x"), NodeTotals("a", lost="x")):
        assert load_checks.survived(BurninResult({"a": left}, 60), "a").reason == ""


def test_some_loads_of_several_were_run() -> None:
    whole, totals = one_node(a=[load("a", "hbm")])
    verdict = load_checks.corruption(whole, "a")
    assert (verdict.outcome, verdict.metrics) == (
        Outcome.PASSED,
        (Metric("burnin_products_checked", 0, "products"),),
    )
    totals.ran.clear()
    assert load_checks.corruption(whole, "a").reason == "matmul was not run in the available time"
    totals.skips["copies"] = "no room"
    assert (load_checks.corruption(whole, "a").outcome, load_checks.corruption(whole, "a").reason) == (
        Outcome.NOT_APPLICABLE, "no room"
    )  # fmt: skip
    totals.add({"load": "peer", "results": [{"lacks": "torch"}]})
    reason(load_checks.corruption(whole, "a"), NotAvailable("torch"))
    totals.skips.clear()
    totals.lacks.clear()
    totals.problems.append(("copies", UUID, "x"))
    assert load_checks.corruption(whole, "a").reason == "", "the problem is totals by burnin.copies"
    totals.problems = [("cpu", "", "the load ended")]
    assert load_checks.corruption(whole, "a").reason == "matmul was not run in the available time"
    config = BurninConfig(loads=("cpu", "hbm"))
    assert load_checks.memory_bandwidth(whole, "a", config).reason == "hbm was not run in the available time"
    assert (
        load_checks.matmul(whole, "a", config).reason == "burnin.loads of the cluster file leaves matmul out"
    )


def test_the_first_wrong_word_of_a_gpus_memory_has_its_address() -> None:
    whole = fleet(2)
    for line in (
        load("a", "gpu_memory"),
        load("a", "gpu_memory", own={1: {"wrong": 3, "first": FIRST}, 2: {"tested": 0.5}}),
        load("a", "gpu_memory", own={1: {"wrong": 1, "first": "later"}, 2: {"tested": 0.5}}),
    ):
        whole.nodes["a"].add(line)
    verdict = load_checks.gpu_memory(whole, "a", CONFIG)
    assert failed(verdict) == [f"{GPU_1}: 4 wrong words of 4 bytes, the first {FIRST}"]
    assert verdict.findings[0].expected == "what was written"
    assert verdict.action is Action.VENDOR
    assert [(it.measured, it.expected) for it in verdict.advisories] == [
        ("50% of the free memory was tested", "at least 90% of it")
    ]
    unread = load_checks.gpu_memory(whole, "b", CONFIG)
    reason(unread, NotAvailable("gpu_memory was not run in the available time"))


def test_results_of_the_host_are_no_corruption_of_a_gpu() -> None:
    found_by = {"a": "x", "b": "y", "c": "y"}
    whole = BurninResult(
        {name: NodeTotals(name, hello(name), hashes={"cpu/1": {"": [it]}}) for name, it in found_by.items()},
        60,
    )
    assert load_checks.corruption(whole, "a").findings == ()
    assert load_checks.cpu(whole, "b", CONFIG).findings == ()
    (found,) = load_checks.cpu(whole, "a", CONFIG).findings
    assert found == Finding(
        "CPUs", "cpu: another result than 2 others", "the result of the other nodes for the same input"
    )
    totals = NodeTotals(
        "a", hello("a"), wrong={"hbm": {UUID: 0, gpu_of("a", 0): 0}}, checked={"hbm": {UUID: 7}}
    )
    assert load_checks.corruption(BurninResult({"a": totals}, 60), "a").findings == ()


def test_several_wrong_results_are_each_reported() -> None:
    whole, totals = one_node()
    totals.wrong = {"peer": {UUID: 2}, "matmul": {gpu_of("a", 0): 0, UUID: 1}}
    totals.checked = {"matmul": {UUID: 3, gpu_of("a", 0): 4}, "hbm": {UUID: 9}}
    verdict = load_checks.corruption(whole, "a")
    assert [it.measured for it in verdict.findings] == ["matmul: 1 wrong elements", "peer: 2 wrong elements"]
    assert verdict.metrics == (Metric("burnin_products_checked", 7, "products"),)
    for kind in ("matmul", "beside", "hbm", "copies", "peer"):
        totals.wrong = {kind: {UUID: 5}}
        (found,) = load_checks.corruption(whole, "a").findings
        what = "copies beside the products" if kind == "beside" else kind
        assert found.measured == f"{what}: 5 wrong elements"
    totals.wrong = {"memory": {"": 0, "x": 2}, "cpu": {"": 0, "x": 3}, "storage": {"": 0, "x": 4}}
    assert [it.measured for it in load_checks.memory(whole, "a", CONFIG).findings] == [
        "2 blocks of 1 MiB read back changed"
    ]
    assert [it.measured for it in load_checks.cpu(whole, "a", CONFIG).findings] == [
        "3 repetitions gave another result"
    ]
    assert [it.measured for it in load_checks.storage(whole, "a", CONFIG).findings] == [
        "4 blocks of 4 MiB read back changed"
    ]


def test_rates_are_measured_by_gpu() -> None:
    whole, totals = one_node(
        a=[load("a", "matmul", gpus=2), load("a", "copies", gpus=1), load("a", "peer", gpus=1)]
    )
    first = "GPU 0 (GPU-a-0, 0000:00:00.0)"
    assert load_checks.matmul(whole, "a", CONFIG).metrics == (
        Metric("burnin_bf16", 700.0, "TFLOP/s", first), Metric("burnin_bf16", 700.0, "TFLOP/s", GPU_1)
    )  # fmt: skip
    assert load_checks.copies(whole, "a", CONFIG).metrics == (
        Metric("burnin_h2d", 54.0, "GB/s", first), Metric("burnin_d2h", 55.0, "GB/s", first)
    )  # fmt: skip
    assert load_checks.peer(whole, "a", CONFIG).metrics == (Metric("burnin_peer", 380.0, "GB/s", first),)
    assert load_checks.peer(whole, "a", CONFIG).outcome is Outcome.PASSED
    totals.rates["fp8"] = {UUID: [1900.0, 1000.0, 1800.0]}
    assert load_checks.matmul(whole, "a", CONFIG).metrics[-1] == Metric(
        "burnin_fp8", 1800.0, "TFLOP/s", GPU_1
    )
    assert totals.hello
    totals.hello["gpus"][0]["name"] = "NVIDIA Q1"
    assert not load_checks.matmul(whole, "a", CONFIG).advisories, "one of them has a figure"
    totals.hello["gpus"], totals.hello["devices"][0] = (
        [],
        {"gpu": 0, "uuid": gpu_of("a", 0), "name": "NVIDIA Q1"},
    )
    assert load_checks.matmul(whole, "a", CONFIG).advisories[0].measured == (
        "no limit is known for NVIDIA Q1: compared with the other GPUs only (burnin.stragglers)"
    )


def nccl(*members: str, problem: str = "", **more: Any) -> dict[str, Any]:
    result = {"load": "nccl", "gpu": 0, "uuid": gpu_of("a", 0), "members": [*members], **more}
    return {"load": "nccl", "results": [{**result, **({"problem": problem} if problem else {"busbw": 90.0})}]}


def test_wrong_sums_are_blamed_on_a_partner_that_is_bad() -> None:
    whole = fleet(3, a=[nccl("a", "b", wrong=2)])
    assert failed(load_checks.nccl(whole, "a", CONFIG)) == ["GPU 0 (GPU-a-0, 0000:00:00.0): 2 wrong elements"]
    whole.nodes["c"].out = "wrong data"
    assert load_checks.nccl(whole, "a", CONFIG).findings != ()
    whole.nodes["b"].out = "wrong data"
    verdict = load_checks.nccl(whole, "a", CONFIG)
    assert (verdict.findings, verdict.metrics) == ((), (Metric("burnin_nccl_pairs", 90.0, "GB/s"),))
    assert not load_checks._partners_at_fault(fleet(1, a=[nccl("a", wrong=2)]), "a")


def test_a_partner_that_broke_excuses_only_who_waited() -> None:
    def blamed(*own: str, other: str = "Xid", out: str = "") -> bool:
        nodes = {
            "a": NodeTotals("a", problems=[("nccl", "", text) for text in own]),
            "b": NodeTotals("b", problems=[("nccl", "", other)] if other else [], out=out),
        }
        return load_checks._partners_at_fault(BurninResult(nodes, 60), "a")

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
        load_checks.nccl(BurninResult(nodes, 60), "a", CONFIG).reason
        == "nccl was not run in the available time"
    )
    assert nodes["a"].hello
    nodes["a"].hello |= {"devices": [], "gpus": []}
    assert load_checks.nccl(BurninResult(nodes, 60), "a", CONFIG).reason == "the node has no GPU"
    assert (
        load_checks.nccl(BurninResult(nodes, 60), "b", CONFIG).reason
        == "one GPU alone has nothing to reduce with"
    )
    silent = BurninResult({"a": NodeTotals("a")}, 60)
    assert load_checks.peer(silent, "a", CONFIG).reason == "the node never took part: its agent sent nothing"


def test_the_figure_of_pairs_is_the_best_median() -> None:
    totals = NodeTotals("a", partners={"b": [10.0, 30.0, 20.0], "c": [5.0, 6.0, 100.0]})
    assert load_checks._best_pair(totals) == 20.0
    assert load_checks._best_pair(NodeTotals("a")) is None
    whole = fleet(2, a=[nccl("a", "b"), nccl("a")])
    whole.nodes["a"].rates["nccl_alone"][UUID] = [300.0]
    whole.nodes["a"].rates["nccl_alone"][gpu_of("a", 0)] = [340.0]
    assert load_checks.nccl(whole, "a", CONFIG).metrics == (
        Metric("burnin_nccl_alone", 300.0, "GB/s"), Metric("burnin_nccl_pairs", 90.0, "GB/s")
    )  # fmt: skip
    (found,) = load_checks.nccl(whole, "a", BurninConfig(expect={"nccl_alone": 301.0})).findings
    assert (found.part, found.measured) == ("node", "nccl_alone 300 GB/s")


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


def test_what_was_never_run_is_never_a_pass() -> None:
    whole = BurninResult(
        {"a": NodeTotals("a", lost="silent for 60 s"), "b": NodeTotals("b", hello=hello("b"))}, 60, 4
    )
    for node in whole.nodes:
        for judge in (load_checks.corruption, error_checks.xid, load_checks.survived):
            assert judge(whole, node).outcome is not Outcome.PASSED
        for check in (
            load_checks.matmul,
            load_checks.memory_bandwidth,
            load_checks.copies,
            load_checks.peer,
            load_checks.nccl,
            load_checks.cpu,
            load_checks.memory,
            load_checks.storage,
            error_checks.counters,
            error_checks.temperature,
            dcgm.dcgm,
            stragglers.stragglers,
        ):
            assert check(whole, node, CONFIG).outcome is Outcome.NOT_CHECKED, check
    assert "silent for 60 s" in load_checks.matmul(whole, "a", CONFIG).reason


def test_a_load_that_was_not_asked_for_does_not_apply() -> None:
    whole, config = fleet(1), BurninConfig(loads=("matmul",))
    assert load_checks.matmul(whole, "a", config).outcome is Outcome.PASSED
    for check in (
        load_checks.peer,
        load_checks.nccl,
        load_checks.cpu,
        load_checks.memory,
        load_checks.storage,
        dcgm.dcgm,
    ):
        assert check(whole, "a", config).outcome is Outcome.NOT_APPLICABLE, check


def test_the_gpu_whose_result_differs_is_named_and_the_others_are_not() -> None:
    whole = fleet(2, b=[load("b", "matmul", own={2: {"hash": "bb"}})])
    assert failed(load_checks.corruption(whole, "b")) == [
        "GPU 2 (GPU-b-2, 0000:20:00.0): bf16: another result than 7 others"
    ]
    assert failed(load_checks.corruption(whole, "a")) == []
    assert list(removal.corrupt_nodes(whole)) == ["b"]


def test_two_that_differ_accuse_both_and_neither_has_to_leave() -> None:
    whole = fleet(2, a=[load("a", "matmul", 1)], b=[load("b", "matmul", 1, own={0: {"hash": "bb"}})])
    for node, hash_ in (("a", "aa"), ("b", "bb")):
        verdict = load_checks.corruption(whole, node)
        said, both = f"bf16: {hash_}, and no majority decides which is right", "aa on a, bb on b"
        gpu = f"GPU 0 (GPU-{node}-0, 0000:00:00.0)"
        expected = f"one value on all results; no majority: {both}"
        assert verdict.findings == (Finding(gpu, said, expected, Action.MONITOR),)
    assert removal.corrupt_nodes(whole) == {}


def test_halves_of_a_fleet_that_differ_in_their_results_drain_nobody() -> None:
    """As where an upgrade has reached five nodes of nine: their library rounds otherwise."""
    cpu = {"load": "cpu", "key": "cpu/1", "wrong": 0, "rate": 5.0}
    for upgraded in (4, 5):  # of eight
        lines: dict[str, Any] = {
            name: [{"load": "cpu", "results": [{**cpu, "hashes": ["aa" if at < upgraded else "bb"]}]}]
            for at, name in enumerate("abcdefgh")
        }
        whole = fleet(8, **lines)
        assert removal.corrupt_nodes(whole) == {}
        for node in "abcdefgh":
            verdict = load_checks.cpu(whole, node, CONFIG)
            assert (verdict.outcome, verdict.action) == (Outcome.FAILED, Action.MONITOR)
    assert (
        verdict.findings[0].expected == "one value on all results; no majority: aa on a,b,c,d,e, bb on f,g,h"
    )


def test_a_gpu_that_contradicts_itself_needs_no_majority() -> None:
    whole = fleet(1, a=[load("a", "matmul", 1), load("a", "matmul", 1, own={0: {"hash": "bb"}})])
    assert "2 different results" in failed(load_checks.corruption(whole, "a"))[0]


@pytest.mark.parametrize(
    ("kind", "own", "check", "what"),
    [
        ("matmul", {"tflops": 340.0}, load_checks.matmul, "bf16 340 TFLOP/s"),
        ("hbm", {"gbs": 2000.0}, load_checks.memory_bandwidth, "hbm 2000 GB/s"),
        ("copies", {"d2h": 5.0}, load_checks.copies, "d2h 5 GB/s"),
    ],
)
def test_a_slow_gpu_is_below_the_floor_of_its_card(
    kind: str, own: dict[str, float], check: Any, what: str
) -> None:
    whole = fleet(2, a=[load("a", kind, own={1: own})], b=[load("b", kind)])
    (finding,) = failed(check(whole, "a", CONFIG))
    assert finding.startswith("GPU 1 ")
    assert what in finding
    assert failed(check(whole, "b", CONFIG)) == []
    assert failed(stragglers.stragglers(whole, "a", CONFIG)) == [], "one fault, one verdict"


def test_the_process_that_was_there_before_us_is_named() -> None:
    whole = fleet(1, a=[load("a", "matmul", own={1: {"tflops": 340.0}})])
    totals = whole.nodes["a"]
    assert totals.hello is not None
    totals.hello["gpus"][1]["processes"] = [{"pid": 7, "name": "python3"}]
    assert "on it before the burn-in: python3 (pid 7)" in failed(load_checks.matmul(whole, "a", CONFIG))[0]


def test_a_card_that_nobody_knows_is_measured_and_the_cluster_file_has_its_limit() -> None:
    whole = fleet(1)
    totals = whole.nodes["a"]
    assert totals.hello is not None
    for gpu in totals.hello["gpus"]:
        gpu["name"] = "NVIDIA Q9000"
    assert load_checks.matmul(whole, "a", CONFIG).advisories
    assert load_checks.matmul(whole, "a", BurninConfig(expect={"bf16": 600})).outcome is Outcome.PASSED
    assert load_checks.matmul(whole, "a", BurninConfig(expect={"bf16": 800})).outcome is Outcome.FAILED


def test_a_failed_pair_is_blamed_on_the_partner_that_is_bad_anyway() -> None:
    bad = {"problem": "DistStoreError: timed out", "members": ["a", "b"]}
    lines = {name: [load(name, "matmul"), nccl_line(name, **bad)] for name in "ab"}
    assert failed(load_checks.nccl(fleet(3, **lines), "a", CONFIG))
    whole = fleet(3, **lines)
    whole.nodes["b"].lost = "silent for 60 s"
    assert failed(load_checks.nccl(whole, "a", CONFIG)) == []


@pytest.mark.parametrize(
    "own",
    [
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB",
        "the load ended by signal 11",
        "the load did not answer in time: its process is stopped by a signal",
    ],
)
def test_who_only_waited_for_a_rank_that_failed_is_acquitted(own: str) -> None:
    waits = [
        "DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        "DistBackendError: NCCL error: remote process exited or there was a network error",
        "the load did not answer in time",
    ]
    for waited in waits:
        lines = {
            name: [load(name, "matmul"), nccl_line(name, problem=text, members=["a", "b"])]
            for name, text in (("a", waited), ("b", own))
        }
        assert failed(load_checks.nccl(fleet(3, **lines), "a", CONFIG)) == []
        assert own in failed(load_checks.nccl(fleet(3, **lines), "b", CONFIG))[0]
    # who had no part in that group fails for itself, and so does who failed in its own way
    apart = {**lines, "c": [load("c", "matmul"), nccl_line("c", problem=waits[0], members=["c", "d"])]}
    assert failed(load_checks.nccl(fleet(4, **apart), "c", CONFIG))
    both = {name: [nccl_line(name, problem=own, members=["a", "b"])] for name in "ab"}
    assert failed(load_checks.nccl(fleet(3, **both), "a", CONFIG))


def test_wrong_sums_of_a_node_alone_are_its_own() -> None:
    good = nccl_line("a", members=["a"], busbw=300.0, wrong=0, rank=0)
    assert load_checks.nccl(fleet(2, a=[good]), "a", CONFIG).outcome is Outcome.PASSED
    bad = nccl_line("a", members=["a"], busbw=300.0, wrong=5, rank=0)
    assert "5 wrong elements" in failed(load_checks.nccl(fleet(2, a=[bad]), "a", CONFIG))[0]


def test_a_gpu_without_its_worker_is_missed() -> None:
    whole = fleet(1)
    totals = whole.nodes["a"]
    assert totals.hello is not None
    totals.hello["devices"].pop()
    totals.hello["broken"] = ["RuntimeError: CUDA error: out of memory"]
    assert failed(load_checks.survived(whole, "a")) == [
        "GPUs: 3 took part: RuntimeError: CUDA error: out of memory"
    ]


@pytest.mark.parametrize("reason", [NO_TORCH, NO_DEVICE, NO_MEMORY])
def test_a_node_whose_only_gpu_never_worked_is_no_pass(reason: str) -> None:
    """Recorded on two H200: the burn-in of such a node ended green, all its loads 'not applicable'."""
    whole = idle_gpus(2, reason)
    assert failed(load_checks.survived(whole, "a")) == [f"GPUs: 0 took part: {reason}"]
    assert load_checks.survived(whole, "b").outcome is Outcome.PASSED
    loads = (
        load_checks.matmul,
        load_checks.memory_bandwidth,
        load_checks.copies,
        load_checks.nccl,
        error_checks.temperature,
    )
    for verdict in (load_checks.corruption(whole, "a"), *(judge(whole, "a", CONFIG) for judge in loads)):
        assert verdict.outcome is Outcome.NOT_CHECKED
        assert verdict.reason == f"no worker on the GPUs: {reason}"
    assert load_checks.survived(whole, "a").action is (
        Action.MONITOR if reason == NO_TORCH else Action.CONFIGURE
    )


def test_what_all_nodes_lack_is_the_fault_of_none() -> None:
    for whole in (
        idle_gpus(1, NO_TORCH),
        idle_gpus(2, NO_TORCH, NO_TORCH),
        idle_gpus(2, NO_DEVICE, NO_DEVICE),
    ):
        verdict = load_checks.survived(whole, "a")
        assert verdict.outcome is Outcome.NOT_CHECKED
        assert "no GPU of any node was loaded" in verdict.reason
    assert failed(load_checks.survived(idle_gpus(1, NO_DEVICE), "a"))
    assert failed(load_checks.survived(idle_gpus(2, NO_MEMORY, NO_MEMORY), "a"))


def test_cpus_that_disagree_are_found() -> None:
    cpu = {"load": "cpu", "key": "cpu/1", "hashes": ["aa"], "wrong": 0, "rate": 5.0}
    lines: dict[str, Any] = {name: [{"load": "cpu", "results": [dict(cpu)]}] for name in "abc"}
    lines["c"][0]["results"][0]["hashes"] = ["cc"]
    whole = fleet(3, **lines)
    assert failed(load_checks.cpu(whole, "c", CONFIG)) == ["CPUs: cpu: another result than 2 others"]
    assert load_checks.cpu(whole, "a", CONFIG).outcome is Outcome.PASSED


def test_a_pair_that_failed_with_a_bad_partner_acquits_and_another_does_not() -> None:
    def failed_with(text: str, **more: NodeTotals) -> bool:
        nodes = {"a": NodeTotals("a", problems=[("nccl", "", text)]), "b": NodeTotals("b"), **more}
        return load_checks._partners_at_fault(BurninResult(nodes, 60), "a")

    assert failed_with("timeout (a b)", b=NodeTotals("b", lost="gone")) is True
    assert failed_with("timeout (a b)", c=NodeTotals("c", lost="gone")) is False
    assert failed_with("timeout", c=NodeTotals("c", out="gone")) is True
    assert failed_with("timeout (a b)") is False


@pytest.mark.parametrize(
    ("text", "waited"),
    [
        ("timed out", True), ("Time out", True), ("timeout", True), ("Connection closed by peer", True),
        ("connection reset", True), ("Connection refused", True), ("connection was lost", True), ("Broken pipe", True),
        ("remoteError", True), ("Remote process exited", True), ("remote error", True),
        ("did not answer in time", True),
        ("did not answer in time (a b)", True), ("did not answer in time or later", False),
        ("had not ended after 5 s (a b)", True), ("had not ended after 5 s", True), ("illegal memory access", False),
        ("Connection", False),
    ],
)  # fmt: skip
def test_how_a_rank_ends_that_waited_for_another(text: str, *, waited: bool) -> None:
    totals = NodeTotals("a", problems=[("hbm", "", "illegal memory access"), ("nccl", "", text)])
    assert load_checks._nccl_problems(totals) == [text]
    assert load_checks._failed_first(totals) is not waited


def test_a_finding_on_results_that_differ_shows_four_of_them() -> None:
    assert load_checks._mismatch_finding("p", [Mismatch("a", "x"), Mismatch("b")], "GPUs") == Finding(
        "p", "b", "the result of the other GPUs for the same input"
    )
    lies = [Mismatch(word, f"{word}?") for word in "abcde"]
    assert load_checks._mismatch_finding("p", lies, "GPUs") == Finding(
        "p", "a; b; c; d", "a?", Action.MONITOR
    )


def test_constants_of_the_collectives() -> None:
    assert load_checks.PARTNERS == 3
    assert GPU_LOADS == ("matmul", "gpu_memory", "hbm", "copies", "peer", "nccl")


def test_a_node_outside_of_the_stated_container_fails_without_a_repair() -> None:
    why = "the task ran on the host, not in the image pt.sqsh: slurmd on a does not load Pyxis"
    whole = BurninResult(
        {"a": NodeTotals("a", out=why), "b": NodeTotals("b", hello=hello("b"), rounds=1)}, 60, 4
    )
    verdict = load_checks.survived(whole, "a")
    assert (failed(verdict), verdict.action) == ([f"node: {why}"], Action.CONFIGURE)
    reason(load_checks.matmul(whole, "a", CONFIG), NotAvailable(f"the node never took part: {why}"))
    assert load_checks.survived(whole, "b").outcome is Outcome.PASSED


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
