"""Which suites -m selects, by name or not, and which items a run must judge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plugin_helpers import run_pytest

from pytest_gpucluster import suites_path
from pytest_gpucluster.config.loader import load_cluster
from pytest_gpucluster.plugin.collection import Selection, ignores, on_request_line, selects
from pytest_gpucluster.report.proof import Required


@pytest.mark.parametrize(
    ("expression", "marks", "selected"),
    [
        ("", {"ray"}, True),
        ("ray", {"ray"}, True),
        ("ray", {"ddp"}, False),
        ("ray or gpu", {"gpu"}, True),
        ("not slow", {"ray"}, True),
        ("not (ray or gpu)", {"ray"}, False),
        ("horovod and gloo", {"horovod", "gloo"}, True),
        ("xfail(reason='x') or ray", {"ray"}, True),
        ("ray and (", {"gpu"}, True),  # pytest refuses it
    ],
)
def test_an_expression_of_marks(expression: str, marks: set[str], selected: bool) -> None:
    assert selects(expression, marks) is selected


def rows(*counts: tuple[str, str, bool, tuple[str, ...]], required: tuple[str, ...] = ()) -> list[Required]:
    profile = SimpleNamespace(required=("gpu.ecc*",))
    nodes = {"gpu01": SimpleNamespace(profile=profile), "gpu02": SimpleNamespace(profile=profile)}
    session: Any = SimpleNamespace(cluster=SimpleNamespace(required=required), nodes=nodes)
    config: Any = SimpleNamespace()
    found = Selection(config, session)._rows(
        {(suite, check, whole): Counter(on) for suite, check, whole, on in counts}
    )
    return sorted(found, key=lambda row: row.check)


BOTH = ("gpu01", "gpu02")


def test_the_proof_of_a_suite_is_required_and_what_cluster_file_and_profile_add() -> None:
    items = [("gpu", f"gpu.{what}", False, BOTH) for what in ("count", "ecc_mode", "vbios", "clocks")]
    found = rows(*items, required=("gpu.vbios",))
    assert [row.check for row in found] == ["gpu.count", "gpu.ecc_mode", "gpu.vbios"]
    assert {row.nodes for row in found} == {BOTH}


def test_a_rerun_without_the_proof_must_judge_what_it_selects() -> None:
    assert rows(("gpu", "gpu.clocks", False, ("gpu02",))) == [Required("gpu", "gpu.clocks", 1, ("gpu02",))]


def test_a_result_about_the_cluster_counts_for_the_nodes_of_its_suite() -> None:
    per_node = ("controller", "controller.node_errors", False, BOTH)
    (found,) = rows(("controller", "controller.ping", True, ("",)), per_node)
    assert (found.nodes, found.whole) == (BOTH, True)
    (alone,) = rows(("accounting", "accounting.accounts", True, ("",)))
    assert alone.nodes == ("",)


def test_a_rerun_is_about_the_nodes_of_its_items_only() -> None:
    item: Any = SimpleNamespace(
        path=Path("test_gpu.py"),
        name="test_count[gpu02]",
        originalname="test_count",
        callspec=SimpleNamespace(params={"gpucluster_node": "gpu02"}),
    )
    session: Any = SimpleNamespace(
        plan=SimpleNamespace(selected=BOTH, unreached=frozenset()), cluster=SimpleNamespace(required=())
    )
    config: Any = SimpleNamespace()
    event = Selection(config, session).event([item])
    assert event["nodes"] == ["gpu02"]
    assert event["sets"] == [["gpu02"]]


def test_what_runs_on_request_is_one_line() -> None:
    event = {"on_request": {"slow": {"slurm": 1}, "intrusive": {"isolation": 8, "controller": 3}}}
    assert on_request_line(event) == (
        "on request only: 1 slow check (--slow): slurm; 11 intrusive checks (--intrusive): controller, isolation"
    )
    assert on_request_line({}) == ""


def test_suites_without_a_section_are_one_line_and_no_item_and_an_error_where_one_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "one.yaml").write_text(
        "name: one\nnodes: localhost\nslurm: {scheduler: none}\nray: {}\nwaivers:\n"
        "  - {checks: [gpu.vbios], reason: old, ticket: OPS-7, until: 2999-01-31}\n"
    )
    config: Any = SimpleNamespace(
        option=SimpleNamespace(markexpr="", pyargs=False),
        args=[suites_path()],
        invocation_params=SimpleNamespace(dir=tmp_path),
    )
    session: Any = SimpleNamespace(cluster=load_cluster(tmp_path / "one.yaml"), slurm=None)
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
    assert named.event("start")["waivers"] == [
        {
            "nodes": "",
            "checks": ["gpu.vbios"],
            "reason": "old",
            "ticket": "OPS-7",
            "until": "2999-01-31",
            "at": f"{tmp_path / 'one.yaml'}:6",
            "expired": False,
        }
    ]
