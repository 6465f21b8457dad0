"""Minimum versions: stated ones fail, shipped ones warn, fixes of a distribution are no false alarm."""

from __future__ import annotations

from typing import Any

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, result
from pydantic import ValidationError

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.suites.versions import checks
from pytest_gpucluster.suites.versions.config import COMPONENTS, MinimumVersion, VersionsConfig
from pytest_gpucluster.suites.versions.facts import InstalledVersion, NodeVersions
from pytest_gpucluster.suites.versions.known import KNOWN

SHIPPED = {name: KNOWN.get(name, ()) for name in COMPONENTS}
DEBIAN = InstalledVersion("22.05.8", "slurmd 22.05.8-4+deb12u3", distribution=True)


def row(lowest: str, branch: str | None = None) -> MinimumVersion:
    return MinimumVersion(min=lowest, branch=branch, reason="CVE-0")


def judge(component: str, installed: InstalledVersion | str, *stated: MinimumVersion) -> Verdict:
    version = InstalledVersion(installed) if isinstance(installed, str) else installed
    return checks.minimum(NodeVersions({component: version}), {component: stated}, SHIPPED)


def test_versions_are_compared_by_numbers() -> None:
    for version, minimum, below in (
        ("550.90.07", "550.90.07", False),
        ("550.100.01", "550.90.07", False),
        ("535.183.06", "550.90.07", True),
        ("12.4", "12.4.1", True),
        ("23.10-0.5.5.0", "23.10-1.0.0.0", True),
        ("22.05.8-4+deb12u3", "22.05.8-4+deb12u2", False),
    ):
        assert checks.is_below(version, minimum) is below


OF_550, OF_535 = row("550.90.07", "550"), row("535.183.01", "535")


def test_minimum_versions() -> None:
    for component, installed, stated, expected in (
        # stated by the cluster file
        ("driver", "550.54.15", (row("550.90.07"),), CONFIGURE),
        ("driver", "550.90.07", (row("550.90.07"),), PASSED),
        ("driver", "550.54.15", (row("550.54.14"),), PASSED),  # it replaces the shipped ones of its component
        # a row of a branch is for that branch only
        ("driver", "535.183.06", (OF_550, OF_535), PASSED),
        ("driver", "535.161.08", (OF_550, OF_535), CONFIGURE),
        ("driver", "580.65.06", (OF_550, OF_535), NOT_CHECKED),
        ("slurm", "23.2.6", (row("23.02.7", "23.02"),), CONFIGURE),
        # shipped rows only warn
        ("driver", "550.54.15", (), WARNING),
        ("driver", "550.90.07", (), PASSED),
        ("slurm", "23.11.10", (), WARNING),
        # the package of a distribution may have the fix: a shipped row says nothing about it
        ("slurm", DEBIAN, (), NOT_APPLICABLE),
        ("slurm", DEBIAN, (row("22.05.11"),), WARNING),
        ("slurm", DEBIAN, (row("22.05.8-4+deb12u3"),), PASSED),
        ("slurm", DEBIAN, (row("22.05.8-4+deb12u4"),), CONFIGURE),
    ):
        assert result(judge(component, installed, *stated)) == expected


def test_what_is_unknown_is_not_checked_if_it_is_stated() -> None:
    node = NodeVersions({}, {"ofed": "ofed_info is absent"})
    verdict = checks.minimum(node, {"ofed": (row("23.10"),)}, SHIPPED)
    assert (result(verdict), verdict.reason) == (NOT_CHECKED, "ofed: ofed_info is absent")
    assert result(checks.minimum(node, {}, SHIPPED)) == NOT_APPLICABLE


def test_shipped_rows_hold_within_a_branch_and_have_a_source() -> None:
    for component, it in ((name, it) for name, rows in KNOWN.items() for it in rows):
        assert "(https://" in it.reason
        assert "CVE-" in it.reason
        assert checks.applies(it, it.min) if it.branch else component == "container_toolkit", it


def test_the_section_takes_one_row_or_one_for_each_branch() -> None:
    one: dict[str, Any] = {"min": "550.90.07", "reason": "r"}
    config = VersionsConfig.model_validate({"driver": one, "slurm": [one, {**one, "branch": "23.11"}]})
    assert len(config.rows("driver")) == 1
    assert [it.branch for it in config.rows("slurm")] == [None, "23.11"]
    for wrong in ({**one, "min": "latest"}, {"min": "1"}, {**one, "max": "2"}):
        with pytest.raises(ValidationError):
            VersionsConfig.model_validate({"driver": wrong})
