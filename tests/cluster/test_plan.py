"""Which nodes a run is to judge, and why some cannot be: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster.plan import Plan, Problem, ProblemKind, Selection, judge_node, make_plan, shares
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, parse_nodes
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.config.models import Cluster, Group, Profile, SlurmConfig
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = Profile(name="plain", description="of a test", source="none")


def _cluster(*groups: tuple[str, str | None], **slurm: Any) -> Cluster:
    made = tuple(Group(nodes=nodes, profile=PLAIN, partition=partition) for nodes, partition in groups)
    return Cluster(name="lab", groups=made, slurm=SlurmConfig(**slurm))


def _nodes(**states: str) -> dict[str, NodeInfo]:
    lines = [f"NodeName={name} CPUTot=4 Gres=gpu:h200:8 State={state}" for name, state in states.items()]
    return parse_nodes("\n".join(lines))


LAB = _cluster(("gpu[01-03]", None))
IDLE = _nodes(gpu01="IDLE", gpu02="IDLE", gpu03="IDLE")


def test_all_nodes_of_the_file_are_selected_in_its_order() -> None:
    plan = make_plan(_cluster(("gpu[02-03]", None), ("gpu01", None)), IDLE, Selection())
    assert plan == Plan(("gpu02", "gpu03", "gpu01"))
    assert plan.testable == plan.selected
    assert [kind.value for kind in ProblemKind] == ["unavailable", "busy", "lost", "cut"]
    known = _nodes(gpu01="IDLE", gpu02="IDLE")  # one that Slurm lacks is a problem and stays selected
    plan = make_plan(LAB, known, Selection())
    assert (plan.selected, plan.testable) == (("gpu01", "gpu02", "gpu03"), ("gpu01", "gpu02"))
    assert plan.problems["gpu03"].kind is ProblemKind.UNAVAILABLE
    assert "slurm.conf" in plan.problems["gpu03"].text


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN", "ALLOCATED+DRAIN"])
@pytest.mark.parametrize("wait", [True, False])
def test_a_bad_node_is_never_waited_for(state: str, *, wait: bool) -> None:
    problem = judge_node("gpu01", _nodes(gpu01=state), wait=wait)
    assert problem is not None
    assert problem.kind is ProblemKind.UNAVAILABLE


@pytest.mark.parametrize("state", ["ALLOCATED", "MIXED", "IDLE+COMPLETING"])
def test_a_busy_node_is_left_out_unless_it_was_asked_for(state: str) -> None:
    busy = _nodes(gpu01=state)
    problem = judge_node("gpu01", busy, wait=False)
    assert problem == Problem(ProblemKind.BUSY, busy["gpu01"].why_unavailable())
    assert judge_node("gpu01", busy, wait=True) is judge_node("gpu02", IDLE, wait=False) is None
    named = make_plan(LAB, IDLE | busy, Selection(nodes=("gpu01",)))
    assert (named.testable, named.wait) == (("gpu01",), True)
    every = make_plan(LAB, IDLE | busy, Selection())
    assert (every.testable, every.wait) == (("gpu02", "gpu03"), False)


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (Selection(nodes=("gpu01", "gpu07")), "--nodes: gpu07 not in cluster lab"),
        (Selection(exclude=("gpu01", "gpu02", "gpu03")), r"--exclude-nodes leaves no node of gpu\[01-03\]"),
        (Selection(nodes=("gpu01",), exclude=("gpu01",)), "--exclude-nodes leaves no node of gpu01 "),
        (Selection(exclude=("gpu07",)), "--exclude-nodes: gpu07 not in cluster lab"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(selection: Selection, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_plan(LAB, IDLE, selection)


@pytest.mark.parametrize(
    ("nodes", "exclude", "words"),
    [
        ("gpu[1-", None, "--nodes: not a hostlist"),
        ("", None, "--nodes: names no node"),
        (None, " ", "--exclude-nodes: names no node"),
    ],
)
def test_selection_names_the_option_that_is_wrong(nodes: str | None, exclude: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words}"):
        Selection.parse(nodes, exclude)
    assert Selection.parse("gpu[03,01]", "gpu02") == Selection(("gpu01", "gpu03"), ("gpu02",))
    assert Selection.parse(None, None) == Selection()


def test_groups_share_an_allocation_where_partition_and_gpus_are_the_same() -> None:
    cluster = _cluster(("gpu01", None), ("gpu02", "big"), ("gpu03", None), partition="batch")
    found = shares(cluster, IDLE, ("gpu01", "gpu02", "gpu03"))
    assert found == {("batch", 8): ("gpu01", "gpu03"), ("big", 8): ("gpu02",)}
    fewer = IDLE | parse_nodes("NodeName=gpu03 CPUTot=4 Gres=gpu:h200:4 State=IDLE")
    assert shares(cluster, fewer, ("gpu01", "gpu03")) == {("batch", 8): ("gpu01",), ("batch", 4): ("gpu03",)}
    assert shares(LAB, IDLE, ("gpu02",)) == {(None, 8): ("gpu02",)}


def test_a_reservation_is_what_is_tested() -> None:
    cluster = _cluster(("gpu[01-03]", None), reservation="night")
    plan = make_plan(cluster, IDLE, Selection(), reserved={"gpu03", "gpu02", "other"})
    assert plan == Plan(("gpu02", "gpu03"))
    assert make_plan(cluster, IDLE, Selection()) == Plan(("gpu01", "gpu02", "gpu03"))
    with pytest.raises(ConfigError, match="reservation night holds no node of cluster lab"):
        make_plan(cluster, IDLE, Selection(), reserved={"other"})
    nodes = IDLE | _nodes(gpu01="ALLOCATED", gpu03="DOWN")
    named = make_plan(cluster, nodes, Selection(nodes=("gpu01", "gpu02", "gpu03")), reserved={"gpu01"})
    assert (named.wait, named.testable, set(named.problems)) == (True, ("gpu01",), {"gpu02", "gpu03"})
    assert named.problems["gpu02"] == Problem(ProblemKind.UNAVAILABLE, "not in reservation night")
    assert "DOWN" in named.problems["gpu03"].text


def test_a_node_on_trial_is_no_problem() -> None:
    nodes = IDLE | _nodes(gpu01="IDLE+DRAIN", gpu02="IDLE+DRAIN")
    assert list(make_plan(LAB, nodes, Selection(), to_retest=("gpu01",)).problems) == ["gpu02"]


def test_nodes_that_only_a_section_names_are_judged_and_never_allocated(tmp_path: Path) -> None:
    file = tmp_path / "both.yaml"
    section = "kubernetes: {nodes: 'gpu[02-03]', profile: dgx-a100}\n"
    file.write_text(f"nodes: gpu[01-02]\nprofile: dgx-h100\n{section}")
    cluster = load_cluster(file)
    plan = make_plan(cluster, _nodes(gpu01="IDLE", gpu02="IDLE"), Selection())
    assert plan.selected == plan.judged == ("gpu01", "gpu02", "gpu03")
    assert plan.testable == ("gpu01", "gpu02")
    assert cluster.group_of("gpu03").profile.name == "dgx-a100"
    assert not cluster.why_no_slurm
    over_ssh = cluster.model_copy(update={"access": "ssh"})
    assert make_plan(over_ssh, {}, Selection()).testable == plan.selected


def test_without_slurm_it_is_not_asked(tmp_path: Path) -> None:
    assert make_plan(_cluster(("gpu01", None), scheduler="none"), {}, Selection()) == Plan(("gpu01",))
    file = tmp_path / "k8s.yaml"
    file.write_text("kubernetes: {nodes: 'gpu[01-02]', profile: dgx-h100}\n")
    cluster = load_cluster(file)
    assert "only the section `kubernetes`" in cluster.why_no_slurm
    assert make_plan(cluster, {}, Selection()).testable == ()
