"""A waiver covers the checks and nodes that it names, to the end of its last day, and never everything."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.waivers import covering, covering_parts

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.waivers import Waiver

HEAD = "nodes: gpu[01-04]\nwaivers:\n"
DAY, AFTER = date(2027, 1, 31), date(2027, 2, 1)


def waivers(folder: Path, *entries: str) -> tuple[Waiver, ...]:
    path = folder / "prod.yaml"
    path.write_text(HEAD + "".join(f"  - {{{entry}}}\n" for entry in entries))
    return load_cluster(path).waivers


@pytest.mark.parametrize(
    ("entry", "check", "node", "covered"),
    [
        ("nodes: 'gpu[02-03]', checks: [gpu.ecc]", "gpu.ecc", "gpu03", True),
        ("nodes: 'gpu[02-03]', checks: [gpu.ecc]", "gpu.ecc", "gpu04", False),
        ("nodes: 'gpu[02-03]', checks: [gpu.ecc]", "gpu.ecc_mode", "gpu03", False),
        ("nodes: gpu03, checks: [gpu.*, run.available]", "run.available", "gpu03", True),
        ("nodes: gpu03, checks: ['*']", "nccl.busbw", "gpu03", True),
        ("nodes: gpu03, checks: ['*']", "nccl.busbw", "", False),  # of the whole cluster, not of this node
        ("checks: [nccl.*]", "nccl.busbw", "", True),
    ],
)
def test_a_waiver_covers_the_checks_of_its_nodes(
    tmp_path: Path, entry: str, check: str, node: str, *, covered: bool
) -> None:
    found = waivers(tmp_path, f"{entry}, reason: known, until: 2027-01-31")
    assert bool(covering(found, check, node, DAY)) is covered
    assert covering(found, check, node, AFTER) is None  # expired


def test_a_failure_is_covered_where_each_part_of_it_is(tmp_path: Path) -> None:
    found = waivers(
        tmp_path,
        "checks: [os.drift/kernel, os.drift/limits *], reason: a, until: 2027-01-31",
        "checks: [os.drift/swap], nodes: gpu02, reason: b, until: 2027-01-31",
        "checks: ['gpu.*'], reason: c, until: 2027-01-31",
    )
    for node, check, parts, lines in (
        ("gpu01", "os.drift", ["kernel"], [3]),
        ("gpu01", "os.drift", ["kernel", "limits as"], [3]),
        ("gpu01", "os.drift", ["kernel", "taint"], []),
        ("gpu01", "os.drift", ["kernel", "swap"], []),
        ("gpu02", "os.drift", ["kernel", "swap"], [3, 4]),
        ("gpu01", "os.drift", [], []),
        ("gpu01", "gpu.count", ["GPUs"], [5]),
        ("gpu01", "gpu.count", [], [5]),
    ):
        used = covering_parts(found, check, node, parts, DAY)
        assert [int(one.at.rpartition(":")[2]) for one in used] == lines
        assert covering_parts(found, check, node, parts, AFTER) == ()


def test_the_first_waiver_that_holds_is_named_with_its_place(tmp_path: Path) -> None:
    found = waivers(
        tmp_path,
        "checks: [gpu.ecc], reason: over, until: 2026-12-31",
        "checks: [gpu.ecc], reason: 'driver, too old', ticket: OPS-7, until: 2027-01-31",
    )
    used = covering(found, "gpu.ecc", "gpu01", DAY)
    assert used is not None
    assert used.words == "OPS-7, until 2027-01-31: driver, too old"
    assert used.at == f"{tmp_path / 'prod.yaml'}:4"
    assert (found[0].words, found[0].as_dict(DAY)["ticket"]) == ("until 2026-12-31: over", "")


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ("checks: [gpu.ecc], until: 2027-01-31", "waivers[0].reason: is missing"),
        ("checks: [gpu.ecc], reason: x, until: 20270131", "waivers[0].until: must be a date like 2027-01-31"),
        ("checks: [], reason: x, until: 2027-01-31", "waivers[0].checks: is empty"),
        ("checks: ['*'], reason: x, until: 2027-01-31", "all checks on all nodes would accept any cluster"),
        ("checks: ['*/*'], reason: x, until: 2027-01-31", "all checks on all nodes would accept any cluster"),
        ("checks: [a.b], reason: x, until: 2027-01-31, node: gpu01", "did you mean 'nodes'?"),
    ],
)
def test_a_wrong_waiver_is_an_error_with_file_and_line(tmp_path: Path, entry: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        waivers(tmp_path, entry)
    assert str(caught.value).startswith(f"{tmp_path / 'prod.yaml'}:3: ")
    assert line in str(caught.value)
