"""A waiver of the cluster file: what it covers is found and listed everywhere, fails no run and drains no node."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from plugin_helpers import Run, cluster_file, names, out_of_service, run_pytest
from sandbox_helpers import slurm

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SITE = """
import os
import pytest
from pytest_gpucluster.core.check import Action, Finding, check
from pytest_gpucluster.core.probe import Probe, text_of

@check("site.fit", cause="c", hint="h", action=Action.DRAIN, never_healthy="made for a test")
def fit(node_name, bad):
    if node_name in bad:
        yield Finding("GPUs", "7", "8 GPUs")

@pytest.fixture
def bad(gpucluster):
    return os.environ.get("BAD", "").split(",")


@pytest.fixture
def absent(gpucluster_node):
    return gpucluster_node.facts(Probe("absent", "no-such-tool", text_of))



def test_fit(gpucluster_node, bad, gpucluster_item):
    gpucluster_item.expect(fit(gpucluster_node.name, bad))

def test_needs(absent, gpucluster_item):
    pytest.fail("never reached")

def test_whole(gpucluster):
    assert "whole" not in os.environ.get("BAD", ""), "the cluster is bad"
"""
TODAY = date.today()  # noqa: DTZ011 - as the plugin does
LATER = (TODAY + timedelta(days=30)).isoformat()


def waiver(checks: list[str], until: str = LATER, **keys: str) -> dict[str, Any]:
    return {"checks": checks, "reason": "a known fault", "ticket": "OPS-7", "until": until, **keys}


def site(sandbox: Sandbox, folder: Path, waivers: list[dict[str, Any]], *args: str, bad: str = "", **keys: Any) -> Run:
    # one line for each waiver: JSON is YAML
    path = cluster_file(sandbox, folder, waivers="WAIVERS", required=["site.*"], **keys)
    lines = ",\n".join(json.dumps(one) for one in waivers)
    path.write_text(path.read_text().replace('"WAIVERS"', f"[\n{lines}]"))
    where = () if any(arg.startswith("test_") for arg in args) else (".",)
    files, env = {"test_site.py": SITE}, {"BAD": bad}
    return run_pytest(folder, f"--cluster={path}", *args, files=files, env=env, where=where)


NEEDS = waiver(["site.needs"])  # the tool that this check requires is nowhere


def test_what_waivers_cover_is_listed_everywhere_and_the_run_is_accepted_with_waivers(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    known = [
        waiver(["site.fit"], nodes="gpu02", ticket="OPS-1"),
        waiver(["run.available"], nodes="gpu03", ticket="OPS-2"),
        waiver(["site.whole"], ticket="OPS-3"),
        NEEDS,
    ]
    with out_of_service(sandbox, "gpu03", "DRAIN", "bad cable"):
        words = ("-n2", "--drain=apply", "--junitxml=own.xml")
        run = site(sandbox, tmp_path, known, *words, bad="gpu02,whole")
    assert run.rc == 0, run.out
    waived = [
        "test_available[gpu03]",
        "test_fit[gpu02]",
        "test_proved[gpu01]",
        "test_proved[gpu02]",
        "test_proved[gpu04]",
        "test_whole",
    ]
    assert names(run.outcomes, "waived") == waived
    assert slurm(sandbox, "sinfo", "-h", "-R", "-o", "%E") == ""  # nothing was drained for it
    assert not [event for event in run.events if event["event"].startswith("drain_confirm")]
    out = " ".join(run.out.split())
    assert "6 waived" in out
    assert f"waived: site.fit on gpu02: GPUs: measured 7, expected 8 GPUs (OPS-1, until {LATER}" in out
    assert "waived: site.proved on gpu[01-02,04]: " in out
    (verdict,) = (line for line in run.out.splitlines() if line.startswith("ACCEPTED"))
    assert verdict.startswith("ACCEPTED, WITH WAIVERS: 3 of 4 nodes (1 waived)"), run.out[-1500:]
    assert "warning: " not in out  # each waiver covers something
    page = (run.reports / "report.html").read_text()
    for text in ("OPS-1", "OPS-2", "OPS-3", "measured 7, expected 8 GPUs", 'id="waivers"'):
        assert text in page, text
    (skipped,) = run.cases["gpucluster.site.gpu02 test_fit"].result
    assert (type(skipped).__name__, skipped.type) == ("Skipped", "gpucluster.waived")
    assert "OPS-1" in skipped.message
    (unavailable,) = run.cases["gpucluster.run.gpu03 test_available"].result
    assert "bad cable" in unavailable.message
    assert "OPS-1" in (tmp_path / "own.xml").read_text()


def test_the_words_of_a_site_s_own_skip_are_no_waiver(sandbox: Sandbox, tmp_path: Path) -> None:
    own = "import pytest\n\n\ndef test_a(gpucluster_node):\n    pytest.skip('waived: by nobody')\n"
    run = run_pytest(tmp_path, f"--cluster={cluster_file(sandbox, tmp_path)}", files={"test_own.py": own})
    assert set(names(run.outcomes, "skipped")) == {f"test_a[gpu0{number}]" for number in range(1, 5)}
    assert run.rc == 1
    assert "WITH WAIVERS" not in run.out
