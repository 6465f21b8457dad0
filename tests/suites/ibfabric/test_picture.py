"""What the report draws of a subnet: switches by level, what is wrong at each link between two of them."""

from __future__ import annotations

from ibfabric_helpers import Topology, rail_optimised

from pytest_gpucluster.report.html_subnet import subnet
from pytest_gpucluster.suites.ibfabric.judge import owned, rails_of_leaves
from pytest_gpucluster.suites.ibfabric.picture import MOST_SWITCHES, bad_links, picture_of
from pytest_gpucluster.suites.ibfabric.plan import parse_plan
from pytest_gpucluster.suites.ibfabric.wiring import compare, of_subnet


def drawn(topology: Topology, planned: Topology | None = None) -> dict[str, list[list[object]]]:
    """Return the picture of a fabric; `planned`: its cabling plan."""
    facts = topology.facts()
    links = owned(facts, topology.ports())
    cables = parse_plan("plan", planned.text()).cables if planned else ()
    wrong = compare(cables, of_subnet(facts.subnet, {})).wrong
    return picture_of(facts, links, rails_of_leaves(links), wrong)


def remarks(
    found: dict[str, list[list[object]]],
) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[object, object]]]:
    """Return {switch: (kind, what is wrong)} and {one - other: (links, kind)} of what has a remark."""
    names = [str(row[0]) for row in found["switches"]]
    switches = {str(row[0]): (str(row[4]), str(row[3])) for row in found["switches"] if row[3]}
    links = {
        " - ".join(sorted((names[one], names[other]))): (count, kind)  # type: ignore[call-overload]
        for one, other, count, wrong, kind in found["links"]
        if wrong
    }
    return switches, links


def three_levels() -> Topology:
    topology = rail_optimised(nodes=4, hcas=4, spines=2)
    for spine in (1, 2):
        topology.connect((f"spine{spine:02}", 64), ("core01", spine))
    return topology


def test_switches_stand_above_the_leaves_that_they_connect() -> None:
    found = drawn(three_levels())
    assert {(name, level, hosts) for name, level, hosts, *_ in found["switches"]} == {
        *((f"leaf{n:02}", 0, 4) for n in range(1, 5)),
        ("spine01", 1, 0),
        ("spine02", 1, 0),
        ("core01", 2, 0),
    }
    names = [row[0] for row in found["switches"]]
    pairs = {frozenset((names[one], names[other])): count for one, other, count, *_ in found["links"]}  # type: ignore[call-overload]
    assert (pairs[frozenset(("leaf01", "spine02"))], pairs[frozenset(("spine01", "core01"))]) == (2, 1)
    assert {wrong for *_, wrong, _ in (*found["switches"], *found["links"])} == {""}


def test_bad_links_and_leaves_say_what_is_wrong() -> None:
    topology = rail_optimised(nodes=4, hcas=4)
    topology.slow(("leaf02", 33))
    topology.cut(("leaf03", 34))
    found = drawn(topology)
    assert [wrong for *_, wrong, _ in found["links"] if wrong] == [
        "leaf02 port 33 - spine01 port 3: 4x EDR (100 Gb/s)"
    ]
    assert {name: wrong for name, _, _, wrong, _ in found["switches"] if wrong} == {
        "leaf03": "7 uplinks (1 to spine01, else 2)"
    }
    assert [check for check, _, _ in bad_links(topology.facts())] == ["ibfabric.switch_links"]
    picture = subnet(found)
    assert (picture.count('class="link bad"'), picture.count("part bad")) == (1, 1)


def test_swapped_missing_and_misplaced_cables_of_the_plan_are_drawn_apart() -> None:
    planned, topology = rail_optimised(nodes=4, hcas=4), rail_optimised(nodes=4, hcas=4)
    topology.swap(("leaf01", 33), ("leaf02", 35))
    topology.cut(("leaf03", 37))
    topology.cut(("leaf04", 39))
    topology.connect(("leaf04", 39), ("spine01", 60))
    topology.swap(("gpu02 mlx5_0", 1), ("gpu02 mlx5_1", 1))
    switches, links = remarks(drawn(topology, planned))
    assert {name: kind for name, (kind, _) in switches.items()} == {
        "leaf01": "swapped",
        "leaf02": "swapped",
        "leaf03": "bad",  # an uplink less than the others
    }
    assert links == {
        "leaf01 - spine01": (1, "swapped"),
        "leaf02 - spine02": (1, "swapped"),
        "leaf01 - spine02": (3, "swapped"),
        "leaf02 - spine01": (3, "swapped"),
        "leaf03 - spine03": (1, "missing"),
        "leaf04 - spine04": (1, "missing"),
        "leaf04 - spine01": (3, "misplaced"),
    }


def test_a_planned_connection_without_any_link_is_drawn() -> None:
    planned, topology = rail_optimised(nodes=4, hcas=4), rail_optimised(nodes=4, hcas=4)
    topology.cut(("leaf03", 37))
    topology.cut(("leaf03", 38))
    assert remarks(drawn(topology, planned))[1] == {"leaf03 - spine03": (0, "missing")}


def test_without_a_plan_cables_at_another_rail_are_a_remark_at_the_leaf() -> None:
    topology = rail_optimised(nodes=4, hcas=4)
    topology.swap(("gpu02 mlx5_0", 1), ("gpu02 mlx5_1", 1))
    assert remarks(drawn(topology)) == (
        {
            "leaf01": ("misplaced", "gpu02 mlx5_1 port 1 (0000:10:00.0) is of another rail"),
            "leaf02": ("misplaced", "gpu02 mlx5_0 port 1 (0000:00:00.0) is of another rail"),
        },
        {},
    )


def test_more_switches_than_fit_are_not_drawn() -> None:
    assert drawn(rail_optimised(nodes=4, hcas=MOST_SWITCHES)) == {}
    assert len(drawn(rail_optimised(nodes=4, hcas=MOST_SWITCHES - 4))["switches"]) == MOST_SWITCHES
    assert drawn(rail_optimised(nodes=4, hcas=1, spines=0)) == {}
