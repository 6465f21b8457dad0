"""Which suites -m selects, by name or not, which items a run must judge, and which checks do not apply to a node."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plugin_helpers import FakeConfig, FakeItem, a_cluster, a_session, run_pytest

from pytest_gpucluster import suites_path
from pytest_gpucluster.config.loader import load_cluster
from pytest_gpucluster.config.models import Cluster, Group, Profile
from pytest_gpucluster.plugin.collection import WHY_NOT, Collection, ItemSelection, ignores, selects
from pytest_gpucluster.plugin.option_table import text_options
from pytest_gpucluster.report.describe import on_request_line
from pytest_gpucluster.report.proof import Required, read_required


@pytest.mark.parametrize(
    ("expression", "marks", "selected"),
    [
        ("", {"ray"}, True),
        ("ray", {"ray"}, True),
        ("ray", {"ddp"}, False),
        ("not slow", {"ray"}, True),
        ("not (ray or gpu)", {"ray"}, False),
        ("horovod and gloo", {"horovod", "gloo"}, True),
        ("xfail(reason='x') or ray", {"ray"}, True),
        ("ray and (", {"gpu"}, True),  # pytest refuses it
    ],
)
def test_an_expression_of_marks(expression: str, marks: set[str], selected: bool) -> None:
    assert selects(expression, marks) is selected


BOTH = ("gpu01", "gpu02")


def item(check: str, node: str) -> Any:
    suite, _, what = check.partition(".")
    made = FakeItem(node=node, name=f"test_{what}")
    made.path = Path(f"test_{suite}.py")
    return made


def required(items: list[Any], *more: str) -> tuple[list[Required], dict[str, Any]]:
    profile = Profile(name="p", description="p", source="p", required=("gpu.ecc*",))
    config: Any = FakeConfig()
    session = a_session(a_cluster("gpu[01-02]", profile=profile, required=more))
    event = ItemSelection(config, session).event(items)
    return sorted(read_required(event), key=lambda row: row.check), event


def test_the_proof_of_a_suite_is_required_and_what_cluster_file_and_profile_add() -> None:
    checks = [f"gpu.{what}" for what in ("count", "ecc_mode", "vbios", "clocks")]
    found, _ = required([item(check, node) for check in checks for node in BOTH], "gpu.vbios")
    assert [row.check for row in found] == ["gpu.count", "gpu.ecc_mode", "gpu.vbios"]
    assert {row.nodes for row in found} == {BOTH}


def test_a_rerun_must_judge_what_it_selects_on_the_nodes_of_its_items() -> None:
    found, event = required([item("gpu.clocks", "gpu02")])
    assert found == [Required("gpu", "gpu.clocks", 1, ("gpu02",))]
    assert (event["nodes"], event["sets"]) == (["gpu02"], [["gpu02"]])


def test_a_result_about_the_cluster_counts_for_the_nodes_of_its_suite() -> None:
    per_node = [item("kubernetes.labels", node) for node in BOTH]
    (found,), _ = required([item("kubernetes.api", ""), *per_node])
    assert (found.check, found.nodes, found.whole) == ("kubernetes.api", BOTH, True)
    together = item("controller.node_errors", "")
    together.fixturenames = ("gpucluster_fleet",)  # about all nodes, and without an item of each
    (found,), _ = required([item("controller.ping", ""), together])
    assert (found.check, found.nodes, found.whole) == ("controller.ping", BOTH, True)
    (alone,), _ = required([item("accounting.accounts", "")])
    assert alone.nodes == ("",)


def test_what_runs_on_request_is_one_line() -> None:
    event = {"on_request": {"slow": {"slurm": 1}, "intrusive": {"isolation": 8, "accounting": 3}}}
    assert on_request_line(event) == (
        "on request only: 1 slow check (--slow): slurm; 11 intrusive checks (--intrusive): accounting, isolation"
    )
    assert on_request_line({}) == ""


def test_a_suite_that_runs_on_request_is_left_out_and_listed() -> None:
    texts: dict[str, Any] = dict.fromkeys(attribute for _, attribute in text_options())
    config: Any = FakeConfig(Namespace(**texts, slow=False, intrusive=False, markexpr=""))
    config.hook = SimpleNamespace(pytest_deselected=lambda **_: None)
    config.pluginmanager = SimpleNamespace(has_plugin=lambda _: False)
    run, burnin = a_session(a_cluster("gpu[01-02]")), item("burnin.cpu", "gpu01")
    burnin.iter_markers = lambda: iter([pytest.mark.burnin.mark])
    items, collection = [item("gpu.count", "gpu01"), burnin], Collection(config, run)
    collection.pytest_collection_modifyitems(items)
    collected: Any = SimpleNamespace(items=items)
    collection.pytest_collection_finish(collected)
    assert on_request_line(run.selection or {}) == "on request only: suite burnin (-m burnin)"


def test_what_hardware_lacks_does_not_apply_to_its_nodes_and_what_the_file_says_to_all() -> None:
    words = {"description": "p", "source": "p"}
    t4 = Profile(name="t4", absent={"gpu.ecc*": "this card has no ECC memory"}, **words)
    groups = (Group(nodes="t4", profile=t4), Group(nodes="h200", profile=Profile(name="h200", **words)))
    session = a_session(Cluster(name="c", groups=groups, not_applicable={"os.load": "in use"}))
    texts = dict.fromkeys(attribute for _, attribute in text_options())
    config: Any = FakeConfig(Namespace(**texts, slow=False, intrusive=False, markexpr=""))
    checks = ("gpu.ecc_volatile", "gpu.count", "os.load")
    items = [item(check, node) for check in checks for node in ("t4", "h200", "")]
    Collection(config, session).pytest_collection_modifyitems(items)
    reasons = [str(one.stash.get(WHY_NOT, "")) for one in items]
    assert reasons == ["this card has no ECC memory", *[""] * 5, *["in use"] * 3]


ONE_NODE = "name: one\nnodes: localhost\nslurm: {scheduler: none}\n"


def test_suites_without_a_section_are_one_line_without_items_and_an_error_if_named(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        f"{ONE_NODE}ray: {{}}\nwaivers:\n  - {{checks: [gpu.vbios], reason: old, ticket: OPS-7, until: 2999-01-31}}\n"
    )
    config: Any = FakeConfig(Namespace(markexpr="", pyargs=False), [suites_path()], tmp_path)
    session = a_session(load_cluster(tmp_path / "one.yaml"))
    folders = {name: Path(suites_path()) / name for name in ("gpu", "ray", "ddp")}
    assert [name for name, folder in folders.items() if ignores(folder, config, session)] == ["ddp"]
    config.option.markexpr = "ddp"
    assert not ignores(folders["ddp"], config, session)
    options = (f"--cluster={tmp_path / 'one.yaml'}", "-p", "no:cacheprovider")
    listed = run_pytest(tmp_path, *options, "--collect-only", where=())
    (line,) = (it for it in listed.out.splitlines() if it.startswith("no section in the cluster file"))
    lacking = line.partition(", not tested: ")[2].split(", ")
    assert {"accounting", "ddp", "matrix", "mpi", "training"} <= set(lacking)
    assert not {"gpu", "os", "ray"} & set(lacking)
    assert "<SuiteFile test_ray.py>" in listed.out
    assert [name for name in lacking if f"<SuiteFile test_{name}.py>" in listed.out] == []
    named = run_pytest(tmp_path, *options, "-m", "ddp", where=())
    assert named.rc == 1, named.out
    assert "add `ddp:`" in named.out
    assert "NOT PROVED" in named.out
    assert "no section in the cluster file" not in named.out
    (waiver,) = named.event("start")["waivers"]
    assert (waiver["checks"], waiver["at"]) == (["gpu.vbios"], f"{tmp_path / 'one.yaml'}:6")
