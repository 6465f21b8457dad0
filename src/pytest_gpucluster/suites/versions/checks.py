"""Installed versions against stated and shipped minimum versions. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.part import named
from pytest_gpucluster.suites.versions.config import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.suites.versions.config import MinimumVersion
    from pytest_gpucluster.suites.versions.facts import InstalledVersion, NodeVersions

    Rows = Mapping[str, tuple[MinimumVersion, ...]]


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version.

    >>> numbers("22.05.8-4+deb12u3")
    (22, 5, 8, 4, 12, 3)
    """
    return tuple(int(digits) for digits in re.findall(r"[0-9]{1,9}", version))


def is_below(version: str, minimum: str) -> bool:
    """Compare the numbers of two versions of one form; missing ones are 0.

    >>> is_below("550.54.15", "550.90.07"), is_below("12.4", "12.4.0")
    (True, False)
    """
    mine, least = numbers(version), numbers(minimum)
    size = max(len(mine), len(least))
    return mine + (0,) * (size - len(mine)) < least + (0,) * (size - len(least))


def applies(row: MinimumVersion, version: str) -> bool:
    """Return whether a version belongs to the branch of a row."""
    branch = numbers(row.branch or "")
    return numbers(version)[: len(branch)] == branch


def _names_a_package(row: MinimumVersion) -> bool:
    return bool(re.search(r"[-+~]", row.min))


def _is_too_old(row: MinimumVersion, installed: InstalledVersion) -> bool:
    whole = installed.package.rpartition(" ")[2] if installed.package and _names_a_package(row) else ""
    return applies(row, installed.text) and is_below(whole or installed.text, row.min)


def _expected(row: MinimumVersion) -> str:
    return f"at least {row.min}: {row.reason}"


def _uncompared(name: str, mine: InstalledVersion, stated: Collection[MinimumVersion]) -> Iterator[NotAvailable]:
    """Yield why no stated row says anything about a version: they are all for other branches."""
    branches = {row.branch or "" for row in stated}
    if branches and not any(applies(row, mine.text) for row in stated):
        yield NotAvailable(
            f"{name} {mine.text} was not compared: the rows are for {', '.join(sorted(branches))}; add one for its branch, "
            "or one without `branch`"
        )


@check(
    "versions.minimum",
    cause="the node or its image was not updated",
    hint="update the component on the node or in its image; the report states what was fixed",
    action=Action.CONFIGURE,  # the software of the cluster, not the hardware of the node
)
def minimum(installed: NodeVersions, stated_minima: Rows, shipped_minima: Rows) -> Judgement:
    """No component is older than the cluster file or the profile states; shipped rows only warn."""
    compared = False
    for name in COMPONENTS:
        stated, mine = stated_minima.get(name, ()), installed.known.get(name)
        if mine is None:
            if stated:
                yield NotAvailable(f"{name}: {installed.absent.get(name, 'unknown')}")
            continue
        yield from _uncompared(name, mine, stated)
        part, found = named("software", name), Quote(str(mine))
        for row in stated:
            compared |= applies(row, mine.text)
            if not _is_too_old(row, mine):
                continue
            if mine.distribution and not _names_a_package(row):
                advice = "the distribution may have fixed it: state the version of its package"
                yield Advisory(part, found, f"{_expected(row)}; {advice}", code="may_be_too_old")
            else:
                yield Finding(part, found, _expected(row), code="too_old")
        for row in shipped_minima.get(name, ()) if not mine.distribution and not stated else ():
            compared |= applies(row, mine.text)
            if _is_too_old(row, mine):
                yield Advisory(part, found, _expected(row), code="too_old")
    if not compared and not any(stated_minima.values()):
        raise NotApplicable("neither the cluster file nor the profile states a minimum version")
