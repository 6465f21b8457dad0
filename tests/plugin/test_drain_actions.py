"""What may drain: findings that ask for an action of their own, written by hand, and what never drains.

The page of each suite has the action of its checks; a test compares it with the code.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster.core.check import CHECKS, Action, Advisory, Finding, conclude, with_contention
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.drain.policy import NAMES, reaches
from pytest_gpucluster.plugin.drain import DrainOptions, DrainPlugin, _hardest
from pytest_gpucluster.report.result import read_result
from pytest_gpucluster.report.run_model import read_run

VALUES = ("configure", "monitor", "reset gpu", "reboot", "drain", "return to vendor")


def test_the_actions_from_mild_to_hard() -> None:
    assert tuple(action.value for action in Action) == VALUES
    assert {name: action.value for name, action in NAMES.items()} == {
        "reset-gpu": "reset gpu",
        "reboot": "reboot",
        "drain": "drain",
        "return-to-vendor": "return to vendor",
    }  # of --drain-min-action: the repairs


@pytest.mark.parametrize("least", VALUES)
@pytest.mark.parametrize("action", VALUES)
def test_an_action_reaches_its_own_class_and_milder_ones(action: str, least: str) -> None:
    expected = action not in VALUES[:2] and VALUES.index(action) >= VALUES.index(least)
    assert reaches(Action(action), Action(least)) is expected


@pytest.mark.parametrize("action", ["", "explode", "DRAIN", "Drain", " drain", "reset-gpu"])
def test_an_unknown_action_never_drains(action: str) -> None:
    event = {"verdicts": [{"outcome": "failed", "action": action, "findings": [{"part": "x"}]}]}
    (verdict,) = read_result(event).verdicts
    assert verdict.action is Action.MONITOR
    assert not any(reaches(verdict.action, least) for least in Action)


# --- which checks may take a node out of service


REPAIRS = {
    "rdma": "bandwidth",
    "burnin": """copies corruption gpu_memory counters cpu dcgm matmul memory memory_bandwidth nccl peer storage
        survived temperature xid""",
    "fabric": "counters hca_count port_state rate",
    "gpu": """count driver ecc_aggregate ecc_volatile fabric_state inforom memory nvlink_errors nvlink_state p2p
        pcie_gen pcie_width recovery_action remapped_pending remapped_rows retired_pages temperature throttle
        topology xid""",
    "nccl": "bandwidth pairs",
    "os": "kernel_log memory mount_response responds root_writable systemd taint",
    "slurm": "responding",
    "storage": "integrity",
    "training": "replay",
    # they ask for a repair only where an entry of `known`, which a person wrote, does
    "controller": "errors node_errors reported",
}


def test_only_these_checks_may_take_a_node_out_of_service() -> None:
    """Each states why no healthy node fails it with a repair; without that sentence the repair is a TypeError."""
    import_checks()
    stated = {name: about.never_healthy for name, about in CHECKS.items() if about.never_healthy}
    assert stated.keys() == {f"{suite}.{name}" for suite, names in REPAIRS.items() for name in names.split()}
    assert [name for name, about in CHECKS.items() if about.action.is_repair and name not in stated] == []
    for name, sentence in stated.items():
        assert 40 < len(sentence) < 300, name
        assert not sentence.endswith("."), name  # the reference makes it a sentence


# --- what the plugin takes for grounds


def drainage(least: Action) -> Any:
    """Return what --drain registers, without a Slurm behind it."""
    absent: Any = None  # it acts on no node, as in a worker
    options = DrainOptions(mode="on", retries=1, budget=absent, least=least, resume=False)
    return DrainPlugin(absent, absent, absent, options)


def record(*found: Any, action: Action = Action.DRAIN, node: str = "gpu01") -> dict[str, Any]:
    verdict = conclude("gpu.x", found, cause="", hint="", action=action, never_healthy="made")
    return {"node": node, "check": "gpu.x", "verdicts": [verdict.as_dict()]}


BAD, WARNING = Finding("GPU 1", "1", "2"), Advisory("GPU 1", "1", "2")
MILD = Finding("GPU 2", "1", "2", Action.MONITOR)


@pytest.mark.parametrize("least", [action for action in Action if action.is_repair])
@pytest.mark.parametrize(
    ("found", "action"),
    [
        ((WARNING,), Action.VENDOR),
        ((NotAvailable("no right"), WARNING), Action.VENDOR),
        ((NotApplicable("no MIG"),), Action.VENDOR),
        ((), Action.VENDOR),
        ((BAD,), Action.MONITOR),
        ((BAD,), Action.CONFIGURE),
        ((BAD, WARNING), Action.MONITOR),
        ((MILD,), Action.VENDOR),
        ((MILD, WARNING), Action.VENDOR),
    ],
)
def test_what_never_drains(found: tuple[Any, ...], action: Action, least: Action) -> None:
    asked = drainage(least)
    assert not asked._grounds(SimpleNamespace(gpucluster=record(*found, action=action)))


@pytest.mark.parametrize("least", [action for action in Action if action.is_repair])
def test_a_finding_drains_from_the_requested_class_on(least: Action) -> None:
    asked = drainage(least)
    for action in Action:
        hard = action.is_repair and list(Action).index(action) >= list(Action).index(least)
        alone = SimpleNamespace(gpucluster=record(BAD, WARNING, action=action))
        beside = SimpleNamespace(
            gpucluster=record(MILD, Finding("GPU 3", "1", "2", action), action=Action.MONITOR)
        )
        assert asked._grounds(alone) is hard
        assert asked._grounds(beside) is hard


def test_a_failure_of_no_single_node_never_drains() -> None:
    whole = SimpleNamespace(gpucluster=record(BAD, node=""))
    assert not drainage(Action.RESET_GPU)._grounds(whole)
    assert not drainage(Action.DRAIN)._grounds(SimpleNamespace())


def test_an_error_is_no_grounds_and_keeps_a_drained_node_drained() -> None:
    """A fixture that broke says nothing of the node: only a verdict in the call does."""
    ends = [
        ("error", record(BAD)),
        ("error", record(BAD)),
        ("not checked", record(BAD)),
        ("passed", record(WARNING)),
        ("failed", record(BAD, action=Action.MONITOR)),
    ]
    events = [{"event": "result", "outcome": end, "nodeid": "x", **found} for end, found in ends]
    asked = drainage(Action.DRAIN)
    asked._read(read_run([*events, {**events[0], "node": ""}, {**events[0], "event": "rerun"}]))
    assert asked._failed == {}
    assert asked._worse == {"gpu01": ["gpu.x", "gpu.x"]}  # the two errors; a failure to be watched is none
    assert asked._ends == {"gpu01": {"gpu.x": ["error", "error", "not checked", "passed", "failed"]}}
    asked._read(read_run([{**events[0], "outcome": "failed"}]))
    assert list(asked._failed) == ["x"]
    assert asked._worse == {"gpu01": ["gpu.x"] * 3}


@pytest.mark.parametrize("action", Action)
def test_a_failure_of_other_users_or_settings_asks_for_no_drain(action: Action) -> None:
    """Where others were at work on the GPUs, the hardware alone was not measured."""
    found = with_contention(
        conclude(
            "gpu.x",
            [BAD, Finding("GPU 3", "1", "2", action)],
            cause="",
            hint="",
            action=action,
            never_healthy="made",
        ),
        "others",
    )
    told = {"node": "gpu01", "verdicts": [found.as_dict()]}
    assert not drainage(Action.RESET_GPU)._grounds(SimpleNamespace(gpucluster=told))


def test_a_drain_names_the_finding_that_asks_for_it() -> None:
    found = [
        record(MILD, BAD, Finding("GPU 4", "1", "2")),
        record(BAD, Finding("GPU 5", "", "", Action.VENDOR)),
    ]
    foreign = {"action": "drain", "findings": [{"part": "GPU 7", "action": "reboot"}]}
    verdicts = [*(verdict for one in found for verdict in one["verdicts"]), foreign]
    logged = read_result({"verdicts": verdicts}).verdicts
    assert [_hardest(it).part for it in logged] == ["GPU 1", "GPU 5", "GPU 7"]
