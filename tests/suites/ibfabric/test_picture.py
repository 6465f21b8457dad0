"""What the report draws of a subnet: switches by level, what is wrong at each link between two of them."""

from __future__ import annotations

from ibfabric_helpers import Topology, rail_optimised

from pytest_gpucluster.report.html_subnet import subnet
from pytest_gpucluster.suites.ibfabric.judge import owned
from pytest_gpucluster.suites.ibfabric.picture import MOST_SWITCHES, bad_links, picture_of


def drawn(topology: Topology) -> dict[str, list[list[object]]]:
    facts = topology.facts()
    return picture_of(facts, owned(facts, topology.ports()))


def three_levels() -> Topology:
    topology = rail_optimised(nodes=4, hcas=4, spines=2)
    for spine in (1, 2):
        topology.connect((f"spine{spine:02}", 64), ("core01", spine))
    return topology


def test_switches_stand_above_the_leaves_that_they_connect() -> None:
    found = drawn(three_levels())
    assert {(name, level, hosts) for name, level, hosts, _ in found["switches"]} == {
        *((f"leaf{n:02}", 0, 4) for n in range(1, 5)),
        ("spine01", 1, 0),
        ("spine02", 1, 0),
        ("core01", 2, 0),
    }
    names = [row[0] for row in found["switches"]]
    pairs = {frozenset((names[one], names[other])): count for one, other, count, _ in found["links"]}  # type: ignore[call-overload]
    assert (pairs[frozenset(("leaf01", "spine02"))], pairs[frozenset(("spine01", "core01"))]) == (2, 1)
    assert {wrong for *_, wrong in (*found["switches"], *found["links"])} == {""}


def test_bad_links_and_leaves_say_what_is_wrong() -> None:
    topology = rail_optimised(nodes=4, hcas=4)
    topology.slow(("leaf02", 33))
    topology.cut(("leaf03", 34))
    found = drawn(topology)
    assert [wrong for *_, wrong in found["links"] if wrong] == [
        "leaf02 port 33 - spine01 port 3: 4x EDR (100 Gb/s)"
    ]
    assert {name: wrong for name, _, _, wrong in found["switches"] if wrong} == {
        "leaf03": "7 uplinks (1 to spine01, else 2)"
    }
    assert [check for check, _, _ in bad_links(topology.facts())] == ["ibfabric.switch_links"]
    picture = subnet(found)
    assert (picture.count('class="link"'), picture.count("part bad")) == (1, 1)


def test_more_switches_than_fit_are_not_drawn() -> None:
    assert drawn(rail_optimised(nodes=4, hcas=MOST_SWITCHES)) == {}
    assert len(drawn(rail_optimised(nodes=4, hcas=MOST_SWITCHES - 4))["switches"]) == MOST_SWITCHES
    assert drawn(rail_optimised(nodes=4, hcas=1, spines=0)) == {}
