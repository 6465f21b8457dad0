"""What the report draws of a subnet: switches by level, what is wrong at each link between two of them."""

from __future__ import annotations

from typing import Any

from ibfabric_helpers import Topology, rail_optimised, small

from pytest_gpucluster.report.page.html_subnet import subnet
from pytest_gpucluster.suites.ibfabric.judge import owned, rails_of_leaves
from pytest_gpucluster.suites.ibfabric.picture import MOST_SWITCHES, bad_links, picture_of
from pytest_gpucluster.suites.ibfabric.plan import parse_plan
from pytest_gpucluster.suites.ibfabric.wiring import compare, of_subnet

Picture = dict[str, list[list[Any]]]


def drawn(topology: Topology, planned: Topology | None = None) -> Picture:
    """Return the picture of a fabric; `planned`: its cabling plan."""
    facts = topology.facts()
    links = owned(facts, topology.ports())
    cables = parse_plan("plan", planned.text()).cables if planned else ()
    wrong = compare(cables, of_subnet(facts.subnet, {})).wrong
    return picture_of(facts, links, rails_of_leaves(links), wrong)


def pairs(found: Picture) -> dict[str, tuple[int, str, str]]:
    """Return {one - other: (links, what is wrong, kind)}."""
    names = [row[0] for row in found["switches"]]
    return {" - ".join(sorted((names[one], names[other]))): (*rest,) for one, other, *rest in found["links"]}


def remarks(found: Picture) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[int, str]]]:
    """Return {switch: (kind, what is wrong)} and {one - other: (links, kind)} of what has a remark."""
    switches = {name: (kind, wrong) for name, _, _, wrong, kind in found["switches"] if wrong}
    return switches, {pair: (count, kind) for pair, (count, wrong, kind) in pairs(found).items() if wrong}


def test_bad_links_and_leaves_say_what_is_wrong() -> None:
    topology = small()
    topology.slow(("leaf02", 33))
    topology.cut(("leaf03", 34))
    found = drawn(topology)
    wrong = [wrong for _, wrong, _ in pairs(found).values() if wrong]
    assert wrong == ["leaf02 port 33 - spine01 port 3: 4x EDR (100 Gb/s)"]
    assert remarks(found)[0] == {"leaf03": ("bad", "7 uplinks (1 to spine01, else 2)")}
    assert [check for check, _, _ in bad_links(topology.facts())] == ["ibfabric.switch_links"]
    picture = subnet(found)
    assert (picture.count('class="link bad"'), picture.count("part bad")) == (1, 1)


def test_a_planned_connection_without_any_link_is_drawn() -> None:
    topology = small()
    topology.cut(("leaf03", 37))
    topology.cut(("leaf03", 38))
    assert remarks(drawn(topology, small()))[1] == {"leaf03 - spine03": (0, "missing")}


def test_without_a_plan_cables_at_another_rail_are_a_remark_at_the_leaf() -> None:
    topology = small()
    topology.swap(("gpu02 mlx5_0", 1), ("gpu02 mlx5_1", 1))
    ports = {"leaf01": "gpu02 mlx5_1 port 1 (0000:10:00.0)", "leaf02": "gpu02 mlx5_0 port 1 (0000:00:00.0)"}
    expected = {leaf: ("misplaced", f"{port} is of another rail") for leaf, port in ports.items()}
    assert remarks(drawn(topology)) == (expected, {})


def test_more_switches_than_fit_are_not_drawn() -> None:
    assert drawn(rail_optimised(nodes=4, hcas=MOST_SWITCHES)) == {}
    assert len(drawn(rail_optimised(nodes=4, hcas=MOST_SWITCHES - 4))["switches"]) == MOST_SWITCHES
    assert drawn(rail_optimised(nodes=4, hcas=1, spines=0)) == {}
