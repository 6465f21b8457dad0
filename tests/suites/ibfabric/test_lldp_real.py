"""Cables that are swapped or missing, found with a real lldpd in namespaces of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from counter_examples import CONFIGURE
from judged import judged

from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.ibfabric import checks_plan
from pytest_gpucluster.suites.ibfabric.lldp import NEIGHBOURS, of_neighbours
from pytest_gpucluster.suites.ibfabric.plan import parse_plan
from pytest_gpucluster.suites.ibfabric.wiring import compare

pytestmark = pytest.mark.thorough
PLAN = """A-Node Name,A-Type,A-Port,Z-Node Name,Z-Type,Z-Port
gpu01,Host,rail0,leaf01,Switch,swp1s0
gpu01,Host,rail1,leaf02,Switch,swp1
gpu01,Host,rail2,leaf02,Switch,swp2
"""


def test_swapped_and_missing_cables_of_a_real_lldpd_are_named_by_both_ends(tmp_path: Path) -> None:
    if os.geteuid() or not shutil.which("lldpd", path="/usr/sbin:/sbin"):
        pytest.skip("needs root and lldpd")
    around = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    script = Path(__file__).with_name("lldpd.sh")
    cables = "gpu01 rail0 leaf02 swp1\ngpu01 rail1 leaf01 swp1s0\ngpu01 rail2 - -\n"
    command = (*around, "sh", script, NEIGHBOURS.command, tmp_path)
    ended = subprocess.run(command, input=cables, capture_output=True, text=True, timeout=300, check=True)
    found = NEIGHBOURS.parse(Answer("gpu01", 0, ended.stdout.encode()))

    compared = compare(parse_plan("p", PLAN).cables, of_neighbours({"gpu01": found}))
    parts = ["gpu01 rail0 - leaf01 swp1s0, gpu01 rail1 - leaf02 swp1", "gpu01 rail2 - leaf02 swp2"]
    assert judged(checks_plan.neighbours("gpu01", compared)) == (CONFIGURE, parts)
