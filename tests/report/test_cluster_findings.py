"""What all nodes fail alike is one finding of the cluster in everything that is made of a run's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from report_helpers import a_run, failing, junit_tree, passing

from pytest_gpucluster.report.cluster_findings import settle
from pytest_gpucluster.report.run_model import Run, read_run
from pytest_gpucluster.report.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Iterable

FOUR = ("gpu01", "gpu02", "gpu03", "gpu04")
NOEXEC = {"part": "/tmp", "measured": "noexec", "expected": "programs can be run"}
LOST = {"part": "GPU 3 (0000:1b:00.0)", "measured": "GPU is lost", "expected": "answers", "action": "reboot"}


def events(results: Iterable[dict[str, Any]], nodes: tuple[str, ...] = FOUR) -> list[dict[str, Any]]:
    run = a_run(results, nodes=nodes, finish=1)
    run[1]["places"] = [{"group": "gpu[01-04]", "nodes": list(nodes)}]
    return run


def noexec(node: str, *more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    text = "os.tmp: bad\naction:       drain\nreproduce:    mount"
    return failing(
        node,
        check="os.tmp",
        findings=[NOEXEC, *more],
        cause="a mount option",
        hint="mount",
        text=text,
        **fields,
    )


def actions(run: Run) -> dict[str, list[str]]:
    return {result.node: [verdict.action for verdict in result.verdicts] for result in run.results}


def test_all_nodes_alike_are_one_block_and_no_node_failed() -> None:
    run = read_run(events([noexec(node, annotation=["Slurm state: IDLE"]) for node in FOUR]))
    (group,) = run.groups.values()
    assert group.slurm == {"IDLE": list(FOUR)}
    assert (group.action, list(group.nodes)) == ("configure", list(FOUR))
    assert group.cause.startswith("all 4 nodes that were judged in group gpu[01-04] fail alike")
    assert group.cause.endswith("of one node alone: a mount option")
    assert [run.state(node) for node in FOUR] == ["not proved"] * 4
    assert run.totals["failed"] == 4
    assert judge(run).outcome == "rejected"
    assert "1 finding of the cluster: the nodes fail alike, and none is at fault." in judge(run).sentences
    assert run.proofs.of("failed") == ()
    assert actions(run) == {node: ["configure"] for node in FOUR}
    assert all("action:       configure: a finding of the cluster" in it.text for it in run.results)


def test_one_sick_node_stays_a_failure_of_that_node() -> None:
    run = read_run(
        events([noexec("gpu02"), *(passing(node, check="os.tmp") for node in FOUR if node != "gpu02")])
    )
    assert (run.common, run.state("gpu02"), actions(run)["gpu02"]) == ([], "failed", ["drain"])


def test_a_sick_node_keeps_its_own_finding_and_action_beside_a_common_one() -> None:
    sick = noexec("gpu03", LOST)
    sick["verdicts"][0]["findings"][0]["action"] = "drain"
    run = read_run(events([sick if node == "gpu03" else noexec(node) for node in FOUR]))
    own, common = sorted(run.groups.values(), key=lambda group: len(group.nodes))
    assert (own.action, list(own.nodes), [row.found.measured for row in own.rows.values()]) == (
        "drain", ["gpu03"], ["GPU is lost"],
    )  # fmt: skip
    assert (common.action, list(common.nodes)) == ("configure", list(FOUR))
    assert actions(run) == {
        "gpu01": ["configure"],
        "gpu02": ["configure"],
        "gpu03": ["reboot"],
        "gpu04": ["configure"],
    }
    assert [run.state(node) for node in FOUR] == ["not proved", "not proved", "failed", "not proved"]


def test_a_failure_without_findings_is_left_as_it_was() -> None:
    bare = [failing(node, check="site.fit", verdicts=[], message="assert 1 == 2") for node in FOUR]
    before = read_run(a_run(bare, nodes=FOUR, finish=1)).groups
    assert read_run(events(bare)).groups == before


def test_the_live_model_and_the_log_agree_and_settling_twice_changes_nothing() -> None:
    log = events([noexec(node) for node in FOUR])
    live = Run()
    for event in log:
        live.take(event)
    assert live.common == []
    settle(live)
    settle(live)
    assert live == read_run(log)
    assert live.counts["gpu01"]["os"] == {"failed": 0, "not proved": 1}


def test_junit_has_the_action_and_the_cause_in_each_case() -> None:
    tree = junit_tree(events([noexec(node) for node in FOUR]))
    cases = [case for case in tree.iter("testcase") if case.find("failure") is not None]
    assert len(cases) == 4
    for case in cases:
        properties = {it.get("name"): it.get("value") for it in case.iter("property")}
        assert properties["action"] == "configure"
        assert "a finding of the cluster" in (case.find("failure").text or "")  # type: ignore[union-attr]


def test_the_only_node_keeps_a_repair_beside_what_its_setting_explains() -> None:
    """os.mounts compares with os.mounts; an I/O error of a mount is no setting."""
    alone = noexec("gpu01", LOST | {"action": "drain"})
    alone["verdicts"][0] |= {"action": "drain", "setting": "os.mounts"}
    alone["verdicts"][0]["findings"][0] = NOEXEC | {"action": "configure"}
    run = read_run(events([alone], nodes=("gpu01",)))
    assert [(one.check, list(one.nodes)) for one in run.common] == [("os.tmp", ["gpu01"])]
    assert (actions(run)["gpu01"], run.state("gpu01")) == (["drain"], "failed")
    alone["verdicts"][0]["findings"] = [NOEXEC | {"action": "monitor"}]
    run = read_run(events([alone], nodes=("gpu01",)))
    assert (actions(run)["gpu01"], run.state("gpu01")) == (["configure"], "not proved")
    assert "1 finding of the cluster: a setting explains what the node fails." in judge(run).sentences
