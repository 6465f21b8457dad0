"""Items of suites: what they report, what other plugins see of them, and how they are chosen."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import FakeItem, made_suite, names, on, run_made, run_pytest

from pytest_gpucluster.core.check import Action, check
from pytest_gpucluster.core.registry import Suite
from pytest_gpucluster.plugin import items

if TYPE_CHECKING:
    from pathlib import Path

    from plugin_helpers import Run

    from pytest_gpucluster.sandbox import Sandbox

NODES = [f"gpu0{number}" for number in range(1, 5)]
# the same tests as the file of a suite and as ordinary tests of a site
OF_SUITE = """
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node

TESTS = Tests(marks=("made",))
"""
OF_SITE = """
import pytest

class given:
    node = cluster = None

of_node, of_fleet = (lambda _: pytest.fixture), (lambda _: pytest.fixture(scope="session"))
node = of_fleet(None)(lambda gpucluster_node: gpucluster_node)
cluster = of_fleet(None)(lambda gpucluster: gpucluster.cluster)
measure = of_node(None)(lambda gpucluster_item: gpucluster_item.measure)
"""
EVERYTHING = """
import logging
import subprocess
import warnings

import pytest

from pytest_gpucluster.core.errors import NotAvailable


@of_node(given.node)
def chatty(node):
    print("in the fact of", node)
    logging.getLogger("site").warning("logged in the fact")
    return node.name


@of_node(given.node)
def nothing(node):
    raise NotAvailable("the fact has nothing")


@of_node(given.node)
def broken(node):
    raise RuntimeError("the fact breaks")


@of_fleet(given.cluster)
def wide(cluster):
    raise RuntimeError("nothing wide")


@of_fleet(given.cluster)
def cleaned(cluster):
    yield 1
    print("cleaned up")


def test_passes(node, measure, cleaned):
    measure("latency", 4.5, "us", device="mlx5_0 <&>" if node.name == "gpu03" else "mlx5_0")


def test_prints_and_fails(chatty):
    subprocess.run(["echo", "from a process"])
    logging.getLogger("site").error("logged in the test")
    if chatty != "gpu01":
        raise AssertionError("another node")


def test_warns_and_skips(node):
    warnings.warn("take care of " + node.name)
    pytest.skip("not today")


def test_has_nothing(nothing):
    pass


def test_is_broken(broken):
    pass


def test_wide(wide, node):
    pass


def test_raises(node):
    {}["no such key"]


def test_expected(node):
    pytest.xfail("known")


def test_whole(cluster):
    pass
"""


def timeless(text: str) -> str:
    """Return a text without times, addresses of memory, the place of the file, and the state of a node in Slurm."""
    text = re.sub(r"NodeInfo\(.*?ending_unseen=\w+\)", "NodeInfo", text)
    # pytest shortens this line, by the length of the state
    text = re.sub(r"node = Node\w*\(.*?(?=\\n|\n|$)", "node", text)
    text = re.sub(r"[\w./-]*test_made\.py(?::\d+)?", "test_made.py", text)
    text = re.sub(r"--slow |-m made |suites/made ", "", text)
    times = r'(time|timestamp|hostname)="[^"]*"|20\d{6}T\d{6}-\d+|in \d+\.\d+s|\[ *\d+%\]|0x[\da-f]+|\[gw\d\]'
    return re.sub(r"={3,}", "===", re.sub(times, "", text))


def results(run: Run) -> dict[str, Any]:
    events = [
        {key: value for key, value in event.items() if key not in ("time", "run", "seconds")}
        for event in run.events
        if event["event"] in ("result", "rerun", "lost")
    ]
    text = (run.folder / "reports/latest/junit.xml").read_text().partition("</testsuite>")[0]
    metrics = (run.folder / "reports/latest/metrics.prom").read_text().splitlines()
    return {
        "rc": run.rc,
        "events": sorted(timeless(json.dumps(event)) for event in events),
        "junit": sorted(case.strip() for case in timeless(text).split("<testcase")),
        "metrics": sorted(line for line in metrics if "_seconds" not in line),
        "cleaned": run.out.count("cleaned up"),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("options", [("-v", "-rA"), ("-n2",)])
def test_checks_report_like_a_sites_tests(sandbox: Sandbox, tmp_path: Path, options: tuple[str, ...]) -> None:
    suite, site = tmp_path / "suite", tmp_path / "site"
    one = results(run_made(suite, sandbox, made_suite(OF_SUITE + EVERYTHING), *options))
    files, env = {"test_made.py": OF_SITE + EVERYTHING}, {"PYTHONPATH": str(site)}
    other = results(run_pytest(site, on(sandbox), *options, files=files, env=env))
    assert one["rc"] == 1
    for what in one:
        assert one[what] == other[what], what


CHECKS = """
from pytest_gpucluster.core.check import Action, Finding, check

WORDS = {"cause": "wear", "hint": "replace it", "action": Action.MONITOR}


@check("made.sound", **WORDS)
def sound(shown, node_name):
    if node_name == "gpu02":
        yield Finding("part", shown, "sound")


@check("made.torn", **WORDS, marks=("slow",))
def torn(shown):
    yield Finding("part", {}[shown], "sound")


@check("made.wire", **WORDS)
def wire(wires, cluster):
    if wires == 2:
        yield Finding("wire", "torn", "whole")
"""
SUITE = """
from gpucluster_made import checks

from pytest_gpucluster.suite import Tests, given, of_fleet, of_node

shown = of_node(given.node)(lambda node: f"worn on {node}")
wires = of_node(each=lambda cluster: {"tcp": 1, "ib": 2})
TESTS = Tests(checks, marks=("made",))
"""


def test_each_check_has_an_item_per_node_or_value(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_made(tmp_path, sandbox, made_suite(SUITE, checks=CHECKS))
    assert run.rc == 1
    torn = [f"test_torn[{node}]" for node in NODES]
    sound = [f"test_sound[{node}]" for node in NODES]
    items = [*sound, *torn, "test_wire[tcp]", "test_wire[ib]"]
    assert [name.rpartition("::")[2] for name in run.outcomes] == items
    assert names(run.outcomes, "failed") == [sound[1], "test_wire[ib]"]
    assert names(run.outcomes, "error") == torn  # the check is at fault, no node
    assert len(names(run.outcomes, "passed")) == 4
    assert "made.sound on gpu02: part: measured worn on gpu02, expected sound" in run.out
    assert 'yield Finding("part", {}[shown], "sound")' in run.out  # a traceback shows the check
    assert "of_facts" not in run.out
    assert "gpucluster_made/checks.py" in run.out


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        (SUITE.replace("shown =", "other ="), "made.sound needs 'shown', which is no fact of its suite"),
        (
            SUITE.replace("of_node(given.node)", "of_fleet(given.node)"),
            "a fact of the fleet has 'node' as a source, which each item has of its own",
        ),
    ],
)
def test_a_fact_that_fails_is_an_error(sandbox: Sandbox, tmp_path: Path, facts: str, problem: str) -> None:
    run = run_made(tmp_path, sandbox, made_suite(facts, checks=CHECKS))
    assert problem in run.out
    assert run.rc == 2
    assert not run.outcomes


CLEANS = """
from pytest_gpucluster.suite import Tests, given, of_fleet


@of_fleet(given.fleet)
def first(fleet):
    yield 1
    print("\\nfirst is cleaned up on", len(fleet.ask("true")), "nodes")
    raise OSError("no space")


@of_fleet(first)
def second(first):
    yield 2
    print("\\nsecond is cleaned up")


def test_it(node, second):
    HOW


TESTS = Tests(marks=("made",))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "options", "rc"),
    [
        ("assert second == 2", (), 1),
        ("raise KeyboardInterrupt", (), 2),
        ("raise AssertionError", ("-x", "--durations=1"), 1),  # by pytest's own protocol
    ],
)
def test_facts_of_the_run_clean_up_at_its_end_the_last_one_first(
    sandbox: Sandbox, tmp_path: Path, how: str, options: tuple[str, ...], rc: int
) -> None:
    run = run_made(tmp_path, sandbox, made_suite(CLEANS.replace("HOW", how)), "-s", *options)
    assert run.rc == rc, run.out + run.err
    cleaned = ["second is cleaned up", "first is cleaned up on 4 nodes"]
    assert re.findall(r"^\W*(\w+ is cleaned up.*)$", run.out, re.MULTILINE) == cleaned
    assert rc == 2 or "OSError: no space" in run.out


PLAIN = OF_SUITE + "\n\ndef test_it(node, host):\n    pass\n"
LINE = PLAIN.splitlines().index("def test_it(node, host):")


ASKED = f"""
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    item = items[0]
    assert (item.name, item.originalname, item.obj.__name__) == ("test_it[gpu01]", "test_it", "test_it")
    assert item.nodeid == "suites/made/test_made.py::test_it[gpu01]"
    assert (item.location[1:], item.path.name) == (({LINE}, "test_it[gpu01]"), "test_made.py")
    assert [mark.name for mark in item.iter_markers()] == ["made"]
    assert (sorted(item.fixturenames), item.cls) == (["host", "node"], None)
    assert (item.module.__name__, item.function.__name__) == ("gpucluster_made.test_made", "test_it")
    assert (item.user_properties, item.reportinfo()[1:]) == ([], ({LINE}, "test_it[gpu01]"))
    assert not hasattr(item, "no_such_thing")
    item.add_marker(pytest.mark.skip(reason="only this one"))
    items[1].stash[KEY] = 1
    assert KEY not in items[2].stash


KEY = pytest.StashKey[int]()
"""


@pytest.mark.thorough
def test_an_item_has_what_plugins_expect_of_a_function(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_made(tmp_path, sandbox, made_suite(PLAIN, conftest=ASKED))
    assert run.rc == 1, run.out + run.err  # the skipped node is not proved
    assert names(run.outcomes, "passed") == [f"test_it[{node}]" for node in NODES[1:]], run.out


@pytest.mark.thorough
def test_intrusive_tests_run_with_their_option_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    test = "@pytest.mark.intrusive\ndef test_it(gpucluster_node):\n    assert gpucluster_node.name != 'gpu03'\n"
    files = {"test_it.py": f"import pytest\n\n\n{test}", "conftest.py": ""}
    for options in ((), ("-m", "intrusive")):
        run = run_pytest(tmp_path, on(sandbox), *options, files=files)
        assert not run.outcomes, run.out + run.err
        assert "on request only: 4 intrusive checks (--intrusive): it" in run.out
    run = run_pytest(tmp_path, on(sandbox), "test_it.py::test_it[gpu03]", files=files)
    assert run.rc == 1
    assert "it.it disturbs users of the cluster for a short time: add --intrusive" in run.out
    run = run_pytest(tmp_path, on(sandbox), "--intrusive", files=files)
    assert (len(names(run.outcomes, "passed")), names(run.outcomes, "failed")) == (3, ["test_it[gpu03]"])
    assert f"rerun:        pytest {on(sandbox)} --intrusive 'test_it.py::test_it[gpu03]'" in run.out


NAMED = """
def test_gpus(gpucluster_node):
    assert len(gpucluster_node.facts("gpu.gpus")) == 8
    assert gpucluster_node.facts("gpu.gpus") is gpucluster_node.facts("gpu.gpus")
    assert len(gpucluster_node.facts("gpu.uuid_owners")) == 32


def test_no_suite(gpucluster_node):
    gpucluster_node.facts("gpus.gpus")
"""


@pytest.mark.thorough
def test_a_test_of_a_site_gets_facts_of_a_suite_by_name(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), files={"test_it.py": NAMED})
    assert names(run.outcomes, "passed") == [f"test_gpus[{node}]" for node in NODES]
    assert "facts('gpus.gpus'): no suite is called 'gpus'" in run.out


@pytest.mark.parametrize(
    ("proof", "hint"),
    [
        ("cooling.laoded", "did you mean 'cooling.loaded'?"),
        ("os.drift", "write whole names, like 'gpu.count'"),
        ("cooling.Idle", "did you mean 'cooling.idle'?"),
        ("cooling.idle", ""),
        ("cooling.*", ""),
    ],
)
def test_a_proof_of_no_check_is_refused(monkeypatch: pytest.MonkeyPatch, proof: str, hint: str) -> None:
    suite = Suite("cooling_suite", ("cooling: a test",), proof=(proof,))
    monkeypatch.setattr(items, "suites", lambda: (suite,))
    refused = pytest.raises(pytest.Collector.CollectError) if hint else nullcontext()
    with refused as caught:
        items.refuse_unknown_proof("cooling_suite.test_cooling", {"cooling.idle", "cooling.loaded"})
    if caught is not None:
        assert f"suite {suite.name} has no check {proof!r}" in str(caught.value)
        assert hint in str(caught.value)


@pytest.mark.parametrize(("fact", "needed"), [("jobs", True), ("submitted", False)])
def test_a_check_of_batch_jobs_alone_gets_its_jobs(fact: str, *, needed: bool) -> None:
    """A failure states `rerun: pytest ...::test_array`, which has to do again what failed."""
    item: Any = FakeItem(fixturenames=[f"gpucluster_{fact}"])
    assert items.needs_nodes(item) is needed


def test_a_test_of_a_site_goes_by_the_name_of_the_check_that_its_module_declares() -> None:
    item: Any = FakeItem()
    declared = check("site.count", cause="x", hint="x", action=Action.MONITOR)(lambda: iter(()))
    for known, name in ({}, "gpu.count"), ({"judge": declared}, "site.count"), ({"Any": Any}, "gpu.count"):
        item.module = Namespace(**known)
        assert items.check_of(item) == name
