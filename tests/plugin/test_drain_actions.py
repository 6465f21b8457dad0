"""What may drain: findings that ask for an action of their own, written by hand, and what never drains.

The page of each suite has the action of its checks; a test compares it with the code.
"""

from __future__ import annotations

from typing import Any

import pytest
from plugin.test_drain import Ended
from plugin.test_drain import ended as _ended
from report_helpers import result

from pytest_gpucluster.core.check import CHECKS, Action, Advisory, Finding, Verdict, conclude, with_contention
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.drain.policy import reaches
from pytest_gpucluster.report.result import read_result

ended = _ended  # a fixture


@pytest.mark.parametrize("action", ["", "explode", "DRAIN", " drain", "reset-gpu"])
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
    "os": "drift kernel_log memory mount_response responds root_writable systemd",
    "slurm": "responding",
    "storage": "integrity",
    "training": "replay",
    # they ask for a repair only where an entry of `known`, which a person wrote, does
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

BAD, WARNING = Finding("GPU 1", "1", "2"), Advisory("GPU 1", "1", "2")
MILD = Finding("GPU 2", "1", "2", Action.MONITOR)


def verdict(*found: Any, action: Action = Action.DRAIN) -> Verdict:
    return conclude("gpu.x", found, cause="", hint="", action=action, never_healthy="made")


def judged_at(node: str, *verdicts: Verdict, outcome: str = "failed") -> dict[str, Any]:
    return result(node, outcome, check="gpu.x", verdicts=[one.as_dict() for one in verdicts])


def is_drained(ended: type[Ended], least: Action, event: dict[str, Any]) -> bool:
    """Return whether a run takes gpu05 out of service for this, each repetition of which has failed too."""
    run = ended([event], least=least, resume=False)
    run.act()
    assert set(run.drained) <= {"gpu05"}
    return bool(run.drained)


@pytest.mark.parametrize(
    ("found", "action"),
    [
        ((WARNING,), Action.VENDOR),
        ((NotAvailable("no right"), WARNING), Action.VENDOR),
        ((NotApplicable("no MIG"),), Action.VENDOR),
        ((), Action.VENDOR),
        ((BAD,), Action.MONITOR),
        ((BAD, WARNING), Action.CONFIGURE),
        ((MILD,), Action.VENDOR),
        ((MILD, WARNING), Action.VENDOR),
    ],
)
def test_what_never_drains(ended: type[Ended], found: tuple[Any, ...], action: Action) -> None:
    event = judged_at("gpu05", verdict(*found, action=action))
    assert not is_drained(ended, Action.RESET_GPU, event)


@pytest.mark.parametrize("least", [action for action in Action if action.is_repair])
def test_a_finding_drains_from_the_requested_class_on(ended: type[Ended], least: Action) -> None:
    for action in Action:
        hard = action.is_repair and list(Action).index(action) >= list(Action).index(least)
        alone = verdict(BAD, WARNING, action=action)
        beside = verdict(MILD, Finding("GPU 3", "1", "2", action), action=Action.MONITOR)
        for one in (alone, beside):
            assert is_drained(ended, least, judged_at("gpu05", one)) is hard


def test_a_failure_of_no_single_node_or_by_no_verdict_never_drains(ended: type[Ended]) -> None:
    assert is_drained(ended, Action.DRAIN, judged_at("gpu05", verdict(BAD)))
    assert not is_drained(ended, Action.RESET_GPU, judged_at("", verdict(BAD)))
    assert not is_drained(ended, Action.RESET_GPU, judged_at("gpu05"))


@pytest.mark.parametrize(
    ("outcome", "action", "stays"),
    [
        ("error", Action.DRAIN, True),
        ("failed", Action.DRAIN, True),
        ("failed", Action.MONITOR, False),
        ("not checked", Action.DRAIN, False),
    ],
)
def test_an_error_is_no_grounds_and_keeps_a_drained_node_drained(
    ended: type[Ended], outcome: str, action: Action, *, stays: bool
) -> None:
    """A fixture that broke says nothing of the node: only a verdict in the call does."""
    found = verdict(BAD, action=action)
    on_trial = ended([judged_at("gpu02", found, outcome=outcome)])
    on_trial.act()
    assert ("gpu02" in on_trial.drained) is stays
    in_service = judged_at("gpu05", found, outcome=outcome)
    assert is_drained(ended, Action.DRAIN, in_service) is (stays and outcome == "failed")


@pytest.mark.parametrize("action", Action)
def test_a_failure_of_other_users_or_settings_asks_for_no_drain(ended: type[Ended], action: Action) -> None:
    """Where others were at work on the GPUs, the hardware alone was not measured."""
    found = with_contention(verdict(BAD, Finding("GPU 3", "1", "2", action)), "others")
    assert not is_drained(ended, Action.RESET_GPU, judged_at("gpu05", found))


@pytest.mark.parametrize(
    ("verdicts", "part"),
    [
        ([verdict(MILD, BAD, Finding("GPU 4", "1", "2"))], "GPU 1"),
        ([verdict(BAD, Finding("GPU 5", "3", "4", Action.VENDOR))], "GPU 5"),
        ([verdict(MILD, action=Action.MONITOR), verdict(BAD)], "GPU 1"),
    ],
)
def test_a_drain_names_the_finding_that_asks_for_it(
    ended: type[Ended], verdicts: list[Verdict], part: str
) -> None:
    run = ended([judged_at("gpu05", *verdicts)], resume=False)
    run.act()
    assert part in run.world.nodes["gpu05"].reason
    event = judged_at("gpu05", verdict(BAD))  # no finding has the action of its verdict: the first
    event["verdicts"][0]["findings"] = [{**BAD.as_dict(), "part": "GPU 7", "action": "reboot"}]
    run = ended([event], resume=False)
    run.act()
    assert "GPU 7" in run.world.nodes["gpu05"].reason
