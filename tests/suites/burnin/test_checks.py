"""Every finding of every check of the burn-in, provoked alone; and every reason for not judging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from burnin_helpers import CONFIG, fleet, gpu_of, hello, load

from pytest_gpucluster.core.check import Action, Finding, Metric, NotApplicable, NotChecked, Outcome, Verdict
from pytest_gpucluster.suites.burnin import checks
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals, Peaks

if TYPE_CHECKING:
    from collections.abc import Callable

GPU_1 = "GPU 1 (GPU-a-1, 0000:10:00.0)"
KINDS = ("matmul", "hbm", "copies", "peer")


def told(whole: BurninResult) -> NodeTotals:
    return whole.nodes["a"]


def with_rose(counter: str, count: int, load_: str = "matmul", part: str = "") -> BurninResult:
    part = part or gpu_of("a", 1)
    return fleet(1, a=[load("a", load_, deltas={part: {counter: count}})])


def judged(verdict: Verdict, *expected: Finding, action: Action) -> None:
    assert verdict.findings == expected
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, action)
    assert verdict.cause
    assert verdict.hint


def reason(verdict: Verdict, expected: NotChecked | NotApplicable) -> None:
    outcome = Outcome.NOT_CHECKED if isinstance(expected, NotChecked) else Outcome.NOT_APPLICABLE
    assert (verdict.outcome, verdict.reason, verdict.findings) == (outcome, expected.reason, ())


# --- survived


def test_a_node_that_is_lost() -> None:
    whole = fleet(2)
    told(whole).lost, told(whole).rounds = "silent for 60 s", 7
    verdict = checks.survived(whole, "a")
    judged(
        verdict,
        Finding("node", "lost after 7 rounds: silent for 60 s", "answers to the end"),
        action=Action.DRAIN,
    )
    assert verdict.metrics == (Metric("burnin_rounds", 7, "rounds"),)


def test_a_load_whose_process_died() -> None:
    whole = fleet(1)
    told(whole).problems.append(("hbm", gpu_of("a", 1), "the load ended by signal 11"))
    found = Finding(GPU_1, "hbm: the load ended by signal 11", "the load runs to its end")
    judged(checks.survived(whole, "a"), found, action=Action.DRAIN)


@pytest.mark.parametrize(("broken", "why"), [(["", "no CUDA"], "; no CUDA"), ([], "no reason is known")])
def test_a_gpu_that_took_no_part(broken: list[str], why: str) -> None:
    whole = fleet(2)
    said = told(whole).hello
    assert said is not None
    said["devices"], said["broken"] = said["devices"][:3], broken
    verdict = checks.survived(whole, "a")
    judged(verdict, Finding("GPUs", f"3 took part: {why}", "4"), action=Action.DRAIN)
    assert verdict.cause.startswith("no work could be started on the GPU")


def test_what_no_node_could_do_is_not_checked() -> None:
    whole = BurninResult(
        {name: NodeTotals(name, hello=hello(name, devices=[], broken=["x"]), rounds=1) for name in "ab"},
        60,
        4,
    )
    words = "no GPU of any node was loaded: x: look at burnin.environment, or -m gpu"
    reason(checks.survived(whole, "a"), NotChecked(words))


def test_a_burn_in_without_a_round_is_not_checked() -> None:
    whole = fleet(1)
    told(whole).rounds, whole.seconds = 0, 90
    reason(
        checks.survived(whole, "a"),
        NotChecked("not one round was finished: the time was too short (1 min 30 s)"),
    )
    whole.ended = "stopped by Ctrl-C"
    reason(
        checks.survived(whole, "a"), NotChecked("not one round was finished: stopped by Ctrl-C (1 min 30 s)")
    )


# --- what every load has in common

LOADS: dict[str, tuple[Callable[..., Verdict], str, Action]] = {
    "matmul": (checks.matmul, "matmul", Action.DRAIN),
    "memory_bandwidth": (checks.memory_bandwidth, "hbm", Action.RESET_GPU),
    "copies": (checks.copies, "copies", Action.DRAIN),
    "peer": (checks.peer, "peer", Action.DRAIN),
    "nccl": (checks.nccl, "nccl", Action.DRAIN),
    "cpu": (checks.cpu, "cpu", Action.VENDOR),
    "memory": (checks.memory, "memory", Action.VENDOR),
    "storage": (checks.storage, "storage", Action.DRAIN),
}
HOST_LOADS = ("cpu", "memory", "storage")


@pytest.mark.parametrize("name", LOADS)
def test_a_load_that_reports_a_problem(name: str) -> None:
    check, kind, action = LOADS[name]
    whole = fleet(2)
    part = "" if name in HOST_LOADS else gpu_of("a", 1)
    told(whole).problems.append((kind, part, "broken"))
    found = Finding(GPU_1 if part else "node", f"{kind}: broken", "the load runs to its end")
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
    reason(check(bare, "a", CONFIG), NotChecked(f"{kind} was not run in the time there was"))
    bare.nodes["a"].out = "wrong data"
    reason(check(bare, "a", CONFIG), NotChecked(f"{kind} was not run: wrong data"))
    bare.nodes["a"].skips[kind] = "no room"
    reason(check(bare, "a", CONFIG), NotApplicable("no room"))
    silent = BurninResult({"a": NodeTotals("a"), "b": bare.nodes["b"]}, 3600, 4)
    reason(check(silent, "a", CONFIG), NotChecked("the node never took part: no word from it"))
    silent.nodes["a"].out = "left"
    reason(check(silent, "a", CONFIG), NotChecked("the node never took part: left"))
    silent.nodes["a"].lost = "silent"
    reason(check(silent, "a", CONFIG), NotChecked("the node never took part: silent"))


@pytest.mark.parametrize("name", [name for name in LOADS if name not in HOST_LOADS])
def test_a_node_without_working_gpus(name: str) -> None:
    check = LOADS[name][0]
    for broken, expected in (
        (["", "no CUDA"], NotChecked("no worker on the GPUs: no CUDA")),
        ([], NotApplicable("the node has no GPU in this step")),
    ):
        node = NodeTotals("a", hello=hello("a", devices=[], broken=broken), rounds=1)
        reason(
            check(BurninResult({"a": node, "b": NodeTotals("b", hello=hello("b"))}, 60, 4), "a", CONFIG),
            expected,
        )


@pytest.mark.parametrize("name", [name for name in LOADS if name != "nccl"])
def test_a_load_whose_process_ended_is_judged_by_survived(name: str) -> None:
    check, kind, _ = LOADS[name]
    whole = BurninResult({"a": NodeTotals("a", hello=hello("a"), rounds=1)}, 60, 4)
    told(whole).problems.append((kind, "", "the load ended by signal 9"))
    reason(check(whole, "a", CONFIG), NotChecked(f"{kind} did not run to its end: see burnin.survived"))


# --- wrong results


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_elements(kind: str) -> None:
    whole = fleet(1, a=[load("a", kind, own={1: {"wrong": 3}})])
    found = Finding(GPU_1, f"{kind}: 3 wrong elements", "bit by bit the same")
    judged(checks.corruption(whole, "a"), found, action=Action.VENDOR)


def test_a_gpu_that_computes_something_else() -> None:
    whole = fleet(2, a=[load("a", "matmul", own={1: {"hash": "bb"}})])
    found = Finding(
        GPU_1, "bf16: another result than 7 others", "the result of the other GPUs for the same input"
    )
    judged(checks.corruption(whole, "a"), found, action=Action.VENDOR)
    assert checks.corruption(whole, "a").metrics == (Metric("burnin_products_checked", 36, "products"),)
    assert checks.corruption(whole, "b").outcome is Outcome.PASSED


def host(kind: str, **fields: Any) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = {
        "cpu": {"rate": 9.0, "key": "cpu/1", "hashes": ["aa"]},
        "memory": {"rate": 9.0},
        "storage": {"write": 1.0, "read": 2.0},
    }
    return {"load": kind, "results": [{"load": kind, "wrong": 0, **known[kind], **fields}]}


@pytest.mark.parametrize(
    ("kind", "found", "action"),
    [
        ("cpu", Finding("CPUs", "3 repetitions gave another result", "the same result"), Action.VENDOR),
        ("memory", Finding("memory", "3 blocks of 1 MiB read back changed", "what was written"), Action.VENDOR),
        ("storage", Finding("/tmp", "3 blocks of 4 MiB read back changed", "what was written (1 GiB a round)"),
         Action.DRAIN),
    ],
)  # fmt: skip
def test_wrong_results_of_the_host(kind: str, found: Finding, action: Action) -> None:
    whole = fleet(1, a=[host(kind, wrong=3)])
    judged(LOADS[kind][0](whole, "a", CONFIG), found, action=action)
    assert LOADS[kind][0](fleet(1, a=[host(kind)]), "a", CONFIG).outcome is Outcome.PASSED


def test_storage_without_a_folder_of_its_own_has_a_name() -> None:
    verdict = checks.storage(
        fleet(1, a=[host("storage", wrong=1)]), "a", BurninConfig(storage=None, storage_size=2**20)
    )
    words = "what was written (1 MiB a round)"
    assert verdict.findings == (Finding("storage", "1 blocks of 4 MiB read back changed", words),)


def test_cpus_that_compute_something_else() -> None:
    whole = fleet(3, a=[host("cpu", hashes=["bb"])], b=[host("cpu")], c=[host("cpu")])
    found = Finding(
        "CPUs", "cpu: another result than 2 others", "the result of the other nodes for the same input"
    )
    judged(checks.cpu(whole, "a", CONFIG), found, action=Action.VENDOR)
    assert checks.cpu(whole, "b", CONFIG).outcome is Outcome.PASSED


def test_wrong_sums_of_a_collective() -> None:
    results = [
        {"load": "nccl", "gpu": 1, "uuid": gpu_of("a", 1), "members": ["a"], "busbw": 300.0, "wrong": 3}
    ]
    whole = fleet(1, a=[{"load": "nccl", "results": results}])
    judged(
        checks.nccl(whole, "a", CONFIG), Finding(GPU_1, "3 wrong elements", "right sums"), action=Action.DRAIN
    )
    assert checks.nccl(whole, "a", CONFIG).metrics == (Metric("burnin_nccl_alone", 300.0, "GB/s"),)


@pytest.mark.parametrize(
    ("check", "words"),
    [(checks.peer, "one GPU alone has no peer"), (checks.nccl, "one GPU alone has nothing to reduce with")],
)
def test_one_gpu_has_nothing_to_talk_to(check: Callable[..., Verdict], words: str) -> None:
    whole = BurninResult({"a": NodeTotals("a", hello=hello("a", gpus=1), rounds=1)}, 60, 1)
    reason(check(whole, "a", CONFIG), NotApplicable(words))


# --- counters


@pytest.mark.parametrize(
    ("counter", "limit"), [(counter, limit) for counter, limit in checks.LIMITS.items() if counter != "gone"]
)
def test_a_counter_may_rise_by_its_limit_and_no_further(counter: str, limit: int) -> None:
    assert checks.counters(with_rose(counter, limit), "a", CONFIG).outcome is Outcome.PASSED
    found = Finding(GPU_1, f"{counter} rose by {limit + 1} during matmul", f"by at most {limit}")
    judged(checks.counters(with_rose(counter, limit + 1), "a", CONFIG), found, action=Action.DRAIN)


def test_limits_of_counters_are_those_of_dcgm_and_infiniband() -> None:
    risen = {name: limit for name, limit in checks.LIMITS.items() if limit}
    assert risen == {"nvlink_crc_errors": 99, "port_rcv_errors": 9, "port_rcv_remote_physical_errors": 9,
                     "symbol_error": 119}  # fmt: skip
    assert (checks.REPLAYS_A_MINUTE, checks.NEVER) == (8, 0)


def test_a_gpu_that_vanished() -> None:
    found = Finding(GPU_1, "vanished from nvidia-smi during hbm", "by at most 0")
    judged(checks.counters(with_rose("gone", 1, "hbm"), "a", CONFIG), found, action=Action.DRAIN)


def test_why_counters_were_not_judged() -> None:
    silent = BurninResult({"a": NodeTotals("a")}, 60)
    reason(checks.counters(silent, "a", CONFIG), NotChecked("the node never took part: no word from it"))
    whole = fleet(1)
    told(whole).hello = hello("a", counted=[], unread={"gpu": "no nvidia-smi", "xid": "dmesg: denied"})
    reason(checks.counters(whole, "a", CONFIG),
           NotChecked("no counter could be read: gpu: no nvidia-smi; xid: dmesg: denied"))  # fmt: skip
    told(whole).hello = hello("a", gpus=0, counted=[])
    words = "neither GPUs nor InfiniBand ports are there to count anything"
    reason(checks.counters(whole, "a", CONFIG), NotApplicable(words))
    told(whole).hello = hello("a", counted=["symbol_error"], unread={"gpu": "no permission"})
    words = "the counters of the GPUs could not be read: no permission"
    reason(checks.counters(whole, "a", CONFIG), NotChecked(words))
    bare = BurninResult({"a": NodeTotals("a", hello=hello("a"))}, 60, 4)
    words = "no load was finished, so there is no before and after"
    reason(checks.counters(bare, "a", CONFIG), NotChecked(words))
    reason(checks.xid(bare, "a"), NotChecked(words))


# --- Xids


def test_why_xids_were_not_judged() -> None:
    reason(
        checks.xid(BurninResult({"a": NodeTotals("a")}, 60), "a"),
        NotChecked("the node never took part: no word from it"),
    )
    without = BurninResult({"a": NodeTotals("a", hello=hello("a", gpus=0))}, 60)
    reason(checks.xid(without, "a"), NotApplicable("the node has no GPU in this step"))
    whole = fleet(1)
    told(whole).hello = hello("a", kernel=False)
    reason(checks.xid(whole, "a"), NotChecked("the kernel log cannot be read: no message"))
    told(whole).hello = hello("a", kernel=False, unread={"xid": "dmesg: denied"})
    reason(checks.xid(whole, "a"), NotChecked("the kernel log cannot be read: dmesg: denied"))
    told(whole).hello = hello("a")
    told(whole).unread["xid"] = "dmesg: gone"
    reason(checks.xid(whole, "a"), NotChecked("the kernel log cannot be read: dmesg: gone"))


# --- temperature


def peaked(**fields: Any) -> BurninResult:
    whole = fleet(1)
    told(whole).peaks[gpu_of("a", 1)] = Peaks(samples=10, **fields)
    return whole


def test_a_gpu_that_is_too_hot() -> None:
    strict = BurninConfig(max_temperature=80)
    judged(checks.temperature(peaked(celsius=80.5), "a", strict), Finding(GPU_1, "80.5 C under load", "at most 80 C"),
           action=Action.DRAIN)  # fmt: skip
    assert checks.temperature(peaked(celsius=80), "a", strict).outcome is Outcome.PASSED
    own = peaked(celsius=91)
    said = told(own).hello
    assert said is not None
    said["gpus"][1]["slow_celsius"] = 90.0
    judged(
        checks.temperature(own, "a", CONFIG),
        Finding(GPU_1, "91 C under load", "at most 90 C"),
        action=Action.DRAIN,
    )
    assert checks.temperature(peaked(celsius=200), "a", CONFIG).outcome is Outcome.PASSED, "no limit is known"


def test_a_gpu_that_is_slowed_for_long() -> None:
    slowed = peaked(celsius=70.0, slow={"hw_power_brake": 3})
    found = Finding(GPU_1, "hw_power_brake in 3 of 10 samples, up to 70 C", "in at most 20% of them")
    judged(checks.temperature(slowed, "a", CONFIG), found, action=Action.DRAIN)
    assert checks.temperature(peaked(slow={"hw_power_brake": 2}), "a", CONFIG).outcome is Outcome.PASSED


def test_what_the_sensors_showed_is_told() -> None:
    verdict = checks.temperature(
        peaked(celsius=61.0, watts=690.0, sm_mhz=[1500.0, 1600.0, 1700.0]), "a", CONFIG
    )
    assert verdict.metrics == (
        Metric("burnin_celsius", 61.0, "C", GPU_1),
        Metric("burnin_watts", 690.0, "W", GPU_1),
        Metric("burnin_sm_mhz", 1600.0, "MHz", GPU_1),
    )


def test_why_temperatures_were_not_judged() -> None:
    reason(
        checks.temperature(fleet(1), "a", CONFIG),
        NotChecked("nvidia-smi told no temperature while the loads ran"),
    )
    silent = BurninResult({"a": NodeTotals("a")}, 60)
    reason(checks.temperature(silent, "a", CONFIG), NotChecked("the node never took part: no word from it"))


# --- stragglers


def test_why_nothing_was_compared() -> None:
    few = fleet(1, a=[load("a", "matmul", gpus=2)])
    reason(checks.stragglers(few, "a", CONFIG),
           NotChecked("bf16: 2 values are too few to name an outlier (spread 0)"))  # fmt: skip
    nothing = BurninResult({"a": NodeTotals("a", hello=hello("a"))}, 60, 4)
    words = "nothing was measured that could be compared"
    reason(checks.stragglers(nothing, "a", CONFIG), NotChecked(words))


UNKNOWN = (
    "no {} is known of NVIDIA Q9000: say it under burnin.expect; the fleet is compared by burnin.stragglers"
)


def test_a_card_without_a_limit_is_not_checked() -> None:
    whole = fleet(1)
    said = told(whole).hello
    assert said is not None
    for gpu in said["gpus"]:
        gpu["name"] = "NVIDIA Q9000"
    for check, what in ((checks.matmul, "TFLOP/s"), (checks.memory_bandwidth, "memory bandwidth")):
        reason(check(whole, "a", CONFIG), NotChecked(UNKNOWN.format(what)))
    for gpu in said["gpus"]:
        gpu["pcie_gen"] = None
    reason(checks.copies(whole, "a", CONFIG), NotChecked(UNKNOWN.format("PCIe link")))
