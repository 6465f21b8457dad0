"""The parts of the loop of a campaign that need no Slurm."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import yaml

from pytest_gpucluster.campaign.campaign import Loop, Rules, with_nice
from pytest_gpucluster.campaign.model import Campaign, RunGroup
from pytest_gpucluster.core.run_mark import mark_of


@pytest.mark.parametrize("text", ["--nice=5", "--comment=a 'b' : c", "--x=[1, 2]"])
def test_options_of_salloc_survive_yaml_and_follow_the_campaigns_nice(text: str) -> None:
    assert yaml.safe_load(with_nice((text,), 1000)) == ["--nice=1000", text]


def loop() -> Loop:
    none: Any = None
    campaign = Campaign(1, "prod", "x", True, ("n1",), (), 0.0)
    return Loop(campaign, none, none, none, Rules(), print)


@pytest.mark.parametrize(
    ("owner", "child", "left", "ended"),
    [
        ("", "deadbeef-1-2", 60.0, False),  # of another machine: its job may still run
        ("", "deadbeef-1-2", -1.0, True),  # longer than any
        ("self", "", 60.0, False),  # its owner is about to start it
        ("dead", "", 60.0, True),  # its owner was killed before
        ("dead", "self", -1.0, False),  # it lives on without its owner
        ("self", "dead", 60.0, True),
    ],
)
def test_a_group_ends_with_process_or_last_job(owner: str, child: str, left: float, ended: bool) -> None:
    own = mark_of(os.getpid())
    marks = {"self": own, "dead": f"{own.rpartition('-')[0]}-1"}
    by, of = marks.get(owner, owner), marks.get(child, child)
    group = RunGroup(1, 1, "alone", ("n1",), False, "", by, of, 0.0, left)
    assert loop()._has_ended(group) == ended


@pytest.mark.parametrize("ahead", [86400.0, -86400.0])
def test_a_login_nodes_wall_clock_takes_no_live_group(monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    now = time.time()
    group = RunGroup(1, 1, "alone", ("n1",), False, "", "", "deadbeef-1-2", now, now + 60)
    one, begun = loop(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now + ahead)
    assert not one._has_ended(group)
    monkeypatch.setattr(time, "monotonic", lambda: begun + 90)
    assert one._has_ended(group), "it was seen for longer than it may last"
