"""The counts of nodes: every selected node once, on the page and in the terminal."""

from __future__ import annotations

import re

from report_helpers import a_run, event, failing, passing, unjudged

from pytest_gpucluster.report import html
from pytest_gpucluster.report.last_screen import counts
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.report.verdict import judge, node_counts

NODES = [f"gpu{number:02}" for number in range(1, 9)]
RESULTS = [
    passing("gpu01"),
    failing("gpu02"),
    unjudged("gpu03", "not tested"),  # drained, and that failed a check
    failing("gpu03", check="slurm.schedulable"),
    unjudged("gpu04", "not tested"),
    failing("gpu05", outcome="error"),
    passing("gpu06"),
    unjudged("gpu07", "not checked"),  # and gpu08 has no result
]
DRAINED = {node: ["unavailable", "DRAINED"] for node in ("gpu03", "gpu04", "gpu99")}


def test_every_selected_node_is_counted_once() -> None:
    run = read_run(
        [
            *a_run(RESULTS, nodes=NODES, not_tested=DRAINED, finish=1),
            event("lost", node="gpu06", why="gone"),
        ]
    )
    found = node_counts(run, judge(run))
    assert found == {"fit": 1, "failed": 2, "not tested": 3, "could not be judged": 2}
    assert sum(found.values()) == len(NODES)
    assert counts(run, judge(run)) == "8 nodes: 1 fit, 2 failed, 3 not tested, 2 could not be judged"
    page = html.render(run)
    figures = page[
        page.index('<ul class="figures">') : page.index("</ul>", page.index('<ul class="figures">'))
    ]
    shown = re.findall(r"<li><b>(?:<svg.*?</svg>)?([\d,]+)</b>([^<]+)</li>", figures)
    assert shown[:5] == [
        ("8", "nodes selected"),
        ("1", "fit"),
        ("2", "failed a check"),
        ("3", "not tested"),
        ("2", "could not be judged"),
    ]


def test_nodes_that_could_not_be_judged_are_counted_if_there_are_any() -> None:
    run = read_run(a_run([passing("gpu01"), failing("gpu02")], finish=1))
    assert counts(run, judge(run)) == "2 nodes: 1 fit, 1 failed, 0 not tested"
    assert "could not be judged" not in html.render(run)
