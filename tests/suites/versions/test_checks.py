"""Minimum versions: stated ones fail, shipped ones warn, fixes of a distribution are no false alarm."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_gpucluster.core.check import Action, Outcome, Verdict
from pytest_gpucluster.suites.versions import checks
from pytest_gpucluster.suites.versions.config import MinimumVersion, VersionsConfig
from pytest_gpucluster.suites.versions.facts import InstalledVersion, NodeVersions
from pytest_gpucluster.suites.versions.known import KNOWN

SHIPPED = checks.of_component(KNOWN)
DEBIAN = InstalledVersion("22.05.8", "slurmd 22.05.8-4+deb12u3", distribution=True)


def row(lowest: str, **more: Any) -> MinimumVersion:
    return MinimumVersion(min=lowest, reason="CVE-0", source="https://x", **more)


def judged(component: str, installed: InstalledVersion | str, *stated: MinimumVersion) -> Verdict:
    version = InstalledVersion(installed) if isinstance(installed, str) else installed
    return checks.minimum(NodeVersions({component: version}), {component: stated}, SHIPPED)


@pytest.mark.parametrize(
    ("version", "minimum", "below"),
    [
        ("550.90.07", "550.90.07", False),
        ("550.100.01", "550.90.07", False),
        ("535.183.06", "550.90.07", True),
        ("12.4", "12.4.0", False),
        ("12.4", "12.4.1", True),
        ("23.10-0.5.5.0", "23.10-1.0.0.0", True),
        ("22.05.8-4+deb12u3", "22.05.8-4+deb12u2", False),
    ],
)
def test_versions_are_compared_by_numbers(version: str, minimum: str, below: bool) -> None:
    assert checks.is_below(version, minimum) is below


def test_a_stated_minimum_fails_with_reason_and_source() -> None:
    verdict = judged("driver", "550.54.15", row("550.90.07"))
    (finding,) = verdict.findings
    assert (finding.part, finding.measured) == ("driver", "550.54.15")
    assert finding.expected == "at least 550.90.07: CVE-0 (https://x)"
    assert verdict.action is Action.CONFIGURE
    assert judged("driver", "550.90.07", row("550.90.07")).outcome is Outcome.PASSED


def test_a_row_of_a_branch_is_for_that_branch_only() -> None:
    rows = row("550.90.07", branch="550"), row("535.183.01", branch="535")
    assert judged("driver", "535.183.06", *rows).outcome is Outcome.PASSED
    assert judged("driver", "535.161.08", *rows).findings[0].expected.startswith("at least 535.183.01")
    assert judged("driver", "580.65.06", *rows).findings == ()
    assert judged("driver", "55.1", row("55.2", branch="550")).findings == ()
    assert judged("slurm", "23.2.6", row("23.02.7", branch="23.02")).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("component", "version", "warned"),
    [
        ("driver", "550.54.15", True),
        ("driver", "550.90.07", False),
        ("driver", "580.65.06", False),
        ("container_toolkit", "1.16.1", True),
        ("container_toolkit", "1.18.0", False),
        ("slurm", "23.11.10", True),
        ("slurm", "23.11.11", False),
        ("slurm", "25.05.0", False),
    ],
)
def test_a_shipped_row_only_warns(component: str, version: str, warned: bool) -> None:
    verdict = judged(component, version)
    assert verdict.findings == ()
    assert bool(verdict.advisories) is warned
    if warned:
        assert "CVE-" in verdict.advisories[0].expected
        assert "https://" in verdict.advisories[0].expected


def test_the_package_of_a_distribution_may_have_the_fix() -> None:
    assert judged("slurm", DEBIAN).outcome is Outcome.NOT_APPLICABLE, "a shipped row says nothing about it"
    assert judged("slurm", DEBIAN).advisories == ()
    upstream = judged("slurm", DEBIAN, row("22.05.11"))
    assert (upstream.outcome, len(upstream.advisories)) == (Outcome.PASSED, 1)
    assert "state the version of its package" in upstream.advisories[0].expected
    assert judged("slurm", DEBIAN, row("22.05.8-4+deb12u3")).advisories == ()
    old = judged("slurm", DEBIAN, row("22.05.8-4+deb12u4"))
    assert old.findings[0].measured == "22.05.8 (package slurmd 22.05.8-4+deb12u3)"


def test_what_is_unknown_is_not_checked_if_it_is_stated() -> None:
    node = NodeVersions({}, {"ofed": "ofed_info is absent"})
    verdict = checks.minimum(node, {"ofed": (row("23.10"),)}, SHIPPED)
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_CHECKED, "ofed: ofed_info is absent")
    assert checks.minimum(node, {}, SHIPPED).outcome is Outcome.NOT_APPLICABLE


def test_a_component_whose_rows_are_for_other_branches_was_not_compared() -> None:
    other = row("535.1").model_copy(update={"branch": "535"})
    verdict = judged("driver", "550.54.15", other)
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert "driver 550.54.15 was not compared: the rows are for 535" in verdict.reason
    assert judged("driver", "535.54.15", other).outcome is Outcome.PASSED


def test_a_stated_row_replaces_the_shipped_ones_of_its_component() -> None:
    verdict = judged("driver", "550.54.15", row("550.54.14"))
    assert (verdict.outcome, verdict.advisories) == (Outcome.PASSED, ())


def test_shipped_rows_hold_within_a_branch_and_have_a_source() -> None:
    assert all(it.source.startswith("https://") and "CVE-" in it.reason for it in KNOWN)
    for it in KNOWN:
        if it.branch:
            assert checks.applies(it, it.min), it
        else:
            assert it.component == "container_toolkit", it


def test_the_section_takes_one_row_or_one_for_each_branch() -> None:
    one = {"min": "550.90.07", "reason": "r", "source": "s"}
    config = VersionsConfig.model_validate({"driver": one, "slurm": [one, {**one, "branch": "23.11"}]})
    assert len(config.rows("driver")) == 1
    assert [it.branch for it in config.rows("slurm")] == [None, "23.11"]
    for wrong in ({"min": "latest", "reason": "r", "source": "s"}, {"min": "1"}, {**one, "max": "2"}):
        with pytest.raises(ValidationError):
            VersionsConfig.model_validate({"driver": wrong})
