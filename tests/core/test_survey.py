"""What most nodes of every group have: the values of a drafted cluster file."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.core.survey import Agreed, Survey

SIX = Survey(groups=(("g1", "g2", "g3", "g4", "g5", "g6"),))
TWO_GROUPS = Survey(groups=(("g1", "g2", "g3", "g4"), ("c1", "c2")))


def have(value: str, *nodes: str) -> dict[str, str]:
    return dict.fromkeys(nodes, value)


@pytest.mark.parametrize(
    ("survey", "values", "agreed"),
    [
        (SIX, have("a", "g1", "g2", "g3", "g4", "g5", "g6"), Agreed("a", "6 of 6 nodes")),
        (SIX, have("a", "g1", "g2", "g3", "g4") | have("b", "g5", "g6"), Agreed("a", "4 of 6 nodes")),
        (SIX, have("a", "g1", "g2", "g3") | have("b", "g4", "g5", "g6"), None),
        (SIX, have("a", "g1", "g2", "g3"), None),  # the others did not provide it
        (SIX, {}, None),
        (Survey(groups=(("g1",),)), have("a", "g1"), Agreed("a", "1 of 1 node")),
        (TWO_GROUPS, have("a", "g1", "g2", "g3", "c1", "c2"), Agreed("a", "5 of 6 nodes")),
        # five of six nodes, but no node of the other group
        (TWO_GROUPS, have("a", "g1", "g2", "g3", "g4") | have("b", "c1", "c2"), None),
    ],
)
def test_value_of_two_thirds_of_every_group(survey: Survey, values: dict[str, str], agreed: Agreed[str] | None) -> None:
    assert survey.agreed(values) == agreed


def test_each_name_is_agreed_by_itself() -> None:
    values = {node: {"same": "1", "own": node, "some": "1"} for node in ("g1", "g2", "g3")}
    del values["g3"]["some"]
    found = Survey(groups=(("g1", "g2", "g3"),)).each_agreed(values)
    assert found == {"same": Agreed("1", "3 of 3 nodes"), "some": Agreed("1", "2 of 3 nodes")}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_token", "x"),
        ("mount", "https://user:geheim@nas/export"),
        ("x", "0123456789abcdef0123456789abcdef"),
        ("path", "/local/g1/data"),
        ("g1", "x"),
        ("x", "\x1b[31m"),
        ("x", "y" * 300),
    ],
)
def test_secrets_names_of_nodes_and_odd_texts_are_not_drafted(name: str, value: str) -> None:
    survey = Survey(groups=(("g1.cluster.example",),))
    assert survey.agreed({"g1.cluster.example": value})
    assert survey.each_agreed({"g1.cluster.example": {name: value}}) == {}


def test_facts_are_those_of_nodes_that_could_provide_them() -> None:
    def read(answer: Answer) -> str:
        if not answer.out:
            raise NotAvailable("absent")
        return answer.out

    probe = Probe("kernel", "uname -r", read)
    answers = {"g1": Answer("g1", 0, b"6.8"), "g2": Answer("g2", 0), "g3": Answer("g3", None, problem="timed out")}
    assert Survey(answers={"uname -r": answers}).facts(probe) == {"g1": "6.8"}
    assert Survey().facts(probe) == {}
