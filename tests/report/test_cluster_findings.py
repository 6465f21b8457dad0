"""What all nodes fail alike is one finding of the cluster in everything that is made of a run's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from report_helpers import a_run, failing, junit_tree, passing

from pytest_gpucluster.report.cluster_findings import settle
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.run_model import Run
from pytest_gpucluster.report.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Iterable

FOUR = ("gpu01", "gpu02", "gpu03", "gpu04")
NOEXEC = {"part": {"name": "/tmp"}, "measured": "noexec", "expected": "programs can be run"}
ALONE = "1 finding of the cluster: a setting explains what the only node of a group fails."
LOST = {"part": {"name": "GPU 3 (0000:1b:00.0)"}, "measured": "GPU is lost", "expected": "answers", "action": "reboot"}


def run_of(results: Iterable[dict[str, Any]], nodes: tuple[str, ...] = FOUR) -> tuple[Run, list[dict[str, Any]]]:
    """Return the run of these results in one group of nodes, and its events."""
    events = a_run(results, nodes=nodes, finish=1)
    events[1]["places"] = [{"group": "gpu[01-04]", "nodes": list(nodes)}]
    return read_run(events), events


def noexec(node: str, *more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    about = {"check": "os.tmp", "cause": "a mount option", "hint": "mount"}
    return failing(node, findings=[NOEXEC, *more], **about, **fields)


def actions(run: Run) -> dict[str, list[str]]:
    return {result.node: [verdict.action for verdict in result.verdicts] for result in run.results}


def test_the_hint_names_the_factor_that_tells_the_nodes_from_the_others() -> None:
    _, events = run_of([*(noexec(node) for node in FOUR[:3]), passing(FOUR[3], check="os.tmp")])
    loops = {"B": "gpu[01-03,99]", "A": "gpu04"}  # gpu99 was not judged
    events[1]["factors"] = {"loop": loops, "rack": {"R1": "gpu[01-04]"}, "feed": {"F1": "gpu[01-02]"}}
    (group,) = read_run(events).groups.values()
    assert "check what the nodes share, first loop B" in group.hint
    assert "rack" not in group.hint
    assert "feed" not in group.hint


def test_all_nodes_alike_are_one_block_and_no_node_failed() -> None:
    run, events = run_of([noexec(node, annotation={"state": "IDLE"}) for node in FOUR])
    (group,) = run.groups.values()
    assert (group.action, list(group.nodes), group.slurm) == ("configure", [*FOUR], {"IDLE": [*FOUR]})
    assert group.cause.startswith("all 4 nodes that were judged in group gpu[01-04] fail alike")
    assert group.cause.endswith("of one node alone: a mount option")
    assert [run.state(node) for node in FOUR] == ["not proved"] * 4
    assert (run.totals["failed"], judge(run).outcome, run.proofs.of("failed")) == (4, "rejected", ())
    assert "1 finding of the cluster: the nodes fail alike: look first at what they share." in judge(run).sentences
    assert actions(run) == {node: ["configure"] for node in FOUR}
    for it in run.results:
        first, cause, *_ = it.text.splitlines()
        assert first == f"os.tmp on {it.node}: /tmp: measured noexec, expected programs can be run"
        assert cause == f"likely cause: {group.cause}"
        assert it.text.endswith("action:       configure\nSlurm state: IDLE")
    cases = [case for case in junit_tree(events).iter("testcase") if case.find("failure") is not None]
    assert len(cases) == 4
    for case in cases:
        assert {it.get("name"): it.get("value") for it in case.iter("property")}["action"] == "configure"
        assert group.cause in (case.findtext("failure") or "")
    # the live model agrees, and settling twice changes nothing
    live = Run()
    for event in events:
        live.take(event)
    assert live.common == []
    settle(live)
    settle(live)
    assert live == read_run(events)
    assert live.counts["gpu01"]["os"] == {"failed": 0, "not proved": 1}


def test_one_sick_node_stays_a_failure_of_that_node() -> None:
    run, _ = run_of([noexec("gpu02"), *(passing(f"gpu0{n}", check="os.tmp") for n in (1, 3, 4))])
    assert (run.common, run.state("gpu02"), actions(run)["gpu02"]) == ([], "failed", ["drain"])


def test_a_sick_node_keeps_its_own_finding_and_action_beside_a_common_one() -> None:
    sick = noexec("gpu03", LOST)
    sick["verdicts"][0]["findings"][0]["action"] = "drain"
    run, _ = run_of([sick if node == "gpu03" else noexec(node) for node in FOUR])
    own, common = sorted(run.groups.values(), key=lambda group: len(group.nodes))
    assert (own.action, list(own.nodes)) == ("drain", ["gpu03"])
    assert [row.found.measured for row in own.rows.values()] == ["GPU is lost"]
    assert (common.action, list(common.nodes)) == ("configure", list(FOUR))
    assert actions(run) == {**{node: ["configure"] for node in FOUR}, "gpu03": ["reboot"]}
    assert [run.state(node) for node in FOUR] == ["not proved", "not proved", "failed", "not proved"]


def test_a_failure_without_findings_is_left_as_it_was() -> None:
    bare = [failing(node, check="site.fit", verdicts=[], message="assert 1 == 2") for node in FOUR]
    assert run_of(bare)[0].groups == read_run(a_run(bare, nodes=FOUR, finish=1)).groups


def test_the_only_node_keeps_a_repair_beside_what_its_setting_explains() -> None:
    """os.mounts compares with os.mounts; an I/O error of a mount is no setting."""
    alone = noexec("gpu01", LOST | {"action": "drain"})
    alone["verdicts"][0] |= {"action": "drain", "setting": "os.mounts"}
    alone["verdicts"][0]["findings"][0] = NOEXEC | {"action": "configure"}
    run, _ = run_of([alone], nodes=("gpu01",))
    assert [(one.check, list(one.nodes)) for one in run.common] == [("os.tmp", ["gpu01"])]
    assert (actions(run)["gpu01"], run.state("gpu01")) == (["drain"], "failed")
    alone["verdicts"][0]["findings"] = [NOEXEC | {"action": "monitor"}]
    run, _ = run_of([alone], nodes=("gpu01",))
    assert (actions(run)["gpu01"], run.state("gpu01")) == (["configure"], "not proved")
    assert ALONE in judge(run).sentences


def test_a_node_alone_in_its_group_fails_like_no_other() -> None:
    """Beside a larger group whose nodes do fail alike: each finding has the sentence that is true of it."""
    results = [noexec(node) for node in (*FOUR, "big01")]
    results[-1]["verdicts"][0] |= {"setting": "os.mounts", "findings": [NOEXEC | {"action": "configure"}]}
    events = a_run(results, nodes=(*FOUR, "big01"), finish=1)
    events[1]["places"] = [{"group": "gpu[01-04]", "nodes": [*FOUR]}, {"group": "big01", "nodes": ["big01"]}]
    results[0]["verdicts"][0]["findings"] = [NOEXEC | {"part": {"name": "/var"}}]  # else all groups are alike
    run = read_run(events)
    sentences = judge(run).sentences
    assert sorted(len(one.nodes) for one in run.common) == [1, 3]
    assert "1 finding of the cluster: the nodes fail alike: look first at what they share." in sentences
    assert ALONE in sentences
